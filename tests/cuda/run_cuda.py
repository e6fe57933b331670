"""Check every built-in implementation on a CUDA device and time it there: `nox -s cuda`.

Writes `tests/cuda/results.json` with device, versions and date. Without a device it says so, writes nothing
and succeeds: nothing may claim to have run on a device that was not there. The whole takes less than five
minutes; an implementation whose turn does not come in time is written down as not run.
"""

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import attnspec
from attnspec import AttnspecError, Declaration
from attnspec.bench.environment import environment
from attnspec.bench.grid import PASSES, Grid, Shape, dtype_of
from attnspec.bench.run import explain_backend, measure_cell
from attnspec.bench.subjects import PEERS

DTYPES = ("float32", "bfloat16", "float16")
SHAPES = ("4x512x512x8", "2x2048x1024x16")
CHECKING, TIMING = 170.0, 80.0  # seconds; the rest of five minutes is for starting and for the last one begun


def check(name: str, *, jobs: int) -> dict[str, Any]:
    """Hold one implementation to the whole contract on the device."""
    began = time.perf_counter()
    try:
        report = attnspec.check_implementation(
            name, declaration=Declaration(dtypes=DTYPES), profile="quick", device="cuda", jobs=jobs
        )
    except AttnspecError as error:
        return {
            "name": name,
            "ok": False,
            "ran": 0,
            "of": 0,
            "broken": [],
            "reason": str(error).splitlines()[0],
        }
    return {
        "name": name,
        "ok": report.ok,
        "ran": report.ran,
        "of": len(report.results),
        "broken": {r.clause: r.failure.what if r.failure else r.reason for r in report.broken},
        "advised": [r.clause for r in report.advised],
        "dtypes": list(report.recognised["dtypes"]),
        "seconds": round(time.perf_counter() - began, 1),
    }


def check_all(names: list[str], *, jobs: int) -> list[dict[str, Any]]:
    """Check one implementation after the other until the time is up."""
    until, found = time.monotonic() + CHECKING, []
    for name in names:
        if time.monotonic() > until:
            found.append({"name": name, "ok": None, "ran": 0, "reason": "not run: no time was left"})
        else:
            found.append(check(name, jobs=jobs))
        print(f"{name:<24} {verdict(found[-1])}", flush=True)
    return found


def verdict(entry: dict[str, Any]) -> str:
    """Say in a line what came of one check."""
    if entry.get("reason"):
        return str(entry["reason"])
    broken = ", ".join(entry["broken"])
    return f"conforms, ran {entry['ran']} of {entry['of']}" if entry["ok"] else f"breaks {broken}"


def time_all(names: list[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Time what conforms, beside its peers; return rows, and which kernel torch chose in each cell."""
    rows: list[dict[str, Any]] = []
    kernels: list[dict[str, Any]] = []
    until = time.monotonic() + TIMING
    cells = [(Shape.parse(s), dtype, which) for s in SHAPES for dtype in DTYPES for which in PASSES]
    for shape, dtype, which in cells:
        place = {"shape": str(shape), "dtype": dtype, "which": which}
        if time.monotonic() > until:
            kernels.append({**place, "ran": "not run: no time was left", "able": [], "refused": {}})
            continue
        grid = Grid((shape,), (dtype,), (which,), device="cuda", rounds=9, seconds=0.005)
        backward = which != PASSES[0]
        found = explain_backend(shape, dtype_of(dtype), device="cuda", causal=False, backward=backward)
        kernels.append({**place, **found})
        rows += [asdict(row) for row in measure_cell([*PEERS, *names], shape, dtype, which, "eager", grid)]
        print(f"timed {shape} {dtype} {which}", flush=True)
    return rows, kernels


def main() -> int:
    """Run everything; the exit status is 0 if all conform or there is no device, else 1."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="implementations; none is all that are registered")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("results.json"))
    words = parser.parse_args()
    if not torch.cuda.is_available():
        print(f"no CUDA device (torch {torch.__version__}): nothing was checked, nothing was written")
        return 0
    # The contract's precision classes sum in float32: keep torch from shorter sums and operands.
    torch.backends.cuda.matmul.allow_tf32 = False
    checks = check_all(words.names or list(attnspec.registry()), jobs=min(6, os.cpu_count() or 1))
    conforming = [entry["name"] for entry in checks if entry["ok"]]
    rows, kernels = time_all(conforming)
    data = {"environment": environment("cuda"), "checks": checks, "rows": rows, "sdpa": kernels}
    words.output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    print(
        f"{len(conforming)} of {len(checks)} conform on {torch.cuda.get_device_name()}; wrote {words.output}"
    )
    return 0 if all(entry["ok"] is not False for entry in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
