"""The command that checks each kind of attention inside a model, in processes of its own."""

import os
import time
from argparse import Namespace
from typing import Any

from . import _terminal as terminal
from ._check import run_sessions, select
from ._errors import AttnspecError, TargetError
from ._run import _named, _print_report, _write_reports
from .conformance.profiles import profile
from .conformance.session import ProcessSession
from .declaration import Declaration
from .report import Report


def check_inside(text: str, declared: Declaration, words: Namespace) -> int:
    """Check each kind of attention inside a model once, print the reports, and return the worst exit status.

    Args:
        text: Names the model.
        declared: `new` makes the model; the rest is said about every kind of attention in it.
        words: The command line.

    Raises:
        AttnspecError: If nothing in the model was taken for attention.
        TargetError: If there is no model, or making it kills or hangs its process.
    """
    profile(words.profile)
    kinds, left = _find(text, declared, words)
    out = terminal.console(stderr=words.json is not None and str(words.json) == "-")
    for kind in kinds:
        more = f" and {len(kind['paths']) - 1} more like it" if len(kind["paths"]) > 1 else ""
        out.print(f"found        {kind['name']}{more}")
    for path, reason in left.items():
        out.print(f"not taken    {path or '(the model itself)'}: {reason}")
    if not kinds:
        raise AttnspecError(
            f"{text}: nothing in it was taken for attention; point at the class itself, FILE:CLASS"
        )
    reports, failed = [], False
    for kind in kinds:
        try:
            report = _check_kind(text, kind, declared, words)
        except TargetError as error:
            failed = True
            out.print(f"not checked  {kind['name']}: {error}")
            continue
        reports.append(report)
        out.print(f"\n{kind['name']}")
        _print_report(report, out, quiet=words.quiet, many=False)
    if reports:
        _write_reports(words, reports)
    return max([2 if failed else 0, *(r.status for r in reports)])


def _find(text: str, declared: Declaration, words: Namespace) -> tuple[list[dict[str, Any]], dict[str, str]]:
    session = ProcessSession(text, Declaration(), limit=words.limit, new=declared.new)
    try:
        return session.find()
    finally:
        session.close()


def _check_kind(text: str, kind: dict[str, Any], declared: Declaration, words: Namespace) -> Report:
    """Check the first module of a kind; the model is made anew in each process."""
    began = time.perf_counter()
    chosen = select(_named(words.clause))
    sessions = [
        ProcessSession(
            text, declared.replace(new=None), profile_name=words.profile, seed=words.seed,
            device=words.device, limit=words.limit, inside=kind["paths"][0], new=declared.new,
        )
        for _ in range(words.jobs or min(4, os.cpu_count() or 1))
    ]  # fmt: skip
    try:
        found, results = run_sessions(sessions, chosen)
    finally:
        for session in sessions:
            session.close()
    return Report(
        target=kind["name"], recognised=found, results=results, profile=words.profile, seed=words.seed,
        device=words.device, seconds=time.perf_counter() - began,
    )  # fmt: skip
