"""What people see: verdicts, tables and lists, drawn with rich. Nothing here decides anything."""

import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from ._clauses import CONTRACT_VERSION, Clause, Level, clauses
from ._table import Stage
from .conformance.results import ClauseResult
from .report import Report, failure_text

WIDE = 200
MANY = 12
KINDS = {"cached": "layer with a cache"}  # where a contract is not called what a person calls it


def console(*, stderr: bool = False) -> Console:
    """Return a console: colours on a terminal only, no folding into a pipe, brackets are brackets."""
    stream = sys.stderr if stderr else sys.stdout
    piped = not stream.isatty()
    return Console(
        stderr=stderr,
        highlight=False,
        markup=False,
        soft_wrap=piped,
        width=WIDE if piped and "COLUMNS" not in os.environ else None,
    )


def progress(out: Console) -> Progress:
    """Return a progress bar that shows itself on a terminal and nowhere else."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=out,
        transient=True,
        disable=not out.is_terminal,
    )


def heading(found: Mapping[str, Any], *, device: str) -> RenderableType:
    """Return the two lines that say what is checked and what was recognised."""
    from . import __version__

    versions = f"attnspec {__version__} · contract {CONTRACT_VERSION}"
    first = f"{versions} · {found['contract']} · {device} · {' '.join(found['dtypes'])}"
    said = " · ".join(
        f"{f['topic']} {f['value']}" if f["topic"] == "weights" else f"{f['topic']}: {f['value']}"
        for f in found["findings"]
    )
    missing = [name for name in ("causal", "mask", "grouped", "dropout") if _lacks(found, name)]
    words = {
        "causal": "no causal flag",
        "mask": "no mask",
        "grouped": "no grouped heads",
        "dropout": "no dropout",
    }
    tail = " · ".join(words[m] for m in missing)
    line = " · ".join(part for part in (said, tail) if part)
    return Group(Text(first, style="bold"), Text(f"recognised   {line}"))


def _lacks(found: Mapping[str, Any], name: str) -> bool:
    return bool(found["causal"] == "never") if name == "causal" else name not in found["features"]


def chapters(report: Report) -> RenderableType:
    """Return one line of chapters: how many clauses hold, of how many that ran."""
    text = Text()
    for name, (passed, ran) in report.chapters().items():
        text.append(f"{name} {passed}/{ran}", style="green" if passed == ran else "red")
        text.append("    ")
    return text


def tally(report: Report) -> RenderableType:
    """Return the sentence that says what ran and what did not, and why."""
    total = len(report.results)
    contract = report.recognised["contract"]
    lines = [f"ran {report.ran} of {total} clauses that apply to a {KINDS.get(contract, contract)}"]
    skipped = sum(report.inapplicable().values())
    if skipped:
        lines[0] += f"; {skipped} not applicable:"
        lines += [f"  {count:>3}  {reason}" for reason, count in report.inapplicable().items()]
    return Text("\n".join(lines))


def failures(report: Report, *, brief: bool = False) -> Iterable[RenderableType]:
    """Yield each cause once, the MUST clauses first, with what else it breaks."""
    book = clauses()
    for group in report.causes():
        first = group[0]
        clause = book[first.clause]
        word = {"question": "QUESTION", "error": "ERROR", "not run": "NOT RUN"}.get(
            first.status, "FAILED" if clause.level != Level.SHOULD else "ADVICE"
        )
        text = Text(f"{word} ", style="bold red" if word == "FAILED" else "bold yellow")
        body = failure_text(clause, first)
        text.append(body.split("\n", 1)[0] if brief else body, style="default")
        if len(group) > 1:
            names = [r.clause for r in group[1:]]
            others = (
                ", ".join(names)
                if len(names) <= MANY
                else f"{', '.join(names[:MANY])} and {len(names) - MANY} more"
            )
            word = "not run either" if first.status == "not run" else "also broken"
            text.append(f"\n  {word:<10} {len(names)} for the same cause: {others}", style="default")
        yield text
    for result in report.of("deviation"):
        yield Text(f"DEVIATION {result.clause}  {result.reason}", style="yellow")


def outcome(report: Report) -> str:
    """Return the verdict in a word or two."""
    if report.ran == 0:
        return "nothing ran"
    if report.broken:
        return f"{len(report.broken)} broken"
    return "undecided" if report.waiting else "conforms"


def verdict(report: Report) -> RenderableType:
    """Return the last line."""
    missed = len(report.of("not run"))
    asked = len([r for r in report.broken if r.status == "question"])
    broken, advised = len([r for r in report.broken if r.status != "not run"]) - asked, len(report.advised)
    if report.ran == 0:
        return Text("nothing ran: that is a failure, not a pass", style="bold red")
    open_still = f"{asked} question{'' if asked == 1 else 's'} open"
    extra = (f", {open_still}" if asked and (broken or missed) else "") + (
        (f", {missed} not run" if missed else "") + (f", {advised} SHOULD not followed" if advised else "")
    )
    cases = sum(r.examples for r in report.results)
    seconds = f"{report.seconds:.1f} s, {cases} cases, profile {report.profile}, seed {report.seed}"
    plural = f"{broken} clause{'' if broken == 1 else 's'}"
    if broken or missed:
        return Text(
            f"NOT multi-head attention as specified: {plural} broken{extra}  ({seconds})",
            style="bold red",
        )
    if asked:
        found = f"nothing broken, but {open_still}: declare what is meant{extra}"
        return Text(f"NOT DECIDED: {found}  ({seconds})", style="bold red")
    if report.waiting:
        waits = "1 clause waits" if len(report.waiting) == 1 else f"{len(report.waiting)} clauses wait"
        found = f"nothing broken, but {waits} for its weights (--weights){extra}"
        return Text(f"UNDECIDED: {found}  ({seconds})", style="bold yellow")
    return Text(f"conforms{extra}  ({seconds})", style="bold green")


def matrix(reports: list[Report]) -> RenderableType:
    """Return the conformance matrix: implementations by chapters."""
    names = list(dict.fromkeys(chapter for report in reports for chapter in report.chapters()))
    table = Table(
        title=f"conformance, contract {CONTRACT_VERSION}", title_justify="left", box=None, pad_edge=False
    )
    table.add_column("implementation", no_wrap=True)
    for name in names:
        table.add_column(name[:9], justify="right")
    table.add_column("verdict", no_wrap=True)
    for report in reports:
        counts = report.chapters()
        cells = [_cell(counts.get(name)) for name in names]
        last = Text(outcome(report), style="green" if report.ok else "red")
        if report.advised:
            last.append(f", {len(report.advised)} advised", style="yellow")
        table.add_row(report.target, *cells, last)
    return table


def _cell(count: tuple[int, int] | None) -> Text:
    if count is None:
        return Text("–", style="dim")
    return Text(
        f"{count[0]}/{count[1]}" if count[0] != count[1] else str(count[1]),
        style="green" if count[0] == count[1] else "red",
    )


def title(name: str, about: str) -> RenderableType:
    """Return a name and, behind it, what it is about."""
    return Text.assemble((name, "bold"), f"  {about}")


def clause_page(clause: Clause) -> RenderableType:
    """Return everything that the contract says about one clause."""
    rows = Table(box=None, show_header=False, pad_edge=False)
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column()
    for word, value in (
        ("level", str(clause.level)),
        ("holds for", ", ".join(clause.contracts)),
        ("needs", ", ".join(clause.needs) or "nothing"),
        ("formula", clause.formula),
        ("why", ", ".join(clause.reason)),
        ("hint", clause.hint),
        ("address", clause.address),
    ):
        if value:
            rows.add_row(word, value)
    return Group(Text(clause.name, style="bold"), Text(clause.statement), rows)


def clause_list(found: Iterable[Clause]) -> RenderableType:
    """Return clauses, a line each."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="dim")
    table.add_column()
    for clause in found:
        table.add_row(clause.name, str(clause.level), clause.statement)
    return table


def stage_table(stages: Iterable[Stage]) -> RenderableType:
    """Return the shape table, read from the signatures."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("stage", "from", "to", "path"):
        table.add_column(title)
    for stage in stages:
        takes = ", ".join(str(a) for a in stage.arguments)
        table.add_row(
            stage.name + (" (optional)" if stage.optional else ""), takes, str(stage.result), stage.path
        )
    return table


def result_line(result: ClauseResult) -> str:
    """Return one clause's result in a line, for progress."""
    return f"{result.clause} {result.status}"
