"""The table of a trace: names of axes, folded loops, memory, places, paths and failures."""

import importlib.util
import json
import math
import random
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import nn

from attnspec.trace import (
    Solver,
    Trace,
    compare,
    prime_sizes,
    record,
    render_table,
    to_html,
    to_json,
    to_markdown,
    trace_runs,
)

_spec = importlib.util.spec_from_file_location(
    "trace_harness", Path(__file__).parent.parent / "trace_subjects" / "harness.py"
)
assert _spec is not None
assert _spec.loader is not None
harness = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(harness)


def _first_document(mask=None):
    module = harness.load("first_document").MultiHeadAttention
    runs = harness.layer_runs(lambda s: module(s["d_model"], s["heads"]), mask=mask, give=lambda seen: ~seen)
    return trace_runs(runs, title="first_document.py:MultiHeadAttention")


def _right(name, mask=None, **options):
    module = getattr(harness.load("right_layers"), name)
    return trace_runs(
        harness.layer_runs(lambda s: module(s["d_model"], s["heads"]), mask=mask, **options), title=name
    )


@pytest.fixture(scope="module")
def document() -> Trace:
    return _first_document("some")


# The first document's own table: its words, the operation that gives the row, the shape. It writes
# d_model for the projection, where heads*d_k is the same number.
TABLE = [
    ("project queries", "linear", "(batch, seq, heads*d_k)"),
    ("split heads (query)", "view", "(batch, seq, heads, d_k)"),
    ("heads first (query)", "transpose", "(batch, heads, seq, d_k)"),
    ("scores", "matmul", "(batch, heads, seq, seq)"),
    ("scale", "div", "(batch, heads, seq, seq)"),
    ("mask", "masked_fill", "(batch, heads, seq, seq)"),
    ("softmax", "softmax", "(batch, heads, seq, seq)"),
    ("aggregate values", "matmul", "(batch, heads, seq, d_k)"),
    ("merge heads", "view", "(batch, seq, heads*d_k)"),
    ("project output", "linear", "(batch, seq, d_model)"),
]


@pytest.mark.parametrize(("words", "op", "shape"), TABLE, ids=[t[0] for t in TABLE])
def test_first_document_gives_its_table(document, words, op, shape):
    entry = next(c for c in document.contract if c.name == words)
    row = document.rows[entry.row]
    assert (entry.status, row.op, str(row.outputs[0])) == ("passed", op, shape)
    assert f"({', '.join(entry.gives)})" == shape


def test_first_document_input_is_d_model_wide(document):
    assert str(document.rows[0].inputs[0]) == "(batch, seq, d_model)"


def test_rows_say_line_source_memory_and_bytes(document):
    by_op = {r.op: r for r in document.main}
    mask = by_op["masked_fill"]
    assert Path(mask.file).name == "first_document.py"
    assert mask.source == "logits = logits.masked_fill(mask, -1e9)"
    assert mask.code == "logits.masked_fill(mask, -1e9)"
    assert (mask.memory, mask.bytes, mask.outputs[0].dtype) == ("copy", "8*batch*heads*seq*seq", "float64")
    assert (by_op["transpose"].memory, by_op["transpose"].bytes) == ("view", "0")
    assert not by_op["transpose"].outputs[0].contiguous


def test_constants_are_set_aside(document):
    assert {r.op for r in document.rows if r.side} == {"tensor", "sqrt"}


def test_no_axis_is_unknown(document):
    assert not [r for r in document.rows for t in (*r.inputs, *r.outputs) if "?" in t.shape]


def test_a_loop_over_heads_is_one_row():
    trace = _right("Loop")
    scores = next(r for r in trace.rows if r.op == "matmul")
    assert (scores.times, str(scores.outputs[0])) == ("heads", "(batch, seq, seq)")
    cat = next(r for r in trace.rows if r.op == "cat")
    assert [str(t) for t in cat.inputs] == ["heads × (batch, seq, d_k)"]


def test_fused_projections_are_named():
    rows = [str(t) for r in _right("Interleaved").rows for t in r.outputs]
    assert "(batch, seq, heads*3*d_k)" in rows
    assert "(batch, seq, heads, 3*d_k)" in rows
    assert "3 × (batch, seq, heads, d_k)" in rows


def test_stacked_and_interleaved_projections_differ_in_name():
    stacked = {str(t) for r in _right("Stacked").rows for t in r.outputs}
    assert "(batch, seq, 3*heads*d_k)" in stacked
    assert "(batch, seq, heads*3*d_k)" not in stacked


def test_einsum_names_its_axes():
    trace = _right("Einsum", "some")
    status = {c.stage: c.status for c in trace.contract}
    assert status["split_heads:q"] == "fused"
    assert status["heads_first:q"] == "passed"


def test_in_place_is_said():
    assert {r.op: r.memory for r in _right("Buffer").rows}["exp_"] == "in place"


def test_kernel_is_one_row():
    trace = _right("Fused", "some")
    row = next(r for r in trace.rows if r.op == "scaled_dot_product_attention")
    assert row.stages == ("aggregate_values",)
    assert {c.stage for c in trace.contract if c.status == "fused"} == {
        "scores",
        "scale_scores",
        "mask_scores",
        "normalise",
    }


class _Torch(nn.Module):
    def __init__(self, d_model, heads):
        super().__init__()
        self.inner = nn.MultiheadAttention(d_model, heads, batch_first=True)

    def load(self, weights):
        with torch.no_grad():
            matrix, bias = weights.fused("stacked")
            self.inner.in_proj_weight.copy_(matrix)
            self.inner.in_proj_bias.copy_(bias)
            self.inner.out_proj.weight.copy_(weights.W_o)
            self.inner.out_proj.bias.copy_(weights.b_o)

    def forward(self, x):
        return self.inner(x, x, x, need_weights=False)[0]


def test_torch_module_is_opened_on_its_slow_path():
    trace = trace_runs(harness.layer_runs(lambda s: _Torch(s["d_model"], s["heads"])))
    assert trace.correct
    assert trace.departure is None
    assert "(seq, batch*heads, d_k)" in {str(t) for r in trace.rows for t in r.outputs}


def test_torch_module_is_one_row_on_its_fast_path():
    runs = harness.layer_runs(lambda s: _Torch(s["d_model"], s["heads"]))
    with torch.no_grad():
        trace = trace_runs([r for r in runs if r.sizes["heads"] % 2 == 0])
        mixed = trace_runs(runs)
    assert [r.op for r in trace.rows] == ["_native_multi_head_attention"]
    assert trace.correct
    assert any("different paths" in note for note in mixed.notes)


class _Paths(nn.Module):
    def __init__(self, d_model, heads):
        super().__init__()
        self.heads, self.d_k = heads, d_model // heads
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x):
        q, k, v = (
            m(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for m in (self.W_q, self.W_k, self.W_v)
        )
        if x.shape[1] > 10:
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            y = (q @ k.mT / math.sqrt(self.d_k)).softmax(-1) @ v
        return self.W_o(y.transpose(1, 2).flatten(2))


def test_different_paths_are_both_kept():
    trace = trace_runs(harness.layer_runs(lambda s: _Paths(s["d_model"], s["heads"])))
    runs = {r.op: r.runs for r in trace.rows}
    assert runs["scaled_dot_product_attention"] == (0, 2)
    assert runs["softmax"] == (1,)
    assert len(trace.notes) == 1


class _Fails(_Paths):
    def forward(self, x):
        q, k = (m(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for m in (self.W_q, self.W_k))
        return q @ k


def test_code_that_fails_shows_the_way_there_and_the_next_row():
    trace = trace_runs(harness.layer_runs(lambda s: _Fails(s["d_model"], s["heads"])))
    failure = trace.failure
    assert failure is not None
    assert failure.source == "return q @ k"
    assert failure.expected is not None
    assert failure.expected.stage == "scores"
    assert trace.rows[failure.row].error.startswith("RuntimeError")
    assert "(batch, heads, seq, d_k) and (batch, heads, seq, d_k)" in failure.text


def test_failure_outside_torch_is_kept():
    class Broken(_Paths):
        def forward(self, x):
            self.W_q(x)
            raise KeyError("no such thing")

    trace = trace_runs(harness.layer_runs(lambda s: Broken(s["d_model"], s["heads"])))
    assert trace.failure.row is None
    assert trace.failure.error == "KeyError: 'no such thing'"
    assert [r.op for r in trace.rows] == ["linear"]


def test_einops_call_is_one_row():
    einops = pytest.importorskip("einops")

    class Einops(_Paths):
        def forward(self, x):
            q, k, v = [
                einops.rearrange(m(x), "b t (h d) -> b h t d", h=self.heads)
                for m in (self.W_q, self.W_k, self.W_v)
            ]
            y = F.scaled_dot_product_attention(q, k, v)
            return self.W_o(einops.rearrange(y, "b h t d -> b t (h d)"))

    trace = trace_runs(harness.layer_runs(lambda s: Einops(s["d_model"], s["heads"])))
    assert [(r.op, r.times) for r in trace.rows][:2] == [("linear", "3"), ("rearrange", "3")]
    assert trace.rows[1].stages == ("heads_first:q", "heads_first:k", "heads_first:v")


def test_autocast_is_right_and_shows_its_dtype():
    class Auto(_Paths):
        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(x).float()

    trace = trace_runs(harness.layer_runs(lambda s: Auto(s["d_model"], s["heads"]), dtype=torch.float32))
    assert trace.correct
    assert trace.rows[0].outputs[0].dtype == "bfloat16"


def test_tracing_leaves_state_alone():
    class Noisy(_Paths):
        def forward(self, x):
            torch.set_grad_enabled(False)
            torch.set_default_dtype(torch.float64)
            random.random()
            torch.rand(3)
            return super().forward(x)

    run = harness.layer_runs(lambda s: Noisy(s["d_model"], s["heads"]), runs=1)[0]
    x = run.inputs["x"].clone()
    torch.manual_seed(3)
    random.seed(3)
    before = torch.get_rng_state(), random.getstate(), torch.get_default_dtype(), torch.is_grad_enabled()
    record(run)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), torch.get_default_dtype(), torch.is_grad_enabled())
    assert torch.equal(x, run.inputs["x"])


def test_without_an_oracle_there_is_still_a_table():
    runs = harness.layer_runs(lambda s: _Paths(s["d_model"], s["heads"]))
    bare = [type(r)(r.sizes, r.call, r.inputs) for r in runs]
    trace = trace_runs(bare)
    assert trace.correct is None
    assert trace.contract == ()
    assert str(trace.rows[0].outputs[0]) == "(batch, seq, heads*d_k)"


def test_core_is_traced_with_its_own_rows():
    def core(query, key, value, mask=None):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)

    trace = trace_runs(harness.core_runs(core, mask="some", cross=True))
    assert trace.correct
    assert str(trace.rows[0].inputs[1]) == "(batch, heads, kv_len, d_k)"
    assert [c.stage for c in trace.contract][:2] == ["scores", "scale_scores"]


def test_grouped_core_without_sharing_is_right():
    def core(query, key, value):
        b, _, s, d = query.shape
        grouped = query.view(b, key.shape[1], -1, s, d)
        weights = torch.einsum("bkgid,bkjd->bkgij", grouped, key).mul(d**-0.5).softmax(-1)
        return torch.einsum("bkgij,bkjd->bkgid", weights, value).flatten(1, 2)

    trace = trace_runs(harness.core_runs(core, grouped=True, cross=True))
    assert trace.correct
    assert str(trace.rows[0].outputs[0]) == "(batch, kv_heads, group, q_len, d_k)"


@pytest.mark.parametrize(
    ("pick", "expected"),
    [
        (lambda s: s["batch"] * s["heads"], "batch*heads"),
        (lambda s: 3 * s["heads"] * s["d_k"], "3*heads*d_k"),
        (lambda s: s["seq"] - 1, "seq-1"),
        (lambda s: 2 * s["seq"] - 1, "2*seq-1"),
        (lambda s: 3, "3"),
        (lambda s: 1, "1"),
        (lambda s: s["seq"] + s["d_k"], "seq+d_k"),
        (lambda s: s["d_model"], "heads*d_k"),
        (lambda s: 4 * s["d_model"], "4*heads*d_k"),
        (lambda s: s["seq"] ** 3 + 17, "?"),
    ],
)
def test_solver_takes_the_simplest_that_holds_in_all_runs(pick, expected):
    sizes = prime_sizes()
    assert Solver(sizes).axis(tuple(pick(s) for s in sizes)) == expected


def test_solver_takes_a_hint_that_holds():
    sizes = prime_sizes()
    assert Solver(sizes).axis(tuple(s["d_model"] for s in sizes), ["d_model"]) == "d_model"
    assert Solver(sizes).axis(tuple(s["seq"] for s in sizes), ["d_model"]) == "seq"


def test_outputs_are_complete(document):
    console = Console(width=200, record=True)
    console.print(render_table(document))
    text = console.export_text()
    assert "masked_fill" in text
    assert "the result is the contract's" in text
    assert json.loads(json.dumps(to_json(document)))["rows"][0]["op"] == "linear"
    assert to_markdown(document).count("\n| ") > len(document.rows)
    page = to_html(document)
    assert "prefers-color-scheme: dark" in page
    assert "overflow-x: auto" in page
    assert "http" not in page


def test_compare_stands_row_by_row(document):
    both = compare(document, _right("Loop"))
    names = [name for name, *_ in both.rows]
    mask = both.rows[names.index("mask")]
    assert mask[1].place == "first_document.py:26 masked_fill"
    assert mask[2] is None
    assert "first_document.py" in both.to_markdown()
    json.dumps(both.to_json())
    Console(width=120, quiet=True).print(both)
