"""Chapter gradient, one graph used twice and two at once: what a call keeps for its way back is its own."""

import torch

from ... import oracle
from .. import judge
from ..check import check
from ..failures import NotApplicable, SubjectError
from ..guard import guarded
from ..judge_gradient import (
    INPUTS,
    judge_gradients,
    judge_layer_gradients,
    layer_expected,
    require_alive,
    upstream_of,
)
from ..recipes import Recipe
from ..subject import CoreSubject
from .gradient import LAYER

SHORT = {
    "lengths": ((3, 4), (4, 4)),
    "mask": (None, "random"),
    "causal": (False, True),
    "dtype": ("float32",),
}


@check("gradient.upstream", Recipe(SHORT), effort=0.6)
def check_upstream(subject, case):
    """`output.sum().backward()` hands over one number, expanded; a kept graph can be used again."""
    inputs = case.core_inputs()
    require_alive(oracle.core(inputs).visible)
    upstream = torch.ones((), dtype=case.torch_dtype).expand(case.batch, case.heads, case.q_len, case.d_v)
    _, found = subject.gradients(inputs, upstream, wrt=INPUTS)
    judge_gradients(subject, inputs, upstream, found)
    if not isinstance(subject, CoreSubject):
        return
    leaves = {n: getattr(inputs, n).detach().requires_grad_() for n in INPUTS}
    output = _differentiable(subject, inputs.replace(**leaves))
    ones = torch.ones_like(output)
    passes = [
        guarded(torch.autograd.grad, output, list(leaves.values()), ones, retain_graph=True) for _ in range(2)
    ]
    for name, first, again in zip(INPUTS, *passes, strict=True):
        judge.require_equal(
            again,
            first,
            what=f"a second backward pass over the same graph gives another gradient of the {name}",
        )


@check("gradient.upstream", Recipe(LAYER), on="layer", effort=0.6)
def check_layer_upstream(subject, case):
    """The same for a layer, whose output is summed as it comes; and once more over the kept graph."""
    inputs = subject.layer_inputs(case)
    upstream = torch.ones((), dtype=case.torch_dtype).expand(case.batch, case.q_len, case.d_model)
    expected, allowed = layer_expected(subject, inputs, upstream)
    layer = subject.build(inputs.weights)
    leaf = inputs.query.detach().requires_grad_()
    output = _differentiable(layer, inputs.replace(query=leaf))
    first = _query_gradient(output, leaf, torch.ones_like(output), kept=True)
    summed = _query_gradient(output.sum(), leaf, None, kept=True)
    again = _query_gradient(output, leaf, torch.ones_like(output), kept=False)
    what = "the gradient of the {} differs from the exact one where the output is summed"
    for found in (first, summed):
        judge_layer_gradients({"query": found}, expected, allowed, what=what)
    judge.require_equal(
        again, first, what="a second backward pass over the same graph gives another gradient"
    )


def _differentiable(called, inputs):
    output = called.run(inputs).output
    if not output.requires_grad:
        raise SubjectError("returned", "an output that is cut off from the graph: no gradient can flow")
    return output


def _query_gradient(output, leaf, upstream, *, kept):
    (found,) = guarded(torch.autograd.grad, output, [leaf], upstream, retain_graph=kept)
    return found


@check("gradient.interleaved", Recipe(SHORT), effort=0.6)
def check_interleaved(subject, case):
    """Two calls before their backward passes, the first one's pass last."""
    if not isinstance(subject, CoreSubject):
        raise NotApplicable("it is checked on the layer")
    cases = (case, case.replace(seed=case.seed + 3))
    calls = []
    for one in cases:
        inputs = one.core_inputs()
        require_alive(oracle.core(inputs).visible)
        leaves = {n: getattr(inputs, n).detach().requires_grad_() for n in INPUTS}
        upstream = upstream_of(one, one.batch, one.heads, one.q_len, one.d_v)
        calls.append((inputs, leaves, upstream, _differentiable(subject, inputs.replace(**leaves))))
    for inputs, leaves, upstream, output in reversed(calls):
        found = guarded(torch.autograd.grad, output, list(leaves.values()), upstream)
        judge_gradients(subject, inputs, upstream, dict(zip(INPUTS, found, strict=True)))


@check("gradient.interleaved", Recipe(LAYER), on="layer", effort=0.6)
def check_layer_interleaved(subject, case):
    """The same for one module that is called twice."""
    layer, calls = None, []
    for one in (case, case.replace(seed=case.seed + 3)):
        inputs = subject.layer_inputs(one)
        layer = subject.build(inputs.weights) if layer is None else layer
        inputs = inputs.replace(weights=layer.weights)
        upstream = upstream_of(one, one.batch, one.q_len, one.d_model)
        expected, allowed = layer_expected(subject, inputs, upstream)
        leaf = inputs.query.detach().requires_grad_()
        output = _differentiable(layer, inputs.replace(query=leaf))
        calls.append((output, leaf, upstream.to(output.dtype), expected, allowed))
    for output, leaf, upstream, expected, allowed in reversed(calls):
        found = {"query": _query_gradient(output, leaf, upstream, kept=False)}
        what = "with another call before its backward pass the gradient of the {} differs from the exact one"
        judge_layer_gradients(found, expected, allowed, what=what)
