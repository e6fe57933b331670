"""Every built-in implementation against the oracle, and what the contract says of each."""

import inspect
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import attnspec_impls
from attnspec import oracle
from attnspec._errors import ShapeError
from attnspec._inputs import CoreInputs, LayerInputs
from attnspec._registry import Implementation, built_in
from attnspec.weights import LayerWeights

RECORDS = {name: built_in(name) for name in attnspec_impls.CATALOGUE}
LAYERS = [name for name, record in RECORDS.items() if record.contract == "layer"]
CORES = [name for name, record in RECORDS.items() if record.contract == "core"]
BOTH = LAYERS + CORES
BATCH, HEADS, D_K, D_MODEL = 2, 6, 5, 30
# Between an output and the oracle's lie fewer than 2**8 roundings of numbers below 2**4; for a gradient
# there are as many more.
ROUNDING = torch.finfo(torch.float64).eps * 2**12

SQUARE, WIDE, TALL, NO_KEYS = (7, 7), (5, 11), (11, 5), (5, 0)
OPTIONS: dict[str, Any] = {
    "nothing": {},
    "causal": {"causal": True},
    "window": {"window": (2, 1)},
    "causal and window": {"causal": True, "window": (3, -1)},
    "softcap": {"softcap": 1.5},
    "scale": {"scale": -0.7},
    "scale zero": {"scale": 0.0},
}


def supports(record: Implementation, argument: str) -> bool:
    """Say whether the call or the constructor takes an argument."""
    calls = [record.target, getattr(record.target, "forward", record.target)]
    return any(argument in inspect.signature(call).parameters for call in calls)


def draw(seed: int, *shape: int) -> Tensor:
    """Draw normal float64 numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def draw_mask(q_len: int, kv_len: int, *, heads: int = 1) -> Tensor:
    """Draw a mask in which one query of the first sample sees nothing."""
    mask = draw(1, BATCH, heads, q_len, kv_len) < 0.3
    mask[0, :, q_len // 2] = False
    return mask


def draw_core(q_len: int, kv_len: int, kv_heads: int = HEADS, **options: Any) -> CoreInputs:
    """Draw the inputs of a core; every tensor requires a gradient."""
    return CoreInputs(
        query=draw(2, BATCH, HEADS, q_len, D_K).requires_grad_(),
        key=draw(3, BATCH, kv_heads, kv_len, D_K).requires_grad_(),
        value=draw(4, BATCH, kv_heads, kv_len, 3).requires_grad_(),
        **options,
    )


def draw_layer(q_len: int, kv_len: int, kv_heads: int = HEADS, **options: Any) -> LayerInputs:
    """Draw the inputs of a layer; inputs and weights require a gradient."""
    weights = LayerWeights.random(
        D_MODEL, HEADS, kv_heads=kv_heads, generator=torch.Generator().manual_seed(5)
    )
    return LayerInputs(
        query=draw(6, BATCH, q_len, D_MODEL).requires_grad_(),
        key=draw(7, BATCH, kv_len, D_MODEL).requires_grad_(),
        value=draw(8, BATCH, kv_len, D_MODEL).requires_grad_(),
        weights=weights.map(lambda _, tensor: tensor.requires_grad_()),
        **options,
    )


def draw_inputs(
    record: Implementation, q_len: int, kv_len: int, kv_heads: int = HEADS, **options: Any
) -> Any:
    """Draw the inputs that fit an implementation."""
    return (draw_layer if record.contract == "layer" else draw_core)(q_len, kv_len, kv_heads, **options)


def make_layer(record: Implementation, weights: LayerWeights) -> torch.nn.Module:
    """Construct a layer of the size of some weights, and load them."""
    grouped = {"kv_heads": weights.kv_heads} if supports(record, "kv_heads") else {}
    made = record.target(weights.d_model, weights.heads, bias=weights.has_bias, **grouped)
    return made.to(weights.W_q.dtype).load_canonical(weights).eval()


def run(record: Implementation, inputs: Any, **more: Any) -> Any:
    """Call an implementation on some inputs."""
    options = {name: value for name, value in inputs.options().items() if name != "alignment"}
    given = {name: value for name, value in options.items() if supports(record, name)} | more
    assert all(value in (None, False) for name, value in options.items() if name not in given)
    call = make_layer(record, inputs.weights) if record.contract == "layer" else record.target
    return call(inputs.query, inputs.key, inputs.value, **given)


def exact(inputs: Any) -> Any:
    """Return the oracle's result."""
    return oracle.layer(inputs) if isinstance(inputs, LayerInputs) else oracle.core(inputs)


def distance(left: Tensor, right: Tensor) -> float:
    """Return the largest difference of two tensors of one shape."""
    assert left.shape == right.shape
    return float((left - right).detach().abs().max()) if left.numel() else 0.0


def scores_shape(inputs: Any) -> tuple[int, ...]:
    """Return the shape of the scores of a call."""
    return BATCH, HEADS, inputs.query.shape[-2], inputs.key.shape[-2]


def masked_and_biased(record: Implementation, q_len: int, kv_len: int, **options: Any) -> Any:
    """Draw inputs with a mask of its own for each head, and a bias for each head and key."""
    return draw_inputs(
        record,
        q_len,
        kv_len,
        mask=draw_mask(q_len, kv_len, heads=HEADS),
        bias=draw(9, 1, HEADS, 1, kv_len),
        **options,
    )


@pytest.mark.parametrize("lengths", [SQUARE, WIDE, TALL, NO_KEYS], ids=str)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("name", BOTH)
def test_output_equals_the_oracle(name: str, options: dict[str, Any], lengths: tuple[int, int]) -> None:
    inputs = draw_inputs(RECORDS[name], *lengths, **options)
    assert distance(run(RECORDS[name], inputs), exact(inputs).output) <= ROUNDING


@pytest.mark.parametrize("lengths", [SQUARE, WIDE, TALL], ids=str)
@pytest.mark.parametrize("name", BOTH)
def test_mask_bias_and_causal_combine(name: str, lengths: tuple[int, int]) -> None:
    inputs = masked_and_biased(RECORDS[name], *lengths, causal=True, softcap=2.0)
    assert distance(run(RECORDS[name], inputs), exact(inputs).output) <= ROUNDING


@pytest.mark.parametrize("name", BOTH)
def test_mask_of_rank_two_is_the_same_for_all(name: str) -> None:
    mask = draw_mask(*WIDE)[0, 0]
    flat = run(RECORDS[name], draw_inputs(RECORDS[name], *WIDE, mask=mask))
    assert torch.equal(flat, run(RECORDS[name], draw_inputs(RECORDS[name], *WIDE, mask=mask[None, None])))


@pytest.mark.parametrize("kv_heads", [1, 2, 3])
@pytest.mark.parametrize(
    "name", [name for name in BOTH if RECORDS[name].contract == "core" or supports(RECORDS[name], "kv_heads")]
)
def test_grouped_heads_equal_the_oracle(name: str, kv_heads: int) -> None:
    inputs = draw_inputs(RECORDS[name], *WIDE, kv_heads, mask=draw_mask(*WIDE, heads=HEADS), causal=True)
    assert distance(run(RECORDS[name], inputs), exact(inputs).output) <= ROUNDING


@pytest.mark.parametrize("name", [name for name in BOTH if supports(RECORDS[name], "return_weights")])
def test_weights_equal_the_oracle(name: str) -> None:
    inputs = masked_and_biased(RECORDS[name], *WIDE)
    output, weights = run(RECORDS[name], inputs, return_weights=True)
    result = exact(inputs)
    assert distance(output, result.output) <= ROUNDING
    expected = result.core.weights if isinstance(inputs, LayerInputs) else result.weights
    assert distance(weights, expected) <= ROUNDING


def leaves(inputs: Any) -> Iterator[Tensor]:
    """Yield every tensor of a core's inputs, or the inputs of a layer, that requires a gradient."""
    yield from (tensor for tensor in inputs.tensors().values() if tensor.requires_grad)


@pytest.mark.parametrize("lengths", [SQUARE, TALL], ids=str)
@pytest.mark.parametrize("name", BOTH)
def test_gradients_equal_the_oracle(name: str, lengths: tuple[int, int]) -> None:
    inputs = masked_and_biased(RECORDS[name], *lengths, causal=True, softcap=2.0)
    inputs.bias.requires_grad_()
    output, expected = run(RECORDS[name], inputs), exact(inputs).output
    upstream = draw(10, *output.shape)
    got = torch.autograd.grad(output, list(leaves(inputs)), upstream)
    for left, right in zip(got, torch.autograd.grad(expected, list(leaves(inputs)), upstream), strict=True):
        assert distance(left, right) <= ROUNDING


@pytest.mark.parametrize("name", LAYERS)
def test_parameter_gradients_equal_the_oracle(name: str) -> None:
    inputs = draw_layer(*WIDE, mask=draw_mask(*WIDE))
    layer = make_layer(RECORDS[name], inputs.weights)
    upstream = draw(11, *inputs.query.shape)
    layer(inputs.query, inputs.key, inputs.value, mask=inputs.mask).backward(upstream)
    exact(inputs).output.backward(upstream)
    # Weights come out of a layer as a linear map of its parameters, so gradients do as well.
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(parameter.grad)
    for tensor, gradient in layer.canonical_weights().tensors().items():
        assert distance(gradient, inputs.weights.tensors()[tensor].grad) <= ROUNDING


@pytest.mark.parametrize("option", ["mask", "bias"])
@pytest.mark.parametrize("name", CORES)
def test_dead_row_is_zero_with_zero_gradient(name: str, option: str) -> None:
    mask = torch.ones(1, 1, *WIDE, dtype=torch.bool)
    mask[..., 2, :] = False
    bias = torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, float("-inf"))
    inputs = draw_core(*WIDE, **{option: {"mask": mask, "bias": bias}[option]})
    output = run(RECORDS[name], inputs)
    assert torch.count_nonzero(output[:, :, 2]) == 0
    output.sum().backward()
    assert torch.count_nonzero(inputs.query.grad[:, :, 2]) == 0
    assert all(tensor.grad.isfinite().all() for tensor in (inputs.query, inputs.key, inputs.value))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", BOTH)
def test_hidden_content_changes_no_bit(name: str, dtype: torch.dtype) -> None:
    mask = draw_mask(*WIDE)
    mask[..., 3] = False
    inputs = draw_inputs(RECORDS[name], *WIDE, mask=mask).to(dtype)
    with torch.no_grad():
        before = run(RECORDS[name], inputs)
        inputs.key[..., 3, :], inputs.value[..., 3, :] = 100.0, -200.0
        assert torch.equal(run(RECORDS[name], inputs), before)
    assert before.dtype == dtype


@pytest.mark.parametrize(
    "options", [{}, {"causal": True}, {"mask": draw_mask(*SQUARE)}], ids=["nothing", "causal", "mask"]
)
@pytest.mark.parametrize("argument", ["query", "key", "value"])
@pytest.mark.parametrize("name", CORES)
def test_visible_nan_comes_out(name: str, argument: str, options: dict[str, Any]) -> None:
    if "mask" in options:
        options = {"mask": options["mask"].clone()}
        options["mask"][..., 0, 0] = True
    inputs = draw_core(*SQUARE, **options)
    with torch.no_grad():
        getattr(inputs, argument)[0, :, 0] = float("nan")
        assert run(RECORDS[name], inputs)[0, :, 0].isnan().all()


@pytest.mark.parametrize("name", BOTH)
def test_large_scores_stay_finite(name: str) -> None:
    inputs = draw_inputs(RECORDS[name], *SQUARE, scale=1e5).to(torch.float32)
    assert run(RECORDS[name], inputs).isfinite().all()


@pytest.mark.parametrize("name", CORES)
def test_half_products_do_not_overflow(name: str) -> None:
    query = torch.full((1, 1, 3, 64), 64.0, dtype=torch.float16)
    assert RECORDS[name].target(query, query, query[:, :, :, :5]).isfinite().all()


@pytest.mark.parametrize("name", BOTH)
def test_empty_batch_and_no_queries_come_back_empty(name: str) -> None:
    inputs = draw_inputs(RECORDS[name], *WIDE)
    for empty in (inputs.replace(query=inputs.query[..., :0, :]), inputs.map_tensors(lambda _, t: t[:0])):
        assert run(RECORDS[name], empty).shape == exact(empty).output.shape


@pytest.mark.parametrize("name", BOTH)
def test_no_random_number_is_drawn_without_dropout(name: str) -> None:
    inputs, before = draw_inputs(RECORDS[name], *WIDE), torch.get_rng_state()
    call = RECORDS[name].target
    if name in LAYERS:
        call, before = make_layer(RECORDS[name], inputs.weights).train(), torch.get_rng_state()
    call(inputs.query, inputs.key, inputs.value)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", [name for name in LAYERS if supports(RECORDS[name], "dropout")])
def test_dropout_acts_in_training_alone(name: str) -> None:
    layer = RECORDS[name].target(D_MODEL, HEADS, dropout=0.5)
    inputs = draw(12, BATCH, 7, D_MODEL).float()
    assert not torch.equal(layer(inputs), layer(inputs))
    layer.eval()
    assert torch.equal(layer(inputs), layer(inputs))


@pytest.mark.parametrize("name", LAYERS)
def test_key_and_value_default_to_what_asks(name: str) -> None:
    inputs = draw_layer(*SQUARE)
    layer = make_layer(RECORDS[name], inputs.weights)
    x, context = inputs.query, inputs.key
    assert distance(layer(x), layer(x, x, x)) <= ROUNDING
    assert distance(layer(x, context), layer(x, context, context)) <= ROUNDING
    assert distance(layer(x, None, context), layer(x, x, context)) <= ROUNDING


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_canonical_weights_survive_a_round_trip(name: str, bias: bool) -> None:
    weights = LayerWeights.random(D_MODEL, HEADS, bias=bias)
    layer = make_layer(RECORDS[name], weights)
    back = layer.canonical_weights()
    assert back.tensors().keys() == weights.tensors().keys()
    for tensor, copy in back.tensors().items():
        assert torch.equal(copy, weights.tensors()[tensor])
        assert not copy.requires_grad
    kept = {parameter.untyped_storage().data_ptr() for parameter in layer.parameters()}
    assert not kept & {copy.untyped_storage().data_ptr() for copy in back.tensors().values()}


@pytest.mark.parametrize("name", LAYERS)
def test_layer_refuses_weights_that_do_not_fit(name: str) -> None:
    with pytest.raises(ShapeError, match="must share axis heads"):
        make_layer(RECORDS[name], LayerWeights.random(D_MODEL, HEADS)).load_canonical(
            LayerWeights.random(D_MODEL, 3)
        )


@pytest.mark.parametrize("name", BOTH)
def test_call_refuses_a_mask_of_rank_three(name: str) -> None:
    with pytest.raises(ShapeError, match="mask must have 2 axes"):
        run(RECORDS[name], draw_inputs(RECORDS[name], *WIDE, mask=torch.ones(BATCH, *WIDE, dtype=torch.bool)))


@cache
def compiled(name: str) -> tuple[Any, Any]:
    """Return an implementation of fresh weights, as it is and compiled."""
    target = RECORDS[name].target
    call = target(D_MODEL, HEADS).double() if name in LAYERS else target
    torch._dynamo.reset()
    return call, torch.compile(call, fullgraph=True, backend="eager")


# torch's own: Dynamo instantiates a class derived from autograd.Function, which torch deprecates.
@pytest.mark.filterwarnings("ignore:.*autograd.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("name", BOTH)
def test_compiles_as_one_graph(name: str) -> None:
    call, graph = compiled(name)
    for length in (5, 7):
        inputs = draw_inputs(RECORDS[name], length, length, mask=draw_mask(length, length))
        tensors = (inputs.query, inputs.key, inputs.value)
        options = {"mask": inputs.mask, "causal": True}
        assert distance(graph(*tensors, **options), call(*tensors, **options)) <= ROUNDING
