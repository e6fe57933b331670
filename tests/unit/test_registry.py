"""The registry: built-ins by name, other packages by entry points, clashes that show both."""

from pathlib import Path

import pytest

import attnspec_impls
from attnspec._errors import NameClashError, TargetError, UnknownNameError
from attnspec._registry import ENTRY_POINT_GROUP, Implementation, Registry, registry

MODULE = """
from attnspec import Implementation

def attend(query, key, value):
    return value

IMPLEMENTATION = Implementation(name="theirs", contract="core", target=attend, summary="Theirs [b, h].")
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that installs a distribution with entry points into a folder on the path."""

    def put(points: dict[str, str], *, name: str = "their-attention") -> None:
        info = tmp_path / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = "".join(f"{key} = {value}\n" for key, value in points.items())
        (info / "entry_points.txt").write_text(f"[{ENTRY_POINT_GROUP}]\n{lines}")

    (tmp_path / "their_attention_module.py").write_text(MODULE)
    (tmp_path / "their_broken_module.py").write_text("import no_such_package_anywhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    return put


@pytest.mark.parametrize("name", attnspec_impls.CATALOGUE)
def test_built_in_is_registered_under_its_name(name: str) -> None:
    record = registry().get(name)
    assert record.name == name
    assert record.summary
    assert record.location.startswith(f"attnspec_impls.{name}:")
    assert registry().origin(name) == f"attnspec_impls.{name}"


def test_unknown_name_suggests_the_nearest_and_lists_all() -> None:
    with pytest.raises(UnknownNameError) as caught:
        registry().get("spda")
    first, listed = str(caught.value).split("\n")
    assert first == "no implementation is called 'spda'; did you mean 'sdpa'?"
    assert all(name in listed for name in attnspec_impls.CATALOGUE)


def test_entry_point_of_another_package_is_found(install) -> None:
    install({"theirs": "their_attention_module:IMPLEMENTATION"})
    known = registry()
    assert "theirs" in known
    assert known.get("theirs").location == "their_attention_module:attend"
    assert known.origin("theirs") == "their_attention_module:IMPLEMENTATION (their-attention)"
    assert len(known) == len(attnspec_impls.CATALOGUE) + 1


def test_clash_with_a_built_in_shows_both(install) -> None:
    install({"sdpa": "their_attention_module:IMPLEMENTATION"})
    with pytest.raises(NameClashError) as caught:
        registry()
    assert str(caught.value) == (
        "two implementations are called 'sdpa': attnspec_impls.sdpa and "
        "their_attention_module:IMPLEMENTATION (their-attention)\n"
        "  rename one of them, or uninstall the package that you do not need"
    )


def test_clash_of_two_packages_shows_both(install) -> None:
    install({"theirs": "their_attention_module:IMPLEMENTATION"})
    install({"theirs": "another_module:IMPLEMENTATION"}, name="another-attention")
    with pytest.raises(NameClashError) as caught:
        registry()
    assert "(their-attention)" in str(caught.value)
    assert "(another-attention)" in str(caught.value)


def test_entry_point_that_does_not_import_is_one_message(install) -> None:
    install({"broken": "their_broken_module:IMPLEMENTATION"})
    with pytest.raises(TargetError) as caught:
        registry().get("broken")
    assert str(caught.value) == (
        "implementation 'broken', entry point their_broken_module:IMPLEMENTATION: it does not import: "
        "ModuleNotFoundError: No module named 'no_such_package_anywhere'"
    )


def test_entry_point_that_is_no_record_is_one_message(install) -> None:
    install({"bare": "their_attention_module:attend"})
    with pytest.raises(TargetError) as caught:
        registry().get("bare")
    assert str(caught.value) == (
        "implementation 'bare', entry point their_attention_module:attend: "
        "it must be an attnspec.Implementation record; got function"
    )


def test_list_goes_on_after_an_entry_point_that_does_not_import(
    install, capsys: pytest.CaptureFixture[str]
) -> None:
    from attnspec._show import show_list

    install(
        {"broken": "their_broken_module:IMPLEMENTATION", "theirs": "their_attention_module:IMPLEMENTATION"}
    )
    show_list("implementations")
    listed = capsys.readouterr().out
    assert "it does not import: ModuleNotFoundError" in listed
    assert "Theirs [b, h]." in listed
    assert "sdpa_core" in listed


def test_names_stay_in_the_order_of_registration() -> None:
    mine = Registry()
    record = Implementation(name="mine", contract="core", target=len, summary="Mine.")
    mine.add("mine", "here", lambda: record)
    mine.add("another", "there", lambda: record)
    assert list(mine) == ["mine", "another"]
    assert mine.get("mine") is record
    assert "third" not in mine
