"""The targets that the implementations are held to, measured: `python benchmarks/targets.py [FILE]`.

Writes `benchmarks/targets.json`. Every time is a ratio within one run, by the clock of this process, on one
thread, so that what else the machine does hardly matters. A target that is missed is written down as missed.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from attnspec._registry import built_in
from attnspec.bench.environment import environment
from attnspec.bench.grid import PROFILES, Shape
from attnspec.bench.memory import peak_extra_bytes
from attnspec.bench.subjects import FLOOR, MODULE, Subject, build
from attnspec.bench.timing import step, time_rounds

SHAPES = tuple(map(Shape.parse, PROFILES["default"].shapes))
LONG = {"batch": 1, "d_model": 64, "heads": 1}
WINDOW = 128


def target(name: str, limit: float, got: float, **setting: Any) -> dict[str, Any]:
    """Return one target with what was measured; smaller is better."""
    print(f"{'met   ' if got <= limit else 'MISSED'} {got:8.3f} <= {limit:<6g} {name} {setting}", flush=True)
    return {"target": name, "limit": limit, "got": round(got, 4), "met": got <= limit, **setting}


def compared(name: str, base: str, limit: float, shape: Shape, rounds: int) -> dict[str, Any]:
    """Hold the forward time of one subject to a multiple of another's: median and quartiles over the rounds.

    Two that take the same time differ by chance; where the limit lies between the quartiles, the rounds do
    not tell on which side of it the ratio is.
    """
    inputs = torch.randn(shape.batch, shape.length, shape.d_model)
    subjects = {
        which: build(which, shape, torch.float32, causal=False, device="cpu") for which in (name, base)
    }
    steps = {which: step(subject, inputs, "forward") for which, subject in subjects.items()}
    found = time_rounds(steps, base, rounds=rounds, seconds=0.05, clock="cpu")[name]
    quartiles = {"low": round(found.low, 4), "high": round(found.high, 4)}
    return target(f"{name} / {base}", limit, found.ratio, shape=str(shape), **quartiles)


def layers(rounds: int) -> list[dict[str, Any]]:
    """Hold sdpa to the floor and to torch's module, and fused_qkv to batched."""
    held = (("sdpa", FLOOR, 1.05), ("sdpa", MODULE, 1.0), ("fused_qkv", "batched", 1.0))
    return [compared(name, base, limit, shape, rounds) for shape in SHAPES for name, base, limit in held]


def long(length: int) -> Shape:
    """Return the shape of a long sequence."""
    return Shape(length=length, **LONG)


def peak(name: str, length: int, which: str) -> int:
    """Return the peak extra memory of one pass."""
    subject = build(name, long(length), torch.float32, causal=False, device="cpu")
    return peak_extra_bytes(step(subject, torch.randn(1, length, LONG["d_model"]), which))


def blockwise(rounds: int) -> list[dict[str, Any]]:
    """Hold blockwise to a memory linear in length, and to a time near that of batched."""
    rows = []
    for which in ("forward", "forward+backward"):
        sizes = {length: peak("blockwise", length, which) for length in (1024, 2048, 4096, 8192)}
        setting = {"which": which, **LONG}
        whole = peak("batched", 8192, which)
        rows.append(target("blockwise peak / batched peak at 8192", 1 / 8, sizes[8192] / whole, **setting,
                           blockwise_bytes=sizes[8192], batched_bytes=whole))  # fmt: skip
        for length in (2048, 4096, 8192):
            growth = sizes[length] / sizes[length // 2]
            rows.append(target("blockwise peak growth per doubling", 2.2, growth, length=length, **setting))
    for shape in (long(2048), Shape(1, 2048, 512, 8)):
        rows.append(compared("blockwise", "batched", 2.0, shape, rounds))
    return rows


def local_window(rounds: int) -> list[dict[str, Any]]:
    """Hold local_window to a time linear in length."""
    record = built_in("local_window")
    lengths = (2048, 4096, 8192, 16384)
    steps: dict[str, Callable[[], Any]] = {}
    for length in lengths:
        layer = record.target(LONG["d_model"], LONG["heads"], last=WINDOW).eval()
        steps[str(length)] = step(
            Subject(str(length), layer, ()), torch.randn(1, length, LONG["d_model"]), "forward"
        )
    found = time_rounds(steps, "2048", rounds=rounds, seconds=0.02, clock="cpu")
    return [
        target("local_window time growth per doubling", 2.3, found[str(n)].ratio / found[str(n // 2)].ratio,
               length=n, window=WINDOW, **LONG)
        for n in lengths[1:]
    ]  # fmt: skip


def main() -> int:
    """Measure everything and write it down."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", nargs="?", type=Path, default=Path(__file__).with_name("targets.json"))
    parser.add_argument("--rounds", type=int, default=31)
    words = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    rows = layers(words.rounds) + blockwise(words.rounds) + local_window(words.rounds)
    data = {"environment": {**environment("cpu"), "clock": "cpu"}, "rounds": words.rounds, "targets": rows}
    words.file.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    print(f"{sum(r['met'] for r in rows)} of {len(rows)} targets met; wrote {words.file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
