"""Put two traces side by side, row by row of the contract."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from .render import STATUS
from .table import ContractRow, Trace


@dataclass(frozen=True, slots=True)
class Side:
    """How one trace goes through one row of the contract: status, place, and its shape there."""

    status: str
    place: str
    code: str
    shape: str
    memory: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two traces, held against each other.

    Attributes:
        titles: What was traced.
        rows: The contract's rows in words, and each side; None where a side's contract has no such row.
        copies: Bytes of new memory of each trace, as formulas to be added.
        correct: Whether each result is the contract's.
    """

    titles: tuple[str, str]
    rows: tuple[tuple[str, Side | None, Side | None], ...]
    copies: tuple[tuple[str, ...], tuple[str, ...]]
    correct: tuple[bool | None, bool | None]

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as plain data."""
        return asdict(self)

    def to_markdown(self) -> str:
        """Return the comparison as a Markdown table."""
        lines = ["| contract | " + " | ".join(self.titles) + " |", "| --- | --- | --- |"]
        lines += [f"| {name} | {_words(a)} | {_words(b)} |".replace("*", "\\*") for name, a, b in self.rows]
        return "\n".join(lines) + "\n"

    def __rich__(self) -> Table:
        """Return the comparison as a rich table."""
        table = Table(box=box.SIMPLE, pad_edge=False)
        for heading in ("contract", *self.titles):
            table.add_column(heading, overflow="fold")
        for name, *sides in self.rows:
            style = [STATUS[s.status][1] if s is not None else "dim" for s in sides]
            table.add_row(Text(name), *(Text(_words(s), style=c) for s, c in zip(sides, style, strict=True)))
        return table


def _words(side: Side | None) -> str:
    if side is None:
        return ""
    if not side.place:
        return side.status
    text = f"{side.place} {side.shape} {side.memory}"
    return text if side.status == "passed" else f"{side.status}: {text}"


def compare(first: Trace, second: Trace) -> Comparison:
    """Put two traces side by side; rows that only one contract has stay, with nothing on the other side."""
    sides = [{c.stage: c for c in trace.contract} for trace in (first, second)]
    order = [c.stage for c in first.contract]
    for position, entry in enumerate(second.contract):
        if entry.stage not in order:
            before = [c.stage for c in second.contract[:position] if c.stage in order]
            order.insert(order.index(before[-1]) + 1 if before else 0, entry.stage)
    rows = tuple(
        (
            (sides[0].get(stage) or sides[1][stage]).name,
            _side(first, sides[0].get(stage)),
            _side(second, sides[1].get(stage)),
        )
        for stage in order
    )
    titles = (first.title or "first", second.title or "second")
    return Comparison(titles, rows, (_copies(first), _copies(second)), (first.correct, second.correct))


def _side(trace: Trace, entry: ContractRow | None) -> Side | None:
    if entry is None:
        return None
    if entry.row is None:
        return Side(entry.status, "", "", "", "")
    row = trace.rows[entry.row]
    shape = str(row.outputs[0]) if row.outputs else ""
    return Side(entry.status, f"{Path(row.file).name}:{row.line} {row.op}", row.code, shape, row.memory)


def _copies(trace: Trace) -> tuple[str, ...]:
    return tuple(
        r.bytes if r.times == "1" else f"({r.times})*({r.bytes})"
        for r in trace.rows
        if r.memory == "copy" and not r.side
    )
