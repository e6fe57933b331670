"""The rows of the table: events of all runs grouped by the call that made them, their axes solved."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from .frames import Place
from .match import Match
from .reading import Reading, Sight
from .record import Event, TensorRecord
from .solve import Solver, bytes_of
from .table import Row, TensorShape

Key = tuple[object, ...]


@dataclass
class Group:
    """All executions of one call, over all runs."""

    place: Place
    runs: dict[int, list[Sight]] = field(default_factory=dict)

    @property
    def sights(self) -> list[Sight]:
        return [s for found in self.runs.values() for s in found]


def key_of(event: Event) -> Key:
    """Return what an event has in common with its like in other runs."""
    return (event.place.site, event.op)


def merge(readings: Sequence[Reading]) -> dict[Key, Group]:
    """Group events by the call that made them; calls that some runs skip stand where they ran."""
    order: list[Key] = []
    groups: dict[Key, Group] = {}
    for number, reading in enumerate(readings):
        at = -1
        for sight in reading.sights:
            event = sight.event
            key = key_of(event)
            if key not in groups:
                groups[key] = Group(event.place)
                order.insert(at + 1, key)
            groups[key].runs.setdefault(number, []).append(sight)
            at = max(at, order.index(key))
    return {key: groups[key] for key in order}


class Rows:
    """Turns groups of events into rows."""

    def __init__(self, solver: Solver, readings: Sequence[Reading], chosen: int) -> None:
        self.solver, self.readings, self.chosen = solver, readings, chosen
        self._shapes: dict[int, tuple[str, ...]] = {}

    def row(self, group: Group) -> Row:
        """Return the row of one call."""
        first = self._first(group)
        event, place = first.event, group.place
        ins = self._tensors(group, "inputs", ())
        outs = self._tensors(group, "outputs", ins)
        new = outs if event.memory == "copy" else ()
        shown = group.runs.get(self.chosen, group.sights)
        return Row(
            op=event.op,
            file=place.file,
            line=place.line,
            source=place.source,
            code=place.code,
            inputs=ins,
            outputs=outs,
            memory=event.memory,
            bytes=self._bytes(new),
            times=self._times(group),
            stages=tuple(dict.fromkeys(x for s in shown for x in s.stages)),
            reached=tuple(dict.fromkeys(x for s in shown for x in s.reached)),
            runs=tuple(sorted(group.runs)),
            side=not event.data or place.origin == "adaptor",
            error=next((s.event.error for s in group.sights if s.event.error), None),
            callers=place.callers,
        )

    def _first(self, group: Group) -> Sight:
        return (group.runs.get(self.chosen) or group.sights)[0]

    @staticmethod
    def _bytes(tensors: Sequence[TensorShape]) -> str:
        parts = [(t.times, bytes_of(t.shape, _width(t.dtype))) for t in tensors]
        return " + ".join(text if times == "1" else f"{times}*{text}" for times, text in parts) or "0"

    def _tensors(self, group: Group, side: str, ins: tuple[TensorShape, ...]) -> tuple[TensorShape, ...]:
        """Name all tensors of one side; those alike that a list of them holds are counted, not repeated."""
        first = self._first(group)
        counts = {n: len(getattr(found[0].event, side)) for n, found in group.runs.items()}
        alike = len({t.shape for t in getattr(first.event, side)}) == 1
        listed = side == "outputs" or first.event.op in _LISTS or len(set(counts.values())) > 1
        if not (alike and listed and max(counts.values()) > 1):
            many = range(len(getattr(first.event, side)))
            return tuple(self._tensor(group, i, side, ins) for i in many)
        times = tuple(counts[n] for n in sorted(counts))
        whole = len(times) == self.solver.runs
        word = self.solver.axis(times) if whole else str(times[0]) if len(set(times)) == 1 else "?"
        return (replace(self._tensor(group, 0, side, ins), times=word),)

    def _times(self, group: Group) -> str:
        counts = {n: len(found) for n, found in group.runs.items()}
        if set(counts.values()) == {1}:
            return "1"
        if len(counts) < len(self.readings):
            sizes = {str(c) for c in counts.values()}
            return sizes.pop() if len(sizes) == 1 else "?"
        return self.solver.axis(tuple(counts[i] for i in range(len(self.readings))))

    def _tensor(self, group: Group, index: int, side: str, ins: tuple[TensorShape, ...]) -> TensorShape:
        first = self._first(group)
        tensor: TensorRecord = getattr(first.event, side)[index]
        known = self._shapes.get(id(tensor.value)) if side == "inputs" and tensor.value is not None else None
        shape = (
            known if known is not None and len(group.sights) == 1 else self._shape(group, index, side, ins)
        )
        return TensorShape(shape, tensor.dtype, tensor.contiguous, tensor.name)

    def _shape(self, group: Group, index: int, side: str, ins: tuple[TensorShape, ...]) -> tuple[str, ...]:
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
        self, group: Group, index: int, side: str, ins: tuple[TensorShape, ...]
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


_LISTS = frozenset({"cat", "concat", "stack", "hstack", "vstack"})
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
