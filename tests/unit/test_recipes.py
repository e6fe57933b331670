"""Recipes and spaces: what is varied, within what a subject can be asked."""

from typing import Any

import pytest
from hypothesis import given, settings

from attnspec.conformance.cases import Case
from attnspec.conformance.recipes import GENERAL, Recipe, below
from attnspec.conformance.space import Space

FEATURES = frozenset({"mask", "bias", "window", "softcap", "scale", "grouped", "cross", "value_width"})
EVERYTHING = Space(features=FEATURES, causal="flag")
PLAIN = Space()
LAYER = Space(contract="layer", features=frozenset({"mask", "parameters"}), causal="always")
SPACES = {"everything": EVERYTHING, "plain": PLAIN, "layer": LAYER}


@pytest.mark.parametrize("name", SPACES)
def test_rows_can_be_expressed(name: str) -> None:
    space = SPACES[name]
    rows = Recipe(GENERAL).rows(space, seed=1, limit=20)
    assert len(rows) >= 9
    for case in rows:
        assert space.fit(case) == case


@pytest.mark.parametrize("name", SPACES)
def test_random_cases_can_be_expressed(name: str) -> None:
    space = SPACES[name]

    @settings(max_examples=40, deadline=None)
    @given(Recipe(GENERAL).strategy(space))
    def fits(case: Case) -> None:
        assert space.fit(case) == case

    fits()


def test_rows_are_unlike_and_repeatable() -> None:
    rows = Recipe(GENERAL).rows(EVERYTHING, seed=7, limit=20)
    assert len({str(case.replace(seed=0)) for case in rows}) == len(rows)
    assert rows == Recipe(GENERAL).rows(EVERYTHING, seed=7, limit=20)
    assert rows != Recipe(GENERAL).rows(EVERYTHING, seed=8, limit=20)


def test_options_are_respected() -> None:
    recipe = Recipe(
        {"heads": ((6, 2),), "lengths": ((5, 7),), "widths": ((3, 11),), "mask": ("dead",), "batch": (2,)}
    )
    for case in recipe.rows(EVERYTHING, seed=1, limit=9):
        assert (case.heads, case.kv_heads, case.q_len, case.kv_len, case.d_k, case.d_v) == (6, 2, 5, 7, 3, 11)
        assert (case.mask, case.batch, case.dtype) == ("dead", 2, "float32")


def test_keep_drops_what_a_clause_cannot_use() -> None:
    recipe = Recipe(GENERAL, keep=lambda case: case.causal)
    assert all(case.causal for case in recipe.rows(EVERYTHING, seed=1, limit=20))


def test_dtype_is_one_that_runs() -> None:
    halves = Space(dtypes=("bfloat16", "float16"))
    assert {case.dtype for case in Recipe().rows(halves, seed=1, limit=9)} == {"bfloat16"}
    doubles = Recipe({"dtype": ("float64", "float16")})
    assert {case.dtype for case in doubles.rows(halves, seed=1, limit=9)} == {"float16"}


FITTED: list[tuple[str, Space, dict[str, Any], dict[str, Any] | None]] = [
    ("grouped heads become all heads", PLAIN, {"heads": 6, "kv_heads": 2}, {"kv_heads": 6}),
    ("lengths become the longer one", PLAIN, {"q_len": 5, "kv_len": 7}, {"q_len": 7, "kv_len": 7}),
    ("values get the width of keys", PLAIN, {"d_k": 5, "d_v": 7}, {"d_v": 5}),
    ("a mask that it lacks", PLAIN, {"mask": "random"}, None),
    ("a bias that it lacks", PLAIN, {"bias": "qk"}, None),
    ("a scale that it lacks", PLAIN, {"scale": 0.3}, None),
    ("a dtype that it lacks", Space(dtypes=("float32",)), {"dtype": "float64"}, None),
    ("causality that it lacks", PLAIN, {"causal": True}, {"causal": False}),
    ("causality that it has always", Space(causal="always"), {}, {"causal": True}),
    ("its own alignment", Space(alignment="upper_left", causal="flag"), {}, {"alignment": "upper_left"}),
    (
        "its longest sequence",
        Space(features=FEATURES, max_len=3),
        {"q_len": 5, "kv_len": 2},
        {"q_len": 3, "kv_len": 2},
    ),
    ("a mask axis", Space(features=FEATURES, mask_axes="bk"), {"mask": "random"}, {"mask_axes": "bk"}),
    (
        "a mask rank",
        Space(features=FEATURES, mask_ranks=(2,)),
        {"mask": "random"},
        {"mask_axes": "qk", "mask_rank": 2},
    ),
    ("a layout", Space(layouts=("contiguous",)), {"layout": "sliced"}, {"layout": "contiguous"}),
    ("even widths", Space(even_widths=True), {"d_k": 5}, {"d_k": 6, "d_v": 6}),
    (
        "options that exclude each other",
        Space(features=FEATURES, causal="flag", apart=(("mask", "causal"),)),
        {"mask": "random", "causal": True},
        {"mask": "random", "causal": False},
    ),
    (
        "sizes of an instance",
        Space(fixed={"heads": 3, "kv_heads": 3, "d_k": 7}),
        {"heads": 5},
        {"heads": 3, "d_k": 7},
    ),
    (
        "room for one-hot inputs",
        Space(contract="layer", features=FEATURES, embedded=True),
        {"batch": 2, "heads": 3, "kv_heads": 3, "q_len": 7, "kv_len": 5, "d_k": 2, "d_v": 2},
        {"d_k": 5, "d_v": 5},
    ),
]


@pytest.mark.parametrize(("space", "given_", "expected"), [x[1:] for x in FITTED], ids=[x[0] for x in FITTED])
def test_case_is_fitted(space: Space, given_: dict[str, Any], expected: dict[str, Any] | None) -> None:
    fitted = space.fit(Case(**given_))
    if expected is None:
        assert fitted is None
    else:
        assert fitted is not None
        assert {name: getattr(fitted, name) for name in expected} == expected
        assert space.fit(fitted) == fitted


def test_space_knows_words_that_it_works_out() -> None:
    space = Space(features=frozenset({"mask"}), causal="flag", dtypes=("float32",), mask_axes="bk")
    true = ("mask", "causal", "causal_flag", "bidirectional", "float32", "mask_b", "mask_k")
    false = ("bias", "float16", "mask_q", "mask_h", "grouped")
    assert [word for word in (*true, *false) if space.has(word)] == list(true)
    assert not Space(features=frozenset({"mask"}), causal="always").has("bidirectional")
    assert not Space(mask_axes="b").has("mask_b")


SMALLER = Case(
    batch=2, heads=6, kv_heads=2, q_len=5, kv_len=7, d_k=3, d_v=3, mask="random", causal=True, scale=0.3,
    values="scaled", layout="sliced", seed=99,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(below(SMALLER, {}))
def test_smaller_cases_are_simpler_in_every_way(case: Case) -> None:
    for name in ("batch", "heads", "kv_heads", "q_len", "kv_len", "d_k", "d_v"):
        assert 1 <= getattr(case, name) <= getattr(SMALLER, name)
    assert case.heads % case.kv_heads == 0
    assert case.d_v == case.d_k
    assert case.mask in (None, "random")
    assert case.layout in ("contiguous", "sliced")
    assert case.bias is None


@settings(max_examples=40, deadline=None)
@given(below(SMALLER, {"mask": ("random", "dead"), "heads": ((6, 2), (4, 1)), "causal": (True,)}))
def test_smaller_cases_keep_what_the_recipe_always_sets(case: Case) -> None:
    assert case.mask == "random"
    assert case.causal
    assert case.heads > case.kv_heads
