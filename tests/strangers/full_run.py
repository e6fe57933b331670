"""Run every subject in full, print what fails, and keep `full_run.json` up to date.

python tests/strangers/full_run.py [FILE:OBJECT ...] [--missing]
"""

import argparse
import json
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import strangers_table as table

sys.path.insert(0, str(table.SUBJECTS))
RESULTS = Path(__file__).with_suffix(".json")


def full_verdict(row: table.Row) -> dict[str, Any]:
    """Return one subject's verdict: counts, failing clauses with their first words, questions, misses."""
    from attnspec._clauses import clauses
    from attnspec._errors import AttnspecError
    from attnspec.conformance.profiles import profile
    from attnspec.declaration import Declaration
    from attnspec.loading import load_target
    from attnspec.recognition import recognise

    began = time.perf_counter()
    # The verdict alone is wanted: nothing is made small.
    effort = replace(profile("quick"), shrink=0)
    try:
        found = recognise(load_target(row.text), Declaration.from_pairs(list(row.lines)))
    except AttnspecError as error:
        return {"target": row.target, "lines": list(row.lines), "refused": str(error).splitlines()[0]}
    results = [_verdict(clause, found, effort) for clause in clauses().values()]
    failed = {r.clause: r for r in results if r.status in ("failed", "error")}
    asked = sorted(r.clause for r in results if r.status == "question")
    level = {name: clauses()[name].level for name in failed}
    return {
        "target": row.target,
        "lines": list(row.lines),
        "right": not row.wrong,
        "seconds": round(time.perf_counter() - began, 1),
        "counts": dict(sorted(Counter(r.status for r in results).items())),
        "fails": sorted(n for n in failed if level[n] == "MUST"),
        "fails_should": sorted(n for n in failed if level[n] != "MUST"),
        "asks": asked,
        "beside": {
            n: _words(r)
            for n, r in sorted(failed.items())
            if level[n] == "MUST" and n not in row.fails and not row.wrong
        },
        "missed": sorted((set(row.fails) - set(failed)) | (set(row.asks) - set(asked))),
    }


def _verdict(clause: Any, found: Any, effort: Any) -> Any:
    """Run one clause; an error of the suite itself is a verdict too, as it is in a process of its own."""
    from attnspec.conformance.results import ClauseResult
    from attnspec.conformance.runner import run_clause

    try:
        return run_clause(clause, found, effort)
    except Exception as error:
        return ClauseResult(clause.name, "error", reason=f"{type(error).__name__}: {error}")


def _words(result: Any) -> str:
    """Return the first sentence of what a clause says, without the numbers of one machine."""
    failure = result.failure
    if failure is None:
        return str(result.reason)[:120]
    return str(failure.looks_like or failure.what)[:120]


def key(verdict: dict[str, Any]) -> tuple[str, ...]:
    """Return what tells one row of the table from another: the target and what is declared about it."""
    return (verdict["target"], *verdict["lines"])


def summary(verdicts: list[dict[str, Any]]) -> dict[str, int]:
    """Return the counts that matter: how many subjects, and how many verdicts are not as they should be."""
    return {
        "subjects": len(verdicts),
        "right": sum(v.get("right", False) for v in verdicts),
        "right that fail a clause beside those named": sum(bool(v.get("beside")) for v in verdicts),
        "wrong": sum(not v.get("right", True) for v in verdicts),
        "wrong that do not fail or ask what names the mistake": sum(bool(v.get("missed")) for v in verdicts),
        "not recognised": sum("refused" in v for v in verdicts),
        "clauses with an error of the suite": sum(v.get("counts", {}).get("error", 0) for v in verdicts),
    }


def write(path: Path, found: dict[tuple[str, ...], dict[str, Any]]) -> None:
    """Write what is known of the rows that there are, in the order of the table."""
    rows = [found[k] for k in ((row.target, *row.lines) for row in table.ALL) if k in found]
    lines = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in rows)
    text = f'{{\n "summary": {json.dumps(summary(rows))},\n "subjects": [\n  {lines}\n ]\n}}'
    path.write_text(text + "\n", encoding="utf-8")


def main(words: list[str]) -> int:
    """Print one line a subject: seconds, counts, and the clauses that fail; keep the file up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", help="FILE:OBJECT as in the table; none is all of them")
    parser.add_argument("--write", type=Path, default=RESULTS)
    parser.add_argument("--missing", action="store_true", help="only those that are not written yet")
    chosen = parser.parse_args(words)
    kept = json.loads(chosen.write.read_text(encoding="utf-8"))["subjects"] if chosen.write.exists() else []
    found = {key(verdict): verdict for verdict in kept}
    bad = 0
    for row in table.ALL:
        known = (row.target, *row.lines) in found
        if (chosen.targets and row.target not in chosen.targets) or (chosen.missing and known):
            continue
        verdict = full_verdict(row)
        found[key(verdict)] = verdict
        write(chosen.write, found)
        bad += bool(verdict.get("missed") or verdict.get("refused"))
        if "refused" in verdict:
            print(f"{row.target:<46} REFUSED  {verdict['refused']}", flush=True)
            continue
        note = f"  MISSED {' '.join(verdict['missed'])}" if verdict["missed"] else ""
        print(
            f"{row.target:<46}{verdict['seconds']:6.1f} s  {verdict['counts']}  "
            f"{' '.join(verdict['fails'])}{note}",
            flush=True,
        )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
