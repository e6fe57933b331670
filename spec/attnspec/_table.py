"""The shape table, read from the signatures of the stages: nothing about shapes is typed twice."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_args

F = TypeVar("F", bound=Callable[..., Any])

STAGES: dict[str, "Stage"] = {}


@dataclass(frozen=True, slots=True)
class Argument:
    """One tensor argument of a stage: its name, its dimensions, and whether it may be left out."""

    name: str
    dims: tuple[str, ...]
    kind: str
    optional: bool = False

    def __str__(self) -> str:
        return " ".join(self.dims)


@dataclass(frozen=True, slots=True)
class Stage:
    """One row of the shape table.

    Attributes:
        name: The row's name in words.
        row: The row of the documents' table that this one refines; often the same word.
        path: `common`, or the route that alone uses this row (`grouped`, `fused stacked`, ...).
        optional: Whether the row only runs when its argument is given.
        formula: LaTeX, without delimiters.
        function: The typed function itself.
        arguments: Its tensor arguments, in order.
        result: What it returns.
    """

    name: str
    row: str
    path: str
    optional: bool
    formula: str
    function: Callable[..., Any] = field(repr=False)
    arguments: tuple[Argument, ...]
    result: Argument

    @property
    def summary(self) -> str:
        """The first line of the function's docstring."""
        return (inspect.getdoc(self.function) or "").split("\n", 1)[0]

    @property
    def clauses(self) -> tuple[str, ...]:
        """The clause names that the function's docstring lists."""
        found = re.search(r"Clauses:\s*(.+?)\.?\s*$", inspect.getdoc(self.function) or "", re.DOTALL)
        return tuple(re.findall(r"[a-z_]+(?:\.[a-z_0-9]+)+", found.group(1))) if found else ()

    @property
    def axes(self) -> tuple[str, ...]:
        """Every axis name in the signature, in order of first use."""
        text = " ".join(str(a) for a in (*self.arguments, self.result))
        return tuple(dict.fromkeys(re.findall(r"[a-z][a-z_]*", text)))


def read_annotation(name: str, annotation: Any) -> Argument | None:
    """Return the dimensions that a jaxtyping annotation writes, or None if it is not a tensor."""
    members = get_args(annotation) or (annotation,)
    tensors = [m for m in members if hasattr(m, "dim_str")]
    if not tensors:
        return None
    kind = tensors[0].__mro__[0].__name__.split("[")[0]
    return Argument(name, tuple(tensors[0].dim_str.split()), kind, optional=type(None) in members)


def read_signature(function: Callable[..., Any]) -> tuple[tuple[Argument, ...], Argument]:
    """Return the tensor arguments and the result of an annotated function.

    Raises:
        TypeError: If the result is not annotated with a jaxtyping type.
    """
    signature = inspect.signature(function)
    read = (read_annotation(p.name, p.annotation) for p in signature.parameters.values())
    result = read_annotation("return", signature.return_annotation)
    if result is None:
        raise TypeError(f"{function.__name__}: the result has no jaxtyping annotation")
    return tuple(a for a in read if a is not None), result


def stage(
    name: str, *, row: str | None = None, path: str = "common", optional: bool = False, formula: str = ""
) -> Callable[[F], F]:
    """Enter a function into the shape table and return it unchanged."""

    def enter(function: F) -> F:
        arguments, result = read_signature(function)
        STAGES[function.__name__] = Stage(
            name, row or name, path, optional, formula, function, arguments, result
        )
        return function

    return enter
