"""Chapter state: a call leaves everything as it was, and depends on nothing but its arguments."""

import copy
import io
from dataclasses import replace

import torch

from ... import oracle
from .. import judge
from ..bound_layer import layer_bound
from ..check import check
from ..failures import NotApplicable, SubjectError, Violation
from ..recipes import Recipe

OPTIONS = {
    "lengths": ((3, 4), (4, 4), (2, 7), (1, 2), (3, 70), (2, 300)),
    "widths": ((5, 5), (64, 64), (3, 7)),
    "dtype": ("float32", "bfloat16", "float16"),
    "mask": (None, "random", "padding"),
    "mask_axes": ("bhqk", "bk", "qk"),
    "causal": (False, True),
    "bias": (None, "hqk"),
    "layout": ("contiguous", "transposed"),
    "scale": (None, 0.5),
}
# What code may do otherwise in another mode: every option it takes, over inputs of one length and of two.
MODES = {
    **OPTIONS,
    "mask": (None, "random", "dead"),
    "window": (None, (2, 0), (1, 1)),
    "softcap": (None, 2.0),
}


def _copies(inputs):
    return {name: (tensor, tensor.clone(), tensor._version) for name, tensor in inputs.tensors().items()}


def _require_untouched(copies, *, when):
    for name, (tensor, before, version) in copies.items():
        same = (tensor == before) | (tensor.isnan() & before.isnan())
        if not bool(same.all()):
            raise Violation(
                f"the call writes to its {name} ({when})", got="changed content", expected="as it was"
            )
        if tensor._version != version:
            raise Violation(
                f"the call writes to its {name} in place ({when})", got="a new version", expected="as it was"
            )


@check("state.inputs_unchanged", Recipe(OPTIONS), effort=1.3)
def check_inputs_unchanged(subject, case):
    inputs = case.core_inputs()
    copies = _copies(inputs)
    subject.run(inputs)
    _require_untouched(copies, when="with grad")
    with torch.no_grad():
        subject.run(inputs)
    _require_untouched(copies, when="under no_grad")
    with torch.inference_mode():
        subject.run(inputs)
    _require_untouched(copies, when="in inference mode")
    subject.run(
        inputs.replace(
            **{
                n: t.detach().requires_grad_()
                for n, t in (("query", inputs.query), ("key", inputs.key), ("value", inputs.value))
            }
        )
    )
    _require_untouched(copies, when="when gradients are required")


@check(
    "state.inputs_unchanged",
    Recipe({**OPTIONS, "bias": (None,), "lengths": ((3, 4), (4, 4), (2, 7))}),
    on="layer",
    effort=0.7,
)
def check_layer_inputs_unchanged(subject, case):
    inputs = subject.layer_inputs(case)
    copies = _copies(inputs)
    layer = subject.build(inputs.weights)
    layer.run(inputs)
    with torch.no_grad():
        layer.run(inputs)
    with torch.inference_mode():
        layer.run(inputs)
    _require_untouched(copies, when="in a layer")


@check("state.weights_unchanged", Recipe({"causal": (False, True), "mask": (None, "random")}), on="layer")
def check_weights_unchanged(subject, case):
    inputs = subject.layer_inputs(case)
    layer = subject.build(inputs.weights)
    before = {n: t.clone() for n, t in layer.module.named_parameters()}
    with torch.no_grad():
        layer.run(inputs)
    for name, parameter in layer.module.named_parameters():
        if not torch.equal(parameter, before[name]):
            raise Violation(
                f"the call writes to the parameter {name}", got="changed content", expected="as it was"
            )


def _storage(tensor):
    return tensor.untyped_storage().data_ptr() if tensor.numel() else None


@check(
    "state.no_alias",
    Recipe(
        {
            "lengths": ((3, 4), (4, 4), (1, 1), (3, 1)),
            "mask": (None, "all"),
            "scale": (None, 0.0),
            "causal": (False, True),
        }
    ),
)
def check_no_alias(subject, case):
    inputs = case.core_inputs()
    outcome = subject.run(inputs)
    owner = _storage(outcome.raw)
    for name, tensor in {**inputs.tensors(), **outcome.handed}.items():
        if owner is not None and _storage(tensor) == owner:
            raise Violation(
                f"the output shares memory with the {name}",
                got="the same storage",
                expected="memory of its own",
            )
    again = subject.run(inputs)
    if owner is not None and _storage(again.raw) == owner:
        raise Violation(
            "the output shares memory with an earlier output",
            got="the same storage",
            expected="memory of its own",
        )


@check("state.output_kept", Recipe({"causal": (False, True), "mask": (None, "random")}))
def check_output_kept(subject, case):
    inputs = case.core_inputs()
    first = subject.run(inputs)
    kept = first.raw.detach().clone()
    other = inputs.replace(value=inputs.value + 1)
    subject.run(other)
    judge.require_equal(first.raw.detach(), kept, what="a second call changes the output of the first")
    if subject.space.has("weights"):
        returned = subject.run(inputs, want_weights=True).weights
        before = None if returned is None else returned.detach().clone()
        subject.run(other.replace(key=-other.key), want_weights=True)
        if returned is not None:
            judge.require_equal(
                returned.detach(), before, what="a second call changes the weights of the first"
            )


def _settings():
    return {
        "the default dtype": torch.get_default_dtype(),
        "grad mode": torch.is_grad_enabled(),
        "the number of threads": torch.get_num_threads(),
        "deterministic mode": torch.are_deterministic_algorithms_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        "inference mode": torch.is_inference_mode_enabled(),
        "the default device": str(torch.get_default_device()),
    }


@check("state.settings", Recipe({"causal": (False, True), "mask": (None, "random")}))
def check_settings(subject, case):
    inputs = case.core_inputs()
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            before = _settings()
            _without_guard(subject, inputs)
            after = _settings()
            _restore(before)
        for name, value in before.items():
            if after[name] != value:
                raise Violation(f"the call changes {name}", got=str(after[name]), expected=str(value))


def _without_guard(subject, inputs):
    """Run with what the guard puts back left visible."""
    from .. import guard

    kept = guard.kept_settings
    guard.kept_settings = _no_guard
    try:
        subject.run(inputs)
    finally:
        guard.kept_settings = kept


class _no_guard:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def _restore(before):
    torch.set_default_dtype(before["the default dtype"])
    torch.set_num_threads(before["the number of threads"])
    # Setting these, even to what they are, costs: the first imports torch's compiler.
    if torch.are_deterministic_algorithms_enabled() != before["deterministic mode"]:
        torch.use_deterministic_algorithms(before["deterministic mode"])
    if str(torch.get_default_device()) != before["the default device"]:
        torch.set_default_device(before["the default device"])
    torch.set_autocast_enabled("cpu", before["autocast"])
    torch.set_float32_matmul_precision(before["float32 matmul precision"])


@check(
    "state.train_eval",
    Recipe({**MODES, "dtype": ("float32", "bfloat16"), "lengths": ((3, 4), (4, 4), (2, 7), (40, 40))}),
    on="layer",
    effort=1.2,
)
def check_train_eval(subject, case):
    inputs = subject.layer_inputs(case)
    layer = subject.build(inputs.weights)
    in_eval = layer.run(inputs).output
    layer.module.train()
    exact = oracle.layer(inputs)
    allowed = layer_bound(inputs, exact, judge.roundoffs_for(subject, inputs.query.dtype))
    # Rows that see nothing take part here: whatever they give, it must not depend on the mode.
    judge.require_within(
        layer.run(inputs).output,
        in_eval.detach().double(),
        allowed * 2,
        what="train and eval mode differ, without dropout",
    )
    if not layer.module.training:
        raise Violation("the call takes the module out of train mode", got="eval", expected="train")
    layer.module.eval()
    with torch.no_grad():
        judge.require_within(
            layer.run(inputs).output,
            in_eval.detach().double(),
            allowed * 2,
            what="in eval mode no_grad changes the output",
        )


@check("state.grad_mode", Recipe(MODES), effort=1.3)
def check_grad_mode(subject, case):
    inputs = case.core_inputs()
    _, allowed = judge.exact_core(subject, inputs)
    with torch.no_grad():
        without = subject.run(inputs).output.double()
    leaves = {n: getattr(inputs, n).detach().requires_grad_() for n in ("query", "key", "value")}
    recorded = subject.run(inputs.replace(**leaves)).output
    judge.require_within(
        recorded, without, allowed * 2, what="the output depends on whether gradients are recorded"
    )


@check("state.inference_mode", Recipe({**MODES, "mask": (None, "random")}))
def check_inference_mode(subject, case):
    with torch.inference_mode():
        judge.judge_core(subject, case.core_inputs(), what="in inference mode the output is wrong")
    judge.judge_core(subject, case.core_inputs(), what="after a call in inference mode the output is wrong")
    inputs = case.core_inputs()
    upstream = torch.ones(case.batch, case.heads, case.q_len, case.d_v, dtype=case.torch_dtype)
    # A tensor that was made in inference mode and kept cannot be saved for a backward pass.
    subject.gradients(inputs, upstream, wrt=("query", "key", "value"))


@check("state.deepcopy", Recipe({"causal": (False, True)}), on="layer")
def check_deepcopy(subject, case):
    """A copy of a module that was not called yet, and the module itself, give the same."""
    inputs = subject.layer_inputs(case)
    layer = subject.build(inputs.weights)
    try:
        copied = replace(layer, module=copy.deepcopy(layer.module))
    except Exception as error:
        raise SubjectError.of(error) from error
    judge.require_equal(
        copied.run(inputs).output,
        layer.run(inputs).output,
        what="a deep copy of the module gives another output",
    )


@check("state.copied_after_call", Recipe({"causal": (False, True)}), on="layer")
def check_copied_after_call(subject, case):
    """What a call leaves in the module can be copied with it, and changes nothing."""
    inputs = subject.layer_inputs(case)
    layer = subject.build(inputs.weights)
    before = layer.run(inputs).output
    try:
        layer.module = copy.deepcopy(layer.module)
    except Exception as error:
        raise SubjectError.of(error) from error
    judge.require_equal(
        layer.run(inputs).output, before, what="a deep copy, made after a call, gives another output"
    )


@check("state.state_dict", Recipe({"causal": (False, True)}), on="layer")
def check_state_dict(subject, case):
    """Saved and loaded into a fresh module, the weights give the same output."""
    inputs = subject.layer_inputs(case)
    layer = subject.build(inputs.weights)
    before = layer.run(inputs).output
    buffer = io.BytesIO()
    torch.save(layer.module.state_dict(), buffer)
    buffer.seek(0)
    other = subject.build(subject.layer_inputs(case.replace(seed=case.seed + 7)).weights)
    try:
        other.module.load_state_dict(torch.load(buffer, weights_only=True))
    except Exception as error:
        raise Violation(
            f"its own state dict does not load: {str(error).splitlines()[0]}",
            got=type(error).__name__,
            expected="loads",
        ) from error
    judge.require_equal(
        other.run(inputs).output,
        before,
        what="a module with the same state dict gives another output: something is not saved",
    )


@check("state.pickle", Recipe({"causal": (False, True)}), on="layer")
def check_pickle(subject, case):
    """What this very process pickled a moment ago comes back and computes the same."""
    import pickle

    inputs = subject.layer_inputs(case)
    layer = subject.build(inputs.weights)
    if isinstance(layer.module, torch.jit.ScriptModule):
        raise NotApplicable("torch.jit.save is how scripted modules are stored")
    before = layer.run(inputs).output
    try:
        layer.module = pickle.loads(pickle.dumps(layer.module))
    except Exception as error:
        if "parametrized" in str(error):
            raise NotApplicable("torch pickles no parametrized module") from error
        if "<locals>" in str(error) or "import" in str(error) or "not the same object" in str(error):
            raise NotApplicable("its class cannot be found by name") from error
        raise SubjectError.of(error) from error
    judge.require_equal(layer.run(inputs).output, before, what="a pickled module gives another output")


@check(
    "state.weights_flag",
    Recipe({"causal": (False, True), "mask": (None, "random", "dead"), "bias": (None, "hqk")}),
)
def check_weights_flag(subject, case):
    """Asking for the weights does not change the output."""
    inputs = case.core_inputs()
    _, allowed = judge.exact_core(subject, inputs)
    with_weights = subject.run(inputs, want_weights=True).output
    judge.require_within(
        with_weights,
        subject.run(inputs).output.detach().double(),
        allowed * 2,
        what="asking for the weights changes the output",
    )
