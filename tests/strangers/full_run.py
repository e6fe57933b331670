"""Run every subject in full and print what fails: `python tests/strangers/full_run.py [FILE:OBJECT ...]`."""

import sys
import time
from collections import Counter

import strangers_table as table

sys.path.insert(0, str(table.SUBJECTS))


def main(chosen: list[str]) -> int:
    """Print one line a subject: seconds, counts, and the clauses that fail or ask."""
    from attnspec._clauses import clauses
    from attnspec.conformance.profiles import profile
    from attnspec.conformance.runner import run_clause
    from attnspec.declaration import Declaration
    from attnspec.loading import load_target
    from attnspec.recognition import recognise

    unexpected = 0
    for row in table.ALL:
        if chosen and row.target not in chosen:
            continue
        began = time.perf_counter()
        found = recognise(load_target(row.text), Declaration.from_pairs(list(row.lines)))
        results = [run_clause(clause, found, profile("quick")) for clause in clauses().values()]
        failed = {
            r.clause
            for r in results
            if r.status in ("failed", "error") and clauses()[r.clause].level == "MUST"
        }
        missing = set(row.fails) - failed - {r.clause for r in results if r.status == "failed"}
        unexpected += bool(missing)
        counts = Counter(r.status for r in results)
        note = f"  DOES NOT FAIL {' '.join(missing)}" if missing else ""
        print(
            f"{row.target:<46}{time.perf_counter() - began:6.1f} s  {dict(counts)}  "
            f"{' '.join(sorted(failed))}{note}",
            flush=True,
        )
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
