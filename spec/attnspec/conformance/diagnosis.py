"""From a failure to its cause: the known mistake it equals, the line, and a script that reproduces it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from .._clauses import Clause
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
        failure = _name_mistake(failure, recognition)
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


def _name_mistake(failure: Failure, recognition: Any) -> Failure:
    try:
        from ..fingerprints import identify
    except ImportError:
        return failure

    subject = recognition.subject
    is_layer = isinstance(subject, LayerSubject)
    structure = {**failure.structure, "window": _pair(failure.structure.get("window"))}
    try:
        match = identify(subject, Case(**structure), layer=is_layer)
    except (SubjectError, NotApplicable):
        return failure
    if match is None:
        return failure
    found = match.fingerprint
    return replace(failure, looks_like=f"{found.name}: {found.sentence}", fix=found.fix)


def _pair(value: Any) -> tuple[int, int] | None:
    return None if value is None else (value[0], value[1])
