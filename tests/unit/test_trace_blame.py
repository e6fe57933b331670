"""Blame: wrong layers by row and line, right ones never."""

import importlib.util
from functools import cache
from pathlib import Path

import pytest
import torch

from attnspec.trace import trace_runs

_spec = importlib.util.spec_from_file_location(
    "trace_harness_blame", Path(__file__).parent.parent / "trace_subjects" / "harness.py"
)
assert _spec is not None
assert _spec.loader is not None
harness = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(harness)


def _classes(name: str) -> dict[str, type]:
    return {n: c for n, c in vars(harness.load(name)).items() if isinstance(c, type) and "forward" in vars(c)}


FILES = ("wrong_shapes", "wrong_scores", "wrong_others")
RIGHT = {n: c for n, c in _classes("right_layers").items() if issubclass(c, torch.nn.Module)}
WRONG = {(f, n): c for f in FILES for n, c in _classes(f).items()}
# The marked line is one further: what the row is made of was spoilt there, and it was read here.
NEARBY = {"OnlineWithoutRescaling"}


@cache
def _trace_wrong(file: str, name: str):
    module = WRONG[file, name]
    grouped = name.startswith("Grouped")
    mask = getattr(module, "mask", "some" if file == "wrong_scores" else None)

    def build(s):
        sizes = (s["d_model"], s["heads"]) + ((s["kv_heads"],) if file == "wrong_shapes" else ())
        return module(*sizes)

    return trace_runs(harness.layer_runs(build, mask=mask, grouped=grouped))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("mask", [None, "some", "dead", "causal"])
@pytest.mark.parametrize("name", RIGHT)
def test_right_code_is_not_blamed(name, mask, dtype):
    if name == "OwnFunction" and mask is not None:
        pytest.skip("takes no mask")
    trace = trace_runs(
        harness.layer_runs(lambda s: RIGHT[name](s["d_model"], s["heads"]), mask=mask, dtype=dtype)
    )
    assert (trace.correct, trace.departure, trace.failure) == (True, None, None)
    assert "missing" not in {c.status for c in trace.contract}


@pytest.mark.parametrize(("file", "name"), WRONG, ids=[n for _, n in WRONG])
def test_wrong_code_is_blamed_on_its_row_and_line(file, name):
    line, stage = harness.marks(file)[name]
    found = _trace_wrong(file, name).departure
    assert found is not None
    assert found.stage == stage
    assert Path(found.file).name == f"{file}.py"
    if name not in NEARBY:
        assert line in (found.line, *found.callers)


def test_blame_precision_over_all_wrong_layers():
    stages = lines = 0
    for file, name in WRONG:
        line, stage = harness.marks(file)[name]
        found = _trace_wrong(file, name).departure
        stages += found is not None and found.stage == stage
        lines += found is not None and line in (found.line, *found.callers)
    assert len(WRONG) >= 25
    assert stages / len(WRONG) >= 0.9, f"the row is right for {stages} of {len(WRONG)}"
    assert lines / len(WRONG) >= 0.9, f"the line is right for {lines} of {len(WRONG)}"


def test_sentence_names_line_shape_and_reason():
    text = _trace_wrong("wrong_shapes", "BareView").departure.text
    assert text == (
        "wrong_shapes.py:33 view gives (batch, heads, seq, d_k); "
        "the contract's split then transpose gives the same shape with other contents"
    )


def test_blame_in_a_helper_names_the_caller():
    found = _trace_wrong("wrong_shapes", "ValuesNotProjected").departure
    assert "called from line" in found.text


CORES = {n: c for n, c in vars(harness.load("cores")).items() if isinstance(c, type)}
OPTIONS = ("softcap", "scale", "window", "bias")
MARKS = harness.marks("cores")


def _trace_core(name: str):
    options = {n: found for n, found in vars(CORES[name]).items() if n in OPTIONS}
    return trace_runs(harness.core_runs(CORES[name](), mask="some", runs=1, **options))


@pytest.mark.parametrize("name", [n for n in CORES if n.startswith("Right")])
def test_right_core_with_options_is_not_blamed(name):
    trace = _trace_core(name)
    assert (trace.correct, trace.departure) == (True, None)


@pytest.mark.parametrize("name", [n for n in CORES if not n.startswith("Right")])
def test_wrong_core_with_options_is_blamed_on_its_row_and_line(name):
    line, stage = MARKS[name]
    found = _trace_core(name).departure
    assert found is not None
    assert found.stage == stage
    assert line in (found.line, *found.callers)
