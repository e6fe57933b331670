"""Name the row that was due at a suspect, from what the suspect was given."""

from math import prod

from .landmarks import (
    AGGREGATE,
    DROPOUT,
    FIRST,
    MERGE,
    OUTPUT,
    PROJECTIONS,
    SCORES,
    SHARE,
    SPLIT,
)
from .match import Match
from .names import assigned_role, weight_role
from .opaque import explain_core
from .reading import MOVES, PRODUCTS, Reading, Sight, form, is_rearranged
from .roles import of_product
from .scored import after_scores, after_weights, never_divided
from .verdict import COPIES, OFFSET, OTHER_HEAD, PAIRS, WORDS, Verdict, contents, role_of


def verdict_on(reading: Reading, suspect: Sight) -> Verdict:
    """Say which row a suspect gets wrong; its inputs decide, its operation and names break ties."""
    event, index = suspect.event, suspect.event.index
    found = [
        m
        for matches in suspect.inputs
        for m in matches[:1]
        if m.sound or m.grade == "rows" or m.landmark[0] == "k"
    ]
    names = {role_of(m) for m in found}
    offset = next((m for matches in suspect.outputs for m in matches if m.grade == "offset"), None)
    if "dropout" in event.op or event.settings.get("dropout_p"):
        return Verdict(DROPOUT, index, "it drops values at random; in evaluation the contract drops none")
    if any(m.landmark == "mixed" and m.grade == "rows" for m in found):
        return never_divided(reading, suspect)
    if names & set(PAIRS):
        return after_scores(reading, suspect, found)
    if "weights" in names:
        return after_weights(reading, suspect, names)
    if {"q", "k", "v"} <= names:
        stage, why = explain_core(reading, suspect)
        return Verdict(stage, index, why)
    if "mixed" in names:
        return _after_mixed(reading, suspect, found, offset)
    if "output" in names:
        return Verdict(OUTPUT, index, "the contract's last row is already reached before it")
    if names & {"q", "k", "v"} and event.op in PRODUCTS and len(found) > 1:
        return of_product(reading, suspect)
    if names & {"qkv", "kv"}:
        why = (
            "the parts that it cuts are not queries, keys and values of the heads: stacked is not interleaved"
        )
        return Verdict(SPLIT, index, why)
    if names & {"q", "k", "v"}:
        return _after_projection(reading, suspect, found)
    return _of_projection(reading, suspect, offset)


def _of_projection(reading: Reading, suspect: Sight, offset: Match | None) -> Verdict:
    index = suspect.event.index
    if offset is not None:
        stage = PROJECTIONS.get(offset.landmark[0], OUTPUT if offset.landmark == "output" else AGGREGATE)
        return Verdict(stage, index, OFFSET, offset.landmark[0] if stage in PROJECTIONS.values() else None)
    assert reading.chart is not None
    have = {m.landmark[0] for s in reading.sights for matches in s.outputs for m in matches if m.sound}
    scored = any(SCORES in s.stages for s in reading.sights[:index])
    if not reading.chart.layer or (scored and have >= set(PROJECTIONS)):
        return _next_row(reading, suspect)
    missing = next((r for r in PROJECTIONS if r not in have), "q")
    role = weight_role(reading.run, suspect.event) or assigned_role(suspect, 0) or missing
    if role in have and missing not in have:
        why = f"it projects by the weight of the {WORDS[role]} where the {WORDS[missing]} are due"
        return Verdict(PROJECTIONS[missing], index, why, missing)
    why = "the contract multiplies the input by the weight transposed, heads major, and adds the bias"
    return Verdict(PROJECTIONS[role], index, why, role)


def _next_row(reading: Reading, suspect: Sight) -> Verdict:
    """What a suspect is given is too small to know, or is no landmark: the row after the last one reached."""
    chart, index = reading.chart, suspect.event.index
    assert chart is not None
    reached = {s for sight in reading.sights[:index] for s in sight.reached}
    rows = [s for s in chart.stages if not (chart.layer and s in PROJECTIONS.values())]
    last = max((i for i, s in enumerate(rows) if s in reached), default=rows.index(SCORES) - 1)
    stage = rows[min(last + 1, len(rows) - 1)].split(":")[0]
    return Verdict(stage, index, "the contract's next row gives other contents")


def _after_projection(reading: Reading, suspect: Sight, found: list[Match]) -> Verdict:
    match = next(m for m in found if role_of(m) in PROJECTIONS)
    role, kind, index = match.landmark[0], form(match), suspect.event.index
    copied = suspect.event.op in COPIES or prod(suspect.event.outputs[0].shape) > prod(_given(suspect, match))
    if kind == "merged":
        return Verdict(SPLIT, index, contents(suspect, "the contract's split then transpose"), role)
    if match.grade == "part" and _fills_width(reading, suspect, role):
        why = f"it is made of a part of the contract's {WORDS[role]}; the rest of them is missing"
        return Verdict(PROJECTIONS[role], index, why, role)
    if copied or _is_regrouped(reading, suspect, match):
        return Verdict(SHARE, index, OTHER_HEAD, role)
    if kind == "split" and reading.chart is not None and reading.chart.layer:
        return Verdict(FIRST, index, contents(suspect, "the contract's transpose"), role)
    stage = AGGREGATE if role == "v" else SCORES
    return Verdict(stage, index, f"it changes {WORDS[role]} that were the contract's already", role)


def _given(suspect: Sight, match: Match) -> tuple[int, ...]:
    pairs = zip(suspect.event.inputs, suspect.inputs, strict=True)
    return next(t.shape for t, found in pairs if match in found)


def _is_regrouped(reading: Reading, suspect: Sight, match: Match) -> bool:
    """Whether heads are still to be shared and are laid out anew, or those of queries get a group axis."""
    chart, event = reading.chart, suspect.event
    assert chart is not None
    given, made = _given(suspect, match), event.outputs[0].shape
    if "k shared" not in chart.landmarks:
        return False
    if match.landmark.endswith("shared"):
        return prod(made) * chart.landmarks["q"].value.shape[2] <= prod(given)  # one of each group at most
    if match.landmark == "q":
        return event.op in MOVES and len(made) > len(given)
    return given != made or event.op in MOVES or event.memory == "view" or is_rearranged(suspect)


def _fills_width(reading: Reading, suspect: Sight, role: str) -> bool:
    """Whether a result has the shape of a whole projection: `batch seq heads*d_k`, heads not yet apart."""
    chart, shape = reading.chart, suspect.event.outputs[0].shape
    assert chart is not None
    batch, *heads, length, width = chart.landmarks[role].value.shape
    return chart.layer and shape == (batch, length, prod(heads) * width)


def _after_mixed(reading: Reading, suspect: Sight, found: list[Match], offset: Match | None) -> Verdict:
    assert reading.chart is not None
    index = suspect.event.index
    if not reading.chart.layer:
        return Verdict(AGGREGATE, index, "it changes what the contract returns as it is")
    weighed = suspect.event.op in PRODUCTS and any(
        not t.data and len(t.shape) > 1 and "float" in t.dtype for t in suspect.event.inputs
    )
    if not weighed and not any(form(m) == "merged" for m in found if m.landmark == "mixed"):
        return Verdict(MERGE, index, contents(suspect, "the contract's merge, heads behind positions first,"))
    why = "the contract multiplies the merged heads by W_o transposed and adds b_o"
    return Verdict(OUTPUT, index, why if offset is None else OFFSET)
