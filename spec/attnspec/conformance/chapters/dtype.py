"""Chapter dtype: the output has the query's dtype, and is as exact as that dtype allows."""

import torch

from ... import oracle
from .. import judge
from ..bound_layer import layer_bound
from ..check import check
from ..failures import NotApplicable, SubjectError, Violation
from ..guard import guarded
from ..judge_gradient import judge_gradients, layer_expected, upstream_of
from ..placement import Placement
from ..recipes import GENERAL, Recipe
from ..tensors import ALIVE

ALL = ("float32", "float64", "bfloat16", "float16")


@check(
    "dtype.output",
    Recipe(
        {"dtype": ALL, "causal": (False, True), "scale": (None, 0.5), "mask": (None, "random", "nothing")}
    ),
)
def check_output(subject, case):
    try:
        got = subject.run(case.core_inputs()).output
    except SubjectError as error:
        if case.mask is None:
            raise
        raise NotApplicable(f"in {case.dtype} a mask fails, as dtype.mask says") from error
    if got.dtype != case.torch_dtype:
        raise Violation(
            "the output does not have the dtype of the query",
            got=str(got.dtype),
            expected=str(case.torch_dtype),
        )


@check("dtype.output", Recipe({"dtype": ALL}), on="layer")
def check_layer_output(subject, case):
    got = subject.run_layer(subject.layer_inputs(case)).output
    if got.dtype != case.torch_dtype:
        raise Violation(
            "the output does not have the dtype of the query",
            got=str(got.dtype),
            expected=str(case.torch_dtype),
        )


PLAIN = {
    "values": ("normal", "integers", "outlier", "offset"),
    "lengths": ((5, 7), (4, 4), (17, 33), (1, 6), (9, 129), (2, 300)),
    "scale": (None, 0.3, 1.7),
    "bias": (None, "hqk"),
    "causal": (False, True),
}


@check("dtype.float64", Recipe({**PLAIN, "dtype": ("float64",), "mask": (None, *ALIVE)}))
def check_float64(subject, case):
    judge.judge_core(subject, case.core_inputs(), what="float64 in, less than float64 accuracy out")


@check(
    "dtype.float64",
    Recipe({"dtype": ("float64",), "mask": (None, "random"), "causal": (False, True)}),
    on="layer",
)
def check_layer_float64(subject, case):
    judge.judge_layer(subject, subject.layer_inputs(case), what="float64 in, less than float64 accuracy out")


@check(
    "dtype.float64_gradient",
    Recipe(
        {
            "dtype": ("float64",),
            "mask": (None, "random"),
            "causal": (False, True),
            "lengths": ((3, 4), (4, 4)),
        }
    ),
)
def check_float64_gradient(subject, case):
    inputs = case.core_inputs()
    if not bool(oracle.core(inputs).visible.any(-1).all()):
        raise NotApplicable("a row sees nothing")
    upstream = torch.randn(
        case.batch, case.heads, case.q_len, case.d_v, generator=case.generator(8), dtype=torch.float64
    )
    _, found = subject.gradients(inputs, upstream, wrt=("query", "key", "value"))
    judge_gradients(subject, inputs, upstream, found)


@check("dtype.bfloat16", Recipe({**PLAIN, "dtype": ("bfloat16",)}))
def check_bfloat16(subject, case):
    judge.judge_core(
        subject, case.core_inputs(), what="in bfloat16 the output is further off than rounding explains"
    )


@check("dtype.float16", Recipe({**PLAIN, "dtype": ("float16",), "values": ("normal", "integers", "offset")}))
def check_float16(subject, case):
    judge.judge_core(
        subject, case.core_inputs(), what="in float16 the output is further off than rounding explains"
    )


@check(
    "dtype.half_layer",
    Recipe({"dtype": ("bfloat16", "float16"), "values": ("normal",), "causal": (False, True)}),
    on="layer",
)
def check_half_layer(subject, case):
    judge.judge_layer(
        subject,
        subject.layer_inputs(case),
        what="in half precision the output is further off than rounding explains",
    )


@check(
    "dtype.mask",
    Recipe(
        {
            "dtype": ALL,
            "mask": ("random", "padding", "single"),
            "mask_axes": ("bhqk", "qk", "bk"),
            "causal": (False, True),
        }
    ),
)
def check_mask(subject, case):
    try:
        judge.judge_core(subject, case.core_inputs(), what=f"a mask in {case.dtype} gives a wrong output")
    except SubjectError as error:
        if error.refusal:
            raise
        raise Violation(
            f"a mask in {case.dtype} fails, where the same call without a mask runs: {error}",
            got=error.kind,
            expected="an output",
        ) from error


@check(
    "dtype.long_rows",
    Recipe(
        {
            "dtype": ("bfloat16", "float16", "float32"),
            "lengths": ((2, 600), (1, 1500)),
            "batch": (1,),
            "heads": ((1, 1), (2, 2)),
            "widths": ((4, 4), (3, 3)),
            "values": ("normal",),
        }
    ),
)
def check_long_rows(subject, case):
    """Many equal scores: a sum held in half precision stops growing."""
    inputs = case.core_inputs()
    # Sums of 64 pass what float16 can hold: they must be divided before they are stored.
    inputs = inputs.replace(query=torch.zeros_like(inputs.query), value=torch.full_like(inputs.value, 64.0))
    judge.judge_core(subject, inputs, what="a long row loses mass: sums are held in too few bits")


@check(
    "dtype.long_rows",
    Recipe(
        {
            "dtype": ("bfloat16", "float16", "float32"),
            "lengths": ((600, 600), (900, 900)),
            "batch": (1,),
            "heads": ((1, 1),),
            "widths": ((4, 4), (3, 3)),
            "values": ("normal",),
        }
    ),
    on="layer",
    effort=0.5,
)
def check_layer_long_rows(subject, case):
    """The same for a layer whose core cannot be called alone at such lengths: all scores 0, all values 1."""
    if "separate" in subject.space.sources:
        raise NotApplicable("its core is called at such lengths")
    inputs = subject.layer_inputs(case)
    held = inputs.weights
    empty = {name: getattr(held, name) for name in ("W_q", "b_q", "W_v", "b_v")}
    empty = {name: torch.zeros_like(tensor) for name, tensor in empty.items() if tensor is not None}
    empty["W_v"][:, 0] = 1.0
    given = {name: getattr(inputs, name) for name in ("query", "key", "value")}
    given = {name: tensor.clone() for name, tensor in given.items() if tensor is not None}
    for tensor in given.values():
        tensor[..., 0] = 1.0
    judge.judge_layer(
        subject,
        inputs.replace(weights=held.replace(**empty), **given),
        what="a long row loses mass: sums are held in too few bits",
    )


@check(
    "dtype.range",
    Recipe(
        {"dtype": ("float16",), "widths": ((64, 64), (64, 3)), "lengths": ((2, 3), (4, 4)), "batch": (1,)}
    ),
)
def check_range(subject, case):
    """Products of 40 x 40 over 64 dimensions pass 65504; the scaled logits do not."""
    inputs = case.core_inputs()
    inputs = inputs.replace(query=torch.full_like(inputs.query, 40.0), key=torch.full_like(inputs.key, 40.0))
    judge.judge_core(subject, inputs, what="query times key overflows before it is scaled")


@check(
    "dtype.combined",
    Recipe(
        {**GENERAL, "dtype": ("bfloat16", "float16", "float64"), "values": ("normal", "integers", "offset")}
    ),
)
def check_combined(subject, case):
    judge.judge_core(
        subject, case.core_inputs(), what=f"in {case.dtype} options together give a wrong output"
    )


@check(
    "dtype.module", Recipe({"dtype": ("float32", "bfloat16", "float16"), "causal": (False, True)}), on="layer"
)
def check_module(subject, case):
    """`module.to(dtype)` moves every parameter and still computes."""
    inputs = subject.layer_inputs(case)
    layer = subject.build(inputs.weights)
    left = [n for n, p in layer.module.named_parameters() if p.dtype != case.torch_dtype]
    if left:
        raise Violation(
            f"module.to({case.dtype}) leaves {left[0]} behind", got="another dtype", expected=case.dtype
        )
    judge.judge_layer(subject, inputs, layer=layer, what=f"after module.to({case.dtype}) the output is wrong")


HALF = ("bfloat16", "float16")


@check(
    "dtype.autocast",
    Recipe({"values": ("normal",), "causal": (False, True), "mask": (None, *ALIVE)}),
    on="layer",
)
def check_autocast(subject, case):
    """A float32 layer under autocast is as exact as the half type allows, and takes what it took before."""
    inputs = subject.layer_inputs(case)
    exact = oracle.layer(inputs)
    layer = subject.build(inputs.weights)
    for name in [n for n in HALF if n in subject.space.dtypes]:
        half = getattr(torch, name)
        try:
            with torch.autocast(Placement.device.type, dtype=half):
                outcome = layer.run(inputs)
        except SubjectError as error:
            raise Violation(
                f"under autocast to {name} it raises: {error}", got=error.kind, expected="an output"
            ) from error
        judge.require_within(
            outcome.output,
            exact.output,
            layer_bound(inputs, exact, judge.roundoffs_for(subject, half), autocast=True),
            what=f"under autocast to {name} the output is further off than rounding explains",
            rows=judge.alive_rows(exact),
        )


@check(
    "dtype.autocast",
    Recipe(
        {
            "values": ("normal",),
            "causal": (False, True),
            "mask": (None, "random", "dead"),
            "lengths": ((3, 4), (4, 4)),
        }
    ),
    on="layer",
    effort=0.7,
)
def check_autocast_back(subject, case):
    """Under autocast gradients flow, to queries and keys too, and a row that sees nothing makes none NaN."""
    inputs = subject.layer_inputs(case)
    upstream = upstream_of(case, case.batch, case.q_len, case.d_model)
    for half in [name for name in HALF if name in subject.space.dtypes]:
        layer = subject.build(inputs.weights)
        try:
            with torch.autocast(Placement.device.type, dtype=getattr(torch, half)):
                output = layer.run(inputs.replace(query=inputs.query.detach().requires_grad_())).output
            guarded(output.backward, upstream.to(output.dtype))
        except SubjectError as error:
            raise Violation(
                f"under autocast to {half} the way back raises: {error}", got=error.kind, expected="gradients"
            ) from error
        found = subject.slots.read(layer.module, inputs.weights, gradient=True)
        for name, tensor in {"output": output, **found}.items():
            if not bool(tensor.isfinite().all()):
                raise Violation(
                    f"under autocast to {half} {name} is not finite",
                    got="NaN or Inf",
                    expected="finite numbers",
                )
        for name in _felt(subject, inputs, upstream) if case.mask is None else ():
            if name in found and not bool(found[name].any()):
                raise Violation(
                    f"under autocast to {half} no gradient reaches {name}", got=0.0, expected="a gradient"
                )


def _felt(subject, inputs, upstream):
    """Return which projections have a gradient far beyond what rounding could make of none."""
    exact, allowed = layer_expected(subject, inputs, upstream)
    return [name for name in ("W_q", "W_k") if bool((exact[name].abs() > 256 * allowed[name]).any())]
