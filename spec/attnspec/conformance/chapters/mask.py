"""Chapter mask: True = may attend; what is forbidden does not matter; a row that sees nothing is zero."""

import math

import torch

from ... import oracle
from .. import judge
from ..check import check
from ..core_view import CoreView
from ..failures import NotApplicable, Violation
from ..recipes import LENGTHS, MASK_AXES, Recipe
from ..tensors import ALIVE

ANY_MASK = {"mask": ALIVE, "mask_axes": MASK_AXES, "causal": (False, True)}


@check(
    "mask.value",
    Recipe({**ANY_MASK, "lengths": LENGTHS, "values": ("normal", "integers", "outlier")}),
    effort=1.5,
)
def check_value(subject, case):
    judge.judge_core(subject, case.core_inputs(), what="a masked output differs from the exact result")


@check("mask.value", Recipe({**ANY_MASK, "values": ("normal", "integers")}), on="layer")
def check_layer_value(subject, case):
    judge.judge_layer(
        subject, subject.layer_inputs(case), what="a masked output differs from the exact result"
    )


@check(
    "mask.polarity",
    Recipe(
        {
            "mask": ("random", "single", "padding"),
            "mask_axes": ("bhqk", "bqk", "qk", "bk", "k"),
            "lengths": ((4, 4), (5, 7), (2, 3)),
            "values": ("normal",),
        }
    ),
)
def check_polarity(subject, case):
    """Show a key to nobody: its value must not reach the output; a key shown alone must be the output."""
    inputs = case.core_inputs()
    exact = oracle.core(inputs)
    judge.judge_core(subject, inputs, what="the mask is not read as True = may attend")
    hidden = ~exact.visible.any(2)
    if not bool(hidden.any()):
        return
    group = case.heads // case.kv_heads
    shared = hidden.view(case.batch, case.kv_heads, group, case.kv_len).all(2)
    value = torch.where(shared[..., None], inputs.value + 100.0, inputs.value)
    judge.judge_core(
        subject, inputs.replace(value=value), what="a value that the mask hides reaches the output"
    )


@check("mask.broadcast", Recipe({"mask": ("random", "sparse"), "mask_axes": MASK_AXES, "values": ("normal",),
                                 "batch": (2, 3), "causal": (False, True)}))  # fmt: skip
def check_broadcast(subject, case):
    inputs = case.core_inputs()
    exact, allowed = judge.exact_core(subject, inputs)
    got = subject.run(inputs).output
    what = "a mask that is broadcast is not read as if it were expanded"
    judge.require_within(got, exact.output, allowed, what=what, rows=judge.alive_rows(exact))


@check(
    "mask.rank_two",
    Recipe(
        {
            "mask": ("random", "sparse"),
            "mask_axes": ("qk",),
            "values": ("normal",),
            "batch": (2, 3),
            "lengths": ((4, 4), (3, 5), (5, 5), (1, 6)),
            "causal": (False, True),
        }
    ),
)
def check_rank_two(subject, case):
    """A matrix of queries and keys, without axes for samples and heads."""
    if 2 not in subject.space.mask_ranks or not {"q", "k"} <= set(subject.space.mask_axes):
        raise NotApplicable("it takes no mask of rank 2")
    inputs = case.replace(mask_rank=2).core_inputs()
    judge.judge_core(
        subject, inputs, what="a mask of rank 2 is not read as `q_len kv_len` for all samples and heads"
    )


@check("mask.all_true", Recipe({"mask": ("all",), "mask_axes": MASK_AXES, "causal": (False, True)}))
def check_all_true(subject, case):
    inputs = case.core_inputs()
    exact, allowed = judge.exact_core(subject, inputs)
    without = subject.run(inputs.replace(mask=None)).output.double()
    judge.require_within(
        subject.run(inputs).output,
        without,
        allowed * 2,
        what="a mask that allows everything changes the output",
        rows=judge.alive_rows(exact),
    )


@check(
    "mask.slice",
    Recipe({"lengths": ((4, 6), (3, 7), (5, 5), (2, 33)), "values": ("normal", "offset", "scaled")}),
)
def check_slice(subject, case):
    """Hiding the last keys from everybody is the same as not having them."""
    if case.kv_len < 2:
        raise NotApplicable("one key cannot be cut")
    inputs = case.core_inputs()
    kept = max(1, case.kv_len // 2)
    mask = (torch.arange(case.kv_len) < kept).expand(
        case.batch, case.heads if "h" in subject.space.mask_axes else 1, 1, case.kv_len
    )
    sliced = inputs.replace(key=inputs.key[:, :, :kept], value=inputs.value[:, :, :kept], mask=None)
    _, allowed = judge.exact_core(subject, sliced)
    judge.require_within(
        subject.run(inputs.replace(mask=mask)).output, subject.run(sliced).output.double(), allowed * 2,
        what="masking keys away is not the same as leaving them out",
    )  # fmt: skip


def _forbidden(case, exact):
    """Return where no query of a key/value head may look: `batch kv_heads kv_len 1`."""
    group = case.heads // case.kv_heads
    seen = exact.visible.view(case.batch, case.kv_heads, group, case.q_len, case.kv_len)
    return ~seen.any(2).any(2)[..., None]


HIDING = {
    "mask": ("padding", "left_padding", "single", "last_key"),
    "mask_axes": ("bk", "bqk", "bhqk", "k", "qk"),
    "lengths": ((4, 4), (2, 7), (3, 33), (1, 6)),
    "causal": (False, True),
}


@check("mask.irrelevant.finite", Recipe({**HIDING, "values": ("normal", "scaled")}))
def check_irrelevant(subject, case):
    inputs = case.core_inputs()
    exact = oracle.core(inputs)
    hidden, rows = _forbidden(case, exact), judge.alive_rows(exact)
    before = subject.run(inputs).output
    for factor in (-3.0, 50.0):
        key = torch.where(hidden, inputs.key * factor + 1.0, inputs.key)
        value = torch.where(hidden, inputs.value * factor + 1.0, inputs.value)
        after = subject.run(inputs.replace(key=key, value=value)).output
        judge.require_equal(
            after, before, what="a key or value that the mask forbids changes the output", rows=rows
        )


@check("mask.irrelevant.nonfinite", Recipe({**HIDING, "values": ("normal",)}))
def check_irrelevant_nonfinite(subject, case):
    if case.extra or subject.space.embedded or isinstance(subject, CoreView):
        raise NotApplicable("a NaN cannot pass a projection alone")
    inputs = case.core_inputs()
    exact = oracle.core(inputs)
    hidden, rows = _forbidden(case, exact), judge.alive_rows(exact)
    before = subject.run(inputs).output
    for bad in (float("nan"), float("inf")):
        key, value = (torch.where(hidden, torch.full_like(t, bad), t) for t in (inputs.key, inputs.value))
        for name, changed in (("value", inputs.replace(value=value)), ("key", inputs.replace(key=key))):
            after = subject.run(changed).output
            what = f"{bad} in a {name} that the mask forbids changes the output"
            judge.require_equal(after, before, what=what, rows=rows)


DEAD = {
    "mask": ("dead", "nothing"),
    "mask_axes": ("bhqk", "bqk", "qk", "bq", "hqk", "bk"),
    "lengths": ((4, 4), (2, 3), (1, 1), (3, 1), (5, 33), (3, 130)),
    "values": ("normal", "offset", "scaled"),
}


def _dead_rows(inputs):
    exact = oracle.core(inputs)
    return exact, ~exact.visible.any(-1)


@check(
    "mask.dead_row.zero",
    Recipe({**DEAD, "causal": (False, True), "dtype": ("float32", "float64", "bfloat16", "float16")}),
    effort=1.3,
)
def check_dead_row(subject, case):
    inputs = case.core_inputs()
    _, dead = _dead_rows(inputs)
    got = subject.run(inputs).output.detach()
    judge.require_shape(got, (case.batch, case.heads, case.q_len, case.d_v))
    wrong = dead[..., None] & ~(got == 0)
    if bool(wrong.any()):
        index = tuple(int(i) for i in wrong.nonzero()[0])
        raise Violation(
            "a query that may attend to nothing does not give zeros",
            got=float(got[index]),
            expected=0.0,
            allowed=0.0,
            index=index,
            ratio=float("inf"),
            wrong=got,
        )


@check(
    "mask.dead_row.zero",
    Recipe(
        {
            "mask": ("dead",),
            "mask_axes": ("bqk", "qk", "bhqk"),
            "lengths": ((3, 1), (4, 1), (5, 2)),
            "batch": (1, 2),
            "dtype": ("float32", "float16", "bfloat16"),
        }
    ),
    effort=0.4,
)
def check_dead_row_of_few_keys(subject, case):
    """With one key or two, hidden from some queries and shown to others."""
    check_dead_row(subject, case)


@check("mask.dead_row.neighbours", Recipe({**DEAD, "mask": ("dead",), "causal": (False, True)}))
def check_neighbours(subject, case):
    inputs = case.core_inputs()
    exact, dead = _dead_rows(inputs)
    _, allowed = judge.exact_core(subject, inputs)
    got = torch.where(
        dead[..., None], torch.zeros((), dtype=torch.float64), subject.run(inputs).output.double()
    )
    judge.require_within(got, exact.output, allowed, what="a row that sees nothing spoils other rows")


@check(
    "mask.dead_row.gradient",
    Recipe(
        {
            **DEAD,
            "lengths": ((4, 4), (2, 3), (1, 1), (5, 7)),
            "dtype": ("float32", "float64", "bfloat16", "float16"),
            "causal": (False, True),
        }
    ),
    effort=0.9,
)
def check_dead_gradient(subject, case):
    inputs = case.core_inputs()
    _, dead = _dead_rows(inputs)
    upstream = torch.randn(case.batch, case.heads, case.q_len, case.d_v, generator=case.generator(8)).to(
        case.torch_dtype
    )
    _, found = subject.gradients(inputs, upstream, wrt=("query", "key", "value"))
    for name, gradient in found.items():
        if not bool(gradient.isfinite().all()):
            raise Violation(
                f"a row that sees nothing makes the gradient of the {name} not finite",
                got="NaN or Inf",
                expected=0.0,
            )
    query = found["query"]
    leaking = dead[..., None] & (query != 0)
    if bool(leaking.any()):
        index = tuple(int(i) for i in leaking.nonzero()[0])
        raise Violation(
            "a row that sees nothing has a gradient",
            got=float(query[index]),
            expected=0.0,
            allowed=0.0,
            index=index,
        )


@check(
    "mask.per_sample",
    Recipe(
        {
            "mask": ("padding", "random", "sparse", "single"),
            "mask_axes": ("bqk", "bk", "bhqk", "bhk"),
            "batch": (2, 3),
            "heads": ((3, 3), (2, 2), (4, 2), (6, 2)),
            "values": ("normal",),
        }
    ),
)
def check_per_sample(subject, case):
    """A sample with its own mask gives what it gives alone."""
    inputs = case.core_inputs()
    exact, allowed = judge.exact_core(subject, inputs)
    rows = judge.alive_rows(exact)
    together = subject.run(inputs).output.double()
    for b in range(case.batch):
        alone = inputs.map_tensors(
            lambda name, t, b=b: t[b : b + 1] if t.dim() == 4 and t.shape[0] > 1 else t
        )
        judge.require_within(
            subject.run(alone).output, together[b : b + 1], allowed[b : b + 1] * 2,
            what="a sample in a batch is masked by another sample's mask", rows=rows[b : b + 1],
        )  # fmt: skip


@check(
    "mask.extremes",
    Recipe(
        {
            "mask": ("random", "left_padding", "last_key", "sparse"),
            "lengths": ((3, 5), (4, 4), (2, 40)),
            "values": ("normal",),
            "causal": (False, True),
        }
    ),
)
def check_extremes(subject, case):
    """Visible logits far below the usual fill values, hidden ones far above: the mask must still decide."""
    inputs = case.core_inputs()
    exact = oracle.core(inputs)
    hidden = _forbidden(case, exact)
    # Visible values nearly alike, hidden ones far off: a leak shows, rounding of such logits does not.
    value = torch.where(hidden, torch.full_like(inputs.value, -50.0), 3.0 + inputs.value.clamp(-3, 3) / 64.0)
    # The scale is 1, so that the level is what the fill has to be below.
    # At 2**24 rounding alone explains much.
    # In float16 the products must fit before they are scaled: that they may not is for `dtype.range` to say.
    half = 2.0 ** min(14, math.floor(math.log2(60000 / case.d_k**0.5)))
    for level in (2.0**17, 2.0**24) if case.dtype != "float16" else (half,):
        query, key = torch.zeros_like(inputs.query), torch.zeros_like(inputs.key)
        query[..., 0] = 64.0 * case.d_k**0.5
        steps = torch.randint(0, 4, key.shape[:3], generator=case.generator(9)).to(key.dtype)
        key[..., 0] = (torch.where(hidden[..., 0], level, -level) + steps) / 64.0
        judge.judge_core(
            subject, inputs.replace(query=query, key=key, value=value),
            what="with extreme logits the mask no longer decides (a finite fill value)",
        )  # fmt: skip
