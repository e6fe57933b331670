"""Experiments on a core: how to call it, its axes, dtypes, grouped heads, widths, masks, causal alignment."""

from collections.abc import Mapping
from functools import partial
from inspect import Parameter
from typing import Any

import torch
from torch import Tensor, nn

from .._inputs import CoreInputs
from ..conformance.caller import Outcome
from ..conformance.cases import Case
from ..conformance.failures import NotApplicable, SubjectError
from ..conformance.space import ALL_DTYPES, Space
from ..conformance.subject import CoreSubject
from ..declaration import Declaration
from ..loading import Target
from .core_axes import decide_axes
from .experiments import (
    REFUSALS,
    Probe,
    attempt,
    batch_of,
    hides_future,
    is_refusal,
    moved,
    rows_changed,
    seen_core,
    settle_alignment,
)
from .masks import decide_masks
from .names import OPTIONS, parameters_of
from .needed_mask import find_needed_mask, settle_needed_mask

BASE = Case(batch=2, heads=3, kv_heads=3, q_len=5, kv_len=5, d_k=4, d_v=4, seed=11)


def probe_core(
    target: Target, declaration: Declaration, namespace: Mapping[str, Any], stated: Declaration
) -> Probe:
    """Find out what a core supports and which conventions it follows."""
    arguments = declaration.arguments
    features = {name for name in OPTIONS if name in arguments} | {"cross", "value_width"}
    features |= {"dropout"} & set(arguments)
    features |= {"weights"} if "return_weights" in arguments else set()
    causal = declaration.causal or ("flag" if "causal" in arguments else "never")
    features -= set(declaration.unsupported)
    space = Space(
        contract="core",
        features=frozenset(features),
        causal=causal,  # type: ignore[arg-type]
        alignment=declaration.alignment or "lower_right",  # type: ignore[arg-type]
    )
    probe = Probe(target, namespace, declaration, space, stated=stated, heads=BASE.heads)
    probe.absent |= {name: f"it takes no {name}" for name in OPTIONS if name not in arguments}
    probe.absent |= dict(declaration.unsupported)
    run = _Runner(probe)
    find_needed_mask(probe, target.object, run.follows_keys)
    decide_axes(probe, run, BASE)
    if _dtypes(probe, run):
        _dropout_form(probe)
        _members(probe, run)
        _options(probe, run)
        _dropout_refused(probe, run)
        _causality(probe, run)
        _alignment(probe, run)
        decide_masks(probe, run.see, sizes=(BASE.batch, BASE.q_len, BASE.kv_len))
        settle_needed_mask(probe)
        _together(probe, run)
    return probe


class _Runner:
    """Runs the core as it is known so far; `changes` try another declaration."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe

    def outcome(
        self, inputs: CoreInputs, *, want_weights: bool = False, dropout: float = 0.0, **changes: Any
    ) -> Outcome:
        probe = self.probe
        subject = CoreSubject(
            probe.target.object,
            probe.declaration.replace(**changes),
            probe.namespace,
            probe.space,
            name=probe.target.name,
        )
        return subject.run(inputs, want_weights=want_weights, dropout=dropout)

    def __call__(self, inputs: CoreInputs, **changes: Any) -> Tensor:
        return self.outcome(inputs, **changes).output

    def case(self, **changes: Any) -> Case:
        case = BASE.replace(dtype=self.probe.space.dtypes[0], **changes)
        return case.replace(causal=True) if self.probe.space.causal == "always" else case

    def follows_keys(self, declaration: Declaration) -> bool:
        """Return whether a call by a declaration runs, gives numbers, and changes with a key."""
        inputs = BASE.core_inputs()
        changes = {"call": declaration.call, "arguments": declaration.arguments}
        before, _ = attempt(lambda: self(inputs, **changes))
        after, _ = attempt(lambda: self(inputs.replace(key=moved(inputs.key, 2, 1)), **changes))
        if before is None or after is None or before.shape != after.shape:
            return False
        return bool(before.isfinite().all() and rows_changed(before, after).any())

    def see(self, mask: Tensor | None, changes: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Return what each query is seen to use under a mask, where that can be told, and the output."""
        inputs = self.case().replace(batch=batch_of(mask, BASE)).core_inputs().replace(mask=mask)
        if mask is None or bool(mask.all()):
            return torch.empty(0), torch.empty(0), self(inputs, **changes)
        seen = seen_core(lambda changed: self(changed, **changes), inputs)
        return seen, torch.ones_like(seen), self(inputs, **changes)


def _dtypes(probe: Probe, run: _Runner) -> bool:
    """Keep the dtypes in which a plain call runs; a core that runs in none keeps all: its clauses say why."""
    wanted = probe.declaration.dtypes or ALL_DTYPES
    kept, first = [], None
    for dtype in wanted:
        _, error = attempt(partial(run, BASE.replace(dtype=dtype).core_inputs()))
        if error is None:
            kept.append(dtype)
        else:
            first = first or error
            probe.absent[dtype] = f"a plain call in {dtype} raises {error}"
    if not kept:
        place = f" at {first.place}" if isinstance(first, SubjectError) and first.place else ""
        probe.find("call", f"a plain call raises {first}{place}", "probed")
        return False
    probe.set(dtypes=tuple(kept))
    if len(kept) < len(wanted):
        probe.find("dtypes", " ".join(kept), "probed")
    return True


def _dropout_form(probe: Probe) -> None:
    """Does it call what it is handed as dropout? Then it takes a module, and gets one."""
    if "dropout" not in probe.declaration.arguments or probe.declaration.call is not None:
        return
    subject = CoreSubject(
        probe.target.object, probe.declaration, probe.namespace, probe.space, name=probe.target.name
    )
    _, error = attempt(lambda: subject.run(BASE.core_inputs(), dropout=0.5))
    if not isinstance(error, SubjectError) or "not callable" not in error.message:
        return
    parameters = parameters_of(probe.target.object)
    words = {name: word for word, name in probe.declaration.arguments.items()}
    kept = {
        name: word
        for name, word in words.items()
        if parameters[name].default in (None, False, Parameter.empty)
    }
    said = ", ".join(
        f"{name}={word if word != 'dropout' else 'nn.Dropout(dropout) if dropout else None'}"
        for name, word in kept.items()
    )
    for word in set(words.values()) - set(kept.values()):
        probe.drop(word, f"it is left as it is by the call f({said})")
    probe.declare(call=f"f({said})", arguments={word: word for word in kept.values()})
    probe.find("dropout", "a module, handed over as nn.Dropout", "probed", "call=...")


def _members(probe: Probe, run: _Runner) -> None:
    """Does it return its weights without being asked?"""
    if "return_weights" in probe.declaration.arguments:
        return
    outcome, _ = attempt(lambda: run.outcome(run.case().core_inputs(), want_weights=True))
    if (
        outcome is not None
        and outcome.weights is not None
        and outcome.weights.shape[-2:] == (BASE.q_len, BASE.kv_len)
    ):
        probe.add("weights")


def _options(probe: Probe, run: _Runner) -> None:
    """Find out whether heads may be grouped, lengths and widths differ, and which options are refused."""
    _, error = attempt(lambda: run(run.case(heads=4, kv_heads=2).core_inputs()))
    if error is None and "grouped" not in probe.declaration.unsupported:
        probe.add("grouped")
    else:
        probe.absent["grouped"] = f"fewer key/value heads are refused: {error}"
    for feature, sizes in (("cross", {"kv_len": 7}), ("value_width", {"d_v": 7})):
        _, error = attempt(partial(run, run.case(**sizes).core_inputs()))
        if isinstance(error, SubjectError) and error.kind in REFUSALS:
            probe.drop(feature, f"it is refused: {error}")
    options: dict[str, Any] = {"scale": 0.3, "softcap": 2.0, "window": (1, 1), "bias": "hqk"}
    for feature, value in options.items():
        if probe.space.has(feature):
            _, error = attempt(partial(run, run.case(**{feature: value}).core_inputs()))
            if error is not None and is_refusal(error, probe.declaration.arguments.get(feature, feature)):
                probe.drop(feature, f"it is refused: {error}")


def _dropout_refused(probe: Probe, run: _Runner) -> None:
    """Code for inference takes a rate for the sake of its signature, and only 0."""
    if probe.space.has("dropout"):
        _, error = attempt(lambda: run(run.case().core_inputs(), dropout=0.5))
        if error is not None and is_refusal(error, probe.declaration.arguments.get("dropout", "dropout")):
            probe.drop("dropout", f"it is refused: {error}")


def _causality(probe: Probe, run: _Runner) -> None:
    """Without a flag, is it always causal? With one, is it refused?"""
    if probe.declaration.causal is not None:
        return
    inputs = BASE.replace(dtype=probe.space.dtypes[0]).core_inputs()
    if probe.space.causal == "flag":
        _, error = attempt(lambda: run(inputs.replace(causal=True)))
        if error is not None and is_refusal(error, probe.declaration.arguments["causal"]):
            probe.set(causal="never")
            probe.absent["causal"] = f"its causal flag is refused: {error}"
        return
    seen, error = attempt(lambda: seen_core(run, inputs))
    if error is None and bool(seen.any()) and hides_future(seen):
        probe.declare(causal="always")
        probe.set(causal="always")
        probe.find("causal", "always on", "probed", "causal=never")


def _alignment(probe: Probe, run: _Runner) -> None:
    """Which way is causal aligned when lengths differ? Decided only if just one alternative fits."""
    if (
        probe.declaration.alignment is not None
        or not probe.space.has("causal")
        or not probe.space.has("cross")
    ):
        return
    inputs = BASE.replace(dtype=probe.space.dtypes[0], q_len=2, kv_len=5, causal=True).core_inputs()
    seen, error = attempt(lambda: seen_core(run, inputs))
    if error is None:
        settle_alignment(probe, seen)
    elif is_refusal(error, "causal"):
        probe.absent["cross_causal"] = f"causal with other lengths is refused: {error}"
    probe.declare(alignment=probe.space.alignment)


def _together(probe: Probe, run: _Runner) -> None:
    """Are a mask or a bias and the causal flag refused together?

    Which kernel runs may depend on sizes, so several are tried.
    """
    if probe.space.causal != "flag":
        return
    for option, structure in (("mask", "random"), ("bias", "hqk")):
        error = _refused_with_causal(probe, run, {option: structure}) if probe.space.has(option) else None
        if error is not None:
            probe.set(apart=(*probe.space.apart, (option, "causal")))
            probe.absent[f"{option} with causal"] = f"{option} and causal together are refused: {error}"
            probe.find(option, f"refused together with causal: {error}", "probed")


def _refused_with_causal(probe: Probe, run: _Runner, option: dict[str, str]) -> Any:
    shapes = {
        "": {},
        "cross": {"kv_len": 7},
        "value_width": {"d_v": 7},
        "grouped": {"heads": 4, "kv_heads": 2},
    }
    for feature, changes in shapes.items():
        if feature and not probe.space.has(feature):
            continue
        for leaf in (False, True):
            inputs = run.case(causal=True, **option, **changes).core_inputs()
            inputs = inputs.replace(query=inputs.query.requires_grad_(leaf))
            _, error = attempt(partial(run, inputs))
            named = probe.declaration.arguments.get("causal", "causal")
            if error is not None and not isinstance(error, NotApplicable) and is_refusal(error, named):
                return error
    return None


def hugging_face_call(function: Any, parameters: Mapping[str, Any]) -> str | None:
    """Return the call of a function as transformers registers them: `(module, query, key, value, ...)`."""
    names = list(parameters)
    if len(names) < 4 or names[0] not in ("module", "self_module", "mod") or isinstance(function, nn.Module):
        return None
    import inspect

    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        source = ""
    takes_kwargs = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    held = [
        "num_key_value_groups=group",
        "training=dropout > 0",
        "config=SimpleNamespace(_attn_implementation='eager')",
    ]
    words = ["query", "key", "value", "mask" if names[4:5] else ""]
    if "is_causal" in names or "is_causal" in source:
        held.append("is_causal=causal")
        words += ["is_causal=causal"] if "is_causal" in names or takes_kwargs else []
    if "scaling" in names:
        words.append("scaling=d_k ** -0.5 if scale is None else scale")
    if "dropout" in names:
        words.append("dropout=dropout")
    return f"f(SimpleNamespace({', '.join(held)}), {', '.join(w for w in words if w)})"
