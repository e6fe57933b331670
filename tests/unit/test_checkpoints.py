"""Weights in and out: every layout there and back, against torch's own module, and what is refused."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from attnspec import _cli, oracle
from attnspec._errors import ReportError, ShapeError, TargetError, UnknownNameError
from attnspec._inputs import LayerInputs
from attnspec.checkpoints import LAYOUTS, convert_file, fitting_layouts, read_weights, write_weights
from attnspec.checkpoints.files import load_tensors, save_tensors
from attnspec.weights import BIASES, LayerWeights

PREFIX = "encoder.3.attn."
# Between two float64 outputs lie fewer than 2**8 roundings of numbers below 2**4.
ROUNDING = torch.finfo(torch.float64).eps * 2**12


def draw(seed: int, *shape: int) -> Tensor:
    """Draw normal float64 numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def same(a: LayerWeights, b: LayerWeights) -> bool:
    """Say whether two sets of weights are equal, element by element."""
    mine, theirs = a.tensors(), b.tensors()
    equal = mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
    return equal and (a.heads, a.kv_heads) == (b.heads, b.kv_heads)


@st.composite
def layer_weights(draw_from: st.DrawFn, layout: str) -> LayerWeights:
    """Draw weights that a layout can hold; inputs and outputs of different widths where it can hold those."""
    rules = LAYOUTS[layout]
    kv_heads = draw_from(st.integers(1, 3))
    heads = kv_heads * (draw_from(st.integers(1, 3)) if rules.grouped else 1)
    d_k = draw_from(st.integers(1, 5))
    interleaved = "heads*3*d_k" in rules.places.get("W_qkv", "")
    d_v = d_k if rules.full_heads or interleaved else draw_from(st.integers(1, 5))
    d_in = heads * d_k if rules.full_heads else draw_from(st.integers(1, 11))
    d_out = d_in if rules.full_heads else draw_from(st.integers(1, 11))
    other = draw_from(st.integers(1, 11)) if "W_qkv" not in rules.places else d_in
    rows = {"q": heads * d_k, "k": kv_heads * d_k, "v": kv_heads * d_v, "o": d_out}
    columns = {"q": d_in, "k": other, "v": other, "o": heads * d_v}
    tensors = {f"W_{x}": draw(i, rows[x], columns[x]) for i, x in enumerate(rows)}
    biases = draw_from(st.sets(st.sampled_from(BIASES)))
    if biases and rules.biases == "together":
        biases = set(BIASES)
    elif any(b in biases for b in ("b_q", "b_k", "b_v")) and "b_qkv" in rules.places:
        biases |= {"b_q", "b_k", "b_v"}
    tensors |= {b: draw(7, rows[b[2:]]) for b in biases}
    return LayerWeights(**tensors, heads=heads, kv_heads=kv_heads)


@pytest.mark.parametrize("layout", LAYOUTS)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_layout_round_trip(layout: str, data: st.DataObject) -> None:
    weights = data.draw(layer_weights(layout))
    stored = write_weights(weights, layout, PREFIX)
    assert all(name.startswith(PREFIX) for name in stored)
    assert layout in fitting_layouts(stored, PREFIX)
    assert same(read_weights(stored, layout, weights.heads, weights.kv_heads, PREFIX), weights)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_write_shares_no_memory(layout: str) -> None:
    weights = LayerWeights.random(12, 3)
    before = weights.map(lambda _, tensor: tensor.clone())
    for tensor in write_weights(weights, layout).values():
        assert tensor.is_contiguous()
        tensor.fill_(0)
    assert same(weights, before)


def run_torch(module: nn.MultiheadAttention, *inputs: Tensor) -> Tensor:
    """Call torch's module without its weights."""
    output: Tensor = module(*inputs, need_weights=False)[0]
    return output.detach()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("widths", [None, (11, 13)], ids=["one width", "kdim and vdim"])
def test_torch_module_computes_the_same(bias: bool, widths: tuple[int, int] | None) -> None:
    kdim, vdim = widths or (None, None)
    module = nn.MultiheadAttention(
        15, 3, bias=bias, kdim=kdim, vdim=vdim, batch_first=True, dtype=torch.float64
    )
    if bias:
        with torch.no_grad():
            module.in_proj_bias.copy_(draw(8, 45))
            module.out_proj.bias.copy_(draw(9, 15))
    layout = "torch" if widths is None else "torch_separate"
    weights = read_weights(module.state_dict(), layout, 3)
    assert weights.has_bias == bias
    query, key, value = draw(1, 2, 5, 15), draw(2, 2, 7, kdim or 15), draw(3, 2, 7, vdim or 15)
    exact = oracle.layer(LayerInputs(query=query, key=key, value=value, weights=weights))
    assert float((run_torch(module, query, key, value) - exact.output).abs().max()) < ROUNDING


def test_torch_module_loads_what_is_written() -> None:
    weights = LayerWeights.random(15, 3)
    module = nn.MultiheadAttention(15, 3, batch_first=True, dtype=torch.float64)
    module.load_state_dict(write_weights(weights, "torch"), strict=True)
    inputs = draw(1, 2, 5, 15)
    exact = oracle.layer(LayerInputs(query=inputs, weights=weights))
    assert float((run_torch(module, inputs, inputs, inputs) - exact.output).abs().max()) < ROUNDING


def test_torch_gets_all_biases_or_none() -> None:
    weights = LayerWeights.random(15, 3).replace(b_k=None, b_o=None)
    stored = write_weights(weights, "torch")
    assert not stored["in_proj_bias"][15:30].any()
    assert not stored["out_proj.bias"].any()


def test_torch_appended_key_is_refused() -> None:
    module = nn.MultiheadAttention(15, 3, add_bias_kv=True)
    with pytest.raises(ShapeError) as caught:
        read_weights(module.state_dict(), "torch", 3)
    assert str(caught.value) == (
        "read_weights: bias_k cannot be converted: add_bias_kv appends a learned key and value,"
        " which canonical weights cannot hold"
    )


def test_gpt2_is_transposed_and_stacked() -> None:
    weights = LayerWeights.random(6, 2)
    stored = write_weights(weights, "gpt2", "h.0.attn")
    assert torch.equal(
        stored["h.0.attn.c_attn.weight"], torch.cat([weights.W_q, weights.W_k, weights.W_v]).t()
    )
    assert torch.equal(stored["h.0.attn.c_proj.weight"], weights.W_o.t())


def test_interleaved_rows_by_hand() -> None:
    column = {"W_q": (0, 1), "W_k": (2, 3), "W_v": (4, 5)}
    tensors = {name: torch.tensor(rows).reshape(2, 1).double() for name, rows in column.items()}
    weights = LayerWeights(**tensors, W_o=torch.ones(1, 2).double(), heads=2, kv_heads=2)
    assert write_weights(weights, "qkv_proj")["qkv_proj.weight"].flatten().tolist() == [0, 2, 4, 1, 3, 5]
    assert write_weights(weights, "timm")["qkv.weight"].flatten().tolist() == [0, 1, 2, 3, 4, 5]


def test_grouped_stack_by_hand() -> None:
    stored = write_weights(LayerWeights.random(12, 6, kv_heads=2, bias=False), "phi3")
    assert {name: tuple(t.shape) for name, t in stored.items()} == {
        "qkv_proj.weight": (20, 12), "o_proj.weight": (12, 12)
    }  # fmt: skip


def test_missing_tensor_names_the_layout_that_fits() -> None:
    stored = write_weights(LayerWeights.random(6, 2, bias=False), "llama", "layers.0.self_attn")
    with pytest.raises(UnknownNameError) as caught:
        read_weights(stored, "bart", 2, prefix="layers.0.self_attn.")
    assert str(caught.value) == (
        "read_weights: layout bart needs out_proj.weight under 'layers.0.self_attn.', which is not there\n"
        "  there: k_proj.weight, o_proj.weight, q_proj.weight, v_proj.weight\n"
        "  their names fit the layout llama"
    )


def test_missing_prefix_is_suggested() -> None:
    stored = write_weights(LayerWeights.random(6, 2, bias=False), "llama", "layers.0.self_attn")
    with pytest.raises(UnknownNameError, match=r"llama is there under the prefix 'layers\.0\.self_attn\.'"):
        read_weights(stored, "llama", 2)


def test_wrong_orientation_names_the_layout_that_fits() -> None:
    stored = write_weights(LayerWeights.random(6, 2), "nanogpt")
    with pytest.raises(ShapeError, match="the shapes fit the layout nanogpt"):
        read_weights(stored, "gpt2", 2)


def test_unknown_layout_suggests_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'llama'"):
        read_weights({}, "lama", 2)


@pytest.mark.parametrize(
    ("layout", "weights", "message"),
    [
        ("gpt2", LayerWeights.random(12, 6, kv_heads=2), "needs kv_heads = heads; got kv_heads=2, heads=6"),
        ("qkv_proj", LayerWeights.random(12, 2, d_v=5), "needs d_v = d_k; got d_k=6, d_v=5"),
        ("torch", LayerWeights.random(13, 2, d_k=6), "got d_model=13, heads\\*d_k=12, heads\\*d_v=12"),
    ],
)
def test_layout_that_cannot_hold_says_why(layout: str, weights: LayerWeights, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        write_weights(weights, layout)


def test_wrong_number_of_heads_is_refused() -> None:
    stored = write_weights(LayerWeights.random(12, 6, kv_heads=2, bias=False), "llama")
    with pytest.raises(ShapeError, match="queries have 12 rows for 4 heads, keys 4 for 2"):
        read_weights(stored, "llama", 4, 2)


def test_file_of_a_whole_model(tmp_path: Path) -> None:
    layers = [LayerWeights.random(6, 2, generator=torch.Generator().manual_seed(i)) for i in range(11)]
    tensors = {"wte.weight": draw(1, 3, 6)}
    for i, weights in enumerate(layers):
        tensors |= write_weights(weights, "gpt2", f"h.{i}.attn.")
    save_tensors(tensors, tmp_path / "in.safetensors", {})
    left = convert_file(
        tmp_path / "in.safetensors", tmp_path / "out.safetensors", source_layout="gpt2", heads=2,
        target_layout="llama", prefix="h.*.attn.", target_prefix="layers.*.self_attn.", group=1,
    )  # fmt: skip
    assert left == ["wte.weight"]
    written = load_tensors(tmp_path / "out.safetensors")
    got = read_weights(written, "llama", 2, 1, "layers.10.self_attn")
    assert torch.equal(got.W_q, layers[10].W_q)
    assert torch.equal(got.W_k, (layers[10].W_k[:3] + layers[10].W_k[3:]) / 2)


def test_pickled_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(TargetError, match=r"reads \.safetensors files only; a pickled checkpoint"):
        convert_file(tmp_path / "model.bin", tmp_path / "out.safetensors", heads=2)


def test_broken_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"not one")
    with pytest.raises(TargetError, match="not a safetensors file"):
        convert_file(tmp_path / "model.safetensors", tmp_path / "out.safetensors", heads=2)


def test_destination_of_another_kind_is_refused(tmp_path: Path) -> None:
    save_tensors(write_weights(LayerWeights.random(6, 2), "torch"), tmp_path / "a.safetensors", {})
    with pytest.raises(ReportError, match=r"writes \.safetensors files only"):
        convert_file(tmp_path / "a.safetensors", tmp_path / "b.pt", source_layout="torch", heads=2)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_tensors(write_weights(LayerWeights.random(6, 2), "torch"), tmp_path / "a.safetensors", {})
    source, destination = str(tmp_path / "a.safetensors"), str(tmp_path / "b.safetensors")
    assert _cli.main(["convert", source, destination, "--from", "torch", "--to", "bert", "--heads", "2"]) == 0
    assert capsys.readouterr().out == f"wrote {destination}\n"
    assert fitting_layouts(load_tensors(Path(destination))) == ["bert"]
    assert _cli.main(["convert", "--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(LAYOUTS)
    assert _cli.main(["convert", source, "--list"]) == 0
    assert capsys.readouterr().out.startswith("torch ")
    assert _cli.main(["convert", source, destination]) == 2
