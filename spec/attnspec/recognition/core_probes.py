"""Experiments on a core: dtypes, grouped heads, widths, mask polarity, causal alignment."""

from typing import Any

from .._inputs import CoreInputs
from ..conformance.cases import Case
from ..conformance.failures import SubjectError
from ..conformance.space import ALL_DTYPES, Space
from ..conformance.subject import CoreSubject
from ..declaration import Declaration
from ..loading import Target
from .experiments import Probe, agrees, attempt
from .findings import Finding
from .polarity import decide_polarity

BASE = Case(batch=2, heads=2, kv_heads=2, q_len=3, kv_len=3, d_k=4, d_v=4, seed=11)
OPTIONS = ("mask", "bias", "window", "softcap", "scale")
REFUSALS = ("NotImplementedError", "ValueError", "TypeError", "AssertionError", "UnsupportedFeatureError", "ShapeError", "DtypeError")


def probe_core(target: Target, declaration: Declaration, findings: list[Finding]) -> Probe:
    """Find out what a core supports and which conventions it follows."""
    arguments = declaration.arguments
    features = {name for name in OPTIONS if name in arguments} | {"cross", "value_width"}
    if "dropout" in arguments:
        features.add("dropout")
    if "return_weights" in arguments:
        features.add("weights")
    causal = declaration.causal or ("flag" if "causal" in arguments else "never")
    features -= set(declaration.unsupported)
    space = Space(contract="core", features=frozenset(features), causal=causal, alignment=declaration.alignment or "lower_right")  # type: ignore[arg-type]
    probe = Probe(declaration, space, absent={name: f"it takes no {name}" for name in OPTIONS if name not in arguments})
    probe.absent |= {name: reason for name, reason in declaration.unsupported.items()}

    def run(inputs: CoreInputs, **changes: Any) -> Any:
        subject = CoreSubject(target.object, probe.declaration.replace(**changes), target.namespace, probe.space, name=target.name)
        return subject.run(inputs).output

    _dtypes(probe, run, findings)
    _optional(probe, run)
    _causality(probe, run, findings)
    _alignment(probe, run, findings)
    decide_polarity(target, probe, run, findings, case=BASE.replace(dtype=probe.space.dtypes[0]))
    return probe


def _set(probe: Probe, **changes: Any) -> None:
    from dataclasses import replace

    probe.space = replace(probe.space, **changes)


def _dtypes(probe: Probe, run: Any, findings: list[Finding]) -> None:
    """Keep the dtypes in which a plain call runs; at least one must."""
    wanted = probe.declaration.dtypes or ALL_DTYPES
    kept, first = [], None
    for dtype in wanted:
        _, error = attempt(lambda dtype=dtype: run(BASE.replace(dtype=dtype).core_inputs()))
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


def _optional(probe: Probe, run: Any) -> None:
    """Find out whether heads may be grouped, lengths and widths differ."""
    dtype = probe.space.dtypes[0]
    features = set(probe.space.features)
    case = BASE.replace(dtype=dtype)
    _, error = attempt(lambda: run(case.replace(heads=4, kv_heads=2).core_inputs()))
    if error is None and "grouped" not in probe.declaration.unsupported:
        features.add("grouped")
    else:
        probe.absent["grouped"] = f"fewer key/value heads are refused: {error}"
    for feature, changes in (("cross", {"kv_len": 5}), ("value_width", {"d_v": 7})):
        _, error = attempt(lambda changes=changes: run(case.replace(**changes).core_inputs()))
        if isinstance(error, SubjectError) and error.kind in REFUSALS:
            features.discard(feature)
            probe.absent[feature] = f"it is refused: {error}"
    _set(probe, features=frozenset(features))


def _causality(probe: Probe, run: Any, findings: list[Finding]) -> None:
    """Without a flag, is it always causal? Only if the causal answer fits and the full one does not."""
    if probe.declaration.causal is not None or probe.space.causal == "flag":
        return
    case = BASE.replace(dtype=probe.space.dtypes[0])
    inputs = case.core_inputs()
    output, _ = attempt(lambda: run(inputs))
    if agrees(output, inputs.replace(causal=True)) and not agrees(output, inputs):
        probe.declaration = probe.declaration.replace(causal="always")
        _set(probe, causal="always")
        findings.append(Finding("causal", "always on", "probed", "causal=never"))


def _alignment(probe: Probe, run: Any, findings: list[Finding]) -> None:
    """Which way is causal aligned when lengths differ? Decided only if one alternative fits and the other does not."""
    if probe.declaration.alignment is not None or not probe.space.has("causal") or not probe.space.has("cross"):
        return
    fits = {}
    for alignment in ("lower_right", "upper_left"):
        inputs = BASE.replace(dtype=probe.space.dtypes[0], q_len=2, kv_len=5, causal=True, alignment=alignment).core_inputs()
        output, _ = attempt(lambda inputs=inputs: run(inputs))
        fits[alignment] = agrees(output, inputs)
    if fits["upper_left"] and not fits["lower_right"]:
        _set(probe, alignment="upper_left")
        findings.append(Finding("causal", "aligned upper left when lengths differ", "probed", "alignment=lower_right"))
    probe.declaration = probe.declaration.replace(alignment=probe.space.alignment)
