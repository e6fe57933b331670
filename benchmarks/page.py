"""Write the measured figures into docs/cost.md, from the results beside it; `--check` only compares."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
PAGE = ROOT / "docs" / "cost.md"
START, END = "<!-- figures: benchmarks/page.py -->\n", "<!-- end of figures -->\n"
KNOWN = ("target", "limit", "got", "met", "low", "high")


def table(head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    """Return a Markdown table."""
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(str(cell) for cell in line) + " |\n" for line in lines) + "\n"


def load(path: Path) -> dict[str, Any] | None:
    """Return a results file, or None if there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def where(environment: dict[str, Any]) -> str:
    """Say where something was measured."""
    device = environment.get("gpu") or f"{environment['threads']} thread of {environment['cpu']}"
    return f"Measured {environment['date']} with torch {environment['torch']} on {device}.\n\n"


def targets_markdown(results: dict[str, Any]) -> str:
    """Return the table of targets, met and missed."""
    rows = results["targets"]
    met = sum(row["met"] for row in rows)
    text = f"## Targets {{ #targets }}\n\n{met} of {len(rows)} are met. {where(results['environment'])}"
    lines = (
        (row["target"], setting(row), f"{row['limit']:g}", f"{row['got']:.3f}", quartiles(row), verdict(row))
        for row in rows
    )
    return text + table(("target", "setting", "at most", "measured", "quartiles", ""), lines)


def quartiles(row: dict[str, Any]) -> str:
    """Return how far the rounds of one row differ; a size is counted and does not."""
    return f"{row['low']:.3f} to {row['high']:.3f}" if row.get("low") is not None else ""


def verdict(row: dict[str, Any]) -> str:
    """Say whether a target is met, missed, or missed by less than the rounds can tell."""
    if row["met"]:
        return "met"
    return "not told apart" if row.get("low", row["got"]) <= row["limit"] else "**missed**"


def setting(row: dict[str, Any]) -> str:
    """Return what a target was measured at, in words."""
    return ", ".join(f"{name} {value}" for name, value in row.items() if name not in KNOWN)


def bench_markdown(results: dict[str, Any]) -> str:
    """Return one table for each cell of a benchmark."""
    cells: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in results["rows"]:
        cells.setdefault((row["shape"], row["dtype"], row["which"], row["mode"]), []).append(row)
    text = where(results["environment"])
    for cell, rows in cells.items():
        text += f"### {', '.join(cell)}\n\n"
        ordered = sorted(rows, key=lambda row: (row["ratio"] is None, row["ratio"]))
        text += table(("", "× floor", "quartiles", "peak extra memory"), map(figures, ordered))
    return text


def figures(row: dict[str, Any]) -> tuple[str, ...]:
    """Return one row's figures as text."""
    if row["ratio"] is None:
        return row["name"], "–", row["note"], ""
    peak = "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**20:.1f} MiB"
    return row["name"], f"{row['ratio']:.2f}", f"{row['low']:.2f} to {row['high']:.2f}", peak


def cuda_markdown(results: dict[str, Any] | None) -> str:
    """Return what was found on a CUDA device, or that nothing was measured."""
    text = "## CUDA { #cuda }\n\n"
    if results is None:
        return (
            text
            + "Not measured: no device was at hand. `nox -s cuda` measures it and writes the results.\n\n"
        )
    checks = table(
        ("implementation", "checked"),
        (
            (c["name"], c.get("reason") or ("conforms" if c["ok"] else f"breaks {', '.join(c['broken'])}"))
            for c in results["checks"]
        ),
    )
    return text + checks + bench_markdown(results)


def cost_markdown() -> str:
    """Return the part of the page that is measured."""
    text = ""
    targets, bench = load(HERE / "targets.json"), load(HERE / "bench.json")
    if targets is not None:
        text += targets_markdown(targets)
    if bench is not None:
        text += "## Time and memory { #time }\n\n" + bench_markdown(bench)
    return text + cuda_markdown(load(ROOT / "tests" / "cuda" / "results.json"))


def main() -> int:
    """Write the figures, or compare."""
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(START)
    wanted = f"{before}{START}\n{cost_markdown()}{END}{rest.partition(END)[2]}"
    if "--check" in sys.argv[1:]:
        return 0 if page == wanted else 1
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
