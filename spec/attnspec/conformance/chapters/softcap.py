"""Chapter softcap: the scaled scores bent into (-c, c), before bias and mask."""

from .. import judge
from ..check import check
from ..recipes import Recipe
from ..tensors import ALIVE

CAPS = {"softcap": (0.7, 2.0, 5.0, 30.0), "values": ("normal", "scaled", "outlier")}


@check("softcap.value", Recipe({**CAPS, "scale": (None, 1.0, -0.5)}))
def check_value(subject, case):
    judge.judge_core(
        subject, case.core_inputs(), what="an output with a softcap differs from the exact result"
    )


@check(
    "softcap.before_mask",
    Recipe({**CAPS, "mask": (*ALIVE, "dead"), "causal": (False, True), "mask_axes": ("bhqk", "qk", "bk")}),
)
def check_before_mask(subject, case):
    judge.judge_core(subject, case.core_inputs(), what="the softcap is applied after the mask")


@check("softcap.before_bias", Recipe({**CAPS, "bias": ("hqk", "bhqk", "qk")}))
def check_before_bias(subject, case):
    judge.judge_core(subject, case.core_inputs(), what="the softcap is applied after the bias")
