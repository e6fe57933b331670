"""Covering rows: every pair of options meets, early and always alike."""

from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnspec.conformance.covering import covering_rows

OPTIONS = {
    "mask": ("none", "random", "banded"),
    "causal": (False, True),
    "heads": (1, 2, 3, 5, 7),
    "scale": (None, 0.3),
}


def pairs_of(options: dict[str, tuple[object, ...]]) -> set[tuple[str, object, str, object]]:
    return {(a, x, b, y) for a, b in combinations(options, 2) for x, y in product(options[a], options[b])}


def met(rows: list[dict[str, object]]) -> set[tuple[str, object, str, object]]:
    return {(a, row[a], b, row[b]) for row in rows for a, b in combinations(row, 2)}


@pytest.mark.parametrize("seed", range(5))
def test_rows_cover_every_pair(seed: int) -> None:
    rows = covering_rows(OPTIONS, seed=seed, limit=200)
    assert met(rows) == pairs_of(OPTIONS)
    assert 15 <= len(rows) <= 24


def test_rows_by_hand() -> None:
    """Two features with two options each need four rows, and no more are made."""
    rows = covering_rows({"a": (1, 2), "b": (3, 4)}, seed=1, limit=99)
    assert sorted((row["a"], row["b"]) for row in rows) == [(1, 3), (1, 4), (2, 3), (2, 4)]


def test_rows_are_at_most_as_many_as_asked_for() -> None:
    assert len(covering_rows(OPTIONS, seed=1, limit=3)) == 3


def test_first_rows_cover_much() -> None:
    assert len(met(covering_rows(OPTIONS, seed=1, limit=7))) > 0.6 * len(pairs_of(OPTIONS))


def test_every_option_has_its_turn_in_as_many_rows_as_there_are_options() -> None:
    rows = covering_rows(OPTIONS, seed=1, limit=10)
    for name, options in OPTIONS.items():
        assert {row[name] for row in rows} == set(options)


def test_equal_seeds_give_equal_rows() -> None:
    assert covering_rows(OPTIONS, seed=7, limit=20) == covering_rows(OPTIONS, seed=7, limit=20)
    assert covering_rows(OPTIONS, seed=7, limit=20) != covering_rows(OPTIONS, seed=8, limit=20)


def test_one_feature_gives_at_least_one_row() -> None:
    assert covering_rows({"a": (5,)}, seed=1, limit=9) == [{"a": 5}]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=2, max_size=5), st.integers(0, 99))
def test_rows_cover_every_pair_of_any_table(counts: list[int], seed: int) -> None:
    options = {f"feature{n}": tuple(range(count)) for n, count in enumerate(counts)}
    assert met(covering_rows(options, seed=seed, limit=500)) == pairs_of(options)
