"""Right implementations that look unusual: none of them may fail a clause."""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

MODULES = ("formulas", "blocks", "forms", "torch_paths", "layers")


@dataclass(frozen=True)
class Right:
    """One right implementation.

    Attributes:
        name: What it is called.
        contract: `core` or `layer`.
        target: The function, or the class of the layer.
        why: What is unusual about it.
        declare: What a user would have to declare about it.
    """

    name: str
    contract: str
    target: Any
    why: str
    declare: dict[str, Any] = field(default_factory=dict)


_BANK: dict[str, Right] = {}


def right(contract: str = "core", *, name: str | None = None, **declare: Any) -> Callable[[Any], Any]:
    """Enter an implementation."""

    def enter(target: Any) -> Any:
        called = name or target.__name__
        assert called not in _BANK, called
        _BANK[called] = Right(called, contract, target, (target.__doc__ or "").strip(), declare)
        return target

    return enter


def bank() -> dict[str, Right]:
    """Return every right implementation by name."""
    for module in MODULES:
        import_module(f"{__package__}.{module}")
    return dict(_BANK)
