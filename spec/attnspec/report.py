"""The verdict on one implementation: what ran, what failed and why, what did not run and why."""

import json
import platform
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from ._clauses import CONTRACT_VERSION, Clause, Level, clauses
from ._errors import ReportError
from .conformance.results import ClauseResult

_NOT_XML = re.compile("[^\\t\\n\\r\\u0020-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")
BAD = ("failed", "error", "question", "not run")


@dataclass(frozen=True)
class Report:
    """What a check found.

    Attributes:
        target: As the user wrote it.
        recognised: What recognition found: contract, dtypes, findings, questions, what is absent.
        results: One for each clause that was selected, in the order of the contract.
        profile: How hard the suite tried.
        seed: Of all cases.
        device: Where tensors lived.
        seconds: How long it took.
    """

    target: str
    recognised: Mapping[str, Any]
    results: tuple[ClauseResult, ...]
    profile: str
    seed: int
    device: str
    seconds: float
    environment: Mapping[str, str] = field(
        default_factory=lambda: {"python": platform.python_version(), "system": platform.system()}
    )

    def of(self, *statuses: str) -> tuple[ClauseResult, ...]:
        """Return the results with one of the statuses."""
        return tuple(r for r in self.results if r.status in statuses)

    @property
    def ran(self) -> int:
        """How many clauses ran at least one case, or were decided by a question."""
        return len(self.of("passed", "failed", "deviation", "error", "question"))

    @property
    def broken(self) -> tuple[ClauseResult, ...]:
        """The results that decide against it: a MUST or an elected alternative that does not hold."""
        book = clauses()
        return tuple(
            r
            for r in self.results
            if r.status in BAD and (book[r.clause].level != Level.SHOULD or r.status == "error")
        )

    @property
    def advised(self) -> tuple[ClauseResult, ...]:
        """The SHOULD clauses that do not hold."""
        book = clauses()
        return tuple(r for r in self.of("failed", "question") if book[r.clause].level == Level.SHOULD)

    @property
    def waiting(self) -> tuple[ClauseResult, ...]:
        """The results that wait for a layer's weights: without them no output has an exact value."""
        why = self.recognised.get("absent", {}).get("parameters")
        return tuple(r for r in self.of("not applicable") if why is not None and r.reason == why)

    @property
    def ok(self) -> bool:
        """Whether something ran, no MUST failed, and none waits for weights that were not found."""
        return self.status == 0

    @property
    def status(self) -> int:
        """The exit status: 0 all pass, 1 a MUST failed, 2 nothing ran, or too little to decide."""
        if self.ran == 0:
            return 2
        if self.broken:
            return 1
        return 2 if self.waiting else 0

    def causes(self) -> list[list[ClauseResult]]:
        """Return what does not hold, grouped by cause: one known mistake, one line, or else one clause.

        Groups with a MUST come first; in each group a clause leads that names the kind of mistake (one of the
        stage at which the code departs), and among those the one whose case is the smallest.
        """
        book = clauses()
        order = {Level.MUST: 0, Level.ALTERNATIVE: 1, Level.SHOULD: 2}
        groups: dict[str, list[ClauseResult]] = {}
        for result in self.of(*BAD):
            f = result.failure
            cause = (f.looks_like or f.where) if f is not None else None
            level = "advice" if book[result.clause].level == Level.SHOULD else "broken"
            if result.status == "not run":
                cause = result.reason
            groups.setdefault(f"{level} {cause or result.clause}", []).append(result)
        for group in groups.values():
            kin = {name for r in group if r.failure for name in r.failure.kin}
            group.sort(
                key=lambda r: (
                    order[book[r.clause].level],
                    r.clause not in kin,
                    len(r.failure.case) if r.failure else 0,
                )
            )
        return sorted(groups.values(), key=lambda group: order[book[group[0].clause].level])

    def chapters(self) -> dict[str, tuple[int, int]]:
        """Return for each chapter how many clauses hold, of how many that ran."""
        counts: dict[str, list[int]] = {}
        for result in self.results:
            if result.status in ("not applicable", "not run"):
                continue
            count = counts.setdefault(result.clause.split(".", 1)[0], [0, 0])
            count[0] += result.status == "passed"
            count[1] += 1
        return {name: (passed, ran) for name, (passed, ran) in counts.items()}

    def inapplicable(self) -> dict[str, int]:
        """Return how many clauses did not apply, by reason; the commonest first."""
        return dict(Counter(r.reason for r in self.of("not applicable", "not run")).most_common())

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        book = clauses()
        return {
            "attnspec": __import__("attnspec").__version__,
            "contract": CONTRACT_VERSION,
            "target": self.target,
            "recognised": dict(self.recognised),
            "profile": self.profile,
            "seed": self.seed,
            "device": self.device,
            "seconds": round(self.seconds, 3),
            "environment": dict(self.environment),
            "status": self.status,
            "ran": self.ran,
            "of": len(self.results),
            "results": [{**r.as_dict(), "level": str(book[r.clause].level)} for r in self.results],
        }

    def write_json(self, path: Path) -> None:
        """Write the report as JSON.

        Raises:
            ReportError: If the file cannot be written.
        """
        _write(path, json_text(self.as_dict()))

    def write_junit(self, path: Path) -> None:
        """Write the report as JUnit XML, one test case a clause.

        Raises:
            ReportError: If the file cannot be written.
        """
        _write(path, junit_text([self]))


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise ReportError(
            f"the report cannot be written to {path}: {error.strerror or error}; the verdict above stands"
        ) from None


def json_text(data: Any) -> str:
    """Return data as JSON that every reader takes: infinity and NaN are words."""
    return json.dumps(_finite(data), indent=1, default=str, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def junit_text(reports: list[Report]) -> str:
    """Return JUnit XML as text; characters that XML does not allow are replaced."""
    return (
        _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", ElementTree.tostring(junit(reports), encoding="unicode"))
        + "\n"
    )


def failure_text(clause: Clause, result: ClauseResult) -> str:
    """Return everything about a failure in plain lines."""
    lines = [f"{clause.name} ({clause.level})  {clause.statement}"]
    f = result.failure
    if f is None:
        lines.append(f"  {result.status:<10} {result.reason}")
        if result.answer:
            lines.append(f"  {'if so':<10} --declare {result.answer}")
        return "\n".join(lines)
    lines.append(f"  what       {f.what}")
    lines.append(f"  smallest   {f.case}")
    if f.got is not None:
        allowed = f"  allowed error {_number(f.allowed)}" if f.allowed is not None else ""
        at = f"  at {list(f.index)}" if f.index else ""
        if f.ratio is not None and 1.0 < f.ratio < 1e9:
            at += f"  ({f.ratio:.3g} times the allowed error)"
        lines.append(f"  got {_number(f.got)}  expected {_number(f.expected)}{allowed}{at}")
    for word, value in (
        ("looks like", f.looks_like),
        ("fix", f.fix),
        ("where", f.where),
        ("again", f.script and f"python {f.script}"),
    ):
        if value:
            lines.append(f"  {word:<10} {value}")
    if clause.reason:
        lines.append(f"  why        {', '.join(clause.reason)}")
    lines.append(f"  see        attnspec show {clause.name}")
    return "\n".join(lines)


def _number(value: Any) -> str:
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def junit(reports: list[Report]) -> ElementTree.Element:
    """Return JUnit XML for several reports, a suite each."""
    book = clauses()
    root = ElementTree.Element("testsuites")
    for report in reports:
        decisive = report.broken
        wrong = sum(r.status == "error" for r in decisive)
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=report.target,
            tests=str(len(report.results)),
            failures=str(len(decisive) - wrong),
            errors=str(wrong),
            skipped=str(len(report.of("not applicable", "deviation"))),
            time=f"{report.seconds:.3f}",
        )
        for result in report.results:
            case = ElementTree.SubElement(
                suite, "testcase", classname=report.target, name=result.clause, time=f"{result.seconds:.3f}"
            )
            if result.status in BAD and result not in decisive:
                ElementTree.SubElement(case, "system-out").text = failure_text(book[result.clause], result)
            elif result.status in BAD:
                message = result.failure.what if result.failure else result.reason
                node = ElementTree.SubElement(
                    case, "error" if result.status == "error" else "failure", message=message
                )
                node.text = failure_text(book[result.clause], result)
            elif result.status in ("not applicable", "deviation"):
                ElementTree.SubElement(case, "skipped", message=result.reason)
    return root
