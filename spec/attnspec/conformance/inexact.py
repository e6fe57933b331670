"""Numbers that may be off: how errors pass through stores, sums and products."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attnspec.precision import Roundoffs, unit_roundoff


def gamma(count: int, unit: float) -> float:
    """Return the relative error that `count` roundings can add up to."""
    return count * unit / (1 - count * unit)


def stored(value: Tensor, error: Tensor, unit: float, tiny: float, *, times: int = 1) -> Tensor:
    """Return the error of a number that is off by `error` and then stored `times` times.

    Below `tiny` it may be flushed to zero; what is exactly zero stays so. A single store that rounds to a
    subnormal number moves it by no more than its size; several may, as one rounds up what the last left.
    """
    size = value.abs() + error
    if times > 1:
        error = error + (size > 0) * (times * unit * tiny)
        size = value.abs() + error
    flushed = size.clamp(max=tiny).masked_fill_(value.abs() - error >= tiny, 0.0)
    return torch.add(error + flushed, size, alpha=gamma(times, unit))


def narrowed(tensor: Tensor, roundoffs: Roundoffs) -> Tensor:
    """Return how far a tensor is off once it was rounded to the dtype of the output, as autocast does."""
    return stored(tensor, torch.zeros_like(tensor), roundoffs.output, roundoffs.output_smallest_normal)


def partials(size: Tensor, count: int, roundoffs: Roundoffs) -> Tensor:
    """Return the error of `count` partial sums stored each, given the sum of their absolute values.

    Each may be so small that it is rounded to a subnormal number: an absolute error, however small the sum.
    """
    if count == 1:
        return torch.zeros_like(size)
    unit, tiny = roundoffs.output, roundoffs.output_smallest_normal
    return torch.where(size > 0, gamma(count, unit) * size + count * unit * tiny, 0.0)


def judged(bound: Tensor, roundoffs: Roundoffs) -> Tensor:
    """Return the bound for a comparison with the oracle, in float64 no better than what it judges."""
    return bound * 2 if roundoffs.accumulation <= unit_roundoff(torch.float64) else bound


def score_tiny(roundoffs: Roundoffs) -> float:
    """Return below what a stored score or operand may be flushed."""
    same = roundoffs.scores == roundoffs.output
    return roundoffs.output_smallest_normal if same else accumulator_tiny(roundoffs)


def accumulator_tiny(roundoffs: Roundoffs) -> float:
    """Return below what a product inside a kernel may be flushed."""
    return min(roundoffs.smallest_normal, torch.finfo(torch.float32).tiny)


@dataclass(frozen=True, slots=True)
class Off:
    """An exact tensor, and how far a right implementation's may be from it."""

    exact: Tensor
    error: Tensor

    @property
    def size(self) -> Tensor:
        """The largest absolute value that a right implementation may hold."""
        return self.exact.abs() + self.error

    def store(self, unit: float, tiny: float, *, times: int = 1) -> "Off":
        """Return the same, stored `times` times."""
        return Off(self.exact, stored(self.exact, self.error, unit, tiny, times=times))

    def map(self, function: Callable[[Tensor], Tensor]) -> "Off":
        """Return the same under a change of shape."""
        return Off(function(self.exact), function(self.error))


def known(tensor: Tensor, error: Tensor | None = None) -> Off:
    """Return a tensor that is off by `error`, or by nothing."""
    return Off(tensor, torch.zeros_like(tensor) if error is None else error)


def product(left: Off, right: Off, roundoffs: Roundoffs, *, relative: float = 0.0) -> Off:
    """Return a matrix product of two inexact tensors.

    Summing it costs `gamma_{n+2}`, and `relative` what else rounds each term. A product below the smallest
    normal number may be lost, except in rows that are exactly zero.
    """
    length, size = left.exact.shape[-1], right.size
    relative = gamma(length + 2, roundoffs.accumulation) + relative
    error = left.error @ size + left.exact.abs() @ right.error + relative * (left.size @ size)
    if length:
        lost = (length + 1) * accumulator_tiny(roundoffs)
        error = error + lost * (left.size.amax(-1, keepdim=True) > 0)
    return Off(left.exact @ right.exact, error)
