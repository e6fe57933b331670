"""Chapter layout: memory is nobody's business; strided, sliced and expanded tensors give the same."""

from .. import judge
from ..check import check
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


@check("layout.expanded", Recipe({**BASE, "heads": ((3, 3), (2, 2), (4, 2)), "batch": (2, 3)}))
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
