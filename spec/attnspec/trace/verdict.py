"""Name the row that was due at a suspect, from what the suspect was given."""

from dataclasses import dataclass

from .landmarks import (
    AGGREGATE,
    BIAS,
    CAP,
    DROPOUT,
    FIRST,
    MASK,
    MERGE,
    OUTPUT,
    PROJECTIONS,
    SCALE,
    SCORES,
    SHARE,
    SOFTMAX,
    SPLIT,
)  # fmt: skip
from .match import Match
from .names import assigned_role, weight_role
from .opaque import changed_sets, explain_core
from .reading import MOVES, Reading, Sight, form, is_rearranged, is_scaled

WORDS = {"q": "queries", "k": "keys", "v": "values"}
OFFSET = "it differs from the contract's by one vector at every position: a bias is missing or is another"
OTHER_HEAD = "in the contract query head h reads key/value head h // group; here it reads another"
_SOFTMAX_OPS = frozenset(
    [
        "softmax",
        "softmax_",
        "exp",
        "exp_",
        "exp2",
        "exp2_",
        "log_softmax",
        "softmin",
        "logsumexp",
        "amax",
        "max",
        "sum",
        "sigmoid",
        "relu",
    ]
)
_PRODUCTS = frozenset(
    ["matmul", "bmm", "einsum", "baddbmm", "linear", "mm", "addmm", "tensordot", "inner", "mul"]
)
_COPIES = frozenset(["repeat", "repeat_interleave", "expand", "tile", "cat", "stack"])
_PAIRS = ("scores", "cap", "bias")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Where code departs: the contract's row by its stage's name, the event, and the reason.

    `role` is `q`, `k` or `v` where the contract has the row three times and one of them is meant.
    """

    stage: str
    event: int | None
    why: str
    role: str | None = None


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
        return _never_divided(reading, suspect)
    if names & set(_PAIRS):
        return _after_scores(reading, suspect, found)
    if "weights" in names:
        return _after_weights(reading, suspect, names)
    if {"q", "k", "v"} <= names:
        stage, why = explain_core(reading, suspect)
        return Verdict(stage, index, why)
    if "mixed" in names:
        return _after_mixed(suspect, found, offset)
    if "output" in names:
        return Verdict(OUTPUT, index, "the contract's last row is already reached before it")
    if names & {"q", "k", "v"} and event.op in _PRODUCTS and len(found) > 1:
        return _of_product(reading, suspect)
    if names & {"qkv", "kv"}:
        why = (
            "the parts that it cuts are not queries, keys and values of the heads: stacked is not interleaved"
        )
        return Verdict(SPLIT, index, why)
    if names & {"q", "k", "v"}:
        return _after_projection(suspect, found)
    return _of_projection(reading, suspect, offset)


def role_of(match: Match) -> str:
    """Return a landmark's name without what follows it."""
    return match.landmark.split(" ")[0]


def _contents(suspect: Sight, what: str) -> str:
    return f"{what} gives {'the same shape with ' if is_rearranged(suspect) else ''}other contents"


def _of_projection(reading: Reading, suspect: Sight, offset: Match | None) -> Verdict:
    index = suspect.event.index
    if offset is not None:
        stage = PROJECTIONS.get(offset.landmark[0], OUTPUT if offset.landmark == "output" else AGGREGATE)
        return Verdict(stage, index, OFFSET, offset.landmark[0] if stage in PROJECTIONS.values() else None)
    have = {m.landmark[0] for s in reading.sights for matches in s.outputs for m in matches if m.sound}
    missing = next((r for r in PROJECTIONS if r not in have), "q")
    role = weight_role(reading.run, suspect.event) or assigned_role(suspect, 0) or missing
    why = "the contract multiplies the input by the weight transposed, heads major, and adds the bias"
    return Verdict(PROJECTIONS[role], index, why, role)


def _after_projection(suspect: Sight, found: list[Match]) -> Verdict:
    match = next(m for m in found if role_of(m) in PROJECTIONS)
    role, kind, index = match.landmark[0], form(match), suspect.event.index
    axes = {a for group in match.axes for a in group}
    if kind == "merged":
        return Verdict(SPLIT, index, _contents(suspect, "the contract's split then transpose"), role)
    if suspect.event.op in _COPIES or (axes & {"group", "kv_heads"} and suspect.event.op in MOVES):
        return Verdict(SHARE, index, OTHER_HEAD, role)
    if kind == "split":
        return Verdict(FIRST, index, _contents(suspect, "the contract's transpose"), role)
    stage = SHARE if "kv_heads" in axes else AGGREGATE if role == "v" else SCORES
    return Verdict(stage, index, f"it changes {WORDS[role]} that were the contract's already", role)


def _of_product(reading: Reading, suspect: Sight) -> Verdict:
    """A product of two roles that is not the scores."""
    left, right = operands(suspect)
    chart, index = reading.chart, suspect.event.index
    assert chart is not None
    if {left, right} == {"q", "k"}:
        shared = any(m.landmark == "k shared" for matches in suspect.inputs for m in matches)
        if "k shared" in chart.landmarks and not shared:
            return Verdict(SHARE, index, OTHER_HEAD)
        return Verdict(
            SCORES, index, "the contract sums q times k over the width of a head, for each query and key"
        )
    wanted = "q" if left != "q" and right in ("k", "q") else "k"
    wrong = left if wanted == "q" else right
    return _mistaken(reading, suspect, 0 if wanted == "q" else 1, wrong, wanted, SCORES)


def _mistaken(reading: Reading, suspect: Sight, operand: int, wrong: str, wanted: str, stage: str) -> Verdict:
    """One role stands where another is due: blame its source if that is named so, or is nowhere else."""
    have = {role_of(m) for s in reading.sights for matches in s.outputs for m in matches if m.sound}
    at = source_of(reading, suspect, operand)
    if at is not None:
        named = assigned_role(reading.sights[at], _which_output(reading.sights[at], wrong))
        if wanted not in have or named == wanted:
            why = f"these are the contract's {WORDS[wrong]}, and they are used as {WORDS[wanted]}"
            row = PROJECTIONS[wanted] if wanted not in have else _source_stage(reading.sights[at], wanted)
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


def _which_output(source: Sight, role: str) -> int:
    return next((i for i, found in enumerate(source.outputs) if any(role_of(m) == role for m in found)), 0)


def _source_stage(source: Sight, role: str) -> str:
    projects = any(m.landmark.startswith("input") for found in source.inputs for m in found)
    return PROJECTIONS[role] if projects else SPLIT


def _after_scores(reading: Reading, suspect: Sight, found: list[Match]) -> Verdict:
    chart, op, index = reading.chart, suspect.event.op, suspect.event.index
    assert chart is not None
    match = next(m for m in found if m.landmark in _PAIRS)
    flat = [a for group in match.axes for a in group]
    if chart.visible.shape[-1] == chart.visible.shape[-2] and "q_len" in flat[flat.index("kv_len") :]:
        return _exchanged(reading, suspect)
    if op not in _SOFTMAX_OPS and not (op in _PRODUCTS and len(found) > 1):
        return _between(reading, suspect, match)
    if not is_scaled(match.factor, chart.scale) and match.landmark == "scores":
        return _wrong_scale(reading, suspect, match)
    for name, stage in (("bias", BIAS), ("cap", CAP)):
        if name in chart.landmarks and match.landmark == "scores":
            return Verdict(stage, index, f"the contract's row {name} has not been applied to its scores")
    if chart.masked and match.hidden != "filled":
        return _wrong_mask(reading, suspect, match)
    if op in _PRODUCTS:
        return Verdict(SOFTMAX, index, "it mixes the values by scores that no softmax has normalised")
    return Verdict(SOFTMAX, index, "the contract normalises each query's scores over the keys")


def _exchanged(reading: Reading, suspect: Sight) -> Verdict:
    """The scores have keys for rows: at fault is a source whose variable says so, else the product."""
    scored = next(
        (s for s in reading.sights if any(m.landmark == "scores" for f in s.outputs for m in f)), suspect
    )
    roles = operands(scored)
    for operand, role in enumerate("qk"):
        at = source_of(reading, scored, operand)
        if at is None:
            continue
        source = reading.sights[at]
        if roles[operand] != role and assigned_role(source, _which_output(source, roles[operand])) == role:
            why = f"these are the contract's {WORDS[roles[operand]]}, and they are used as {WORDS[role]}"
            return Verdict(_source_stage(source, role), at, why, role)
    why = "queries and keys are exchanged: the contract has a row for each query, a column for each key"
    return Verdict(SCORES, scored.event.index, why)


def _wrong_scale(reading: Reading, suspect: Sight, match: Match) -> Verdict:
    assert reading.chart is not None
    due = reading.chart.scale
    why = f"the scores are q times k times {match.factor:.4g}; the contract's factor is {due:.4g}"
    last = None
    for sight in reading.sights[: suspect.event.index]:
        for name in ("q", "k", "k shared", "scores"):
            before = [m.factor for found in sight.inputs for m in found if m.landmark == name]
            after = [m.factor for found in sight.outputs for m in found if m.landmark == name]
            if before and after and abs(after[0] / before[0] - 1) > 1e-6:
                last = sight.event.index
    if last is None:
        return Verdict(SCALE, suspect.event.index, f"it reads unscaled scores: {why}")
    return Verdict(SCALE, last, why)


def _wrong_mask(reading: Reading, suspect: Sight, match: Match) -> Verdict:
    index = suspect.event.index
    masks = [
        s for s in reading.sights[:index] if any(m.hidden == "partly" for found in s.outputs for m in found)
    ]
    if match.hidden == "partly" and masks:
        return Verdict(MASK, masks[-1].event.index, _mask_words(reading, masks[-1], match))
    later = [
        s.event
        for s in reading.sights[index + 1 :]
        if s.event.data and any(t.dtype == "bool" or "mask" in (t.name or "") for t in s.event.inputs)
    ]
    after = f"; the mask comes only at line {later[0].place.line}" if later else ""
    return Verdict(MASK, index, f"it reads scores that no mask has touched{after}")


def _between(reading: Reading, suspect: Sight, match: Match) -> Verdict:
    """Neither a softmax nor a product: meant as a cap, a bias or a mask."""
    chart, index, op = reading.chart, suspect.event.index, suspect.event.op.rstrip("_")
    assert chart is not None
    if op == "tanh" and "cap" in chart.landmarks:
        return Verdict(CAP, index, "the contract's cap is softcap * tanh(scores / softcap)")
    if "bias" in chart.landmarks and match.landmark != "bias" and op in ("add", "sub", "mul"):
        return Verdict(BIAS, index, "the contract adds the bias to the scaled scores")
    if not chart.masked:
        return Verdict(
            SCALE if op in ("mul", "div") else SOFTMAX, index, "the contract does not change the scores so"
        )
    return Verdict(MASK, index, _mask_words(reading, suspect, match))


def _mask_words(reading: Reading, suspect: Sight, match: Match) -> str:
    sets = changed_sets(reading, suspect, match)
    if sets is None or reading.chart is None:
        return "the contract leaves the scores where a query may attend, and minus infinity elsewhere"
    (changed, lowered), visible = sets, reading.chart.visible
    if not bool(lowered.any()):
        if suspect.event.op.rstrip("_") in ("add", "sub"):
            return "it adds the mask as a number; the contract fills in minus infinity where the mask forbids"
        if bool((changed & visible).any()):
            return "it changes scores that the contract leaves as they are"
        return "what it fills in keeps weight after the softmax; the contract fills in minus infinity"
    if bool((lowered == visible).all()):
        return "it hides exactly what the contract shows: the mask is inverted"
    wrong, missed = int((lowered & visible).sum()), int((~lowered & ~visible).sum())
    if not wrong and not missed:
        return "it changes scores that the contract leaves as they are"
    return f"it hides {wrong} places that the contract shows and shows {missed} that the contract hides"


def _never_divided(reading: Reading, suspect: Sight) -> Verdict:
    before = reading.sights[: suspect.event.index]
    made = [
        s for s in before if any(m.landmark == "weights" and m.grade == "rows" for f in s.outputs for m in f)
    ]
    why = "the weights are never divided by their sum over the keys"
    return Verdict(SOFTMAX, (made or [suspect])[-1].event.index, why)


def _after_weights(reading: Reading, suspect: Sight, names: set[str]) -> Verdict:
    index, op, chart = suspect.event.index, suspect.event.op, reading.chart
    assert chart is not None
    if op in _PRODUCTS and names & {"q", "k"} and "v" not in names:
        return _mistaken(reading, suspect, 1, next(iter(names & {"q", "k"})), "v", AGGREGATE)
    if op in _PRODUCTS and "input" in names:
        why = "it mixes the inputs themselves; the contract mixes projected values"
        return Verdict(PROJECTIONS["v"], index, why, "v")
    if op in _PRODUCTS and "v" in names:
        shared = any(m.landmark == "v shared" for matches in suspect.inputs for m in matches)
        if "v shared" in chart.landmarks and not shared:
            return Verdict(SHARE, index, OTHER_HEAD, "v")
        return Verdict(
            AGGREGATE, index, "the contract sums weight times value over the keys of the same head"
        )
    if op in MOVES:
        return Verdict(AGGREGATE, index, "the contract mixes the values by the weights as they lie")
    if any(m.grade == "rows" for matches in suspect.inputs for m in matches):
        return Verdict(SOFTMAX, index, "the contract divides each query's weights by their sum over the keys")
    return Verdict(SOFTMAX, index, "it changes weights that were the contract's already")


def _after_mixed(suspect: Sight, found: list[Match], offset: Match | None) -> Verdict:
    index = suspect.event.index
    if not any(form(m) == "merged" for m in found if m.landmark == "mixed"):
        return Verdict(
            MERGE, index, _contents(suspect, "the contract's merge, heads behind positions first,")
        )
    why = "the contract multiplies the merged heads by W_o transposed and adds b_o"
    return Verdict(OUTPUT, index, why if offset is None else OFFSET)
