"""Chapter bias: a float added to the scaled scores, before the mask."""

import torch

from ... import oracle
from .. import judge
from ..check import check
from ..failures import NotApplicable
from ..judge_gradient import judge_gradients
from ..recipes import BIAS_AXES, Recipe
from ..tensors import ALIVE

WITH = {"bias": BIAS_AXES}


@check(
    "bias.value",
    Recipe({**WITH, "lengths": ((5, 7), (4, 4), (1, 6), (17, 33), (6, 1)), "values": ("normal", "scaled")}),
)
def check_value(subject, case):
    judge.judge_core(subject, case.core_inputs(), what="an output with a bias differs from the exact result")


@check("bias.value", Recipe({"values": ("normal",), "mask": (None, "random")}))
def check_zeros(subject, case):
    """A bias of zeros changes nothing; -0.0 is one, and no hidden key."""
    inputs = case.core_inputs()
    bias = torch.zeros(1, case.heads, case.q_len, case.kv_len, dtype=case.torch_dtype)
    bias[..., ::2] = -0.0
    judge.judge_core(subject, inputs.replace(bias=bias), what="a bias of zeros changes the output")


@check(
    "bias.unscaled",
    Recipe({**WITH, "scale": (None, 0.25, 3.0, -0.5, 0.0), "widths": ((16, 5), (5, 3), (9, 9))}),
)
def check_unscaled(subject, case):
    judge.judge_core(subject, case.core_inputs(), what="the bias is scaled together with the scores")


@check(
    "bias.with_mask",
    Recipe({**WITH, "mask": ALIVE, "causal": (False, True), "mask_axes": ("bhqk", "qk", "bk", "hqk")}),
)
def check_with_mask(subject, case):
    judge.judge_core(subject, case.core_inputs(), what="a bias together with a mask gives a wrong output")


@check(
    "bias.gradient",
    Recipe(
        {
            "bias": ("hqk", "bhqk", "qk", "h", "bqk", "bk"),
            "batch": (2, 3),
            "dtype": ("float32",),
            "causal": (False, True),
            "lengths": ((3, 4), (4, 4), (1, 2)),
        }
    ),
)
def check_gradient(subject, case):
    inputs = case.core_inputs()
    if not bool(oracle.core(inputs).visible.any(-1).all()):
        raise NotApplicable("a row sees nothing")
    upstream = torch.randn(
        case.batch, case.heads, case.q_len, case.d_v, generator=case.generator(8), dtype=torch.float64
    )
    upstream = upstream.to(case.torch_dtype)
    _, found = subject.gradients(inputs, upstream, wrt=("bias",))
    judge_gradients(subject, inputs, upstream, found)


@check("bias.infinite", Recipe({"bias": ("qk", "hqk"), "lengths": ((4, 4), (3, 5)), "causal": (False,)}))
def check_infinite(subject, case):
    """A bias of -inf hides a key as the mask does, a whole row of it gives zeros."""
    inputs = case.core_inputs()
    bias = inputs.bias.clone()
    bias[..., 0, :] = float("-inf")
    bias[..., 1:, 0] = float("-inf")
    judge.judge_core(subject, inputs.replace(bias=bias), what="a bias of -inf does not hide a key")
