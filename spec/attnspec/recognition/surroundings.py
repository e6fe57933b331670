"""Where the weights are, and what surrounds the attention: residual, norms, positions.

A reading says where the weights are; a view says what of the block is looked at (all of it, or the
attention's own output, norms taken out, positions undone). Of all pairs, the first view with a
reading that computes the exact answer is taken. If none does, the whole block with the nearest
reading is: what is wrong with it is for the clauses to say.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from .._slots import FUSED
from ..conformance.cases import Case
from ..conformance.layer_subject import LayerSubject
from ..declaration import Declaration
from . import documented
from .experiments import Probe, attempt, distance, rows_changed
from .findings import How
from .names import POSITION_BUFFERS, POSITION_PARAMETERS
from .places import Places, candidate_places, unnamed_places
from .roles import places_by_gradient

# Two readings of one set of numbers differ in the first digits; rounding of some products does not.
EXACT = float(torch.finfo(torch.float32).eps) ** 0.5


def decide_weights(probe: Probe, run: Any) -> None:
    """Decide where the weights are and what must be undone around the attention."""
    case = run.case(mask=None)
    sizes = {
        "d_model": case.d_model,
        "heads": case.heads,
        "kv_heads": case.kv_heads,
        "d_k": case.d_k,
        "d_v": case.d_v,
    }
    plain = LayerSubject(
        probe.declaration.replace(weights={}, bypass=(), neutral={}),
        probe.namespace,
        probe.space,
        name=probe.target.name,
    )
    module, error = attempt(lambda: plain.construct(**sizes))
    if error is not None:
        _unknown(probe, f"it cannot be constructed with d_model={case.d_model}, heads={case.heads}: {error}")
        return
    readings = (
        [dict(probe.declaration.weights)] if probe.declaration.weights else candidate_places(module, sizes)
    )
    named = bool(readings)
    if not probe.declaration.weights and (not named or "W_o" not in readings[0]):
        readings, named = _with_gradients(readings, plain, case, sizes)
    readings = readings or unnamed_places(module, sizes)
    if not readings:
        _unknown(probe, _no_names(module))
        return
    best: tuple[float, Places, Declaration] | None = None
    for view in _views(probe, module, readings[0]):
        places, gap = closest(probe, view, readings, case)
        # A view that is not exact is preferred only where it explains most of what is wrong.
        if best is None or gap < best[0] / 2:
            best = (gap, places, view)
        if gap < EXACT:
            break
    assert best is not None
    gap, places, view = best
    if not named and gap >= EXACT:
        _unknown(probe, _no_names(module))
        return
    if not named and _ambiguous(probe, view, readings, case):
        _unknown(probe, "two readings of its parameters give the same output; " + _no_names(module))
        return
    probe.declare(weights=places, tap=view.tap, bypass=view.bypass, neutral=view.neutral)
    probe.add("parameters", "inputs_known")
    how: How = "declared" if probe.stated.weights else "by name" if len(readings) == 1 else "probed"
    probe.find("weights", describe_places(places), how, "weights.W_q=<path>")
    _tell(probe, run, module, case)


def _with_gradients(
    readings: list[Places], plain: LayerSubject, case: Case, sizes: Mapping[str, int]
) -> tuple[list[Places], bool]:
    """Return readings with what names do not tell, an output projection or all of it, told by gradients."""

    def read() -> Places | None:
        layer = plain.build_any(case.replace(dtype="float64"))
        inputs = case.replace(dtype="float64", mask=None, causal=False).layer_inputs()

        def output(tensor: torch.Tensor) -> torch.Tensor:
            return layer.run(inputs.replace(query=tensor, key=None, value=None)).output

        return places_by_gradient(layer.module, output, sizes)

    told, _ = attempt(read)
    if not told:
        return readings, bool(readings)
    if not readings:
        return [told], True
    ends = {name: place for name, place in told.items() if name in ("W_o", "b_o")}
    return [{**places, **ends} for places in readings], True


def _no_names(module: nn.Module) -> str:
    listed = [f"{name} {tuple(p.shape)}" for name, p in module.named_parameters()]
    listed = [*listed[:6], f"and {len(listed) - 6} more"] if len(listed) > 7 else listed
    first = next(((name, tuple(p.shape)) for name, p in module.named_parameters() if p.dim() >= 2), None)
    said = f"its parameters are {', '.join(listed) or 'none'}; say where the queries' projection is:"
    if first is not None and (max(first[1]) == 3 * min(first[1]) or 3 in first[1]):
        return (
            f"{said} --weights W_q=<path>, and so on for W_k W_v W_o; where one tensor holds all three, say"
            f" its axes: --weights 'W_qkv={first[0]} : 3*heads*d_k d_model'"
        )
    return f"{said} --weights W_q={first[0] if first else 'path'}, and so on for W_k W_v W_o"


def _unknown(probe: Probe, why: str) -> None:
    for feature in ("parameters", "inputs_known"):
        probe.absent[feature] = f"its weights were not recognised ({why})"
    probe.find(
        "weights",
        f"not recognised: {why}; the clauses that need no weights are run",
        "probed",
        "weights.W_q=<path>",
    )


def _ambiguous(probe: Probe, view: Declaration, readings: list[Places], case: Case) -> bool:
    return sum(reading_gap(probe, view, places, case)[1] < EXACT for places in readings) > 1


def closest(probe: Probe, view: Declaration, readings: list[Places], case: Case) -> tuple[Places, float]:
    """Return the nearest reading and how far off it is; one position first, where scale cannot matter."""
    scored = [(*reading_gap(probe, view, places, case), order) for order, places in enumerate(readings)]
    first, second, order = min(scored)
    return readings[order], max(first, second)


def reading_gap(probe: Probe, view: Declaration, places: Places, case: Case) -> tuple[float, float]:
    """Return how far the output is from the exact one under a reading: on one position, on several."""
    subject = LayerSubject(view.replace(weights=places), probe.namespace, probe.space, name=probe.target.name)
    subject.space = _with_parameters(probe)
    gaps = []
    for length in (1, 4):

        def run(length: int = length) -> float:
            inputs = subject.layer_inputs(case.replace(q_len=length, kv_len=length, causal=False))
            output = subject.run_layer(inputs).output
            return min(distance(output, inputs), distance(output, inputs.replace(causal=True)))

        gap, error = attempt(run)
        gaps.append(float("inf") if error is not None else round(gap, 6))
    return gaps[0], gaps[1]


def _with_parameters(probe: Probe) -> Any:
    from dataclasses import replace

    return replace(probe.space, features=probe.space.features | {"parameters"})


def _views(probe: Probe, module: nn.Module, places: Places) -> Iterator[Declaration]:
    """Yield declarations that look at less and less of the block; what is declared stays as it is."""
    declared = probe.declaration
    norms = tuple(
        path
        for path, inner in module.named_modules()
        if path and "norm" in type(inner).__name__.lower() and not list(inner.children())
    )
    neutral = _positions(module)
    tap = places.get("W_o", "").partition(":")[0].strip().removesuffix(".weight")
    taps = [None] if declared.tap is not None or not tap or not _is_module(module, tap) else [None, tap]
    bypasses: list[tuple[str, ...] | None] = [None, norms] if norms and declared.bypass is None else [None]
    neutrals: list[Mapping[str, float]] = [{}, neutral] if neutral and not declared.neutral else [{}]
    for undo in neutrals:
        for bypass in bypasses:
            for path in taps:
                yield declared.replace(
                    tap=path or declared.tap,
                    bypass=bypass or declared.bypass,
                    neutral=undo or declared.neutral,
                )


def _is_module(module: nn.Module, path: str) -> bool:
    try:
        module.get_submodule(path)
    except (AttributeError, RuntimeError):  # a script module offers no submodules
        return False
    return True


def _positions(module: nn.Module) -> dict[str, float]:
    """Return the buffers and parameters that hold positions, with the number that undoes each."""
    held = {name: t for name, t in module.named_buffers() if t.is_floating_point()}
    learnt = [
        n for n, _ in module.named_parameters() if any(word in n.lower() for word in POSITION_PARAMETERS)
    ]
    for prefix, inner in module.named_modules():
        held |= {
            f"{prefix}.{n}".lstrip("."): t
            for n, t in vars(inner).items()
            if isinstance(t, torch.Tensor) and t.is_floating_point()
        }
    found = dict.fromkeys(learnt, 0.0)
    for path in held:
        last = path.rpartition(".")[2].lower()
        number = next((number for part, number in POSITION_BUFFERS.items() if part in last), None)
        if number is not None:
            found[path] = number
    return found


def _tell(probe: Probe, run: Any, module: nn.Module, case: Case) -> None:
    """Say what the block adds to the attention inside, and what was therefore not checked."""
    declared = probe.declaration
    if declared.neutral:
        probe.set(even_widths=True)
    if declared.neutral and not probe.stated.neutral:
        probe.find(
            "adds",
            f"positions ({', '.join(declared.neutral)}), undone by filling them; the positions "
            "themselves are not checked",
            "probed",
            "neutral.<path>=0",
        )
    if declared.bypass and not probe.stated.bypass:
        probe.find(
            "adds",
            f"norms ({', '.join(declared.bypass)}), taken out; the norms themselves are not checked",
            "probed",
            "bypass=<path>",
        )
    if declared.tap and declared.tap != "none" and probe.stated.tap is None:
        _tell_residual(probe, run, case)


def _tell_residual(probe: Probe, run: Any, case: Case) -> None:
    """Say what stands behind the attention: its input added, a norm, or something that cannot be named."""
    tap = probe.declaration.tap
    behind, norm = behind_tap(run, case), ""
    if behind != "residual":
        layer, _ = run.layer(case)
        norms = tuple(
            path
            for path, inner in layer.module.named_modules()
            if path and "norm" in type(inner).__name__.lower()
        )
        if norms and behind_tap(run, case, bypass=norms) in ("residual", "nothing"):
            behind, norm = behind_tap(run, case, bypass=norms), f" and a norm ({', '.join(norms)})"
            probe.declare(bypass=norms)
    if behind == "residual":
        probe.find(
            "adds",
            f"its input to the output (a residual){norm}, undone by reading {tap}; the sum itself is not "
            "checked",
            "probed",
            "tap=none",
        )
    else:
        what = f"a norm{norm.removeprefix(' and a norm')}" if norm else "something that is no plain residual"
        probe.find(
            "adds",
            f"{what} behind {tap}; the attention is read there, what follows is not checked",
            "probed",
            "tap=none",
        )
    if (behind == "residual" or norm) and (
        documented.mentions_residual(probe.target) or probe.declaration.bypass or norm
    ):
        return
    what = "adds its input to the output" if behind == "residual" else f"changes the output behind {tap}"
    probe.ask(
        "value.layer_plain",
        f"it {what}: is that meant? If it is, declare it and the other clauses stand for the attention "
        "inside;"
        " if the layer is meant to be attention alone, every output is wrong",
        f"tap={tap}",
    )  # fmt: skip


def behind_tap(run: Any, case: Case, **changes: Any) -> str:
    """Return what the block adds behind the attention's own output: `residual`, `nothing` or `other`."""
    layer, inputs = run.layer(case, **changes)
    inner, _ = attempt(lambda: layer.run(inputs).output)
    layer.subject = run.subject(tap="none", **changes)
    whole, _ = attempt(lambda: layer.run(inputs).output)
    if inner is None or whole is None or whole.shape != inner.shape:
        return "other"
    if not bool(rows_changed(whole, inner).any()):
        return "nothing"
    return "other" if bool(rows_changed(whole, inner + inputs.query).any()) else "residual"


def decide_dropout(probe: Probe, run: Any) -> None:
    """Does dropout act on the attention weights, on the output behind them, or on both?

    What acts behind the output projection is no matter of attention: it is read before that, and said.
    """
    layer, _ = run.layer(run.case())
    held = [inner.p for inner in layer.module.modules() if isinstance(inner, nn.Dropout)]
    if held and "dropout" not in (probe.declaration.new or ""):
        probe.find(
            "dropout", "its rate cannot be handed over; every nn.Dropout in it is set instead", "probed"
        )
        probe.add("dropout")
    tap = probe.declaration.weights.get("W_o", "").partition(":")[0].strip().removesuffix(".weight")
    if not probe.space.has("dropout") or not tap or not _is_module(layer.module, tap):
        return
    whole, inner = (_in_training(run, path) for path in (probe.declaration.tap or "none", tap))
    if whole is None or inner is None:
        return
    if (
        probe.declaration.tap is None
        and not torch.equal(whole[0], inner[0])
        and torch.equal(whole[2], inner[2])
    ):
        probe.declare(tap=tap)
        probe.find(
            "adds", f"dropout on the output; the attention is read at {tap}, before it", "probed", "tap=none"
        )
    acts_elsewhere = not torch.equal(whole[0], whole[1])
    # Where dropout acts nowhere at all it was forgotten: that is for the clauses to say.
    if acts_elsewhere and torch.equal(inner[0], inner[1]) and torch.equal(whole[2], inner[2]):
        probe.drop("dropout", "no dropout acts on its attention weights")


def _in_training(run: Any, tap: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """Return outputs in training with dropout, for two seeds, and the output in eval mode."""
    case = run.case()
    subject = run.subject(tap=tap)
    outputs = []
    for training, seed in ((True, 1), (True, 2), (False, 1)):

        def call(training: bool = training, seed: int = seed) -> torch.Tensor:
            weights = case.layer_inputs().weights
            layer = subject.build(
                subject.holdable(weights) if subject.space.has("parameters") else weights, dropout=0.5
            )
            layer.module.train(training)
            torch.manual_seed(seed)
            return layer.run(case.layer_inputs()).output.detach()

        output, error = attempt(call)
        if error is not None:
            return None
        outputs.append(output)
    return outputs[0], outputs[1], outputs[2]


def describe_places(places: Mapping[str, str]) -> str:
    """Say in a few words where the weights are."""
    words = []
    for name, place in places.items():
        path, _, axes = (part.strip() for part in place.partition(":"))
        if not name.startswith("W_"):
            continue
        stem, note = path.removesuffix(".weight"), ""
        if name in FUSED:
            count = len(FUSED[name])
            kept = axes.replace("d_model", "").split()[0]
            note = " (interleaved by head)" if kept.startswith(("heads", "kv_heads")) else " (stacked)"
            note += " (transposed)" if axes.startswith("d_model") and count else ""
            note += f" ({' '.join(name[2:])})" if name[2:] not in ("qkv", "kv") else ""
        elif axes.startswith("d_model") and name != "W_o":
            note = " (transposed)"
        words.append(stem + note)
    biases = " with bias" if any(n.startswith("b_") for n in places) else " without bias"
    return " ".join(words) + biases + ("" if "W_o" in places else ", no output projection")
