"""Holding one right implementation against every MUST clause."""

import sys
from typing import Any

from attnspec._clauses import Level, clauses
from attnspec.conformance.profiles import Profile
from attnspec.conformance.runner import run_clause
from attnspec.declaration import Declaration
from attnspec.loading import Target
from attnspec.recognition import recognise

from .bank import Right


def recognised(found: Right) -> Any:
    """Recognise an implementation as a user's code would be."""
    module = sys.modules[found.target.__module__]
    declared = Declaration(contract=found.contract, **found.declare)
    return recognise(Target(found.name, found.target, vars(module), module.__file__), declared)


def failures(found: Right, chosen: Profile, *, start: int, step: int = 1) -> list[str]:
    """Return what the MUST clauses and alternatives hold against it; nothing, if they are right.

    Args:
        found: The implementation.
        chosen: How hard to try.
        start: Seed of all cases.
        step: Only every so-many-th clause is tried, another part with another seed.
    """
    recognition = recognised(found)
    said = [question.text for question in recognition.questions]
    for clause in tuple(clauses().values())[start % step :: step]:
        if clause.level is Level.SHOULD:
            continue
        result = run_clause(clause, recognition, chosen, start=start)
        if result.status == "failed" and result.failure is not None:
            said.append(f"{clause.name}: {result.failure.what} ({result.failure.case})")
    return said
