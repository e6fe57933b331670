"""Say where code first departs from the contract: which row, which line, and why.

An event is suspect if what it is given is right, what it gives is no landmark, and nothing made from it
is one either. The first suspect is the place; what it was given says which row was due. Code whose
output is right is never suspected, whatever it does on the way.
"""

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
from .names import assigned_role
from .opaque import explain_core
from .reading import LOG2_E, MOVES, Reading, Sight, form, is_rearranged
from .record import TensorRecord

_EXPONENTIALS = frozenset(
    {
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
    }
)
_SOFTMAXES = _EXPONENTIALS | {"sum", "sigmoid", "relu"}
_PRODUCTS = frozenset(
    {"matmul", "bmm", "einsum", "baddbmm", "linear", "mm", "addmm", "tensordot", "inner", "mul"}
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Where code departs: the contract's row by its stage's name, the event, and the reason."""

    stage: str
    event: int | None
    why: str
    role: str | None = None


def blame(reading: Reading) -> Verdict | None:
    """Return where a run departs from the contract; None if it is right or cannot be compared."""
    if reading.chart is None or reading.correct or reading.recording.error is not None:
        return None
    suspect = next((s for s in reading.sights if _is_suspect(reading, s)), None)
    if suspect is None:
        return _without_suspect(reading)
    changed = _changed_behind(reading, suspect)
    if changed is not None:
        return changed
    return _of_suspect(reading, suspect)


def _is_suspect(reading: Reading, sight: Sight) -> bool:
    event = sight.event
    if not event.data or event.error is not None or reading.good[event.index]:
        return False
    if not any(t.dtype.startswith(("float", "bfloat")) for t in event.outputs):
        return False
    matches = [m for found in sight.outputs for m in found]
    if any(m.grade == "rows" for m in matches) or any(
        m.grade == "offset" and m.landmark[0] == "k" for m in matches
    ):
        return False
    data = [(t, f) for t, f in zip(event.inputs, sight.inputs, strict=True) if t.data and "float" in t.dtype]
    return bool(data) and all(_is_clean(reading, t, found) or _was_clean(reading, t) for t, found in data)


def _is_clean(reading: Reading, tensor: TensorRecord, found: tuple[Match, ...]) -> bool:
    if tensor.name in reading.run.inputs or any(
        m.sound or m.grade == "rows" or m.landmark[0] == "k" for m in found
    ):
        return True
    if found:  # an offset: its producer is the suspect
        return False
    return _last_change(tensor) is None or reading.good[_last_change(tensor) or 0]


def _last_change(tensor: TensorRecord) -> int | None:
    return max((i for i in (tensor.producer, tensor.writer) if i is not None), default=None)


def _was_clean(reading: Reading, tensor: TensorRecord) -> bool:
    """Whether a tensor was right when it was made and was changed through shared memory since."""
    return (
        tensor.producer is not None and tensor.writer is not None and tensor.writer > tensor.producer
        and any(m.sound for found in reading.sights[tensor.producer].outputs for m in found)
    )  # fmt: skip


def _changed_behind(reading: Reading, suspect: Sight) -> Verdict | None:
    for tensor, found in zip(suspect.event.inputs, suspect.inputs, strict=True):
        if (
            tensor.data
            and not any(m.sound for m in found)
            and _was_clean(reading, tensor)
            and tensor.writer is not None
        ):
            assert tensor.producer is not None
            made = reading.sights[tensor.producer]
            stage = (made.stages or (SCORES,))[0].split(":")[0]
            line = made.event.place.line
            return Verdict(
                stage,
                tensor.writer,
                f"it writes into memory shared with what line {line} made, which was right until then",
            )
    return None


def _of_suspect(reading: Reading, suspect: Sight) -> Verdict:
    chart, event = reading.chart, suspect.event
    assert chart is not None
    found = [
        m
        for matches in suspect.inputs
        for m in matches[:1]
        if m.sound or m.grade == "rows" or m.landmark[0] == "k"
    ]
    names = {m.landmark.split(" ")[0] for m in found}
    offset = next((m for matches in suspect.outputs for m in matches if m.grade == "offset"), None)

    def verdict(stage: str, why: str, role: str | None = None) -> Verdict:
        return Verdict(stage, event.index, why, role)

    if "dropout" in event.op or event.settings.get("dropout_p"):
        return verdict(DROPOUT, "it drops values at random where the contract, in evaluation, drops none")
    if "mixed" in names and any(m.grade == "rows" for m in found if m.landmark == "mixed"):
        return verdict(SOFTMAX, "its input was never divided by the sums of the weights")
    if names & {"scores", "cap", "bias"}:
        return _after_scores(reading, suspect, found)
    if "weights" in names:
        return _after_weights(reading, suspect, names)
    if {"q", "k", "v"} <= names:
        stage, why = explain_core(reading, suspect)
        return verdict(stage, why)
    if "mixed" in names:
        merged = any(form(m) == "merged" for m in found if m.landmark == "mixed")
        if not merged:
            return verdict(
                MERGE, _moved_wrong(suspect, "the contract's merge, heads behind the positions first,")
            )
        return verdict(
            OUTPUT,
            _offset_why(offset) or "the contract multiplies the merged heads by W_o transposed and adds b_o",
        )
    if "output" in names:
        return verdict(OUTPUT, "the contract's last row is already reached before it")
    if names & {"q", "k", "v"} and (event.op in _PRODUCTS and len([m for m in found]) > 1):
        return _of_product(reading, suspect, names)
    if names & {"qkv", "kv"}:
        return verdict(
            SPLIT,
            "the parts that it cuts are not the queries, keys and values of a head: stacked is not interleaved",
        )
    if names & {"q", "k", "v"}:
        return _after_projection(suspect, found)
    return _of_projection(reading, suspect, offset)


def _offset_why(offset: Match | None) -> str | None:
    return (
        None
        if offset is None
        else "it differs from the contract's by one vector at every position: a bias is missing or another"
    )


def _moved_wrong(suspect: Sight, what: str) -> str:
    if is_rearranged(suspect):
        return f"{what} gives the same shape with other contents" if "same" else ""
    return f"{what} gives other contents"


def _after_projection(suspect: Sight, found: list[Match]) -> Verdict:
    match = next(m for m in found if m.landmark.split(" ")[0] in ("q", "k", "v"))
    role, kind, index = match.landmark[0], form(match), suspect.event.index
    if kind == "merged":
        return Verdict(SPLIT, index, _moved_wrong(suspect, "the contract's split then transpose"), role)
    if "group" in match.axes or suspect.event.op in (
        "repeat",
        "repeat_interleave",
        "expand",
        "tile",
        "cat",
        "stack",
    ):
        return Verdict(
            SHARE,
            index,
            "query head h reads key/value head h // group in the contract; here it is another",
            role,
        )
    if kind == "split":
        return Verdict(FIRST, index, _moved_wrong(suspect, "the contract's transpose"), role)
    stage = (
        SHARE if any(a == "kv_heads" for g in match.axes for a in g) else SCORES if role != "v" else AGGREGATE
    )
    return Verdict(stage, index, "it changes what the contract leaves as it is", role)


def _of_product(reading: Reading, suspect: Sight, names: set[str]) -> Verdict:
    """A product of two roles that is not the scores."""
    left, right = _operands(suspect)
    chart, event = reading.chart, suspect.event
    assert chart is not None
    have = {m.landmark.split(" ")[0] for s in reading.sights for found in s.outputs for m in found if m.sound}
    if {left, right} == {"q", "k"}:
        grouped = "k shared" in chart.landmarks
        if grouped and not any(m.landmark == "k shared" for found in suspect.inputs for m in found):
            return Verdict(
                SHARE,
                event.index,
                "query head h reads key/value head h // group in the contract; here it is another",
            )
        return Verdict(
            SCORES,
            event.index,
            "the contract sums q times k over the width of a head, for each query, key and head",
        )
    wanted = "q" if left != "q" and right in ("k", "q") else "k"
    at = _role_source(reading, suspect, 0 if wanted == "q" else 1)
    wrong = left if wanted == "q" else right
    words = {"q": "queries", "k": "keys", "v": "values"}
    if wanted not in have and at is not None:
        return Verdict(
            PROJECTIONS[wanted],
            at,
            f"it gives the contract's {words[wrong]}, and they are used as {words[wanted]}",
            wanted,
        )
    if at is not None and assigned_role(reading.sights[at], 0) not in (None, wrong):
        return Verdict(
            _source_stage(reading.sights[at], wanted),
            at,
            f"it gives the contract's {words[wrong]}, and they are used as {words[wanted]}",
            wanted,
        )
    return Verdict(SCORES, event.index, f"it reads {words[wrong]} where the contract reads {words[wanted]}")


def _source_stage(source: Sight, role: str) -> str:
    projects = any(m.landmark.startswith("input") for found in source.inputs for m in found)
    return PROJECTIONS[role] if projects else SPLIT


def _operands(suspect: Sight) -> tuple[str, str]:
    roles = [
        m[0].landmark.split(" ")[0]
        for t, m in zip(suspect.event.inputs, suspect.inputs, strict=True)
        if m and t.data
    ]
    roles = [r for r in roles if r in ("q", "k", "v")]
    return (roles[0], roles[-1]) if roles else ("", "")


def _role_source(reading: Reading, sight: Sight, operand: int) -> int | None:
    """Return the event that first gave the values of an operand: its projection, or the cut out of a fused one."""
    data = [(t, m[0].landmark) for t, m in zip(sight.event.inputs, sight.inputs, strict=True) if m and t.data]
    data = [(t, n) for t, n in data if n.split(" ")[0] in ("q", "k", "v")]
    if not data:
        return None
    tensor, name = data[min(operand, len(data) - 1)]
    at = tensor.producer
    while at is not None:
        before = [
            t.producer for t, found in zip(reading.sights[at].event.inputs, reading.sights[at].inputs, strict=True)
            if any(m.landmark[0] == name[0] and m.landmark != "kv" and m.landmark != "qkv" for m in found)
        ]  # fmt: skip
        if not before or before[0] is None:
            return at
        at = before[0]
    return None


def _after_scores(reading: Reading, suspect: Sight, found: list[Match]) -> Verdict:
    chart, event = reading.chart, suspect.event
    assert chart is not None
    match = next(m for m in found if m.landmark in ("scores", "cap", "bias"))
    takes_exponential = event.op in _SOFTMAXES or (event.op in _PRODUCTS and len(found) > 1)
    if not takes_exponential:
        return _between_scores_and_softmax(reading, suspect, match)
    flat = [a for group in match.axes for a in group]
    swapped = "kv_len" in flat and "q_len" in flat and flat.index("kv_len") < flat.index("q_len")
    if swapped and chart.landmarks["scores"].value.shape[-1] == chart.landmarks["scores"].value.shape[-2]:
        return _exchanged(reading, suspect)
    if (
        not any(abs(match.factor / chart.scale - c) < 1e-2 for c in (1.0, LOG2_E))
        and match.landmark == "scores"
    ):
        return _scale_verdict(reading, suspect, match)
    if chart.masked and match.hidden != "filled":
        return _mask_verdict(reading, suspect, match)
    missing = next(
        (n for n, s in (("bias", BIAS), ("cap", CAP)) if n in chart.landmarks and match.landmark != n), None
    )
    if missing is not None:
        return Verdict(
            {"bias": BIAS, "cap": CAP}[missing],
            event.index,
            f"the contract's row {missing} is not among its scores",
        )
    if event.op in _PRODUCTS:
        return Verdict(SOFTMAX, event.index, "it mixes the values by scores that no softmax has normalised")
    return Verdict(SOFTMAX, event.index, "the contract normalises each query's scores over the keys")


def _exchanged(reading: Reading, suspect: Sight) -> Verdict:
    scored = next(
        (s for s in reading.sights if any(m.landmark == "scores" for f in s.outputs for m in f)), suspect
    )  # fmt: skip
    for operand, role, word in ((0, "q", "queries"), (1, "k", "keys")):
        at = _role_source(reading, scored, operand)
        if (
            at is not None
            and assigned_role(reading.sights[at], _position_of(reading, scored, operand, at)) == role
        ):
            return Verdict(
                _source_stage(reading.sights[at], role),
                at,
                f"what it gives as {word} is not the contract's: queries and keys are exchanged",
                role,
            )
    return Verdict(
        SCORES,
        scored.event.index,
        "queries and keys are exchanged: the contract's rows are queries, its columns keys",
    )


def _position_of(reading: Reading, scored: Sight, operand: int, at: int) -> int:
    left, right = _operands(scored)
    role = left if operand == 0 else right
    outputs = reading.sights[at].outputs
    return next((i for i, found in enumerate(outputs) if any(m.landmark[0] == role for m in found)), 0)


def _scale_verdict(reading: Reading, suspect: Sight, match: Match) -> Verdict:
    chart = reading.chart
    assert chart is not None
    why = f"the scores are q times k times {match.factor:.4g}; the contract's factor is {chart.scale:.4g}"
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


def _mask_verdict(reading: Reading, suspect: Sight, match: Match) -> Verdict:
    masks = [
        s.event.index for s in reading.sights[: suspect.event.index]
        if any(m.hidden == "partly" for found in s.outputs for m in found)
    ]  # fmt: skip
    if match.hidden == "partly" and masks:
        return Verdict(
            MASK,
            masks[-1],
            "it hides only some of what the contract hides before the softmax reads the scores",
        )
    later = [
        s for s in reading.sights[suspect.event.index + 1 :]
        if s.event.data and any("bool" in t.dtype for t in s.event.inputs) and any(t.data for t in s.event.inputs)
    ]  # fmt: skip
    why = "it reads scores that no mask has touched"
    return Verdict(
        MASK,
        suspect.event.index,
        f"{why}; the mask comes only at line {later[0].event.place.line}" if later else why,
    )


def _between_scores_and_softmax(reading: Reading, suspect: Sight, match: Match) -> Verdict:
    chart, index = reading.chart, suspect.event.index
    assert chart is not None
    if suspect.event.op == "tanh" and "cap" in chart.landmarks:
        return Verdict(CAP, index, "the contract's cap is softcap * tanh(scores / softcap)")
    if (
        "bias" in chart.landmarks
        and match.landmark != "bias"
        and suspect.event.op.rstrip("_") in ("add", "sub", "mul")
    ):
        return Verdict(BIAS, index, "the contract adds the bias to the scaled scores")
    if not chart.masked:
        return Verdict(
            SOFTMAX if match.landmark != "scores" else SCALE,
            index,
            "it changes the scores where the contract's next row does not",
        )
    return Verdict(MASK, index, _mask_words(reading, suspect, match))


def _mask_words(reading: Reading, suspect: Sight, match: Match) -> str:
    from .opaque import hidden_set

    hidden = hidden_set(reading, suspect, match)
    visible = reading.chart.visible if reading.chart is not None else None
    if hidden is None or visible is None:
        return "what it leaves is not the contract's scores where a query may attend and minus infinity elsewhere"
    wrong, missed = int((hidden & visible).sum()), int((~hidden & ~visible).sum())
    if bool((hidden == visible).all()):
        return "it hides exactly what the contract shows: the mask is inverted"
    if not wrong and not missed:
        return "what it fills in keeps weight after the softmax; the contract fills in minus infinity"
    return f"it hides {wrong} places that the contract shows and shows {missed} that the contract hides"


def _after_weights(reading: Reading, suspect: Sight, names: set[str]) -> Verdict:
    index, op = suspect.event.index, suspect.event.op
    words = {"q": "queries", "k": "keys"}
    if op in _PRODUCTS and names & {"q", "k"} and "v" not in names:
        wrong = next(iter(names & {"q", "k"}))
        have = {m.landmark for s in reading.sights for found in s.outputs for m in found if m.sound}
        at = _role_source(reading, suspect, 1)
        if at is not None and ("v" not in have or assigned_role(reading.sights[at], 0) == "v"):
            stage = PROJECTIONS["v"] if "v" not in have else _source_stage(reading.sights[at], "v")
            return Verdict(
                stage, at, f"it gives the contract's {words[wrong]}, and they are used as values", "v"
            )
        return Verdict(AGGREGATE, index, f"it mixes {words[wrong]}; the contract mixes values")
    if op in _PRODUCTS and any(m.landmark.startswith("input") for found in suspect.inputs for m in found):
        return Verdict(
            PROJECTIONS["v"],
            index,
            "it mixes the inputs themselves; the contract mixes projected values",
            "v",
        )
    if op in _PRODUCTS and "v" in names:
        chart = reading.chart
        unshared = chart is not None and "v shared" in chart.landmarks and not any(
            m.landmark == "v shared" for found in suspect.inputs for m in found)  # fmt: skip
        if unshared:
            return Verdict(
                SHARE,
                index,
                "query head h reads key/value head h // group in the contract; here it is another",
                "v",
            )
        return Verdict(
            AGGREGATE, index, "the contract sums weight times value over the keys of the same head"
        )
    if op in MOVES:
        return Verdict(
            AGGREGATE,
            index,
            "it lays the weights out anew; the contract mixes the values by them as they are",
        )
    return Verdict(
        SOFTMAX if op not in _PRODUCTS else AGGREGATE,
        index,
        "it changes weights that were the contract's already",
    )


def _of_projection(reading: Reading, suspect: Sight, offset: Match | None) -> Verdict:
    index = suspect.event.index
    role = (
        offset.landmark[0]
        if offset is not None and offset.landmark[0] in ("q", "k", "v")
        else _role_of(reading, suspect)
    )
    if offset is not None and offset.landmark == "output":
        return Verdict(OUTPUT, index, _offset_why(offset) or "")
    why = (
        _offset_why(offset)
        or "the contract multiplies the input by the weight transposed, heads major, and adds the bias"
    )
    return Verdict(PROJECTIONS[role], index, why, role)


def _role_of(reading: Reading, suspect: Sight) -> str:
    """Guess which projection an event was meant as: by its weight, by its variable, by what is still missing."""
    from .names import weight_role

    named = weight_role(reading.run, suspect.event) or assigned_role(suspect, 0)
    if named is not None:
        return named
    have = {m.landmark[0] for s in reading.sights for found in s.outputs for m in found if m.sound}
    return next((r for r in ("q", "k", "v") if r not in have), "q")


def _without_suspect(reading: Reading) -> Verdict | None:
    """Every event looks right and the result does not: a row is left out, a layout is another, dead rows differ."""
    chart = reading.chart
    assert chart is not None
    dead = _dead_rows(reading)
    if dead is not None:
        return dead
    last = _returned(reading)
    found = [m for f in reading.sights[last].outputs for m in f] if last is not None else []
    names = {m.landmark for m in found}
    if chart.layer and "mixed" in names and "output" not in names:
        whole = any(m.grade != "offset" for m in found)
        stage, why = (OUTPUT, "it is returned; the contract's last row, the product with W_o, is missing") if whole else (
            AGGREGATE, "it differs by one vector at every position")  # fmt: skip
        return Verdict(stage, last, why)
    if "output" in names or "mixed" in names:
        stage = OUTPUT if chart.layer else AGGREGATE
        return Verdict(stage, last, "it holds the contract's values with the axes in another order")
    missing = next((s for s in chart.stages if not any(s in sight.stages for sight in reading.sights)), None)
    return (
        None
        if missing is None
        else Verdict(missing.split(":")[0], last, "the contract's row is not among what this code computes")
    )


def _returned(reading: Reading) -> int | None:
    return next((s.event.index for s in reversed(reading.sights) if s.event.data and s.event.outputs), None)


def _dead_rows(reading: Reading) -> Verdict | None:
    for sight in reading.sights:
        for found in sight.outputs:
            for match in found:
                if match.dead == "same":
                    continue
                filled = [
                    s.event.index for s in reading.sights[: sight.event.index]
                    if any(m.hidden == "filled" and m.finite for f in s.outputs for m in f)
                ]  # fmt: skip
                if match.dead == "finite" and filled:
                    return Verdict(
                        MASK,
                        filled[-1],
                        "its fill is a finite number, so a query that sees nothing gets the plain mean of all values",
                    )
                words = "NaN" if match.dead == "nan" else "weights"
                return Verdict(
                    SOFTMAX,
                    sight.event.index,
                    f"a query that sees nothing gets {words}; the contract gives it zeros",
                )
    return None
