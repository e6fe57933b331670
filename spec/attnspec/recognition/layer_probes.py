"""Experiments on a layer: how it is called, which inputs it takes, what it supports."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .._errors import TargetError
from .._inputs import LayerInputs
from .._slots import Slots
from ..conformance.cases import Case
from ..conformance.failures import NotApplicable, SubjectError
from ..conformance.layer_subject import Layer, LayerSubject
from ..conformance.space import ALL_DTYPES, Space
from ..conformance.subject import LAYER_AXES, Outcome, members_of
from ..declaration import Declaration
from ..loading import Target
from . import documented
from .core_probes import OPTIONS, hides_future, settle_alignment
from .experiments import Probe, attempt, is_refusal, moved, rows_changed, seen_layer
from .masks import decide_masks
from .names import CALL_CONSTANTS, CALL_NAMES, COS, NEUTRAL_ARGUMENTS, NEW_NAMES, match_names, parameters_of
from .surroundings import decide_dropout, decide_weights

BASE = Case(batch=2, heads=3, kv_heads=3, q_len=4, kv_len=4, d_k=6, d_v=6, seed=17, dtype="float32")
SEQUENCE_FIRST = "q_len batch d_model"


def probe_layer(
    target: Target,
    declaration: Declaration,
    namespace: Mapping[str, Any],
    stated: Declaration,
    fixed: Mapping[str, int],
) -> Probe:
    """Find out how a layer is used, where its weights are, and what it supports."""
    space = Space(
        contract="layer", sources=("self",), fixed={k: v for k, v in fixed.items() if k != "d_model"}
    )
    probe = Probe(target, namespace, declaration, space, stated=stated, heads=fixed.get("heads", BASE.heads))
    new_names = match_names(parameters_of(target.object), NEW_NAMES)
    module = _construct(probe)
    _call_form(probe, module)
    _read_names(probe, new_names)
    if "kv_heads" in (declaration.new or "") or "group" in new_names:
        probe.add("grouped")
    run = Runner(probe)
    alive = _plain_call(probe, run)
    if alive:
        _axes(probe, run)
        _causality(probe, run)
    decide_weights(probe, run)
    _biases(probe)
    _dtypes(probe, run)
    if alive:
        _cache(probe, module)
        decide_dropout(probe, run)
        _refused(probe, run)
        _alignment(probe, run)
        _length(probe, run)
        decide_masks(probe, run.see, sizes=(BASE.batch, BASE.q_len, BASE.kv_len))
        if "mask" in probe.declaration.arguments or "padding" in probe.declaration.arguments:
            _together(probe, run)
    return probe


class Runner:
    """Runs the layer as it is known so far; `changes` try another declaration."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe

    def case(self, **changes: Any) -> Case:
        """Return a case that the layer can take; its sizes all differ where they are free."""
        case = BASE.replace(**changes)
        if self.probe.space.has("grouped") and not self.probe.space.fixed and "heads" not in changes:
            case = case.replace(heads=4, kv_heads=2)
        fitted = self.probe.space.fit(case)
        return case if fitted is None else fitted

    def subject(self, **changes: Any) -> LayerSubject:
        """Return the layer under a declaration with some changes."""
        return LayerSubject(
            self.probe.declaration.replace(**changes),
            self.probe.namespace,
            self.probe.space,
            name=self.probe.target.name,
        )

    def layer(self, case: Case, **changes: Any) -> tuple[Layer, LayerInputs]:
        """Return one module with weights in it, and inputs for it."""
        return self.subject(**changes).build_any(case), case.layer_inputs()

    def see(self, mask: Tensor | None, changes: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Return what each query is seen to use under a mask, where that can be told, and the output."""
        source = "memory" if self.probe.space.has("cross") else "self"
        case = self.case(sources=source).replace(
            batch=BASE.batch, q_len=BASE.q_len, kv_len=BASE.kv_len, causal=False
        )
        layer, inputs = self.layer(case, **changes)
        if mask is not None and mask.shape[1] > 1:
            mask = mask[:, :1].expand(-1, inputs.weights.heads, -1, -1)
        inputs = inputs.replace(mask=mask)
        if mask is None or bool(mask.all()):
            return torch.empty(0), torch.empty(0), layer.run(inputs).output
        return *seen_layer(lambda changed: layer.run(changed).output, inputs), layer.run(inputs).output


def _construct(probe: Probe) -> nn.Module:
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
        name = getattr(probe.target.object, "__name__", "it")
        new = (probe.declaration.new or "").replace("_target", name)
        raise TargetError(
            f"{probe.target.name}: it cannot be constructed with {new}: {error}{place}\n"
            f"  say how, in the names d_model heads kv_heads d_k d_v bias dropout max_len: --new '{new}'"
        ) from None


def _call_form(probe: Probe, module: nn.Module) -> None:
    """Read from names what the call takes; what is wanted beside it is undone."""
    declared = probe.declaration
    parameters = parameters_of(module.forward)
    if declared.call is not None:
        from .recognise import names_in_call

        probe.declare(arguments=names_in_call(declared.call))
        probe.set(even_widths=any(word in declared.call for word in ("d_k // 2", COS)))
        return
    arguments = {**match_names(parameters, CALL_NAMES), **declared.arguments}
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
    probe.declare(arguments=arguments)
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


def _read_names(probe: Probe, new_names: Mapping[str, str]) -> None:
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
    causal = declared.causal or ("flag" if "causal" in arguments else "never")
    probe.set(
        sources=tuple(sources),
        causal=causal,
        alignment=declared.alignment or "lower_right",
        max_len=declared.max_len,
    )
    probe.add(*features)


def _plain_call(probe: Probe, run: Runner) -> bool:
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
    size, kept = inputs.query.shape, []
    forward = layer.module.register_forward_hook(lambda module, args, result: kept.append(result))
    attempt(lambda: layer.run(inputs))
    forward.remove()
    members = members_of(kept[-1]) if kept else []
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
        probe.add("weights")


def _axes(probe: Probe, run: Runner) -> None:
    """Which axis does it mix? The batch must never meet; if only axis 0 mixes, it may be the sequence."""
    if probe.declaration.layout is not None:
        probe.find("axes", probe.declaration.layout, "declared")
        return
    layer, inputs = run.layer(run.case())
    before, error = attempt(lambda: layer.run(inputs).raw)
    if error is not None or before.shape != inputs.query.shape:
        return
    mixes = [False, False]
    for axis, length in ((0, inputs.query.shape[0]), (1, inputs.query.shape[1])):
        for position in range(length):
            after = layer.run(inputs.replace(query=moved(inputs.query, axis, position))).raw
            changed = rows_changed(before, after)
            others = [i for i in range(length) if i != position]
            mixes[axis] |= bool(changed.index_select(axis, torch.tensor(others)).any())
    if mixes[0] and not mixes[1]:
        probe.declare(layout=SEQUENCE_FIRST)
        said = documented.sequence_first(probe.target)
        probe.find(
            "axes",
            f"{SEQUENCE_FIRST}" + (", as its own words say" if said else ""),
            "documented" if said else "probed",
            f'layout="{LAYER_AXES}"',
        )
        if not said:
            probe.ask(
                "value.batch_independent",
                f"it attends along axis 0: is its input {SEQUENCE_FIRST!r}? If it is, declare it and the "
                "other clauses stand as reported;"
                f" if axis 0 is the batch, samples attend to each other and no position to another",
                f'layout="{SEQUENCE_FIRST}"',
            )  # fmt: skip


def _causality(probe: Probe, run: Runner) -> None:
    """Always causal? Only if nobody is seen to use a later key, while some use an earlier one."""
    if probe.declaration.causal is not None:
        return
    layer, inputs = run.layer(run.case())
    if probe.space.causal == "flag":
        inputs = run.layer(run.case(causal=True))[1]
        _, error = attempt(lambda: layer.run(inputs.replace(causal=True)))
        if error is not None and is_refusal(error, probe.declaration.arguments["causal"]):
            probe.set(causal="never")
            probe.absent["causal"] = f"its causal flag alone is refused: {error}"
        return
    found, error = attempt(lambda: seen_layer(lambda changed: layer.run(changed).output, inputs))
    if error is None and hides_future(found[0] & found[1]):
        probe.declare(causal="always")
        probe.set(causal="always")
        probe.find("causal", "always on", "probed", "causal=never")
    elif error is None and hides_future((found[0] & found[1]).transpose(-1, -2)):
        probe.declare(causal="always")
        probe.set(causal="always")
        probe.find(
            "causal",
            "the past is hidden instead of the future: no convention; it is held to causal",
            "probed",
            "causal=never",
        )


def _length(probe: Probe, run: Runner) -> None:
    """Is there a buffer that ends? Longer sequences must then raise."""
    if probe.declaration.max_len is not None or probe.space.causal != "always":
        return
    if "max_len" in (probe.declaration.new or ""):
        probe.find("length", "limited by its constructor (max_len)", "by name", "max_len=64")
        return
    layer, _ = run.layer(run.case())
    tensors = [
        t
        for m in layer.module.modules()
        for t in (*vars(m).values(), *m._buffers.values())
        if isinstance(t, Tensor)
    ]
    square = [
        t.shape[-1]
        for t in tensors
        if t.dim() >= 2
        and t.shape[-1] == t.shape[-2]
        and not isinstance(t, nn.Parameter)
        and t.shape[-1] > BASE.q_len
    ]
    if square:
        probe.set(max_len=min(square))
        probe.declare(max_len=min(square))
        probe.find("length", f"a buffer ends at {min(square)}", "probed", "max_len=64")


def _cache(probe: Probe, module: nn.Module) -> None:
    """Name a cache that the call takes: it is not used here."""
    taken = [n for n in parameters_of(module.forward) if "past" in n or "cache" in n]
    if taken and probe.declaration.contract != "cached":
        probe.find(
            "adds", f"a cache ({', '.join(taken)}), not used and not checked", "by name", "contract=cached"
        )


def _biases(probe: Probe) -> None:
    if probe.space.has("parameters"):
        has_any = any(name.startswith("b_") for name in Slots(probe.declaration.weights).names)
        probe.set(
            biases=(True, False) if has_any and not probe.space.fixed else (True,) if has_any else (False,)
        )


def _dtypes(probe: Probe, run: Runner) -> None:
    """Keep the dtypes in which a plain call runs."""
    wanted = probe.declaration.dtypes or ALL_DTYPES
    kept = []
    for dtype in wanted:

        def call(dtype: str = dtype) -> Any:
            layer, inputs = run.layer(run.case(dtype=dtype))
            return layer.run(inputs)

        _, error = attempt(call)
        if error is None:
            kept.append(dtype)
        else:
            probe.absent[dtype] = f"a plain call in {dtype} raises {error}"
    if kept:
        probe.set(dtypes=tuple(kept))
        if len(kept) < len(wanted):
            probe.find("dtypes", " ".join(kept), "probed")


def _refused(probe: Probe, run: Runner) -> None:
    """Which named options are refused, or need another form?"""
    tries: dict[str, dict[str, Any]] = {
        "scale": {"scale": 0.3},
        "softcap": {"softcap": 2.0},
        "window": {"window": (1, 1)},
        "bias": {"bias": "hqk"},
    }
    for feature, changes in tries.items():
        if probe.space.has(feature):
            layer, inputs = run.layer(run.case(**changes))
            _, error = attempt(partial(layer.run, inputs))
            if error is not None and is_refusal(error, probe.declaration.arguments.get(feature, feature)):
                probe.drop(feature, f"it is refused: {error}")
    if probe.space.has("cross"):
        layer, inputs = run.layer(run.case(sources="memory", q_len=3, kv_len=5))
        before, error = attempt(lambda: layer.run(inputs).output)
        if error is None and inputs.key is not None:
            other = inputs.replace(key=inputs.key * -2 + 1)
            after, _ = attempt(lambda: layer.run(other).output)
            if (
                after is not None
                and after.shape == before.shape
                and not bool(rows_changed(before, after).any())
            ):
                _ignored_key(probe)
        if isinstance(error, NotApplicable) or (error is not None and is_refusal(error, "length")):
            for feature in ("cross", "cross_sources"):
                probe.drop(feature, f"another length of the keys is refused: {error}")
            probe.set(sources=("self",))


def _ignored_key(probe: Probe) -> None:
    """An input for keys that has no effect: for another way to construct it, or forgotten."""
    name = probe.declaration.arguments.get("key", "key")
    for feature in ("cross", "cross_sources"):
        probe.drop(feature, f"its {name} has no effect as it is constructed")
    probe.set(sources=("self",))
    probe.find(
        "inputs", f"{name} is taken and has no effect", "probed", 'unsupported.cross="self-attention only"'
    )
    probe.ask(
        "value.cross_sources",
        f"its {name} is taken and has no effect: is it meant for another way to construct the layer? If "
        "so, declare it;"
        " if not, keys and values come from the wrong input",
        'unsupported.cross="self-attention only"',
    )  # fmt: skip


def _alignment(probe: Probe, run: Runner) -> None:
    if (
        probe.declaration.alignment is not None
        or not probe.space.has("causal")
        or not probe.space.has("cross")
    ):
        return
    layer, inputs = run.layer(run.case(q_len=2, kv_len=5, causal=True, sources="memory"))
    found, error = attempt(lambda: seen_layer(lambda changed: layer.run(changed).output, inputs))
    if error is None:
        settle_alignment(probe, found[0])
    probe.declare(alignment=probe.space.alignment)


def _together(probe: Probe, run: Runner) -> None:
    """Are a mask and the causal flag refused together?"""
    if probe.space.causal != "flag":
        return
    layer, inputs = run.layer(run.case(mask="all", causal=True))
    _, error = attempt(lambda: layer.run(inputs))
    if (
        error is not None
        and not isinstance(error, NotApplicable)
        and is_refusal(error, probe.declaration.arguments.get("causal", "causal"))
    ):
        probe.set(apart=(*probe.space.apart, ("mask", "causal")))
        probe.find("mask", f"refused together with causal: {error}", "probed")
