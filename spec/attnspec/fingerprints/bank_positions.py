"""Known mistakes with causality and windows.

Long because it is a table: an entry is data, one mistake each.
"""

from collections.abc import Callable

from torch import Tensor

from .._inputs import CoreInputs
from .builder import attend, by_position, seeing, sight
from .record import Fingerprint, WrongCore

Extent = tuple[int, int]


def _seen(change: Callable[[CoreInputs], Tensor | None], *, when: str) -> WrongCore:
    """Attend with another rule of position; `when` names the feature that it stands for."""

    def core(x: CoreInputs) -> Tensor | None:
        if not getattr(x, when):
            return None
        seen = change(x)
        if seen is None:
            return None
        return attend(seeing(x, seen if x.mask is None else seen & x.mask))

    return core


def _extent(change: Callable[[int, int], Extent | None]) -> WrongCore:
    """Attend with another window; the causal flag still holds."""

    def core(x: CoreInputs) -> Tensor | None:
        changed = None if x.window is None else change(*x.window)
        if changed is None or changed == x.window:
            return None
        return attend(x.replace(window=changed))

    return core


def _causal(left: int, right: int) -> WrongCore:
    """Attend with another causal edge: `right` for 0; the window's left side still holds."""
    return _seen(lambda x: by_position(x, extent=(x.extent[0] if left < 0 else left, right)), when="causal")


def _strict(x: CoreInputs) -> Tensor:
    return by_position(x, offset=x.offset - 1, extent=(-1, 0)) & by_position(x, extent=(x.extent[0], -1))


def _aligned(offset: Callable[[CoreInputs], int]) -> WrongCore:
    def core(x: CoreInputs) -> Tensor | None:
        if x.extent == (-1, -1) or offset(x) == x.offset:
            return None
        seen = by_position(x, offset=offset(x))
        return attend(seeing(x, seen if x.mask is None else seen & x.mask))

    return core


def _after(x: CoreInputs) -> Tensor | None:
    if not x.causal:
        return None
    seen = by_position(x)
    return attend(x.replace(causal=False, window=None), mix=lambda x, w, v: (w * seen) @ v)


def _multiplied(x: CoreInputs) -> Tensor | None:
    if not x.causal:
        return None
    seen = by_position(x).double()
    plain = x.replace(causal=False, window=None)
    return attend(plain, block=lambda x, s: (s * seen).masked_fill(~sight(x), float("-inf")))


def _added(x: CoreInputs) -> Tensor | None:
    if not x.causal:
        return None
    seen = by_position(x).double()
    plain = x.replace(causal=False, window=None)
    return attend(plain, block=lambda x, s: (s + seen).masked_fill(~sight(x), float("-inf")))


def _shifted(by: int) -> Callable[[int, int], Extent | None]:
    return lambda left, right: (max(left + by, -1) if left >= 0 else left, right)


def _shifted_right(by: int) -> Callable[[int, int], Extent | None]:
    return lambda left, right: (left, right + by) if right > 0 or (right == 0 and by > 0) else None


_TRIL = "torch.ones(q_len, kv_len, dtype=torch.bool).tril(kv_len - q_len) is what a query may see"

POSITIONS = (
    Fingerprint(
        "causal.ignored",
        "causal is ignored: queries see the future",
        f"apply it: {_TRIL}",
        "causal",
        lambda x: attend(x.replace(causal=False)) if x.causal else None,
    ),
    Fingerprint(
        "causal.ignored_with_mask",
        "causal is ignored as soon as a mask is given",
        "combine both: visible = mask & causal_mask",
        "mask causal",
        lambda x: attend(x.replace(causal=False)) if x.causal and x.mask is not None else None,
        special_of="causal.ignored",
    ),
    Fingerprint(
        "causal.ignored_without_mask",
        "causal is applied only where a mask is given too",
        "apply causal outside of `if mask is not None`",
        "causal",
        lambda x: attend(x.replace(causal=False)) if x.causal and x.mask is None else None,
        special_of="causal.ignored",
    ),
    Fingerprint(
        "causal.sees_ahead",
        "the causal edge is off by one: a query sees one key ahead",
        f"tril(kv_len - q_len), triu(kv_len - q_len + 1) for what is blocked; {_TRIL}",
        "causal",
        _causal(-1, 1),
    ),
    Fingerprint(
        "causal.not_itself",
        "the causal edge is off by one: a query does not see itself",
        "block torch.triu(..., diagonal=1), not diagonal=0",
        "causal",
        _seen(_strict, when="causal"),
    ),
    Fingerprint(
        "causal.anti",
        "the triangle is the wrong one: a query sees itself and the future, not the past",
        f"tril, not triu; {_TRIL}",
        "causal",
        _seen(lambda x: by_position(x, extent=(0, -1)), when="causal"),
    ),
    Fingerprint(
        "causal.inverted",
        "the causal mask is inverted: a query sees only the future",
        f"triu(diagonal=1) marks what is blocked; {_TRIL}",
        "causal",
        _seen(lambda x: ~by_position(x), when="causal"),
    ),
    Fingerprint(
        "causal.upper_left",
        "causality is aligned upper left: query 0 stands at key 0 although there are more keys than queries",
        "shift the triangle by kv_len - q_len: tril(diagonal=kv_len - q_len)",
        "causal",
        _aligned(lambda x: 0),
    ),
    Fingerprint(
        "causal.lower_right",
        "causality is aligned lower right: the last query stands at the last key",
        "do not shift the triangle: tril(diagonal=0)",
        "causal",
        _aligned(lambda x: x.key.shape[2] - x.query.shape[2]),
    ),
    Fingerprint(
        "causal.after_softmax",
        "causality is applied after the softmax, so the weights of a row no longer sum to 1",
        "mask the scores before softmax",
        "causal",
        _after,
    ),
    Fingerprint(
        "causal.multiplied",
        "the scores are multiplied by the triangle: a future key gets score 0, not -inf",
        "scores.masked_fill(~triangle, float('-inf')) instead of scores * triangle",
        "causal",
        _multiplied,
    ),
    Fingerprint(
        "causal.added",
        "the triangle is added to the scores as 0 and 1 and forbids nothing",
        "scores.masked_fill(~triangle, float('-inf')) instead of scores + triangle",
        "causal",
        _added,
    ),
    Fingerprint(
        "causal.always",
        "attention is causal although that was not asked for",
        "apply the triangle only if causal is asked for",
        "",
        lambda x: None if x.extent[1] == 0 else attend(x.replace(causal=True)),
    ),
    Fingerprint(
        "causal.always_without_mask",
        "attention is causal wherever no mask is given",
        "apply the triangle only if causal is asked for",
        "",
        lambda x: None if x.extent[1] == 0 or x.mask is not None else attend(x.replace(causal=True)),
        special_of="causal.always",
    ),
    Fingerprint(
        "causal.always_with_mask",
        "attention is causal as soon as a mask is given",
        "apply the triangle only if causal is asked for",
        "mask",
        lambda x: None if x.extent[1] == 0 or x.mask is None else attend(x.replace(causal=True)),
        special_of="causal.always",
    ),
    Fingerprint(
        "window.ignored",
        "the window is ignored",
        "hide what is further than the window allows",
        "window",
        lambda x: None if x.window is None else attend(x.replace(window=None)),
    ),
    Fingerprint(
        "window.left_short",
        "the window is a count of keys here: one key too few on the left",
        "the distance is inclusive: keep j >= i - left, not j > i - left",
        "window",
        _extent(lambda left, right: None if left < 0 else (left - 1, right) if left else None),
    ),
    Fingerprint(
        "window.left_long",
        "the window is off by one: one key too many on the left",
        "keep j >= i - left; a count of keys is a distance plus one",
        "window",
        _extent(_shifted(1)),
    ),
    Fingerprint(
        "window.right_short",
        "the window is off by one: one key too few on the right",
        "the distance is inclusive: keep j <= i + right, not j < i + right",
        "window",
        _extent(_shifted_right(-1)),
    ),
    Fingerprint(
        "window.right_long",
        "the window is off by one: one key too many on the right",
        "keep j <= i + right",
        "window",
        _extent(_shifted_right(1)),
    ),
    Fingerprint(
        "window.both_short",
        "the window is a count of keys here: one key too few on either side",
        "distances are inclusive: keep i - left <= j <= i + right",
        "window",
        _extent(lambda left, right: (left - 1, right - 1) if left > 0 and right > 0 else None),
    ),
    Fingerprint(
        "window.both_long",
        "the window is off by one: one key too many on either side",
        "distances are inclusive: keep i - left <= j <= i + right",
        "window",
        _extent(lambda left, right: (left + 1, right + 1) if left >= 0 and right >= 0 else None),
    ),
    Fingerprint(
        "window.left_ignored",
        "the left side of the window is ignored",
        "keep j >= i - left",
        "window",
        _extent(lambda left, right: (-1, right)),
    ),
    Fingerprint(
        "window.right_ignored",
        "the right side of the window is ignored",
        "keep j <= i + right",
        "window",
        _extent(lambda left, right: (left, -1)),
    ),
    Fingerprint(
        "window.swapped",
        "left and right of the window are swapped",
        "left is how far back, right is how far ahead",
        "window",
        _extent(lambda left, right: (right, left)),
    ),
    Fingerprint(
        "window.symmetric",
        "the left side of the window is used on both sides",
        "left is how far back, right is how far ahead",
        "window",
        _extent(lambda left, right: (left, left)),
    ),
    Fingerprint(
        "window.unbounded_as_zero",
        "an unbounded side of the window (-1) is read as distance 0",
        "treat -1 as unbounded",
        "window",
        _extent(lambda left, right: (max(left, 0), max(right, 0))),
    ),
    Fingerprint(
        "window.zero_as_none",
        "a window distance of 0 is taken for unbounded",
        "compare with None or -1, not with `if left`",
        "window",
        _extent(lambda left, right: (left or -1, right or -1)),
    ),
    Fingerprint(
        "window.ignored_with_mask",
        "the window is ignored as soon as a mask is given",
        "combine both: visible = mask & window_mask",
        "window mask",
        lambda x: None if x.window is None or x.mask is None else attend(x.replace(window=None)),
        special_of="window.ignored",
    ),
)
