"""Running the code under test on a case, and what its output is held against."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import oracle
from .._inputs import CoreInputs, LayerInputs
from ..conformance.bound import core_bound
from ..conformance.bound_layer import layer_bound
from ..conformance.cases import Case
from ..conformance.failures import NotApplicable, SubjectError
from ..precision import Precision, unit_roundoff
from .record import Fingerprint

# A wrong reference is conditioned like the right one, not exactly as it: so much wider is its bound.
_SLACK = 32
# And so many times further than that must lie what counts as another answer.
_CLEAR = 4


@dataclass(frozen=True)
class Observation:
    """One call of the code under test.

    Attributes:
        inputs: What it was given, in float64.
        got: What it returned, in float64.
        right: What it should have.
        allowed: The largest error of a right element.
        unit: Unit roundoff of the output.
        same_dtype: Whether the output has the dtype of the query.
        written: Whether the call wrote into what it was given.
    """

    inputs: CoreInputs | LayerInputs
    got: Tensor
    right: Tensor
    allowed: float
    unit: float
    same_dtype: bool
    written: bool

    def near(self, reference: Tensor) -> float:
        """Return how far an output may be from a reference and still be it."""
        return _SLACK * (self.allowed + self.unit * float(reference.nan_to_num(0.0, 0.0, 0.0).abs().max()))

    @property
    def wrong(self) -> bool:
        """Whether the output is clearly not the right one."""
        return not agree(self.got, self.right, _CLEAR * self.near(self.right), literal=True)

    def reference(self, found: Fingerprint) -> Tensor | None:
        """Return what a mistake would return; None where it changes nothing."""
        return reference(found, self.inputs)

    def explained(self, found: Fingerprint) -> bool:
        """Return whether the output is what the mistake would return."""
        reference = self.reference(found)
        if reference is None:
            return not self.wrong
        # Where most of an output is free, the rest proves little.
        if not found.literal and 4 * int(reference.isnan().sum()) > 3 * reference.numel():
            return False
        return agree(self.got, reference, self.near(reference), literal=found.literal)

    def shows(self, found: Fingerprint) -> bool:
        """Return whether the mistake makes a clear difference here."""
        reference = self.reference(found)
        if reference is None:
            return False
        return not agree(self.right, reference, _CLEAR * self.near(reference), literal=found.literal)


def reference(found: Fingerprint, inputs: CoreInputs | LayerInputs) -> Tensor | None:
    """Return what a mistake would return for float64 inputs; None where it cannot be made."""
    wrong = found.layer if isinstance(inputs, LayerInputs) else found.core
    if wrong is None:
        return None
    try:
        output = wrong(inputs)  # type: ignore[arg-type]
    except (RuntimeError, IndexError, ValueError):
        return None
    return output if output is not None and output.shape == _shape(inputs) else None


def _shape(inputs: CoreInputs | LayerInputs) -> tuple[int, ...]:
    if isinstance(inputs, LayerInputs):
        return tuple(inputs.query.shape)
    return (*inputs.query.shape[:3], inputs.value.shape[3])


def tells_apart(inputs: CoreInputs | LayerInputs, first: Fingerprint, second: Fingerprint) -> bool:
    """Return whether two mistakes give different outputs for these float64 inputs."""
    a, b = reference(first, inputs), reference(second, inputs)
    if a is None or b is None:
        return a is not b
    near = _SLACK * _CLEAR * unit_roundoff(torch.float32) * float(b.nan_to_num(0.0, 0.0, 0.0).abs().max())
    return not agree(a, b, near, literal=first.literal or second.literal)


def agree(got: Tensor, reference: Tensor, near: float, *, literal: bool) -> bool:
    """Return whether two outputs are equal up to `near`; NaN in "
    "the reference is free unless it is literal."""
    gap = (got - reference).abs() <= near
    same = gap | (got == reference)
    if literal:
        return bool((same | (got.isnan() & reference.isnan())).all())
    return bool((same | reference.isnan()).all())


class Observer:
    """Calls one subject; a case that it cannot express or that raises gives None."""

    def __init__(self, subject: Any, *, layer: bool) -> None:
        self.subject, self.layer = subject, layer
        self._seen: dict[str, Observation | None] = {}

    def __call__(self, case: Case) -> Observation | None:
        """Return what one case gives."""
        fitted = self.subject.space.fit(case)
        if fitted is None:
            return None
        key = str(fitted.as_dict())
        if key not in self._seen:
            self._seen[key] = self._observe(fitted)
        return self._seen[key]

    def call(self, inputs: Any) -> Tensor | None:
        """Return the output for some inputs; None if it raises."""
        try:
            outcome = self.subject.run_layer(inputs) if self.layer else self.subject.run(inputs)
        except (SubjectError, NotApplicable):
            return None
        found: Tensor = outcome.output.detach()
        return found

    def wide(self, case: Case) -> CoreInputs | LayerInputs:
        """Build the inputs of a case that the subject can express, in float64."""
        return self.inputs(case).to(torch.float64)

    def inputs(self, case: Case) -> CoreInputs | LayerInputs:
        """Build the inputs of a case for this subject."""
        return self.subject.layer_inputs(case) if self.layer else case.core_inputs()

    def _observe(self, case: Case) -> Observation | None:
        inputs = self.inputs(case)
        # Held before the call: code that writes into its inputs must not move what it is held against.
        wide = copied(inputs)
        got = self.call(inputs)
        roundoffs = self.subject.precision.at(inputs.query.dtype)
        if got is None or not got.numel() or tuple(got.shape) != _shape(wide):
            return None
        if isinstance(wide, LayerInputs):
            layer = oracle.layer(wide)
            right, bound = layer.output, layer_bound(wide, layer, roundoffs)
        else:
            core = oracle.core(wide)
            right, bound = core.output, core_bound(wide, core, roundoffs)
        return Observation(
            wide,
            got.double(),
            right,
            float(bound.max()),
            roundoffs.output,
            got.dtype == inputs.query.dtype,
            any(
                not torch.equal(t.double(), wide.tensors()[name].double())
                for name, t in inputs.tensors().items()
            ),
        )

    def repeats(self, case: Case) -> bool:
        """Return whether two equal calls give equal outputs."""
        fitted = self.subject.space.fit(case)
        first, second = self.call(self.inputs(fitted)), self.call(self.inputs(fitted))
        return first is None or second is None or torch.equal(first.nan_to_num(), second.nan_to_num())


def explains(found: Fingerprint, inputs: CoreInputs | LayerInputs, got: Tensor, precision: Precision) -> bool:
    """Return whether a mistake gives what was returned; where it cannot be made, it does not."""
    roundoffs = precision.at(inputs.query.dtype)
    wide = copied(inputs)
    if isinstance(wide, LayerInputs):
        layer = oracle.layer(wide)
        right, bound = layer.output, layer_bound(wide, layer, roundoffs)
    else:
        core = oracle.core(wide)
        right, bound = core.output, core_bound(wide, core, roundoffs)
    if got.shape != right.shape or not got.numel():
        return False
    seen = Observation(
        wide, got.double(), right, float(bound.nan_to_num().max()), roundoffs.output, True, False
    )
    return seen.reference(found) is not None and seen.explained(found)


def copied(inputs: Any) -> Any:
    """Return float64 inputs that share no memory with those given."""
    return inputs.map_tensors(lambda _, t: t.clone()).to(torch.float64)


def wrong_ones(seen: Iterable[Observation | None]) -> list[Observation]:
    """Return the observations that are clearly wrong."""
    return [o for o in seen if o is not None and o.wrong]
