"""Chapter weights: the attention weights, where an implementation returns them."""

from ... import oracle
from .. import judge
from ..bound import weights_bound
from ..check import check
from ..failures import SubjectError, Violation
from ..recipes import Recipe
from ..tensors import ALIVE

FORMS = {
    "lengths": ((3, 4), (4, 4), (1, 6), (5, 33), (65, 3), (3, 130)),
    "mask": (None, *ALIVE),
    "mask_axes": ("bhqk", "qk", "bk", "hqk"),
    "causal": (False, True),
}


def _weights(subject, inputs):
    weights = subject.run(inputs, want_weights=True).weights
    if weights is None:
        raise SubjectError("returned", "no weights, though they were asked for")
    batch, heads, q_len, _ = inputs.query.shape
    judge.require_shape(weights, (batch, heads, q_len, inputs.key.shape[2]), what="tensor of weights")
    return weights.detach()


@check("weights.shape", Recipe(FORMS))
def check_shape(subject, case):
    weights = _weights(subject, case.core_inputs())
    judge.require_shape(weights, (case.batch, case.heads, case.q_len, case.kv_len), what="tensor of weights")


OPTIONS = {"bias": (None, "hqk"), "scale": (None, 0.4), "softcap": (None, 1.5), "window": (None, (1, 1))}


@check("weights.value", Recipe({**FORMS, **OPTIONS}))
def check_value(subject, case):
    inputs = case.core_inputs()
    exact = oracle.core(inputs)
    allowed = weights_bound(inputs, exact, judge.roundoffs_for(subject, inputs.query.dtype))
    judge.require_within(
        _weights(subject, inputs),
        exact.weights,
        allowed,
        what="the returned weights differ from the exact ones",
        rows=judge.alive_rows(exact),
    )


@check("weights.rows", Recipe({**FORMS, "mask": (None, *ALIVE)}))
def check_rows(subject, case):
    inputs = case.core_inputs()
    exact = oracle.core(inputs)
    weights = _weights(subject, inputs).double()
    allowed = weights_bound(inputs, exact, judge.roundoffs_for(subject, inputs.query.dtype)).sum(-1)
    judge.require_within(
        weights.sum(-1),
        exact.weights.sum(-1),
        allowed,
        what="a row of the returned weights does not sum to 1",
        rows=exact.visible.any(-1),
    )


@check("weights.forbidden", Recipe({**FORMS, "mask": ("random", "padding", "single")}))
def check_forbidden(subject, case):
    inputs = case.core_inputs()
    weights = _weights(subject, inputs)
    visible = oracle.core(inputs).visible
    leaking = ~visible & visible.any(-1, keepdim=True) & ~(weights == 0)
    if bool(leaking.any()):
        index = tuple(int(i) for i in leaking.nonzero()[0])
        raise Violation(
            "a forbidden key has a weight", got=float(weights[index]), expected=0.0, allowed=0.0, index=index
        )


@check("weights.explain_output", Recipe(FORMS))
def check_explain(subject, case):
    """The returned weights times the values are the returned output."""
    inputs = case.core_inputs()
    outcome = subject.run(inputs, want_weights=True)
    if outcome.weights is None:
        raise SubjectError("returned", "no weights, though they were asked for")
    judge.require_shape(
        outcome.weights, (case.batch, case.heads, case.q_len, case.kv_len), what="tensor of weights"
    )
    value = inputs.value.double().repeat_interleave(case.heads // case.kv_heads, 1)
    exact, allowed = judge.exact_core(subject, inputs)
    judge.require_within(
        outcome.weights.double() @ value,
        outcome.output.double(),
        allowed * 2,
        rows=judge.alive_rows(exact),
        what="the returned weights do not give the returned output",
    )


@check(
    "weights.dead_row",
    Recipe({**FORMS, "mask": ("dead", "nothing"), "mask_axes": ("bhqk", "qk", "bq", "hqk")}),
)
def check_dead_row(subject, case):
    inputs = case.core_inputs()
    weights = _weights(subject, inputs)
    dead = ~oracle.core(inputs).visible.any(-1, keepdim=True)
    wrong = dead & ~(weights == 0)
    if bool(wrong.any()):
        index = tuple(int(i) for i in wrong.nonzero()[0])
        raise Violation(
            "a query that may attend to nothing has weights",
            got=float(weights[index]),
            expected=0.0,
            allowed=0.0,
            index=index,
        )


@check(
    "weights.combined",
    Recipe(
        {
            "dtype": ("float32", "bfloat16", "float16", "float64"),
            "heads": ((3, 3), (4, 2), (6, 2), (4, 1)),
            "mask": (None, "random"),
            "bias": (None, "hqk"),
            "causal": (False, True),
            "window": (None, None, (2, 1)),
            "softcap": (None, None, 2.0),
            "layout": ("contiguous", "transposed", "sliced"),
            "lengths": ((3, 4), (4, 4), (5, 33)),
            "widths": ((5, 5), (3, 7), (8, 8)),
        }
    ),
)
def check_combined(subject, case):
    inputs = case.core_inputs()
    exact = oracle.core(inputs)
    allowed = weights_bound(inputs, exact, judge.roundoffs_for(subject, inputs.query.dtype))
    judge.require_within(
        _weights(subject, inputs),
        exact.weights,
        allowed,
        what="with other options the returned weights differ from the exact ones",
        rows=judge.alive_rows(exact),
    )
