"""Holding a result against the exact one: outside the computed bound is a violation, inside is not."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from .. import oracle
from .._inputs import CoreInputs, LayerInputs
from ..precision import Roundoffs
from .bound import core_bound
from .bound_layer import layer_bound
from .failures import SubjectError, Violation

# The largest error/bound of the clause that is running; the report shows it, and `target()` climbs it.
WORST: ContextVar[list[float] | None] = ContextVar("WORST", default=None)


def roundoffs_for(subject: Any, dtype: torch.dtype) -> Roundoffs:
    """Return where the subject may round, for inputs of `dtype`."""
    found: Roundoffs = subject.precision.at(dtype)
    return found


def require_shape(got: Tensor, expected: tuple[int, ...], *, what: str = "output") -> None:
    """Raise a `Violation` unless the shape is the expected one."""
    if tuple(got.shape) != tuple(expected):
        raise Violation(f"the {what} has the wrong shape", got=tuple(got.shape), expected=tuple(expected))


def alive_rows(exact: Any) -> Tensor:
    """Return which output rows of a core or a layer see something: `batch heads q_len 1` or `batch q_len 1`.

    Rows that see nothing have clauses of their own; judging them elsewhere would fail all for one reason.
    """
    if hasattr(exact, "core"):
        return exact.core.visible.any(-1).all(1)[..., None]
    return exact.visible.any(-1, keepdim=True)


def require_within(
    got: Tensor, exact: Tensor, allowed: Tensor, *, what: str, rows: Tensor | None = None
) -> float:
    """Raise a `Violation` unless every element is within its allowed error.

    Args:
        got: What came out.
        exact: What should have.
        allowed: The error that a right implementation may have, element by element.
        what: The sentence of the violation.
        rows: Where to look; None is everywhere.

    Returns:
        The largest error over allowed error.
    """
    require_shape(got, tuple(exact.shape), what=what.split(":")[0] if len(what) < 30 else "output")
    if exact.numel() == 0:
        return 0.0
    wide = got.detach().to(torch.float64)
    exact = exact.detach()
    error = (wide - exact).abs()
    same = (wide == exact) | (wide.isnan() & exact.isnan())
    if rows is not None:
        same = same | ~rows
    error = torch.where(same, torch.zeros_like(error), error)
    bad = ~(error <= allowed.detach()) & ~same
    ratio = torch.where(
        same, torch.zeros_like(error), error / allowed.clamp_min(torch.finfo(torch.float64).tiny)
    )
    worst = float(ratio.nan_to_num(nan=float("inf")).max())
    seen = WORST.get()
    if seen is not None:
        seen.append(worst)
    if bool(bad.any()):
        severity = torch.where(bad, ratio.nan_to_num(nan=float("inf")), torch.full_like(ratio, -1.0))
        flat = int(severity.argmax())
        index = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), exact.shape))
        raise Violation(
            what,
            got=float(wide[index]),
            expected=float(exact[index]),
            allowed=float(allowed.expand_as(exact)[index]),
            index=index,
            ratio=float(ratio[index]),
            wrong=got.detach(),
        )
    return worst


def require_equal(got: Tensor, expected: Tensor, *, what: str, rows: Tensor | None = None) -> None:
    """Raise a `Violation` unless two results are the same bit for bit (NaN equal to NaN)."""
    require_shape(got, tuple(expected.shape))
    same = (got == expected) | (got.isnan() & expected.isnan())
    if rows is not None:
        same = same | ~rows
    if not bool(same.all()):
        index = tuple(int(i) for i in (~same).nonzero()[0])
        raise Violation(
            what, got=got[index].item(), expected=expected[index].item(), allowed=0.0, index=index,
            ratio=float("inf"), wrong=got.detach(),
        )  # fmt: skip


def exact_core(subject: Any, inputs: CoreInputs) -> tuple[Any, Tensor]:
    """Return the oracle's result and the allowed error of each element."""
    exact = oracle.core(inputs)
    return exact, core_bound(inputs, exact, roundoffs_for(subject, inputs.query.dtype))


@contextmanager
def about(inputs: CoreInputs | LayerInputs) -> Iterator[None]:
    """Note on a violation which inputs it is about."""
    try:
        yield
    except Violation as violation:
        violation.inputs = inputs
        raise


def judge_core(
    subject: Any, inputs: CoreInputs, *, what: str = "the output differs from the exact result"
) -> Tensor:
    """Run a core and hold its output against the oracle; return the output."""
    outcome = subject.run(inputs)
    exact, allowed = exact_core(subject, inputs)
    with about(inputs):
        require_within(outcome.output, exact.output, allowed, what=what, rows=alive_rows(exact))
    found: Tensor = outcome.output
    return found


def judge_layer(
    subject: Any,
    inputs: LayerInputs,
    *,
    layer: Any = None,
    what: str = "the output differs from the exact result",
) -> Tensor:
    """Run a layer and hold its output against the oracle; return the output."""
    outcome = layer.run(inputs) if layer is not None else subject.run_layer(inputs)
    exact = oracle.layer(inputs)
    allowed = layer_bound(inputs, exact, roundoffs_for(subject, inputs.query.dtype))
    with about(inputs):
        require_within(outcome.output, exact.output, allowed, what=what, rows=alive_rows(exact))
    found: Tensor = outcome.output
    return found


def require_raises(call: Any, *, what: str, got: str) -> SubjectError:
    """Raise a `Violation` unless `call` is refused; return the refusal."""
    try:
        call()
    except SubjectError as error:
        return error
    raise Violation(what, got=got, expected="an exception")
