"""What a layer does, from experiments: which axis it mixes, causality, dtypes, and what it refuses."""

import re
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .._inputs import LayerInputs
from .._slots import Slots
from ..conformance.caller import LAYER_AXES, made_with
from ..conformance.failures import NotApplicable
from ..conformance.layer_subject import Layer
from ..conformance.space import ALL_DTYPES
from . import documented
from .experiments import (
    Probe,
    attempt,
    hides_future,
    is_refusal,
    moved,
    rows_changed,
    seen_layer,
    settle_alignment,
)
from .layer_runner import BASE, Runner
from .names import OPTION_NAMES, parameters_of

SEQUENCE_FIRST = "q_len batch d_model"


def decide_axes(probe: Probe, run: Runner) -> None:
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


def decide_causality(probe: Probe, run: Runner) -> None:
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
        elif error is None and "causal" in made_with(probe.declaration):
            _ask_without_effect(probe, layer, inputs)
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


def _ask_without_effect(probe: Probe, layer: Layer, inputs: LayerInputs) -> None:
    """A switch in the constructor that changes nothing: for another way to call the layer, or forgotten."""
    before, after = (layer.run(inputs.replace(causal=on)).output for on in (False, True))
    if bool(rows_changed(before, after).any()):
        return
    probe.set(causal="never")
    probe.absent["causal"] = "the switch for it in the constructor has no effect"
    probe.ask(
        "causal.value",
        "its constructor takes a switch for causality that changes nothing: does the caller's mask do that? "
        "If so, declare it; if not, every query sees the future",
        'unsupported.causal="the mask of the call does it"',
    )


def find_length(probe: Probe, run: Runner) -> None:
    """Is there a buffer that ends? Longer sequences must then raise."""
    if probe.declaration.max_len is not None or probe.space.causal != "always":
        return
    limits = re.findall(r"(\w+)=max_len\b", probe.declaration.new or "")
    if set(limits) - set(OPTION_NAMES["window"]):
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


def name_cache(probe: Probe, module: nn.Module) -> None:
    """Name a cache that the call takes: it is not used here."""
    taken = [n for n in parameters_of(module.forward) if "past" in n or "cache" in n]
    if taken and probe.declaration.contract != "cached":
        probe.find(
            "adds",
            f"a cache ({', '.join(taken)}), not used and not checked; --declare contract=cached checks it",
            "by name",
            "contract=cached",
        )


def note_biases(probe: Probe) -> None:
    if probe.space.has("parameters"):
        has_any = any(name.startswith("b_") for name in Slots(probe.declaration.weights).names)
        probe.set(
            biases=(True, False) if has_any and not probe.space.fixed else (True,) if has_any else (False,)
        )


def keep_dtypes(probe: Probe, run: Runner) -> None:
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


def find_refused(probe: Probe, run: Runner) -> None:
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


def decide_alignment(probe: Probe, run: Runner) -> None:
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


def find_apart(probe: Probe, run: Runner) -> None:
    """Are a mask and the causal flag refused together?"""
    if probe.space.causal != "flag":
        return
    case = run.case(mask="all", causal=True)
    # Which kernel runs, and so what it refuses, may depend on dropout.
    for rate in (0.0, 0.5) if probe.space.has("dropout") else (0.0,):
        layer, _ = attempt(partial(run.subject().build, case.layer_inputs().weights, dropout=rate))
        if layer is None:
            continue
        layer.module.train(rate > 0)
        _, error = attempt(partial(layer.run, case.layer_inputs()))
        if (
            error is not None
            and not isinstance(error, NotApplicable)
            and is_refusal(error, probe.declaration.arguments.get("causal", "causal"))
        ):
            probe.set(apart=(*probe.space.apart, ("mask", "causal")))
            probe.find("mask", f"refused together with causal: {error}", "probed")
            return
