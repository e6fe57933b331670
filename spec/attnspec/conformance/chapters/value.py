"""Chapter value: the numbers themselves, and relations that need no reference."""

import torch

from ... import oracle
from .. import judge
from ..bound import core_bound
from ..check import check
from ..failures import NotApplicable
from ..recipes import GENERAL, SCALES, SMALL_WIDTHS, Recipe
from ..tensors import ALIVE, REVEALING

MASKED = {"mask": (None, *ALIVE), "mask_axes": ("bhqk", "qk", "bk", "hqk")}


@check("value.oracle", Recipe(GENERAL), effort=2)
def check_oracle(subject, case):
    judge.judge_core(subject, case.core_inputs())


@check("value.plain", Recipe({"values": REVEALING}))
def check_plain(subject, case):
    judge.judge_core(subject, case.core_inputs())


LAYER = {
    "lengths": ((5, 7), (4, 4), (7, 3), (1, 6), (17, 33), (3, 9), (33, 20)),
    "values": ("normal", "integers", "outlier"),
    **MASKED,
    "causal": (False, True),
}


@check("value.layer", Recipe(LAYER), on="layer", effort=2)
def check_layer(subject, case):
    judge.judge_layer(subject, subject.layer_inputs(case))


@check(
    "value.layer",
    Recipe({"lengths": ((4, 4), (5, 5), (1, 1)), "mask": (None, "random"), "causal": (False, True)}),
    on="layer",
    effort=0.5,
)
def check_layer_same_tensor(subject, case):
    """One tensor handed in for each part means what it means when it is handed in once."""
    if subject.space.sources == ("self",):
        raise NotApplicable("it takes one input")
    fitted = subject.space.fit(case.replace(kv_len=case.q_len))
    if fitted is None:
        raise NotApplicable("its queries and keys cannot have one length")
    inputs = subject.layer_inputs(fitted)
    x = inputs.query
    same = inputs.replace(key=x, value=x if "separate" in subject.space.sources else None)
    judge.judge_layer(subject, same, what="one tensor in each part gives another output than self-attention")


@check("value.layer_plain", Recipe({"values": ("normal", "one_hot")}), on="layer")
def check_layer_plain(subject, case):
    judge.judge_layer(subject, subject.layer_inputs(case))


@check(
    "value.cross_sources",
    Recipe({"sources": ("memory", "separate"), "lengths": ((3, 7), (7, 3), (4, 4))}),
    on="layer",
)
def check_cross_sources(subject, case):
    judge.judge_layer(subject, subject.layer_inputs(case))


@check("value.single_key", Recipe({"lengths": ((3, 1), (1, 1), (5, 1)), "values": REVEALING}))
def check_single_key(subject, case):
    inputs = case.replace(
        kv_len=1, q_len=case.q_len if subject.space.has("cross") else 1, causal=False
    ).core_inputs()
    if subject.space.causal == "always":
        inputs = inputs.replace(causal=True, query=inputs.query[:, :, -1:])
    judge.judge_core(subject, inputs, what="one key alone: the output is not its value")


@check(
    "value.constant", Recipe({**MASKED, "causal": (False, True), "values": ("normal", "offset", "scaled")})
)
def check_constant(subject, case):
    inputs = case.core_inputs()
    inputs = inputs.replace(value=inputs.value[:, :, :1].expand_as(inputs.value).contiguous())
    judge.judge_core(subject, inputs, what="all values alike: the output is not that value")


@check("value.hull", Recipe({**MASKED, "values": ("normal", "outlier", "scaled", "offset"), "scale": SCALES}))
def check_hull(subject, case):
    inputs = case.core_inputs()
    exact, allowed = judge.exact_core(subject, inputs)
    rows = judge.alive_rows(exact)
    got = subject.run(inputs).output.double()
    group = case.heads // case.kv_heads
    value = inputs.value.double().repeat_interleave(group, 1)[:, :, None]
    seen = exact.visible[..., None]
    top = torch.where(seen, value, float("-inf")).amax(3)
    low = torch.where(seen, value, float("inf")).amin(3)
    judge.require_within(
        got.clamp_min(low),
        got,
        allowed,
        what="the output lies below every value that the query sees",
        rows=rows,
    )
    judge.require_within(
        got.clamp_max(top),
        got,
        allowed,
        what="the output lies above every value that the query sees",
        rows=rows,
    )


@check("value.linear", Recipe({**MASKED, "values": ("normal", "integers")}))
def check_linear(subject, case):
    inputs = case.core_inputs()
    doubled = inputs.replace(value=inputs.value * 2)
    once, twice = subject.run(inputs).output.double(), subject.run(doubled).output
    exact, allowed = judge.exact_core(subject, doubled)
    judge.require_within(
        twice,
        once * 2,
        allowed * 2,
        what="twice the values do not give twice the output",
        rows=judge.alive_rows(exact),
    )


@check("value.permute_keys", Recipe({"values": ("normal", "outlier"), "scale": (None, 0.3)}))
def check_permute_keys(subject, case):
    inputs = case.core_inputs()
    order = torch.randperm(case.kv_len, generator=case.generator(9))
    moved = inputs.replace(key=inputs.key[:, :, order], value=inputs.value[:, :, order])
    _, allowed = judge.exact_core(subject, inputs)
    judge.require_within(
        subject.run(moved).output, subject.run(inputs).output.double(), allowed * 2,
        what="keys and values in another order give another output",
    )  # fmt: skip


@check(
    "value.permute_heads",
    Recipe(
        {"heads": ((3, 3), (4, 4), (2, 2), (6, 6)), "values": ("normal", "outlier"), "causal": (False, True)}
    ),
)
def check_permute_heads(subject, case):
    inputs = case.core_inputs()
    order = torch.arange(case.heads).roll(1)
    moved = inputs.replace(
        query=inputs.query[:, order], key=inputs.key[:, order], value=inputs.value[:, order]
    )
    _, allowed = judge.exact_core(subject, inputs)
    judge.require_within(
        subject.run(moved).output, subject.run(inputs).output[:, order].double(), allowed[:, order] * 2,
        what="heads in another order give another output: they influence each other",
    )  # fmt: skip


@check("value.permute_queries", Recipe({"values": ("normal",), "lengths": ((5, 7), (4, 4), (7, 3), (6, 1))}))
def check_permute_queries(subject, case):
    inputs = case.core_inputs()
    order = torch.arange(case.q_len).roll(1)
    _, allowed = judge.exact_core(subject, inputs)
    judge.require_within(
        subject.run(inputs.replace(query=inputs.query[:, :, order])).output,
        subject.run(inputs).output[:, :, order].double(), allowed[:, :, order] * 2,
        what="queries in another order give another output: they influence each other",
    )  # fmt: skip


@check(
    "value.batch_independent",
    Recipe({"batch": (2, 3), **MASKED, "values": ("normal", "scaled"), "causal": (False, True)}),
)
def check_batch_independent(subject, case):
    inputs = case.core_inputs()
    exact, allowed = judge.exact_core(subject, inputs)
    rows = judge.alive_rows(exact)
    together = subject.run(inputs).output
    for b in range(case.batch):
        alone = inputs.map_tensors(
            lambda name, t, b=b: t[b : b + 1] if t.dim() == 4 and t.shape[0] > 1 else t
        )
        judge.require_within(
            subject.run(alone).output, together[b : b + 1].double(), allowed[b : b + 1] * 2,
            what="a sample alone gives another output than in a batch", rows=rows[b : b + 1],
        )  # fmt: skip


@check("value.shift", Recipe({"values": ("normal",), "causal": (False, True)}))
def check_shift(subject, case):
    inputs = case.core_inputs()
    step = torch.randn(
        case.batch, case.kv_heads, 1, case.d_k, generator=case.generator(9), dtype=torch.float64
    )
    moved = inputs.replace(key=(inputs.key.double() + step).to(inputs.key.dtype))
    judge.judge_core(subject, moved, what="a constant added to every score of a row changes the output")


@check("value.uniform", Recipe({**MASKED, "values": ("integers", "normal"), "causal": (False, True)}))
def check_uniform(subject, case):
    inputs = case.core_inputs()
    inputs = inputs.replace(query=torch.zeros_like(inputs.query))
    judge.judge_core(subject, inputs, what="equal scores: the output is not the mean of the visible values")


@check(
    "value.zeros",
    Recipe(
        {
            "lengths": ((3, 4), (4, 4), (2, 7)),
            "values": ("normal",),
            "mask": (None, "random"),
            "causal": (False, True),
        }
    ),
)
def check_zeros(subject, case):
    """A vector of zeros is content like any other: it hides no key and no query."""
    inputs = case.core_inputs()
    for name in ("query", "key", "value"):
        tensor = getattr(inputs, name)
        blank = torch.rand(tensor.shape[:3], generator=case.generator(9)) < 0.5
        blank[..., -1] = True
        changed = inputs.replace(**{name: tensor.masked_fill(blank[..., None], 0.0)})
        judge.judge_core(subject, changed, what=f"a {name} of zeros is taken for padding")


@check("value.roles", Recipe({"widths": SMALL_WIDTHS, "lengths": ((3, 3), (4, 4), (3, 5))}), effort=0.7)
def check_roles(subject, case):
    """Change one of query, key and value; the output must change as the exact one does."""
    inputs = case.core_inputs()
    for name, salt in (("query", 11), ("key", 12), ("value", 13)):
        tensor = getattr(inputs, name)
        other = torch.randn(tensor.shape, generator=case.generator(salt), dtype=torch.float64).to(
            tensor.dtype
        )
        changed = inputs.replace(**{name: other})
        exact = oracle.core(changed)
        allowed = core_bound(changed, exact, judge.roundoffs_for(subject, tensor.dtype))
        judge.require_within(
            subject.run(changed).output,
            exact.output,
            allowed,
            what=f"the output does not follow a change of the {name} alone",
        )


@check(
    "value.roles",
    Recipe(
        {
            "heads": ((3, 3), (2, 2), (4, 2)),
            "lengths": ((4, 4), (5, 5)),
            "widths": ((5, 5), (8, 8)),
            "causal": (False, True),
            "mask": (None, "random"),
            "values": ("normal",),
        }
    ),
    effort=0.7,
)
def check_one_tensor(subject, case):
    """One tensor in two or three parts: code that asks whether they are the same must still be right."""
    inputs = case.core_inputs()
    shared = [{"value": inputs.key}]
    if inputs.query.shape == inputs.key.shape:
        shared += [{"key": inputs.query, "value": inputs.query}, {"key": inputs.query}]
    for change in shared:
        judge.judge_core(
            subject, inputs.replace(**change), what="one tensor in several parts gives a wrong output"
        )
