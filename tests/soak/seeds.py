"""Check every built-in implementation in the profile `default` with many seeds, as a user would.

    python tests/soak/seeds.py                   seeds 1 to 20 that seeds.json does not hold yet
    python tests/soak/seeds.py sdpa flex         of these implementations only
    python tests/soak/seeds.py --seeds 21 40     others; they are added
    python tests/soak/seeds.py --restart         begin anew

Fails when one of them does not conform. Each run is the command line's own, in a process of its own.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from attnspec_impls import CATALOGUE

RESULTS = Path(__file__).with_name("seeds.json")
ROOT = RESULTS.parents[2]
PROFILE = "default"


def commit() -> str:
    """Return the last commit that changed the suite or an implementation."""
    command = ["git", "log", "-1", "--format=%h", "--", "spec", "impls"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    return done.stdout.strip() or "unknown"


def run(name: str, seed: int, jobs: int) -> dict[str, Any]:
    """Check one implementation with one seed, and return what is kept of its report."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        words = ["check", name, "--profile", PROFILE, "--seed", str(seed), "--jobs", str(jobs), "-q"]
        command = [sys.executable, "-m", "attnspec", *words, "--json", str(report)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not report.exists():
            raise SystemExit(f"seeds: no report of {name}, seed {seed}:\n{done.stdout}{done.stderr}")
        found = json.loads(report.read_text(encoding="utf-8"))
    failed = [r["clause"] for r in found["results"] if r["failure"] and r["level"] == "MUST"]
    return {
        "status": done.returncode,
        "clauses": found["ran"],
        "cases": sum(r["examples"] for r in found["results"]),
        "failed": failed,
        "commit": commit(),
    }


def main() -> int:
    """Run what is missing, and write after each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all built-ins")
    parser.add_argument("--seeds", nargs=2, type=int, default=(1, 20), metavar=("FIRST", "LAST"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--restart", action="store_true")
    words = parser.parse_args()
    kept = {} if words.restart or not RESULTS.exists() else json.loads(RESULTS.read_text("utf-8"))["runs"]
    first, last = words.seeds
    wanted = [(name, seed) for seed in range(first, last + 1) for name in words.names or CATALOGUE]
    for name, seed in wanted:
        if str(seed) in kept.setdefault(name, {}):
            continue
        kept[name][str(seed)] = row = run(name, seed, words.jobs)
        print(f"seed {seed:3d}  {name:24s} status {row['status']}  {' '.join(row['failed'])}", flush=True)
        data = {"command": f"attnspec check NAME --profile {PROFILE} --seed N", "runs": kept}
        RESULTS.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    rows = [row for seeds in kept.values() for row in seeds.values()]
    bad = [row for row in rows if row["status"]]
    print(f"{len(rows)} runs, {sum(row['cases'] for row in rows)} cases, {len(bad)} that do not conform")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
