"""The bank of seeded defects: each a right core or layer with one step replaced, and what it stands for."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from .reference import Cached, Layer

MODULES = (
    "shape",
    "softmax",
    "mask",
    "dead_rows",
    "causal",
    "grouped",
    "scale",
    "numerics",
    "size",
    "dropout",
    "state",
    "dtype",
    "gradient",
    "weights",
    "options",
    "layout",
    "refusal",
    "combined",
    "shortcuts",
    "layer_shape",
    "layer_params",
    "layer_state",
    "layer_gradient",
    "layer_flags",
    "cache",
    "training",
    "meetings",
)


@dataclass(frozen=True)
class Defect:
    """One wrong implementation.

    Attributes:
        name: Of its class.
        family: As in the list of known bugs.
        stands_for: The bug, or the kind of mistake, that it stands for.
        clauses: Those that must catch it: they name its kind.
        case: The smallest case that shows it, in words.
        place: The contract's stage that is wrong; empty where it is none of them.
        fingerprint: Name of the known wrong reference that it equals; empty where there is none.
        what: What is wrong, in one sentence.
        contract: `core`, `layer` or `cached`.
        target: The core, or the class of the layer.
        declare: What a user would have to declare about it.
    """

    name: str
    family: str
    stands_for: str
    clauses: tuple[str, ...]
    case: str
    place: str
    fingerprint: str
    what: str
    contract: str
    target: Any
    declare: dict[str, Any]


_BANK: dict[str, Defect] = {}
_STEPS = (
    "project_queries",
    "project_keys",
    "project_values",
    "split_heads",
    "heads_first",
    "share_heads",
    "scores",
    "scale_scores",
    "cap_scores",
    "add_bias",
    "visible_positions",
    "mask_scores",
    "normalise",
    "drop_weights",
    "aggregate_values",
    "merge_heads",
    "project_output",
)
_ALSO = {
    "share_keys": "share_heads",
    "share_values": "share_heads",
    "read_mask": "mask_scores",
    "visible": "mask_scores",
}


def defect(
    family: str,
    stands_for: str,
    *clauses: str,
    case: str,
    place: str | None = None,
    fingerprint: str = "",
    **declare: Any,
) -> Callable[[type], type]:
    """Enter a class as a defect; the step that it replaces is the place where it is wrong."""

    def enter(cls: type) -> type:
        replaced = [_ALSO.get(name, name) for name in vars(cls)]
        found = place if place is not None else next((n for n in replaced if n in _STEPS), "")
        layer = issubclass(cls, Layer)
        contract = "cached" if issubclass(cls, Cached) else "layer" if layer else "core"
        assert cls.__name__ not in _BANK, cls.__name__
        _BANK[cls.__name__] = Defect(
            cls.__name__,
            family,
            stands_for,
            clauses,
            case,
            found,
            fingerprint,
            (cls.__doc__ or "").strip(),
            contract,
            cls if layer else cls(),
            declare,
        )
        return cls

    return enter


def bank() -> dict[str, Defect]:
    """Return every defect by name."""
    for module in MODULES:
        import_module(f"{__package__}.{module}")
    return dict(_BANK)


def fresh(found: Defect) -> Any:
    """Return the target as if never called: a core may keep state between calls."""
    return type(found.target)() if found.contract == "core" else found.target


__all__ = ["Defect", "bank", "defect", "fresh"]
