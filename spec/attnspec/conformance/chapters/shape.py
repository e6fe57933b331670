"""Chapter shape: what goes in and what comes out."""

from .. import judge
from ..check import check
from ..recipes import GENERAL, LENGTHS, WIDTHS, Recipe

SIZES = Recipe({"lengths": LENGTHS, "widths": WIDTHS, "layout": ("contiguous", "transposed")})


@check("shape.output", SIZES)
def check_output(subject, case):
    output = subject.run(case.core_inputs()).output
    judge.require_shape(output, (case.batch, case.heads, case.q_len, case.d_v))


@check("shape.output", Recipe({"lengths": LENGTHS, "widths": WIDTHS}), on="layer")
def check_layer_output(subject, case):
    inputs = subject.layer_inputs(case)
    output = subject.run_layer(inputs).output
    judge.require_shape(output, (case.batch, case.q_len, case.d_model))


@check("shape.cross", Recipe({"lengths": ((3, 7), (7, 3), (1, 6), (6, 1), (2, 17))}))
def check_cross(subject, case):
    judge.judge_core(subject, case.core_inputs())


@check("shape.value_width", Recipe({"widths": ((3, 7), (7, 3), (16, 5), (1, 4), (4, 1))}))
def check_value_width(subject, case):
    judge.judge_core(subject, case.core_inputs())


@check("shape.combinations", Recipe({**GENERAL, "values": ("normal",)}))
def check_combinations(subject, case):
    output = subject.run(case.core_inputs()).output
    judge.require_shape(output, (case.batch, case.heads, case.q_len, case.d_v))
