"""From a failure to its cause: the known mistake it equals, the line, and a script that reproduces it."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from .._clauses import Clause, Level
from .._table import STAGES
from ..fingerprints import Match, explains, identify, match_exception
from ..trace import Departure
from ..trace.departure import departure_line, departure_of
from .calls import LastCall
from .cases import Case
from .failures import NotApplicable, SubjectError
from .grad_mode import GradMode
from .layer_subject import LayerSubject
from .results import ClauseResult, Failure
from .script import write_script


def diagnose(clause: Clause, result: ClauseResult, recognition: Any, *, scripts: str | None) -> ClauseResult:
    """Return the result with everything that can be said about why it failed.

    A diagnosis that itself goes wrong is left out; the failure stands without it.
    """
    failure = result.failure
    assert failure is not None
    if scripts is not None:
        # First of all: naming the mistake calls the code again, and the script wants the failing call.
        path = write_script(Path(scripts), clause, failure, recognition)
        failure = replace(failure, script=None if path is None else str(path))
    if failure.raised is not None:
        failure = _explain_exception(failure)
    else:
        failure = _name_cause(clause, failure, recognition)
    if failure.fix is None and clause.hint:
        failure = replace(failure, fix=clause.hint)
    return replace(result, failure=failure)


def _explain_exception(failure: Failure) -> Failure:
    found = match_exception(failure.raised or "", failure.what, failure.where or "")
    return failure if found is None else replace(failure, looks_like=found[0], fix=found[1])


@dataclass(frozen=True)
class Cause:
    """What is known of calls with the same options: the mistake they equal, and where the code departs."""

    match: Match | None
    departure: Departure | None


# Chapters about something else than the numbers of one call: no reference output can name their mistakes.
OTHER_MATTERS = ("refusal", "state", "determinism", "params", "layout")
_CAUSES: WeakKeyDictionary[Any, dict[str, Cause]] = WeakKeyDictionary()


def _name_cause(clause: Clause, failure: Failure, recognition: Any) -> Failure:
    """Return the failure with the known mistake and the line, where they explain this very failure."""
    case = _case(failure)
    trouble = LastCall.trouble
    inputs = getattr(trouble, "inputs", None)
    if inputs is None and (clause.level == Level.SHOULD or clause.chapter in OTHER_MATTERS):
        return failure
    try:
        with GradMode.of(case.grad_mode):
            cause = _cause(case, recognition, inputs)
        match = cause.match
        if match is not None and not _explains(match, trouble, inputs, recognition):
            return failure
    except Exception:  # a diagnosis meets the user's code in any state; the failure stands without it
        return failure
    if match is not None:
        found = match.fingerprint
        failure = replace(failure, looks_like=f"{found.name}: {found.sentence}", fix=found.fix)
    if cause.departure is None:
        return failure
    stage = STAGES.get(cause.departure.stage)
    return replace(
        failure, where=departure_line(cause.departure), kin=stage.clauses if stage is not None else ()
    )


def _cause(case: Case, recognition: Any, inputs: Any) -> Cause:
    """Name the mistake and find the line; cases with the same options are asked about once."""
    known = _CAUSES.setdefault(recognition.subject, {})
    given = [getattr(case, name) is None for name in ("mask", "bias", "window", "softcap", "scale")]
    key = repr(
        [
            *given,
            case.mask_rank,
            case.causal,
            case.kv_heads == case.heads,
            case.sources,
            case.layout,
            case.dtype,
            case.grad_mode,
        ]
    )
    if key not in known:
        try:
            match = identify(recognition.subject, case, layer=isinstance(recognition.subject, LayerSubject))
        except (SubjectError, NotApplicable):
            match = None
        known[key] = Cause(match, departure_of(recognition, case, inputs))
    return known[key]


def _explains(match: Match, trouble: Any, inputs: Any, recognition: Any) -> bool:
    """Return whether a mistake gives the very output that failed, where that can be told."""
    if inputs is None or trouble.wrong is None or not match.fingerprint.applies_to(inputs):
        return True
    return explains(match.fingerprint, inputs, trouble.wrong, recognition.subject.precision)


def _case(failure: Failure) -> Case:
    return Case(**{**failure.structure, "window": _pair(failure.structure.get("window"))})


def _pair(value: Any) -> tuple[int, int] | None:
    return None if value is None else (value[0], value[1])
