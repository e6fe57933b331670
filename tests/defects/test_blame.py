"""The trace names the right stage for what is wrong, and nothing for what is right."""

import json
import sys
import warnings
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
if str(HERE.parent) not in sys.path:
    sys.path.insert(0, str(HERE.parent))

from defects import blame  # noqa: E402
from defects.bank import bank  # noqa: E402
from right.bank import bank as right_bank  # noqa: E402

# Of the defects of layers that show in one call, so many are blamed on the stage where they are wrong.
LEAST = 0.9
# Defects may be added before blame.json is written anew, but not many.
UP_TO_DATE = 0.9


def test_layer_defects_are_blamed_on_the_right_stage():
    written = json.loads(blame.RESULTS.read_text(encoding="utf-8"))["defects"]
    names = [n for n in blame.placed(("layer",)) if written.get(n, {}).get("verdict") != "excluded"]
    rows = {name: blame.judge(name, "quick") for name in names}
    found = blame.summary(rows)["layer"]
    missed = {n: (r["place"], r["stage"]) for n, r in rows.items() if r["verdict"] in ("other", "no line")}
    assert found["counted"] >= 35
    assert found["share_right"] >= LEAST, missed


@pytest.mark.parametrize("name", right_bank())
def test_right_implementations_are_never_blamed(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # A third of the cases for each, another third for the next; blame.py tries them all.
        assert blame.blames(right_bank()[name], start=list(right_bank()).index(name), step=3) == []


def test_written_figures_are_of_this_bank():
    found = json.loads(blame.RESULTS.read_text(encoding="utf-8"))
    names = set(blame.placed())
    assert set(found["defects"]) <= names
    assert len(found["defects"]) >= UP_TO_DATE * len(names)
    assert all(bank()[name].place == row["place"] for name, row in found["defects"].items())
    assert found["summary"]["layer"]["share_right"] >= LEAST
    assert found["right"]["blamed"] == []
