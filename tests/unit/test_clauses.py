"""The rules as data: complete, in order, joined to checks, and found by name or by chapter."""

from pathlib import Path

import pytest

from attnspec._clauses import CONTRACT_VERSION, Level, clauses
from attnspec._errors import UnknownNameError
from attnspec.conformance.check import CHAPTERS, checks
from attnspec.conformance.runner import missing_need
from attnspec.conformance.space import ALL_DTYPES, Space

BOOK = clauses()
# What recognition can enter into a space, beside the words that `Space.has` works out by itself.
FEATURES = {
    "mask", "bias", "window", "softcap", "scale", "dropout", "weights", "grouped", "cross", "cross_sources",
    "value_width", "parameters", "inputs_known", "cache", "lengths",
}  # fmt: skip
EVERYTHING = Space(features=frozenset(FEATURES), causal="flag")
NOTHING = Space(features=frozenset(), causal="always", dtypes=(), mask_axes="")
NEVER = Space(features=frozenset(), causal="never")


def test_contract_has_at_least_fifty_clauses_for_core_and_layer() -> None:
    assert sum(bool({"core", "layer"} & set(c.contracts)) for c in BOOK.values()) >= 50


def test_chapters_are_in_the_order_of_the_suite() -> None:
    assert tuple(chapter.name for chapter in BOOK.chapters) == CHAPTERS
    assert [c.chapter for c in BOOK.values()] == [
        chapter.name for chapter in BOOK.chapters for _ in chapter.clauses
    ]


def test_chapter_orders_are_unlike() -> None:
    orders = [chapter.order for chapter in BOOK.chapters]
    assert sorted(set(orders)) == orders


def test_each_clause_has_a_check_and_each_check_a_clause() -> None:
    assert set(checks()) == set(BOOK)


@pytest.mark.parametrize("name", BOOK)
def test_clause_is_complete(name: str) -> None:
    clause = BOOK[name]
    assert clause.name == name
    assert clause.statement
    assert isinstance(clause.level, Level)
    assert set(clause.contracts) <= {"core", "layer", "cached"}
    assert clause.contracts
    assert clause.address == f"/clauses/{clause.chapter}/#{name}"


@pytest.mark.parametrize("name", BOOK)
def test_clause_is_checked_on_every_contract_it_holds_for(name: str) -> None:
    clause = BOOK[name]
    on = {check.on for check in checks()[name]}
    reached = {contract for contract in clause.contracts if contract in on or "core" in on}
    assert reached == set(clause.contracts)


@pytest.mark.parametrize("need", sorted({need for c in BOOK.values() for need in c.needs}))
def test_need_is_a_feature_that_a_space_knows(need: str) -> None:
    clause = next(c for c in BOOK.values() if need in c.needs)
    assert need == "half" or need in ALL_DTYPES or EVERYTHING.has(need)
    assert missing_need(clause, EVERYTHING, {}) is None
    assert missing_need(clause, NEVER if need == "causal" else NOTHING, {})


def test_contract_version_is_a_year_and_a_month() -> None:
    year, month = CONTRACT_VERSION.split(".")
    assert int(year) >= 2026
    assert 1 <= int(month) <= 12


def test_selecting_a_clause_returns_it_and_what_stands_below() -> None:
    assert [c.name for c in BOOK.select("scale.default")] == ["scale.default"]
    below = [c.name for c in BOOK.select("mask.dead_row")]
    assert "mask.dead_row.zero" in below
    assert all(name.startswith("mask.dead_row.") for name in below)


def test_selecting_a_chapter_returns_all_of_it() -> None:
    chapter = next(c for c in BOOK.chapters if c.name == "mask")
    assert BOOK.select("mask") == chapter.clauses
    assert BOOK.select("mask.*") == chapter.clauses
    assert BOOK.select("mask.") == chapter.clauses


def test_unknown_clause_suggests_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        BOOK["mask.dead_row.zeros"]
    first = str(caught.value).split("\n", 1)[0]
    assert first == "no clause is called 'mask.dead_row.zeros'; did you mean 'mask.dead_row.zero'?"


def test_unknown_chapter_suggests_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        BOOK.select("gradients")
    assert (
        str(caught.value).split("\n", 1)[0]
        == "no clause or chapter is called 'gradients'; did you mean 'gradient'?"
    )


def test_membership_of_an_unknown_name_is_false() -> None:
    assert "mask.dead_row.zeros" not in BOOK
    assert 7 not in BOOK


def test_every_chapter_is_one_file() -> None:
    folder = Path(__import__("attnspec").__file__).parent / "clauses"
    assert {p.stem for p in folder.glob("*.toml")} == {chapter.name for chapter in BOOK.chapters}
