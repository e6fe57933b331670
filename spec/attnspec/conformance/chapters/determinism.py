"""Chapter determinism: the same call gives the same bits, and draws no random number without dropout."""

import torch

from .. import judge
from ..check import check
from ..core_view import CoreView
from ..failures import Violation
from ..recipes import Recipe

OPTIONS = {
    "lengths": ((3, 4), (4, 4), (33, 65)),
    "mask": (None, "random", "dead"),
    "causal": (False, True),
    "dtype": ("float32", "bfloat16"),
}


@check("determinism.repeat", Recipe(OPTIONS))
def check_repeat(subject, case):
    inputs = case.core_inputs()
    first = subject.run(inputs).output
    # Freed memory is filled with NaN, so that reading what was never written shows.
    poison = [torch.full((size,), float("nan")) for size in (64, 512, 4096)]
    del poison
    for seed in (0, 1):
        torch.manual_seed(seed)
        judge.require_equal(subject.run(inputs).output, first, what="two equal calls give different outputs")


@check("determinism.repeat", Recipe({"causal": (False, True), "mask": (None, "random")}), on="layer")
def check_layer_repeat(subject, case):
    inputs = subject.layer_inputs(case)
    layer = subject.build(inputs.weights)
    first = layer.run(inputs).output
    torch.manual_seed(case.seed)
    judge.require_equal(
        layer.run(inputs).output, first, what="two equal calls of a module give different outputs"
    )


@check(
    "determinism.gradient",
    Recipe({"causal": (False, True), "mask": (None, "random"), "lengths": ((4, 4), (5, 7))}),
)
def check_gradient(subject, case):
    inputs = case.core_inputs()
    upstream = torch.ones(case.batch, case.heads, case.q_len, case.d_v, dtype=case.torch_dtype)
    names = ("query", "key", "value")
    _, first = subject.gradients(inputs, upstream, wrt=names)
    _, second = subject.gradients(inputs, upstream, wrt=names)
    for name in names:
        judge.require_equal(
            second[name], first[name], what=f"two equal calls give different gradients of the {name}"
        )


@check("determinism.no_random", Recipe({"causal": (False, True), "mask": (None, "random")}))
def check_no_random(subject, case):
    inputs = case.core_inputs()
    # A first call may set things up; what counts is what every call does.
    subject.run(inputs)
    torch.manual_seed(3)
    if isinstance(subject, CoreView):
        _layer_draws_nothing(subject, inputs)
        return
    before = torch.get_rng_state()
    subject.run(inputs)
    if not torch.equal(torch.get_rng_state(), before):
        raise Violation(
            "without dropout the call draws random numbers", got="another random state", expected="as it was"
        )


def _layer_draws_nothing(view, inputs):
    embedded, _ = view._embed(inputs)
    layer = view.layer.build(embedded.weights)
    for train in (False, True):
        layer.module.train(train)
        before = torch.get_rng_state()
        layer.run(embedded)
        if not torch.equal(torch.get_rng_state(), before):
            mode = "train" if train else "eval"
            raise Violation(
                f"without dropout the call draws random numbers in {mode} mode",
                got="another random state",
                expected="as it was",
            )
