"""Read a recording against the chart: what each tensor is, and which events are beyond doubt."""

from collections import Counter
from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor

from .landmarks import (
    AGGREGATE,
    BIAS,
    CAP,
    FIRST,
    MASK,
    MERGE,
    OUTPUT,
    POSITION_AXES,
    PROJECTIONS,
    SCALE,
    SCORES,
    SHARE,
    SOFTMAX,
    SPLIT,
    Chart,
    chart,
)  # fmt: skip
from .match import TOLERANCES, Match, Matcher
from .record import Event, Recording, Run, TensorRecord

MOST_PER_SITE = 48  # executions of one call whose values are compared; a longer loop is taken on trust
LOG2_E = 1.4426950408889634  # a softmax in base 2 takes its scores times this
FEATURES = ("d_k", "d_v")
_MOVE_NAMES = """
    view reshape transpose permute contiguous swapaxes swapdims movedim moveaxis flatten unflatten rearrange
    T mT clone view_as reshape_as squeeze unsqueeze expand expand_as to type_as float double half bfloat16
    detach split chunk tensor_split unbind getitem narrow select cat concat stack hstack vstack repeat
    repeat_interleave tile roll
"""
MOVES = frozenset(_MOVE_NAMES.split())
_PRODUCT_NAMES = "matmul bmm einsum baddbmm linear mm addmm tensordot inner mul"
PRODUCTS = frozenset(_PRODUCT_NAMES.split())


@dataclass(slots=True)
class Sight:
    """What one event's tensors are: for each input and output, the landmarks that it agrees with."""

    event: Event
    inputs: list[tuple[Match, ...]]
    outputs: list[tuple[Match, ...]]
    trusted: bool = False
    stages: tuple[str, ...] = ()
    reached: tuple[str, ...] = ()


@dataclass
class Reading:
    """One run, read.

    Attributes:
        run: What was recorded.
        recording: Its events.
        chart: The landmarks; None where the run has no oracle values.
        sights: One an event.
        good: Whether an event's result, or something made from it, is a landmark.
        correct: Whether the run returned what the contract says; None where that is not known.
    """

    run: Run
    recording: Recording
    chart: Chart | None
    sights: list[Sight] = field(default_factory=list)
    good: list[bool] = field(default_factory=list)
    correct: bool | None = None
    precision: str = "float64"

    def tolerance(self) -> float:
        """The relative error that counts as equal in this run."""
        return TOLERANCES.get(self.precision, 1e-3)


def read(run: Run, recording: Recording) -> Reading:
    """Compare every event of a recording with the oracle's values."""
    if run.oracle_steps is None:
        return Reading(
            run,
            recording,
            None,
            [Sight(e, [()] * len(e.inputs), [()] * len(e.outputs)) for e in recording.events],
        )
    drawn = chart(run.sizes, run.inputs, run.oracle_steps)
    reading, matcher = Reading(run, recording, drawn), Matcher(drawn)
    counts: Counter[object] = Counter()
    order, reached = list(TOLERANCES), set[str]()
    for event in recording.events:
        counts[event.place.site, event.op] += 1
        trusted = counts[event.place.site, event.op] > MOST_PER_SITE
        for tensor in (*event.inputs, *event.outputs):
            if (
                tensor.data
                and tensor.dtype in order
                and order.index(tensor.dtype) > order.index(reading.precision)
            ):
                reading.precision = tensor.dtype
        inputs = [_look(matcher, t, reading.precision, trusted) for t in event.inputs]
        outputs = [_look(matcher, t, reading.precision, trusted) for t in event.outputs]
        sight = Sight(event, inputs, outputs, trusted)
        sight.stages = tuple(dict.fromkeys(s for m in outputs for s in stages_of(m, sight, drawn)))
        sight.reached = tuple(s for s in sight.stages if s not in reached)
        reached |= set(sight.stages)
        reading.sights.append(sight)
    reading.good = _acquit(reading)
    reading.correct = _is_correct(reading)
    return reading


def _look(matcher: Matcher, tensor: TensorRecord, precision: str, trusted: bool) -> tuple[Match, ...]:
    return () if trusted or not tensor.data else matcher.matches(tensor.value, precision)


def _is_correct(reading: Reading) -> bool:
    output, chart = reading.recording.output, reading.chart
    assert chart is not None
    if output is None or output.shape != chart.output.shape:
        return False
    mine, ref = output.detach().cpu().to(torch.float64), chart.output.detach().cpu()
    return same_values(mine, ref, reading.tolerance())


def same_values(mine: Tensor, ref: Tensor, tolerance: float) -> bool:
    """Whether two tensors agree, relative to the size of the second; NaN agrees with NaN."""
    if mine.shape != ref.shape:
        return False
    finite = ref[torch.isfinite(ref)]
    rms = float(finite.square().mean().sqrt()) if finite.numel() else 0.0
    return bool(torch.allclose(mine, ref, rtol=0.0, atol=tolerance * rms, equal_nan=True))


def _acquit(reading: Reading) -> list[bool]:
    """An event is good if its result is a landmark, or if anything that uses it is good."""
    chance = _by_chance(reading.sights)
    good = [
        s.trusted
        or any(
            m.sound and not (s.event.index in chance and m.landmark[0] in PROJECTIONS)
            for found in s.outputs
            for m in found
        )
        for s in reading.sights
    ]
    for sight in reversed(reading.sights):
        if good[sight.event.index] and sight.event.data:
            for tensor in sight.event.inputs:
                for source in (tensor.producer, tensor.writer):
                    if source is not None and source < sight.event.index:
                        good[source] = True
    return good


def _by_chance(sights: list[Sight]) -> set[int]:
    """Return the events whose result may equal queries, keys or values only by chance.

    A product of two tensors that are attended over is no projection, though one weight of 1 gives one back.
    """
    found = set[int]()
    for sight in sights:
        given = [t for t in sight.event.inputs if t.data and "float" in t.dtype]
        moved = sight.event.op in MOVES and any(t.producer in found for t in given)
        if moved or (sight.event.op in PRODUCTS and len({id(t.value) for t in given}) > 1):
            found.add(sight.event.index)
    return found


def stages_of(found: tuple[Match, ...], sight: Sight, chart: Chart) -> tuple[str, ...]:
    """Name the contract's rows whose result a tensor is."""
    return tuple(dict.fromkeys(s for m in found if m.sound for s in _stages(m, sight, chart)))


def _stages(match: Match, sight: Sight, chart: Chart) -> tuple[str, ...]:
    name, role = match.landmark, match.landmark[0]
    if name in ("q", "k", "v"):
        return (_moved(match, role),) if chart.layer else ()
    if name.endswith("shared"):
        return (f"{SHARE}:{role}",)
    if name in ("qkv", "kv"):
        return tuple(_moved(match, r) for r in name)
    if name == "mixed":
        if chart.layer and form(match) == "merged":
            return (MERGE,)
        came = {m.landmark for found in sight.inputs for m in found if m.sound}
        return () if "mixed" in came and sight.event.op in MOVES else (AGGREGATE,)
    if name in ("cap", "bias", "scores"):
        step = {"cap": CAP, "bias": BIAS}.get(name)
        if step is None:
            scaled = is_scaled(match.factor, chart.scale)
            step = SCALE if scaled and abs(match.factor - 1) > 1e-3 else SCORES
            scaled_name: tuple[str, ...] = (SCORES, SCALE) if step == SCALE else (SCORES,)
        else:
            scaled_name = (SCORES, SCALE, step)
        came = {m.landmark for found in sight.inputs for m in found if m.sound}
        base = scaled_name[-1:] if name in came or "scores" in came else scaled_name
        return (
            (*base, MASK)
            if match.hidden == "filled" and name not in came
            else (MASK,)
            if match.hidden == "filled"
            else base
        )
    return {"weights": (SOFTMAX,), "output": (OUTPUT,)}.get(name, ())


def is_scaled(factor: float, scale: float) -> bool:
    """Whether scores carry the contract's factor, in base e or 2."""
    return any(abs(factor - base * scale) < 1e-3 * abs(scale) for base in (1.0, LOG2_E))


def _moved(match: Match, role: str) -> str:
    kind = form(match)
    return (
        PROJECTIONS[role] if kind == "merged" else f"{SPLIT}:{role}" if kind == "split" else f"{FIRST}:{role}"
    )


def form(match: Match) -> str:
    """Say how heads lie: `merged` with their width, `split` behind the positions, `first` before them."""
    flat = [a for group in match.axes for a in group]
    for group in match.axes:
        if any(a in FEATURES for a in group) and any(a in ("heads", "kv_heads") for a in group):
            return "merged"
    heads = next((i for i, a in enumerate(flat) if a in ("heads", "kv_heads")), None)
    positions = next((i for i, a in enumerate(flat) if a in POSITION_AXES), None)
    return "split" if heads is not None and positions is not None and heads > positions else "first"


def is_rearranged(sight: Sight) -> bool:
    """Whether the result is the numbers of one input in another order."""
    for output in sight.event.outputs[:1]:
        for tensor in sight.event.inputs:
            if tensor.value is None or output.value is None or not tensor.data:
                continue
            if prod(tensor.shape) == prod(output.shape) and torch.equal(
                tensor.value.flatten().sort().values, output.value.flatten().sort().values
            ):
                return True
    return False
