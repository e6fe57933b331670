"""Known mistakes with masks and with rows that may see nothing.

Long because it is a table: an entry is data, one mistake each.
"""

import torch
from torch import Tensor

from .._inputs import CoreInputs
from .builder import attend, by_position, positions_only, sight
from .record import Fingerprint, WrongCore


def _masked(x: CoreInputs) -> Tensor | None:
    """Return the mask in four axes, or None where there is none."""
    if x.mask is None:
        return None
    return x.mask if x.mask.dim() == 4 else x.mask[None, None]


def _with_mask(change) -> WrongCore:  # type: ignore[no-untyped-def]
    """Attend with a changed mask; `change` may return None where it does not apply."""

    def core(x: CoreInputs) -> Tensor | None:
        mask = _masked(x)
        changed = None if mask is None else change(x, mask)
        return None if changed is None else attend(x.replace(mask=changed))

    return core


def _as_number(change) -> WrongCore:  # type: ignore[no-untyped-def]
    """Attend with the mask as a number in the scores; only positions are hidden."""

    def core(x: CoreInputs) -> Tensor | None:
        mask = _masked(x)
        if mask is None:
            return None
        return attend(x, block=lambda x, s: positions_only(x, change(s, mask.double())))

    return core


def _transposed(x: CoreInputs, mask: Tensor) -> Tensor | None:
    square = x.query.shape[2] == x.key.shape[2]
    return mask.mT if square and mask.shape[-1] == mask.shape[-2] else None


def _query_axis(x: CoreInputs, mask: Tensor) -> Tensor | None:
    square = x.query.shape[2] == x.key.shape[2]
    return mask.mT if square and mask.shape[-2] == 1 else None


def _both_axes(x: CoreInputs, mask: Tensor) -> Tensor | None:
    square = x.query.shape[2] == x.key.shape[2]
    return mask & mask.mT if square and mask.shape[-2] == 1 else None


def _tiled(x: CoreInputs, mask: Tensor) -> Tensor | None:
    """Give row `b * heads + h` of the fused axis the mask of sample `(b * heads + h) % batch`."""
    batch, heads = x.query.shape[:2]
    if mask.shape[0] == 1 or mask.shape[1] != 1:
        return None
    return mask[:, 0].repeat(heads, 1, 1).unflatten(0, (batch, heads))


def _axes_swapped(x: CoreInputs, mask: Tensor) -> Tensor | None:
    return mask.transpose(0, 1) if mask.shape[:2] != (1, 1) else None


def _own_visible(x: CoreInputs, mask: Tensor) -> Tensor:
    return mask | by_position(x, extent=(0, 0))


def _first_visible(x: CoreInputs, mask: Tensor) -> Tensor:
    return mask | (torch.arange(x.key.shape[2]) == 0)


def _rows_blocked(rest: float) -> WrongCore:
    """Block the query rows of padded positions too; they come out as `rest`."""

    def core(x: CoreInputs) -> Tensor | None:
        mask = _masked(x)
        changed = None if mask is None else _both_axes(x, mask)
        if changed is None:
            return None
        blocked = x.replace(mask=changed)
        return attend(blocked).masked_fill(~sight(blocked).any(-1, keepdim=True), rest)

    return core


def _or_causal(x: CoreInputs) -> Tensor | None:
    mask = _masked(x)
    if mask is None or x.extent == (-1, -1):
        return None
    return attend(x.replace(mask=mask | by_position(x), causal=False, window=None))


def _after(x: CoreInputs, *, positions: bool) -> Tensor | None:
    """Mask the weights; with `positions`, what is hidden by position too."""
    mask = _masked(x)
    if mask is None or (positions and x.extent == (-1, -1)):
        return None
    hidden = sight(x) if positions else mask
    return attend(
        x, block=(lambda x, s: s) if positions else positions_only, mix=lambda x, w, v: (w * hidden) @ v
    )


def _dead_only(block) -> WrongCore:  # type: ignore[no-untyped-def]
    """Change what a row that sees nothing gives; None where every row sees something."""

    def core(x: CoreInputs) -> Tensor | None:
        dead = ~sight(x).any(-1, keepdim=True)
        if not bool(dead.any()):
            return None
        good = attend(x).nan_to_num(0.0)
        return torch.where(dead, attend(x, block=block), good)

    return core


def _mean_of_seen(x: CoreInputs) -> Tensor | None:
    """Give a dead row the mean of V, in code that drops the values of keys that nobody sees."""
    seen = sight(x).expand(*x.query.shape[:3], x.key.shape[2]).any(-2)[..., None]
    group = x.query.shape[1] // x.key.shape[1]
    value = x.value.repeat_interleave(group, 1).masked_fill(~seen, 0.0)
    return _dead_only(lambda x, s: torch.zeros_like(s))(
        x.replace(key=x.key.repeat_interleave(group, 1), value=value)
    )


def _shifted(x: CoreInputs, scores: Tensor) -> Tensor:
    """Add a fill value that is small enough to leave some digits of the scores, in float32."""
    low = torch.where(sight(x), 0.0, -1e4).float()
    return (scores.float() + low).double()


_ATTEND = "pass the mask as True = may attend, and hide with scores.masked_fill(~mask, float('-inf'))"
_DEAD = (
    "zero the rows without a visible key: "
    "weights = torch.where(mask.any(-1, keepdim=True), scores.softmax(-1), 0)"
)

MASKS = (
    Fingerprint(
        "mask.inverted",
        "the mask is inverted: True is read as blocked",
        _ATTEND,
        "mask",
        _with_mask(lambda x, m: ~m),
    ),
    Fingerprint(
        "mask.ignored",
        "the mask is ignored",
        "use the result: scores = scores.masked_fill(~mask, float('-inf'))",
        "mask",
        lambda x: None if x.mask is None else attend(x.replace(mask=None)),
    ),
    Fingerprint(
        "mask.ignored_with_causal",
        "the mask is ignored as soon as causal or a window is asked for",
        "combine both: visible = mask & causal_mask",
        "mask causal",
        lambda x: None if x.mask is None or x.extent == (-1, -1) else attend(x.replace(mask=None)),
        special_of="mask.ignored",
    ),
    Fingerprint(
        "mask.or_causal",
        "mask and causal are joined with OR: a key is seen if either allows it",
        "join them with AND: visible = mask & causal_mask",
        "mask causal",
        _or_causal,
    ),
    Fingerprint(
        "mask.added",
        "the boolean mask is added to the scores as 0 and 1 and forbids nothing",
        "scores.masked_fill(~mask, float('-inf')) instead of scores + mask",
        "mask",
        _as_number(lambda s, m: s + m),
    ),
    Fingerprint(
        "mask.added_blocked",
        "the boolean mask (True = blocked) is added to the scores as 0 and 1 and forbids nothing",
        "scores.masked_fill(blocked, float('-inf')) instead of scores + blocked",
        "mask",
        _as_number(lambda s, m: s - m),
    ),
    Fingerprint(
        "mask.multiplied",
        "the scores are multiplied by the mask: a blocked key gets score 0, not -inf",
        "scores.masked_fill(~mask, float('-inf')) instead of scores * mask",
        "mask",
        _as_number(lambda s, m: s * m),
    ),
    Fingerprint(
        "mask.after_softmax",
        "the mask is applied after the softmax, so the weights of a row no longer sum to 1",
        "mask the scores before softmax",
        "mask",
        lambda x: _after(x, positions=False),
    ),
    Fingerprint(
        "mask.all_after_softmax",
        "mask and causal are applied after the softmax, so the weights no longer sum to 1",
        "mask the scores before softmax",
        "mask causal",
        lambda x: _after(x, positions=True),
        special_of="mask.after_softmax",
    ),
    Fingerprint(
        "mask.transposed",
        "the mask is transposed: its query and key axes are swapped",
        "take the mask as (..., q_len, kv_len), without .transpose(-2, -1)",
        "mask",
        _with_mask(_transposed),
    ),
    Fingerprint(
        "mask.query_axis",
        "the padding mask stands on the query axis: padded rows are blocked, padded keys stay visible",
        "put it on the key axis: padding[:, None, None, :]",
        "mask",
        _with_mask(_query_axis),
    ),
    *(
        Fingerprint(
            name,
            "the padding mask blocks the query rows of padded positions too",
            "padding removes keys only: padding[:, None, None, :]",
            "mask",
            _rows_blocked(rest),
            literal=True,
        )
        for name, rest in (("mask.both_axes", 0.0), ("mask.both_axes_nan", torch.nan))
    ),
    Fingerprint(
        "mask.other_sample",
        "heads use another sample's mask: it is tiled over the fused batch*heads axis",
        "mask.repeat_interleave(heads, 0) instead of mask.repeat(heads, 1, 1)",
        "mask_b",
        _with_mask(_tiled),
    ),
    Fingerprint(
        "mask.batch_as_heads",
        "batch and heads of the mask are swapped: its batch axis meets the heads of the scores",
        "give it a heads axis: mask.unsqueeze(1)",
        "mask_b",
        _with_mask(_axes_swapped),
    ),
    Fingerprint(
        "mask.any_head",
        "what one head may see, all heads may",
        "keep the heads axis of the mask",
        "mask_h",
        _with_mask(lambda x, m: m.any(1, keepdim=True)),
    ),
    Fingerprint(
        "mask.any_row",
        "what one query may see, all queries may",
        "keep the query axis of the mask",
        "mask_q",
        _with_mask(lambda x, m: m.any(2, keepdim=True)),
    ),
    Fingerprint(
        "mask.all_heads",
        "every head sees only what all heads may",
        "keep the heads axis of the mask",
        "mask_h",
        _with_mask(lambda x, m: m.all(1, keepdim=True)),
    ),
    Fingerprint(
        "mask.next_sample",
        "every sample uses the mask of the next one",
        "keep the order of the batch",
        "mask_b",
        _with_mask(lambda x, m: m.roll(-1, 0)),
    ),
    Fingerprint(
        "mask.sample_before",
        "every sample uses the mask of the one before",
        "keep the order of the batch",
        "mask_b",
        _with_mask(lambda x, m: m.roll(1, 0)),
    ),
    Fingerprint(
        "mask.shifted_keys",
        "the mask is read one key late",
        "mask[..., j] belongs to key j",
        "mask",
        _with_mask(lambda x, m: m.roll(1, -1)),
    ),
    Fingerprint(
        "mask.flipped_keys",
        "the mask is read from the end",
        "mask[..., j] belongs to key j",
        "mask",
        _with_mask(lambda x, m: m.flip(-1)),
    ),
    Fingerprint(
        "mask.own_visible",
        "each query may see its own position whatever its mask says",
        "zero dead rows instead",
        "mask",
        _with_mask(_own_visible),
    ),
    Fingerprint(
        "mask.first_key_visible",
        "the first key is visible to all whatever the mask says",
        "zero dead rows instead",
        "mask",
        _with_mask(_first_visible),
    ),
    Fingerprint(
        "mask.first_sample",
        "every sample uses the mask of the first one",
        "keep the batch axis of the mask, do not take mask[0]",
        "mask_b",
        _with_mask(lambda x, m: m[:1]),
    ),
    Fingerprint(
        "mask.first_head",
        "every head uses the mask of the first one",
        "keep the heads axis of the mask, do not take mask[:, 0]",
        "mask_h",
        _with_mask(lambda x, m: m[:, :1]),
    ),
    Fingerprint(
        "mask.first_row",
        "every query uses the mask of the first one",
        "keep the query axis of the mask",
        "mask_q",
        _with_mask(lambda x, m: m[:, :, :1]),
    ),
    Fingerprint(
        "mask.last_row",
        "every query uses the mask of the last one",
        "keep the query axis of the mask",
        "mask_q",
        _with_mask(lambda x, m: m[:, :, -1:]),
    ),
    Fingerprint(
        "dead_row.finite_fill",
        "a finite fill value (such as -1e9) makes a row that sees nothing the mean of V",
        _DEAD,
        "mask",
        _dead_only(lambda x, s: torch.zeros_like(s)),
    ),
    Fingerprint(
        "dead_row.finite_fill_of_seen",
        "a finite fill value (such as -1e9) makes a row that sees nothing the mean of the V that others see",
        _DEAD,
        "mask",
        _mean_of_seen,
        special_of="dead_row.finite_fill",
    ),
    Fingerprint(
        "dead_row.finite_fill_of_mask",
        "a finite fill value (such as -1e9) makes a row that sees nothing the mean of the V before it",
        _DEAD,
        "mask causal",
        _dead_only(lambda x, s: positions_only(x, torch.zeros_like(s))),
        special_of="dead_row.finite_fill",
    ),
    Fingerprint(
        "dead_row.small_fill",
        "a fill value of -1e4 is added, so a row that sees nothing attends as if nothing were masked",
        _DEAD,
        "mask",
        _dead_only(_shifted),
    ),
    Fingerprint(
        "dead_row.unmasked",
        "a row that sees nothing attends as if nothing were masked",
        _DEAD,
        "mask",
        _dead_only(lambda x, s: s),
    ),
    Fingerprint(
        "dead_row.unmasked_before",
        "a row that sees nothing attends as if only its mask were missing",
        _DEAD,
        "mask causal",
        _dead_only(positions_only),
        special_of="dead_row.unmasked",
    ),
    Fingerprint(
        "dead_row.nan",
        "a row that sees nothing gives NaN: softmax of a row of -inf is 0/0",
        _DEAD,
        "mask",
        _dead_only(lambda x, s: torch.full_like(s, torch.nan)),
        literal=True,
    ),
)
