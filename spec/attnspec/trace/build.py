"""Build a trace from recordings: the table, the contract's rows beside it, and where the two part."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from attnspec._table import STAGES

from .blame import blame
from .landmarks import PROJECTIONS
from .reading import Reading, Sight, read, stages_of
from .record import Run, record
from .rows import Key, Rows, key_of, merge
from .solve import Solver
from .table import ContractRow, Departure, Failure, Row, Trace
from .verdict import Verdict

_ROLE_WORDS = {"q": "query", "k": "key", "v": "value"}


def trace_runs(runs: Sequence[Run], *, title: str = "", inexact: bool = False) -> Trace:
    """Record runs of the same code with different sizes and return its table.

    Args:
        runs: The runs; three with sizes as `prime_sizes` gives them tell every axis from every other.
        title: What is traced, for headings.
        inexact: Whether the runs are known to be less exact than their dtype allows.

    Raises:
        ValueError: If there are no runs.
    """
    solver = Solver([run.sizes for run in runs])
    readings = [read(run, record(run)) for run in runs]
    groups = merge(readings)
    chosen = _reading_to_show(readings)
    table = Rows(solver, readings, chosen)
    rows = tuple(table.row(group) for group in groups.values())
    numbers = {key: i for i, key in enumerate(groups)}
    verdict = blame(readings[chosen], inexact=inexact)
    departure = _departure(readings[chosen], verdict, rows, numbers, solver)
    contract = _contract(readings[chosen], rows, solver, verdict)
    failure = _failure(readings, rows, numbers, contract)
    known = [r.correct for r in readings if r.correct is not None]
    correct = all(known) if known else None
    notes = (*_path_notes(rows, len(runs)), *dict.fromkeys(n for r in readings for n in r.recording.notes))
    return Trace(
        rows, contract, tuple(dict(r.sizes) for r in runs), correct, departure, failure, notes, title
    )


def _reading_to_show(readings: Sequence[Reading]) -> int:
    """The first run that failed, else the first that is wrong, else the first."""
    failed = [i for i, r in enumerate(readings) if r.recording.error is not None]
    wrong = [i for i, r in enumerate(readings) if r.correct is False]
    return (failed or wrong or [0])[0]


def _path_notes(rows: Sequence[Row], runs: int) -> list[str]:
    partial = [r for r in rows if len(r.runs) < runs]
    if not partial:
        return []
    lines = sorted({r.line for r in partial})
    words = f"line {lines[0]}" if len(lines) == 1 else f"lines {', '.join(map(str, lines))}"
    return [f"the runs took different paths: some rows at {words} did not run in every run"]


def _words(stage: str) -> str:
    base, _, role = stage.partition(":")
    name = STAGES[base].name
    return f"{name} ({_ROLE_WORDS[role]})" if role else name


def _contract(
    reading: Reading, rows: Sequence[Row], solver: Solver, verdict: Verdict | None
) -> tuple[ContractRow, ...]:
    chart = reading.chart
    if chart is None:
        return ()
    where = {s: i for i, row in reversed(list(enumerate(rows))) for s in row.stages}
    found = []
    for position, stage in enumerate(chart.stages):
        status, row = "passed", where.get(stage)
        if row is None:
            after = [where[s] for s in _followers(stage, chart.stages[position + 1 :]) if s in where]
            row = after[0] if after else None
            status = "fused" if after or reading.correct else "missing"
        base = stage.split(":")[0]
        same_role = verdict is not None and (
            verdict.role is None or ":" not in stage or stage.endswith(verdict.role)
        )
        if verdict is not None and verdict.stage == base and same_role:
            status = "departs"
        entry = STAGES[base]
        takes = tuple(_dims(a.dims, stage, solver) for a in entry.arguments if not a.optional)
        gives = _dims(entry.result.dims, stage, solver)
        found.append(ContractRow(stage, _words(stage), takes, gives, status, row))
    return tuple(found)


def role_of_stage(stage: str) -> str | None:
    """Return `q`, `k` or `v` for a row that the contract has once for each."""
    projections = {name: role for role, name in PROJECTIONS.items()}
    return projections.get(stage) or stage.partition(":")[2] or None


def _followers(stage: str, later: Sequence[str]) -> list[str]:
    role = role_of_stage(stage)
    last = "aggregate_values" if role == "v" else None
    kept = [s for s in later if role_of_stage(s) == role or role_of_stage(s) is None]
    kept = [s for s in kept if not role or s not in PROJECTIONS.values()]
    from_last = kept.index(last) if last in kept else 0
    return [s for i, s in enumerate(kept) if ":" in s or i >= from_last]


def _dims(dims: Sequence[str], stage: str, solver: Solver) -> tuple[str, ...]:
    """The signature's dimensions in the names of this trace: `width` is what a split cuts."""
    found = []
    role = stage.partition(":")[2]
    for dim in dims:
        text = dim.lstrip("#").replace("{", "").replace("}", "")
        heads = "kv_heads" if role in ("k", "v") else "heads"
        inner = "d_v" if role == "v" or stage == "project_output" else "d_k"
        text = {"width": f"{heads}*{inner}" if "share" not in stage else inner, "width/heads": inner}.get(
            text, text
        )
        text = text.replace("kv_heads*group", "heads")
        parts = [heads if p == "heads" and role else p for p in text.split("*")]
        parts = [
            "q_len" if p == "seq" and role == "q" else "kv_len" if p == "seq" and role else p for p in parts
        ]
        found.append(solver.hint(parts) if all(p.isidentifier() for p in parts) else text)
    return tuple(found)


def _departure(
    reading: Reading, verdict: Verdict | None, rows: Sequence[Row], numbers: dict[Key, int], solver: Solver
) -> Departure | None:
    if verdict is None:
        return None
    name = STAGES[verdict.stage].name
    if verdict.event is None:
        return Departure(
            verdict.stage, name, None, "", 0, "", "", f"the contract's row {name}: {verdict.why}"
        )
    number = numbers[key_of(reading.sights[verdict.event].event)]
    row = rows[number]
    gives = f" gives {row.outputs[0]}" if row.outputs else ""
    where = f"{Path(row.file).name}:{row.line}" + (
        f" (called from line {row.callers[0]})" if row.callers else ""
    )
    return Departure(
        verdict.stage,
        name,
        number,
        row.file,
        row.line,
        row.source,
        row.code,
        f"{where} {row.op}{gives}; {verdict.why}",
        row.callers,
    )


def _failure(
    readings: Sequence[Reading], rows: Sequence[Row], numbers: dict[Key, int], contract: Sequence[ContractRow]
) -> Failure | None:
    reading = next((r for r in readings if r.recording.error is not None), None)
    if reading is None:
        return None
    error = f"{type(reading.recording.error).__name__}: {reading.recording.error}"
    file, line, source = reading.recording.error_place
    raised = next(
        (s for s in reading.sights if s.event.error is not None and s.event.error.startswith(error)), None
    )
    number = numbers[key_of(raised.event)] if raised is not None else None
    expected = _due(reading, raised, contract)
    text = f"{Path(file).name}:{line} raises {error.splitlines()[0]}"
    if number is not None:
        given = " and ".join(map(str, rows[number].inputs))
        text = f"{Path(file).name}:{line} {rows[number].op} of {given} raises {error.splitlines()[0]}"
    if expected is not None:
        takes = " and ".join(f"({', '.join(t)})" for t in expected.takes)
        text += f"; the contract's next row is {expected.name}: {takes} to ({', '.join(expected.gives)})"
    return Failure(error, file, line, source, number, expected, text)


def _due(reading: Reading, raised: Sight | None, contract: Sequence[ContractRow]) -> ContractRow | None:
    """The first row not reached, after those that what failed was given."""
    chart = reading.chart
    if chart is None:
        return None
    given: set[str] = set()
    for found in raised.inputs if raised is not None else ():
        given.update(stages_of(found, cast(Sight, raised), chart))
    after = max((i for i, c in enumerate(contract) if c.stage in given), default=-1)
    roles = {role_of_stage(s) for s in given}
    later = [c for c in contract[after + 1 :] if c.status == "missing"]
    return next((c for c in later if not roles or role_of_stage(c.stage) in (None, *roles)), None)
