"""Checks and the clauses they belong to: a clause is data, a check is a function, the name joins them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any, Literal

from .grad_mode import GRAD_MODES
from .recipes import Recipe

On = Literal["core", "layer", "cached"]
Function = Callable[[Any, Any], None]
CHAPTERS = (
    "shape", "value", "mask", "causal", "grouped", "scale", "bias", "softcap", "window", "dtype", "gradient",
    "size", "layout", "state", "determinism", "dropout", "weights", "params", "refusal", "cache",
)  # fmt: skip
# Modules of checks that are a kind of their own, whatever chapters their clauses are in.
ACROSS = ("combined", "extremes", "graphs", "relations", "history", "training")
# What these chapters ask is about autograd, or about what a call leaves behind, and sets its mode itself; or
# it is no number, and code that writes to its inputs is told so elsewhere.
OWN_MODE = ("shape", "gradient", "state", "determinism", "params", "refusal")


@dataclass(frozen=True)
class Check:
    """One check of one clause.

    Attributes:
        clause: Name of the clause.
        function: `function(subject, case)`; raises `Violation`, or returns.
        recipe: Which cases it is tried on.
        on: What it is handed: a core (or the core view of a layer), a layer, or a cached layer.
        effort: Factor on the number of cases: a check that finds more with more cases has more.
        sequence: Whether a failure lies in the order of calls, so that its script has to repeat them all.
    """

    clause: str
    function: Function
    recipe: Recipe
    on: On
    effort: float = 1.0
    sequence: bool = False


_CHECKS: list[Check] = []


def check(
    clause: str,
    recipe: Recipe | None = None,
    *,
    on: On = "core",
    effort: float = 1.0,
    sequence: bool = False,
) -> Callable[[Function], Function]:
    """Enter a function as a check of `clause`."""

    def enter(function: Function) -> Function:
        _CHECKS.append(
            Check(clause, function, _in_every_mode(clause, recipe or Recipe()), on, effort, sequence)
        )
        return function

    return enter


def _in_every_mode(clause: str, recipe: Recipe) -> Recipe:
    """Return the recipe over all grad modes, unless the clause is about them."""
    chapter, _, rest = clause.partition(".")
    if chapter in OWN_MODE or "gradient" in rest:
        return recipe
    return replace(recipe, grad_modes=GRAD_MODES)


@cache
def checks() -> dict[str, tuple[Check, ...]]:
    """Return all checks by the name of their clause, importing every chapter."""
    for chapter in (*CHAPTERS, *ACROSS):
        import_module(f"{__package__}.chapters.{chapter}")
    found: dict[str, tuple[Check, ...]] = {}
    for entry in _CHECKS:
        found[entry.clause] = (*found.get(entry.clause, ()), entry)
    return found
