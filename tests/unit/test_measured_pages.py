"""The pages of claims and cost show the recorded figures, and the records are whole."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {"claims": ROOT / "tests" / "claims" / "page.py", "cost": ROOT / "benchmarks" / "page.py"}


@pytest.mark.parametrize("name", PAGES)
def test_page_shows_the_recorded_figures(name: str) -> None:
    done = subprocess.run(
        [sys.executable, str(PAGES[name]), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"run {PAGES[name].relative_to(ROOT)}\n{done.stderr}"


def test_counted_claims_are_those_of_the_published_sizes() -> None:
    found = json.loads((ROOT / "tests" / "claims" / "results.json").read_text())
    assert found["grouped_memory"]["parameters"] == 6_738_415_616
    assert found["grouped_memory"]["cache_bytes_per_token"] == 2 * 32 * 4096 * 2
    scores = next(row for row in found["tensor_sizes"]["rows"] if row["stage"] == "scores")
    assert scores["shape"] == [32, 8, 100, 100]


def test_every_target_says_whether_it_is_met() -> None:
    rows = json.loads((ROOT / "benchmarks" / "targets.json").read_text())["targets"]
    assert rows
    assert all(row["met"] == (row["got"] <= row["limit"]) for row in rows)
