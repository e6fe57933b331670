"""Chapter grouped heads: query head h reads key/value head h // group."""

import torch

from ... import oracle
from .. import judge
from ..check import check
from ..failures import NotApplicable
from ..judge_gradient import judge_gradients
from ..recipes import Recipe
from ..tensors import ALIVE

GROUPS = ((4, 2), (6, 2), (6, 3), (8, 2), (9, 3))
ANY = ((4, 2), (6, 2), (6, 3), (4, 1), (3, 1), (2, 1))


@check(
    "grouped.order",
    Recipe({"heads": GROUPS, "values": ("normal", "integers"), "lengths": ((3, 4), (1, 1), (2, 5), (4, 4))}),
)
def check_order(subject, case):
    judge.judge_core(subject, case.core_inputs(), what="query heads do not read key/value head h // group")


@check("grouped.order", Recipe({"heads": GROUPS}), on="layer")
def check_layer_order(subject, case):
    judge.judge_layer(
        subject, subject.layer_inputs(case), what="query heads do not read key/value head h // group"
    )


@check(
    "grouped.equals_repeated",
    Recipe(
        {"heads": ANY, "values": ("normal",), "causal": (False, True), "mask": (None, "random", "padding")}
    ),
)
def check_equals_repeated(subject, case):
    inputs = case.core_inputs()
    group = case.heads // case.kv_heads
    exact, allowed = judge.exact_core(subject, inputs)
    repeated = inputs.replace(
        key=inputs.key.repeat_interleave(group, 1), value=inputs.value.repeat_interleave(group, 1)
    )
    judge.require_within(
        subject.run(inputs).output,
        subject.run(repeated).output.double(),
        allowed * 2,
        rows=judge.alive_rows(exact),
        what="grouped heads do not give what repeated key/value heads give",
    )


@check(
    "grouped.single",
    Recipe({"heads": ((4, 1), (3, 1), (2, 1)), "values": ("normal",), "lengths": ((3, 4), (5, 5), (2, 33))}),
)
def check_single(subject, case):
    judge.judge_core(subject, case.core_inputs(), what="with one key/value head for all, the output is wrong")


@check(
    "grouped.combined",
    Recipe(
        {
            "heads": ANY,
            "mask": (None, *ALIVE),
            "mask_axes": ("bhqk", "hqk", "bqk", "bk", "hk"),
            "causal": (False, True),
            "bias": (None, "hqk", "bhqk"),
            "scale": (None, 0.5),
            "widths": ((5, 5), (3, 7), (8, 8)),
            "layout": ("contiguous", "transposed"),
        }
    ),
)
def check_combined(subject, case):
    judge.judge_core(
        subject, case.core_inputs(), what="grouped heads together with other options give a wrong output"
    )


@check(
    "grouped.gradient",
    Recipe(
        {
            "heads": ANY,
            "lengths": ((2, 3), (1, 1), (4, 4), (3, 5)),
            "dtype": ("float32",),
            "causal": (False, True),
            "values": ("normal",),
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
    _, found = subject.gradients(inputs, upstream, wrt=("key", "value"))
    judge_gradients(subject, inputs, upstream, found)
