"""Write the measured figures into docs/numerics.md, from results.json; `--check` only compares."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "numerics.md"
START, END = "<!-- figures: tests/numerics/page.py -->\n", "<!-- end of figures -->\n"


def table(head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    """Return a Markdown table."""
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(str(cell) for cell in line) + " |\n" for line in lines) + "\n"


def figures(results: dict[str, Any]) -> str:
    """Return the part of the page that is measured."""
    totals = table(
        ("dtype", "comparisons", "elements", "violations", "largest error/bound", "median"),
        (
            (
                t["dtype"],
                f"{t['comparisons']:,}",
                f"{t['elements']:,}",
                t["violations"],
                t["largest"],
                t["median"],
            )
            for t in results["totals"]
        ),
    )
    count = sum(t["comparisons"] for t in results["totals"])
    parts = (
        (
            f"{count:,} comparisons in {results['seconds']} seconds on one core, torch {results['torch']}, "
            f"cases from number {results['first_seed']}.\n"
        ),
        totals + "### By quantity\n",
        "The largest error/bound over all implementations, and the median of their medians.\n",
        _quantities(results["rows"]) + "### By implementation\n",
        "The largest error/bound over all quantities.\n",
        _implementations(results["rows"]) + "### What it shows\n",
        "The share of inputs (normal values) on which a defect leaves the bound.\n",
        _defects(results["sensitivity"]),
    )
    return "\n".join(parts)


def _dtypes(rows: list[dict[str, Any]]) -> list[str]:
    return [d for d in ("float64", "float32", "bfloat16", "float16") if any(r["dtype"] == d for r in rows)]


def _quantities(rows: list[dict[str, Any]]) -> str:
    def cell(quantity: str, dtype: str) -> str:
        found = [r for r in rows if (r["quantity"], r["dtype"]) == (quantity, dtype)]
        medians = sorted(r["median"] for r in found)
        return f"{max(r['largest'] for r in found):.3g} / {medians[len(medians) // 2]:.2g}" if found else "–"

    names = sorted({r["quantity"] for r in rows})
    return table(("quantity", *_dtypes(rows)), ((n, *(cell(n, d) for d in _dtypes(rows))) for n in names))


def _implementations(rows: list[dict[str, Any]]) -> str:
    def cell(name: str, dtype: str) -> str:
        found = [r["largest"] for r in rows if (r["implementation"], r["dtype"]) == (name, dtype)]
        return f"{max(found):.3g}" if found else "–"

    names = sorted({r["implementation"] for r in rows})
    return table(
        ("implementation", *_dtypes(rows)), ((n, *(cell(n, d) for d in _dtypes(rows))) for n in names)
    )


def _defects(rows: list[dict[str, Any]]) -> str:
    names = sorted({(r["defect"], r["precision"]) for r in rows})
    share = {(r["defect"], r["precision"], r["dtype"]): f"{100 * r['caught']:.0f} %" for r in rows}
    return table(
        ("defect", "precision class", *_dtypes(rows)),
        (
            (defect, kind, *(share.get((defect, kind, d), "–") for d in _dtypes(rows)))
            for defect, kind in names
        ),
    )


def main() -> int:
    """Run from the command line."""
    text = PAGE.read_text()
    before, _, rest = text.partition(START)
    after = rest.partition(END)[2]
    written = before + START + "\n" + figures(json.loads((HERE / "results.json").read_text())) + END + after
    if "--check" in sys.argv:
        return int(written != text)
    PAGE.write_text(written)
    return 0


if __name__ == "__main__":
    sys.exit(main())
