"""Canonical weights and fused layouts: tiny matrices by hand, round trips, refusals."""

import pytest
import torch
from torch import Tensor

from attnspec._errors import ShapeError, UnknownNameError
from attnspec.weights import LayerWeights, split_fused

# Two heads of width 1 in a model of width 2: row h of each matrix belongs to head h.
Q, K, V = (torch.tensor([[float(n), 0.5], [float(n + 1), 0.25]]) for n in (10, 20, 30))
OUT = torch.eye(2)
STACKED = torch.tensor([10.0, 11.0, 20.0, 21.0, 30.0, 31.0])
INTERLEAVED = torch.tensor([10.0, 20.0, 30.0, 11.0, 21.0, 31.0])
WEIGHTS = LayerWeights(
    W_q=Q, W_k=K, W_v=V, W_o=OUT, b_q=Q[:, 0], b_k=K[:, 0], b_v=V[:, 0], heads=2, kv_heads=2
)


def equal(left: Tensor | None, right: Tensor | None) -> bool:
    return left is None and right is None if left is None or right is None else torch.equal(left, right)


@pytest.mark.parametrize(("layout", "rows"), [("stacked", STACKED), ("interleaved", INTERLEAVED)])
def test_fused_rows_by_hand(layout: str, rows: Tensor) -> None:
    matrix, bias = WEIGHTS.fused(layout)
    assert torch.equal(matrix[:, 0], rows)
    assert torch.equal(bias, rows)


@pytest.mark.parametrize("layout", ["stacked", "interleaved"])
def test_split_takes_apart_by_hand(layout: str) -> None:
    rows = STACKED if layout == "stacked" else INTERLEAVED
    assert [part.tolist() for part in split_fused(rows, heads=2, layout=layout)] == [
        [10, 11],
        [20, 21],
        [30, 31],
    ]


@pytest.mark.parametrize("layout", ["stacked", "interleaved"])
@pytest.mark.parametrize("bias", [True, False])
def test_fused_comes_back_the_same(layout: str, bias: bool, generator: torch.Generator) -> None:
    weights = LayerWeights.random(35, 5, bias=bias, generator=generator)
    back = LayerWeights.from_fused(*weights.fused(layout), weights.W_o, weights.b_o, heads=5, layout=layout)
    assert back.heads == back.kv_heads == 5
    for name in ("W_q", "W_k", "W_v", "W_o", "b_q", "b_k", "b_v", "b_o"):
        assert equal(getattr(weights, name), getattr(back, name))


def test_layouts_have_one_shape_and_differ(generator: torch.Generator) -> None:
    """That is why a checkpoint of the other layout loads without a word."""
    weights = LayerWeights.random(35, 5, generator=generator)
    stacked, interleaved = weights.fused("stacked")[0], weights.fused("interleaved")[0]
    assert stacked.shape == interleaved.shape == (105, 35)
    assert not torch.equal(stacked, interleaved)


def test_layouts_are_the_same_with_one_head(generator: torch.Generator) -> None:
    weights = LayerWeights.random(7, 1, generator=generator)
    assert torch.equal(weights.fused("stacked")[0], weights.fused("interleaved")[0])


@pytest.mark.parametrize("missing", ["b_q", "b_k", "b_v"])
def test_bias_that_is_left_out_fuses_as_zeros(missing: str) -> None:
    """Whisper's keys have no bias; its queries and values do."""
    place = ("b_q", "b_k", "b_v").index(missing)
    _, bias = WEIGHTS.replace(**{missing: None}).fused("stacked")
    expected = STACKED.clone()
    expected[2 * place : 2 * place + 2] = 0.0
    assert torch.equal(bias, expected)


def test_grouped_weights_do_not_fuse(generator: torch.Generator) -> None:
    with pytest.raises(ShapeError) as caught:
        LayerWeights.random(30, 6, kv_heads=2, generator=generator).fused("stacked")
    assert str(caught.value) == (
        "LayerWeights.fused: needs kv_heads = heads and d_v = d_k; got kv_heads=2, heads=6, d_k=5, d_v=5"
    )


def test_fused_rows_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ShapeError) as caught:
        LayerWeights.from_fused(torch.zeros(35, 7), None, torch.eye(7), None, heads=2, layout="stacked")
    assert str(caught.value) == "LayerWeights.from_fused: rows must be a multiple of 3*heads; got 35, heads=2"


def test_sizes_are_read_from_the_matrices(generator: torch.Generator) -> None:
    weights = LayerWeights.random(13, 6, kv_heads=2, d_k=5, d_v=7, generator=generator)
    assert (weights.d_model, weights.d_k, weights.d_v, weights.has_bias) == (13, 5, 7, True)
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.tensors().items()}
    assert shapes == {
        "W_q": (30, 13), "W_k": (10, 13), "W_v": (14, 13), "W_o": (13, 42),
        "b_q": (30,), "b_k": (10,), "b_v": (14,), "b_o": (13,),
    }  # fmt: skip


@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 2), (2, 0), (0, 1), (2, 4)])
def test_heads_that_no_layer_can_have_are_refused(heads: int, kv_heads: int) -> None:
    with pytest.raises(ShapeError) as caught:
        LayerWeights(W_q=Q, W_k=K, W_v=V, W_o=OUT, heads=heads, kv_heads=kv_heads)
    assert (
        str(caught.value)
        == f"LayerWeights: kv_heads must divide heads; got kv_heads={kv_heads}, heads={heads}"
    )


def test_rows_that_heads_do_not_divide_are_refused() -> None:
    with pytest.raises(ShapeError) as caught:
        LayerWeights(W_q=torch.zeros(7, 5), W_k=K, W_v=V, W_o=OUT, heads=2, kv_heads=2)
    assert str(caught.value) == (
        "LayerWeights: the rows of W_q must be a multiple of its heads; got 7 rows for 2 heads"
    )


def test_mapping_of_canonical_names_is_read() -> None:
    back = LayerWeights.from_mapping({**WEIGHTS.tensors(), "other": torch.zeros(3)}, heads=2)
    assert {name: t.tolist() for name, t in back.tensors().items()} == {
        n: t.tolist() for n, t in WEIGHTS.tensors().items()
    }


def test_mapping_without_a_matrix_is_refused() -> None:
    with pytest.raises(UnknownNameError) as caught:
        LayerWeights.from_mapping({"W_q": Q, "W_v": V, "W_o": OUT}, heads=2)
    assert str(caught.value).split("\n")[0] == "no tensor is called 'W_k'; did you mean 'W_v'?"


def test_copy_in_another_dtype_keeps_what_is_absent() -> None:
    copy = WEIGHTS.to(torch.float64)
    assert {t.dtype for t in copy.tensors().values()} == {torch.float64}
    assert copy.b_o is None
    assert WEIGHTS.W_q.dtype == torch.float32


def test_random_weights_are_equal_for_equal_generators() -> None:
    one, other = (LayerWeights.random(10, 2, generator=torch.Generator().manual_seed(7)) for _ in range(2))
    assert all(torch.equal(one.tensors()[name], other.tensors()[name]) for name in one.tensors())
