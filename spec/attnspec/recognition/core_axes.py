"""The axes of a core: the reading that gives the exact answer, or else the one that mixes positions."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ..conformance.caller import CORE_AXES
from ..conformance.cases import Case
from ..loading import Target
from . import documented
from .experiments import Probe, agrees, attempt, seen_core

HEADS_LAST = "batch q_len heads d_k"


@dataclass(frozen=True)
class Layout:
    """Axes that a core may take instead of the contract's, and the mistake that looks like them.

    Attributes:
        axes: As they are declared.
        clause: The question is about it.
        seen: What the core is seen to do.
        otherwise: What it means if it is no convention.
        said: Whether the code itself says that it takes these axes.
    """

    axes: str
    clause: str
    seen: str
    otherwise: str
    said: Callable[[Target], bool]


LAYOUTS = (
    Layout(
        HEADS_LAST,
        "shape.output",
        "attends over axis 1",
        "if heads are meant to be on axis 1, a transpose is missing and positions never meet",
        documented.heads_last,
    ),
    Layout(
        "q_len batch heads d_k",
        "value.batch_independent",
        "attends along axis 0",
        "if axis 0 is the batch, samples attend to each other and no position to another",
        documented.sequence_first,
    ),
    Layout(
        "batch*heads q_len d_k",
        "shape.output",
        "takes three axes",
        "if it is meant for four, its products and transposes take the wrong ones",
        documented.heads_in_batch,
    ),
)


def decide_axes(probe: Probe, run: Any, base: Case) -> None:
    """Find the axes that a core takes and returns; ask where a mistake could look like them."""
    if probe.declaration.layout or probe.declaration.output_layout:
        probe.find("axes", probe.declaration.layout or probe.declaration.output_layout or "", "declared")
        return
    swapped = [(way, out) for way in (CORE_AXES, HEADS_LAST) for out in (CORE_AXES, HEADS_LAST)]
    ways = [*swapped, *((layout.axes, layout.axes) for layout in LAYOUTS[1:])]
    exact = next((pair for pair in ways if _exact(run, base, *pair)), None)
    way, out = exact or (_mixing(run, base),) * 2
    hugging_face = _is_hugging_face(probe)
    if hugging_face and out == CORE_AXES:
        probe.ask(
            "shape.output",
            f"it is called as transformers calls an attention function and returns {CORE_AXES!r}; "
            f"transformers reads {HEADS_LAST!r}: is that meant? If it is, declare it and the other clauses "
            "stand as reported; if not, a transpose is missing at its end",
            f'output_layout="{CORE_AXES}"',
        )
    if (way, out) == (CORE_AXES, CORE_AXES):
        return
    probe.declare(layout=way, output_layout=out)
    layout = next(known for known in LAYOUTS if known.axes in (way, out))
    said = "as its own words or moves say" if layout.said(probe.target) else ""
    wanted = "the Hugging Face convention" if hugging_face else said
    what = f"takes {way}, returns {out}" if way != out else way
    probe.find(
        "axes",
        what + (f", {wanted}" if wanted else ""),
        "documented" if wanted else "probed",
        f'layout="{CORE_AXES}"',
    )
    if not wanted:
        seen = layout.seen if way != CORE_AXES else "gives back heads on axis 2"
        probe.ask(
            layout.clause,
            f"it {seen} ({what}): is that its convention? If it is, declare it and the other clauses stand as"
            f" reported; {layout.otherwise}",
            f'layout="{way}" --declare output_layout="{out}"',
        )


def _is_hugging_face(probe: Probe) -> bool:
    return (probe.declaration.call or "").startswith("f(SimpleNamespace(")


def _exact(run: Any, base: Case, way: str, out: str) -> bool:
    for dtype in ("float32", "bfloat16"):
        inputs = base.replace(dtype=dtype).core_inputs()
        output, error = attempt(partial(run, inputs, layout=way, output_layout=out))
        if error is None:
            return agrees(output, inputs) or agrees(output, inputs.replace(causal=True))
    return False


def _mixing(run: Any, base: Case) -> str:
    """For a core whose numbers are wrong: take the axes along which it mixes."""
    found: dict[str, bool] = {}
    inputs = base.core_inputs()
    for way in (CORE_AXES, *(layout.axes for layout in LAYOUTS)):
        seen, error = attempt(partial(seen_core, partial(run, layout=way, output_layout=way), inputs))
        if error is None and seen.shape[:3] == (base.batch, base.heads, base.q_len):
            found[way] = bool((seen & ~torch.eye(base.q_len, dtype=torch.bool)).any())
    # Only a core that refuses four axes is held to three.
    if found.get(CORE_AXES):
        return CORE_AXES
    if found.get(HEADS_LAST):
        return HEADS_LAST
    return LAYOUTS[2].axes if CORE_AXES not in found and found.get(LAYOUTS[2].axes) else CORE_AXES
