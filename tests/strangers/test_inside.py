"""Whole models: which modules are attention, which are not, and that each kind is checked once."""

import sys

import pytest
import strangers_table as table

from attnspec._cli import main
from attnspec._errors import TargetError
from attnspec.declaration import Declaration
from attnspec.loading import load_target
from attnspec.recognition.inside import find_attention

MODELS = f"{table.SUBJECTS}/models.py"


@pytest.fixture(autouse=True)
def _beside_the_subjects(monkeypatch):
    monkeypatch.syspath_prepend(str(table.SUBJECTS))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(table.SUBJECTS) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_each_kind_is_found_once_and_the_rest_is_named():
    kinds, left = find_attention(load_target(f"{MODELS}:Model"))
    assert [(type(kind.module).__name__, kind.paths) for kind in kinds] == [
        ("EmbedDim", ["blocks.0.attn", "blocks.1.attn", "blocks.2.attn"]),
        ("MultiheadAttention", ["cross"]),
    ]
    assert left == {"pool": "no query, key and value projections were found in it"}


def test_a_model_that_needs_arguments_says_which_word_supplies_them():
    with pytest.raises(TargetError, match="--new 'NeedsWidth"):
        find_attention(load_target(f"{MODELS}:NeedsWidth"))
    kinds, _ = find_attention(load_target(f"{MODELS}:NeedsWidth"), Declaration(new="NeedsWidth(12)"))
    assert len(kinds) == 2


def test_the_command_checks_each_kind(capsys):
    status = main(["check", "--inside", f"{MODELS}:Model", "--profile", "quick", "--clause", "value.plain"])
    shown = capsys.readouterr().out
    assert "blocks.0.attn EmbedDim and 2 more like it" in shown
    assert "not taken    pool" in shown
    assert status == 0
    assert main(["check", "--inside", f"{MODELS}:Nothing", "--profile", "quick"]) == 2
