"""Measure what the documents claim: `python tests/claims/measure.py` writes `results.json` beside it."""

import argparse
import json
import sys
from pathlib import Path

import exact
import numeric
import timed
import torch

from attnspec.bench.environment import environment

TIMED = {
    "heads": timed.heads,
    "head_width": timed.head_width,
    "grouped_decoding": timed.grouped_decoding,
}


def main() -> int:
    """Measure everything and write it down."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", nargs="?", type=Path, default=Path(__file__).with_name("results.json"))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--only", action="append", choices=TIMED, help="measure these again, and keep the rest"
    )
    words = parser.parse_args()
    chosen = words.only or list(TIMED)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    found = {
        "environment": {**environment("cpu"), "clock": "cpu"},
        "rounds": words.rounds,
        "grouped_memory": exact.grouped_memory(),
        "tensor_sizes": exact.tensor_sizes(),
        "scaling": numeric.scaling(),
        "fill_value": numeric.fill_value(),
    }
    for name in chosen:
        print(f"measuring {name}", file=sys.stderr, flush=True)
        found[name] = TIMED[name](words.rounds)
    if words.only:
        found = {**json.loads(words.file.read_text(encoding="utf-8")), **found}
    words.file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {words.file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
