"""Look for a false alarm: right implementations, many seeds, every dtype by itself.

    python tests/soak/soak.py --minutes 30    go on where the last run stopped; results.json is kept
    python tests/soak/soak.py --restart       begin anew
    python tests/soak/soak.py --quick         one seed, a few implementations; nothing is written

Fails when a right implementation breaks a clause. A comparison is one case of one clause: at least
one tensor held against its bound, element by element.
"""

import argparse
import json
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
if str(HERE.parent) not in sys.path:
    sys.path.insert(0, str(HERE.parent))

import torch  # noqa: E402

from attnspec._clauses import clauses  # noqa: E402
from attnspec.conformance.profiles import Profile  # noqa: E402
from attnspec.conformance.runner import run_clause  # noqa: E402
from attnspec.declaration import Declaration  # noqa: E402
from attnspec.loading import load_target  # noqa: E402
from attnspec.recognition import recognise  # noqa: E402
from attnspec_impls import CATALOGUE  # noqa: E402
from right.bank import bank  # noqa: E402
from right.check import recognised  # noqa: E402

RESULTS = HERE / "results.json"
DTYPES = ("float32", "float64", "bfloat16", "float16")
CLAUSES = (
    "value.plain", "value.oracle", "value.layer_plain", "value.layer", "value.constant", "value.hull",
    "value.linear", "value.low_logits", "value.wide_range", "mask.value", "mask.per_sample",
    "mask.extremes", "causal.value", "causal.with_mask", "grouped.combined", "scale.options",
    "bias.value", "bias.with_mask", "softcap.value", "window.value", "size.blocks", "size.widths",
    "layout.mixed", "weights.value", "dtype.long_rows", "dtype.combined", "gradient.query",
    "gradient.key", "gradient.value", "gradient.long", "gradient.inputs", "gradient.parameters",
    "gradient.half", "grouped.gradient", "bias.gradient", "cache.split", "cache.window",
)  # fmt: skip
ROWS = Profile("soak", rows=6, random=0, seconds=20.0, shrink=0)
# One query or one key at a time in Python: right, and too slow for many seeds.
SLOW = ("row_by_row", "blockwise_1", "compiled")


def subjects(names: Iterable[str] | None = None) -> dict[str, Any]:
    """Return what is soaked, recognised: the bank of right implementations and the built-in ones."""
    found = {name: recognised(right) for name, right in bank().items() if names is None or name in names}
    built_in = [name for name in CATALOGUE if names is None or name in names]
    return found | {name: recognise(load_target(name), Declaration()) for name in built_in}


def only(recognition: Any, dtype: str) -> Any:
    """Return the recognition of the same subject in one dtype alone."""
    recognition.subject.space = replace(recognition.subject.space, dtypes=(dtype,))
    return replace(recognition, space=replace(recognition.space, dtypes=(dtype,)))


def takes_part(name: str, recognition: Any, seed: int) -> bool:
    """Return whether an implementation is tried with a seed: the slow ones are tried with few."""
    if name in SLOW:
        return seed % 8 == 1
    # The core of a layer is reached through wide weights, which takes time.
    return recognition.space.contract == "core" or seed % 4 == 3


def rounds(found: dict[str, Any], done: int, *, every: bool) -> Iterator[tuple[int, int, str, str]]:
    """Yield number, seed, implementation and dtype, without end, from where the last run stopped."""
    pairs = [(name, dtype) for name, r in found.items() for dtype in DTYPES if dtype in r.space.dtypes]
    number = done
    while True:
        seed, place = divmod(number, len(pairs))
        name, dtype = pairs[place]
        if every or takes_part(name, found[name], seed + 1):
            yield number, seed + 1, name, dtype
        number += 1


def soak_one(recognition: Any, name: str, dtype: str, seed: int, totals: dict[str, Any]) -> None:
    """Run the clauses on one implementation in one dtype, and add up what came of it."""
    for clause in CLAUSES:
        result = run_clause(clauses()[clause], recognition, ROWS, start=seed)
        row = totals["dtypes"].setdefault(dtype, {"comparisons": 0, "largest": 0.0})
        row["comparisons"] += result.examples
        if result.worst > row["largest"] and result.status == "passed":
            row |= {"largest": round(result.worst, 4), "clause": clause, "implementation": name, "seed": seed}
        if result.status == "failed" and result.failure is not None:
            failure = {"implementation": name, "dtype": dtype, "clause": clause, "seed": seed}
            totals["violations"].append(failure | {"what": result.failure.what, "case": result.failure.case})


def fresh_totals() -> dict[str, Any]:
    """Return totals before the first comparison."""
    return {"done": 0, "minutes": 0.0, "seeds": [1, 1], "dtypes": {}, "violations": [], "implementations": []}


def parse(arguments: Iterable[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="stop after so long (default: 10)")
    parser.add_argument("--quick", action="store_true", help="a few implementations, one seed")
    parser.add_argument("--restart", action="store_true", help="forget earlier runs")
    return parser.parse_args(arguments)


def main(arguments: Iterable[str] | None = None) -> int:
    """Soak for a while; return the exit status."""
    warnings.simplefilter("ignore")
    asked = parse(arguments)
    keep = not asked.quick
    totals = fresh_totals()
    if keep and RESULTS.exists() and not asked.restart:
        totals = json.loads(RESULTS.read_text(encoding="utf-8"))
    found = subjects(("split_keys", "blockwise_3", "Stacked", "sdpa_core") if asked.quick else None)
    whole = sum(dtype in r.space.dtypes for r in found.values() for dtype in DTYPES)
    kept = {name: r.subject.space for name, r in found.items()}
    earlier, began = totals["minutes"], time.perf_counter()
    for number, seed, name, dtype in rounds(found, totals["done"], every=asked.quick):
        spent = (time.perf_counter() - began) / 60
        if spent > asked.minutes or (asked.quick and number >= whole):
            break
        found[name].subject.space = kept[name]
        soak_one(only(found[name], dtype), name, dtype, seed, totals)
        totals |= {"done": number + 1, "minutes": round(earlier + spent, 1), "seeds": [1, seed]}
        totals |= {"implementations": sorted(found), "torch": torch.__version__}
        totals["comparisons"] = sum(row["comparisons"] for row in totals["dtypes"].values())
        if keep:
            RESULTS.write_text(json.dumps(totals, indent=1) + "\n", encoding="utf-8")
    for dtype, row in totals["dtypes"].items():
        print(f"{dtype}: {row['comparisons']} comparisons, largest error / bound {row['largest']}")
    for violation in totals["violations"]:
        print("false alarm:", violation)
    return 1 if totals["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
