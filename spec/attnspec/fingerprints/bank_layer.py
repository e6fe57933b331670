"""Known mistakes of a layer: splitting and merging heads, projections, biases and inputs.

Long because it is a table: an entry is data, one mistake each.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._inputs import CoreInputs, LayerInputs
from ..weights import LayerWeights, split_fused
from .builder import Step, attend, merge, run_layer, split
from .record import Fingerprint, WrongCore, WrongLayer


def _split_view(x: Any, projected: Tensor, heads: int) -> Tensor:
    return projected.reshape(projected.shape[0], heads, projected.shape[1], -1)


def _split_d_major(x: Any, projected: Tensor, heads: int) -> Tensor:
    return projected.unflatten(-1, (-1, heads)).permute(0, 3, 1, 2)


def _split_heads_batch(x: Any, projected: Tensor, heads: int) -> Tensor:
    """Split to `(heads batch) seq d`, and read that as `(batch heads) seq d`."""
    first = split(x, projected, heads).transpose(0, 1)
    return first.reshape(projected.shape[0], heads, *first.shape[2:])


def _merge_view(x: Any, mixed: Tensor) -> Tensor:
    return mixed.reshape(mixed.shape[0], mixed.shape[2], -1)


def _merge_d_major(x: Any, mixed: Tensor) -> Tensor:
    return mixed.permute(0, 2, 3, 1).flatten(2)


def _merge_heads_batch(x: Any, mixed: Tensor) -> Tensor:
    """Hand `(heads batch) seq d` on as if it were `(batch heads) seq d`."""
    return merge(x, mixed.transpose(0, 1).reshape(mixed.shape))


def _merge_unread(x: Any, mixed: Tensor) -> Tensor:
    """Read `(batch heads) seq d` as `(heads batch) seq d`."""
    batch, heads = mixed.shape[:2]
    return merge(x, mixed.reshape(heads, batch, *mixed.shape[2:]).transpose(0, 1))


def _merge_positions_last(x: Any, mixed: Tensor) -> Tensor:
    return mixed.mT.reshape(mixed.shape[0], mixed.shape[2], -1)


def _steps(*, split: Step = split, merge: Step = merge) -> WrongCore:
    """Attend with another split or merge, seen from the core: its heads are laid out anew."""

    def core(x: CoreInputs) -> Tensor:
        q, k, v = (split(x, t.transpose(1, 2).flatten(2), t.shape[1]) for t in (x.query, x.key, x.value))
        mixed = attend(x.replace(query=q, key=k, value=v))
        return merge(x, mixed).unflatten(-1, (mixed.shape[1], -1)).transpose(1, 2)

    return core


def _part_viewed(name: str) -> WrongCore:
    """Split one of the three projections by a view alone."""

    def core(x: CoreInputs) -> Tensor:
        tensor = getattr(x, name)
        return attend(x.replace(**{name: _split_view(x, tensor.transpose(1, 2).flatten(2), tensor.shape[1])}))

    return core


def _weights(change: Callable[[LayerWeights], dict[str, Tensor | None] | None]) -> WrongLayer:
    """Run with changed weights; `change` returns None where it does not apply."""

    def layer(x: LayerInputs) -> Tensor | None:
        changed = change(x.weights)
        if changed is None:
            return None
        for name, tensor in changed.items():
            if tensor is not None and tensor.shape != getattr(x.weights, name).shape:
                return None
        return run_layer(x.replace(weights=x.weights.replace(**changed)))

    return layer


def _without(*names: str) -> WrongLayer:
    def change(w: LayerWeights) -> dict[str, Tensor | None] | None:
        return dict.fromkeys(names) if any(getattr(w, name) is not None for name in names) else None

    return _weights(change)


def _transposed(*names: str) -> WrongLayer:
    def change(w: LayerWeights) -> dict[str, Tensor | None] | None:
        square = all(getattr(w, name).shape[0] == getattr(w, name).shape[1] for name in names)
        return {name: getattr(w, name).mT for name in names} if square else None

    return _weights(change)


def _taken(**sources: str) -> WrongLayer:
    """Use projections in the place of others: `q="k"` projects the queries with the matrix of the keys."""

    def change(w: LayerWeights) -> dict[str, Tensor | None] | None:
        return {
            f"{kind}_{to}": getattr(w, f"{kind}_{source}") for to, source in sources.items() for kind in "Wb"
        }

    return _weights(change)


def _misread(held: str, read: str) -> WrongLayer:
    """Read a fused projection in the other layout."""

    def change(w: LayerWeights) -> dict[str, Tensor | None] | None:
        if w.kv_heads != w.heads or w.d_v != w.d_k:
            return None
        biases = [w.b_q, w.b_k, w.b_v]
        matrix, bias = w.fused(held) if len({b is None for b in biases}) == 1 else (None, None)  # type: ignore[arg-type]
        if matrix is None:
            return None
        found: dict[str, Tensor | None] = dict(
            zip(("W_q", "W_k", "W_v"), split_fused(matrix, heads=w.heads, layout=read), strict=True)  # type: ignore[arg-type]
        )
        if bias is not None:
            found |= zip(("b_q", "b_k", "b_v"), split_fused(bias, heads=w.heads, layout=read), strict=True)  # type: ignore[arg-type]
        return found

    return _weights(change)


def _shared_head(w: LayerWeights) -> dict[str, Tensor | None]:
    def first(tensor: Tensor | None, heads: int) -> Tensor | None:
        if tensor is None:
            return None
        whole = tensor.unflatten(0, (heads, -1))
        return whole[:1].expand_as(whole).flatten(0, 1)

    counts = {"q": w.heads, "k": w.kv_heads, "v": w.kv_heads}
    return {
        f"{kind}_{n}": first(getattr(w, f"{kind}_{n}"), count) for n, count in counts.items() for kind in "Wb"
    }


def _one_head(scale: Callable[[CoreInputs], float]) -> WrongLayer:
    """Attend with the whole width as one head."""

    def core(x: CoreInputs) -> Tensor | None:
        if x.query.shape[1] != x.key.shape[1] or x.value.shape[-1] != x.query.shape[-1]:
            return None
        q, k, v = (t.transpose(1, 2).flatten(2).unsqueeze(1) for t in (x.query, x.key, x.value))
        for tensor in (x.mask, x.bias):
            if tensor is not None and tensor.dim() == 4 and tensor.shape[1] != 1:
                return None
        out = attend(x.replace(query=q, key=k, value=v, scale=scale(x) if x.scale is None else x.scale))
        return out.squeeze(1).unflatten(-1, (x.query.shape[1], -1)).transpose(1, 2)

    return lambda x: run_layer(x, core=core)


def _sequence_first(x: LayerInputs) -> Tensor | None:
    """Attend over the batch, as a module does that expects `seq batch d_model`."""
    if x.query.shape[:2] != x.key_input.shape[:2]:
        return None
    query, key, value = (None if t is None else t.transpose(0, 1) for t in (x.query, x.key, x.value))
    batch, length = query.shape[:2]  # type: ignore[union-attr]
    for tensor in (x.mask, x.bias):
        if tensor is not None and any(
            a not in (1, b)
            for a, b in zip(reversed(tensor.shape), (length, length, x.weights.heads, batch), strict=False)
        ):
            return None
    found = run_layer(x.replace(query=query, key=key, value=value))
    return None if found is None else found.transpose(0, 1)


def _source(**sources: str) -> WrongLayer:
    """Take keys or values from another input: `value="query"` projects the query input to values."""

    def layer(x: LayerInputs) -> Tensor | None:
        given = {"query": x.query, "key": x.key_input, "value": x.value_input}
        taken = {to: given[source] for to, source in sources.items()}
        lengths = {t.shape[1] for t in ({**given, **taken}["key"], {**given, **taken}["value"])}
        kv_len = x.key_input.shape[1]
        fixed = [t.shape[-1] for t in (x.mask, x.bias) if t is not None and t.shape[-1] != 1]
        if len(lengths) != 1 or any(size != lengths.copy().pop() for size in fixed if size == kv_len):
            return None
        return run_layer(x, key=taken.get("key"), value=taken.get("value"))

    return layer


def _plus(x: LayerInputs) -> Tensor | None:
    found = run_layer(x)
    return None if found is None else found + x.query


def _merged_output(step: Step) -> WrongLayer:
    """Return the merged heads without the output projection."""

    def layer(x: LayerInputs) -> Tensor | None:
        w = x.weights
        eye = torch.eye(*w.W_o.shape, dtype=w.W_o.dtype)
        if w.W_o.shape[0] != w.W_o.shape[1] or torch.equal(eye, w.W_o):
            return None
        return run_layer(x.replace(weights=w.replace(W_o=eye, b_o=None)), merge=step)

    return layer


_SPLIT = "x.view(batch, seq, heads, d_k).transpose(1, 2)"
_MERGE = "x.transpose(1, 2).reshape(batch, seq, heads * d_k)"
_LINEAR = "a linear layer is x @ W.T + b"

LAYER = (
    Fingerprint(
        "split.viewed",
        "the heads are split by a view without transpose, so a head mixes positions",
        _SPLIT,
        core=_steps(split=_split_view),
    ),
    Fingerprint(
        "split.viewed_and_merged_viewed",
        "the heads are split and merged by views without transpose, so a head mixes positions",
        f"{_SPLIT}; {_MERGE}",
        core=_steps(split=_split_view, merge=_merge_view),
    ),
    *(
        Fingerprint(
            f"split.{name}_viewed",
            f"the {name} is split by a view without transpose",
            _SPLIT,
            core=_part_viewed(name),
        )
        for name in ("query", "key", "value")
    ),
    Fingerprint(
        "split.d_major",
        "the heads are the last axis of the split: `d_k heads` instead of `heads d_k`",
        _SPLIT,
        core=_steps(split=_split_d_major),
    ),
    Fingerprint(
        "split.d_major_and_merged",
        "the heads are the last axis of split and merge: `d_k heads` instead of `heads d_k`",
        f"{_SPLIT}; {_MERGE}",
        core=_steps(split=_split_d_major, merge=_merge_d_major),
    ),
    Fingerprint(
        "split.heads_batch",
        "heads and batch are swapped in the split: `(heads batch)` is read as `(batch heads)`",
        _SPLIT,
        core=_steps(split=_split_heads_batch),
    ),
    Fingerprint(
        "merge.viewed", "the heads are merged without transpose", _MERGE, core=_steps(merge=_merge_view)
    ),
    Fingerprint(
        "merge.d_major",
        "the merge puts the heads last: `d_v heads` instead of `heads d_v`",
        _MERGE,
        core=_steps(merge=_merge_d_major),
    ),
    Fingerprint(
        "merge.heads_batch",
        "batch and heads are swapped in the merge: `(heads batch)` is read as `(batch heads)`",
        _MERGE,
        core=_steps(merge=_merge_heads_batch),
        special_of="axes.output_batch_heads",
    ),
    Fingerprint(
        "merge.batch_heads",
        "batch and heads are swapped in the merge: `(batch heads)` is read as `(heads batch)`",
        _MERGE,
        core=_steps(merge=_merge_unread),
    ),
    Fingerprint(
        "merge.width_first",
        "the merge transposes positions and width, not heads and positions",
        _MERGE,
        core=_steps(merge=_merge_positions_last),
    ),
    Fingerprint(
        "heads.not_split",
        "the heads are not split: one head of the whole width",
        _SPLIT,
        layer=_one_head(lambda x: x.query.shape[-1] ** -0.5),
    ),
    Fingerprint(
        "heads.not_split_scaled",
        "the heads are not split: one head of the whole width, scaled by sqrt(d_model)",
        _SPLIT,
        layer=_one_head(lambda x: (x.query.shape[1] * x.query.shape[-1]) ** -0.5),
    ),
    Fingerprint(
        "heads.shared_weights",
        "all heads share the weights of the first one",
        "one slice of rows per head",
        layer=_weights(_shared_head),
    ),
    Fingerprint(
        "output.unprojected",
        "the output projection W_o is missing",
        "return self.W_o(merged)",
        layer=_merged_output(merge),
    ),
    Fingerprint(
        "output.unprojected_viewed",
        "the output projection W_o is missing, and the heads are merged without transpose",
        f"{_MERGE}, then W_o",
        layer=_merged_output(_merge_view),
    ),
    Fingerprint(
        "output.residual", "the input is added to the output", "return the projection alone", layer=_plus
    ),
    Fingerprint("weights.o_transposed", "W_o is applied transposed", _LINEAR, layer=_transposed("W_o")),
    Fingerprint("weights.q_transposed", "W_q is applied transposed", _LINEAR, layer=_transposed("W_q")),
    Fingerprint("weights.k_transposed", "W_k is applied transposed", _LINEAR, layer=_transposed("W_k")),
    Fingerprint("weights.v_transposed", "W_v is applied transposed", _LINEAR, layer=_transposed("W_v")),
    Fingerprint(
        "weights.qkv_transposed",
        "W_q, W_k and W_v are applied transposed",
        _LINEAR,
        layer=_transposed("W_q", "W_k", "W_v"),
    ),
    Fingerprint(
        "weights.all_transposed",
        "all projections are applied transposed",
        _LINEAR,
        layer=_transposed("W_q", "W_k", "W_v", "W_o"),
    ),
    Fingerprint(
        "weights.stacked_as_interleaved",
        "the stacked projection is read as interleaved by head",
        "view(..., 3, heads, d_k)",
        layer=_misread("stacked", "interleaved"),
    ),
    Fingerprint(
        "weights.interleaved_as_stacked",
        "the projection interleaved by head is read as stacked",
        "view(..., heads, 3, d_k)",
        layer=_misread("interleaved", "stacked"),
    ),
    *(
        Fingerprint(
            f"weights.{a}_with_{b}",
            f"the {words[a]} are projected with W_{b}",
            f"use W_{a} for the {words[a]}",
            layer=_taken(**{a: b}),
            special_of=f"operands.{names[b]}_as_{names[a]}",
        )
        for words, names in (
            ({"q": "queries", "k": "keys", "v": "values"}, {"q": "query", "k": "key", "v": "value"}),
        )
        for a in "qkv"
        for b in "qkv"
        if a != b
    ),
    Fingerprint(
        "weights.q_k_swapped",
        "W_q and W_k are swapped",
        "W_q projects the queries, W_k the keys",
        layer=_taken(q="k", k="q"),
        special_of="operands.scores_transposed",
    ),
    Fingerprint(
        "weights.k_v_swapped",
        "W_k and W_v are swapped",
        "W_k projects the keys, W_v the values",
        layer=_taken(k="v", v="k"),
        special_of="operands.key_value_swapped",
    ),
    Fingerprint(
        "weights.q_v_swapped",
        "W_q and W_v are swapped",
        "W_q projects the queries, W_v the values",
        layer=_taken(q="v", v="q"),
        special_of="operands.query_value_swapped",
    ),
    Fingerprint(
        "weights.rotated",
        "the fused projection is read in the order v, q, k",
        "q, k, v in this order",
        layer=_taken(q="v", k="q", v="k"),
    ),
    Fingerprint(
        "weights.rotated_back",
        "the fused projection is read in the order k, v, q",
        "q, k, v in this order",
        layer=_taken(q="k", k="v", v="q"),
    ),
    Fingerprint(
        "bias.q_dropped",
        "the bias of the queries is not added",
        "query = x @ W_q.T + b_q",
        layer=_without("b_q"),
    ),
    Fingerprint(
        "bias.v_dropped",
        "the bias of the values is not added",
        "value = x @ W_v.T + b_v",
        layer=_without("b_v"),
    ),
    Fingerprint(
        "bias.o_dropped",
        "the bias of the output projection is not added",
        "out @ W_o.T + b_o",
        layer=_without("b_o"),
    ),
    Fingerprint(
        "bias.qkv_dropped",
        "the biases of queries, keys and values are not added",
        _LINEAR,
        layer=_without("b_q", "b_k", "b_v"),
    ),
    Fingerprint(
        "bias.all_dropped",
        "no bias of a projection is added",
        _LINEAR,
        layer=_without("b_q", "b_k", "b_v", "b_o"),
    ),
    Fingerprint(
        "axes.sequence_first",
        "batch and positions are swapped: the layer attends across the batch",
        "batch_first=True, or transpose(0, 1) before and after",
        layer=_sequence_first,
        special_of="axes.batch_as_positions",
    ),
    Fingerprint(
        "sources.value_from_query",
        "the values come from the query input",
        "value = W_v(memory)",
        "cross",
        layer=_source(value="query"),
    ),
    Fingerprint(
        "sources.key_from_query",
        "the keys come from the query input",
        "key = W_k(memory)",
        "cross",
        layer=_source(key="query"),
    ),
    Fingerprint(
        "sources.memory_ignored",
        "keys and values come from the query input: the memory is ignored",
        "key = W_k(memory), value = W_v(memory)",
        "cross",
        layer=_source(key="query", value="query"),
    ),
    Fingerprint(
        "sources.value_from_key",
        "the values come from the key input",
        "value = W_v(value)",
        "cross",
        layer=_source(value="key"),
    ),
    Fingerprint(
        "sources.key_from_value",
        "the keys come from the value input",
        "key = W_k(key)",
        "cross",
        layer=_source(key="value"),
    ),
)
