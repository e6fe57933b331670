"""`attnspec check`: the exit status of each ending, what is shown, and what is written."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from attnspec._cli import main

MINE = """
import torch
from torch import nn

HALF = 0.5


def attend(query, key, value):
    scores = (query @ key.transpose(-2, -1)) * query.shape[-1] ** -0.5
    return scores.softmax(-1) @ value


def unscaled(query, key, value):
    scores = query @ key.transpose(-2, -1)
    return scores.softmax(-1) @ value


class CannotBeMade(nn.Module):
    def __init__(self, d_model, heads):
        super().__init__()
        raise RuntimeError("not today")

    def forward(self, x):
        return x


class Strange(nn.Module):
    def __init__(self, frobnicate, wibble):
        super().__init__()

    def forward(self, x):
        return x
"""
Captured = pytest.CaptureFixture[str]
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> Command:
    """Return a function that runs the command line beside one file, and gives status and outputs."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words: str) -> tuple[int, str, str]:
        status = main(words)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


QUICK = ("--profile", "quick", "--jobs", "1")


def test_all_that_ran_passes_is_status_0(command: Command) -> None:
    words = ("--clause", "shape", "--clause", "scale.default")
    status, out, err = command("check", "mine.py:attend", *QUICK, *words)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("attnspec ")
    assert lines[0].endswith(" · core · cpu · float32 float64 bfloat16 float16")
    assert lines[1] == "recognised   no causal flag · no mask · no grouped heads · no dropout"
    assert lines[2].split() == ["shape", "4/4", "scale", "1/1"]
    assert lines[3] == "ran 5 of 5 clauses that apply to a core"
    assert lines[-1].startswith("conforms  (")
    assert lines[-1].endswith(" cases, profile quick, seed 1)")


def test_broken_must_is_status_1_and_shows_everything(command: Command, tmp_path: Path) -> None:
    words = ("--clause", "scale.default", "--json", "found/report.json", "--junit", "found/report.xml")
    status, out, _ = command("check", "mine.py:unscaled", *QUICK, *words)
    assert status == 1
    assert "FAILED scale.default (MUST)" in out
    assert "  smallest   batch=1 " in out
    assert "  again      python .attnspec/scale.default.py" in out
    assert out.splitlines()[-1].startswith("NOT multi-head attention as specified: 1 clause broken  (")
    data = json.loads((tmp_path / "found/report.json").read_text())
    assert (data["status"], data["ran"], data["of"], data["target"]) == (1, 1, 1, "mine.py:unscaled")
    (result,) = data["results"]
    assert (result["clause"], result["status"], result["level"]) == ("scale.default", "failed", "MUST")
    assert result["failure"]["script"] == ".attnspec/scale.default.py"
    (suite,) = ElementTree.parse(tmp_path / "found/report.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("1", "1", "0")
    (case,) = suite
    assert (case.get("classname"), case.get("name")) == ("mine.py:unscaled", "scale.default")
    assert case.find("failure") is not None


def test_script_reproduces_with_torch_and_the_file_alone(command: Command, tmp_path: Path) -> None:
    """The case is computed here once more: without the scale, weights are those of the bare scores."""
    command("check", "mine.py:unscaled", *QUICK, "--clause", "scale.default")
    command_line = (
        "import runpy, sys; sys.modules.update(attnspec=None, attnspec_impls=None);"
        "found = runpy.run_path('.attnspec/scale.default.py');"
        "scores = found['query'] @ found['key'].transpose(-2, -1);"
        "wrong = scores.softmax(-1) @ found['value'];"
        "right = (scores * found['query'].shape[-1] ** -0.5).softmax(-1) @ found['value'];"
        "same = [bool((found['output'] == other).all()) for other in (wrong, right)];"
        "print(same)"
    )
    words = [sys.executable, "-c", command_line]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "output tensor(" in done.stdout
    assert "expected there " in done.stdout
    assert done.stdout.splitlines()[-1] == "[True, False]"


USAGE = {
    ("unknown_name",): "no implementation is called 'unknown_name'",
    ("nowhere.py:Mine",): "nowhere.py: there is no such file (looked in {folder})",
    ("mine.py:atend",): "mine.py: no object is called 'atend'; did you mean attend?",
    ("mine.py:HALF",): (
        "mine.py:HALF: neither an attention function (query, key, value, ...) nor a module class; "
        "it is a float"
    ),
    ("mine.py:CannotBeMade",): (
        "mine.py:CannotBeMade: it cannot be constructed with CannotBeMade(d_model=d_model, heads=heads): "
        "RuntimeError: not today"
    ),
    ("mine.py:Strange",): (
        "mine.py:Strange: cannot tell what its constructor wants as frobnicate in Strange(frobnicate, wibble)"
    ),
    ("mine.py:attend", "--profile", "qick"): "no profile is called 'qick'; did you mean 'quick'?",
    ("mine.py:attend", "--clause", "masks"): "no clause or chapter is called 'masks'; did you mean 'mask'?",
    (
        "mine.py:attend",
        "--declare",
        "maks=blocked",
    ): "no --declare key is called 'maks'; did you mean 'mask'?",
    ("mine.py:attend", "--declare", "mask"): "--declare takes key=value; got 'mask'",
    ("mine.py:attend", "--call", "f(query"): (
        "declaration: call must be one Python expression; got 'f(query' ('(' was never closed)"
    ),
    ("mine.py:attend", "--device", "cude"): "device 'cude' cannot be used here: ",
}


@pytest.mark.parametrize("words", USAGE, ids=" ".join)
def test_what_cannot_be_checked_is_status_2(command: Command, tmp_path: Path, words: tuple[str, ...]) -> None:
    status, out, err = command("check", *words, "--jobs", "1")
    assert (status, out) == (2, "")
    assert err.split("\n")[0].startswith("attnspec: " + USAGE[words].replace("{folder}", str(tmp_path)))
    assert "Traceback" not in err


def test_running_nothing_that_applies_is_status_2_with_reasons(command: Command) -> None:
    status, out, _ = command("check", "mine.py:attend", *QUICK, "--clause", "softcap.value")
    assert status == 2
    assert "ran 0 of 1 clauses that apply to a core; 1 not applicable:" in out
    assert "    1  it takes no softcap" in out


def test_quiet_is_the_names_and_the_verdict(command: Command) -> None:
    status, out, _ = command(
        "check", "mine.py:unscaled", *QUICK, "--clause", "scale.default, shape.output", "-q"
    )
    first, last = out.splitlines()
    assert status == 1
    assert first.startswith("FAILED scale.default (MUST)")
    assert last.startswith("NOT multi-head attention as specified: 1 clause broken")


def test_report_on_standard_output_is_json_alone(command: Command, tmp_path: Path) -> None:
    words = ("--clause", "shape.output", "--json", "-", "--junit", "report.xml")
    status, out, err = command("check", "mine.py:attend", *QUICK, *words)
    assert status == 0
    data = json.loads(out)
    assert [r["clause"] for r in data["results"]] == ["shape.output"]
    assert "conforms" in err
    assert ElementTree.parse(tmp_path / "report.xml").getroot().tag == "testsuites"


def test_report_that_cannot_be_written_loses_nothing(command: Command, tmp_path: Path) -> None:
    """The verdict was shown, the other report is there, and the status says that something went wrong."""
    (tmp_path / "taken").mkdir()
    words = ("--clause", "shape.output", "--json", "taken", "--junit", "report.xml")
    status, out, err = command("check", "mine.py:attend", *QUICK, *words)
    assert status == 2
    assert out.splitlines()[-1].startswith("conforms")
    assert (
        err == "attnspec: the report cannot be written to taken: Is a directory; the verdict above stands\n"
    )
    assert ElementTree.parse(tmp_path / "report.xml").getroot()[0].get("failures") == "0"


def test_target_that_cannot_be_checked_leaves_the_others(command: Command) -> None:
    targets = ("mine.py:attend", "mine.py:nothing_here", "mine.py:unscaled")
    status, out, err = command("check", *targets, *QUICK, "--clause", "scale.default", "--json", "both.json")
    assert status == 2
    assert err.startswith("attnspec: mine.py: no object is called 'nothing_here'")
    assert "1 of 3 implementations conform" in out
    assert "Traceback" not in err
    data = json.loads(Path("both.json").read_text())
    verdicts = [(report["target"], report["status"]) for report in data]
    assert verdicts == [("mine.py:attend", 0), ("mine.py:unscaled", 1)]


def test_declaration_beside_the_code_is_used(command: Command, tmp_path: Path) -> None:
    """A deviation with a reason is shown, never hidden, and does not decide the status."""
    (tmp_path / "attnspec.toml").write_text(
        '[declare."mine.py:unscaled".deviations]\n"scale.default" = "ours is folded into the weights"\n'
    )
    words = ("--clause", "scale.default", "--clause", "shape.output")
    status, out, _ = command("check", "mine.py:unscaled", *QUICK, *words)
    assert status == 0
    assert "DEVIATION scale.default  ours is folded into the weights" in out
