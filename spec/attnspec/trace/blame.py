"""Say where code first departs from the contract: which row, which line, and why.

An event is suspect if what it is given is right, what it gives is no landmark, and nothing made from it
is one either. The first suspect is the place; what it was given says which row was due (`verdict`). Code
whose output is right is never suspected, whatever it does on the way.
"""

from .landmarks import AGGREGATE, BIAS, CAP, MASK, OUTPUT, PROJECTIONS, SCALE, SCORES, SOFTMAX
from .match import TOLERANCES, Match
from .reading import MOVES, PRODUCTS, Reading, Sight, is_rearranged
from .record import TensorRecord
from .suspects import verdict_on
from .verdict import EXPONENTIALS, Verdict, role_of


def blame(reading: Reading, *, inexact: bool = False) -> Verdict | None:
    """Return where a run departs from the contract; None if it is right or cannot be compared.

    Args:
        reading: The run.
        inexact: Whether it is known to be less exact than its dtype allows: rounding is to blame then, where
            nothing else is.
    """
    if reading.chart is None or (reading.correct and not inexact):
        return None
    if inexact and reading.correct:
        return _rounding(reading)
    if reading.recording.error is not None:
        return _moved_before_failure(reading)
    suspect = next((s for s in reading.sights if _is_suspect(reading, s)), None)
    if suspect is None and not any(m.dead != "same" for s in reading.sights for f in s.outputs for m in f):
        suspect = next((s for s in reading.sights if _is_suspect(reading, s, constant=True)), None)
    if suspect is None:
        return _dead_rows(reading) or (_rounding(reading) if inexact else None) or _left_out(reading)
    return _changed_behind(reading, suspect) or verdict_on(reading, suspect)


def _moved_before_failure(reading: Reading) -> Verdict | None:
    """In code that fails half-way only heads that were cut wrongly are sure: the rest may not be done yet."""
    for sight in reading.sights:
        roles = {
            m.landmark[0] for found in sight.inputs for m in found if m.sound and role_of(m) in PROJECTIONS
        }
        if roles and sight.event.op in MOVES and is_rearranged(sight) and _is_suspect(reading, sight):
            return verdict_on(reading, sight)
    return None


def _is_suspect(reading: Reading, sight: Sight, *, constant: bool = False) -> bool:
    """Whether an event is the first to go wrong; one number everywhere is taken for a start unless asked."""
    event = sight.event
    if not event.data or event.error is not None or reading.good[event.index]:
        return False
    if not any("float" in t.dtype for t in event.outputs) or (
        not constant and all(_is_constant(t) for t in event.outputs)
    ):
        return False
    # Rows before their division, and keys without their bias, are right so far.
    if any(m.grade == "rows" or _is_shifted_key(m) for found in sight.outputs for m in found):
        return False
    data = [
        (t, found)
        for t, found in zip(event.inputs, sight.inputs, strict=True)
        if t.data and "float" in t.dtype
    ]
    return bool(data) and all(_is_clean(reading, t, found) or _was_clean(reading, t) for t, found in data)


def _is_shifted_key(match: Match) -> bool:
    """A key bias adds the same number to all scores of a query: the softmax does not see it."""
    return match.grade == "offset" and match.landmark[0] == "k"


def _is_constant(tensor: TensorRecord) -> bool:
    value = tensor.value
    return value is not None and value.numel() > 0 and bool((value == value.flatten()[0]).all())


def _is_clean(reading: Reading, tensor: TensorRecord, found: tuple[Match, ...]) -> bool:
    if tensor.name in reading.run.inputs or any(
        m.sound or m.grade == "rows" or _is_shifted_key(m) for m in found
    ):
        return True
    if found:  # an offset: what made it is the suspect
        return False
    last = max((i for i in (tensor.producer, tensor.writer) if i is not None), default=None)
    return last is None or reading.good[last] or _is_constant(tensor)


def _was_clean(reading: Reading, tensor: TensorRecord) -> bool:
    """Whether a tensor was right when it was made and was changed through shared memory since."""
    made, changed = tensor.producer, tensor.writer
    if made is None or changed is None or changed <= made:
        return False
    return any(m.sound for found in reading.sights[made].outputs for m in found)


def _changed_behind(reading: Reading, suspect: Sight) -> Verdict | None:
    for tensor, found in zip(suspect.event.inputs, suspect.inputs, strict=True):
        if tensor.data and not any(m.sound for m in found) and _was_clean(reading, tensor):
            made = reading.sights[tensor.producer or 0]
            stage = (made.stages or (SCORES,))[0].split(":")[0]
            line = made.event.place.line
            why = f"it writes into memory shared with what line {line} made, which was right until then"
            return Verdict(stage, tensor.writer, why)
    return None


def _dead_rows(reading: Reading) -> Verdict | None:
    """Everything agrees but the rows that see nothing."""
    for sight in reading.sights:
        match = next((m for found in sight.outputs for m in found if m.dead != "same"), None)
        if match is None:
            continue
        filled = [
            s.event.index
            for s in reading.sights[: sight.event.index]
            if any(m.hidden == "filled" and m.finite for found in s.outputs for m in found)
        ]
        if match.dead == "finite" and filled:
            why = (
                "its fill is a finite number, so a query that sees nothing gets the plain mean of all values"
            )
            return Verdict(MASK, filled[-1], why)
        shown = [
            s.event.index
            for s in reading.sights[: sight.event.index]
            if any(m.hidden == "partly" for found in s.outputs for m in found)
        ]
        if match.dead == "finite" and shown:
            return Verdict(MASK, shown[-1], "it shows keys to a query that may see nothing")
        words = "NaN" if match.dead == "nan" else "weights"
        why = f"a query that sees nothing gets {words}; the contract gives it zeros"
        return Verdict(SOFTMAX, sight.event.index, why)
    return None


def _rounding(reading: Reading) -> Verdict | None:
    """The first step that gives its result in a narrower dtype than it was given, what is returned aside."""
    chart, widths = reading.chart, list(TOLERANCES)
    assert chart is not None
    for sight in reading.sights:
        event = sight.event
        given = [widths.index(t.dtype) for t in event.inputs if t.data and t.dtype in widths]
        made = [widths.index(t.dtype) for t in event.outputs if t.dtype in widths]
        if not event.data or not given or not made or max(made) <= min(given):
            continue
        stage = _stage_rounded(_computed_with(reading, sight) or sight)
        if stage is not None:
            words = f"{event.inputs[0].dtype} to {event.outputs[0].dtype}"
            return Verdict(stage, event.index, f"it rounds from {words} on the way, and the result shows it")
    return None


def _computed_with(reading: Reading, rounded: Sight) -> Sight | None:
    """Return what computes with a rounded tensor in the narrower dtype, if anything does."""
    same = {rounded.event.index}
    for sight in reading.sights[rounded.event.index + 1 :]:
        event = sight.event
        given = [t for t in event.inputs if t.producer in same]
        if not given or not all(t.dtype == given[0].dtype for t in event.outputs):
            continue
        if event.op not in MOVES and event.op.rstrip("_") not in ("masked_fill", "where"):
            return sight
        same.add(event.index)
    return None


def _stage_rounded(sight: Sight) -> str | None:
    """Name the row that an event computes, or whose result it rounds."""
    names = {role_of(m) for found in (*sight.inputs, *sight.outputs) for m in found}
    if sight.event.op in EXPONENTIALS:
        return SOFTMAX
    if sight.event.op in PRODUCTS and names & {"q", "k", "v"}:
        return AGGREGATE if "v" in names else SCORES
    for name, stage in (("mixed", AGGREGATE), ("weights", SOFTMAX), ("bias", BIAS), ("cap", CAP)):
        if name in names:
            return stage
    if "scores" in names:
        return SCALE
    return SCORES if names & {"q", "k"} else AGGREGATE if "v" in names else None


def _left_out(reading: Reading) -> Verdict | None:
    """Every event looks right and the result does not: a row is left out, or the layout is another."""
    chart = reading.chart
    assert chart is not None
    last = next((s for s in reversed(reading.sights) if s.event.data and s.event.outputs), None)
    at = None if last is None else last.event.index
    found = [m for matches in last.outputs for m in matches] if last is not None else []
    names = {m.landmark for m in found}
    if chart.layer and "mixed" in names and "output" not in names:
        return Verdict(
            OUTPUT, at, "it is returned; the contract's last row, the product with W_o, is missing"
        )
    if names & {"output", "mixed"}:
        why = "it holds the contract's values with the axes in another order"
        return Verdict(OUTPUT if chart.layer else AGGREGATE, at, why)
    seen = {s for sight in reading.sights for s in sight.stages}
    missing = next((s for s in chart.stages if s not in seen), None)
    if missing is None:
        stage = OUTPUT if chart.layer else AGGREGATE
        return Verdict(stage, at, "the contract's result is computed, and something else is returned")
    return Verdict(missing.split(":")[0], at, "the contract's row is not among what this code computes")
