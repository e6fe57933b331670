"""Holding gradients against the oracle's: of a core's tensors, and of a layer's inputs and parameters."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .. import oracle
from .._inputs import CoreInputs, LayerInputs
from . import judge
from .bound_gradient import core_gradient_bounds, layer_gradient_bounds
from .cases import Case
from .failures import NotApplicable

INPUTS = ("query", "key", "value")


def upstream_of(case: Case, *shape: int) -> Tensor:
    """Draw the gradient of an output."""
    drawn = torch.randn(*shape, generator=case.generator(8), dtype=torch.float64)
    return drawn.to(case.torch_dtype)


def require_alive(visible: Tensor) -> None:
    """Leave out a case with a row that sees nothing: it has clauses of its own."""
    if not bool(visible.any(-1).all()):
        raise NotApplicable("a row sees nothing")


def layer_leaves(inputs: LayerInputs) -> tuple[LayerInputs, dict[str, Tensor]]:
    """Return a layer's call in float64, and everything in it that has a gradient, by name."""
    wide = inputs.to(torch.float64)
    given = {n: t for n in INPUTS if (t := getattr(wide, n)) is not None}
    leaves = {n: t.detach().requires_grad_() for n, t in given.items()}
    params = {n: t.detach().requires_grad_() for n, t in wide.weights.tensors().items()}
    return wide.replace(**leaves, weights=wide.weights.replace(**params)), leaves | params


def gradients_of(output: Tensor, leaves: Mapping[str, Tensor], upstream: Tensor) -> dict[str, Tensor]:
    """Return the gradients of named leaves; zeros where one takes no part."""
    found: tuple[Tensor | None, ...] = torch.autograd.grad(
        output, list(leaves.values()), upstream.double(), allow_unused=True
    )
    pairs = zip(leaves.items(), found, strict=True)
    return {name: torch.zeros_like(leaf) if g is None else g for (name, leaf), g in pairs}


def layer_expected(
    subject: Any, inputs: LayerInputs, upstream: Tensor
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the exact gradients of a layer's inputs and parameters, and how far off each may be."""
    exact = oracle.layer(inputs)
    require_alive(exact.core.visible)
    wide, leaves = layer_leaves(inputs)
    roundoffs = judge.roundoffs_for(subject, inputs.query.dtype)
    allowed = layer_gradient_bounds(inputs, exact, upstream, roundoffs)
    return gradients_of(oracle.layer(wide).output, leaves, upstream), allowed


def judge_layer_gradients(
    found: Mapping[str, Tensor], expected: Mapping[str, Tensor], allowed: Mapping[str, Tensor], *, what: str
) -> None:
    """Hold what was found against the exact gradients; `what` names them where it has braces."""
    for name in [n for n in expected if n in found]:
        judge.require_within(found[name], expected[name], allowed[name], what=what.format(name))


def exact_gradients(inputs: CoreInputs, upstream: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
    """Return the oracle's gradients of the named tensors, float64."""
    wide = inputs.to(torch.float64)
    leaves = {name: getattr(wide, name).detach().requires_grad_() for name in names}
    return gradients_of(oracle.core(wide.replace(**leaves)).output, leaves, upstream)


def judge_gradients(subject: Any, inputs: CoreInputs, upstream: Tensor, found: Mapping[str, Tensor]) -> None:
    """Hold gradients against the oracle's."""
    exact = exact_gradients(inputs, upstream, tuple(found))
    allowed = core_gradient_bounds(
        inputs, oracle.core(inputs), upstream, judge.roundoffs_for(subject, inputs.query.dtype)
    )
    for name, gradient in exact.items():
        judge.require_within(
            found[name],
            gradient,
            allowed[name],
            what=f"the gradient of the {name} differs from the exact one",
        )


def judge_case(subject: Any, case: Case) -> None:
    """Hold the gradients of all that a case hands over, a bias too, against the oracle's."""
    inputs = case.core_inputs()
    require_alive(oracle.core(inputs).visible)
    upstream = upstream_of(case, case.batch, case.heads, case.q_len, case.d_v)
    names = (*INPUTS, "bias") if inputs.bias is not None else INPUTS
    _, found = subject.gradients(inputs, upstream, wrt=names)
    judge_gradients(subject, inputs, upstream, found)
