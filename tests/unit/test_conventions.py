"""Converters between conventions: exact values, and refusal of what they cannot mean."""

import pytest
import torch

from attnspec._errors import DtypeError, ShapeError
from attnspec.conventions import (
    additive_from_attend,
    attend_from_additive,
    attend_from_blocked,
    blocked_from_attend,
    window_from_count,
)

INF = float("inf")
ATTEND = torch.tensor([[True, False, True], [False, False, True]])
BLOCKED = torch.tensor([[False, True, False], [True, True, False]])
ADDITIVE = torch.tensor([[0.0, -INF, 0.0], [-INF, -INF, 0.0]])


def test_blocked_is_turned_round() -> None:
    assert torch.equal(attend_from_blocked(BLOCKED), ATTEND)
    assert torch.equal(blocked_from_attend(ATTEND), BLOCKED)


def test_additive_zero_may_attend() -> None:
    assert torch.equal(attend_from_additive(ADDITIVE), ATTEND)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_additive_is_zero_and_minus_infinity(dtype: torch.dtype) -> None:
    made = additive_from_attend(ATTEND, dtype)
    assert made.dtype == dtype
    assert torch.equal(made, ADDITIVE.to(dtype))
    assert torch.equal(attend_from_additive(made), ATTEND)


def test_blocked_of_numbers_is_refused() -> None:
    with pytest.raises(DtypeError) as caught:
        attend_from_blocked(BLOCKED.int())
    assert (
        str(caught.value)
        == "attend_from_blocked: mask must be bool; got torch.int32, compare it first (mask != 0)"
    )


def test_additive_of_booleans_is_refused() -> None:
    with pytest.raises(DtypeError) as caught:
        attend_from_additive(ATTEND)
    assert str(caught.value) == "attend_from_additive: mask must be floating; got torch.bool"


@pytest.mark.parametrize("entry", [-1e9, INF, float("nan"), 0.5])
def test_additive_with_any_other_entry_is_a_bias(entry: float) -> None:
    with pytest.raises(ShapeError) as caught:
        attend_from_additive(torch.tensor([0.0, entry]))
    assert (
        str(caught.value)
        == "attend_from_additive: every entry must be 0 or -inf; hand anything else over as bias"
    )


def test_window_counts_the_own_position() -> None:
    assert window_from_count(1) == (0, 0)
    assert window_from_count(5) == (4, 0)
    assert window_from_count(5, causal=False) == (4, 4)


def test_window_of_no_keys_is_refused() -> None:
    with pytest.raises(ShapeError) as caught:
        window_from_count(0)
    assert str(caught.value) == "window_from_count: keys must be at least 1; got 0"
