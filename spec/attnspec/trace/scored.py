"""From the scores to the weights and the mix: scale, cap, bias, mask, softmax, and their order."""

from .arrange import laid_as
from .landmarks import AGGREGATE, BIAS, CAP, MASK, PROJECTIONS, SCALE, SCORES, SHARE, SOFTMAX
from .match import Match
from .names import assigned_role
from .opaque import changed_sets
from .reading import MOVES, PRODUCTS, Reading, Sight, is_scaled
from .roles import axes_moved, mistaken, operands, source_of, source_stage, which_output
from .verdict import BENDS, EXPONENTIALS, OTHER_HEAD, PAIRS, SOFTMAX_OPS, WORDS, Verdict


def after_scores(reading: Reading, suspect: Sight, found: list[Match]) -> Verdict:
    chart, op, index = reading.chart, suspect.event.op, suspect.event.index
    assert chart is not None
    match = next(m for m in found if m.landmark in PAIRS)
    scored = _first_scores(reading, suspect)
    if chart.visible.shape[-1] == chart.visible.shape[-2] and _keys_first(scored):
        return _exchanged(reading, scored)
    if op not in SOFTMAX_OPS and not (op in PRODUCTS and len(found) > 1):
        return _between(reading, suspect, match)
    if not is_scaled(match.factor, chart.scale) and match.landmark == "scores":
        return _wrong_scale(reading, suspect, match)
    for name, stage in (("cap", CAP), ("bias", BIAS)):
        if name in chart.landmarks and match.landmark == "scores":
            return Verdict(stage, index, f"the contract's row {name} has not been applied to its scores")
        if match.landmark == name and not is_scaled(match.factor, 1.0):
            last = _last(reading, suspect, name)
            why = f"it is the contract's row {name} times {match.factor:.4g}"
            return Verdict(stage, last.event.index, why)
    if match.grade == "part":
        cut = _cut(reading, suspect)
        if cut is not None:
            return cut
    if chart.masked and match.hidden != "filled":
        return _wrong_mask(reading, suspect, match)
    if match.hidden == "filled" and match.finite and _keeps_weight(reading, suspect, match):
        why = "next to these scores the number that is filled in is not low enough: what is hidden has weight"
        return Verdict(MASK, _last(reading, suspect, match.landmark, "filled").event.index, why)
    if op in PRODUCTS:
        return Verdict(SOFTMAX, index, "it mixes the values by scores that no softmax has normalised")
    return Verdict(SOFTMAX, index, "the contract normalises each query's scores over the keys")


def _first_scores(reading: Reading, suspect: Sight) -> Sight:
    return next(
        (s for s in reading.sights if any(m.landmark == "scores" for f in s.outputs for m in f)), suspect
    )


def _keys_first(scored: Sight) -> bool:
    """Whether scores have a row for each key."""
    for found in scored.outputs:
        for match in found:
            flat = [a for group in match.axes for a in group]
            if match.landmark == "scores" and {"q_len", "kv_len"} <= set(flat):
                return flat.index("kv_len") < flat.index("q_len")
    return False


def _last(reading: Reading, suspect: Sight, landmark: str, hidden: str | None = None) -> Sight:
    """Return what last gave a landmark before a suspect."""
    for sight in reversed(reading.sights[: suspect.event.index]):
        if any(m.landmark == landmark and hidden in (None, m.hidden) for f in sight.outputs for m in f):
            return sight
    return suspect


def _cut(reading: Reading, suspect: Sight) -> Verdict | None:
    """A softmax over some of the keys: blame what cut them off, if that was done to the keys themselves."""
    assert reading.chart is not None
    whole = reading.chart.landmarks["k"].value.shape[-2]
    for sight in reading.sights[: suspect.event.index]:
        lengths = [
            [
                tensor.shape[next(i for i, group in enumerate(match.axes) if "kv_len" in group)]
                for tensor, found in zip(tensors, matches, strict=True)
                for match in found
                if match.landmark[0] == "k" and any(group == ("kv_len",) for group in match.axes)
            ]
            for tensors, matches in ((sight.event.inputs, sight.inputs), (sight.event.outputs, sight.outputs))
        ]
        if sight.event.op in MOVES and whole in lengths[0] and lengths[1] and max(lengths[1]) < whole:
            why = "it leaves keys out; the contract scores every query against every key"
            return Verdict(SCORES, sight.event.index, why)
    return None


def _keeps_weight(reading: Reading, suspect: Sight, match: Match) -> bool:
    """Whether a softmax gives weight to what its mask hides."""
    chart, given = reading.chart, suspect.event.inputs[0].value
    assert chart is not None
    mark = chart.landmarks[match.landmark]
    laid = None if given is None else laid_as(given, mark.value, mark.axes, match.axes)
    if laid is None:
        return False
    live = chart.visible.any(-1, keepdim=True)
    hidden = laid.softmax(-1).masked_fill(chart.visible | ~live, 0.0)
    return float(hidden.sum(-1).max()) > reading.tolerance()


def _exchanged(reading: Reading, scored: Sight) -> Verdict:
    """The scores have keys for rows: at fault is a source whose variable says so, else the product."""
    roles = operands(scored)
    for operand, role in enumerate("qk"):
        at = source_of(reading, scored, operand)
        if at is None:
            continue
        source = reading.sights[at]
        if roles[operand] != role and assigned_role(source, which_output(source, roles[operand])) == role:
            why = f"these are the contract's {WORDS[roles[operand]]}, and they are used as {WORDS[role]}"
            return Verdict(source_stage(source, role), at, why, role)
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
    capped = "cap" in chart.landmarks and match.landmark == "scores"
    if capped and op in BENDS and match.hidden == "filled":
        return Verdict(CAP, index, "it caps what is masked already, and what is hidden gets weight again")
    if capped and op in BENDS:
        return Verdict(CAP, index, "the contract's cap is softcap * tanh(scores / softcap)")
    adds = op in ("add", "sub") and "bias" in chart.landmarks and match.landmark != "bias"
    if adds and match.landmark == "scores" and not is_scaled(match.factor, chart.scale):
        return _wrong_scale(reading, suspect, match)
    if adds and capped:
        return Verdict(CAP, index, "it adds to scores that have not been capped yet")
    if "bias" in chart.landmarks and match.landmark != "bias" and op in ("add", "sub", "mul"):
        return Verdict(BIAS, index, "the contract adds the bias to the scaled scores")
    if not chart.masked:
        sets = changed_sets(reading, suspect, match)
        if sets is not None and bool(sets[1].any()):
            return Verdict(MASK, index, _mask_words(reading, suspect, match))
        return Verdict(
            SCALE if op in ("mul", "div") else SOFTMAX, index, "the contract does not change the scores so"
        )
    later = {s.event.op for s in reading.sights[index + 1 :]}
    sets = changed_sets(reading, suspect, match)
    if sets is not None and not bool(sets[1].any()) and not later & EXPONENTIALS:
        return Verdict(SOFTMAX, index, "no softmax follows: these scores are used as weights")
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


def never_divided(reading: Reading, suspect: Sight) -> Verdict:
    before = reading.sights[: suspect.event.index]
    made = [
        s for s in before if any(m.landmark == "weights" and m.grade == "rows" for f in s.outputs for m in f)
    ]
    why = "the weights are never divided by their sum over the keys"
    return Verdict(SOFTMAX, (made or [suspect])[-1].event.index, why)


def after_weights(reading: Reading, suspect: Sight, names: set[str]) -> Verdict:
    index, op, chart = suspect.event.index, suspect.event.op, reading.chart
    assert chart is not None
    if op in PRODUCTS and names & {"q", "k"} and "v" not in names:
        return mistaken(reading, suspect, 1, next(iter(names & {"q", "k"})), "v", AGGREGATE)
    if op in PRODUCTS and "input" in names:
        why = "it mixes the inputs themselves; the contract mixes projected values"
        return Verdict(PROJECTIONS["v"], index, why, "v")
    if op in PRODUCTS and "v" in names:
        moved = axes_moved(reading, suspect)
        if moved is not None:
            return moved
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
