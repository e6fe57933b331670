"""One run of the benchmark: the gate, then every cell of the grid."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from itertools import count
from typing import Any

import torch

from .._errors import AttnspecError
from .backends import explain_backend
from .compiling import compile_subject
from .environment import environment
from .grid import GATE, Grid, Shape, dtype_of
from .memory import peak_extra_bytes
from .results import Results, Row
from .subjects import FLOOR, PEERS, Subject, build
from .timing import Step, step, time_rounds

Say = Callable[[str], None]


def passes_gate(target: str, *, device: str = "cpu") -> dict[str, Any]:
    """Hold an implementation to the clauses of shape and value, and return what came of it."""
    from .._check import check_implementation

    try:
        report = check_implementation(target, profile="quick", clause=GATE, device=device)
    except AttnspecError as error:
        return {"name": target, "ok": False, "ran": 0, "broken": [str(error).splitlines()[0]]}
    broken = [result.clause for result in report.broken]
    return {"name": target, "ok": report.ok, "ran": report.ran, "broken": broken}


def measure(targets: Iterable[str], grid: Grid, *, say: Say = lambda _: None, memory: bool = True) -> Results:
    """Check every target, then time those that pass.

    Args:
        targets: Whatever `attnspec check` takes.
        grid: What to measure.
        say: Told what is going on.
        memory: Whether to measure peak memory too.
    """
    results = Results(environment={**environment(grid.device), "clock": grid.clock})
    for target in targets:
        say(f"checking {target}")
        results.gate.append(passes_gate(target, device=grid.device))
    names = [*PEERS, *(entry["name"] for entry in results.gate if entry["ok"])]
    for shape, dtype in grid.cells:
        for which in grid.passes:
            results.sdpa.append(_backend(shape, dtype, which, grid))
            for mode in grid.modes:
                say(f"timing {shape} {dtype} {which} {mode}")
                results.rows.extend(
                    measure_cell(names, shape, dtype, which, mode, grid, say=say, memory=memory)
                )
    return results


def _backend(shape: Shape, dtype: str, which: str, grid: Grid) -> dict[str, Any]:
    found = explain_backend(
        shape, dtype_of(dtype), device=grid.device, causal=grid.causal, backward=which != "forward"
    )
    return {"shape": str(shape), "dtype": dtype, "which": which, **found}


def measure_cell(
    names: Iterable[str], shape: Shape, dtype: str, which: str, mode: str, grid: Grid, *,
    say: Say = lambda _: None, memory: bool = True,
) -> list[Row]:  # fmt: skip
    """Time everything in one cell, in the same rounds."""
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(shape.batch, shape.length, shape.d_model, generator=generator).to(
        grid.device, dtype_of(dtype)
    )
    blank = Row(name="", shape=str(shape), dtype=dtype, which=which, mode=mode)
    steps: dict[str, Step] = {}
    notes: dict[str, str] = {}
    peaks: dict[str, int | None] = {}
    rows: list[Row] = []
    for name in names:
        try:
            built = build(name, shape, inputs.dtype, causal=grid.causal, device=grid.device)
            subject: Subject | None = built
            note = ""
            if mode == "compiled":
                say(f"compiling {name} {shape} {dtype} {which}")
                subject, note = _compiled(built, inputs, which)
            if subject is None:
                rows.append(replace(blank, name=name, note=note))
                continue
            run = step(subject, inputs, which)
            peaks[name] = peak_extra_bytes(run, device=grid.device) if memory else None
        except (AttnspecError, RuntimeError, NotImplementedError, TypeError) as error:
            first = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:160]
            rows.append(replace(blank, name=name, note=f"not timed: {first}"))
            continue
        steps[name], notes[name] = run, note
    if FLOOR not in steps:
        return [
            *rows,
            *(replace(blank, name=name, note="not timed: no floor in this cell") for name in steps),
        ]
    done = count(1)

    def beat() -> None:
        say(f"timed {len(steps)} subjects, round {next(done)} of {grid.rounds}")

    timings = time_rounds(steps, FLOOR, rounds=grid.rounds, seconds=grid.seconds, clock=grid.clock, beat=beat)
    timed = [
        replace(blank, name=name, peak_bytes=peaks[name], note=notes[name], **asdict(timing))
        for name, timing in timings.items()
    ]
    return timed + rows


def _compiled(subject: Subject, inputs: torch.Tensor, which: str) -> tuple[Subject | None, str]:
    found = compile_subject(subject, inputs, which)
    return found.subject, found.note
