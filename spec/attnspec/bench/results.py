"""A run's results: plain data in, JSON, tables and a comparison out."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .._errors import ReportError, TargetError

FORMAT = 1
MIB = 1024**2


@dataclass(frozen=True, kw_only=True)
class Row:
    """One subject in one cell.

    Attributes:
        name: Of the implementation or peer.
        shape: `batch x length x d_model x heads`.
        dtype: Of inputs and weights.
        which: The pass.
        mode: `eager` or `compiled`.
        seconds: Median time of a call; None if it was not timed.
        ratio: Median over the rounds of its time by the floor's.
        low: Lower quartile of that ratio.
        high: Upper quartile.
        rounds: How many there were.
        calls: Calls in one round.
        peak_bytes: Most memory that one call holds beyond what was there before.
        note: What happened, where something did.
    """

    name: str
    shape: str
    dtype: str
    which: str
    mode: str
    seconds: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    rounds: int = 0
    calls: int = 0
    peak_bytes: int | None = None
    note: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        """What makes two rows of two runs comparable."""
        return self.name, self.shape, self.dtype, self.which, self.mode


@dataclass(frozen=True, kw_only=True)
class Results:
    """Everything that a run found.

    Attributes:
        environment: Device, versions, threads, date.
        gate: For each implementation what its check said before anything was timed.
        rows: Times and memory.
        sdpa: For each cell which kernel torch chose, and why others could not run.
    """

    environment: Mapping[str, Any]
    gate: list[dict[str, Any]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    sdpa: list[dict[str, Any]] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Write JSON.

        Raises:
            ReportError: If the file cannot be written.
        """
        try:
            path.write_text(json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise ReportError(f"{path} could not be written: {error}") from None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read JSON.

        Raises:
            TargetError: If the file is not there, or is not such a result.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data.pop("format") != FORMAT:
                raise TargetError(f"{path}: written by another version of attnspec; measure again")
            return cls(**{**data, "rows": [Row(**row) for row in data["rows"]]})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TargetError(f"{path}: not a result of attnspec bench: {error}") from None


def cells(rows: Iterable[Row]) -> dict[tuple[str, ...], list[Row]]:
    """Group rows by shape, dtype, pass and mode."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault((row.shape, row.dtype, row.which, row.mode), []).append(row)
    return found


def tables(results: Results) -> RenderableType:
    """Return one table a cell, fastest first."""
    parts: list[RenderableType] = []
    for cell, rows in cells(results.rows).items():
        table = Table(
            box=None, pad_edge=False, title=" · ".join(cell), title_justify="left", header_style="bold"
        )
        table.add_column("", no_wrap=True)
        for title in ("x floor", "quartiles", "ms", "peak MiB"):
            table.add_column(title, justify="right", no_wrap=True)
        table.add_column("")
        for row in sorted(rows, key=lambda r: (r.ratio is None, r.ratio)):
            table.add_row(row.name, *_figures(row), row.note)
        parts += [table, Text()]
    for entry in results.sdpa:
        parts.append(Text(backend_line(entry)))
    return Group(*parts)


def _figures(row: Row) -> tuple[str, str, str, str]:
    if row.ratio is None or row.seconds is None:
        return "–", "", "", ""
    peak = "" if row.peak_bytes is None else f"{row.peak_bytes / MIB:.1f}"
    return f"{row.ratio:.3f}", f"{row.low:.3f}–{row.high:.3f}", f"{row.seconds * 1e3:.3f}", peak


def backend_line(entry: Mapping[str, Any]) -> str:
    """Say which kernel ran in a cell, and why the others could not."""
    refused = "; ".join(f"{name}: {reason}" for name, reason in entry["refused"].items())
    able = ", ".join(entry["able"])
    cell = f"{entry['shape']} {entry['dtype']} {entry['which']}"
    return f"{cell}: torch chose {entry['ran']} (able: {able}). {refused}"


def compare(before: Results, after: Results) -> RenderableType:
    """Return the rows that two runs share: ratio to each run's own floor, and the change."""
    old = {row.key: row for row in before.rows}
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("", "shape", "dtype", "pass", "mode"):
        table.add_column(title, no_wrap=True)
    for title in ("before", "after", "change"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("")
    for row in after.rows:
        other = old.get(row.key)
        if other is None or other.ratio is None or row.ratio is None:
            continue
        change = row.ratio / other.ratio - 1
        table.add_row(
            *row.key, f"{other.ratio:.3f}", f"{row.ratio:.3f}", f"{change:+.1%}", verdict(other, row)
        )
    lost = sorted({row.key for row in before.rows} ^ {row.key for row in after.rows})
    differing = [
        f"{name}: {before.environment.get(name)} / {value}"
        for name, value in after.environment.items()
        if name not in ("date", "load") and before.environment.get(name) != value
    ]
    notes = [f"in one of the two only: {len(lost)} rows"] if lost else []
    notes += [f"measured elsewhere: {', '.join(differing)}"] if differing else []
    return Group(table, *map(Text, notes))


def verdict(before: Row, after: Row) -> str:
    """Say whether two ratios differ by more than their rounds do: their quartiles do not overlap."""
    if before.low is None or after.low is None or before.high is None or after.high is None:
        return ""
    if after.low > before.high:
        return "slower"
    return "faster" if after.high < before.low else ""
