"""Chapter scale: None means d_k ** -0.5; any finite number is taken as it is."""

from .. import judge
from ..check import check
from ..recipes import Recipe

# d_k never equals heads, d_v or a length here: a wrong size under the root must show.
ROOTS = {
    "widths": ((16, 5), (5, 3), (7, 7), (64, 3), (2, 4), (12, 12)),
    "heads": ((3, 3), (2, 2), (4, 2), (1, 1)),
    "values": ("normal", "integers", "outlier"),
}


@check("scale.default", Recipe(ROOTS))
def check_default(subject, case):
    judge.judge_core(subject, case.core_inputs(), what="the default scale is not d_k ** -0.5")


@check("scale.default", Recipe({**ROOTS, "widths": ((16, 16), (5, 5), (7, 7), (12, 12))}), on="layer")
def check_layer_default(subject, case):
    judge.judge_layer(subject, subject.layer_inputs(case), what="the default scale is not d_k ** -0.5")


@check("scale.explicit", Recipe({**ROOTS, "scale": (0.3, 1.7, 2, 1, 0.05, 5e-4, 400.0)}), effort=1.3)
def check_explicit(subject, case):
    judge.judge_core(subject, case.core_inputs(), what="an explicit scale is not taken as it is")


@check("scale.zero", Recipe({"scale": (0.0,), "values": ("normal", "scaled"), "causal": (False, True)}))
def check_zero(subject, case):
    inputs = case.core_inputs().replace(scale=0.0)
    judge.judge_core(subject, inputs, what="scale 0 does not give the mean of the visible values")


@check("scale.negative", Recipe({"scale": (-0.4, -1.0, -2.5), "values": ("normal", "integers")}))
def check_negative(subject, case):
    judge.judge_core(subject, case.core_inputs(), what="a negative scale is not taken as it is")


@check(
    "scale.moves_to_query",
    Recipe({"scale": (0.5, 2.0, 0.25), "values": ("normal",), "causal": (False, True)}),
)
def check_moves(subject, case):
    """A power of two may stand in the scale or in the query."""
    inputs = case.core_inputs()
    moved = inputs.replace(query=inputs.query * inputs.scale, scale=1.0)
    exact, allowed = judge.exact_core(subject, inputs)
    judge.require_within(
        subject.run(inputs).output,
        subject.run(moved).output.double(),
        allowed * 2,
        rows=judge.alive_rows(exact),
        what="a scale and a query multiplied by it give different outputs",
    )


@check(
    "scale.options",
    Recipe(
        {
            "scale": (None, 0.3, 1.7),
            "mask": (None, "random"),
            "bias": (None, "hqk", "qk"),
            "causal": (False, True),
            "widths": ((16, 5), (5, 3), (7, 7)),
        }
    ),
)
def check_options(subject, case):
    judge.judge_core(
        subject,
        case.core_inputs(),
        what="the scale acts on more than the scores, or is lost beside an option",
    )
