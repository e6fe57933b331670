"""Known mistakes in the softmax, in its blocks and its range.

Long because it is a table: an entry is data, one mistake each.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from .._inputs import CoreInputs
from .builder import attend, forbid, logits, right_core, sight
from .record import Fingerprint, WrongCore

BLOCKS = (2, 4, 8, 16, 32, 64, 128)


def _over(normalise: Callable[[Tensor], Tensor]) -> WrongCore:
    return lambda x: attend(x, softmax=normalise)


def _unshifted(x: CoreInputs) -> Tensor:
    """Take the exponential of the scores as they are, in float32: large ones overflow."""

    def softmax(scores: Tensor) -> Tensor:
        powers = scores.float().exp()
        return (powers / powers.sum(-1, keepdim=True)).double()

    dead = ~sight(x).any(-1, keepdim=True)
    return attend(x, softmax=softmax).masked_fill(dead, 0.0)


def _divide_last(x: CoreInputs) -> Tensor:
    """The same with the division at the end."""

    def softmax(scores: Tensor) -> Tensor:
        return scores.float().exp()

    def mix(x: CoreInputs, powers: Tensor, value: Tensor) -> Tensor:
        return ((powers @ value.float()) / powers.sum(-1, keepdim=True)).double()

    dead = ~sight(x).any(-1, keepdim=True)
    return attend(x, softmax=softmax, mix=mix).masked_fill(dead, 0.0)


def _powers(scores: Tensor) -> Tensor:
    return (scores - scores.amax(-1, keepdim=True)).exp()


def _keys(x: CoreInputs, first: int, last: int) -> Tensor | None:
    """Attend to a range of the keys alone, each where it stands."""
    if first >= last or (first, last) == (0, x.key.shape[2]):
        return None
    at = torch.arange(x.key.shape[2])
    inside = (at >= first) & (at < last)
    return attend(x, block=lambda x, s: forbid(x, s).masked_fill(~inside, -torch.inf))


def _last_key_past(count: int) -> WrongCore:
    return lambda x: _keys(x, 0, x.key.shape[2] - 1) if x.key.shape[2] > count else None


def _dropped(size: int) -> WrongCore:
    def core(x: CoreInputs) -> Tensor | None:
        length = x.key.shape[2]
        return _keys(x, 0, length // size * size) if length > size and length % size else None

    return core


def _padded(size: int) -> WrongCore:
    """Let the zeros that fill the last block take part, with score 0."""

    def core(x: CoreInputs) -> Tensor | None:
        extra = -x.key.shape[2] % size
        if not extra:
            return None
        return attend(
            x, block=lambda x, s: pad(forbid(x, s), (0, extra)), mix=lambda x, w, v: w[..., :-extra] @ v
        )

    return core


def _rows(size: int) -> WrongCore:
    """Leave the rows of the last, partial block of queries at zero."""

    def core(x: CoreInputs) -> Tensor | None:
        length = x.query.shape[2]
        if length <= size or not length % size:
            return None
        tail = torch.arange(length)[:, None] >= length // size * size
        return attend(x).masked_fill(tail, 0.0)

    return core


def _online(size: int, *, accumulator: bool, total: bool) -> WrongCore:
    """Walk over blocks of keys; what is False is not rescaled when the running maximum moves."""

    def core(x: CoreInputs) -> Tensor | None:
        if x.key.shape[2] <= size:
            return None
        group = x.query.shape[1] // x.key.shape[1]
        key, value = x.key.repeat_interleave(group, 1), x.value.repeat_interleave(group, 1)
        scores = forbid(x, logits(x, x.query @ key.mT))
        top = torch.full_like(scores[..., :1], -torch.inf)
        out, sum_ = torch.zeros_like(x.query[..., :1] * value[..., :1, :]), torch.zeros_like(top)
        for block, part in zip(scores.split(size, -1), value.split(size, -2), strict=True):
            new = torch.maximum(top, block.amax(-1, keepdim=True))
            power, moved = (block - new).exp().nan_to_num(0.0), (top - new).exp().nan_to_num(0.0)
            out = out * (moved if accumulator else 1.0) + power @ part
            sum_ = sum_ * (moved if total else 1.0) + power.sum(-1, keepdim=True)
            top = new
        return out / sum_

    return core


def _blocks() -> list[Fingerprint]:
    """Return the mistakes that depend on the size of a block, for each size."""
    found = []
    for n in BLOCKS:
        found += [
            Fingerprint(
                f"tail.dropped_{n}",
                f"the last, partial block of keys is dropped (blocks of {n})",
                f"round the number of blocks up: (kv_len + {n - 1}) // {n}, and hide what lies past the end",
                "",
                _dropped(n),
            ),
            Fingerprint(
                f"tail.padded_{n}",
                f"the padding of the last block of keys takes part with score 0 (blocks of {n})",
                "set the scores of padded keys to -inf",
                "",
                _padded(n),
            ),
            Fingerprint(
                f"tail.rows_{n}",
                f"the rows of the last, partial block of queries are not written (blocks of {n})",
                f"round the number of blocks up: (q_len + {n - 1}) // {n}",
                "",
                _rows(n),
            ),
            Fingerprint(
                f"online.unscaled_{n}",
                f"the accumulator is not rescaled when the running maximum moves (blocks of {n})",
                "out = out * exp(m_old - m_new) + p @ v",
                "",
                _online(n, accumulator=False, total=True),
            ),
            Fingerprint(
                f"online.unscaled_sum_{n}",
                f"the running sum is not rescaled when the running maximum moves (blocks of {n})",
                "sum = sum * exp(m_old - m_new) + p.sum()",
                "",
                _online(n, accumulator=True, total=False),
            ),
            Fingerprint(
                f"online.unscaled_both_{n}",
                f"nothing is rescaled when the running maximum moves (blocks of {n})",
                "multiply accumulator and sum by exp(m_old - m_new)",
                "",
                _online(n, accumulator=False, total=False),
            ),
        ]
    return found


def _stored(dtype: torch.dtype, *, scores: bool) -> WrongCore:
    """Hold scores or weights in a half type."""

    def keep(tensor: Tensor) -> Tensor:
        return tensor.float().to(dtype).double()

    if scores:
        return lambda x: attend(x, logits=lambda x, raw: keep(logits(x, raw)))
    return _over(lambda s: keep(s.softmax(-1)))


_KEYS = "scores.softmax(dim=-1), the axis of the keys"


def _head_silenced(x: CoreInputs) -> Tensor | None:
    """Zero all rows of a head in which one sees nothing; None where every row sees something."""
    dead = ~sight(x).any(-1, keepdim=True)
    return right_core(x).masked_fill(dead.any(-2, keepdim=True), 0.0) if bool(dead.any()) else None


SOFTMAX = (
    Fingerprint(
        "softmax.queries", "the softmax runs over the queries", _KEYS, "", _over(lambda s: s.softmax(-2))
    ),
    Fingerprint("softmax.heads", "the softmax runs over the heads", _KEYS, "", _over(lambda s: s.softmax(1))),
    Fingerprint("softmax.batch", "the softmax runs over the batch", _KEYS, "", _over(lambda s: s.softmax(0))),
    Fingerprint(
        "softmax.heads_and_keys",
        "the softmax runs over heads and keys together: the heads share one unit of weight",
        _KEYS,
        "",
        _over(
            lambda s: s.transpose(1, 2).flatten(2).softmax(-1).unflatten(-1, (s.shape[1], -1)).transpose(1, 2)
        ),
    ),
    Fingerprint(
        "softmax.queries_and_keys",
        "the softmax runs over queries and keys together",
        _KEYS,
        "",
        _over(lambda s: s.flatten(2).softmax(-1).unflatten(-1, s.shape[2:])),
    ),
    Fingerprint(
        "softmax.batch_and_queries",
        "the softmax runs over the flattened batch and queries",
        _KEYS,
        "",
        _over(
            lambda s: (
                s.transpose(1, 2).flatten(0, 1).softmax(0).unflatten(0, (s.shape[0], -1)).transpose(1, 2)
            )
        ),
    ),
    Fingerprint(
        "softmax.rows",
        "the softmax runs over the flattened batch, heads and queries",
        _KEYS,
        "",
        _over(lambda s: s.flatten(0, 2).softmax(0).view_as(s)),
    ),
    Fingerprint(
        "softmax.sign",
        "the exponent has the wrong sign: the least similar key gets the most weight",
        _KEYS,
        "",
        lambda x: attend(x, logits=lambda x, raw: -logits(x, raw)),
    ),
    Fingerprint(
        "softmax.no_exponential",
        "the scores are divided by their sum, without an exponential",
        _KEYS,
        "",
        _over(lambda s: s.nan_to_num(neginf=0.0) / s.nan_to_num(neginf=0.0).sum(-1, keepdim=True)),
    ),
    Fingerprint(
        "softmax.weights_transposed",
        "the weights are transposed before they meet the values",
        "weights @ value",
        "",
        lambda x: attend(x, mix=lambda x, w, v: w.mT @ v) if x.query.shape[2] == x.key.shape[2] else None,
    ),
    Fingerprint(
        "softmax.heads_averaged",
        "every head uses the mean of the heads' weights",
        "keep the heads axis until the merge",
        "",
        lambda x: attend(x, mix=lambda x, w, v: w.mean(1, keepdim=True) @ v),
    ),
    Fingerprint(
        "softmax.batch_averaged",
        "every sample uses the mean of the samples' weights",
        "keep the batch axis",
        "",
        lambda x: attend(x, mix=lambda x, w, v: w.mean(0, keepdim=True) @ v),
    ),
    Fingerprint(
        "softmax.missing",
        "there is no softmax",
        "weights = scores.softmax(dim=-1)",
        "",
        _over(lambda s: s.nan_to_num(neginf=0.0)),
    ),
    Fingerprint(
        "softmax.sigmoid", "a sigmoid stands where the softmax should", _KEYS, "", _over(torch.sigmoid)
    ),
    Fingerprint(
        "softmax.log",
        "a log_softmax stands where the softmax should",
        _KEYS,
        "",
        _over(lambda s: s.log_softmax(-1)),
    ),
    Fingerprint(
        "softmax.twice",
        "the softmax is applied twice",
        "apply it once",
        "",
        _over(lambda s: s.softmax(-1).softmax(-1)),
    ),
    Fingerprint(
        "softmax.off_by_one",
        "1 is added to the denominator: a key with score 0 and value 0 takes part",
        _KEYS,
        "",
        lambda x: attend(
            x, block=lambda x, s: pad(forbid(x, s), (0, 1)), mix=lambda x, w, v: w[..., :-1] @ v
        ),
    ),
    Fingerprint(
        "softmax.not_normalised",
        "the output is not divided by the sum of the exponentials",
        "out / sum at the end",
        "",
        _over(_powers),
    ),
    Fingerprint(
        "softmax.normalised_twice",
        "the output is divided by the sum of the exponentials twice",
        "divide once, at the end",
        "",
        _over(lambda s: s.softmax(-1) / _powers(s).sum(-1, keepdim=True)),
    ),
    Fingerprint(
        "softmax.overflow",
        "the maximum is not subtracted before the exponential, so large scores overflow",
        "(scores - scores.amax(-1, keepdim=True)).exp(), or scores.softmax(-1)",
        "",
        _unshifted,
        literal=True,
    ),
    Fingerprint(
        "softmax.overflow_divided_last",
        "the maximum is not subtracted before the exponential, so large scores overflow",
        "(scores - scores.amax(-1, keepdim=True)).exp(), or scores.softmax(-1)",
        "",
        _divide_last,
        literal=True,
        special_of="softmax.overflow",
    ),
    *(
        Fingerprint(
            f"precision.{what}_{name}",
            f"the {what} are held in {name}, whatever comes in",
            "keep the dtype of the query, or float32",
            "",
            _stored(dtype, scores=what == "scores"),
        )
        for what in ("scores", "weights")
        for name, dtype in (("bfloat16", torch.bfloat16), ("float16", torch.float16))
    ),
    Fingerprint(
        "tail.last_key",
        "the last key is dropped",
        "let the keys run to kv_len, not to kv_len - 1",
        "",
        lambda x: _keys(x, 0, x.key.shape[2] - 1),
    ),
    Fingerprint(
        "tail.first_key",
        "the first key is dropped",
        "start at key 0",
        "",
        lambda x: _keys(x, 1, x.key.shape[2]),
    ),
    *(
        Fingerprint(
            f"tail.last_key_{n}",
            f"the last key is dropped where there are more than {n}",
            "let the keys run to kv_len, not to kv_len - 1",
            "",
            _last_key_past(n),
            special_of="tail.last_key",
        )
        for n in (16, 32, 64)
    ),
    *_blocks(),
    Fingerprint(
        "dead_row.silences_head",
        "one row that sees nothing makes every row of its head zero",
        "look for dead rows with .any(-1, keepdim=True), row by row",
        "mask",
        _head_silenced,
    ),
)
