"""Chapter state, calls one after the other: nothing of an earlier call is left in a later one."""

import torch

from .. import judge
from ..calls import aside
from ..check import check
from ..failures import NotApplicable, SubjectError, Violation
from ..recipes import Recipe
from ..turns import turns


@check(
    "state.second_call",
    Recipe({"lengths": ((3, 4), (4, 4), (5, 7)), "causal": (False, True), "mask": (None, "random")}),
    sequence=True,
    effort=0.5,
)
def check_second_call(subject, case):
    """Other sizes, another mask of the same size, another dtype before: the answer stays the same."""
    inputs = case.core_inputs()
    before = subject.run(inputs).output
    others = [
        case.replace(q_len=case.q_len + 3, kv_len=case.kv_len + 3, seed=case.seed + 1),
        case.replace(batch=case.batch + 1),
        case.replace(
            mask="sparse" if subject.space.has("mask") else None,
            mask_axes="".join(a for a in "bhqk" if a in subject.space.mask_axes),
            seed=case.seed + 2,
        ),
        *(case.replace(dtype=d, mask=None) for d in [d for d in subject.space.dtypes if d != case.dtype][:1]),
        *turns(subject.space, case, 3),
    ]
    for other in others:
        fitted = subject.space.fit(other)
        if fitted is None:
            continue
        try:
            judge.judge_core(
                subject, fitted.core_inputs(), what="an earlier call changes the result of a later one"
            )
        except Violation:
            if fitted.dtype == case.dtype or not _inexact_anyway(subject, fitted):
                raise
    judge.require_equal(subject.run(inputs).output, before, what="a call in between changes the result")


def _inexact_anyway(subject, case):
    """Whether a dtype gives wrong results at sizes that no call had before: no fault of an earlier one."""
    for more in (5, 7, 11):
        longer = subject.space.fit(case.replace(q_len=case.q_len + more, kv_len=case.kv_len + more))
        try:
            with aside():
                judge.judge_core(subject, longer.core_inputs())
        except Violation:
            return True
    return False


@check(
    "state.second_call",
    Recipe({"lengths": ((3, 4), (4, 4), (5, 7)), "causal": (False, True), "mask": (None, "random")}),
    on="layer",
    sequence=True,
    effort=0.5,
)
def check_layer_second_call(subject, case):
    """One module, called with other sizes and masks in between."""
    inputs = subject.layer_inputs(case)
    layer = subject.build(inputs.weights)
    before = layer.run(inputs).output
    longer = subject.space.fit(case.replace(q_len=case.q_len + 4, kv_len=case.kv_len + 4, seed=case.seed + 1))
    others = [
        longer,
        case.replace(seed=case.seed + 2),
        case.replace(batch=case.batch + 2),
        case.replace(q_len=2, kv_len=2),
        case,
        *turns(subject.space, case, 5),
    ]
    for other in others:
        fitted = subject.space.fit(other)
        if fitted is not None:
            changed = subject.layer_inputs(fitted).replace(weights=inputs.weights)
            judge.judge_layer(
                subject,
                changed,
                layer=layer,
                what="an earlier call of the module changes the result of a later one",
            )
    judge.require_equal(
        layer.run(inputs).output, before, what="calls in between change what the module returns"
    )


@check("state.instances", Recipe({"causal": (False, True)}), on="layer", sequence=True)
def check_instances(subject, case):
    """Two modules side by side do not share anything."""
    inputs = subject.layer_inputs(case)
    other = subject.layer_inputs(case.replace(seed=case.seed + 5))
    first = subject.build(inputs.weights)
    second = subject.build(other.weights)
    judge.judge_layer(subject, inputs, layer=first, what="another instance changes what a module returns")
    judge.judge_layer(subject, other, layer=second, what="an earlier instance changes what a module returns")


@check(
    "state.filled_anew",
    Recipe(
        {"causal": (False, True), "mask": (None, "random"), "bias": (None, "hqk"), "window": (None, (1, 2))}
    ),
    sequence=True,
    effort=0.7,
)
def check_filled_anew(subject, case):
    """A static buffer is written, and the call repeated: the very same tensors hold other numbers."""
    inputs, later = case.core_inputs(), case.replace(seed=case.seed + 3).core_inputs()
    subject.run(inputs)
    for name, tensor in inputs.tensors().items():
        tensor.copy_(later.tensors()[name])
    judge.judge_core(subject, inputs, what="tensors that were filled anew give an earlier result")


@check(
    "state.filled_anew",
    Recipe({"causal": (False, True), "mask": (None, "random"), "bias": (None, "hqk")}),
    on="layer",
    sequence=True,
    effort=0.5,
)
def check_layer_filled_anew(subject, case):
    """The same for one module, with and without gradients."""
    for grad in (True, False):
        inputs = subject.layer_inputs(case)
        later = subject.layer_inputs(case.replace(seed=case.seed + 3))
        layer = subject.build(inputs.weights)
        with torch.set_grad_enabled(grad):
            layer.run(inputs)
            for name in ("query", "key", "value", "mask", "bias"):
                if getattr(inputs, name) is not None:
                    getattr(inputs, name).copy_(getattr(later, name))
            judge.judge_layer(
                subject, inputs, layer=layer, what="inputs that were filled anew give an earlier result"
            )


MODES = ((False, False), (False, True), (True, True))


@check("state.weights_change", Recipe({"causal": (False, True)}), on="layer", sequence=True, effort=0.5)
def check_weights_change(subject, case):
    """What was learnt or loaded since an earlier call is what a call uses."""
    inputs, later = (subject.layer_inputs(case.replace(seed=case.seed + n)) for n in (0, 7))
    for training, grad in MODES:
        layer = subject.build(inputs.weights)
        layer.module.train(training)
        with torch.set_grad_enabled(grad):
            layer.run(inputs)
            subject.slots.write(layer.module, later.weights)
            judge.judge_layer(
                subject,
                later,
                layer=layer,
                what="weights that changed after a call are not those of the next",
            )


@check("state.weights_change", Recipe({"causal": (False, True)}), on="layer", sequence=True, effort=0.5)
def check_weights_written_as_data(subject, case):
    """`parameter.data.copy_`, as moving averages write it, leaves no version behind."""
    inputs, later = (subject.layer_inputs(case.replace(seed=case.seed + n)) for n in (0, 7))
    layer, other = subject.build(inputs.weights), subject.build(later.weights)
    with torch.no_grad():
        layer.run(inputs)
        for parameter, new in zip(layer.module.parameters(), other.module.parameters(), strict=True):
            parameter.data.copy_(new)
        judge.judge_layer(
            subject,
            later,
            layer=layer,
            what="weights that were written as data are not those of the next call",
        )


@check("state.weights_replaced", Recipe({"causal": (False, True)}), on="layer", effort=0.5)
def check_weights_replaced(subject, case):
    """A parameter that is put in the place of another is the one that is used."""
    inputs, later = (subject.layer_inputs(case.replace(seed=case.seed + n)) for n in (0, 7))
    layer, other = subject.build(inputs.weights), subject.build(later.weights)
    if isinstance(layer.module, torch.jit.ScriptModule):
        raise NotApplicable("a scripted module keeps its parameters")
    layer.run(inputs)
    new = {
        path: torch.nn.Parameter(p.detach().clone(), requires_grad=p.requires_grad)
        for path, p in other.module.named_parameters()
    }
    for path, parameter in new.items():
        parent, _, name = path.rpartition(".")
        setattr(layer.module.get_submodule(parent), name, parameter)
    judge.judge_layer(subject, later, layer=layer, what="parameters that were replaced are not used")


@check(
    "state.conversion",
    Recipe({"causal": (False, True), "mask": (None, "random")}),
    on="layer",
    sequence=True,
    effort=0.5,
)
def check_conversion(subject, case):
    """A module that was called, and converted to another dtype, is one of that dtype."""
    for dtype in subject.space.dtypes:
        wanted = subject.space.fit(case.replace(dtype=dtype))
        if dtype == case.dtype or wanted is None:
            continue
        inputs, converted = subject.layer_inputs(case), subject.layer_inputs(wanted)
        layer = subject.build(inputs.weights)
        layer.run(inputs)
        layer.module.to(converted.query.dtype)
        subject.slots.write(layer.module, converted.weights)
        try:
            judge.judge_layer(
                subject, converted, layer=layer, what=f"converted to {dtype} after a call it is not exact"
            )
        except (Violation, SubjectError):
            # Whoever is wrong in this dtype from the start is told so elsewhere.
            if _right_from_the_start(subject, converted):
                raise


def _right_from_the_start(subject, inputs):
    try:
        with aside():
            judge.judge_layer(subject, inputs)
    except (Violation, SubjectError):
        return False
    return True
