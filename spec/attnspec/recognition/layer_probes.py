"""Experiments on a layer: where its weights are, which inputs it takes, what it supports."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from .._errors import TargetError
from .._inputs import LayerInputs
from .._slots import Slots
from ..conformance.cases import Case
from ..conformance.failures import SubjectError
from ..conformance.layer_subject import LayerSubject
from ..conformance.space import ALL_DTYPES, Space
from ..declaration import Declaration
from ..loading import Target
from .core_probes import OPTIONS, _set
from .experiments import Probe, agrees, attempt, distance
from .findings import Finding
from .names import CALL_NAMES, NEW_NAMES, match_names, parameters_of
from .places import Places, candidate_places
from .polarity import decide_polarity

BASE = Case(batch=2, heads=3, kv_heads=3, q_len=4, kv_len=4, d_k=5, d_v=5, seed=17, dtype="float32")


def probe_layer(target: Target, declaration: Declaration, namespace: Mapping[str, Any], findings: list[Finding]) -> Probe:
    """Find out how a layer is used, where its weights are, and what it supports."""
    space = Space(contract="layer", sources=("self",))
    probe = Probe(declaration, space)
    new_names = match_names(parameters_of(target.object), NEW_NAMES)
    grouped = "kv_heads" in (declaration.new or "") or "group" in new_names
    module = _construct(target, declaration, namespace, space)
    _signature(probe, module, new_names)
    if grouped:
        _set(probe, features=probe.space.features | {"grouped"})
    _weights(target, probe, namespace, findings)
    subject = LayerSubject(probe.declaration, namespace, probe.space, name=target.name)
    runner = _Runner(target, probe, namespace)
    if probe.space.has("parameters"):
        _biases(probe, subject)
    _dtypes(probe, runner, findings)
    _causality(probe, runner, findings)
    _alignment(probe, runner, findings)
    if probe.space.has("parameters"):
        decide_polarity(target, probe, runner, findings, case=BASE)
    return probe


class _Runner:
    """Runs the layer as it is known so far; `changes` try another declaration."""

    def __init__(self, target: Target, probe: Probe, namespace: Mapping[str, Any]) -> None:
        self.target, self.probe, self.namespace = target, probe, namespace

    def subject(self, **changes: Any) -> LayerSubject:
        return LayerSubject(self.probe.declaration.replace(**changes), self.namespace, self.probe.space, name=self.target.name)

    def inputs(self, case: Case) -> LayerInputs:
        fitted = self.probe.space.fit(case)
        assert fitted is not None
        return self.subject().layer_inputs(fitted)

    def __call__(self, inputs: LayerInputs, **changes: Any) -> Any:
        return self.subject(**changes).run_layer(inputs).output


def _construct(target: Target, declaration: Declaration, namespace: Mapping[str, Any], space: Space) -> torch.nn.Module:
    subject = LayerSubject(declaration.replace(weights={}), namespace, space, name=target.name)
    try:
        return subject.construct(d_model=15, heads=3, kv_heads=3, d_k=5, d_v=5)
    except SubjectError as error:
        place = f"\n  {error.place}" if error.place else ""
        new = (declaration.new or "").replace("_target", getattr(target.object, "__name__", "it"))
        raise TargetError(
            f"{target.name}: it cannot be constructed with {new}: {error}{place}\n"
            "  say how: --new 'Class(d_model, heads)' with the names d_model heads kv_heads d_k d_v bias dropout max_len"
        ) from None


def _signature(probe: Probe, module: torch.nn.Module, new_names: Mapping[str, str]) -> None:
    """Read from names what the call takes."""
    declared = probe.declaration
    if declared.call is not None:
        from .recognise import names_in_call

        arguments = names_in_call(declared.call)
    else:
        arguments = {**match_names(parameters_of(module.forward), CALL_NAMES), **declared.arguments}
        if "query" not in arguments:
            positional = [n for n, p in parameters_of(module.forward).items() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
            if not positional:
                raise TargetError("its forward takes no tensor\n  say how to call it: --call 'f(query, mask=mask)'")
            arguments["query"] = positional[0]
    sources = ["self"]
    if "key" in arguments:
        sources.append("memory")
        if "value" in arguments:
            sources.append("separate")
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
        probe.absent |= dict.fromkeys(("cross", "cross_sources"), "it takes one input: keys come from the queries")
    causal = declared.causal or ("flag" if "causal" in arguments else "never")
    probe.declaration = declared.replace(arguments=arguments)
    _set(
        probe, features=frozenset(features - set(declared.unsupported)), sources=tuple(sources), causal=causal,
        alignment=declared.alignment or "lower_right", max_len=declared.max_len,
    )  # fmt: skip


def _weights(target: Target, probe: Probe, namespace: Mapping[str, Any], findings: list[Finding]) -> None:
    """Decide where the weights are: of all readings that names and shapes allow, the one that computes the oracle's answer."""
    declared = probe.declaration
    case = BASE.replace(heads=4, kv_heads=2, d_k=5, d_v=5) if probe.space.has("grouped") else BASE
    sizes = {"d_model": case.d_model, "heads": case.heads, "kv_heads": case.kv_heads, "d_k": case.d_k, "d_v": case.d_v}
    if declared.weights:
        readings: list[Places] = [dict(declared.weights)]
    else:
        subject = LayerSubject(declared.replace(weights={}), namespace, probe.space, name=target.name)
        module, error = attempt(lambda: subject.construct(**sizes))
        readings = [] if error is not None else candidate_places(module, sizes)
    if not readings:
        for feature in ("parameters", "inputs_known"):
            probe.absent[feature] = "its weights were not recognised; declare them with --declare weights.W_q=<path>"
        findings.append(Finding("weights", "not recognised", "probed", "weights.W_q=<path>"))
        return
    chosen = readings[0] if len(readings) == 1 else _closest(target, probe, namespace, readings, case)
    probe.declaration = declared.replace(weights=chosen)
    _set(probe, features=probe.space.features | {"parameters", "inputs_known"})
    how = "declared" if declared.weights else "by name" if len(readings) == 1 else "probed"
    findings.append(Finding("weights", describe_places(chosen), how, "weights.W_q=<path>"))


def _closest(target: Target, probe: Probe, namespace: Mapping[str, Any], readings: list[Places], case: Case) -> Places:
    """Try each reading, on one position first (where scale, softmax and masks cannot matter), then on several."""
    scored = []
    for order, places in enumerate(readings):
        declaration = probe.declaration.replace(weights=places)
        subject = LayerSubject(declaration, namespace, probe.space, name=target.name)
        gaps = []
        for length in (1, 4):
            def run(length: int = length, subject: LayerSubject = subject) -> float:
                inputs = subject.layer_inputs(case.replace(q_len=length, kv_len=length))
                full = distance(subject.run_layer(inputs).output, inputs)
                causal = distance(subject.run_layer(inputs).output, inputs.replace(causal=True))
                return min(full, causal)

            gap, error = attempt(run)
            gaps.append(float("inf") if error is not None else round(gap, 6))
        scored.append((*gaps, order))
    return readings[min(range(len(readings)), key=lambda i: scored[i])]


def describe_places(places: Mapping[str, str]) -> str:
    """Say in a few words where the weights are."""
    words = []
    for name, place in places.items():
        path, _, axes = (part.strip() for part in place.partition(":"))
        if not name.startswith("W_"):
            continue
        stem = path.removesuffix(".weight")
        note = ""
        if name == "W_qkv":
            interleaved = axes.replace("d_model", "").split()[0].startswith(("heads*3", "heads"))
            note = " (interleaved by head)" if interleaved else " (stacked)"
        elif axes.startswith("d_model") and name != "W_o":
            note = " (transposed)"
        words.append(stem + note)
    biases = " with bias" if any(n.startswith("b_") for n in places) else " without bias"
    missing = "" if "W_o" in places else ", no output projection"
    return " ".join(words) + biases + missing


def _biases(probe: Probe, subject: LayerSubject) -> None:
    has_any = any(name.startswith("b_") for name in Slots(probe.declaration.weights).names)
    _set(probe, biases=(True, False) if has_any else (False,))


def _dtypes(probe: Probe, run: _Runner, findings: list[Finding]) -> None:
    wanted = probe.declaration.dtypes or ALL_DTYPES
    if not probe.space.has("parameters"):
        return
    kept, first = [], None
    for dtype in wanted:
        _, error = attempt(lambda dtype=dtype: run(run.inputs(BASE.replace(dtype=dtype))))
        if error is None:
            kept.append(dtype)
        else:
            first = first or error
            probe.absent[dtype] = f"a plain call in {dtype} raises {error}"
    if not kept:
        assert first is not None
        raise first
    _set(probe, dtypes=tuple(kept))
    if len(kept) < len(wanted):
        findings.append(Finding("dtypes", " ".join(kept), "probed"))


def _causality(probe: Probe, run: _Runner, findings: list[Finding]) -> None:
    if probe.declaration.causal is not None or probe.space.causal == "flag" or not probe.space.has("parameters"):
        return
    inputs = run.inputs(BASE)
    output, _ = attempt(lambda: run(inputs))
    if agrees(output, inputs.replace(causal=True)) and not agrees(output, inputs):
        probe.declaration = probe.declaration.replace(causal="always")
        _set(probe, causal="always")
        findings.append(Finding("causal", "always on", "probed", "causal=never"))


def _alignment(probe: Probe, run: _Runner, findings: list[Finding]) -> None:
    if probe.declaration.alignment is not None or not probe.space.has("causal") or not probe.space.has("cross"):
        return
    if not probe.space.has("parameters"):
        return
    fits = {}
    for alignment in ("lower_right", "upper_left"):
        inputs = run.inputs(BASE.replace(q_len=2, kv_len=5, causal=True, sources="memory")).replace(alignment=alignment)
        output, _ = attempt(lambda inputs=inputs: run(inputs))
        fits[alignment] = agrees(output, inputs)
    if fits["upper_left"] and not fits["lower_right"]:
        _set(probe, alignment="upper_left")
        findings.append(Finding("causal", "aligned upper left when lengths differ", "probed", "alignment=lower_right"))
    probe.declaration = replace(probe.declaration, alignment=probe.space.alignment)
