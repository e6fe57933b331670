"""Open what one call does in one step: try the usual mistakes on its operands and see which one it made."""

import torch
from torch import Tensor

from .arrange import arrangements, laid_as
from .landmarks import MASK, SCALE, SCORES, SHARE, SOFTMAX, Chart
from .match import FORBIDDEN, Match
from .reading import Reading, Sight


def explain_core(reading: Reading, suspect: Sight) -> tuple[str, str]:
    """Name the row at which a call from queries, keys and values to the mixed values goes wrong."""
    chart, output = reading.chart, suspect.event.outputs[0].value
    assert chart is not None
    mark = chart.landmarks["mixed"]
    laid = [] if output is None or output.numel() != mark.value.numel() else [
        output.reshape(sizes).permute(order).reshape(mark.value.shape)
        for sizes, order, _ in arrangements(tuple(output.shape), tuple(mark.value.shape), mark.axes)
    ]  # fmt: skip
    tolerance = reading.tolerance() * mark.rms
    for stage, why, guess in _guesses(chart):
        live = torch.isfinite(guess).all(-1)
        if bool(live.any()) and any(bool(((t - guess)[live].abs() <= tolerance).all()) for t in laid):
            return stage, why
    return SCORES, "its result is not the contract's, and none of the usual mistakes explains it"


def _guesses(chart: Chart) -> list[tuple[str, str, Tensor]]:
    q = chart.landmarks["q"].value
    k = chart.landmarks.get("k shared", chart.landmarks["k"]).value
    v = chart.landmarks.get("v shared", chart.landmarks["v"]).value
    last = chart.landmarks.get("bias", chart.landmarks.get("cap"))
    raw = q @ k.transpose(-2, -1)
    scaled, seen = last.value if last is not None else raw * chart.scale, chart.visible
    rows, columns = seen.shape[-2:]
    distance = torch.arange(columns)[None, :] - torch.arange(rows)[:, None]

    def mix(scores: Tensor, visible: Tensor, value: Tensor = v) -> Tensor:
        return scores.masked_fill(~visible, float("-inf")).softmax(-1) @ value

    found = [
        (SCALE, "it does not scale the scores", mix(raw, seen)),
        (SCALE, "it scales the scores twice", mix(raw * chart.scale**2, seen)),
        (MASK, "it does not mask the scores", mix(scaled, torch.ones_like(seen))),
        (MASK, "it hides exactly what the contract shows: the mask is inverted", mix(scaled, ~seen)),
    ]
    for offset in (-1, 0, 1, columns - rows):
        causal = (distance <= offset).expand_as(seen)
        words = f"it lets query i see key j up to j = i{offset:+d}, which is not what the contract hides"
        found += [(MASK, words, mix(scaled, causal)), (MASK, words, mix(scaled, causal & seen))]
    if last is not None:
        found.append(
            (
                chart.stages[chart.stages.index(SCALE) + 1],
                "it leaves the bias or the cap out",
                mix(raw * chart.scale, seen),
            )
        )
    if "k shared" in chart.landmarks:
        tiled = [
            chart.landmarks[n].value.repeat(1, q.shape[2], 1, 1).reshape(t.shape)
            for n, t in (("k", k), ("v", v))
        ]
        found.append((SHARE, "it tiles the key/value heads; query head h reads head h // group",
                      mix((q @ tiled[0].transpose(-2, -1)) * chart.scale, seen, tiled[1])))  # fmt: skip
    if rows == columns:
        found.append((SCORES, "queries and keys are exchanged", mix(scaled.transpose(-2, -1), seen)))
        found.append(
            (
                SOFTMAX,
                "it normalises over the queries",
                scaled.masked_fill(~seen, float("-inf")).softmax(-2) @ v,
            )
        )
    return found


def changed_sets(reading: Reading, suspect: Sight, match: Match) -> tuple[Tensor, Tensor] | None:
    """Return where an event meant as a mask has changed scores, and where it has taken their weight.

    Both in the axes of the scores; None where the event's result has other axes.
    """
    chart, output = reading.chart, suspect.event.outputs[0].value
    assert chart is not None
    mark = chart.landmarks[match.landmark]
    laid = None if output is None else laid_as(output, mark.value, mark.axes, match.axes)
    if laid is None:
        return None
    allowed = reading.tolerance() * mark.rms * abs(match.factor)
    return ~((laid - match.factor * mark.value).abs() <= allowed), ~(laid >= FORBIDDEN)
