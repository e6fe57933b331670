"""Chapter window: inclusive distances (left, right), aligned like causal."""

import torch

from .. import judge
from ..check import check
from ..failures import Violation
from ..judge_gradient import judge_case
from ..recipes import WINDOWS, Recipe
from ..tensors import ALIVE

# Wider than any row, the last beyond 32 bits.
WIDE = ((50, 1), (1, 130), (2**33, 0), (-1, -1))
LENGTHS = ((6, 6), (9, 9), (4, 7), (7, 4), (1, 6), (33, 33), (40, 70))


@check(
    "window.value",
    Recipe({"window": (*WINDOWS, *WIDE), "lengths": LENGTHS, "values": ("normal", "integers")}),
    effort=1.3,
)
def check_value(subject, case):
    judge.judge_core(subject, case.core_inputs(), what="a windowed output differs from the exact result")


@check(
    "window.value",
    Recipe(
        {
            "window": ((2, 0), (-1, 2), (1, 1), (3, -1), (300, 0), (0, 0)),
            "lengths": ((3, 300), (5, 270), (280, 280), (2, 2100), (600, 600)),
            "dtype": ("float16", "bfloat16", "float32", "float64"),
            "batch": (1,),
            "heads": ((2, 2), (1, 1)),
            "causal": (False, True),
            "values": ("normal",),
        }
    ),
    effort=0.7,
)
def check_far(subject, case):
    """Positions beyond 256 and 2,048, where half precision stops to count."""
    judge.judge_core(subject, case.core_inputs(), what="a window far from the first key keeps wrong keys")


@check(
    "window.gradient",
    Recipe(
        {
            "window": ((3, 0), (2, 2), (0, 0), (40, -1), (5, 70), (66, 1)),
            "lengths": ((70, 70), (130, 130), (6, 6), (4, 70), (66, 130)),
            "batch": (1, 2),
            "heads": ((2, 2), (4, 2), (1, 1)),
            "dtype": ("float32", "float64"),
            "causal": (False, True),
            "values": ("normal",),
        }
    ),
    effort=1.2,
)
def check_gradient(subject, case):
    """On the way back the window is the same, beyond one block too."""
    judge_case(subject, case)


@check(
    "window.count",
    Recipe(
        {
            "window": ((0, 0), (1, 0), (2, 0), (3, 0)),
            "lengths": ((6, 6), (9, 9), (5, 5)),
            "causal": (False, True),
        }
    ),
)
def check_count(subject, case):
    """Under causal, left = w keeps w + 1 keys: with equal scores the output is their mean."""
    inputs = case.core_inputs()
    inputs = inputs.replace(query=torch.zeros_like(inputs.query))
    judge.judge_core(subject, inputs, what="the window keeps a wrong number of keys")


@check("window.with_causal", Recipe({"window": WINDOWS, "causal": (True,), "lengths": LENGTHS}))
def check_with_causal(subject, case):
    judge.judge_core(subject, case.core_inputs(), what="a window and causal together do not mean both")


@check(
    "window.with_mask",
    Recipe({"window": WINDOWS, "mask": (*ALIVE, "dead"), "causal": (False, True), "lengths": LENGTHS}),
)
def check_with_mask(subject, case):
    judge.judge_core(subject, case.core_inputs(), what="a window and a mask together do not mean both")


@check(
    "window.outside",
    Recipe(
        {"window": ((1, 1), (2, 0), (0, 2)), "lengths": ((6, 6), (9, 9), (33, 33)), "values": ("normal",)}
    ),
)
def check_outside(subject, case):
    """What lies outside the window of one query does not reach it by a bit."""
    inputs = case.core_inputs()
    left, right = inputs.extent
    row = case.q_len // 2
    here = row + inputs.offset
    outside = torch.ones(case.kv_len, dtype=torch.bool)
    outside[max(0, here - left if left >= 0 else 0) : here + right + 1 if right >= 0 else case.kv_len] = False
    change = outside[:, None]
    moved = inputs.replace(
        key=torch.where(change, inputs.key * -2 + 1, inputs.key),
        value=torch.where(change, inputs.value * 5 + 1, inputs.value),
    )
    before, after = subject.run(inputs).output[:, :, row], subject.run(moved).output[:, :, row]
    if not torch.equal(before, after):
        raise Violation("a key outside the window reaches the output", got="a change", expected="no change")


@check(
    "window.combined",
    Recipe(
        {
            "window": WINDOWS,
            "softcap": (None, 2.0),
            "bias": (None, "hqk", "qk"),
            "scale": (None, 0.5),
            "mask": (None, "random"),
            "heads": ((3, 3), (4, 2), (6, 2), (4, 1)),
            "layout": ("contiguous", "transposed"),
            "causal": (False, True),
            "lengths": ((6, 6), (4, 7), (9, 9)),
            "dtype": ("float32", "bfloat16", "float64"),
        }
    ),
)
def check_combined(subject, case):
    judge.judge_core(
        subject, case.core_inputs(), what="a window together with other options gives a wrong output"
    )
