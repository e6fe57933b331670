"""Build the table from recordings: rows merged over runs, axes solved, rows held against the contract's."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from attnspec._table import STAGES

from .blame import blame
from .frames import Place
from .landmarks import PROJECTIONS
from .match import Match
from .reading import Reading, Sight, read
from .record import Event, Run, TensorRecord, record
from .solve import Solver, bytes_of
from .table import ContractRow, Departure, Failure, Row, TensorShape, Trace
from .verdict import Verdict

Key = tuple[object, ...]
_ROLE_WORDS = {"q": "query", "k": "key", "v": "value"}
_MODEL_WIDE = frozenset({"input", "output"})


@dataclass
class _Group:
    """All executions of one call, over all runs."""

    place: Place
    runs: dict[int, list[Sight]] = field(default_factory=dict)

    @property
    def sights(self) -> list[Sight]:
        return [s for found in self.runs.values() for s in found]


def trace_runs(runs: Sequence[Run], *, title: str = "") -> Trace:
    """Record runs of the same code with different sizes and return its table.

    Args:
        runs: The runs; three with sizes as `prime_sizes` gives them tell every axis from every other.
        title: What is traced, for headings.

    Raises:
        ValueError: If there are no runs.
    """
    solver = Solver([run.sizes for run in runs])
    readings = [read(run, record(run)) for run in runs]
    groups = _merge(readings)
    chosen = _reading_to_show(readings)
    rows = tuple(_Rows(solver, readings, chosen).row(key, group) for key, group in groups.items())
    numbers = {key: i for i, key in enumerate(groups)}
    verdict = blame(readings[chosen])
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


def _merge(readings: Sequence[Reading]) -> dict[Key, _Group]:
    """Group events by the call that made them; calls that some runs skip stand where they ran."""
    order: list[Key] = []
    groups: dict[Key, _Group] = {}
    for number, reading in enumerate(readings):
        at = -1
        for sight in reading.sights:
            event = sight.event
            key: Key = (event.place.site, event.op)
            if key not in groups:
                groups[key] = _Group(event.place)
                order.insert(at + 1, key)
            groups[key].runs.setdefault(number, []).append(sight)
            at = max(at, order.index(key))
    return {key: groups[key] for key in order}


def _path_notes(rows: Sequence[Row], runs: int) -> list[str]:
    partial = [r for r in rows if len(r.runs) < runs]
    if not partial:
        return []
    lines = ", ".join(dict.fromkeys(str(r.line) for r in partial))
    return [
        f"the runs took different paths: line {lines} did not run in every one (see the runs of each row)"
    ]


class _Rows:
    """Turns groups of events into rows."""

    def __init__(self, solver: Solver, readings: Sequence[Reading], chosen: int) -> None:
        self.solver, self.readings, self.chosen = solver, readings, chosen
        self._shapes: dict[int, tuple[str, ...]] = {}
        final = [r.recording.output for r in readings]
        self._final = {
            id(s) for r, o in zip(readings, final, strict=True) if o is not None for s in r.sights[-1:]
        }

    def row(self, key: Key, group: _Group) -> Row:
        first = self._first(group)
        event, place = first.event, group.place
        ins = tuple(self._tensor(group, i, "inputs", ()) for i in range(len(event.inputs)))
        outs = tuple(self._tensor(group, i, "outputs", ins) for i in range(len(event.outputs)))
        new = list(outs) if event.memory == "copy" else []
        shown = group.runs.get(self.chosen, group.sights)
        return Row(
            event.op, place.file, place.line, place.source, place.code, ins, outs, event.memory,
            "+".join(dict.fromkeys(bytes_of(t.shape, _width(t.dtype)) for t in new)) if len(new) == 1 else self._sum(new),
            self._times(group), tuple(dict.fromkeys(x for s in shown for x in s.stages)),
            tuple(dict.fromkeys(x for s in shown for x in s.reached)), tuple(sorted(group.runs)),
            not event.data or place.origin == "adaptor", next((s.event.error for s in group.sights if s.event.error), None),
            place.callers,
        )  # fmt: skip

    def _first(self, group: _Group) -> Sight:
        return (group.runs.get(self.chosen) or group.sights)[0]

    @staticmethod
    def _sum(tensors: Sequence[TensorShape]) -> str:
        parts = [bytes_of(t.shape, _width(t.dtype)) for t in tensors]
        if not parts:
            return "0"
        return f"{len(parts)}*{parts[0]}" if len(set(parts)) == 1 else " + ".join(parts)

    def _times(self, group: _Group) -> str:
        counts = {n: len(found) for n, found in group.runs.items()}
        if set(counts.values()) == {1}:
            return "1"
        if len(counts) < len(self.readings):
            sizes = {str(c) for c in counts.values()}
            return sizes.pop() if len(sizes) == 1 else "?"
        return self.solver.axis(tuple(counts[i] for i in range(len(self.readings))))

    def _tensor(self, group: _Group, index: int, side: str, ins: tuple[TensorShape, ...]) -> TensorShape:
        first = self._first(group)
        tensor: TensorRecord = getattr(first.event, side)[index]
        known = self._shapes.get(id(tensor.value)) if side == "inputs" and tensor.value is not None else None
        shape = (
            known if known is not None and len(group.sights) == 1 else self._shape(group, index, side, ins)
        )
        return TensorShape(shape, tensor.dtype, tensor.contiguous, tensor.name)

    def _shape(self, group: _Group, index: int, side: str, ins: tuple[TensorShape, ...]) -> tuple[str, ...]:
        lists: list[list[tuple[int, ...]]] = []
        numbers = []
        for number in sorted(group.runs):
            found = [getattr(s.event, side) for s in group.runs[number]]
            lists.append([t[index].shape for t in found if index < len(t)])
            numbers.append(number)
        if not all(lists) or len({len(s) for shapes in lists for s in shapes}) != 1:
            return ("?",)
        solver = (
            self.solver
            if len(numbers) == self.solver.runs
            else Solver([self.readings[n].run.sizes for n in numbers])
        )
        hints = self._hints(group, index, side, ins)
        rank = len(lists[0][0])
        return tuple(
            solver.axis(least, hints.get(axis, ())) if least == most else solver.varying(least, most)
            for axis in range(rank)
            for least, most in [
                (tuple(min(s[axis] for s in x) for x in lists), tuple(max(s[axis] for s in x) for x in lists))
            ]
        )

    def _hints(
        self, group: _Group, index: int, side: str, ins: tuple[TensorShape, ...]
    ) -> dict[int, list[str]]:
        first = self._first(group)
        matches: tuple[Match, ...] = getattr(first, side)[index] if index < len(getattr(first, side)) else ()
        tensor: TensorRecord = getattr(first.event, side)[index]
        hints: dict[int, list[str]] = {}
        for match in matches:
            for axis, names in enumerate(match.axes):
                if names and match.grade != "part":
                    hints.setdefault(axis, []).append(self._spelled(names))
        name = tensor.name
        wide = name is not None or (not tensor.data and side == "inputs")
        produced = side == "outputs" and first.event.index == len(self.readings[self.chosen].sights) - 1
        for axis in range(len(tensor.shape)):
            if wide or (produced and not matches):
                hints.setdefault(axis, []).extend(["d_model"])
            elif side == "outputs" and (axis < len(tensor.shape) - 1 or first.event.op not in _WEIGHTED):
                hints.setdefault(axis, []).extend(
                    dict.fromkeys(x for t in ins for x in t.shape if x != "?" and ".." not in x)
                )
        if name is not None and wide and len(tensor.shape) == 2 and name in ("W_q", "W_k", "W_v", "W_o"):
            inner = {"W_q": "heads*d_k", "W_k": "kv_heads*d_k", "W_v": "kv_heads*d_v", "W_o": "heads*d_v"}[
                name
            ]
            hints[1 if name == "W_o" else 0] = [self._spelled(tuple(inner.split("*")))]
        return hints

    def _spelled(self, names: tuple[str, ...]) -> str:
        joined = "*".join(names).replace("kv_heads*group", "heads")
        return self.solver.hint(joined.split("*"))


_WEIGHTED = frozenset(
    {
        "linear",
        "matmul",
        "addmm",
        "mm",
        "einsum",
        "bmm",
        "baddbmm",
        "tensordot",
        "conv1d",
        "_native_multi_head_attention",
    }
)


def _width(dtype: str) -> int:
    return torch.empty(0, dtype=getattr(torch, dtype)).element_size()


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
        found.append(ContractRow(
            stage, _words(stage), tuple(_dims(a.dims, stage, solver) for a in entry.arguments if not a.optional),
            _dims(entry.result.dims, stage, solver), status, row,
        ))  # fmt: skip
    return tuple(found)


def _followers(stage: str, later: Sequence[str]) -> list[str]:
    role = {PROJECTIONS[r]: r for r in PROJECTIONS}.get(stage) or stage.partition(":")[2]
    last = {"v": "aggregate_values"}.get(role)
    kept = [s for s in later if not role or ":" not in s or s.endswith(f":{role}")]
    kept = [s for s in kept if not role or s not in PROJECTIONS.values()]
    return kept[kept.index(last) :] if last in kept and not any(":" in s for s in kept) else [
        s for s in kept if last is None or ":" in s or kept.index(s) >= kept.index(last)
    ]  # fmt: skip


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


def _key(event: Event) -> Key:
    return (event.place.site, event.op)


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
    number = numbers[_key(reading.sights[verdict.event].event)]
    row = rows[number]
    gives = f" gives {row.outputs[0]}" if row.outputs else ""
    where = f"{Path(row.file).name}:{row.line}" + (f" (called from line {row.callers[0]})" if row.callers else "")
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
        (s.event for s in reading.sights if s.event.error is not None and s.event.error.startswith(error)),
        None,
    )
    number = numbers[_key(raised)] if raised is not None else None
    expected = next((c for c in contract if c.status == "missing"), None)
    text = f"{Path(file).name}:{line} raises {error.splitlines()[0]}"
    if number is not None:
        text = f"{Path(file).name}:{line} {rows[number].op} of {' and '.join(map(str, rows[number].inputs))} raises {error.splitlines()[0]}"
    if expected is not None:
        takes = " and ".join(f"({', '.join(t)})" for t in expected.takes)
        text += f"; the contract's next row is {expected.name}: {takes} to ({', '.join(expected.gives)})"
    return Failure(error, file, line, source, number, expected, text)
