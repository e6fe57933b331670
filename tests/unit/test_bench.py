"""The benchmark: what it refuses to time, what it counts, and what it writes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attnspec import _cli
from attnspec._errors import DeclarationError, ReportError, TargetError, UnknownNameError
from attnspec.bench import command, main, run
from attnspec.bench.backends import explain_backend
from attnspec.bench.compiling import compile_subject
from attnspec.bench.grid import PROFILES, Grid, Shape
from attnspec.bench.memory import peak_extra_bytes
from attnspec.bench.results import Results, Row, backend_line, verdict
from attnspec.bench.subjects import PEERS, Subject, build
from attnspec.bench.timing import time_rounds

SMALL = Shape(2, 7, 12, 3)
MIB = 1024**2
WRONG = """
import torch

def wrong_attention(query, key, value, *, mask=None):
    return (query @ key.transpose(-2, -1)).softmax(-2) @ value
"""


def passing(target: str, *, device: str = "cpu") -> dict[str, Any]:
    """Stand in for the gate."""
    return {"name": target, "ok": target != "per_head_loop", "ran": 3, "broken": ["value.oracle"]}


@pytest.fixture
def open_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let everything but one through, without checking."""
    monkeypatch.setattr(run, "passes_gate", passing)


def test_shape_is_read_and_written() -> None:
    assert str(Shape.parse("4x512x64x8")) == "4x512x64x8"


@pytest.mark.parametrize("text", ["4x512x64", "4x512x64x0", "axbxcxd"])
def test_shape_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(DeclarationError, match="a shape is BATCHxLENGTHxD_MODELxHEADS"):
        Shape.parse(text)


def test_shape_whose_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(DeclarationError, match="heads must divide d_model; got 5, 64"):
        Shape.parse("4x512x64x5")


def test_profiles_have_shapes_that_parse() -> None:
    assert all(str(Shape.parse(text)) == text for profile in PROFILES.values() for text in profile.shapes)


def test_unknown_dtype_suggests_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'bfloat16'"):
        Grid((SMALL,), dtypes=("bfloat",))


@pytest.mark.parametrize("causal", [False, True])
@torch.no_grad()
def test_subjects_compute_the_same(causal: bool) -> None:
    inputs = torch.randn(2, 7, 12, generator=torch.Generator().manual_seed(1))
    names = ["textbook", "torch_mha", "sdpa", "sdpa_core", "grouped_query"]
    outputs = {n: build(n, SMALL, torch.float32, causal=causal, device="cpu").call(inputs) for n in names}
    exact = build("textbook", SMALL, torch.float64, causal=causal, device="cpu").call(inputs.double())
    # Fewer than 2**8 roundings of numbers below 2**4.
    rounding = torch.finfo(torch.float32).eps * 2**12
    assert {n for n, out in outputs.items() if float((out - exact).abs().max()) > rounding} == set()


def test_floor_has_no_bias() -> None:
    subject = build("floor", SMALL, torch.float32, causal=False, device="cpu")
    assert [tuple(p.shape) for p in subject.parameters] == [(36, 12), (12, 12)]


def test_code_of_others_is_built(tmp_path: Path) -> None:
    path = tmp_path / "theirs.py"
    path.write_text(WRONG.replace("softmax(-2)", "softmax(-1)"), encoding="utf-8")
    subject = build(f"{path}:wrong_attention", SMALL, torch.float32, causal=False, device="cpu")
    assert subject.call(torch.randn(2, 7, 12)).shape == (2, 7, 12)


def test_wrong_code_does_not_pass_the_gate(tmp_path: Path) -> None:
    path = tmp_path / "theirs.py"
    path.write_text(WRONG, encoding="utf-8")
    found = run.passes_gate(f"{path}:wrong_attention")
    assert not found["ok"]
    assert any(clause.startswith("value.") for clause in found["broken"])


def allocate() -> Callable[[], Tensor]:
    """Return a call that holds 4 MiB at most."""

    def call() -> Tensor:
        first = torch.empty(3 * MIB, dtype=torch.uint8)
        second = torch.empty(MIB, dtype=torch.uint8)
        del first
        return torch.cat([second, torch.empty(MIB, dtype=torch.uint8)])

    return call


def test_peak_memory_counts_what_lives_at_once() -> None:
    assert peak_extra_bytes(allocate()) == 4 * MIB


def test_peak_memory_sees_inside_kernels() -> None:
    q = torch.randn(1, 4, 256, 16)
    scores = 4 * 256 * 256 * 4
    plain = peak_extra_bytes(lambda: (q @ q.transpose(-2, -1)).softmax(-1) @ q)
    fused = peak_extra_bytes(lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q))
    assert plain >= 2 * scores
    assert q.numel() * 4 < fused < scores


def test_rounds_compare_with_the_floor() -> None:
    found = time_rounds(
        {"floor": lambda: None, "other": lambda: sum(range(2000))}, "floor", rounds=5, seconds=0.001
    )
    assert found["floor"].ratio == 1.0
    assert found["other"].ratio > 1.0
    assert found["other"].low <= found["other"].ratio <= found["other"].high
    assert found["other"].rounds == 5


def test_backend_is_named_and_the_others_say_why_not() -> None:
    found = explain_backend(SMALL, torch.float32, device="cpu", causal=False, backward=False)
    assert found["ran"] == "flash_attention_for_cpu"
    assert "MATH" in found["able"]
    assert found["refused"]["CUDNN_ATTENTION"] == "it is a CUDA kernel; these tensors are on cpu"
    assert backend_line({"shape": "s", "dtype": "d", "which": "w", **found}).startswith(
        "s d w: torch chose flash"
    )


def test_compiling_that_fails_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no compiler is at hand")

    monkeypatch.setattr(torch, "compile", refuse)
    with pytest.raises(RuntimeError):
        torch.compile()
    monkeypatch.setattr(torch, "compile", lambda call, **kwargs: refuse)
    found = compile_subject(Subject("x", lambda t: t, ()), torch.zeros(1), "forward")
    assert found.subject is None
    assert found.note == "could not be compiled: RuntimeError: no compiler is at hand"


def test_compiling_that_falls_back_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_(
        call: Callable[[Tensor], Tensor], *, fullgraph: bool, dynamic: bool
    ) -> Callable[[Tensor], Tensor]:
        def refuse(inputs: Tensor) -> Tensor:
            raise RuntimeError("a graph break")

        return refuse if fullgraph else call

    monkeypatch.setattr(torch, "compile", compile_)
    found = compile_subject(Subject("x", lambda t: t, ()), torch.zeros(1), "forward")
    assert found.subject is not None
    assert found.note == "fell back to several graphs: RuntimeError: a graph break"


@pytest.mark.usefixtures("open_gate")
def test_run_writes_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.json"
    status = main(
        [
            "sdpa",
            "per_head_loop",
            "--shape",
            "2x7x12x3",
            "--rounds",
            "2",
            "--pass",
            "forward",
            "--json",
            str(file),
        ]
    )
    assert status == 1
    shown = capsys.readouterr()
    assert "NOT TIMED per_head_loop: it does not pass value.oracle" in shown.out
    assert "timing 2x7x12x3 float32 forward eager" in shown.err
    results = Results.read(file)
    assert {row.name for row in results.rows} == {*PEERS, "sdpa"}
    assert all(row.peak_bytes and row.ratio and row.rounds == 2 for row in results.rows)
    assert {"torch", "cpu", "threads", "date"} <= results.environment.keys()
    assert _cli.main(["bench", "--compare", str(file), str(file)]) == 0
    assert "+0.0%" in capsys.readouterr().out


def test_one_subject_that_fails_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = Grid((SMALL,), passes=("forward",), causal=True, rounds=2, seconds=0.0)
    rows = run.measure_cell(["floor", "no_such"], SMALL, "float32", "forward", "eager", grid)
    notes = {row.name: row.note for row in rows}
    assert notes["floor"] == ""
    assert notes["no_such"].startswith("not timed: ")


def test_verdict_needs_quartiles_apart() -> None:
    def row(low: float, high: float) -> Row:
        return Row(name="", shape="", dtype="", which="", mode="", low=low, high=high)

    assert verdict(row(1.0, 1.1), row(1.2, 1.3)) == "slower"
    assert verdict(row(1.2, 1.3), row(1.0, 1.1)) == "faster"
    assert verdict(row(1.0, 1.2), row(1.1, 1.3)) == ""


def test_file_that_is_no_result_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text(json.dumps({"rows": []}), encoding="utf-8")
    with pytest.raises(TargetError, match="not a result of attnspec bench"):
        Results.read(file)


def test_result_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="could not be written"):
        Results(environment={}).write(tmp_path / "no" / "x.json")


def test_layers_are_the_registered_ones() -> None:
    assert {"sdpa", "batched"} <= set(command.layers())
    assert "sdpa_core" not in command.layers()


def test_help_names_the_gate_and_the_floor(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert "shape and value" in shown
    assert "the floor" in shown
