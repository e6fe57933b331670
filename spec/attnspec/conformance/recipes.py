"""Recipes: which features a clause varies. From one recipe come its covering rows and its random cases."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from .cases import Case
from .covering import covering_rows
from .grad_mode import GRAD_MODES
from .space import Space
from .tensors import ALIVE, REVEALING

# Sizes chosen so that nothing coincides by accident; coincidences have rows of their own.
HEADS = ((3, 3), (4, 2), (2, 2), (6, 2), (1, 1), (6, 3), (4, 1))
LENGTHS = (
    (5, 7),
    (4, 4),
    (7, 3),
    (1, 6),
    (17, 33),
    (6, 1),
    (16, 16),
    (1, 1),
    (33, 65),
    (64, 128),
    (9, 129),
    (32, 31),
)
SMALL_LENGTHS = ((5, 7), (4, 4), (7, 3), (1, 6), (6, 1), (2, 9))
WIDTHS = ((5, 5), (3, 7), (8, 8), (2, 2), (16, 5), (64, 64), (1, 1), (7, 3))
SMALL_WIDTHS = ((5, 5), (3, 7), (8, 8), (2, 2), (7, 3))
BATCHES = (2, 1, 3)
MASK_AXES = ("bhqk", "bqk", "bk", "hqk", "qk", "k", "bhk", "bq", "hk")
BIAS_AXES = ("hqk", "bhqk", "qk", "hk", "bk", "h")
SCALES = (None, 0.3, 1.7, -0.4)
WINDOWS = ((2, 0), (1, 2), (0, 0), (-1, 1), (3, -1), (0, 4))


@dataclass(frozen=True)
class Recipe:
    """Which features vary, and over what.

    Attributes:
        options: For each feature the values it may take; the features are `heads` (with kv_heads),
            `lengths` (q_len, kv_len), `widths` (d_k, d_v), and any other field of a case.
        keep: Drops a case that a clause cannot use.
        grad_modes: In turn those of the cases; they cost no case of their own.
    """

    options: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    keep: Callable[[Case], bool] = lambda case: True
    grad_modes: tuple[str, ...] = GRAD_MODES[:1]

    def rows(self, space: Space, *, seed: int, limit: int) -> list[Case]:
        """Return covering cases that the subject can express, without repeats."""
        found: dict[str, Case] = {}
        for number, row in enumerate(covering_rows(self._options(space), seed=seed, limit=limit)):
            case = self._case(space, row, seed * 131 + number + 1)
            if case is not None:
                found.setdefault(str(case.replace(seed=0).as_dict()), case)
        return list(found.values())

    def strategy(self, space: Space) -> st.SearchStrategy[Case]:
        """Return random cases: each feature by itself, sizes also between the chosen ones."""
        options = self._options(space)

        @st.composite
        def cases(draw: st.DrawFn) -> Case | None:
            row = {name: draw(_feature(name, values)) for name, values in options.items()}
            return self._case(space, row, draw(st.integers(1, 2**31 - 1)))

        return cases().filter(lambda case: case is not None)  # type: ignore[return-value]

    def _options(self, space: Space) -> dict[str, Sequence[Any]]:
        chosen = {
            "heads": HEADS,
            "lengths": SMALL_LENGTHS,
            "widths": SMALL_WIDTHS,
            "batch": BATCHES,
            **self.options,
        }
        chosen.setdefault("dtype", ("float32",) if space.has("float32") else space.dtypes[:1])
        if space.contract != "core" and not space.embedded:
            chosen.setdefault("sources", space.sources)
            chosen.setdefault("projection_bias", space.biases)
        return {name: usable for name, values in chosen.items() if (usable := _usable(name, values, space))}

    def _case(self, space: Space, row: Mapping[str, Any], seed: int) -> Case | None:
        fields = dict(row)
        for pair, names in (
            ("heads", ("heads", "kv_heads")),
            ("lengths", ("q_len", "kv_len")),
            ("widths", ("d_k", "d_v")),
        ):
            if pair in fields:
                fields.update(zip(names, fields.pop(pair), strict=True))
        if fields.get("mask") is None:
            fields.pop("mask_axes", None)
        elif set(fields.get("mask_axes", "bhqk")) <= set("qk") and seed % 2:
            fields["mask_rank"] = 2
        fields["grad_mode"] = self.grad_modes[seed % len(self.grad_modes)]
        fitted = space.fit(Case(**fields, seed=seed))
        return fitted if fitted is not None and self.keep(fitted) else None


def _usable(name: str, values: Sequence[Any], space: Space) -> Sequence[Any]:
    """Drop the options that the subject cannot be asked."""
    if name == "heads" and not space.has("grouped"):
        return tuple(dict.fromkeys((heads, heads) for heads, _ in values))
    if name == "widths" and not space.has("value_width"):
        return tuple(dict.fromkeys((d_k, d_k) for d_k, _ in values))
    if name == "dtype":
        return tuple(v for v in values if v in space.dtypes)
    if name in ("mask", "bias", "window", "softcap", "scale") and not space.has(name):
        return (None,)
    if name == "mask_axes":
        kept = ("".join(a for a in axes if a in space.mask_axes) for axes in values)
        return tuple(dict.fromkeys(axes for axes in kept if axes))
    if name == "causal":
        return {"flag": values, "always": (True,), "never": (False,)}[space.causal]
    return values


def _feature(name: str, values: Sequence[Any]) -> st.SearchStrategy[Any]:
    """Return a strategy over the options; for sizes also what lies between them."""
    listed = st.sampled_from(list(values))
    if name == "lengths":
        low = min(min(pair) for pair in values)
        small = st.tuples(st.integers(low, low + 8), st.integers(low, low + 8))
        return st.one_of(small, listed) if len(values) > 1 else listed
    if name == "batch" and len(values) > 1:
        return st.integers(min(values), max(values))
    return listed


def below(case: Case, options: Mapping[str, Sequence[Any]]) -> st.SearchStrategy[Case]:
    """Return the cases that are simpler than `case` in every way, it included: where a failure is made small.

    Args:
        case: The failing one.
        options: Of the recipe that it came from; what a recipe always sets is not taken away.
    """
    families = {"values": (*[v for v in ("ones", "integers", "normal") if v != case.values], case.values)}
    always_grouped = all(heads != kv_heads for heads, kv_heads in options.get("heads", ((1, 1),)))

    def may_drop(feature: str) -> bool:
        return any(value is None or value is False for value in options.get(feature, (None, False)))

    @st.composite
    def cases(draw: st.DrawFn) -> Case:
        group = case.heads // case.kv_heads
        groups = draw(st.integers(2 if always_grouped else 1, group)) if group > 1 else 1
        kv_heads = draw(st.integers(1, case.kv_heads))
        changes: dict[str, Any] = {"heads": kv_heads * groups, "kv_heads": kv_heads}
        for axis in ("batch", "q_len", "kv_len", "d_k", "d_v"):
            least = min(1, getattr(case, axis))
            changes[axis] = draw(st.integers(least, getattr(case, axis)))
        if case.d_v == case.d_k:
            changes["d_v"] = changes["d_k"]
        if case.q_len == case.kv_len:
            changes["q_len"] = changes["kv_len"]
        for feature in ("mask", "bias", "window", "softcap", "scale"):
            if getattr(case, feature) is not None:
                keep = not may_drop(feature) or draw(st.booleans())
                changes[feature] = getattr(case, feature) if keep else None
        if case.causal and may_drop("causal"):
            changes["causal"] = draw(st.booleans())
        changes["values"] = draw(st.sampled_from(families["values"]))
        changes["grad_mode"] = draw(st.sampled_from(list(dict.fromkeys(("plain", case.grad_mode)))))
        changes["layout"] = draw(st.sampled_from(list(dict.fromkeys(("contiguous", case.layout)))))
        changes["seed"] = draw(st.integers(0, 3)) if draw(st.booleans()) else case.seed
        return case.replace(**changes)

    return cases()


GENERAL = {
    "lengths": LENGTHS,
    "widths": WIDTHS,
    "values": REVEALING,
    "mask": (None, *ALIVE),
    "mask_axes": MASK_AXES,
    "bias": (None, *BIAS_AXES),
    "causal": (False, True),
    "scale": SCALES,
    "layout": ("contiguous", "transposed", "sliced", "every_other", "last_two"),
}
