"""The cached layer: any split of a sequence into steps gives what one pass gives."""

from typing import Any

import pytest
import torch
from torch import Tensor

from attnspec._errors import DtypeError, ShapeError
from attnspec_impls.batched import BatchedAttention
from attnspec_impls.cached import Cache, CachedAttention
from attnspec_impls.grouped_query import GroupedQueryAttention

BATCH, LENGTH, D_MODEL, HEADS = 3, 11, 12, 6
# Fewer than 2**8 roundings of numbers below 2**4 lie between two right results.
ROUNDING = torch.finfo(torch.float64).eps * 2**12
SPLITS = [(11,), (1,) * 11, (7, 1, 3), (2, 0, 9), (0, 5, 6)]
WINDOWS = [None, (0, 0), (2, 0), (4, -1), (-1, 0), (30, 0)]


def draw(seed: int, *shape: int) -> Tensor:
    """Draw normal float64 numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make(kv_heads: int = HEADS) -> tuple[CachedAttention, GroupedQueryAttention]:
    """Return a cached layer, and one of the same weights that takes everything in one pass."""
    layer = CachedAttention(D_MODEL, HEADS, kv_heads=kv_heads).double()
    plain = GroupedQueryAttention(D_MODEL, HEADS, kv_heads=kv_heads).double()
    return layer, plain.load_canonical(layer.canonical_weights())


def decode(
    layer: CachedAttention, inputs: Tensor, split: tuple[int, ...], **options: Any
) -> tuple[Tensor, Cache]:
    """Run a sequence in steps of the given sizes."""
    outputs, cache = [], None
    for step in inputs.split(split, dim=1):
        output, cache = layer(step, cache=cache, **options)
        outputs.append(output)
    assert cache is not None
    return torch.cat(outputs, dim=1), cache


def distance(left: Tensor, right: Tensor) -> float:
    """Return the largest difference of two tensors of one shape."""
    assert left.shape == right.shape
    return float((left - right).detach().abs().max()) if left.numel() else 0.0


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_any_split_equals_one_pass(split: tuple[int, ...], window: tuple[int, int] | None) -> None:
    layer, plain = make(kv_heads=2)
    inputs = draw(1, BATCH, LENGTH, D_MODEL)
    output, cache = decode(layer, inputs, split, window=window)
    assert distance(output, plain(inputs, causal=True, window=window)) <= ROUNDING
    assert cache.key.shape[2] == (min(window[0], LENGTH) if window and window[0] >= 0 else LENGTH)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_sequences_of_different_lengths_equal_each_alone(window: tuple[int, int] | None) -> None:
    layer, plain = make()
    counts = [(3, 1, 4), (5, 0, 2), (0, 2, 1)]  # for each sequence, the real positions of each step
    sequences = [draw(2 + n, 1, sum(count), D_MODEL) for n, count in enumerate(counts)]
    parts = [sequence.split(count, dim=1) for sequence, count in zip(sequences, counts, strict=True)]
    got: list[list[Tensor]] = [[] for _ in counts]
    cache = None
    for step in range(3):
        width = max(count[step] for count in counts)
        inputs = torch.full((BATCH, width, D_MODEL), 7.0, dtype=torch.float64)
        for n, part in enumerate(parts):
            inputs[n, : counts[n][step]] = part[step]
        lengths = torch.tensor([count[step] for count in counts])
        output, cache = layer(inputs, cache=cache, window=window, lengths=lengths)
        for n, count in enumerate(counts):
            got[n].append(output[n : n + 1, : count[step]])
            padding = output[n, count[step] :]
            assert distance(padding, layer.W_o.bias.expand_as(padding)) <= ROUNDING
    for sequence, outputs in zip(sequences, got, strict=True):
        assert distance(torch.cat(outputs, dim=1), plain(sequence, causal=True, window=window)) <= ROUNDING


def test_cache_handed_in_is_not_changed_and_can_be_continued_twice() -> None:
    layer, plain = make()
    inputs = draw(5, BATCH, LENGTH, D_MODEL)
    _, cache = layer(inputs[:, :7])
    kept = cache.key.clone(), cache.value.clone()
    first, _ = layer(inputs[:, 7:], cache=cache)
    second, _ = layer(inputs[:, 7:], cache=cache)
    assert torch.equal(first, second)
    assert torch.equal(cache.key, kept[0])
    assert torch.equal(cache.value, kept[1])
    assert distance(first, plain(inputs, causal=True)[:, 7:]) <= ROUNDING


def test_gradients_flow_through_the_cache() -> None:
    layer, plain = make()
    inputs = draw(6, BATCH, LENGTH, D_MODEL).requires_grad_()
    upstream = draw(7, BATCH, LENGTH, D_MODEL)
    stepwise = torch.autograd.grad(decode(layer, inputs, (7, 1, 3))[0], inputs, upstream)[0]
    assert (
        distance(stepwise, torch.autograd.grad(plain(inputs, causal=True), inputs, upstream)[0]) <= ROUNDING
    )


def test_without_causal_a_query_sees_its_own_step() -> None:
    layer, _ = make()
    plain = BatchedAttention(D_MODEL, HEADS).double().load_canonical(layer.canonical_weights())
    inputs = draw(8, BATCH, LENGTH, D_MODEL)
    output, _ = decode(layer, inputs, (7, 4), causal=False)
    assert distance(output[:, 7:], plain(inputs[:, 7:], inputs)) <= ROUNDING


def test_cache_refuses_to_look_back_further_than_it_goes() -> None:
    layer, _ = make()
    inputs = draw(9, BATCH, 5, D_MODEL)
    _, cache = layer(inputs, window=(2, 0))
    for window in (None, (3, 0), (-1, 0)):
        with pytest.raises(ShapeError, match="window must not look back further than the cache goes"):
            layer(inputs, cache=cache, window=window)
    layer(inputs, cache=cache, window=(1, 0))


def test_cache_of_another_layer_is_refused() -> None:
    inputs = draw(10, BATCH, 5, D_MODEL)
    _, cache = make(kv_heads=2)[0](inputs)
    with pytest.raises(ShapeError, match="key must share axis kv_heads with the layer; got 2, expected 3"):
        make(kv_heads=3)[0](inputs, cache=cache)
    with pytest.raises(ShapeError, match="key must share axis batch with query; got 3, expected 2"):
        make(kv_heads=2)[0](inputs[:2], cache=cache)
    with pytest.raises(DtypeError, match="key must have the dtype of query"):
        make(kv_heads=2)[0].float()(inputs.float(), cache=cache)


@torch.no_grad()
def test_cached_compiles_as_one_graph() -> None:
    layer, _ = make()
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    inputs = draw(11, BATCH, 6, D_MODEL)
    for lengths in (None, torch.tensor([1, 0, 6])):
        got, cache = compiled(inputs, lengths=lengths)
        expected, other = layer(inputs, lengths=lengths)
        assert distance(got, expected) <= ROUNDING
        assert distance(compiled(inputs, cache=cache)[0], layer(inputs, cache=other)[0]) <= ROUNDING
