"""Of the seeded defects that equal a known wrong reference, how many are named right?

    python tests/defects/fingerprint_table.py                  every defect; writes fingerprint_table.json
    python tests/defects/fingerprint_table.py --resume         those alone that are not in it yet
    python tests/defects/fingerprint_table.py --only NAME ...  some of them; nothing is written

Each is checked by its own clauses, and their failures are diagnosed as a report's are, until one is named.
Which names are right stands in `fingerprints.py`. Fails below nine in ten, and for any wrong name.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
if str(HERE.parent) not in sys.path:
    sys.path.insert(0, str(HERE.parent))

import torch  # noqa: E402

from attnspec._clauses import clauses  # noqa: E402
from attnspec.conformance.diagnosis import diagnose  # noqa: E402
from attnspec.conformance.profiles import profile  # noqa: E402
from attnspec.conformance.runner import run_clause  # noqa: E402
from defects.bank import bank  # noqa: E402
from defects.fingerprints import expected  # noqa: E402
from defects.kill_table import subject_of  # noqa: E402

RESULTS = HERE / "fingerprint_table.json"
LEAST = 0.9


# A clause that asks instead: what its question says.
ASKED = {"mask.polarity": "mask.inverted"}


def said(clause: str, recognition: Any) -> str | None:
    """Return what the report of one clause calls the mistake."""
    result = run_clause(clauses()[clause], recognition, profile("quick"))
    if result.status == "question":
        return ASKED.get(clause)
    if result.failure is None or result.failure.raised is not None:
        return None
    failure = diagnose(clauses()[clause], result, recognition, scripts=None).failure
    words = None if failure is None else failure.looks_like
    return None if words is None else words.partition(":")[0]


def named(defect: str) -> dict[str, Any]:
    """Return what a report calls a defect's mistake, and under which clause; None where it says nothing."""
    torch.set_num_threads(1)
    threads, dtype, grad = torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()
    try:
        recognition = subject_of(bank()[defect])
        for clause in bank()[defect].clauses:
            name = said(clause, recognition)
            if name is not None:
                return {"name": name, "clause": clause}
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(grad)
    return {"name": None, "clause": None}


def summary(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Count what is named right, not named, and named wrong."""
    right = expected()
    listed = {n: r["name"] for n, r in rows.items() if n in right}
    said = {n: r["name"] for n, r in rows.items() if r["name"] is not None}
    return {
        "equal_a_reference": len(listed),
        "right": sum(name in right[n] for n, name in listed.items()),
        "unnamed": [n for n, name in listed.items() if name is None],
        "wrong": {n: name for n, name in said.items() if name not in right.get(n, ())},
        "others": len(rows) - len(listed),
    }


def complaints(found: dict[str, Any]) -> list[str]:
    """Return what is wrong with the naming."""
    said = [f"{defect} is called {name}" for defect, name in found["wrong"].items()]
    if found["right"] < LEAST * found["equal_a_reference"]:
        said.append(f"only {found['right']} of {found['equal_a_reference']} are named")
    return said


def measure(defects: Iterable[str], jobs: int = 1) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each defect with what it is called."""
    defects = list(defects)
    if jobs == 1:
        yield from ((defect, named(defect)) for defect in defects)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from zip(defects, pool.map(named, defects), strict=True)


def _order() -> list[str]:
    """Return all defects, those that should be named first."""
    right = expected()
    return sorted(bank(), key=lambda defect: defect not in right)


def save(rows: dict[str, dict[str, Any]]) -> None:
    """Write what was found, a line a defect."""
    head = {"summary": summary(rows), "torch": torch.__version__, "defects": {}}
    lines = ",\n".join(f"  {json.dumps(defect)}: {json.dumps(row)}" for defect, row in rows.items())
    text = json.dumps(head, indent=1).replace('"defects": {}', f'"defects": {{\n{lines}\n }}')
    RESULTS.write_text(text + "\n", encoding="utf-8")


def main(arguments: Iterable[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="some defects")
    parser.add_argument("--resume", action="store_true", help="keep what is known")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    asked = parser.parse_args(arguments)
    kept = json.loads(RESULTS.read_text(encoding="utf-8"))["defects"] if asked.resume else {}
    rows = {defect: row for defect, row in kept.items() if defect in bank()}
    for defect, row in measure(asked.only or [d for d in _order() if d not in rows], asked.jobs):
        rows[defect] = row
        if asked.only:
            print(f"{defect}: {row['name']} ({row['clause']})", flush=True)
        else:
            save(rows)
    found = summary(rows)
    print(json.dumps(found, indent=1))
    wrong = complaints(found)
    for line in wrong:
        print(line)
    return 1 if wrong and not asked.only else 0


if __name__ == "__main__":
    sys.exit(main())
