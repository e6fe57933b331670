"""Options that meet each other, at any length, in any dtype, there and back: what code does for one alone,
it may do otherwise, or forget, beside another."""

import torch

from ... import oracle
from .. import judge
from ..check import check
from ..failures import NotApplicable
from ..judge_gradient import INPUTS, judge_case, judge_gradients, require_alive, upstream_of
from ..recipes import BIAS_AXES, GENERAL, MASK_AXES, SCALES, WINDOWS, Recipe
from ..tensors import ALIVE
from .mask import DEAD, check_dead_gradient, check_dead_row

DTYPES = ("float32", "float16", "bfloat16", "float64")
OPTIONS = {
    # None stands more than once: what an option hides must show without it too.
    "mask": (*(None,) * len(ALIVE), *ALIVE),
    "mask_axes": MASK_AXES,
    "bias": (*(None,) * 5, *BIAS_AXES, "bqk"),
    "causal": (False, True),
    "window": (*(None,) * 5, *WINDOWS),
    "softcap": (None, None, 2.0, 3),
    "scale": (*SCALES, 1),
    "dtype": DTYPES,
    "layout": GENERAL["layout"],
    "values": ("normal", "integers"),
}
# Beyond a block of 64 or 128 in either direction, and of 256 where it is cheap.
LONGER = (
    (70, 70), (65, 130), (130, 65), (1, 200), (200, 3), (3, 129), (129, 129), (300, 40), (5, 300), (66, 270),
)  # fmt: skip
WIDE_WINDOWS = (*(None,) * 5, (70, 0), (40, -1), (-1, 3), (3, 3), (130, 1), (5, 70), (-1, -1))


@check(
    "value.combined",
    Recipe(
        {
            **OPTIONS,
            "lengths": ((5, 7), (4, 4), (7, 3), (1, 9), (9, 9), (2, 33)),
            "heads": ((3, 3), (4, 2), (6, 2), (4, 1), (1, 1)),
            "widths": ((5, 5), (3, 7), (8, 8), (16, 5)),
        }
    ),
    effort=2,
)
def check_short(subject, case):
    judge.judge_core(subject, case.core_inputs(), what="options that meet give a wrong output")


@check(
    "value.combined",
    Recipe(
        {
            **OPTIONS,
            "lengths": ((1, 9), (1, 4), (1, 33), (1, 70)),
            "heads": ((4, 2), (6, 2), (3, 3), (4, 1)),
            "bias": (None, *[axes for axes in BIAS_AXES if "k" in axes]),
        }
    ),
    effort=1.2,
)
def check_decoding(subject, case):
    """One query and many keys: the step of a decoder, which has kernels of its own."""
    judge.judge_core(subject, case.core_inputs(), what="for one query, options that meet give a wrong output")


@check(
    "size.combined",
    Recipe(
        {
            **OPTIONS,
            "lengths": LONGER,
            "window": WIDE_WINDOWS,
            "batch": (1, 2),
            "heads": ((2, 2), (4, 2), (3, 3), (2, 1)),
            "widths": ((5, 5), (64, 64), (96, 96), (128, 128)),
            "values": ("normal", "integers", "outlier", "scaled"),
        }
    ),
    effort=2.2,
)
def check_long(subject, case):
    judge.judge_core(
        subject, case.core_inputs(), what="beyond one block, options that meet give a wrong output"
    )


@check(
    "size.combined",
    Recipe(
        {
            **OPTIONS,
            "lengths": ((70, 70), (130, 130), (65, 130), (200, 3), (3, 129)),
            "window": WIDE_WINDOWS,
            "batch": (1, 2),
            "widths": ((4, 4), (3, 3)),
        }
    ),
    on="layer",
)
def check_layer_long(subject, case):
    """The same for a layer whose core cannot be called alone at such lengths."""
    if "separate" in subject.space.sources:
        raise NotApplicable("its core is called at such lengths")
    inputs = subject.layer_inputs(case)
    judge.judge_layer(subject, inputs, what="beyond one block, options that meet give a wrong output")


BACK = {
    **OPTIONS,
    "lengths": ((70, 70), (65, 100), (100, 65), (1, 130), (130, 3), (33, 66)),
    "window": WIDE_WINDOWS,
    "batch": (1, 2),
    "heads": ((2, 2), (4, 2), (3, 3), (2, 1)),
    "widths": ((5, 5), (64, 64), (70, 3), (65, 130)),
    "dtype": ("float32", "float64"),
}


@check("gradient.combined", Recipe(BACK), effort=1.2)
def check_gradients(subject, case):
    """On the way back, beyond one block."""
    judge_case(subject, case)


# Over more queries torch's own CPU kernel stores what 32 of them add to a gradient in the half dtype, and
# the bound knows of one rounding there.
HALF_BACK = {
    **BACK,
    "lengths": ((5, 70), (20, 130), (32, 66), (1, 130), (32, 32), (20, 20)),
    "dtype": ("float16", "bfloat16"),
}


@check("gradient.combined", Recipe(HALF_BACK, keep=lambda case: case.q_len <= 32), effort=0.8)
def check_half_gradients(subject, case):
    """The same in half precision, over many keys."""
    check_gradients(subject, case)


DEAD_ANYWHERE = {
    **DEAD,
    "causal": (False, True),
    "bias": (None, "hqk", "bk"),
    "window": (None, (2, 0), (70, 0)),
    "softcap": (None, 2.0),
    "dtype": ("float32", "float16", "bfloat16"),
    "heads": ((3, 3), (4, 2), (2, 1)),
    "values": ("normal",),
}


@check(
    "mask.dead_row.zero",
    Recipe({**DEAD_ANYWHERE, "lengths": ((1, 4), (4, 4), (70, 70), (5, 300), (130, 66), (200, 3), (1, 70))}),
    effort=1.2,
)
def check_dead(subject, case):
    """Beyond one block, for one query alone, and beside every other option."""
    check_dead_row(subject, case)


@check(
    "mask.dead_row.gradient",
    Recipe({**DEAD_ANYWHERE, "lengths": ((4, 4), (70, 70), (5, 130), (130, 66), (1, 4)), "batch": (1, 2)}),
    effort=0.8,
)
def check_dead_back(subject, case):
    """On the way back too."""
    check_dead_gradient(subject, case)


INFINITE = {
    "bias": ("qk", "hqk", "bhqk", "bk"),
    "lengths": ((4, 4), (3, 5), (1, 4), (66, 70)),
    "causal": (False, True),
    "mask": (None, "random"),
    "mask_axes": ("bhqk", "qk", "bk"),
    "heads": ((3, 3), (4, 2), (2, 1)),
    "dtype": ("float32", "float16", "bfloat16", "float64"),
}


def _hiding(case):
    """Return inputs whose bias hides keys of each row, and in the first all of them or all that are left."""
    inputs = case.core_inputs()
    bias = inputs.bias.clone()
    hidden = torch.rand(bias.shape, generator=case.generator(9)) < 0.4
    if bias.shape[-2] > 1:
        hidden[..., 0, :] = True
        if inputs.mask is not None and case.seed % 2:
            hidden[..., 0, :] = _shown(inputs.mask, bias)
    return inputs.replace(bias=bias.masked_fill(hidden, float("-inf")))


def _shown(mask, bias):
    """Return which keys the mask shows to the first query of any sample or head that shares its bias."""
    shown = (mask if mask.dim() == 4 else mask[None, None])[..., 0, :]
    for axis in (0, 1):
        if bias.shape[axis] == 1:
            shown = shown.any(axis, keepdim=True)
    return shown


@check("bias.infinite", Recipe(INFINITE), effort=0.8)
def check_infinite(subject, case):
    """A bias of -inf hides keys beside a mask, in every dtype; what both hide together gives zeros."""
    judge.judge_core(subject, _hiding(case), what="a bias of -inf does not hide a key")


@check("bias.infinite", Recipe({**INFINITE, "dtype": ("float32", "bfloat16")}), effort=0.5)
def check_infinite_back(subject, case):
    """Nothing of what -inf hides comes back as NaN."""
    inputs = _hiding(case)
    require_alive(oracle.core(inputs.replace(bias=None)).visible)
    upstream = upstream_of(case, case.batch, case.heads, case.q_len, case.d_v)
    _, found = subject.gradients(inputs, upstream, wrt=INPUTS)
    judge_gradients(subject, inputs, upstream, found)
