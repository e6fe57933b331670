"""Hold every defect against every clause: which clause catches what no other does.

    python tests/defects/full_table.py              go on where the last run stopped; 20 minutes in all
    python tests/defects/full_table.py --restart    begin anew
    python tests/defects/full_table.py --show       say what was found; nothing is run

A clause is tried on the covering cases of `quick` and stops at the first that fails. What is kept is small:
for each defect the clauses that catch it. A new defect or a new clause costs its own row or column alone.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
if str(HERE.parent) not in sys.path:
    sys.path.insert(0, str(HERE.parent))

import torch  # noqa: E402

from attnspec._clauses import clauses  # noqa: E402
from defects.bank import Defect, bank  # noqa: E402
from defects.kill_table import CAUGHT, run, subject_of, unshrunk  # noqa: E402

RESULTS = HERE / "full_table.json"
NOTHING: dict[str, Any] = {"torch": torch.__version__, "minutes": 0.0, "clauses": [], "defects": {}}


def load(path: Path = RESULTS) -> dict[str, Any]:
    """Return what earlier runs found."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else json.loads(json.dumps(NOTHING))


def row(defect: Defect, names: Iterable[str]) -> list[str]:
    """Return which of the clauses catch a defect."""
    try:
        recognition = subject_of(defect)
    except Exception as error:
        # A defect that cannot even be recognised is no row of this table; the kill table complains of it.
        print(f"{defect.name}: {type(error).__name__}: {error}", flush=True)
        return []
    chosen = replace(unshrunk("quick"), random=0)
    return [name for name in names if run(name, recognition, chosen)["status"] in CAUGHT]


def save(found: dict[str, Any]) -> None:
    """Write what was found, a line a defect."""
    head = {**found, "defects": {}}
    lines = [f"  {json.dumps(n)}: {json.dumps(c)}" for n, c in found["defects"].items()]
    text = json.dumps(head, indent=1).replace('"defects": {}', '"defects": {\n' + ",\n".join(lines) + "\n }")
    RESULTS.write_text(text + "\n", encoding="utf-8")


def alone(found: dict[str, Any]) -> dict[str, list[str]]:
    """Return for each clause the defects that it catches and no other clause does."""
    single: dict[str, list[str]] = {}
    for name, caught in found["defects"].items():
        if len(caught) == 1:
            single.setdefault(caught[0], []).append(name)
    return single


def shadowed(found: dict[str, Any]) -> list[str]:
    """Return the clauses that could go: another clause catches all that they catch, and more."""
    catches: dict[str, set[str]] = {name: set() for name in found["clauses"]}
    for name, caught in found["defects"].items():
        for clause in caught:
            catches[clause].add(name)
    return sorted(
        clause
        for clause, mine in catches.items()
        if any(mine < theirs for other, theirs in catches.items() if other != clause)
    )


def show(found: dict[str, Any]) -> None:
    """Print the figures."""
    counts = sorted(len(caught) for caught in found["defects"].values())
    missed = [name for name, caught in found["defects"].items() if not caught]
    single = alone(found)
    print(f"{len(counts)} defects, {len(found['clauses'])} clauses, {found['minutes']:.0f} minutes")
    print(f"median of {counts[len(counts) // 2]} clauses a defect; caught by none here: {missed}")
    print(f"{sum(map(len, single.values()))} defects are caught by one clause alone:")
    for clause, names in sorted(single.items(), key=lambda item: -len(item[1])):
        print(f"  {clause}: {', '.join(names)}")
    print("catch nothing that one other clause does not:", ", ".join(shadowed(found)))


def main(arguments: Iterable[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--restart", action="store_true", help="forget earlier runs")
    parser.add_argument("--show", action="store_true", help="run nothing")
    asked = parser.parse_args(arguments)
    found = load() if not asked.restart else json.loads(json.dumps(NOTHING))
    if asked.show:
        show(found)
        return 0
    torch.set_num_threads(1)
    defects, everything = bank(), list(clauses())
    fresh, kept = [c for c in everything if c not in found["clauses"]], found["defects"]
    done = {n: [c for c in caught if c in everything] for n, caught in kept.items() if n in defects}
    found |= {"defects": done, "torch": torch.__version__}
    # Until the new clauses were tried on all that is known, they count as not tried.
    todo = {name: fresh for name in done if fresh} | {n: everything for n in defects if n not in done}
    began, earlier = time.perf_counter(), found["minutes"]
    for name, names in todo.items():
        caught = [c for c in done.get(name, []) if c not in names] + row(defects[name], names)
        done[name] = [c for c in everything if c in caught]
        if names is everything or not fresh or name == list(todo)[-1]:
            found["minutes"] = round(earlier + (time.perf_counter() - began) / 60, 1)
            found["clauses"] = everything
            save(found)
    show(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
