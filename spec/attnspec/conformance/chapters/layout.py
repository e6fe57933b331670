"""Chapter layout: memory is nobody's business; strided, sliced and expanded tensors give the same."""

from itertools import permutations

import torch

from .. import judge
from ..check import check
from ..failures import NotApplicable
from ..judge_gradient import INPUTS
from ..recipes import Recipe

BASE = {
    "lengths": ((3, 4), (4, 4), (17, 33), (1, 6), (33, 31)),
    "causal": (False, True),
    "mask": (None, "random"),
}


@check("layout.transposed", Recipe({**BASE, "layout": ("transposed", "last_two")}))
def check_transposed(subject, case):
    judge.judge_core(
        subject, case.core_inputs(), what="tensors with axes in another order in memory give a wrong output"
    )


@check("layout.sliced", Recipe({**BASE, "layout": ("sliced", "every_other")}))
def check_sliced(subject, case):
    judge.judge_core(
        subject, case.core_inputs(), what="tensors sliced from a wider buffer give a wrong output"
    )


@check(
    "layout.expanded",
    Recipe(
        {**BASE, "lengths": (*BASE["lengths"], (5, 70)), "heads": ((3, 3), (2, 2), (4, 2)), "batch": (2, 3)}
    ),
)
def check_expanded(subject, case):
    """One head's or one sample's tensor, expanded with stride 0."""
    inputs = case.core_inputs()
    heads = inputs.replace(
        key=inputs.key[:, :1].expand_as(inputs.key), value=inputs.value[:, :1].expand_as(inputs.value)
    )
    judge.judge_core(subject, heads, what="a key and value expanded over heads give a wrong output")
    batch = inputs.map_tensors(lambda n, t: t[:1].expand_as(t) if n in ("query", "key", "value") else t)
    judge.judge_core(subject, batch, what="tensors expanded over the batch give a wrong output")


@check(
    "layout.mask",
    Recipe(
        {
            "lengths": ((3, 4), (4, 4), (5, 33)),
            "mask": ("random", "padding", "sparse", "corners"),
            "mask_axes": ("bhqk", "bqk", "qk"),
            "causal": (False, True),
        }
    ),
)
def check_mask(subject, case):
    """A mask that is expanded, or transposed in memory."""
    inputs = case.core_inputs()
    mask = inputs.mask
    turned = mask.transpose(-1, -2).contiguous().transpose(-1, -2)
    judge.judge_core(
        subject, inputs.replace(mask=turned), what="a mask that is transposed in memory gives a wrong output"
    )
    if mask.dim() == 4 and "h" in subject.space.mask_axes:
        wide = mask.expand(case.batch, case.heads, case.q_len, case.kv_len)
        judge.judge_core(
            subject, inputs.replace(mask=wide), what="a mask expanded with stride 0 gives a wrong output"
        )


@check(
    "layout.mask", Recipe({**BASE, "mask": ("random", "padding"), "mask_axes": ("bhqk", "bqk", "qk", "k")})
)
def check_sliced_mask(subject, case):
    """A mask that is cut out of a larger one, as a causal buffer is."""
    inputs = case.core_inputs()
    wider = inputs.mask.new_ones(
        *inputs.mask.shape[:-2], inputs.mask.shape[-2] + 2, inputs.mask.shape[-1] + 3
    )
    cut = wider[..., 1:-1, 2:-1]
    cut.copy_(inputs.mask)
    judge.judge_core(
        subject, inputs.replace(mask=cut), what="a mask cut out of a larger one gives a wrong output"
    )


@check("layout.bias", Recipe({**BASE, "bias": ("hqk", "bhqk", "qk")}))
def check_bias(subject, case):
    """A bias that is transposed in memory, cut out of a larger one, or expanded."""
    inputs = case.core_inputs()
    bias = inputs.bias
    turned = bias.transpose(-1, -2).contiguous().transpose(-1, -2)
    wider = bias.new_zeros(*bias.shape[:-2], bias.shape[-2] + 2, bias.shape[-1] + 3)
    cut = wider[..., 1:-1, 2:-1]
    cut.copy_(bias)
    expanded = bias.expand(case.batch, case.heads, -1, -1)
    for what, same in (("transposed", turned), ("cut out of a larger one", cut), ("expanded", expanded)):
        judge.judge_core(
            subject, inputs.replace(bias=same), what=f"a bias that is {what} in memory gives a wrong output"
        )


@check("layout.mixed", Recipe({**BASE, "heads": ((3, 3), (2, 2))}))
def check_one_buffer(subject, case):
    """Query, key and value are slices of one buffer, in any order."""
    length = max(case.q_len, case.kv_len)
    fitted = subject.space.fit(case.replace(q_len=length, kv_len=length, d_v=case.d_k))
    if fitted is None:
        raise NotApplicable("query, key and value cannot have one shape")
    inputs = fitted.core_inputs()
    # batch seq 3 heads d, as packed projections give it; 3 batch heads seq d; batch heads 3 seq d
    turned, axis = ((True, 2), (False, 0), (False, 2))[case.seed % 3]
    tensors = {n: getattr(inputs, n).transpose(1, 2) if turned else getattr(inputs, n) for n in INPUTS}
    for order in permutations(INPUTS):
        buffer = torch.stack([tensors[name] for name in order], dim=axis)
        parts = [part.transpose(1, 2) if turned else part for part in buffer.unbind(axis)]
        slices = dict(zip(order, parts, strict=True))
        judge.judge_core(subject, inputs.replace(**slices), what="slices of one buffer are taken for others")


@check("layout.mixed", Recipe(BASE))
def check_mixed(subject, case):
    """Query, key and value each in another layout."""
    inputs = case.core_inputs()
    query = case.replace(layout="transposed").core_inputs().query
    value = case.replace(layout="sliced").core_inputs().value
    judge.judge_core(
        subject,
        inputs.replace(query=query, value=value),
        what="tensors in different layouts give a wrong output",
    )


@check(
    "layout.strided_inputs",
    Recipe(
        {
            "lengths": ((3, 4), (4, 4)),
            "layout": ("transposed", "sliced", "every_other", "last_two"),
            "causal": (False, True),
        }
    ),
    on="layer",
)
def check_layer_strided(subject, case):
    judge.judge_layer(subject, subject.layer_inputs(case), what="strided inputs give a wrong output")
