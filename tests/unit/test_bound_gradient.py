"""The allowed error of gradients: names and shapes, what is zero, and that it shows wrong gradients."""

import math

import pytest
import torch

from attnspec._inputs import CoreInputs, LayerInputs
from attnspec.conformance.bound_gradient import core_gradient_bounds, layer_gradient_bounds
from attnspec.oracle.vectorised import core, layer
from attnspec.precision import PRECISIONS
from attnspec.weights import LayerWeights

STORED = PRECISIONS["stored"].at(torch.float32)


def draw(*, kv_len: int = 7, **options: object) -> CoreInputs:
    g = torch.Generator().manual_seed(11)
    shapes = (3, 6, 5, 4), (3, 2, kv_len, 4), (3, 2, kv_len, 2)
    query, key, value = (torch.randn(shape, generator=g) for shape in shapes)
    return CoreInputs(query=query, key=key, value=value, **options)


def bounds(inputs: CoreInputs, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    exact = core(inputs)
    upstream = torch.randn(
        exact.output.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64
    )
    return core_gradient_bounds(inputs, exact, upstream, PRECISIONS["stored"].at(dtype))


def test_core_gradient_bounds_have_the_shapes_of_the_inputs() -> None:
    inputs = draw(bias=torch.zeros(1, 6, 1, 7))
    found = bounds(inputs)
    assert {name: bound.shape for name, bound in found.items()} == {
        name: tensor.shape for name, tensor in inputs.tensors().items()
    }
    assert all(bound.dtype == torch.float64 and bound.min() > 0 for bound in found.values())


def test_gradients_of_a_dead_row_are_allowed_nothing() -> None:
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[2], mask[:, 4] = False, False
    found = bounds(draw(mask=mask))
    assert not found["query"][:, :, 2].any()
    assert not found["key"][:, :, 4].any()
    assert not found["value"][:, :, 4].any()


@pytest.mark.parametrize("content", [math.nan, math.inf, 1e30])
def test_masked_content_does_not_move_the_bounds(content: float) -> None:
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[:, 3] = False
    inputs = draw(mask=mask)
    key, value = inputs.key.clone(), inputs.value.clone()
    key[:, :, 3], value[:, :, 3] = content, content
    changed, plain = bounds(inputs.replace(key=key, value=value)), bounds(inputs)
    for name in plain:
        assert ((changed[name] - plain[name]).abs() <= 1e-9 * plain[name]).all()


def test_empty_keys_give_zero_bounds() -> None:
    found = bounds(draw(kv_len=0))
    assert {name: tuple(b.shape) for name, b in found.items()} == {
        "query": (3, 6, 5, 4), "key": (3, 2, 0, 4), "value": (3, 2, 0, 2),
    }  # fmt: skip
    assert not found["query"].any()


def test_weights_at_one_and_steep_scores_give_finite_bounds() -> None:
    found = bounds(draw(scale=400.0), torch.bfloat16)
    assert all(bound.isfinite().all() for bound in found.values())


@pytest.mark.parametrize("factor", [0.99, 1.01, 0.0])
def test_bounds_show_a_gradient_that_is_off_by_a_percent(factor: float) -> None:
    inputs = draw().map_tensors(lambda _, t: t.requires_grad_())
    exact = core(inputs)
    upstream = torch.ones_like(exact.output)
    found = core_gradient_bounds(inputs, exact, upstream, STORED)
    gradients = torch.autograd.grad(exact.output, [inputs.query, inputs.key, inputs.value], upstream)
    for name, gradient in zip(found, gradients, strict=True):
        assert ((gradient * (factor - 1)).abs() > found[name]).any()


@pytest.mark.parametrize(
    ("sources", "names"),
    [((), {"query"}), (("key",), {"query", "key"}), (("key", "value"), {"query", "key", "value"})],
)
def test_layer_gradient_bounds_name_what_is_given(sources: tuple[str, ...], names: set[str]) -> None:
    g = torch.Generator().manual_seed(5)
    weights = LayerWeights.random(12, 6, kv_heads=2, generator=g)
    tensors = {name: torch.randn(2, 7, 12, generator=g) for name in sources}
    inputs = LayerInputs(query=torch.randn(2, 5, 12, generator=g), weights=weights, **tensors).to(
        torch.float32
    )
    exact = layer(inputs)
    found = layer_gradient_bounds(inputs, exact, torch.ones_like(exact.output), STORED)
    given = weights.tensors() | {name: getattr(inputs, name) for name in names}
    assert {name: b.shape for name, b in found.items()} == {name: t.shape for name, t in given.items()}
