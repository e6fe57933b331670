"""Cases: tensors from a structure and a seed; masks that leave every query something to see."""

from itertools import product

import pytest
import torch

from attnspec import oracle
from attnspec.conformance.cases import Case
from attnspec.conformance.tensors import ALIVE, LAYOUTS, MASKS, VALUES

CASE = Case(batch=2, heads=6, kv_heads=3, q_len=5, kv_len=7, d_k=11, d_v=13, dtype="float64", seed=17)


def test_core_inputs_have_the_sizes_of_the_case() -> None:
    inputs = CASE.core_inputs()
    assert inputs.query.shape == (2, 6, 5, 11)
    assert inputs.key.shape == (2, 3, 7, 11)
    assert inputs.value.shape == (2, 3, 7, 13)
    assert inputs.sizes == {
        "batch": 2, "heads": 6, "kv_heads": 3, "group": 2, "q_len": 5, "kv_len": 7, "d_k": 11, "d_v": 13,
    }  # fmt: skip


def test_layer_inputs_have_the_width_of_all_heads() -> None:
    assert CASE.d_model == 66
    inputs = CASE.replace(sources="separate").layer_inputs()
    assert inputs.query.shape == (2, 5, 66)
    assert inputs.key_input.shape == inputs.value_input.shape == (2, 7, 66)
    assert not torch.equal(inputs.key_input, inputs.value_input)
    assert inputs.weights.W_k.shape == (33, 66)
    assert inputs.weights.W_o.shape == (66, 78)


@pytest.mark.parametrize(("sources", "key", "value"), [("self", False, False), ("memory", True, False)])
def test_layer_sources_say_what_is_given(sources: str, key: bool, value: bool) -> None:
    inputs = CASE.replace(sources=sources).layer_inputs()
    assert (inputs.key is not None, inputs.value is not None) == (key, value)
    assert inputs.value_input is inputs.key_input


def test_equal_cases_build_equal_tensors() -> None:
    case = CASE.replace(mask="random", bias="hqk")
    one, other = case.core_inputs(), case.core_inputs()
    assert all(torch.equal(one.tensors()[name], other.tensors()[name]) for name in one.tensors())
    other = case.replace(seed=18).core_inputs()
    assert not torch.equal(one.query, other.query)


def test_tensors_of_one_case_differ() -> None:
    inputs = CASE.replace(kv_heads=6, q_len=7, d_v=11).core_inputs()
    assert not torch.equal(inputs.query, inputs.key)
    assert not torch.equal(inputs.key, inputs.value)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_dtype_is_that_of_every_floating_tensor(dtype: str) -> None:
    tensors = CASE.replace(dtype=dtype, mask="random", bias="k").core_inputs().tensors()
    assert {t.dtype for n, t in tensors.items() if n != "mask"} == {getattr(torch, dtype)}
    assert tensors["mask"].dtype == torch.bool


@pytest.mark.parametrize("axes", ["bhqk", "bqk", "bk", "hqk", "qk", "k", "bhk", "bq", "hk", "h"])
def test_mask_has_size_one_where_it_does_not_vary(axes: str) -> None:
    mask = CASE.replace(mask="random", mask_axes=axes).core_inputs().mask
    assert mask.shape == tuple(
        size if axis in axes else 1 for axis, size in zip("bhqk", (2, 6, 5, 7), strict=True)
    )


def test_mask_of_rank_two_is_queries_by_keys() -> None:
    assert CASE.replace(mask="random", mask_axes="qk", mask_rank=2).core_inputs().mask.shape == (5, 7)


@pytest.mark.parametrize("mask", ALIVE)
@pytest.mark.parametrize("axes", ["bhqk", "qk", "bk", "k"])
def test_mask_leaves_every_query_a_key(mask: str, axes: str) -> None:
    for seed in range(5):
        built = CASE.replace(mask=mask, mask_axes=axes, seed=seed).core_inputs().mask
        assert bool(built.any(-1).all())


@pytest.mark.parametrize(("mask", "window"), list(product(ALIVE, [None, (1, 0), (0, 0), (0, 2)])))
def test_mask_leaves_a_query_its_own_position(mask: str, window: tuple[int, int] | None) -> None:
    """Causal and windowed, a query sees its own position where it has one: at offset 2 every query has."""
    for seed, (q_len, kv_len) in enumerate([(5, 7), (7, 7), (3, 5)]):
        case = CASE.replace(mask=mask, causal=True, window=window, q_len=q_len, kv_len=kv_len, seed=seed)
        assert bool(oracle.core(case.core_inputs()).visible.any(-1).all())


def test_masks_that_hide_everything_from_a_query() -> None:
    dead = CASE.replace(mask="dead").core_inputs().mask.any(-1)
    assert not bool(dead.all())
    assert bool(dead.any())
    assert not bool(CASE.replace(mask="nothing").core_inputs().mask.any())
    assert set(MASKS) - set(ALIVE) == {"dead", "nothing"}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("sizes", [(0, 5), (5, 0), (1, 1)])
def test_masks_are_built_for_no_positions(mask: str, sizes: tuple[int, int]) -> None:
    q_len, kv_len = sizes
    assert CASE.replace(mask=mask, q_len=q_len, kv_len=kv_len).core_inputs().mask.shape[2:] == sizes


@pytest.mark.parametrize("values", VALUES)
def test_values_are_finite_and_not_all_zero(values: str) -> None:
    query = CASE.replace(values=values).core_inputs().query
    assert bool(torch.isfinite(query).all())
    assert bool(query.any())


def test_values_by_hand() -> None:
    g = CASE.generator()
    assert VALUES["ones"]((3,), g).tolist() == [1.0, 1.0, 1.0]
    assert VALUES["one_hot"]((7, 5), g).sum(-1).tolist() == [1.0] * 7
    assert set(VALUES["integers"]((7, 11), g).unique().tolist()) <= {-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (2, 5, 7), (2, 3, 0, 7)])
def test_layout_keeps_the_numbers(layout: str, shape: tuple[int, ...]) -> None:
    tensor = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    arranged = LAYOUTS[layout](tensor)
    assert torch.equal(arranged, tensor)
    if tensor.numel():
        assert arranged.is_contiguous() == (layout == "contiguous")


def test_layouts_lie_in_memory_as_their_names_say() -> None:
    tensor = torch.zeros(2, 3, 5, 7)
    assert LAYOUTS["transposed"](tensor).stride() == (105, 7, 21, 1)
    assert LAYOUTS["sliced"](tensor).stride() == (330, 110, 22, 1)
    assert LAYOUTS["every_other"](tensor).stride() == (210, 70, 14, 2)


def test_description_leaves_out_what_is_usual() -> None:
    assert Case().describe() == "batch=1 heads=1 q_len=1 kv_len=1 d_k=1 float32"
    case = CASE.replace(
        values="offset", mask="dead", mask_axes="qk", mask_rank=2, causal=True, scale=0.3, layout="sliced"
    )
    assert case.describe() == (
        "batch=2 heads=6 kv_heads=3 q_len=5 kv_len=7 d_k=11 d_v=13 float64 values=offset "
        "mask=dead[qk] rank 2 scale=0.3 causal lower_right sliced"
    )


def test_plain_data_comes_back_the_same() -> None:
    case = CASE.replace(window=(1, 2), mask="random")
    assert Case(**case.as_dict()) == case
