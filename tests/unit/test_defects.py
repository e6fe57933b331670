"""The bank of defects itself: what its records say must be true."""

import json
import sys
from pathlib import Path

import pytest
import torch

TESTS = Path(__file__).resolve().parents[1]
if str(TESTS) not in sys.path:
    sys.path.insert(0, str(TESTS))

from attnspec import stages  # noqa: E402
from attnspec._clauses import clauses  # noqa: E402
from defects.bank import bank, fresh  # noqa: E402
from defects.reference import Core  # noqa: E402

KNOWN = {
    "shape", "mask", "causal", "gqa", "scale", "softmax-numerics", "dtype", "gradient", "layout/stride",
    "cache", "dropout", "determinism", "state/mutation", "edge-size", "weights/params",
    "error-handling", "window/softcap/bias", "varlen",
}  # fmt: skip


def test_bank_is_large_and_covers_every_family():
    found = bank()
    assert len(found) >= 120
    assert {d.family for d in found.values()} == KNOWN


@pytest.mark.parametrize("defect", bank().values(), ids=bank().keys())
def test_record_is_complete(defect):
    assert defect.what.endswith(".")
    assert defect.case
    assert defect.clauses
    assert set(defect.clauses) <= set(clauses())
    assert not defect.place or callable(getattr(stages, defect.place))


def test_fresh_cores_share_no_state():
    kept = bank()["MaskCachedByShape"]
    assert fresh(kept).kept is not fresh(kept).kept


def test_reference_core_is_right_on_a_hand_made_case():
    query = key = torch.zeros(1, 1, 2, 1)
    value = torch.tensor([[[[2.0], [4.0]]]])
    assert Core()(query, key, value).flatten().tolist() == [3.0, 3.0]
    assert Core()(query, key, value, causal=True).flatten().tolist() == [2.0, 3.0]
    hidden = torch.tensor([[True, False], [False, False]])
    assert Core()(query, key, value, mask=hidden).flatten().tolist() == [2.0, 0.0]


def test_kill_table_lists_the_bank():
    rows = json.loads((TESTS / "defects" / "kill_table.json").read_text(encoding="utf-8"))["defects"]
    assert set(rows) == set(bank())
