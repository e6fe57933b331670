"""Running one clause on one subject: covering cases, random cases, and a small failure where there is one."""

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings, target

from .._clauses import Clause
from .._errors import DeclarationError
from .calls import Call, LastCall, aside, recorded
from .cases import Case
from .check import Check, checks
from .core_view import CoreView
from .deadline import Deadline
from .failures import NotApplicable, SubjectError, Violation
from .grad_mode import GradMode
from .judge import WORST
from .layer_subject import WEIGHTS_UNKNOWN, LayerSubject
from .profiles import Profile
from .recipes import below
from .results import ClauseResult, Failure
from .space import Space

Trouble = Violation | SubjectError


def missing_need(clause: Clause, space: Space, absent: dict[str, str]) -> str | None:
    """Return why a clause does not apply, or None if it does."""
    for need in clause.needs:
        if need == "half":
            if not {"bfloat16", "float16"} & set(space.dtypes):
                return "it runs in no half precision"
        elif not space.has(need):
            return absent.get(need) or _absence(need, absent)
    return None


def _absence(need: str, absent: dict[str, str]) -> str:
    words = {
        "causal": "it has no causal flag",
        "causal_flag": "its causality is not a flag",
        "bidirectional": "it is always causal",
        "weights": "it does not return attention weights",
        "dropout": "it has no dropout",
        "grouped": "it has no grouped heads",
        "cross": "its queries and keys have one length",
        "cross_sources": "it takes one input",
        "parameters": WEIGHTS_UNKNOWN,
        "value_width": "values have the width of keys",
    }
    if need.startswith("mask"):
        return absent.get("mask") or f"its mask does not vary on that axis ({need[-1]})"
    return words.get(need, f"it has no {need}")


def run_clause(clause: Clause, recognition: Any, profile: Profile, *, start: int = 1) -> ClauseResult:
    """Run every check of a clause and return what came of it.

    Args:
        clause: The clause.
        recognition: The subject, its space, and what is known to be absent.
        profile: How hard to try.
        start: Seed of all cases; equal seeds give equal runs.
    """
    began = time.perf_counter()
    for question in recognition.questions:
        if question.clause == clause.name:
            return ClauseResult(clause.name, "question", reason=question.text, answer=question.declare)
    worst: list[float] = []
    token = WORST.set(worst)
    examples = 0
    reasons: list[str] = []
    try:
        for check, subject in bindings(clause, recognition):
            reason = missing_need(clause, subject.space, recognition.absent)
            if reason is not None:
                reasons.append(reason)
                continue
            count, trouble, why = run_check(check, subject, profile, start=start)
            examples += count
            if trouble is not None:
                case, error = trouble
                LastCall.sequence = _calls_of(check, subject, case) if check.sequence else []
                LastCall.trouble = error
                return ClauseResult(
                    clause.name, "failed", examples=examples, seconds=time.perf_counter() - began,
                    worst=max(worst, default=0.0), failure=describe(error, case),
                )  # fmt: skip
            if count == 0:
                reasons.append(why or "no case of it can be expressed")
    finally:
        WORST.reset(token)
    seconds = time.perf_counter() - began
    if examples == 0:
        return ClauseResult(
            clause.name, "not applicable", reason=_why_not(clause, recognition, reasons), seconds=seconds
        )
    return ClauseResult(
        clause.name, "passed", examples=examples, seconds=seconds, worst=max(worst, default=0.0)
    )


def _why_not(clause: Clause, recognition: Any, reasons: list[str]) -> str:
    """Return why no case of a clause ran; unknown weights are one reason, whoever notices it."""
    space = recognition.space
    waits = reasons == [] and clause.holds_for(space.contract) and clause.name in checks()
    if (waits or reasons[:1] == [WEIGHTS_UNKNOWN]) and not space.has("parameters"):
        return str(recognition.absent.get("parameters", WEIGHTS_UNKNOWN))
    return reasons[0] if reasons else "it is not about this contract"


def bindings(clause: Clause, recognition: Any) -> Iterator[tuple[Check, Any]]:
    """Yield each check of the clause with what it is handed: the core, the layer, or the core in it."""
    contract = recognition.space.contract
    if not clause.holds_for(contract):
        return
    for check in checks().get(clause.name, ()):
        if check.on == contract or (check.on == "layer" and contract == "cached"):
            yield check, recognition.subject
        elif (
            check.on == "core"
            and isinstance(recognition.subject, LayerSubject)
            and recognition.space.has("parameters")
        ):
            yield check, CoreView(recognition.subject)


def _run(check: Check, subject: Any, case: Case) -> None:
    """Run a check on a case; parameters whose shapes do not follow the sizes are the code's failure."""
    try:
        with GradMode.of(case.grad_mode):
            check.function(subject, case)
    except DeclarationError as error:
        raise SubjectError("parameters", str(error)) from error
    except SubjectError as error:
        # A fill that does not fit is one mistake, and has a clause: elsewhere it hides what else is wrong.
        half = case.dtype in ("float16", "bfloat16") and case.mask is not None
        if half and not check.clause.startswith("dtype.") and _fails_alone(subject, case):
            raise NotApplicable(f"in {case.dtype} a mask fails, as dtype.mask says") from error
        raise


def _fails_alone(subject: Any, case: Case) -> bool:
    """Return whether a plain call raises already, whatever a clause does beside it."""
    try:
        with aside(), GradMode.of(case.grad_mode):
            if isinstance(subject, LayerSubject):
                subject.run_layer(subject.layer_inputs(case))
            else:
                subject.run(case.core_inputs())
    except SubjectError:
        return True
    return False


def _calls_of(check: Check, subject: Any, case: Case) -> list[Call]:
    """Repeat a failure, and return the calls that led to it."""
    with recorded() as calls, suppress(Violation, SubjectError, NotApplicable):
        _run(check, subject, case)
    return calls


def run_check(
    check: Check, subject: Any, profile: Profile, *, start: int
) -> tuple[int, tuple[Case, Trouble] | None, str]:
    """Run one check and return how many cases ran, the smallest trouble, and why none applied."""
    deadline = Deadline(profile.seconds * check.effort)
    count, why = 0, ""
    rows = check.recipe.rows(subject.space, seed=start, limit=max(3, round(profile.rows * check.effort)))
    for number, case in enumerate(rows):
        if number >= 3 and deadline.is_over:
            break
        try:
            _run(check, subject, case)
            count += 1
        except NotApplicable as reason:
            why = why or str(reason)
        except (Violation, SubjectError) as trouble:
            if isinstance(trouble, SubjectError) and trouble.refusal:
                why = why or f"refused: {trouble}"
                continue
            return count + 1, shrink(check, subject, case, trouble, profile), ""
    if count and profile.random:
        extra, trouble_found = _random(check, subject, profile, start=start, deadline=deadline)
        count += extra
        if trouble_found is not None:
            return count, trouble_found, ""
    return count, None, why


def _random(
    check: Check, subject: Any, profile: Profile, *, start: int, deadline: Deadline
) -> tuple[int, tuple[Case, Trouble] | None]:
    """Try random cases; Hypothesis makes a failure small."""
    count = 0
    last: list[tuple[Case, Trouble]] = []

    @seed(start)
    @settings(
        max_examples=max(1, round(profile.random * check.effort)),
        database=None,
        deadline=None,
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.target),
    )
    @given(check.recipe.strategy(subject.space))
    def trial(case: Case) -> None:
        nonlocal count
        if deadline.is_over or last:
            return
        try:
            _run(check, subject, case)
            count += 1
            if profile.name == "thorough" and (worst := WORST.get()):
                target(min(worst[-1], 1e6))
        except NotApplicable:
            pass
        except (Violation, SubjectError) as trouble:
            if not (isinstance(trouble, SubjectError) and trouble.refusal):
                last.append((case, trouble))

    trial()
    if last:
        return count + 1, shrink(check, subject, *last[0], profile)
    return count, None


def _kind(trouble: Trouble) -> str:
    return trouble.kind if isinstance(trouble, SubjectError) else "violation"


def shrink(
    check: Check, subject: Any, case: Case, trouble: Trouble, profile: Profile
) -> tuple[Case, Trouble]:
    """Return the smallest case found below a failing one that fails in the same way."""
    if not profile.shrink:
        return case, trouble
    best: list[tuple[Case, Trouble]] = [(case, trouble)]
    deadline = Deadline(profile.seconds)

    @seed(1)
    @settings(
        max_examples=profile.shrink,
        database=None,
        deadline=None,
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    @given(below(case, check.recipe.options))
    def trial(candidate: Case) -> None:
        if deadline.is_over:
            return
        fitted = subject.space.fit(candidate)
        if fitted is None or not check.recipe.keep(fitted):
            return
        try:
            _run(check, subject, fitted)
        except NotApplicable:
            return
        except (Violation, SubjectError) as found:
            if _kind(found) != _kind(trouble):
                return
            if weight(fitted) <= weight(best[0][0]):
                best[0] = (fitted, found)
            raise

    try:
        trial()
    except (Violation, SubjectError):
        pass
    except Exception as error:
        # Hypothesis reports a failure that does not repeat; the case in hand still stands.
        if type(error).__module__.partition(".")[0] != "hypothesis":
            raise
    return replay(check, subject, *best[0])


def replay(check: Check, subject: Any, case: Case, trouble: Trouble) -> tuple[Case, Trouble]:
    """Run the smallest case once more, so that the latest call is the failing one; return what it gives."""
    try:
        _run(check, subject, case)
    except NotApplicable:
        pass
    except (Violation, SubjectError) as again:
        return case, again
    return case, trouble


def weight(case: Case) -> float:
    """Return how large a case is: its sizes, then its options."""
    sizes = case.batch + case.heads + case.q_len + case.kv_len + case.d_k + case.d_v
    options = sum(getattr(case, name) is not None for name in ("mask", "bias", "window", "softcap", "scale"))
    return (
        sizes
        + 2 * options
        + case.causal
        + (case.layout != "contiguous")
        + (case.grad_mode != "plain")
        + (case.values not in ("ones", "normal"))
    )


def describe(trouble: Trouble, case: Case) -> Failure:
    """Turn what went wrong into data."""
    plain = case.as_dict()
    if isinstance(trouble, SubjectError):
        return Failure(
            what=f"it raises where the clause wants an answer: {trouble}"
            if trouble.kind != "returned"
            else f"it returns {trouble.message}",
            case=case.describe(),
            structure=plain,
            raised=trouble.kind,
            where=str(trouble.place) if trouble.place else None,
        )
    return Failure(
        what=trouble.what,
        case=case.describe(),
        structure=plain,
        got=_plain(trouble.got),
        expected=_plain(trouble.expected),
        allowed=trouble.allowed,
        index=trouble.index,
        ratio=trouble.ratio,
    )


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float | str | bool | type(None)) else str(value)
