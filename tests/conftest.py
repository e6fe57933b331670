"""What several test folders share: fresh interpreters, the command line in a process, files of user code."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

pytest_plugins = ["pytester"]

Run = Callable[..., subprocess.CompletedProcess[str]]


def run_process(
    *words: str, folder: Path, seconds: float = 150.0, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run this interpreter with some words, where imports are found as they are found here."""
    environment = {
        **os.environ,
        "COLUMNS": "200",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        **variables,
    }
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds
    )


@pytest.fixture
def fresh_python(tmp_path: Path) -> Run:
    """Return a function that runs code in a fresh interpreter in which warnings are errors."""

    def run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return run_process("-W", "error", "-c", textwrap.dedent(code), folder=tmp_path, **variables)

    return run


@pytest.fixture
def attnspec_command(tmp_path: Path) -> Run:
    """Return a function that runs the command line in a process of its own, in an empty folder."""

    def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return run_process("-m", "attnspec", *words, folder=tmp_path, **variables)

    return run


@pytest.fixture
def write_module(tmp_path: Path) -> Callable[[str, str], Path]:
    """Return a function that writes a file of user code and returns its path."""

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")
        return path

    return write


@pytest.fixture
def kept_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put back what loading a target changes here: `sys.path` and `sys.modules`."""
    path, modules = list(sys.path), dict(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - set(modules):
        if not hasattr(sys.modules[name], "__file__") or "pytest-of-" in str(sys.modules[name].__file__):
            del sys.modules[name]


@pytest.fixture
def generator() -> torch.Generator:
    """Return a source of randomness that is the same in every test."""
    return torch.Generator().manual_seed(20261129)
