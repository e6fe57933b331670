"""Known mistakes with grouped heads, with the order of axes, and with which tensor is used where.

Long because it is a table: an entry is data, one mistake each.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from .._inputs import CoreInputs
from .builder import Step, attend, logits, seeing, share, sight
from .record import Fingerprint, WrongCore


def _grouped(change: Step, *, key: bool = True, value: bool = True) -> WrongCore:
    """Attend with another way to share key/value heads out, for keys, for values or for both."""

    def core(x: CoreInputs) -> Tensor | None:
        group = x.query.shape[1] // x.key.shape[1]
        k, v = (change(t, group) if on else share(t, group) for t, on in ((x.key, key), (x.value, value)))
        return attend(x.replace(key=k, value=v))

    return core


def _tile(tensor: Tensor, group: int) -> Tensor:
    return tensor.repeat(1, group, 1, 1)


def _only(index: int) -> Step:
    return lambda tensor, group: (
        tensor.select(1, index).unsqueeze(1).expand(-1, tensor.shape[1] * group, -1, -1)
    )


def _mean(tensor: Tensor, group: int) -> Tensor:
    return tensor.mean(1, keepdim=True).expand(-1, tensor.shape[1] * group, -1, -1)


def _by_kv_heads(tensor: Tensor, group: int) -> Tensor:
    """Read head `h // kv_heads`, where that exists."""
    heads, kv_heads = tensor.shape[1] * group, tensor.shape[1]
    return tensor[:, (torch.arange(heads) // kv_heads).clamp(max=kv_heads - 1)]


def _flat_repeat(tensor: Tensor, group: int) -> Tensor:
    """Repeat along the positions and read the result as heads, as a reshape in the wrong order does."""
    return tensor.repeat(1, 1, group, 1).reshape(tensor.shape[0], -1, *tensor.shape[2:])


def _as(query: str = "query", key: str = "key", value: str = "value") -> WrongCore:
    """Attend with one operand in the place of another, where the shapes allow it."""

    def core(x: CoreInputs) -> Tensor | None:
        given = {"query": x.query, "key": x.key, "value": x.value}
        taken = {"query": given[query], "key": given[key], "value": given[value]}
        if any(taken[name].shape != given[name].shape for name in given):
            return None
        return attend(x.replace(**taken))

    return core


def _scores(change: Callable[[Tensor], Tensor]) -> WrongCore:
    """Attend with other dot products, where their shape stays."""

    def core(x: CoreInputs) -> Tensor | None:
        if x.query.shape != x.key.shape:
            return None
        return attend(x, logits=lambda x, raw: logits(x, change(raw)))

    return core


def _key_viewed(x: CoreInputs) -> Tensor | None:
    """Reshape the key to `d_k kv_len` instead of transposing it."""
    k = x.key
    return attend(x.replace(key=k.reshape(*k.shape[:2], k.shape[3], k.shape[2]).mT))


def _fits(x: CoreInputs, scores: tuple[int, ...]) -> bool:
    """Return whether mask and bias broadcast to scores of another shape."""
    for tensor in (x.mask, x.bias):
        if tensor is None:
            continue
        pairs = zip(reversed(tensor.shape), reversed(scores), strict=False)
        if any(a not in (1, b) for a, b in pairs):
            return False
    return True


def _axes_swapped(first: int, second: int) -> WrongCore:
    """Attend over tensors with two axes swapped, and swap them back."""

    def core(x: CoreInputs) -> Tensor | None:
        if x.query.shape[1] != x.key.shape[1]:
            return None
        q, k, v = (t.transpose(first, second) for t in (x.query, x.key, x.value))
        if q.shape[:2] != k.shape[:2] or not _fits(x, (*q.shape[:3], k.shape[2])):
            return None
        return attend(x.replace(query=q, key=k, value=v, scale=x.factor)).transpose(first, second)

    return core


def _shifted(name: str, by: int) -> WrongCore:
    """Read one operand at other positions."""
    return lambda x: attend(x.replace(**{name: getattr(x, name).roll(by, 2)}))


def _first_keys(x: CoreInputs, count: int) -> Tensor | None:
    if count >= x.key.shape[2]:
        return None
    return attend(seeing(x, sight(x) & (torch.arange(x.key.shape[2]) < count)))


def _output(change: Callable[[Tensor], Tensor]) -> WrongCore:
    def core(x: CoreInputs) -> Tensor | None:
        return change(attend(x))

    return core


_REPEAT = "key.repeat_interleave(heads // kv_heads, dim=1): head h reads h // group"
_VIEW = "key.transpose(-2, -1), not a view or reshape"

HEADS = (
    Fingerprint(
        "grouped.tiled",
        "the key/value heads are tiled: head h reads h % kv_heads",
        _REPEAT,
        "grouped",
        _grouped(_tile),
    ),
    Fingerprint(
        "grouped.keys_tiled",
        "the key heads are tiled: head h reads key head h % kv_heads",
        _REPEAT,
        "grouped",
        _grouped(_tile, value=False),
    ),
    Fingerprint(
        "grouped.values_tiled",
        "the value heads are tiled: head h reads value head h % kv_heads",
        _REPEAT,
        "grouped",
        _grouped(_tile, key=False),
    ),
    Fingerprint(
        "grouped.first", "every head reads the first key/value head", _REPEAT, "grouped", _grouped(_only(0))
    ),
    Fingerprint(
        "grouped.last", "every head reads the last key/value head", _REPEAT, "grouped", _grouped(_only(-1))
    ),
    Fingerprint(
        "grouped.first_key",
        "every head reads the first key head",
        _REPEAT,
        "grouped",
        _grouped(_only(0), value=False),
    ),
    Fingerprint(
        "grouped.first_value",
        "every head reads the first value head",
        _REPEAT,
        "grouped",
        _grouped(_only(0), key=False),
    ),
    Fingerprint(
        "grouped.mean",
        "every head reads the mean of the key/value heads",
        _REPEAT,
        "grouped",
        _grouped(_mean),
    ),
    Fingerprint(
        "grouped.by_kv_heads",
        "head h reads key/value head h // kv_heads, not h // group",
        _REPEAT,
        "grouped",
        _grouped(_by_kv_heads),
    ),
    Fingerprint(
        "grouped.repeated_positions",
        "keys and values are repeated along the positions and read as heads",
        _REPEAT,
        "grouped",
        _grouped(_flat_repeat),
    ),
    Fingerprint(
        "grouped.reversed",
        "the key/value heads are read in reverse order",
        _REPEAT,
        "grouped",
        _grouped(lambda t, group: share(t.flip(1), group)),
    ),
    Fingerprint(
        "operands.scores_transposed",
        "queries and keys are swapped: the scores are transposed",
        "scores = query @ key.transpose(-2, -1)",
        "",
        _scores(lambda s: s.mT),
    ),
    Fingerprint(
        "operands.key_as_value", "the keys are used as values", "weights @ value", "", _as(value="key")
    ),
    Fingerprint(
        "operands.query_as_value", "the queries are used as values", "weights @ value", "", _as(value="query")
    ),
    Fingerprint(
        "operands.value_as_key",
        "the values are used as keys",
        "query @ key.transpose(-2, -1)",
        "",
        _as(key="value"),
    ),
    Fingerprint(
        "operands.query_as_key",
        "the queries are used as keys",
        "query @ key.transpose(-2, -1)",
        "",
        _as(key="query"),
    ),
    Fingerprint(
        "operands.key_as_query",
        "the keys are used as queries",
        "query @ key.transpose(-2, -1)",
        "",
        _as(query="key"),
    ),
    Fingerprint(
        "operands.value_as_query",
        "the values are used as queries",
        "query @ key.transpose(-2, -1)",
        "",
        _as(query="value"),
    ),
    Fingerprint(
        "operands.key_value_swapped",
        "keys and values are swapped",
        "scores from the keys, output from the values",
        "",
        _as(key="value", value="key"),
    ),
    Fingerprint(
        "operands.query_value_swapped",
        "queries and values are swapped",
        "query, key, value in this order",
        "",
        _as(query="value", value="query"),
    ),
    Fingerprint(
        "operands.key_query_everything",
        "keys stand for queries, keys and values alike",
        "query @ key.transpose(-2, -1) @ value",
        "",
        _as(query="key", value="key"),
    ),
    Fingerprint(
        "axes.key_viewed", "the keys are reshaped where they should be transposed", _VIEW, "", _key_viewed
    ),
    Fingerprint(
        "axes.heads_as_positions",
        "`batch seq heads d` is read as `batch heads seq d`: positions take the place of heads",
        "transpose(1, 2) before attention and back after it",
        "",
        _axes_swapped(1, 2),
    ),
    Fingerprint(
        "axes.batch_as_positions",
        "attention runs over the batch: batch and positions are swapped",
        "batch_first=True, or transpose(0, 1)",
        "",
        _axes_swapped(0, 2),
    ),
    Fingerprint(
        "axes.width_as_positions",
        "attention runs over the width: positions and width are swapped",
        "positions are axis -2, the width is axis -1",
        "",
        _axes_swapped(2, 3),
    ),
    Fingerprint(
        "axes.output_batch_heads",
        "the output has batch and heads swapped",
        "batch first: permute(0, 2, 1, 3)",
        "",
        _output(lambda t: t.transpose(0, 1).reshape(t.shape)),
    ),
    Fingerprint(
        "axes.output_viewed",
        "the output is reshaped where heads and positions should be transposed",
        "transpose(1, 2), not a view",
        "",
        _output(lambda t: t.transpose(1, 2).reshape(t.shape)),
        special_of="axes.output_transposed",
    ),
    Fingerprint(
        "axes.output_transposed",
        "heads and positions are swapped in the output: `batch q_len heads d_v`",
        "transpose(1, 2) once more",
        "",
        _output(lambda t: t.transpose(1, 2)),
    ),
    Fingerprint(
        "operands.first_sample",
        "every sample looks at the keys and values of the first one",
        "keep the batch axis",
        "",
        lambda x: attend(x.replace(key=x.key[:1].expand_as(x.key), value=x.value[:1].expand_as(x.value))),
    ),
    Fingerprint(
        "operands.first_sample_keys",
        "every sample looks at the keys of the first one",
        "keep the batch axis",
        "",
        lambda x: attend(x.replace(key=x.key[:1].expand_as(x.key))),
    ),
    Fingerprint(
        "operands.first_sample_values",
        "every sample takes the values of the first one",
        "keep the batch axis",
        "",
        lambda x: attend(x.replace(value=x.value[:1].expand_as(x.value))),
    ),
    *(
        Fingerprint(
            f"operands.{name}_shifted_{word}",
            f"the {name}s are read one position {word}",
            f"{name} j belongs to position j",
            "",
            _shifted(name, by),
        )
        for name in ("query", "key", "value")
        for word, by in (("late", 1), ("early", -1))
    ),
    Fingerprint(
        "operands.keys_cut",
        "only as many keys are looked at as there are queries",
        "let the keys run to kv_len",
        "cross",
        lambda x: _first_keys(x, x.query.shape[2]),
    ),
    Fingerprint(
        "heads.first_for_all",
        "every head computes what the first one does",
        "each head has its own slice: h * d_k : (h + 1) * d_k",
        "",
        lambda x: attend(
            x.replace(
                query=x.query[:, :1].expand_as(x.query),
                key=x.key[:, :1].expand_as(x.key),
                value=x.value[:, :1].expand_as(x.value),
            )
        ),
    ),
    Fingerprint(
        "heads.last_for_all",
        "every head computes what the last one does",
        "each head has its own slice: h * d_k : (h + 1) * d_k",
        "",
        lambda x: attend(
            x.replace(
                query=x.query[:, -1:].expand_as(x.query),
                key=x.key[:, -1:].expand_as(x.key),
                value=x.value[:, -1:].expand_as(x.value),
            )
        ),
    ),
    Fingerprint(
        "output.zeros",
        "the output is zero everywhere",
        "return the result",
        "",
        lambda x: torch.zeros_like(attend(x)),
    ),
    Fingerprint(
        "output.mean",
        "every query gives the plain mean of the values that it sees",
        "the scores do not reach the softmax",
        "",
        lambda x: attend(x, logits=lambda x, raw: raw * 0),
    ),
    Fingerprint(
        "output.value",
        "the values are returned as they are",
        "mix them: weights @ value",
        "",
        lambda x: (
            share(x.value, x.query.shape[1] // x.key.shape[1]) if x.query.shape[2] == x.key.shape[2] else None
        ),
    ),
    Fingerprint(
        "output.argmax",
        "each query takes the value of its best key alone",
        "weights = scores.softmax(dim=-1)",
        "",
        lambda x: attend(x, softmax=lambda s: (s == s.amax(-1, keepdim=True)).double()),
    ),
    Fingerprint(
        "output.residual_query",
        "the query is added to the output",
        "return weights @ value alone",
        "",
        lambda x: attend(x) + x.query if x.query.shape[-1] == x.value.shape[-1] else None,
    ),
)
