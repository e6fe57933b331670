"""The validation of the bound: its short form passes, and the page shows the figures of its long form."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
NUMERICS = ROOT / "tests" / "numerics"


def test_quick_validation_finds_no_violation() -> None:
    command = [sys.executable, str(NUMERICS / "validate_bound.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_recorded_validation_is_whole_and_clean() -> None:
    results = json.loads((NUMERICS / "results.json").read_text())
    assert results["size"] == "full"
    assert {total["dtype"] for total in results["totals"]} == {"float64", "float32", "bfloat16", "float16"}
    assert all(total["violations"] == 0 and total["comparisons"] > 10_000 for total in results["totals"])


def test_page_shows_the_recorded_figures() -> None:
    done = subprocess.run(
        [sys.executable, str(NUMERICS / "page.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
