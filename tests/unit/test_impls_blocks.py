"""The implementations that work in blocks: any block size, and no tensor with both lengths as axes."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from attnspec._errors import ShapeError
from attnspec_impls import local_window
from attnspec_impls._band import Band
from attnspec_impls.batched import BatchedAttention
from attnspec_impls.blockwise_core import blockwise_attention
from attnspec_impls.local_window import LocalWindowAttention
from attnspec_impls.math_core import math_attention
from attnspec_impls.mixed_precision import MixedPrecisionAttention

# Fewer than 2**8 roundings of numbers below 2**4 lie between two right results.
ROUNDING = torch.finfo(torch.float64).eps * 2**12


def draw(seed: int, *shape: int) -> Tensor:
    """Draw normal float64 numbers that require a gradient."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


def distance(left: Tensor, right: Tensor) -> float:
    """Return the largest difference of two tensors of one shape."""
    assert left.shape == right.shape
    return float((left - right).detach().abs().max())


class Largest(TorchDispatchMode):
    """Records the most elements that any tensor has while it is active."""

    elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function, and look at what it returns."""
        result = function(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.elements = max(self.elements, result.numel())
        return result


OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "causal": {"causal": True},
    "window": {"window": (2, 1)},
    "mask": {"mask": draw(1, 2, 6, 7, 11).detach() < 0},
    "all": {
        "mask": draw(1, 2, 1, 1, 11).detach() < 0.5,
        "bias": draw(2, 1, 6, 7, 1),
        "causal": True,
        "softcap": 0.7,
        "scale": -1.0,
    },
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("block_size", [1, 3, 11, 64])
def test_blockwise_block_size_changes_only_rounding(block_size: int, options: dict[str, Any]) -> None:
    tensors = draw(3, 2, 6, 7, 5), draw(4, 2, 3, 11, 5), draw(5, 2, 3, 11, 2)
    leaves = [*tensors, *(t for t in options.values() if isinstance(t, Tensor) and t.requires_grad)]
    got = blockwise_attention(*tensors, block_size=block_size, **options)
    expected = math_attention(*tensors, **options)
    assert distance(got, expected) <= ROUNDING
    upstream = draw(6, *got.shape)
    pairs = zip(*(torch.autograd.grad(o, leaves, upstream) for o in (got, expected)), strict=True)
    assert all(distance(left, right) <= ROUNDING for left, right in pairs)


@pytest.mark.parametrize("options", [{}, {"causal": True}], ids=["nothing", "causal"])
def test_blockwise_never_holds_all_scores(options: dict[str, Any]) -> None:
    query, key, value = draw(7, 1, 1, 131, 3), draw(8, 1, 1, 137, 3), draw(9, 1, 1, 137, 3)
    with Largest() as seen:
        blockwise_attention(query, key, value, block_size=5, **options).sum().backward()
    assert 0 < seen.elements <= 131 * 5
    with Largest() as seen:
        math_attention(query, key, value, **options)
    assert seen.elements == 131 * 137


def test_blockwise_skips_blocks_that_nobody_sees() -> None:
    assert [rows.start for rows, _ in Band(12, 12, -1, 0).key_blocks(4)] == [0, 4, 8]
    assert [(rows.start, rows.stop) for rows, _ in Band(12, 12, 3, 0).key_blocks(4)] == [
        (0, 7),
        (4, 11),
        (8, 12),
    ]
    assert list(Band(2, 12, 3, 0).key_blocks(4)) == [(slice(0, 1), slice(4, 8)), (slice(0, 2), slice(8, 12))]


def local_mask(length: int, last: int) -> Tensor:
    """Return a mask in which a query sees the last positions, its own included."""
    distance_back = torch.arange(length)[:, None] - torch.arange(length)
    return (distance_back >= 0) & (distance_back < last)


@pytest.mark.parametrize("local_heads", [None, 0, 2, 4])
def test_local_window_pattern_equals_a_mask(local_heads: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_window, "BLOCK", 4)
    layer = LocalWindowAttention(12, 6, last=3, local_heads=local_heads).double()
    plain = BatchedAttention(12, 6).double().load_canonical(layer.canonical_weights())
    mask = torch.ones(1, 6, 13, 13, dtype=torch.bool)
    mask[:, : layer.local_heads] = local_mask(13, 3)
    inputs = draw(10, 2, 13, 12)
    assert distance(layer(inputs), plain(inputs, mask=mask)) <= ROUNDING
    causal = mask & torch.ones(13, 13, dtype=torch.bool).tril()
    assert distance(layer(inputs, causal=True), plain(inputs, mask=causal)) <= ROUNDING


def test_local_window_pattern_is_a_window_of_one_less() -> None:
    layer = LocalWindowAttention(12, 6, last=3).double()
    plain = LocalWindowAttention(12, 6).double().load_canonical(layer.canonical_weights())
    inputs = draw(11, 2, 13, 12)
    assert torch.equal(layer(inputs), plain(inputs, causal=True, window=(2, -1)))


def test_local_window_cost_grows_with_the_band_alone() -> None:
    layer, inputs = LocalWindowAttention(4, 1), torch.zeros(1, 1031, 4)
    with Largest() as seen:
        layer(inputs, causal=True, window=(7, 0)).sum().backward()
    assert seen.elements < 1031 * 1031 // 8


@pytest.mark.parametrize("local_heads", [-2, 1, 8])
def test_local_window_refuses_a_split_group(local_heads: int) -> None:
    with pytest.raises(ShapeError, match="local_heads must be a multiple of 2 between 0 and 6"):
        LocalWindowAttention(12, 6, kv_heads=3, last=3, local_heads=local_heads)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_mixed_precision_softmax_is_of_wide_scores(dtype: torch.dtype) -> None:
    layer, inputs = MixedPrecisionAttention(6, 3).to(dtype), draw(13, 2, 5, 6).detach().to(dtype)
    query, key = (
        linear(inputs).unflatten(-1, (3, 2)).transpose(1, 2).float() for linear in (layer.W_q, layer.W_k)
    )
    _, weights = layer(inputs, scale=1.0, return_weights=True)
    assert torch.equal(weights, (query @ key.transpose(-2, -1)).softmax(-1).to(dtype))


def test_mixed_precision_under_autocast_equals_half_weights() -> None:
    inputs = draw(12, 2, 5, 6).detach().float()
    layer = MixedPrecisionAttention(6, 3)
    half = MixedPrecisionAttention(6, 3).load_canonical(layer.canonical_weights()).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = layer(inputs, causal=True)
    assert output.dtype == torch.bfloat16
    assert torch.equal(output, half(inputs.bfloat16(), causal=True))
