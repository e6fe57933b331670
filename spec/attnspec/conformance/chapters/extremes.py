"""Chapter value, at the ends of what a dtype holds: extreme logits, other magnitudes, NaN."""

import math

import torch

from ... import oracle
from .. import judge
from ..check import check
from ..failures import Violation
from ..recipes import Recipe


def _steep(case, *, level, spread):
    """Return inputs whose logits are `level` plus a small spread: exact sums, extreme size."""
    inputs = case.core_inputs()
    query = torch.zeros_like(inputs.query)
    key = torch.zeros_like(inputs.key)
    query[..., 0] = 32.0
    steps = torch.randint(0, spread, key.shape[:3], generator=case.generator(9))
    key[..., 0] = (level + steps).to(key.dtype) / 32.0
    # Values that are nearly alike: a row that loses its mass shows, rounding of such logits does not.
    return inputs.replace(query=query, key=key, value=3.0 + inputs.value.clamp(-3, 3) / 64.0)


EXTREME = {"lengths": ((3, 4), (2, 2), (5, 40), (1, 3), (2, 300), (3, 600)), "causal": (False, True),
           "mask": (None, "random", "left_padding")}  # fmt: skip


@check("value.large_logits", Recipe(EXTREME))
def check_large_logits(subject, case):
    judge.judge_core(subject, _steep(case, level=16384, spread=4), what="large logits: the softmax overflows")


@check("value.low_logits", Recipe(EXTREME))
def check_low_logits(subject, case):
    for level in (-16384, -1048576) if case.dtype != "float16" else (-16384,):  # what float16 can hold
        judge.judge_core(
            subject, _steep(case, level=level, spread=4), what="logits that are all very low: a row is lost"
        )


@check("value.wide_range", Recipe(EXTREME))
def check_wide_range(subject, case):
    judge.judge_core(
        subject,
        _steep(case, level=-4096, spread=8192),
        what="logits far apart: the softmax loses the largest",
    )


@check(
    "value.wide_range",
    Recipe(
        {
            "lengths": ((3, 150), (2, 300), (70, 140), (4, 9)),
            "causal": (False, True),
            "mask": (None, "random"),
            "values": ("normal",),
            "dtype": ("float32",),
        }
    ),
    effort=0.6,
)
def check_small_weights(subject, case):
    """Keys of small weight hold values as large: left out as negligible, they take half of the sum along."""
    inputs = case.core_inputs()
    drop = (9, 13, 17, 25)[case.seed % 4]
    late = (torch.arange(case.kv_len) >= case.kv_len // 2)[:, None]
    query, key = torch.zeros_like(inputs.query), torch.zeros_like(inputs.key)
    query[..., 0] = 16.0
    key[..., 0] = torch.where(late[:, 0], -drop * case.d_k**0.5 / 16.0, 0.0)
    value = inputs.value * torch.where(late, math.exp(drop), 1.0)
    judge.judge_core(
        subject, inputs.replace(query=query, key=key, value=value),
        what="keys of small weight are left out, though their values are large",
    )  # fmt: skip


@check("value.nan_visible", Recipe({"lengths": ((3, 4), (2, 5), (1, 1)), "causal": (False, True)}))
def check_nan_visible(subject, case):
    inputs = case.core_inputs()
    if case.kv_len == 0:
        return
    exact = oracle.core(inputs)
    value = inputs.value.clone()
    value[:, :, 0, 0] = float("nan")
    got = subject.run(inputs.replace(value=value)).output
    seen = exact.visible[..., 0] & (exact.weights[..., 0] > 2.0**-20)
    lost = seen & ~got[..., 0].isnan()
    if bool(lost.any()):
        index = (*(int(i) for i in lost.nonzero()[0]), 0)
        raise Violation(
            "a NaN in a value that the query sees does not come out",
            got=float(got[index]),
            expected=float("nan"),
            index=index,
        )


@check(
    "value.magnitude",
    Recipe(
        {
            "lengths": ((3, 4), (4, 4), (2, 40)),
            "values": ("normal",),
            "causal": (False, True),
            "mask": (None, "random"),
            "dtype": ("float32",),
        }
    ),
    effort=0.5,
)
def check_magnitude(subject, case):
    """Powers of two round nothing: a query larger by one and a key smaller by it, or a larger value."""
    inputs = case.core_inputs()
    for power in (24, -24):
        query, key = inputs.query * 2.0**power, inputs.key * 2.0**-power
        judge.judge_core(
            subject, inputs.replace(query=query, key=key),
            what="large queries with small keys, or small with large ones, give a wrong output",
        )  # fmt: skip
        judge.judge_core(
            subject, inputs.replace(value=inputs.value * 2.0**power),
            what=f"values times 2**{power} do not give the output times 2**{power}",
        )  # fmt: skip


@check(
    "value.magnitude",
    Recipe(
        {
            "lengths": ((3, 4), (4, 4), (1, 5)),
            "widths": ((1, 1), (4, 4), (16, 16)),
            "causal": (False, True),
            "dtype": ("float32", "float16", "bfloat16"),
        }
    ),
    effort=0.6,
)
def check_steps(subject, case):
    """Logits beyond ten thousand, and hundreds apart, so that no rounding hides which is the largest."""
    inputs = case.core_inputs()
    root = case.d_k**0.5  # a power of two, as all here: every product is exact
    rank = torch.argsort(torch.rand(inputs.key.shape[:3], generator=case.generator(9)), -1)
    for level in (192, -192):
        query, key = torch.zeros_like(inputs.query), torch.zeros_like(inputs.key)
        query[..., 0] = 64.0
        key[..., 0] = ((level + 8 * rank) * root).to(key.dtype)
        judge.judge_core(
            subject, inputs.replace(query=query, key=key), what="large logits do not single out the largest"
        )
        if subject.space.has("bias"):
            bias = ((level + 8 * rank) * 64).to(key.dtype)[:, :1, None, :]
            judge.judge_core(
                subject,
                inputs.replace(query=torch.zeros_like(query), bias=bias),
                what="a large bias does not single out the largest",
            )


@check(
    "value.nan_scores",
    Recipe({"lengths": ((3, 4), (2, 5), (4, 4)), "causal": (False, True), "mask": (None, "random")}),
    effort=0.6,
)
def check_nan_scores(subject, case):
    """A query of NaN, and a key of NaN that a query sees, make that row NaN."""
    inputs = case.core_inputs()
    seen = oracle.core(inputs).visible
    for name, rows in (("query", torch.ones_like(seen[..., 0])), ("key", seen[..., 0])):
        tensor = getattr(inputs, name).clone()
        tensor[:, :, slice(None) if name == "query" else 0, 0] = float("nan")
        got = subject.run(inputs.replace(**{name: tensor})).output
        lost = rows & seen.any(-1) & ~got[..., 0].isnan()
        if bool(lost.any()):
            index = (*(int(i) for i in lost.nonzero()[0]), 0)
            raise Violation(
                f"a NaN in a {name} that takes part does not come out",
                got=float(got[index]),
                expected=float("nan"),
                index=index,
            )
