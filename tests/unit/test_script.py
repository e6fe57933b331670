"""The script that reproduces a failure: exact tensors, the user's file, and nothing of attnspec."""

import math

import pytest
import torch

from attnspec.conformance.script import literal

INF, NAN = math.inf, math.nan


def back(tensor: torch.Tensor) -> torch.Tensor:
    """Evaluate the expression for a tensor where only torch is known."""
    return eval(literal(tensor), {"torch": torch})


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_floating_tensor_comes_back_exactly(dtype: torch.dtype, generator: torch.Generator) -> None:
    tensor = torch.randn(2, 3, 5, 7, generator=generator, dtype=torch.float64).to(dtype)
    again = back(tensor)
    assert again.dtype == dtype
    assert torch.equal(again, tensor)


def test_extremes_come_back_exactly() -> None:
    info = torch.finfo(torch.float32)
    tensor = torch.tensor(
        [INF, -INF, 0.0, -0.0, info.max, info.min, info.tiny, info.tiny / 8, 1.0 + info.eps]
    )
    again = back(tensor)
    assert torch.equal(again, tensor)
    assert torch.equal(again.signbit(), tensor.signbit())


@pytest.mark.parametrize(
    "values", [[NAN, INF, -INF, 3.0], [INF], [-INF], [NAN], [INF, INF, -INF], [-INF, INF]]
)
def test_numbers_that_are_not_finite_come_back(values: list[float]) -> None:
    tensor = torch.tensor(values, dtype=torch.float64)
    assert torch.equal(back(tensor).isnan(), tensor.isnan())
    assert torch.equal(back(tensor).nan_to_num(7.0), tensor.nan_to_num(7.0))


def test_mask_comes_back() -> None:
    mask = torch.tensor([[True, False, True], [False, False, False]])
    assert torch.equal(back(mask), mask)
    assert back(mask).dtype == torch.bool


@pytest.mark.parametrize("shape", [(2, 3, 0, 5), (0,), (2, 0, 7)])
def test_empty_tensor_keeps_its_shape(shape: tuple[int, ...]) -> None:
    assert back(torch.zeros(shape, dtype=torch.float16)).shape == shape


def test_view_comes_back_as_its_numbers() -> None:
    tensor = torch.arange(35.0).reshape(5, 7).t()[::2]
    assert torch.equal(back(tensor), tensor)


def test_leaf_that_requires_a_gradient_is_written() -> None:
    assert torch.equal(back(torch.ones(3, requires_grad=True)), torch.ones(3))
