"""Products of queries, keys and values: which operand is not what it stands for, and where it came from."""

from .landmarks import FIRST, POSITION_AXES, PROJECTIONS, SCORES, SHARE, SPLIT
from .match import Match
from .names import assigned_role
from .reading import MOVES, Reading, Sight, form
from .verdict import OTHER_HEAD, WORDS, Verdict, role_of


def of_product(reading: Reading, suspect: Sight) -> Verdict:
    """A product of two roles that is not the scores."""
    left, right = operands(suspect)
    chart, index = reading.chart, suspect.event.index
    assert chart is not None
    if {left, right} == {"q", "k"}:
        moved = axes_moved(reading, suspect)
        if moved is not None:
            return moved
        shared = any(m.landmark == "k shared" for matches in suspect.inputs for m in matches)
        if "k shared" in chart.landmarks and not shared:
            return Verdict(SHARE, index, OTHER_HEAD)
        return Verdict(
            SCORES, index, "the contract sums q times k over the width of a head, for each query and key"
        )
    wanted = "q" if left != "q" and right in ("k", "q") else "k"
    wrong = left if wanted == "q" else right
    return mistaken(reading, suspect, 0 if wanted == "q" else 1, wrong, wanted, SCORES)


def axes_moved(reading: Reading, suspect: Sight) -> Verdict | None:
    """A matrix product reads batch, heads and positions off the axes in this order: blame what moved them."""
    if suspect.event.op not in ("matmul", "bmm"):
        return None
    why = "the contract has heads in front of positions, and batch in front of both"
    for tensor, matches in zip(suspect.event.inputs, suspect.inputs, strict=True):
        if not any(role_of(m) in PROJECTIONS and _is_moved(m) for m in matches[:1]):
            continue
        at = tensor.producer
        while at is not None and reading.sights[at].event.op in MOVES:
            moved = reading.sights[at]
            if any(not _is_moved(m) for found in moved.inputs for m in found[:1]):
                split = any(form(m) == "split" for found in moved.outputs for m in found[:1])
                return Verdict(FIRST, suspect.event.index if split else at, why)
            at = moved.event.inputs[0].producer if moved.event.inputs else None
        return Verdict(FIRST, suspect.event.index, why)
    return None


def _is_moved(match: Match) -> bool:
    flat = [a for group in match.axes for a in group]
    heads = next((i for i, a in enumerate(flat) if a in ("heads", "kv_heads")), None)
    if match.grade != "whole" or heads is None:
        return False
    last = {a for group in match.axes[-2:] for a in group}
    return not last & set(POSITION_AXES) or ("batch" in flat and flat.index("batch") > heads)


def mistaken(reading: Reading, suspect: Sight, operand: int, wrong: str, wanted: str, stage: str) -> Verdict:
    """One role stands where another is due: blame its source if that is named so, or is nowhere else."""
    assert reading.chart is not None
    have = {role_of(m) for s in reading.sights for matches in s.outputs for m in matches if m.sound}
    at = source_of(reading, suspect, operand)
    if at is not None and reading.chart.layer:
        named = assigned_role(reading.sights[at], which_output(reading.sights[at], wrong))
        if wanted not in have or named == wanted:
            why = f"these are the contract's {WORDS[wrong]}, and they are used as {WORDS[wanted]}"
            row = PROJECTIONS[wanted] if wanted not in have else source_stage(reading.sights[at], wanted)
            return Verdict(row, at, why, wanted)
    return Verdict(
        stage, suspect.event.index, f"it reads {WORDS[wrong]} where the contract reads {WORDS[wanted]}"
    )


def operands(sight: Sight) -> tuple[str, str]:
    """Return the roles of the first and the last operand of a product."""
    pairs = zip(sight.event.inputs, sight.inputs, strict=True)
    roles = [r for t, m in pairs if m and t.data and (r := role_of(m[0])) in PROJECTIONS]
    return (roles[0], roles[-1]) if roles else ("", "")


def source_of(reading: Reading, sight: Sight, operand: int) -> int | None:
    """Return the event that first gave an operand's values: its projection, or the cut out of a fused one."""
    pairs = zip(sight.event.inputs, sight.inputs, strict=True)
    data = [(t, role_of(m[0])) for t, m in pairs if m and t.data and role_of(m[0]) in PROJECTIONS]
    if not data:
        return None
    tensor, role = data[min(operand, len(data) - 1)]
    at = tensor.producer
    while at is not None:
        pairs = zip(reading.sights[at].event.inputs, reading.sights[at].inputs, strict=True)
        before = [t.producer for t, found in pairs if any(role_of(m) == role for m in found)]
        if not before or before[0] is None or before[0] >= at:
            return at
        at = before[0]
    return None


def which_output(source: Sight, role: str) -> int:
    return next((i for i, found in enumerate(source.outputs) if any(role_of(m) == role for m in found)), 0)


def source_stage(source: Sight, role: str) -> str:
    projects = any(m.landmark.startswith("input") for found in source.inputs for m in found)
    return PROJECTIONS[role] if projects else SPLIT
