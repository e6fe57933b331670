"""From a failure to its cause: the known mistake it equals, the line, and a script that reproduces it."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from .._clauses import Clause
from .._table import STAGES
from .cases import Case
from .failures import NotApplicable, SubjectError
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
        failure = replace(failure, **_cause(failure, recognition))
    if failure.fix is None and clause.hint:
        failure = replace(failure, fix=clause.hint)
    return replace(result, failure=failure)


def _explain_exception(failure: Failure) -> Failure:
    try:
        from ..fingerprints import match_exception
    except ImportError:
        return failure

    found = match_exception(failure.raised or "", failure.what, failure.where or "")
    return failure if found is None else replace(failure, looks_like=found[0], fix=found[1])


_CAUSES: WeakKeyDictionary[Any, dict[str, dict[str, Any]]] = WeakKeyDictionary()


def _cause(failure: Failure, recognition: Any) -> dict[str, Any]:
    """Return the known mistake and the line; failures whose cases use the same options are asked about once."""
    known = _CAUSES.setdefault(recognition.subject, {})
    case = _case(failure)
    options = (case.mask, case.mask_rank, case.bias, case.window, case.softcap, case.scale)
    key = repr([option is None for option in options] + [case.causal, case.kv_heads == case.heads, case.sources, case.layout, case.dtype])
    if key not in known:
        try:
            found = _find_line(_name_mistake(failure, recognition), recognition)
        except Exception:  # a diagnosis meets the user's code in any state; the failure stands without it
            found = failure
        known[key] = {"looks_like": found.looks_like, "fix": found.fix, "where": found.where, "kin": found.kin}
    return known[key]


def _case(failure: Failure) -> Case:
    return Case(**{**failure.structure, "window": _pair(failure.structure.get("window"))})


def _find_line(failure: Failure, recognition: Any) -> Failure:
    """Say at which line the code first departs from the contract, where a trace shows it."""
    from ..trace.target import departure_line, departure_of

    departure = departure_of(recognition, _case(failure))
    if departure is None:
        return failure
    stage = STAGES.get(departure.stage)
    return replace(failure, where=departure_line(departure), kin=stage.clauses if stage is not None else ())


def _name_mistake(failure: Failure, recognition: Any) -> Failure:
    try:
        from ..fingerprints import identify
    except ImportError:
        return failure

    subject = recognition.subject
    try:
        match = identify(subject, _case(failure), layer=isinstance(subject, LayerSubject))
    except (SubjectError, NotApplicable):
        return failure
    if match is None:
        return failure
    found = match.fingerprint
    return replace(failure, looks_like=f"{found.name}: {found.sentence}", fix=found.fix)


def _pair(value: Any) -> tuple[int, int] | None:
    return None if value is None else (value[0], value[1])
