"""Plant every defect of the bank and show which clause rejects it.

    python tests/defects/kill_table.py                  each defect against the clauses that name its kind;
                                                        against every clause: full_table.py
    python tests/defects/kill_table.py --only NAME ...  some defects alone; nothing is written

Fails when a defect is caught by no clause, or not by one of its own, and when no defect breaks a clause.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
if str(HERE.parent) not in sys.path:
    sys.path.insert(0, str(HERE.parent))

import torch  # noqa: E402

from attnspec._clauses import clauses  # noqa: E402
from attnspec.conformance.profiles import Profile, profile  # noqa: E402
from attnspec.conformance.runner import run_clause  # noqa: E402
from attnspec.declaration import Declaration  # noqa: E402
from attnspec.loading import Target  # noqa: E402
from attnspec.recognition import recognise  # noqa: E402
from defects.bank import Defect, bank, fresh  # noqa: E402

CAUGHT = ("failed", "question")
RESULTS = HERE / "kill_table.json"


def unshrunk(name: str) -> Profile:
    """Return a profile that stops at the first failure as it was found."""
    return replace(profile(name), shrink=0)


def subject_of(defect: Defect) -> Any:
    """Recognise a defect as a user's code would be, told only its contract."""
    target = fresh(defect)
    module = sys.modules[type(target).__module__ if defect.contract == "core" else target.__module__]
    declared = Declaration(contract=defect.contract, **defect.declare)
    return recognise(Target(defect.name, target, vars(module), module.__file__), declared)


def run(name: str, recognition: Any, chosen: Profile) -> dict[str, Any]:
    """Run one clause on a defect, and put back what it changed."""
    threads, dtype, grad = torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()
    try:
        result = run_clause(clauses()[name], recognition, chosen)
    except Exception as error:
        # The suite must judge whatever comes back; that it cannot is a bug of the suite.
        return {"status": f"crashed: {type(error).__name__}: {error}", "examples": 0, "seconds": 0.0}
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(grad)
    return {"status": result.status, "examples": result.examples, "seconds": round(result.seconds, 3)}


def plant(name: str, profiles: tuple[str, ...]) -> dict[str, Any]:
    """Return what became of one defect: for each clause the first profile that catches it."""
    torch.set_num_threads(1)
    defect = bank()[name]
    began = time.perf_counter()
    kills: dict[str, dict[str, Any]] = {}
    try:
        recognition = subject_of(defect)
    except Exception as error:
        said = f"crashed: {type(error).__name__}: {error}"
        return {"kills": {"recognition": {"status": said, "named": False}}, "seconds": 0.0}
    for clause in defect.clauses:
        for chosen in profiles:
            found = run(clause, recognition, unshrunk(chosen))
            kills[clause] = {**found, "profile": chosen, "named": True}
            if found["status"] in CAUGHT:
                break
    return {"kills": kills, "seconds": round(time.perf_counter() - began, 2)}


def caught(row: dict[str, Any], *profiles: str) -> list[str]:
    """Return the clauses that catch a defect in one of the profiles."""
    return [
        clause
        for clause, found in row["kills"].items()
        if found["status"] in CAUGHT and (not profiles or found["profile"] in profiles)
    ]


def complaints(rows: dict[str, dict[str, Any]], defects: dict[str, Defect]) -> list[str]:
    """Return what is wrong with the bank or with the clauses."""
    said = []
    for name, row in rows.items():
        missed = [c for c in defects[name].clauses if c not in caught(row)]
        crashes = {f["status"] for f in row["kills"].values() if f["status"].startswith("crashed")}
        said += [f"{name}: the suite {crash}" for crash in crashes]
        if not caught(row):
            said.append(f"{name}: caught by no clause (named: {', '.join(defects[name].clauses)})")
        elif missed:
            said.append(f"{name}: not caught by {', '.join(missed)}")
    if len(rows) == len(defects):
        broken = {clause for row in rows.values() for clause in caught(row)}
        said += [f"clause {name}: broken by no defect" for name in clauses() if name not in broken]
    return said


def summary(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Count the defects that are caught, by profile and by level."""
    levels = clauses()
    must = [n for n, row in rows.items() if any(levels[c].level.value != "SHOULD" for c in caught(row))]
    return {
        "defects": len(rows),
        "caught": sum(bool(caught(row)) for row in rows.values()),
        "caught_in_quick": sum(bool(caught(row, "quick")) for row in rows.values()),
        "caught_by_should_alone": len(rows) - len(must),
    }


def table(rows: dict[str, dict[str, Any]], defects: dict[str, Defect]) -> Any:
    """Return the table for people."""
    from rich.table import Table

    shown = Table("defect", "family", "clause", "examples", "seconds", "profile", title="Seeded defects")
    for name, row in rows.items():
        for clause, found in row["kills"].items():
            if found["named"] and not found["status"].startswith("crashed"):
                style = None if found["status"] in CAUGHT else "bold red"
                words = (str(found["examples"]), f"{found['seconds']:.2f}", found["profile"])
                shown.add_row(name, defects[name].family, clause, *words, style=style)
    return shown


def as_data(rows: dict[str, dict[str, Any]], defects: dict[str, Defect], took: float) -> dict[str, Any]:
    """Return everything as plain data."""
    listed = {}
    for name, row in rows.items():
        d = defects[name]
        about = {"what": d.what, "family": d.family, "stands_for": d.stands_for, "contract": d.contract}
        listed[name] = {**about, "case": d.case, "place": d.place, "fingerprint": d.fingerprint, **row}
    return {
        "summary": summary(rows),
        "seconds": round(took, 1),
        "torch": torch.__version__,
        "defects": listed,
    }


def parse(arguments: Iterable[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--profile", choices=("quick", "default"), help="one profile alone")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="some defects, or all of a family")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    return parser.parse_args(arguments)


def main(arguments: Iterable[str] | None = None) -> int:
    """Run the table; return the exit status."""
    from rich.console import Console

    asked, console, began = parse(arguments), Console(), time.perf_counter()
    defects = bank()
    if asked.only:
        defects = {n: d for n, d in defects.items() if n in asked.only or d.family in asked.only}
    profiles = (asked.profile,) if asked.profile else ("quick", "default")
    jobs = [(name, profiles) for name in defects]
    with ProcessPoolExecutor(asked.jobs) as pool:
        rows = dict(zip(defects, pool.map(plant, *zip(*jobs, strict=True)), strict=True))
    took = time.perf_counter() - began
    console.print(table(rows, defects))
    said = complaints(rows, bank())
    for line in said:
        console.print(line, style="red", markup=False)
    console.print(f"{summary(rows)} in {took:.0f} s")
    if not asked.only:
        RESULTS.write_text(json.dumps(as_data(rows, bank(), took), indent=1) + "\n", encoding="utf-8")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
