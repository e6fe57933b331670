"""The allowed error of a layer: it holds right layers, shows wrong ones, and survives empty axes."""

import pytest
import torch
from torch.nn.functional import linear, scaled_dot_product_attention

from attnspec._inputs import LayerInputs
from attnspec.conformance.bound_layer import layer_bound
from attnspec.oracle.vectorised import layer
from attnspec.precision import PRECISIONS
from attnspec.weights import LayerWeights

STORED = PRECISIONS["stored"].at(torch.float32)


def draw(*, length: int = 5, kv_heads: int = 3, bias: bool = True, **options: object) -> LayerInputs:
    g = torch.Generator().manual_seed(5)
    weights = LayerWeights.random(21, 3, kv_heads=kv_heads, bias=bias, generator=g)
    return LayerInputs(query=torch.randn(2, length, 21, generator=g), weights=weights, **options).to(
        torch.float32
    )


def plain(inputs: LayerInputs) -> torch.Tensor:
    w = inputs.weights
    projections = ((w.W_q, w.b_q), (w.W_k, w.b_k), (w.W_v, w.b_v))
    q, k, v = (linear(inputs.query, *both).unflatten(-1, (3, 7)).transpose(1, 2) for both in projections)
    mixed = scaled_dot_product_attention(q, k, v, is_causal=inputs.causal, scale=inputs.scale)
    return linear(mixed.transpose(1, 2).flatten(2), w.W_o, w.b_o)


def share_used(inputs: LayerInputs, asked: LayerInputs, dtype: torch.dtype = torch.float32) -> float:
    exact = layer(asked.to(dtype))
    error = (plain(inputs.to(dtype)).double() - exact.output).abs()
    return float((error / layer_bound(asked.to(dtype), exact, PRECISIONS["stored"].at(dtype))).max())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [True, False])
def test_layer_bound_holds_a_right_layer(dtype: torch.dtype, bias: bool) -> None:
    inputs = draw(bias=bias, causal=True)
    assert share_used(inputs, inputs, dtype) <= 1


@pytest.mark.parametrize("change", [{"causal": False}, {"scale": 0.3}])
def test_layer_bound_shows_a_wrong_layer(change: dict[str, object]) -> None:
    asked = draw(causal=True)
    assert share_used(asked.replace(**change), asked) > 100


def test_layer_bound_has_the_shape_of_the_output() -> None:
    inputs = draw(kv_heads=1)
    bound = layer_bound(inputs, layer(inputs), STORED)
    assert (bound.shape, bound.dtype) == ((2, 5, 21), torch.float64)
    assert bound.min() > 0


def test_dead_row_is_allowed_the_rounding_of_the_bias_alone() -> None:
    mask = torch.ones(5, 5, dtype=torch.bool)
    mask[3] = False
    inputs = draw(mask=mask)
    bound = layer_bound(inputs, layer(inputs), STORED)
    assert inputs.weights.b_o is not None
    assert (bound[:, 3] <= 40 * 2**-24 * inputs.weights.b_o.abs()).all()


def test_layer_bound_of_nothing() -> None:
    empty = draw(length=0)
    assert layer_bound(empty, layer(empty), STORED).shape == (2, 0, 21)
    nothing = draw().replace(key=torch.zeros(2, 0, 21))
    assert layer_bound(nothing, layer(nothing), STORED).isfinite().all()
