"""Chapter gradient: of inputs and parameters, as exact as the bound allows."""

from itertools import combinations

import torch

from ... import oracle
from .. import judge
from ..bound_gradient import core_gradient_bounds
from ..check import check
from ..failures import NotApplicable, SubjectError, Violation
from ..guard import guarded
from ..inexact import partials
from ..judge_gradient import (
    INPUTS,
    exact_gradients,
    judge_gradients,
    layer_expected,
    require_alive,
    upstream_of,
)
from ..recipes import Recipe
from ..subject import CoreSubject
from ..tensors import ALIVE

FORMS = {
    "lengths": ((3, 4), (4, 4), (1, 1), (5, 2), (7, 9)),
    "widths": ((5, 5), (3, 7), (8, 8)),
    "mask": (None, *ALIVE),
    "mask_axes": ("bhqk", "qk", "bk"),
    "causal": (False, True),
    "values": ("normal", "integers"),
    "scale": (None, 0.5, -0.3),
    "bias": (None, "hqk"),
    "softcap": (None, None, 2.0),
}


def _upstream(case):
    """Draw an upstream gradient; cases with a row that sees nothing belong to `mask.dead_row.gradient`."""
    require_alive(oracle.core(case.core_inputs()).visible)
    return upstream_of(case, case.batch, case.heads, case.q_len, case.d_v)


def _make(name):
    @check(f"gradient.{name}", Recipe({**FORMS, "dtype": ("float32",)}))
    def check_one(subject, case):
        inputs, upstream = case.core_inputs(), _upstream(case)
        _, found = subject.gradients(inputs, upstream, wrt=(name,))
        judge_gradients(subject, inputs, upstream, found)

    check_one.__doc__ = f"Hold the gradient of the {name} against the exact one."


for _name in ("query", "key", "value"):
    _make(_name)


@check(
    "gradient.query",
    Recipe(
        {
            "heads": ((3, 3), (1, 1)),
            "lengths": ((4, 4), (7, 7)),
            "widths": ((5, 5),),
            "causal": (False, True),
            "dtype": ("float32",),
            "values": ("normal",),
        }
    ),
)
def check_one_tensor(subject, case):
    """A tensor that is query, key and value gets the sum of what each of them would get."""
    inputs, upstream = case.core_inputs(), _upstream(case)
    if not isinstance(subject, CoreSubject):
        raise NotApplicable("a layer makes a tensor of its own for each part")
    leaf = inputs.query.detach().requires_grad_()
    output = subject.run(inputs.replace(query=leaf, key=leaf, value=leaf)).output
    if not output.requires_grad:
        raise SubjectError("returned", "an output that is cut off from the graph: no gradient can flow")
    (found,) = guarded(torch.autograd.grad, output, [leaf], upstream)
    inputs = inputs.replace(key=inputs.query, value=inputs.query)
    roundoffs = judge.roundoffs_for(subject, inputs.query.dtype)
    parts = exact_gradients(inputs, upstream, ("query", "key", "value"))
    errors = core_gradient_bounds(inputs, oracle.core(inputs), upstream, roundoffs)
    sizes = sum(parts[name].abs() + errors[name] for name in parts)
    allowed = sum(errors[name] for name in parts) + partials(sizes, len(parts), roundoffs)
    judge.require_within(
        found, sum(parts.values()), allowed, what="the gradient of one tensor in all parts is not their sum"
    )


@check(
    "gradient.long",
    Recipe(
        {
            "lengths": ((5, 70), (33, 33), (70, 70), (130, 130), (258, 5), (3, 300), (258, 258)),
            "causal": (False, True),
            "batch": (1, 2),
            "dtype": ("float32",),
            "mask": (None, "random", "padding"),
            "bias": (None, None, "hqk"),
        }
    ),
    effort=0.6,
)
def check_long(subject, case):
    inputs, upstream = case.core_inputs(), _upstream(case)
    names = ("query", "key", "value") if inputs.bias is None else ("query", "key", "value", "bias")
    _, found = subject.gradients(inputs, upstream, wrt=names)
    judge_gradients(subject, inputs, upstream, found)


@check(
    "gradient.half",
    Recipe({"dtype": ("bfloat16", "float16"), "lengths": ((3, 4), (4, 4), (9, 17)), "causal": (False, True)}),
)
def check_half(subject, case):
    inputs, upstream = case.core_inputs(), _upstream(case)
    _, found = subject.gradients(inputs, upstream, wrt=("query", "key", "value"))
    judge_gradients(subject, inputs, upstream, found)


@check(
    "gradient.layout",
    Recipe(
        {
            "layout": ("transposed", "sliced", "every_other", "last_two"),
            "causal": (False, True),
            "dtype": ("float32",),
        }
    ),
)
def check_layout(subject, case):
    inputs, upstream = case.core_inputs(), _upstream(case)
    strided = upstream.transpose(1, 2).contiguous().transpose(1, 2)
    _, found = subject.gradients(inputs, strided, wrt=("query", "key", "value"))
    judge_gradients(subject, inputs, upstream, found)


@check(
    "gradient.alone",
    Recipe({"mask": (None, "random"), "causal": (False, True), "dtype": ("float32",)}),
    effort=0.6,
)
def check_alone(subject, case):
    """One tensor that requires a gradient, or two, get the same as when all do."""
    inputs, upstream = case.core_inputs(), _upstream(case)
    for names in (*combinations(INPUTS, 1), *combinations(INPUTS, 2)):
        _, found = subject.gradients(inputs, upstream, wrt=names)
        judge_gradients(subject, inputs, upstream, found)


@check(
    "gradient.hidden",
    Recipe(
        {
            "mask": ("padding", "single", "last_key"),
            "mask_axes": ("bk", "bhqk", "qk"),
            "dtype": ("float32",),
            "lengths": ((3, 5), (4, 4)),
            "causal": (False, True),
        }
    ),
)
def check_hidden(subject, case):
    inputs, upstream = case.core_inputs(), _upstream(case)
    exact = oracle.core(inputs)
    group = case.heads // case.kv_heads
    seen = exact.visible.view(case.batch, case.kv_heads, group, case.q_len, case.kv_len).any(2).any(2)
    _, found = subject.gradients(inputs, upstream, wrt=("key", "value"))
    for name, gradient in found.items():
        leaking = ~seen[..., None] & (gradient != 0)
        if bool(leaking.any()):
            raise Violation(
                f"a {name} that the mask forbids to all has a gradient",
                got=float(gradient[leaking][0]),
                expected=0.0,
                allowed=0.0,
            )


LAYER = {
    "lengths": ((3, 4), (4, 4), (5, 2)),
    "mask": (None, "random", "padding"),
    "causal": (False, True),
    "dtype": ("float32",),
    "values": ("normal",),
}


def _layer_gradients(subject, case):
    inputs = subject.layer_inputs(case)
    upstream = upstream_of(case, case.batch, case.q_len, case.d_model)
    expected, allowed = layer_expected(subject, inputs, upstream)
    longest = max(inputs.query.shape[1], inputs.key_input.shape[1], 64)
    _, found = subject.build(inputs.weights, max_len=longest).gradients(inputs, upstream)
    return found, expected, allowed


@check("gradient.inputs", Recipe(LAYER), on="layer")
def check_inputs(subject, case):
    found, exact, allowed = _layer_gradients(subject, case)
    for name in ("query", "key", "value"):
        if name in exact:
            judge.require_within(
                found[name],
                exact[name],
                allowed[name],
                what=f"the gradient of the {name} input differs from the exact one",
            )


@check("gradient.parameters", Recipe(LAYER), on="layer")
def check_parameters(subject, case):
    found, exact, allowed = _layer_gradients(subject, case)
    for name in exact:
        if name in found and name not in ("query", "key", "value"):
            judge.require_within(
                found[name],
                exact[name],
                allowed[name],
                what=f"the gradient of {name} differs from the exact one",
            )


@check(
    "gradient.live",
    Recipe({"lengths": ((4, 4), (5, 5)), "dtype": ("float32",), "values": ("normal",)}),
    on="layer",
)
def check_live(subject, case):
    """Every parameter takes part; a key bias alone may have a zero gradient, for it shifts whole rows."""
    inputs = subject.layer_inputs(case)
    layer = subject.build(inputs.weights)
    upstream = torch.randn(
        case.batch, case.q_len, case.d_model, generator=case.generator(8), dtype=torch.float64
    ).to(case.torch_dtype)
    layer.gradients(inputs, upstream)
    for name, parameter in layer.module.named_parameters():
        if parameter.requires_grad and parameter.grad is None:
            raise Violation(
                f"the parameter {name} takes no part in the output", got="no gradient", expected="a gradient"
            )


@check(
    "gradient.parameters",
    Recipe(
        {
            "lengths": ((40, 40), (70, 70), (65, 80)),
            "batch": (1, 3),
            "dtype": ("float32",),
            "values": ("normal",),
        }
    ),
    on="layer",
    effort=0.5,
)
def check_parameters_of_many(subject, case):
    """Over more positions than one block of them."""
    check_parameters(subject, case)
