"""`attnspec show`, `list` and `new`, and what the command line does without a command or with a wrong one."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import attnspec_impls
from attnspec import _cli, clauses
from attnspec._axes import AXES
from attnspec._cli import main, parser
from attnspec._table import STAGES

Said = tuple[int, str, str]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """Return a function that runs the command line and gives its status and what it said."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words: str) -> tuple[int, str, str]:
        status = main(words)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_show_clause(said) -> None:
    status, out, _ = said("show", "mask.dead_row.zero")
    lines = out.splitlines()
    assert status == 0
    assert lines[0] == "mask.dead_row.zero"
    assert lines[1] == clauses()["mask.dead_row.zero"].statement
    assert lines[2].split() == ["level", "MUST"]
    assert lines[-1].split() == ["address", "/clauses/mask/#mask.dead_row.zero"]


def test_show_chapter_lists_its_clauses(said) -> None:
    status, out, _ = said("show", "mask")
    names = [line.split()[0] for line in out.splitlines()[1:]]
    assert status == 0
    assert names == [c.name for c in clauses().select("mask")]


@pytest.mark.parametrize("words", [("show", "stages"), ("list", "stages")], ids=" ".join)
def test_show_stages_is_the_table(said, words: tuple[str, ...]) -> None:
    status, out, _ = said(*words)
    assert status == 0
    assert out.splitlines()[0].split() == ["stage", "from", "to", "path"]
    assert out.splitlines()[1].startswith("project queries")
    assert len(out.splitlines()) == 1 + len(STAGES)
    assert "batch heads q_len d_k, batch heads kv_len d_k" in out


@pytest.mark.parametrize("words", [("show", "axes"), ("list", "axes")], ids=" ".join)
def test_show_axes_is_the_vocabulary(said, words: tuple[str, ...]) -> None:
    status, out, _ = said(*words)
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()[1:]] == [axis.name for axis in AXES]


def test_show_implementation(said) -> None:
    status, out, _ = said("show", "sdpa_core")
    assert status == 0
    assert out.splitlines()[0].split() == ["sdpa_core", "core"]
    assert out.splitlines()[-1].startswith("attnspec_impls.sdpa_core:")


def test_show_unknown_name_suggests_the_nearest(said) -> None:
    status, out, err = said("show", "mask.dead_row.zeros")
    assert (status, out) == (2, "")
    first = err.splitlines()[0]
    assert first == (
        "attnspec: no clause, chapter, implementation or table is called 'mask.dead_row.zeros'; "
        "did you mean 'mask.dead_row.zero'?"
    )


def test_list_is_every_implementation(said) -> None:
    status, out, _ = said("list")
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()] == list(attnspec_impls.CATALOGUE)


def test_list_clauses_is_every_clause(said) -> None:
    status, out, _ = said("list", "clauses")
    assert status == 0
    named = [line.split()[0] for line in out.splitlines() if line and line.split()[0] in clauses()]
    assert named == list(clauses())


def test_no_command_is_help_and_status_2(said) -> None:
    status, out, _ = said()
    assert status == 2
    assert out.startswith("usage: attnspec ")


@pytest.mark.parametrize(
    "words", [("frobnicate",), ("list", "nothing"), ("check", "--jobs", "many")], ids=" ".join
)
def test_wrong_words_are_status_2(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert "error: argument" in capsys.readouterr().err


def test_version_names_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("attnspec ")


def test_interrupt_is_status_130(monkeypatch: pytest.MonkeyPatch, said) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(_cli, "_list", interrupted)
    assert said("list") == (130, "", "attnspec: stopped\n")


def test_every_command_has_a_summary() -> None:
    text = parser().format_help()
    for command in (
        "check",
        "show",
        "list",
        "new",
        "declare",
        "trace",
        "compare",
        "convert",
        "bench",
        "plot",
    ):
        assert f"    {command}" in text


def test_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    """As in `attnspec list clauses | head -1`."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    words = [sys.executable, "-m", "attnspec", "list", "clauses"]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        words, stdout=write, stderr=subprocess.PIPE, env=environment, cwd=tmp_path, text=True, timeout=60
    )  # fmt: skip
    os.close(write)
    assert done.stderr == ""


@pytest.mark.parametrize(("kind", "target"), [("layer", "MyAttention"), ("core", "my_attention")])
def test_new_writes_a_skeleton_that_passes(said, in_folder: Path, kind: str, target: str) -> None:
    status, out, _ = said("new", "my_attention", "--kind", kind)
    assert status == 0
    assert out.splitlines()[0] == "wrote my_attention.py"
    assert out.splitlines()[1] == f"check it:     attnspec check my_attention.py:{target}"
    text = Path("my_attention.py").read_text()
    assert f'Implementation(name="my_attention", contract="{kind}", target={target}' in text
    assert 'my_attention = "my_attention:IMPLEMENTATION"' in text
    status, out, _ = said("check", f"my_attention.py:{target}", "--profile", "quick", "--jobs", "2")
    assert status == 0, out
    assert out.splitlines()[-1].startswith("conforms")


def test_new_does_not_overwrite(said, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("precious")
    status, _, err = said("new", "mine", "--folder", str(tmp_path))
    path = tmp_path / "mine.py"
    assert (status, err) == (2, f"attnspec: new: {path} exists; choose another name or move it away\n")
    assert (tmp_path / "mine.py").read_text() == "precious"


HINTS = {"my-attention": "my_attention", "5": "my_attention", "class": "my_class"}


@pytest.mark.parametrize(("name", "hint"), list(HINTS.items()))
def test_new_refuses_what_is_no_python_name(said, tmp_path: Path, name: str, hint: str) -> None:
    status, _, err = said("new", name, "--folder", str(tmp_path))
    assert status == 2
    assert err == f"attnspec: new: {name!r} is not a Python name; try {hint}\n"


def test_new_says_that_it_cannot_write(said, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    status, _, err = said("new", "mine", "--folder", str(tmp_path / "file"))
    assert status == 2
    assert err.startswith(f"attnspec: new: cannot write {tmp_path / 'file' / 'mine.py'}: ")
