"""How a layer is constructed and called: from its names, then one plain call."""

from collections.abc import Mapping

from torch import Tensor, nn

from .._errors import TargetError
from .._inputs import LayerInputs
from ..conformance.caller import Outcome, made_with, members_of
from ..conformance.calls import LastCall
from ..conformance.failures import SubjectError
from ..conformance.guard import guarded
from ..conformance.layer_subject import Layer, LayerSubject
from . import documented
from .construct import SUPPLIED
from .experiments import Probe, attempt
from .layer_runner import Runner
from .names import (
    CALL_CONSTANTS,
    CALL_NAMES,
    COS,
    NEUTRAL_ARGUMENTS,
    OPTIONS,
    match_names,
    named,
    names_in_call,
    parameters_of,
)


def construct_layer(probe: Probe) -> nn.Module:
    n = {"d_model": 18, "heads": 3, "kv_heads": 3, "d_k": 6, **probe.space.fixed}
    n["d_model"] = n["heads"] * n["d_k"]
    subject = LayerSubject(
        probe.declaration.replace(weights={}, bypass=(), neutral={}),
        probe.namespace,
        probe.space,
        name=probe.target.name,
    )
    try:
        return subject.construct(
            d_model=n["d_model"], heads=n["heads"], kv_heads=n["kv_heads"], d_k=n["d_k"], d_v=n["d_k"]
        )
    except SubjectError as error:
        place = f"\n  {error.place}" if error.place else ""
        new = shown_new(probe)
        raise TargetError(
            f"{probe.target.name}: it cannot be constructed with {new}: {error}{place}\n"
            f"  say how, in the names {SUPPLIED}: --new '{_with_a_mask(probe, new)}'"
        ) from None


def _with_a_mask(probe: Probe, new: str) -> str:
    """Return a construction in which a mask that must be there hides nothing where none is asked for."""
    fill = "zeros" if documented.polarity(probe.target) == "blocked" else "ones"
    word = f"=torch.{fill}(max_len, max_len, dtype=torch.bool) if mask is None else mask"
    return new.replace("=mask", word) if "mask" in made_with(probe.declaration) else new


def read_call(probe: Probe, module: nn.Module) -> None:
    """Read from names what the call takes; what is wanted beside it is undone."""
    declared = probe.declaration
    parameters = parameters_of(module.forward)
    chosen = {name: name for name in made_with(declared)}
    if declared.call is not None:
        probe.declare(arguments=chosen | names_in_call(declared.call))
        probe.set(even_widths=any(word in declared.call for word in ("d_k // 2", COS)))
        return
    arguments = {**match_names(named(parameters), CALL_NAMES), **declared.arguments}
    if "query" not in arguments:
        free = [
            n
            for n, p in parameters.items()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and n not in arguments.values()
        ]
        if not free:
            raise TargetError(
                f"{probe.target.name}: its forward takes no tensor\n  say how to call it: --call "
                "'f(query, mask=mask)'"
            )
        arguments["query"] = free[0]
    known = {**NEUTRAL_ARGUMENTS, **CALL_CONSTANTS}
    wanted = [
        n
        for n, p in parameters.items()
        if n not in arguments.values()
        and p.default is p.empty
        and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]
    unknown = [n for n in wanted if n not in known]
    said = ", ".join(f"{name}={meaning}" for meaning, name in arguments.items())
    if unknown:
        raise TargetError(
            f"{probe.target.name}: cannot tell what its forward wants as {unknown[0]!r} in "
            f"forward({', '.join(parameters)})\n"
            f"  say how to call it: --call 'f({said}, {unknown[0]}=...)'"
        )
    extra = [
        n
        for n in parameters
        if n in known
        and n not in arguments.values()
        and (n in wanted or n not in ("position_ids", "start_pos"))
    ]
    _say_options(probe, chosen)
    probe.declare(arguments=chosen | arguments)
    if extra:
        said = ", ".join(f"{name}={meaning}" for meaning, name in arguments.items())
        probe.declare(call=f"f({said}, {', '.join(f'{n}={known[n]}' for n in extra)})")
    rotated = [n for n in extra if n in NEUTRAL_ARGUMENTS and n not in ("position_ids", "start_pos")]
    if rotated:
        probe.set(even_widths=True)
        probe.find(
            "adds",
            f"positions by {', '.join(rotated)}; called with a rotation by nothing, so the rotation "
            "itself is not checked",
            "by name",
            "call=...",
        )


def _say_options(probe: Probe, chosen: Mapping[str, str]) -> None:
    """Say which options of a call the constructor takes."""
    for name in sorted(chosen):
        probe.find(name, f"chosen where it is constructed: {shown_new(probe)}", "by name", "new=...")


def shown_new(probe: Probe) -> str:
    """Return how the layer is constructed, as a user would write it."""
    return (probe.declaration.new or "").replace("_target", getattr(probe.target.object, "__name__", "it"))


def read_features(probe: Probe, new_names: Mapping[str, str]) -> None:
    """Note what the call and the constructor take."""
    declared, arguments = probe.declaration, probe.declaration.arguments
    alone = {"cross", "cross_sources"} & set(declared.unsupported)
    sources = ["self"] + (["memory"] if "key" in arguments and not alone else [])
    sources += ["separate"] if {"key", "value"} <= set(arguments) and not alone else []
    features = {name for name in OPTIONS if name in arguments}
    if "return_weights" in arguments:
        features.add("weights")
    if "dropout" in new_names or "dropout" in (declared.new or ""):
        features.add("dropout")
    if len(sources) > 1:
        features |= {"cross", "cross_sources"}
    probe.absent |= {name: f"its forward takes no {name}" for name in OPTIONS if name not in arguments}
    probe.absent |= dict(declared.unsupported)
    if len(sources) == 1:
        probe.absent |= dict.fromkeys(
            ("cross", "cross_sources"), "it takes one input: keys come from the queries"
        )
    flag = "causal" in arguments and "causal" not in declared.unsupported
    causal = declared.causal or ("flag" if flag else "never")
    probe.set(
        sources=tuple(sources),
        causal=causal,
        alignment=declared.alignment or "lower_right",
        max_len=declared.max_len,
    )
    probe.add(*features)


def plain_call(probe: Probe, run: Runner) -> bool:
    """Make one call; a layer that cannot be called keeps its clauses, and they say why."""
    layer, error = attempt(lambda: run.layer(run.case())[0])
    inputs = run.case().layer_inputs()
    outcome, error = attempt(lambda: layer.run(inputs)) if error is None else (None, error)
    if isinstance(error, SubjectError):
        place = f" at {error.place}" if error.place else ""
        if error.kind == "TypeError" and "argument" in error.message and error.place is None:
            said = ", ".join(f"{name}={meaning}" for meaning, name in probe.declaration.arguments.items())
            raise TargetError(
                f"{probe.target.name}: it cannot be called with f({said}): {error}\n  say how to call "
                f"it: --call 'f({said})'"
            )
        probe.find("call", f"a plain call raises {error}{place}", "probed")
        return False
    assert outcome is not None
    _pick_output(probe, run, layer, inputs, outcome)
    return True


def _pick_output(probe: Probe, run: Runner, layer: Layer, inputs: LayerInputs, outcome: Outcome) -> None:
    """Find the output and the weights among what is returned."""
    size = inputs.query.shape
    again = LastCall.again
    result, _ = attempt(lambda: guarded(again)) if again is not None else (None, None)
    members = members_of(result)
    if probe.declaration.output is None and outcome.raw.shape != size:
        other = [i for i, m in enumerate(members) if isinstance(m, Tensor) and m.shape == size]
        if other:
            probe.declare(output=f"result[{other[0]}]")
            probe.find("returns", f"the output as member {other[0]}", "probed", "output=result[0]")
    rows = (inputs.query.shape[1], inputs.key_input.shape[1])
    if (
        "return_weights" not in probe.declaration.arguments
        and len(members) > 1
        and isinstance(members[1], Tensor)
        and members[1].shape[-2:] == rows
    ):
        _weights_or_scores(probe, members[1])


def _weights_or_scores(probe: Probe, second: Tensor) -> None:
    """Take what is returned beside the output for the weights, unless its rows are none."""
    mass = second.detach().double().sum(-1)
    # Weights that are off by less than half of all mass are weights, and wrong; scores are not near 1.
    if bool(((mass - 1).abs() < 0.5).all()) and bool((second >= 0).all()):
        probe.add("weights")
        return
    probe.absent["weights"] = "what it returns beside the output are no weights"
    probe.ask(
        "weights.rows",
        "beside the output it returns as many numbers as there are weights, but their rows do not sum to 1: "
        "are they meant to be something else, such as the scores? If so, declare it; if they are meant to be "
        "the weights, these are wrong",
        'unsupported.weights="it returns scores"',
    )
