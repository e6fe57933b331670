"""Chapter causal: a query sees key j iff j <= i + offset, whatever else is given."""

import torch

from ... import oracle
from .. import judge
from ..check import check
from ..failures import Violation
from ..recipes import LENGTHS, MASK_AXES, Recipe
from ..tensors import ALIVE

ON = {"causal": (True,)}
EVERY = ("float32", "bfloat16", "float16", "float64")


@check(
    "causal.value",
    Recipe(
        {
            **ON,
            "lengths": ((4, 4), (5, 5), (1, 1), (17, 17), (33, 33), (65, 65), (130, 130)),
            "values": ("normal", "integers", "outlier"),
        }
    ),
)
def check_value(subject, case):
    judge.judge_core(subject, case.core_inputs(), what="a causal output differs from the exact result")


@check("causal.value", Recipe({**ON, "lengths": ((4, 4), (5, 5), (1, 1), (17, 17))}), on="layer")
def check_layer_value(subject, case):
    judge.judge_layer(
        subject, subject.layer_inputs(case), what="a causal output differs from the exact result"
    )


@check(
    "causal.alignment",
    # 20 and 37: the offset is no multiple of a block.
    Recipe(
        {
            **ON,
            "lengths": ((3, 7), (7, 3), (1, 6), (6, 1), (2, 5), (33, 65), (40, 9), (20, 37)),
            "dtype": EVERY,
        }
    ),
    effort=1.3,
)
def check_alignment(subject, case):
    judge.judge_core(
        subject,
        case.core_inputs(),
        what=f"with different lengths the causal mask is not aligned {case.alignment}",
    )


@check(
    "causal.dead_row",
    Recipe(
        {**ON, "lengths": ((7, 3), (6, 1), (5, 2), (40, 9)), "dtype": EVERY},
        keep=lambda case: case.q_len > case.kv_len and case.alignment == "lower_right",
    ),
)
def check_dead_row(subject, case):
    """With more queries than keys, aligned lower right, the first queries see nothing."""
    got = subject.run(case.core_inputs()).output.detach()[:, :, : case.q_len - case.kv_len]
    if bool((got != 0).any()):
        index = tuple(int(i) for i in (got != 0).nonzero()[0])
        raise Violation(
            "a query before every key does not give zeros",
            got=float(got[index]),
            expected=0.0,
            allowed=0.0,
            index=index,
            wrong=got,
        )


@check(
    "causal.future",
    Recipe(
        {
            **ON,
            "lengths": ((4, 4), (7, 7), (33, 33), (3, 5), (258, 258), (300, 300)),
            "batch": (1, 2),
            "values": ("normal", "scaled"),
            "dtype": EVERY,
        }
    ),
    effort=1.3,
)
def check_future(subject, case):
    """Change everything after one position; nothing up to it may change by a bit."""
    inputs = case.core_inputs()
    before = subject.run(inputs).output
    # 257 is the first position that eight bits of a mantissa do not hold.
    for cut in sorted({1, case.kv_len // 2, min(257, case.kv_len - 1), case.kv_len - 1} - {0}):
        key, value = inputs.key.clone(), inputs.value.clone()
        key[:, :, cut:], value[:, :, cut:] = key[:, :, cut:] * -2 + 1, value[:, :, cut:] * 3 - 1
        after = subject.run(inputs.replace(key=key, value=value)).output
        rows = max(0, min(case.q_len, cut - inputs.offset))
        judge.require_equal(
            after[:, :, :rows], before[:, :, :rows], what="a later position changes an earlier output"
        )


@check(
    "causal.future_gradient",
    Recipe({**ON, "lengths": ((4, 4), (6, 6), (3, 5)), "dtype": ("float32", "float64")}),
)
def check_future_gradient(subject, case):
    inputs = case.core_inputs()
    row = case.q_len // 2
    upstream = torch.zeros(case.batch, case.heads, case.q_len, case.d_v, dtype=case.torch_dtype)
    upstream[:, :, row] = 1.0
    _, found = subject.gradients(inputs, upstream, wrt=("key", "value"))
    for name, gradient in found.items():
        late = gradient[:, :, max(0, row + inputs.offset + 1) :]
        if bool((late != 0).any()):
            raise Violation(
                f"the output at one position has a gradient for a later {name}",
                got=float(late[late != 0][0]),
                expected=0.0,
                allowed=0.0,
            )


@check(
    "causal.first_row", Recipe({**ON, "lengths": ((4, 4), (2, 2), (9, 9)), "values": ("normal", "integers")})
)
def check_first_row(subject, case):
    inputs = case.core_inputs()
    exact, allowed = judge.exact_core(subject, inputs)
    got = subject.run(inputs).output[:, :, :1]
    judge.require_within(
        got, exact.output[:, :, :1], allowed[:, :, :1], what="the first position does not see itself alone"
    )


@check(
    "causal.with_mask",
    Recipe({**ON, "mask": ALIVE, "mask_axes": MASK_AXES, "lengths": LENGTHS, "values": ("normal",)}),
    effort=1.5,
)
def check_with_mask(subject, case):
    judge.judge_core(subject, case.core_inputs(), what="a mask and causal together do not mean both")


@check("causal.with_mask", Recipe({**ON, "mask": ALIVE, "values": ("normal",)}), on="layer")
def check_layer_with_mask(subject, case):
    judge.judge_layer(subject, subject.layer_inputs(case), what="a mask and causal together do not mean both")


@check(
    "causal.equals_mask",
    Recipe({**ON, "lengths": ((4, 4), (3, 5), (5, 3), (17, 17)), "values": ("normal", "scaled")}),
)
def check_equals_mask(subject, case):
    inputs = case.core_inputs()
    exact, allowed = judge.exact_core(subject, inputs)
    as_mask = inputs.replace(causal=False, mask=exact.visible[:1, :1].clone())
    judge.require_within(
        subject.run(inputs).output, subject.run(as_mask).output.double(), allowed * 2,
        what="the causal flag is not the same as the mask that it stands for", rows=judge.alive_rows(exact),
    )  # fmt: skip


@check(
    "causal.off",
    Recipe({"causal": (False,), "lengths": ((4, 4), (1, 3), (3, 5), (2, 2)), "values": ("normal",)}),
)
def check_off(subject, case):
    inputs = case.core_inputs()
    exact = oracle.core(inputs)
    judge.judge_core(subject, inputs, what="without the causal flag a query does not see every key")
    value = inputs.value.clone()
    value[:, :, -1] += 64.0
    moved = subject.run(inputs.replace(value=value)).output
    blind = (moved == subject.run(inputs).output).all(-1) & (exact.weights[..., -1] > 2.0**-10)
    if bool(blind.any()):
        raise Violation(
            "without the causal flag a query does not see the last key", got="no change", expected="a change"
        )
