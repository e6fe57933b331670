"""The bank in CI: every defect is caught by a clause that names it, every right implementation passes."""

import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
if str(HERE.parent) not in sys.path:
    sys.path.insert(0, str(HERE.parent))

from attnspec._clauses import clauses  # noqa: E402
from attnspec.conformance.profiles import profile  # noqa: E402
from defects import kill_table  # noqa: E402
from defects.bank import MODULES, bank  # noqa: E402
from right.bank import bank as right_bank  # noqa: E402
from right.check import failures  # noqa: E402

# The share of defects that quick may leave to default.
QUICK_MISSES = 0.05


@pytest.mark.parametrize("module", MODULES)
def test_defects_are_caught_by_their_own_clauses(module):
    chosen = [d for d in bank().values() if type_of(d).__module__ == f"defects.{module}"]
    missed = []
    for defect in chosen:
        row = kill_table.plant(defect.name, ("quick", "default"))
        missed += kill_table.complaints({defect.name: row}, {defect.name: defect, "": defect})
    assert not missed


def type_of(defect):
    """Return the class of a defect."""
    return type(defect.target) if defect.contract == "core" else defect.target


def test_table_is_up_to_date_and_quick_catches_nearly_all():
    import json

    found = json.loads(kill_table.RESULTS.read_text(encoding="utf-8"))
    assert set(found["defects"]) == set(bank())
    summary = found["summary"]
    assert summary["caught"] == summary["defects"]
    assert summary["caught_in_quick"] >= (1 - QUICK_MISSES) * summary["defects"]


def test_every_clause_is_named_by_a_defect_that_breaks_it():
    import json

    found = json.loads(kill_table.RESULTS.read_text(encoding="utf-8"))
    broken = {c for row in found["defects"].values() for c in kill_table.caught(row)}
    assert set(clauses()) - broken == set()


@pytest.mark.parametrize("name", right_bank())
def test_right_implementations_pass(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        few = replace(profile("quick"), rows=3, random=0, shrink=0)
        # A sixth of the clauses for each, another sixth for the next; the soak tries them all.
        assert failures(right_bank()[name], few, start=list(right_bank()).index(name), step=6) == []
