"""Compare a traced tensor with the landmarks: by value, whatever the order of its axes."""

from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations
from math import isfinite, prod

import torch
from torch import Tensor

from .arrange import arrangements
from .landmarks import Chart, Landmark

TOLERANCES = {"float64": 1e-6, "float32": 1e-3, "float16": 3e-2, "bfloat16": 1e-1}
FORBIDDEN = -1e3  # a score below this, next to scores of order 1, has no weight
FEWEST = 4  # elements; fewer match by chance


@dataclass(frozen=True, slots=True)
class Match:
    """How a tensor agrees with a landmark.

    Attributes:
        landmark: The landmark's name.
        axes: For each axis of the tensor, the atomic axes that lie in it, outermost first.
        factor: The tensor is the landmark times this.
        grade: `whole`; `part` (a slice, as in a loop); `rows` (each row times a factor of its own, as before
            a softmax divides); `offset` (it differs by one vector over the features, as without a bias).
        hidden: What stands where the mask forbids: `none` (nothing is hidden), `open`, `filled`, `partly`.
        finite: Whether the fill is a finite number.
        dead: Rows that see nothing: `same` as the contract's, `finite` or `nan`.
        shifted: Whether each row of scores has a constant added, which a softmax does not see.
    """

    landmark: str
    axes: tuple[tuple[str, ...], ...]
    factor: float = 1.0
    grade: str = "whole"
    hidden: str = "none"
    finite: bool = False
    dead: str = "same"
    shifted: bool = False

    @property
    def sound(self) -> bool:
        """Whether nothing can have gone wrong on the way to this value, as far as its own numbers go."""
        return self.grade in ("whole", "part")


class Matcher:
    """Matches tensors of one run with its chart."""

    def __init__(self, chart: Chart) -> None:
        self.chart = chart
        self._rms = {name: mark.rms for name, mark in chart.landmarks.items()}
        self._seen: dict[tuple[int, float], tuple[Match, ...]] = {}

    def matches(self, value: Tensor | None, precision: str) -> tuple[Match, ...]:
        """Return every landmark that a tensor agrees with, whole ones first."""
        if value is None or not value.is_floating_point() or value.numel() < FEWEST:
            return ()
        tolerance = TOLERANCES.get(precision, 1e-3)
        key = (id(value), tolerance)
        if key not in self._seen:
            marks = [m for m in self.chart.landmarks.values() if self._rms[m.name] > 0]
            found = [m for mark in marks if (m := self._whole(value, mark, tolerance)) is not None]
            if not any(m.sound for m in found):
                found += [m for mark in marks if (m := self._part(value, mark, tolerance)) is not None]
            self._seen[key] = tuple(
                sorted(found, key=lambda m: ("whole", "part", "rows", "offset").index(m.grade))
            )
        return self._seen[key]

    def _whole(self, value: Tensor, mark: Landmark, tolerance: float) -> Match | None:
        if value.numel() != mark.value.numel():
            return None
        best: Match | None = None
        for sizes, order, axes in arrangements(tuple(value.shape), tuple(mark.value.shape), mark.axes):
            laid = value.reshape(sizes).permute(order).reshape(mark.value.shape)
            found = getattr(self, f"_as_{mark.kind}")(laid, mark, tolerance * self._rms[mark.name])
            if found is not None and (best is None or (found.sound and not best.sound)):
                best = replace(found, axes=axes)
            if best is not None and best.sound:
                break
        return best

    def _as_value(self, laid: Tensor, mark: Landmark, allowed: float, free: bool = False) -> Match | None:
        ref = mark.value
        factor = float((laid * ref).sum() / (ref * ref).sum()) if free else 1.0
        if not isfinite(factor) or factor == 0:
            return None
        if _close(laid, factor * ref, allowed * abs(factor)):
            return Match(mark.name, (), factor)
        if mark.name in ("v", "v shared"):
            found = self._as_seen_values(laid, mark, allowed)
            if found is not None:
                return found
        if mark.name.startswith("input") or mark.name in ("qkv", "kv"):
            return None
        positions = [i for i, axis in enumerate(mark.axes) if axis in ("batch", "q_len", "kv_len")]
        if prod(ref.shape[i] for i in positions) < FEWEST:
            return None
        moved, still = (t - t.mean(positions, keepdim=True) for t in (laid, ref))
        factor = float((moved * still).sum() / (still * still).sum()) if free else 1.0
        if isfinite(factor) and factor != 0 and _close(moved, factor * still, allowed * abs(factor)):
            return Match(mark.name, (), factor, "offset")
        return None

    def _as_seen_values(self, laid: Tensor, mark: Landmark, allowed: float) -> Match | None:
        """Values that no query sees may be zero: they do not matter."""
        seen = self.chart.visible.any(-2)
        if mark.name == "v" and seen.dim() > mark.value.dim() - 1:
            seen = seen.any(2)
        if bool(seen.all()) or not bool(seen.any()):
            return None
        zero = laid[~seen] == 0
        same = (laid[~seen] - mark.value[~seen]).abs() <= allowed
        right = _close(laid[seen], mark.value[seen], allowed) and bool((zero | same).all())
        return Match(mark.name, ()) if right else None

    def _as_factor(self, laid: Tensor, mark: Landmark, allowed: float) -> Match | None:
        return self._as_value(laid, mark, allowed, free=True)

    def _as_scores(self, laid: Tensor, mark: Landmark, allowed: float) -> Match | None:
        seen = self.chart.visible
        if not bool(torch.isfinite(laid[seen]).all()):
            return None
        found = [m for shifted in (False, True) if (m := self._as_shifted(laid, mark, allowed, shifted))]
        # Scores that are nearly one number agree with many factors: a likely one is taken first.
        likely = (m for m in found if any(abs(m.factor - f) < 1e-3 * abs(f) for f in (1.0, self.chart.scale)))
        return next(likely, found[0] if found else None)

    def _as_shifted(self, laid: Tensor, mark: Landmark, allowed: float, shifted: bool) -> Match | None:
        seen, ref = self.chart.visible, mark.value
        mine, other = (_centred(t, seen) if shifted else t.masked_fill(~seen, 0.0) for t in (laid, ref))
        power = float((other * other).sum())
        factor = float((mine * other).sum()) / power if power else 0.0
        if shifted and power <= allowed**2 * other.numel():  # one key each: no factor can be told
            factor = self.chart.scale
        if not isfinite(factor) or factor == 0 or not _close(mine, factor * other, allowed * abs(factor)):
            return None
        if not self.chart.masked:
            return Match(mark.name, (), factor, shifted=shifted)
        moved = _means(laid, seen) - factor * _means(ref, seen) if shifted else torch.zeros_like(ref[..., :1])
        there, base = laid[~seen], (factor * ref + moved)[~seen]
        filled = there < FORBIDDEN
        kept = (there - base).abs() <= allowed * abs(factor)
        if bool((filled | kept).all()):
            state = "filled" if bool(filled.all()) else "open" if not bool(filled.any()) else "partly"
            finite = bool(torch.isfinite(there[filled]).any())
            return Match(mark.name, (), factor, hidden=state, finite=finite, shifted=shifted)
        return None

    def _as_weights(self, laid: Tensor, mark: Landmark, allowed: float) -> Match | None:
        live = self.chart.visible.any(-1)
        dead = _state(laid[~live])
        if _close(laid[live], mark.value[live], allowed):
            return Match(mark.name, (), dead=dead)
        rows = laid[live]
        total = rows.sum(-1, keepdim=True)
        if (
            bool((rows >= 0).all())
            and bool((total > 0).all())
            and _close(rows / total, mark.value[live], allowed)
        ):
            return Match(mark.name, (), grade="rows", dead=dead)
        return None

    def _as_mixed(self, laid: Tensor, mark: Landmark, allowed: float) -> Match | None:
        live = self.chart.visible.any(-1)
        mine, ref = laid[live], mark.value[live]
        dead = _state(laid[~live])
        if _close(mine, ref, allowed):
            return Match(mark.name, (), dead=dead)
        ratio = (mine * ref).sum(-1, keepdim=True) / (ref * ref).sum(-1, keepdim=True)
        if ref.shape[-1] > 1 and bool((ratio > 0).all()) and _close(mine / ratio, ref, allowed):
            return Match(mark.name, (), grade="rows", dead=dead)
        return self._offset(laid, mark, allowed)

    def _as_output(self, laid: Tensor, mark: Landmark, allowed: float) -> Match | None:
        live = (
            self.chart.visible.any(-1).flatten(1, -2).all(1)
        )  # the heads are mixed: one dead row spoils the position
        if bool(live.all()):
            return self._as_value(laid, mark, allowed)
        if not _close(laid[live], mark.value[live], allowed):
            return self._offset(laid, mark, allowed)
        same = _close(laid[~live], mark.value[~live], allowed)
        return Match(mark.name, (), dead="same" if same else _state(laid[~live]))

    def _offset(self, laid: Tensor, mark: Landmark, allowed: float) -> Match | None:
        found = self._as_value(laid, mark, allowed)
        return found if found is not None and found.grade == "offset" else None

    def _part(self, value: Tensor, mark: Landmark, tolerance: float) -> Match | None:
        """Find a tensor as a slice of a landmark: its largest entry says where it would lie."""
        if mark.name in ("qkv", "kv") or value.numel() >= mark.value.numel():
            return None
        coarse, names = _coarse(mark)
        flat = value.reshape([n for n in value.shape if n != 1])
        usable = torch.isfinite(flat) & (flat > FORBIDDEN) if mark.kind == "scores" else torch.isfinite(flat)
        if flat.dim() > coarse.dim() or not bool(usable.any()) or float(usable.sum()) < FEWEST:
            return None
        anchor = int(torch.where(usable, flat.abs(), torch.full_like(flat, -1.0)).argmax())
        peak, where = float(flat.flatten()[anchor]), torch.unravel_index(torch.tensor(anchor), flat.shape)
        # A slice may be far smaller than the whole: it must be right next to its own size.
        own = float(flat[usable].square().mean().sqrt())
        allowed = tolerance * min(self._rms[mark.name], own)
        scale = self.chart.scale
        factors = (1.0, scale, abs(scale) ** 0.5) if mark.kind in ("factor", "scores") else (1.0,)
        for factor in factors:
            if factor == 0:
                return None
            spots = self._index(mark, coarse).find(peak / factor, allowed)
            for spot in spots[:8]:
                place = [int(i) for i in torch.unravel_index(torch.tensor(spot), coarse.shape)]
                axes = _fit(
                    flat, usable, coarse, [int(w) for w in where], place, factor, allowed * abs(factor)
                )
                if axes is not None:
                    hidden = "none" if bool(usable.all()) else "filled"
                    spread = _spread(value, [(names[a],) for a in axes])
                    return Match(mark.name, spread, factor, "part", hidden)
        return None

    def _index(self, mark: Landmark, coarse: Tensor) -> "_Index":
        if mark.name not in self._indexes:
            self._indexes[mark.name] = _Index(coarse)
        return self._indexes[mark.name]

    @cached_property
    def _indexes(self) -> dict[str, "_Index"]:
        return {}


class _Index:
    """The entries of a landmark, sorted, to find a number in."""

    def __init__(self, tensor: Tensor) -> None:
        values, order = tensor.flatten().sort()
        self.values, self.order = values.tolist(), order.tolist()

    def find(self, number: float, allowed: float) -> list[int]:
        start = bisect_left(self.values, number - allowed)
        end = bisect_left(self.values, number + allowed, lo=start)
        return self.order[start:end]


def _fit(
    flat: Tensor,
    usable: Tensor,
    coarse: Tensor,
    where: list[int],
    place: list[int],
    factor: float,
    allowed: float,
) -> tuple[int, ...] | None:
    for chosen in permutations(range(coarse.dim()), flat.dim()):
        window: list[slice | int] = list(place)
        for axis, at, size in zip(chosen, where, flat.shape, strict=True):
            start = place[axis] - at
            if start < 0 or start + size > coarse.shape[axis]:
                break
            window[axis] = slice(start, start + size)
        else:
            cut = coarse[tuple(window)].permute(*_ranks(chosen)) if flat.dim() > 1 else coarse[tuple(window)]
            difference = (flat - factor * cut).abs()[usable]
            if bool((difference <= allowed).all()):
                return chosen
    return None


def _ranks(chosen: tuple[int, ...]) -> list[int]:
    return [sorted(chosen).index(c) for c in chosen]


def _coarse(mark: Landmark) -> tuple[Tensor, list[str]]:
    if "group" in mark.axes:
        at = mark.axes.index("kv_heads")
        return mark.value.flatten(at, at + 1), [*mark.axes[:at], "heads", *mark.axes[at + 2 :]]
    return mark.value, list(mark.axes)


def _spread(value: Tensor, axes: list[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    rest = iter(axes)
    return tuple(next(rest) if n != 1 else () for n in value.shape)


def _state(rows: Tensor) -> str:
    if not rows.numel() or not bool(rows.any()):
        return "same"
    return "nan" if bool(torch.isnan(rows).any()) else "finite"


def _close(mine: Tensor, other: Tensor, allowed: float) -> bool:
    return bool(((mine - other).abs() <= allowed).all()) if mine.numel() else True


def _means(scores: Tensor, seen: Tensor) -> Tensor:
    return scores.masked_fill(~seen, 0.0).sum(-1, keepdim=True) / seen.sum(-1, keepdim=True).clamp(min=1)


def _centred(scores: Tensor, seen: Tensor) -> Tensor:
    return (scores - _means(scores, seen)).masked_fill(~seen, 0.0)
