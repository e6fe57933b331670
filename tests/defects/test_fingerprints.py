"""The names of mistakes: the table is whole and good enough, and some of it is measured anew."""

import json
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
if str(HERE.parent) not in sys.path:
    sys.path.insert(0, str(HERE.parent))

from attnspec.fingerprints.bank import BANK  # noqa: E402
from attnspec.fingerprints.identify import DROPOUT, DTYPE, RANDOM, WRITTEN  # noqa: E402
from defects import fingerprint_table  # noqa: E402
from defects.bank import bank  # noqa: E402
from defects.fingerprints import expected  # noqa: E402

# All of them take minutes; these are one or two of each family of names.
AGAIN = (
    "MaskInverted",
    "SeesOneAhead",
    "WindowOneTooFew",
    "RootOfTheHeads",
    "BiasIsScaled",
    "SoftcapOfTheScore",
    "SoftmaxOverQueries",
    "HeadsTiled",
    "KeyUsedAsValue",
    "ReturnsFloat32",
    "LayerSplitsByView",
    "OutputProjectionUnused",
)


def test_names_and_defects_exist():
    names = {f.name for f in (*BANK, DROPOUT, DTYPE, RANDOM, WRITTEN)}
    assert {name for right in expected().values() for name in right} <= names
    assert set(expected()) <= set(bank())


def test_table_names_nine_in_ten_right_and_none_wrong():
    found = json.loads(fingerprint_table.RESULTS.read_text(encoding="utf-8"))
    assert set(expected()) <= set(found["defects"]) <= set(bank())
    assert fingerprint_table.summary(found["defects"]) == found["summary"]
    assert fingerprint_table.complaints(found["summary"]) == []


@pytest.mark.parametrize("defect", AGAIN)
def test_defect_is_still_named_right(defect):
    assert fingerprint_table.named(defect)["name"] in expected()[defect]
