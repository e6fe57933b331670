"""What probes share: one call, held against the oracle or against another call, with a plain yes or no."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .. import oracle
from .._inputs import CoreInputs, LayerInputs
from ..conformance.bound import core_bound
from ..conformance.bound_layer import layer_bound
from ..conformance.failures import NotApplicable, SubjectError
from ..conformance.space import Space
from ..declaration import Declaration
from ..precision import precision
from .findings import Question


@dataclass
class Probe:
    """What the experiments of one target have decided so far."""

    declaration: Declaration
    space: Space
    questions: list[Question] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)


def attempt(call: Callable[[], Any]) -> tuple[Any, SubjectError | NotApplicable | None]:
    """Return a call's result, or what stopped it."""
    try:
        return call(), None
    except (SubjectError, NotApplicable) as error:
        return None, error


def agrees(output: Tensor | None, inputs: CoreInputs | LayerInputs, *, factor: float = 4.0) -> bool:
    """Return whether an output is the exact one, up to a generous multiple of the bound.

    Generous, because a probe tells conventions apart, which differ in every digit; precision is for the clauses.
    """
    if output is None:
        return False
    rounding = precision("stored").at(inputs.query.dtype)
    if isinstance(inputs, CoreInputs):
        core = oracle.core(inputs)
        exact, allowed = core.output, core_bound(inputs, core, rounding)
    else:
        layer = oracle.layer(inputs)
        exact, allowed = layer.output, layer_bound(inputs, layer, rounding)
    if output.shape != exact.shape:
        return False
    return bool(((output.detach().double() - exact.detach()).abs() <= factor * allowed.detach()).all())


def distance(output: Tensor | None, inputs: LayerInputs) -> float:
    """Return how far an output is from the exact one, relative to its size."""
    if output is None:
        return float("inf")
    exact = oracle.layer(inputs).output
    if output.shape != exact.shape:
        return float("inf")
    gap = (output.detach().double() - exact).norm() / exact.norm().clamp_min(torch.finfo(torch.float64).tiny)
    return float(gap.nan_to_num(nan=float("inf")))
