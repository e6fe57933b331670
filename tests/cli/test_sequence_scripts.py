"""The script of a failure that lies in the order of calls repeats all of them, with torch alone."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnspec._cli import main

SUBJECT = """
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(d_model, d_model) for _ in range(4))
        self.kept = None

    def keys(self, x):
        return self.W_k(x)

    def factor(self, x, width):
        return width**-0.5

    def forward(self, x):
        inputs = self.W_q(x), self.keys(x), self.W_v(x)
        q, k, v = (
            t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in inputs
        )
        weights = (q @ k.mT * self.factor(x, q.shape[-1])).softmax(-1)
        return self.W_o((weights @ v).transpose(1, 2).flatten(2))


class KeepsProjection(Layer):
    def keys(self, x):
        if torch.is_grad_enabled():
            return self.W_k(x)
        if self.kept is None:
            self.kept = self.W_k.weight.clone(), self.W_k.bias.clone()
        return nn.functional.linear(x, *self.kept)


class KeepsFactor(Layer):
    def factor(self, x, width):
        if self.kept is None:
            self.kept = torch.full((1,), width**-0.5, dtype=x.dtype)
        return self.kept


class KeepsLength(Layer):
    def factor(self, x, width):
        self.kept = self.kept or x.shape[1]
        return width**-0.5 * (1 if x.shape[1] == self.kept else 2)


kept = {}


def by_identity(q, k, v):
    if kept.get("key") is not k:
        kept.update(key=k, transposed=k.mT.clone())
    return (q @ kept["transposed"] * q.shape[-1] ** -0.5).softmax(-1) @ v
"""
FAILURES = {
    "KeepsProjection": "state.weights_change",
    "KeepsFactor": "state.conversion",
    "KeepsLength": "state.second_call",
    "by_identity": "state.filled_anew",
}


@pytest.fixture
def failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], dict[str, Any]]:
    """Check one clause of one subject, and return the failure as the report has it."""
    (tmp_path / "mine.py").write_text(SUBJECT, encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    def run(name: str, clause: str) -> dict[str, Any]:
        words = ("--profile", "quick", "--jobs", "1", "--clause", clause, "--json", "report.json")
        assert main(["check", f"mine.py:{name}", *words]) == 1
        (result,) = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["results"]
        found: dict[str, Any] = result["failure"]
        return found

    return run


@pytest.mark.parametrize(("name", "clause"), FAILURES.items(), ids=FAILURES)
def test_script_repeats_the_calls_that_led_to_the_failure(
    name: str, clause: str, failure: Callable[[str, str], dict[str, Any]], tmp_path: Path
) -> None:
    """The script's last output holds the very number that was reported as got."""
    found = failure(name, clause)
    lines = (
        "import runpy, sys; sys.modules.update(attnspec=None, attnspec_impls=None)",
        f"found = runpy.run_path({found['script']!r})",
        "print(found['output'].detach().double().flatten().tolist())",
    )
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert found["got"] in json.loads(done.stdout.splitlines()[-1])
    text = (tmp_path / found["script"]).read_text(encoding="utf-8")
    assert text.count("output = ") > 1
