"""Strategies read from annotations: shared sizes, products kept, and calls that the checkers let pass."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Bool, Float
from torch import Tensor

import attnspec
from attnspec import stages
from attnspec._table import STAGES
from attnspec.checked import checked
from attnspec.conformance.cases import Case
from attnspec.conformance.strategies import BLOCK_SIZES, arguments, axis_sizes, core_cases

FEW = settings(max_examples=12, deadline=None)
# What a stage takes beside tensors, and sizes that a split must be able to cut.
SETTINGS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "split_heads": ({"heads": 3}, {"width": 15}),
    "split_stacked": ({"heads": 5}, {"width": 30}),
    "split_interleaved": ({"heads": 3}, {"width": 18}),
    "share_heads": ({"group": 2}, {}),
    "scale_scores": ({"scale": 0.3}, {}),
    "cap_scores": ({"softcap": 1.5}, {}),
    "visible_positions": ({"offset": 2, "left": 1, "right": 0}, {}),
    "drop_weights": ({"dropout": 0.3}, {}),
}


def scores(
    query: Float[Tensor, "batch heads q_len d_k"],
    key: Float[Tensor, "batch kv_heads kv_len d_k"],
    seen: Bool[Tensor, "q_len kv_len"],
) -> Float[Tensor, "batch heads q_len kv_len"]:
    """Only its annotations are read."""
    raise NotImplementedError


@FEW
@given(arguments(scores))
def test_axes_of_one_name_have_one_size(given_: dict[str, Tensor]) -> None:
    query, key, seen = given_["query"], given_["key"], given_["seen"]
    assert query.shape[0] == key.shape[0]
    assert query.shape[3] == key.shape[3]
    assert seen.shape == (query.shape[2], key.shape[2])
    assert seen.dtype == torch.bool


@FEW
@given(arguments(scores))
def test_heads_are_a_multiple_of_key_value_heads(given_: dict[str, Tensor]) -> None:
    assert given_["query"].shape[1] % given_["key"].shape[1] == 0


@FEW
@given(arguments(scores, dtype=torch.bfloat16, fixed={"d_k": 13, "kv_len": 17}))
def test_fixed_sizes_and_dtype_are_kept(given_: dict[str, Tensor]) -> None:
    assert given_["query"].shape[3] == 13
    assert given_["key"].shape[2:] == (17, 13)
    assert {given_["query"].dtype, given_["key"].dtype} == {torch.bfloat16}


@FEW
@given(arguments(scores, fixed={"heads": 5}))
def test_fixed_product_is_kept(given_: dict[str, Tensor]) -> None:
    assert given_["query"].shape[1] == 5
    assert given_["key"].shape[1] in (1, 5)


@FEW
@given(axis_sizes(("heads", "kv_heads", "group"), fixed={"heads": 12, "kv_heads": 3}))
def test_factor_follows_from_a_fixed_product(sizes: dict[str, int]) -> None:
    assert sizes == {"heads": 12, "kv_heads": 3, "group": 4}


@FEW
@given(axis_sizes(("heads", "kv_heads"), fixed={"group": 3}))
def test_product_follows_from_a_fixed_factor(sizes: dict[str, int]) -> None:
    assert sizes["heads"] == 3 * sizes["kv_heads"]


def test_factors_that_do_not_multiply_to_the_product_are_refused() -> None:
    @FEW
    @given(axis_sizes(("heads",), fixed={"heads": 5, "kv_heads": 3, "group": 2}))
    def draw(sizes: dict[str, int]) -> None:
        raise AssertionError(sizes)

    with pytest.raises(ValueError, match=r"the factors kv_heads, group must multiply to 5; got"):
        draw()


@FEW
@given(axis_sizes(("batch", "q_len", "d_k"), largest=5))
def test_sizes_are_small(sizes: dict[str, int]) -> None:
    assert set(sizes) == {"batch", "q_len", "d_k"}
    assert all(1 <= size <= 5 for size in sizes.values())


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_lengths_also_lie_at_the_edges_of_blocks(data: st.DataObject) -> None:
    sizes = data.draw(axis_sizes(("q_len", "d_k"), blocks=True))
    assert sizes["q_len"] <= 9 or sizes["q_len"] in BLOCK_SIZES
    assert sizes["d_k"] <= 9


def test_block_edges_are_one_below_at_and_one_above() -> None:
    assert BLOCK_SIZES == (15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129)


@pytest.mark.parametrize("name", STAGES)
def test_every_stage_takes_what_is_drawn_for_it(name: str) -> None:
    """Arguments and result pass the run-time checkers, which look at every shared axis."""
    keywords, fixed = SETTINGS.get(name, ({}, {}))
    function = getattr(stages, name)

    @FEW
    @given(arguments(function, fixed=fixed))
    def call(tensors: dict[str, Tensor]) -> None:
        assert isinstance(checked(function)(**tensors, **keywords), Tensor)

    call()


@FEW
@given(core_cases(mask=(None, "random"), lengths=((3, 5), (7, 2))))
def test_core_cases_draw_structure_and_a_seed(case: Case) -> None:
    assert isinstance(case, Case)
    assert case.heads % case.kv_heads == 0
    assert case.mask in (None, "random")
    inputs = case.core_inputs()
    assert inputs.query.shape == (case.batch, case.heads, case.q_len, case.d_k)
    assert inputs.value.shape == (case.batch, case.kv_heads, case.kv_len, case.d_v)


def test_strategies_are_public() -> None:
    assert attnspec.strategies.arguments is arguments
    assert attnspec.strategies.core_cases is core_cases
