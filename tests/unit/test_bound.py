"""The allowed error of a core: exact values by hand, then what must not move it."""

import math

import pytest
import torch

from attnspec._inputs import CoreInputs
from attnspec.conformance.bound import core_bound, weights_bound
from attnspec.conformance.inexact import gamma
from attnspec.oracle.vectorised import core
from attnspec.precision import PRECISIONS, Roundoffs

STORED, FUSED = (PRECISIONS[name].at(torch.float32) for name in ("stored", "fused"))
HALF = PRECISIONS["stored"].at(torch.bfloat16)


def draw(
    *, heads: int = 6, kv_heads: int = 2, q_len: int = 5, kv_len: int = 7, **options: object
) -> CoreInputs:
    g = torch.Generator().manual_seed(11)
    query, key, value = (
        torch.randn(3, h, n, d, generator=g)
        for h, n, d in ((heads, q_len, 4), (kv_heads, kv_len, 4), (kv_heads, kv_len, 2))
    )
    return CoreInputs(query=query, key=key, value=value, **options)


def allowed(inputs: CoreInputs, roundoffs: Roundoffs = STORED, *, sharp: bool | None = None) -> torch.Tensor:
    return core_bound(inputs, core(inputs), roundoffs, sharp=sharp)


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Say whether two bounds agree but for the order of float64 sums."""
    return bool(((left - right).abs() <= 1e-9 * right).all())


def test_core_bound_of_a_single_key_is_rounding_alone() -> None:
    one = torch.ones(1, 1, 1, 1)
    u, tiny = 2.0**-24, torch.finfo(torch.float32).tiny
    per_row = 4 * u * (1 + math.log(2) + 1) + 2 * gamma(1, u) + u
    highest = 1.0  # a weight cannot exceed 1, so drift plus rounding stay below it
    before = per_row * highest + 2 * tiny
    expected = before + u / (1 - u) * (1 + before)
    got = allowed(CoreInputs(query=one, key=one, value=one), STORED)
    assert got.item() == pytest.approx(expected, rel=1e-9)


def test_core_bound_has_the_shape_of_the_output_in_float64() -> None:
    bound = allowed(draw())
    assert (bound.shape, bound.dtype) == ((3, 6, 5, 2), torch.float64)


@pytest.mark.parametrize("precision", list(PRECISIONS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_core_bound_is_positive_and_small(precision: str, dtype: torch.dtype) -> None:
    bound = allowed(draw().to(dtype), PRECISIONS[precision].at(dtype))
    assert bound.min() > 0
    assert bound.max() < 1000 * torch.finfo(dtype).eps


def test_core_bound_shrinks_with_the_precision_class() -> None:
    stored, mixed, fused = (
        allowed(draw(), PRECISIONS[n].at(torch.bfloat16)) for n in ("stored", "mixed", "fused")
    )
    assert (fused < mixed).all()
    assert (mixed < stored).all()


def test_cheap_form_is_never_below_the_sharp_one() -> None:
    for inputs in (draw(), draw(scale=9.0), draw(causal=True)):
        assert (allowed(inputs, sharp=False) >= allowed(inputs, sharp=True) * (1 - 1e-9)).all()


def test_cheap_form_survives_a_large_common_offset() -> None:
    inputs = draw()
    inputs = inputs.replace(value=inputs.value + 1e6)
    assert (allowed(inputs, sharp=False) >= allowed(inputs, sharp=True)).all()


def test_dead_row_is_allowed_nothing() -> None:
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[2] = False
    inputs = draw(mask=mask)
    assert not allowed(inputs)[:, :, 2].any()
    assert not weights_bound(inputs, core(inputs), STORED)[:, :, 2].any()
    assert (allowed(inputs)[:, :, 1] > 0).all()


@pytest.mark.parametrize("content", [math.nan, math.inf, 1e30])
def test_masked_content_does_not_move_the_bound(content: float) -> None:
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[:, 3], mask[2, 4:] = False, False
    inputs = draw(mask=mask)
    key, value = inputs.key.clone(), inputs.value.clone()
    key[:, :, 3], value[:, :, 3] = content, content
    changed = inputs.replace(key=key, value=value)
    assert same(allowed(changed), allowed(inputs))
    assert same(weights_bound(changed, core(changed), STORED), weights_bound(inputs, core(inputs), STORED))


def test_infinite_bias_is_a_mask() -> None:
    mask = torch.rand(1, 1, 5, 7, generator=torch.Generator().manual_seed(3)) < 0.6
    mask[..., 1, :] = False
    bias = torch.zeros(1, 1, 5, 7).masked_fill(~mask, -math.inf)
    biased = draw(bias=bias)
    masked = draw(bias=torch.zeros(1, 1, 5, 7), mask=mask)
    assert torch.equal(allowed(biased), allowed(masked))


def test_grouped_heads_are_repeated_ones() -> None:
    grouped = draw()
    repeated = grouped.replace(
        key=grouped.key.repeat_interleave(3, 1), value=grouped.value.repeat_interleave(3, 1)
    )
    assert same(allowed(grouped), allowed(repeated))


@pytest.mark.parametrize(("q_len", "kv_len"), [(0, 7), (5, 0), (0, 0)])
def test_empty_axes_give_an_empty_or_zero_bound(q_len: int, kv_len: int) -> None:
    bound = allowed(draw(q_len=q_len, kv_len=kv_len))
    assert bound.shape == (3, 6, q_len, 2)
    assert not bound.any()


def test_float64_is_doubled_because_the_oracle_rounds_too() -> None:
    inputs, roundoffs = draw().to(torch.float64), PRECISIONS["stored"].at(torch.float64)
    wider = Roundoffs(2**-52, 2**-52, 2**-52, 2**-52, 2**-52, 2**-1022, 2**-1022)
    # One step wider is not doubled; with every rounding twice as large it comes to the same.
    assert same(allowed(inputs, roundoffs), allowed(inputs, wider))


def test_softcap_keeps_steep_scores_from_widening_the_bound() -> None:
    steep = draw(scale=30.0)
    assert allowed(steep.replace(softcap=2.0), HALF).max() < allowed(steep, HALF).max()


def test_one_visible_key_leaves_its_weight_no_drift() -> None:
    inputs = draw(mask=torch.eye(5, 7, dtype=torch.bool))
    bound = weights_bound(inputs, core(inputs), STORED).diagonal(dim1=-2, dim2=-1)
    assert bound.max() < 60 * 2**-24
