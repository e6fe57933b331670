"""From multi-head to grouped heads: the mean by hand, and savings counted."""

from fractions import Fraction

import pytest
import torch

from attnspec import oracle
from attnspec._errors import ShapeError
from attnspec._inputs import LayerInputs
from attnspec.checkpoints import group_heads, grouped_savings
from attnspec.weights import LayerWeights


def test_group_heads_takes_the_mean_of_neighbours() -> None:
    weights = LayerWeights(
        W_q=torch.ones(4, 1), W_k=torch.tensor([[1.0], [3.0], [10.0], [20.0]]), W_v=torch.ones(4, 1),
        W_o=torch.ones(1, 4), b_v=torch.tensor([2.0, 4.0, 6.0, 8.0]), heads=4, kv_heads=4,
    )  # fmt: skip
    grouped = group_heads(weights, 2)
    assert grouped.W_k.flatten().tolist() == [2.0, 15.0]
    assert grouped.b_v is not None
    assert grouped.b_v.tolist() == [3.0, 7.0]
    assert torch.equal(grouped.W_q, weights.W_q)
    assert (grouped.heads, grouped.kv_heads) == (4, 2)


def test_group_heads_keeps_the_function_where_heads_were_alike() -> None:
    grouped = LayerWeights.random(12, 6, kv_heads=2, generator=torch.Generator().manual_seed(1))

    def repeated(name: str, tensor: torch.Tensor) -> torch.Tensor:
        return (
            tensor.unflatten(0, (2, 2)).repeat_interleave(3, dim=0).flatten(0, 1)
            if name[2:] in "kv"
            else tensor
        )

    tensors = {name: repeated(name, t) for name, t in grouped.tensors().items()}
    whole = LayerWeights(**tensors, heads=6, kv_heads=6)
    back = group_heads(whole, 2)
    inputs = torch.randn(2, 5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    error = (
        oracle.layer(LayerInputs(query=inputs, weights=back)).output
        - oracle.layer(LayerInputs(query=inputs, weights=whole)).output
    )
    assert float(error.abs().max()) < torch.finfo(torch.float64).eps * 2**12


def test_group_heads_in_half_precision_rounds_once() -> None:
    weights = LayerWeights.random(12, 6, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(1))
    exact = group_heads(weights.to(torch.float64), 1).W_k
    assert torch.equal(group_heads(weights, 1).W_k, exact.to(torch.bfloat16))


def test_group_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ShapeError, match="kv_heads must divide 6; got 4"):
        group_heads(LayerWeights.random(12, 6), 4)


def test_savings_count_what_weights_hold() -> None:
    before, after = LayerWeights.random(12, 6, d_v=3), LayerWeights.random(12, 6, kv_heads=2, d_v=3)
    found = grouped_savings(d_model=12, heads=6, kv_heads=2, d_v=3, bias=True, layers=5)
    assert found.parameters_before == 5 * sum(t.numel() for t in before.tensors().values())
    assert found.parameters_after == 5 * sum(t.numel() for t in after.tensors().values())


def test_savings_of_the_cache_are_one_minus_the_ratio_of_heads() -> None:
    found = grouped_savings(d_model=4096, heads=32, kv_heads=8, layers=32, batch=1, length=4096)
    assert found.cache_bytes_before == 2 * 32 * 4096 * 4096 * 2
    assert found.cache_saved == Fraction(3, 4)
    # 2 of 4 matrices shrink to a quarter.
    assert found.parameters_saved == Fraction(3, 8)
