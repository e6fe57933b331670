"""Time by torch's own timer, in rounds: everything once, one after the other, again and again."""

import statistics
import time
import timeit
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.benchmark import Measurement, Timer

from .subjects import Subject

Step = Callable[[], Any]
# On a machine that others load, the time that this process computed says more than the time that went by.
TIMERS = {"wall": timeit.default_timer, "cpu": time.process_time}


@dataclass(frozen=True)
class Timing:
    """The time of one subject in one cell.

    Attributes:
        seconds: Median over the rounds, of one call.
        ratio: Median over the rounds of its time by the floor's in the same round.
        low: Lower quartile of that ratio.
        high: Upper quartile.
        rounds: How many there were.
        calls: Calls in one round.
    """

    seconds: float
    ratio: float
    low: float
    high: float
    rounds: int
    calls: int


def step(subject: Subject, inputs: Tensor, which: str) -> Step:
    """Return one forward pass without a graph, or one forward and backward pass."""
    if which == "forward":

        def forward() -> Tensor:
            with torch.no_grad():
                return subject.call(inputs)

        return forward
    leaf = inputs.detach().requires_grad_()
    upstream = torch.ones_like(inputs)
    leaves = (leaf, *subject.parameters)

    def both() -> Any:
        return torch.autograd.grad(subject.call(leaf), leaves, upstream, allow_unused=True)

    return both


def time_rounds(
    steps: dict[str, Step],
    floor: str,
    *,
    rounds: int,
    seconds: float,
    clock: str = "wall",
    beat: Callable[[], None] = lambda: None,
) -> dict[str, Timing]:
    """Time several things in turn.

    Args:
        steps: What to time, by name.
        floor: The name that all are compared with.
        rounds: In each, everything is timed once; whoever begins changes from round to round.
        seconds: So long each is timed in a round, at least.
        clock: Name of one of `TIMERS`; on CUDA only `wall` waits for the device.
        beat: Called after each round.
    """
    settings: dict[str, Any] = {"num_threads": torch.get_num_threads()}
    if clock != "wall":  # torch's own default waits for a CUDA device
        settings["timer"] = TIMERS[clock]
    timers = {name: Timer("run()", globals={"run": run}, **settings) for name, run in steps.items()}
    calls = {}
    for name, timer in timers.items():
        timer.timeit(1)  # the first call may allocate, or compile
        calls[name] = max(1, int(seconds / max(timer.timeit(1).median, 1e-9)))
    found: dict[str, list[Measurement]] = {name: [] for name in timers}
    names = list(timers)
    for number in range(rounds):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            found[name].append(timers[name].timeit(calls[name]))
        beat()
    base = [m.median for m in found[floor]]
    return {name: _summary(measured, base, calls[name]) for name, measured in found.items()}


def _summary(measured: list[Measurement], base: list[float], calls: int) -> Timing:
    ratios = sorted(m.median / b for m, b in zip(measured, base, strict=True))
    low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else (ratios[0],) * 3
    merged = next(iter(Measurement.merge(measured)))
    return Timing(merged.median, statistics.median(ratios), low, high, len(measured), calls)
