"""Chapter dropout: only in training, survivors scaled by 1 / (1 - p), on the weights."""

from itertools import combinations

import torch

from ... import oracle
from .. import judge
from ..check import check
from ..failures import NotApplicable, SubjectError, Violation
from ..inexact import gamma
from ..recipes import Recipe

SMALL = {"lengths": ((4, 4), (5, 5)), "batch": (2,), "values": ("normal",)}
RATES = (0.5, 0.25, 0.1)


def fit_one_hot(subject, case):
    """Make room for one-hot values: as wide as there are keys; where widths are fixed, fewer keys."""
    width = max(case.kv_len, case.d_k)
    fitted = subject.space.fit(case.replace(d_k=width, d_v=width))
    if fitted.d_v < fitted.kv_len:
        fitted = subject.space.fit(fitted.replace(q_len=fitted.d_v, kv_len=fitted.d_v))
    return fitted


def weights_of(subject, case, *, rate, seed):
    """Return a call with one-hot values and what comes out of it: the weights that survive dropout."""
    inputs = _probe_wide(case)
    torch.manual_seed(seed)
    return inputs, subject.run(inputs, dropout=rate).output[..., : case.kv_len].double()


def _probe_wide(case):
    inputs = case.core_inputs()
    eye = torch.eye(case.kv_len, case.d_v, dtype=inputs.value.dtype)
    return inputs.replace(value=eye.expand(case.batch, case.kv_heads, case.kv_len, case.d_v).contiguous())


@check(
    "dropout.survivors",
    Recipe(
        {
            **SMALL,
            "mask": (None, "random"),
            "mask_axes": ("bhqk", "qk", "bk"),
            "causal": (False, True),
            "lengths": ((12, 12), (15, 15), (7, 12), (16, 9)),
            "scale": (None, 0.3),
            "bias": (None, "hqk", "bk"),
            "window": (None, (4, 0), (3, 3)),
            "softcap": (None, 2.0),
            "dtype": ("float32", "bfloat16", "float64", "float16"),
        }
    ),
    effort=1.3,
)
def check_survivors(subject, case):
    case = fit_one_hot(subject, case)
    for rate in RATES:
        inputs, dropped = weights_of(subject, case, rate=rate, seed=case.seed)
        exact = oracle.core(inputs)
        _, allowed = judge.exact_core(subject, inputs)
        kept = dropped != 0
        expected = torch.where(kept, exact.weights / (1 - rate), torch.zeros_like(dropped))
        slack = allowed[..., : case.kv_len] / (1 - rate) * 2
        judge.require_within(
            dropped, expected, slack, rows=judge.alive_rows(exact),
            what=f"with dropout {rate} a surviving weight is not weight / (1 - p)",
        )  # fmt: skip
        alive = exact.visible & (exact.weights > 2.0**-20)
        share = float((alive & ~kept).sum() / alive.sum().clamp_min(1))
        # Chance of a share so far off under the declared rate is below one in a million (Hoeffding).
        margin = (14.5 / (2 * float(alive.sum().clamp_min(1)))) ** 0.5
        if abs(share - rate) > margin:
            raise Violation(
                f"with dropout {rate} another share of the weights is dropped",
                got=share,
                expected=rate,
                allowed=margin,
            )


@check("dropout.on_weights", Recipe({**SMALL, "lengths": ((9, 9),), "causal": (False, True)}))
def check_on_weights(subject, case):
    """Values that hold the same numbers twice: a dropped weight strikes both, a dropped output one."""
    width = 2 * max(case.kv_len, case.d_k)
    case = subject.space.fit(case.replace(d_k=width, d_v=width))
    if case.d_v % 2:
        raise NotApplicable("its heads have an odd width, so no value can hold the same numbers twice")
    inputs = case.core_inputs()
    half = inputs.value[..., : case.d_v // 2]
    inputs = inputs.replace(value=torch.cat([half, half], -1))
    for asked in (False, True) if subject.space.has("weights") else (False,):
        torch.manual_seed(case.seed)
        output = subject.run(inputs, dropout=0.5, want_weights=asked).output
        first, second = output[..., : case.d_v // 2], output[..., case.d_v // 2 :]
        judge.require_within(
            second, first.double(), _same_sum(subject, inputs, rate=0.5)[..., : case.d_v // 2],
            what="dropout strikes elements of the output, not weights",
        )  # fmt: skip


def _same_sum(subject, inputs, *, rate):
    """Return how far two sums of the same dropped weights times the same numbers may differ.

    A product of matrices may add up one column in another order than the next, and round it once more.
    """
    roundoffs = judge.roundoffs_for(subject, inputs.query.dtype)
    group = inputs.query.shape[1] // inputs.value.shape[1]
    value = inputs.value.double().abs().repeat_interleave(group, 1)
    largest = 2 * oracle.core(inputs).weights @ value / (1 - rate)
    return 2 * (gamma(inputs.value.shape[2] + 2, roundoffs.accumulation) + 2 * roundoffs.output) * largest


@check("dropout.random", Recipe({**SMALL, "lengths": ((12, 12),)}))
def check_random(subject, case):
    """Another seed drops other weights; the same seed the same."""
    case = fit_one_hot(subject, case)
    first = weights_of(subject, case, rate=0.5, seed=1)[1]
    if torch.equal(first, weights_of(subject, case, rate=0.5, seed=2)[1]):
        raise Violation(
            "two seeds give the same dropped weights", got="equal outputs", expected="different ones"
        )
    judge.require_equal(
        weights_of(subject, case, rate=0.5, seed=1)[1],
        first,
        what="one seed does not give the same dropout twice",
    )


@check(
    "dropout.per_element",
    Recipe({**SMALL, "lengths": ((12, 12), (6, 40), (3, 140)), "heads": ((3, 3), (2, 2), (4, 2), (2, 1))}),
)
def check_per_element(subject, case):
    """Samples, heads and rows are dropped independently of each other, and no pattern of keys comes again."""
    case = fit_one_hot(subject, case)
    kept = weights_of(subject, case, rate=0.5, seed=case.seed)[1] != 0
    if case.causal:
        return
    # Any two of a kind have dozens of weights each: that all agree by chance is out of the question.
    for axis, name in ((0, "samples"), (1, "heads"), (2, "queries")):
        for one, other in combinations(kept.unbind(axis), 2):
            if bool((one == other).all()):
                raise Violation(
                    f"two {name} drop the same weights", got="equal patterns", expected="different ones"
                )
    for period in range(1, kept.shape[-1] - 3):
        if bool((kept[..., period:] == kept[..., :-period]).all()):
            raise Violation(
                f"the pattern of dropped weights repeats every {period} keys",
                got="a pattern that comes again",
                expected="different ones",
            )


@check(
    "dropout.share", Recipe({"lengths": ((128, 128),), "batch": (2,), "heads": ((2, 2), (3, 3))}), effort=0.2
)
def check_share(subject, case):
    """Small rates too: of many weights the declared share is dropped."""
    case = fit_one_hot(subject, case)
    for rate in (0.1, 0.05):
        dropped = weights_of(subject, case, rate=rate, seed=case.seed)[1]
        share = float((dropped == 0).sum()) / dropped.numel()
        # Chance of a share so far off under the declared rate is below one in a million (Hoeffding).
        margin = (14.5 / (2 * dropped.numel())) ** 0.5
        if not case.causal and abs(share - rate) > margin:
            raise Violation(
                f"with dropout {rate} another share of the weights is dropped",
                got=share,
                expected=rate,
                allowed=margin,
            )


@check("dropout.eval_off", Recipe(SMALL), on="layer")
def check_eval_off(subject, case):
    inputs = subject.layer_inputs(case)
    layer = subject.build(inputs.weights, dropout=0.5)
    layer.module.eval()
    before = torch.get_rng_state()
    judge.judge_layer(subject, inputs, layer=layer, what="dropout acts in eval mode")
    if not torch.equal(torch.get_rng_state(), before):
        raise Violation(
            "in eval mode the call draws random numbers", got="another random state", expected="as it was"
        )


@check("dropout.train_on", Recipe({**SMALL, "lengths": ((9, 9),)}), on="layer")
def check_train_on(subject, case):
    inputs = subject.layer_inputs(case)
    layer = subject.build(inputs.weights, dropout=0.5)
    layer.module.train()
    outputs = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        outputs.append(layer.run(inputs).output)
    if torch.equal(*outputs):
        raise Violation(
            "in train mode dropout has no effect",
            got="equal outputs for two seeds",
            expected="different ones",
        )


@check("dropout.rate_refused", Recipe({**SMALL, "lengths": ((4, 4),)}), on="layer")
def check_rate_refused(subject, case):
    inputs = subject.layer_inputs(case)
    for rate in (-0.5, 1.5):

        def attempt(rate=rate):
            layer = subject.build(inputs.weights, dropout=rate)
            layer.module.train()
            layer.run(inputs)

        judge.require_raises(attempt, what=f"a dropout of {rate} is accepted", got="an output")


@check(
    "dropout.weights_before",
    Recipe({**SMALL, "lengths": ((6, 6), (5, 5)), "mask": (None, "random"), "causal": (False, True)}),
)
def check_weights_before(subject, case):
    """The weights that are returned are those before dropout."""
    inputs = case.core_inputs()
    torch.manual_seed(case.seed)
    weights = subject.run(inputs, want_weights=True, dropout=0.5).weights
    if weights is None:
        raise SubjectError("returned", "no weights, though they were asked for")
    from ..bound import weights_bound

    exact = oracle.core(inputs)
    allowed = weights_bound(inputs, exact, judge.roundoffs_for(subject, inputs.query.dtype))
    judge.require_within(weights, exact.weights, allowed, what="the returned weights include dropout")
