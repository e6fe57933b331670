"""Show a trace: a rich table, JSON and Markdown. The page is in `page`, two traces in `compare`."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from attnspec._table import STAGES

from .table import ContractRow, Row, Trace

STATUS = {
    "passed": ("✓", "green"),
    "fused": ("·", "cyan"),
    "departs": ("✗", "bold red"),
    "missing": ("–", "yellow"),
}
HEADINGS = ("operation", "line", "code", "shapes", "memory", "bytes", "contract")
ROLES = {"q": "query", "k": "key", "v": "value"}


def stage_words(stages: tuple[str, ...]) -> str:
    """Return the contract's rows in words, roles of one row joined."""
    grouped: dict[str, list[str]] = {}
    for stage in stages:
        base, _, role = stage.partition(":")
        grouped.setdefault(base, []).extend([ROLES[role]] if role else [])
    return ", ".join(
        f"{STAGES[base].name} ({', '.join(roles)})" if roles else STAGES[base].name
        for base, roles in grouped.items()
    )


def shape_words(row: Row) -> str:
    """Return a row's shapes, plain numbers left out."""
    given = [str(t) for t in row.inputs if t.shape or row.side]
    made = [str(t) for t in row.outputs]
    arrow = f"{'; '.join(given)} → " if given else ""
    return f"{arrow}{'; '.join(made)}" if row.error is None else f"{arrow}✗"


def memory_words(row: Row) -> str:
    """Return whether a row's result is new memory, its dtype, and whether it is contiguous."""
    if not row.outputs:
        return ""
    first = row.outputs[0]
    return f"{row.memory} {first.dtype}{'' if first.contiguous else ' strided'}"


def cells(row: Row) -> tuple[str, ...]:
    """Return a row's cells as text, in the order of `HEADINGS`."""
    times = "" if row.times == "1" else f" × {row.times}"
    place = f"{Path(row.file).name}:{row.line}" if row.file else ""
    contract = row.error.splitlines()[0] if row.error else stage_words(row.reached)
    return (f"{row.op}{times}", place, row.code, shape_words(row), memory_words(row), row.bytes, contract)


def summary(trace: Trace) -> list[tuple[str, str]]:
    """Return the sentences under a table, each with its kind: `departs`, `fails`, `right`, `note`."""
    found: list[tuple[str, str]] = []
    if trace.failure is not None:
        found.append(("fails", trace.failure.text))
    if trace.departure is not None:
        found.append(("departs", f"{trace.departure.name}: {trace.departure.text}"))
    if trace.correct and trace.contract:
        fused = [c.name for c in trace.contract if c.status == "fused"]
        found.append(
            ("right", "the result is the contract's" + (f"; fused: {', '.join(fused)}" if fused else ""))
        )
    return found + [("note", note) for note in trace.notes]


NARROW = (0, 1, 3, 6)


def render_table(trace: Trace, *, width: int | None = None) -> RenderableType:
    """Return a trace as a rich renderable: the code's rows, the contract's rows, and the verdict.

    Args:
        trace: The trace.
        width: Columns of the terminal; below 140 the table keeps what matters most: operation, line, the
            shape that comes out, and the contract's row. None is wide.
    """
    table = Table(title=trace.title or None, box=box.SIMPLE, title_justify="left", pad_edge=False)
    narrow = width is not None and width < 140
    kept = NARROW if narrow else tuple(range(len(HEADINGS)))
    for heading in (HEADINGS[i] for i in kept):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("operation", "line"))
    guilty = trace.departure.row if trace.departure is not None else None
    for number, row in enumerate(trace.rows):
        style = "bold red" if number == guilty or row.error else "dim" if row.side else None
        found = cells(row)
        if narrow:
            found = (
                *found[:3],
                "; ".join(str(t) for t in row.outputs) if row.error is None else "✗",
                *found[4:],
            )
        table.add_row(*(Text(found[i]) for i in kept), style=style)
    parts: list[RenderableType] = [table]
    if trace.contract:
        parts.append(_contract_table(trace))
    styles = {"departs": "bold red", "fails": "bold red", "right": "green", "note": "yellow"}
    parts += [Text(text, style=styles[kind]) for kind, text in summary(trace)]
    return Group(*parts)


def _contract_table(trace: Trace) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    for heading in ("", "contract", "gives", "here"):
        table.add_column(heading, overflow="fold")
    for entry in trace.contract:
        sign, style = STATUS[entry.status]
        table.add_row(sign, entry.name, f"({', '.join(entry.gives)})", where(trace, entry), style=style)
    return table


def where(trace: Trace, entry: ContractRow) -> str:
    """Say where the code goes through a row of the contract."""
    if entry.row is None:
        return "" if entry.status == "missing" else entry.status
    row = trace.rows[entry.row]
    place = f"{Path(row.file).name}:{row.line} {row.op}"
    return (
        place
        if entry.status == "passed"
        else f"{entry.status} {'in' if entry.status == 'fused' else 'at'} {place}"
    )


def to_json(trace: Trace) -> dict[str, Any]:
    """Return a trace as plain data that `json.dumps` takes."""
    return _plain(asdict(trace))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


def to_markdown(trace: Trace) -> str:
    """Return a trace as Markdown: two tables and the verdict."""
    lines = [f"## {trace.title}", ""] if trace.title else []
    lines += _markdown_table(HEADINGS, [cells(row) for row in trace.rows])
    if trace.contract:
        body = [
            (STATUS[c.status][0], c.name, f"({', '.join(c.gives)})", where(trace, c)) for c in trace.contract
        ]
        lines += ["", *_markdown_table(("", "contract", "gives", "here"), body)]
    lines += [line for _, text in summary(trace) for line in ("", _escaped(text))]
    return "\n".join(lines) + "\n"


def _markdown_table(headings: tuple[str, ...], body: Sequence[tuple[str, ...]]) -> list[str]:
    rows = [headings, tuple("---" for _ in headings), *(tuple(map(_escaped, row)) for row in body)]
    return ["| " + " | ".join(row) + " |" for row in rows]


def _escaped(text: str) -> str:
    return (
        text.replace("\\", "\\\\")
        .replace("|", "\\|")
        .replace("*", "\\*")
        .replace("_", "\\_")
        .replace("<", "&lt;")
    )
