"""Declarations: what they refuse and in which words, how they merge, and where they are kept."""

from dataclasses import fields
from pathlib import Path

import pytest

from attnspec._errors import DeclarationError, UnknownNameError
from attnspec.declaration import CHOICES, Declaration, read_declarations


@pytest.mark.parametrize("name", CHOICES)
def test_value_outside_the_choices_is_refused(name: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        Declaration(**{name: "maybe"})
    assert str(caught.value) == f"declaration: {name} must be one of {', '.join(CHOICES[name])}; got 'maybe'"


@pytest.mark.parametrize("name", CHOICES)
def test_choices_are_fields(name: str) -> None:
    assert name in {f.name for f in fields(Declaration)}
    for value in CHOICES[name]:
        assert getattr(Declaration(**{name: value}), name) == value


def test_unknown_key_suggests_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        Declaration.from_mapping({"maks": "blocked"})
    first, listed = str(caught.value).split("\n")
    assert first == "no declaration key is called 'maks'; did you mean 'mask'?"
    assert listed == "  valid: " + ", ".join(sorted(f.name for f in fields(Declaration)))


MESSAGES = {
    "sizes=3": "--declare: sizes is a table; write sizes.<key>=<value>, got sizes=3",
    "sizes.heads=many": "--declare: sizes.heads must be a whole number; got 'many'",
    "neutral.theta=all": "--declare: neutral.theta must be a number; got 'all'",
    "max_len=long": "--declare: max_len must be a whole number; got 'long'",
    "mask": "--declare takes key=value; got 'mask'",
    "mask=maybe": "declaration: mask must be one of attend, blocked, additive; got 'maybe'",
    "call=f(query": "declaration: call must be one Python expression; got 'f(query' ('(' was never closed)",
    "new=import os": "declaration: new must be one Python expression; got 'import os' (invalid syntax)",
    "dtypes=float32 float31": "no dtype is called 'float31'; did you mean 'float32'?",
}


@pytest.mark.parametrize("pair", MESSAGES)
def test_pair_that_does_not_fit_is_refused(pair: str) -> None:
    with pytest.raises((DeclarationError, UnknownNameError)) as caught:
        Declaration.from_pairs([pair])
    assert str(caught.value).split("\n")[0] == MESSAGES[pair]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mask": True}, "declaration: mask must be text; got True"),
        ({"dtypes": 32}, "declaration: dtypes must be a list of names; got 32"),
        (
            {"weights": ["W_q"]},
            "declaration: weights is a table; write weights.<key>=<value>, got weights=['W_q']",
        ),
    ],
)
def test_value_of_the_wrong_kind_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        Declaration.from_mapping(given)
    assert str(caught.value) == message


def test_pairs_fill_fields_and_tables() -> None:
    pairs = [
        "mask=blocked",
        "weights.W_q = attn.q.weight",
        "weights.W_k=attn.k.weight",
        "max_len=17",
        "sizes.heads=3",
    ]
    found = Declaration.from_pairs(
        [*pairs, "dtypes=float32, bfloat16", "call=f(query, mask=mask)[0]", "bypass=norm1 norm2"]
    )
    assert found == Declaration(
        mask="blocked", weights={"W_q": "attn.q.weight", "W_k": "attn.k.weight"}, max_len=17,
        sizes={"heads": 3}, dtypes=("float32", "bfloat16"), call="f(query, mask=mask)[0]",
        bypass=("norm1", "norm2"),
    )  # fmt: skip


def test_plain_data_comes_back_the_same() -> None:
    said = Declaration(
        mask="additive", dtypes=("float64",), weights={"W_q": "q"}, sizes={"heads": 5}, neutral={"cos": 1.0},
        max_len=7, deviations={"mask.dead_row.zero": "on purpose"}, bypass=(),
    )  # fmt: skip
    assert "bypass" not in said.as_dict()
    assert Declaration.from_mapping(said.as_dict()) == said.replace(bypass=None)
    assert Declaration().as_dict() == {}


def test_what_is_said_goes_over_what_is_kept() -> None:
    said = Declaration(mask="blocked", weights={"W_q": "mine"})
    kept = Declaration(mask="attend", causal="always", weights={"W_q": "theirs", "W_k": "theirs"})
    assert said.over(kept) == Declaration(
        mask="blocked", causal="always", weights={"W_q": "mine", "W_k": "theirs"}
    )


def test_files_beside_the_code_are_read(tmp_path: Path) -> None:
    (tmp_path / "attnspec.toml").write_text(
        '[declare."mine.py:Mine"]\nmask = "blocked"\ndtypes = ["float32"]\n'
        '[declare."mine.py:Mine".weights]\nW_q = "q.weight"\n'
    )
    (tmp_path / "pyproject.toml").write_text('[tool.attnspec.declare."other:attend"]\ncausal = "always"\n')
    assert read_declarations(tmp_path) == {
        "mine.py:Mine": Declaration(mask="blocked", dtypes=("float32",), weights={"W_q": "q.weight"}),
        "other:attend": Declaration(causal="always"),
    }


def test_folder_without_files_declares_nothing(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "other"\n')
    assert read_declarations(tmp_path) == {}


TOML = {
    "[declare": "attnspec.toml: not valid TOML: Expected ']' at the end of a table declaration",
    "declare = 3": "attnspec.toml: declare must be a table of targets; got 3",
    '[declare]\n"a:B" = "blocked"': (
        """attnspec.toml: write [declare."a:B"] and the keys below it; got 'blocked'"""
    ),
    '[declare."a:B"]\nmaks = "blocked"': "no attnspec.toml [a:B] key is called 'maks'; did you mean 'mask'?",
    '[declare."a:B"]\nmask = true': "attnspec.toml [a:B]: mask must be text; got True",
}


@pytest.mark.parametrize("text", TOML)
def test_file_that_cannot_be_used_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "attnspec.toml").write_text(text)
    with pytest.raises((DeclarationError, UnknownNameError)) as caught:
        read_declarations(tmp_path)
    assert str(caught.value).split("\n")[0].removeprefix(f"{tmp_path}/").startswith(TOML[text])
