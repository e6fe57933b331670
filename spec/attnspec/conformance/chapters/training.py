"""Chapters gradient and dropout, as training meets them: train mode, frozen weights, backward twice."""

import torch

from ... import oracle
from .. import judge
from ..bound_gradient import core_gradient_bounds
from ..bound_layer import layer_bound
from ..check import check
from ..core_view import CoreView
from ..failures import NotApplicable, SubjectError, Violation
from ..guard import guarded
from ..inexact import partials
from ..judge_gradient import (
    INPUTS,
    gradients_of,
    judge_case,
    judge_gradients,
    judge_layer_gradients,
    layer_expected,
    layer_leaves,
    require_alive,
    upstream_of,
)
from ..recipes import Recipe
from ..subject import CoreSubject
from ..tensors import ALIVE
from .dropout import RATES, SMALL, fit_one_hot, weights_of
from .gradient import LAYER
from .graphs import SHORT

# Weights that survive dropout are 1 / (1 - p) times as large, and so is what rounding does to them; they are
# rounded twice more, in the product and in its gradient.
WIDER = 4


@check(
    "gradient.combined",
    Recipe(
        {
            "dtype": ("float32", "bfloat16", "float16"),
            "lengths": ((3, 4), (4, 4), (5, 2), (1, 3), (9, 17)),
            "heads": ((3, 3), (5, 1), (4, 2), (8, 1), (1, 1)),
            "widths": ((5, 5), (3, 7), (65, 65), (5, 130), (70, 3)),
            "mask": (None, *ALIVE),
            "mask_axes": ("bhqk", "qk", "bk"),
            "bias": (None, "hqk", "bk"),
            "causal": (False, True),
            "window": (None, None, (0, 0), (1, 2), (2, -1)),
            "scale": (None, 0.0, 2, -0.3),
            "softcap": (None, None, 2.0),
            "values": ("normal", "integers"),
            "layout": ("contiguous", "transposed", "last_two", "sliced"),
        }
    ),
    effort=1.2,
)
def check_combined(subject, case):
    """Options meet each other, and every dtype, on the way back too."""
    judge_case(subject, case)


@check(
    "gradient.hidden_extremes",
    Recipe(
        {
            "mask": ("random", "padding", "sparse"),
            "lengths": ((3, 5), (4, 4), (2, 9)),
            "values": ("normal",),
            "causal": (False, True),
            "dtype": ("float32", "bfloat16", "float64"),
        }
    ),
)
def check_hidden_extremes(subject, case):
    """A key that all are forbidden has a score that overflows by itself: nothing of it may come back."""
    inputs = case.core_inputs()
    exact = oracle.core(inputs)
    require_alive(exact.visible)
    group = case.heads // case.kv_heads
    seen = exact.visible.view(case.batch, case.kv_heads, group, case.q_len, case.kv_len).any(2).any(2)
    # A power of two changes no rounding, and puts exp() of the forbidden scores out of every dtype's range.
    inputs = inputs.replace(key=torch.where(seen[..., None], inputs.key, inputs.key * 2.0**12))
    upstream = upstream_of(case, case.batch, case.heads, case.q_len, case.d_v)
    _, found = subject.gradients(inputs, upstream, wrt=INPUTS)
    for name, gradient in found.items():
        if not bool(gradient.isfinite().all()):
            raise Violation(
                f"a large score that is forbidden makes the gradient of the {name} not finite",
                got="NaN or Inf",
                expected="what the visible scores give",
            )


@check("gradient.train_mode", Recipe(LAYER), on="layer", effort=0.6)
def check_train_mode(subject, case):
    """In train mode, without dropout: gradients of all, of parameters alone, and summed over two calls."""
    inputs = subject.layer_inputs(case)
    upstream = upstream_of(case, case.batch, case.q_len, case.d_model)
    expected, allowed = layer_expected(subject, inputs, upstream)
    layer = subject.build(inputs.weights)
    layer.module.train()
    _, found = layer.gradients(inputs, upstream)
    judge_layer_gradients(found, expected, allowed, what="in train mode the gradient of {} is not exact")
    layer.module.zero_grad(set_to_none=True)
    roundoffs = judge.roundoffs_for(subject, inputs.query.dtype)
    for count in (1, 2):
        outcome = layer.run(inputs)
        if not outcome.output.requires_grad:
            raise SubjectError(
                "returned", "an output without a graph where only the parameters require a gradient"
            )
        guarded(outcome.output.backward, upstream)
        found = subject.slots.read(layer.module, inputs.weights, gradient=True)
        judge_layer_gradients(
            found,
            {name: count * gradient for name, gradient in expected.items()},
            {
                name: count * (bound + partials(expected[name].abs() + bound, count, roundoffs))
                for name, bound in allowed.items()
            },
            what=f"after {count} calls in train mode the gradient of {{}} is not the sum",
        )


@check("gradient.frozen", Recipe(LAYER), on="layer", effort=0.4)
def check_frozen(subject, case):
    """With parameters frozen, one by one and all together, outputs and input gradients stay what they are."""
    inputs = subject.layer_inputs(case)
    upstream = upstream_of(case, case.batch, case.q_len, case.d_model)
    expected, allowed = layer_expected(subject, inputs, upstream)
    layer = subject.build(inputs.weights)
    parameters = list(layer.module.parameters())
    for number, frozen in enumerate((*([p] for p in parameters), parameters, parameters)):
        layer.module.train(number <= len(parameters))  # at last all of them, as a model is frozen for use
        for parameter in frozen:
            parameter.requires_grad_(False)
        judge.judge_layer(subject, inputs, layer=layer, what="with a frozen parameter the output is wrong")
        leaf = inputs.query.detach().requires_grad_()
        output = layer.run(inputs.replace(query=leaf)).output
        if not output.requires_grad:
            raise SubjectError("returned", "an output without a graph where parameters are frozen")
        (found,) = guarded(torch.autograd.grad, output, [leaf], upstream)
        judge_layer_gradients(
            {"query": found}, expected, allowed, what="with frozen parameters the gradient of {} is not exact"
        )
        for parameter in frozen:
            parameter.requires_grad_(True)


@check(
    "weights.gradient",
    Recipe(SHORT),
    on="layer",
)
def check_with_weights(subject, case):
    """Asking for the weights does not cut the output off from its graph."""
    inputs = subject.layer_inputs(case)
    upstream = upstream_of(case, case.batch, case.q_len, case.d_model)
    expected, allowed = layer_expected(subject, inputs, upstream)
    leaf = inputs.query.detach().requires_grad_()
    output = subject.build(inputs.weights).run(inputs.replace(query=leaf), want_weights=True).output
    if not output.requires_grad:
        raise SubjectError("returned", "an output that is cut off from the graph where weights are asked for")
    (found,) = guarded(torch.autograd.grad, output, [leaf], upstream)
    judge_layer_gradients(
        {"query": found},
        expected,
        allowed,
        what="where weights are asked for the gradient of {} is not exact",
    )


@check(
    "weights.gradient",
    Recipe(SHORT),
)
def check_core_with_weights(subject, case):
    """The same for a core."""
    inputs = case.core_inputs()
    require_alive(oracle.core(inputs).visible)
    if not isinstance(subject, CoreSubject):
        raise NotApplicable("it is checked on the layer")
    upstream = upstream_of(case, case.batch, case.heads, case.q_len, case.d_v)
    leaves = {n: getattr(inputs, n).detach().requires_grad_() for n in INPUTS}
    output = subject.run(inputs.replace(**leaves), want_weights=True).output
    if not output.requires_grad:
        raise SubjectError("returned", "an output that is cut off from the graph where weights are asked for")
    found = guarded(torch.autograd.grad, output, list(leaves.values()), upstream)
    judge_gradients(subject, inputs, upstream, dict(zip(INPUTS, found, strict=True)))


@check(
    "mask.dead_row.gradient",
    Recipe({"mask": ("dead", "nothing"), "lengths": ((4, 4), (3, 5)), "dtype": ("float32", "bfloat16")}),
    on="layer",
    effort=0.5,
)
def check_dead_rows_in_training(subject, case):
    """In train mode a row that sees nothing makes no gradient NaN."""
    inputs = subject.layer_inputs(case)
    layer = subject.build(inputs.weights)
    layer.module.train()
    _, found = layer.gradients(inputs, upstream_of(case, case.batch, case.q_len, case.d_model))
    for name, gradient in found.items():
        if not bool(gradient.isfinite().all()):
            raise Violation(
                f"in train mode a row that sees nothing makes the gradient of {name} not finite",
                got="NaN or Inf",
                expected="finite numbers",
            )


@check(
    "mask.dead_row.zero",
    Recipe(
        {
            "mask": ("dead", "nothing"),
            "mask_axes": ("bhqk", "qk", "bk"),
            "lengths": ((4, 4), (3, 5)),
            "causal": (False, True),
            "dtype": ("float32", "bfloat16"),
        }
    ),
    effort=0.6,
)
def check_dead_rows_with_dropout(subject, case):
    """With dropout a row that sees nothing gives zeros as well."""
    if not subject.space.has("dropout"):
        raise NotApplicable("it has no dropout")
    inputs = case.core_inputs()
    dead = ~oracle.core(inputs).visible.any(-1, keepdim=True)
    got = subject.run(inputs, dropout=RATES[0]).output
    wrong = dead & ~(got == 0)
    if bool(wrong.any()):
        raise Violation(
            "with dropout a query that may attend to nothing does not give zeros",
            got=float(got[wrong][0]),
            expected=0.0,
            allowed=0.0,
        )


BACK = {
    **SMALL,
    "lengths": ((6, 6), (4, 7), (7, 5)),
    "causal": (False, True),
    "mask": (None, "random"),
    "heads": ((3, 3), (4, 2), (2, 1)),
    "dtype": ("float64", "float32", "bfloat16"),
}


@check("dropout.gradient", Recipe(BACK))
def check_core_dropout_gradient(subject, case):
    """The gradient is that of the very weights that were used, on the way to queries and keys too."""
    if not isinstance(subject, CoreSubject):
        raise NotApplicable("it is checked on the layer")
    case = fit_one_hot(subject, case)
    rate = RATES[0]
    _, dropped = weights_of(subject, case, rate=rate, seed=case.seed)
    inputs = case.core_inputs()
    require_alive(oracle.core(inputs).visible)
    upstream = upstream_of(case, case.batch, case.heads, case.q_len, case.d_v)
    leaves = {n: getattr(inputs, n).detach().requires_grad_() for n in INPUTS}
    torch.manual_seed(case.seed)
    used = subject.run(inputs.replace(**leaves), dropout=rate).output
    wide = inputs.to(torch.float64)
    exact = {n: getattr(wide, n).detach().requires_grad_() for n in INPUTS}
    weights = oracle.core(wide.replace(**exact)).weights * ((dropped != 0).double() / (1 - rate))
    output = weights @ exact["value"].repeat_interleave(case.heads // case.kv_heads, 1)
    result, near = judge.exact_core(subject, inputs)
    wider = WIDER / (1 - rate)
    if bool(((used.double() - output).abs() > near * wider).any()):
        raise NotApplicable("other weights are dropped for other numbers: which ones cannot be told")
    found = guarded(torch.autograd.grad, used, list(leaves.values()), upstream)
    roundoffs = judge.roundoffs_for(subject, inputs.query.dtype)
    allowed = core_gradient_bounds(inputs, result, upstream, roundoffs)
    judge_layer_gradients(
        dict(zip(INPUTS, found, strict=True)),
        gradients_of(output, exact, upstream),
        {name: bound * wider for name, bound in allowed.items()},
        what="with dropout the gradient of the {} is that of other weights than the output's",
    )


@check("dropout.gradient", Recipe({**SMALL, "lengths": ((6, 6),), "dtype": ("float64",)}), on="layer")
def check_dropout_gradient(subject, case):
    """The gradient is that of the very weights that were used, on the way to queries and keys too."""
    case = fit_one_hot(CoreView(subject), case)
    rate = RATES[0]
    _, dropped = weights_of(CoreView(subject), case, rate=rate, seed=case.seed)
    inputs = subject.layer_inputs(case)
    upstream = upstream_of(case, case.batch, case.q_len, case.d_model)
    output, expected = _dropped(inputs, upstream, (dropped != 0).double() / (1 - rate))
    _, allowed = layer_expected(subject, inputs, upstream)
    # The constructor draws numbers as well, here as where the weights were read.
    torch.manual_seed(case.seed)
    layer = subject.build(inputs.weights, dropout=rate)
    layer.module.train()
    wider = WIDER / (1 - rate)
    outcome, found = layer.gradients(inputs, upstream)
    near = layer_bound(inputs, oracle.layer(inputs), judge.roundoffs_for(subject, inputs.query.dtype))
    if bool(((outcome.output.double() - output).abs() > near * wider).any()):
        raise NotApplicable("other weights are dropped for other numbers: which ones cannot be told")
    judge_layer_gradients(
        found,
        expected,
        {name: bound * wider for name, bound in allowed.items()},
        what="with dropout the gradient of {} is that of other weights than the output's",
    )


def _dropped(inputs, upstream, factor):
    """Return the exact output and gradients of a layer whose weights are multiplied by `factor`."""
    wide, leaves = layer_leaves(inputs)
    core_inputs, _ = oracle.project(wide)
    value = core_inputs.value.repeat_interleave(core_inputs.sizes["group"], 1)
    mixed = (oracle.core(core_inputs).weights * factor) @ value
    output = mixed.transpose(1, 2).flatten(2) @ wide.weights.W_o.mT
    output = output if wide.weights.b_o is None else output + wide.weights.b_o
    return output.detach(), gradients_of(output, leaves, upstream)
