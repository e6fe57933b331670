"""What goes wrong in other people's code: the user's own line, and exceptions as results."""

import json
import sys
from pathlib import Path

import pytest
import torch

import attnspec
import attnspec_impls
from attnspec._errors import UnsupportedFeatureError
from attnspec.conformance.failures import SubjectError, is_machinery, user_place
from attnspec.conformance.guard import Heartbeat, guarded

OWN = ["attnspec/mine.py", "torch/mine.py", "hypothesis/mine.py", "json/mine.py", "mine.py"]


@pytest.mark.parametrize("name", OWN)
def test_file_of_the_user_is_no_machinery_whatever_its_folder(tmp_path: Path, name: str) -> None:
    assert not is_machinery(str(tmp_path / name))


def test_installed_package_is_no_machinery() -> None:
    """What is checked may be installed."""
    assert not is_machinery(str(Path(pytest.__file__)))
    assert not is_machinery(str(Path(attnspec_impls.__file__)))


@pytest.mark.parametrize(
    "module", [torch, torch.nn.functional, attnspec, json], ids=lambda module: module.__name__
)
def test_library_is_machinery(module: object) -> None:
    assert is_machinery(str(module.__file__))


def test_code_without_a_file_is_machinery() -> None:
    assert is_machinery("<declared call>")


def test_place_is_the_innermost_line_of_the_user() -> None:
    def inner() -> None:
        torch.zeros(3, 5) @ torch.zeros(3, 5)  # here

    try:
        inner()
    except RuntimeError as error:
        place = user_place(error.__traceback__)
    assert place is not None
    assert place.text == "torch.zeros(3, 5) @ torch.zeros(3, 5)  # here"
    assert str(place) == f"test_failures.py:{place.line}  {place.text}"


def test_no_frames_are_no_place() -> None:
    assert user_place(None) is None


def test_exception_becomes_a_result_in_one_line() -> None:
    found = SubjectError.of(ValueError("three\nlines\nlong"))
    assert (str(found), found.kind, found.refusal) == ("ValueError: three", "ValueError", False)
    assert str(SubjectError.of(KeyboardInterrupt())) == "KeyboardInterrupt"
    assert str(SubjectError.of(SystemExit(3))) == "SystemExit: exit(3)"
    assert len(SubjectError.of(ValueError("x" * 1000)).message) == 400


@pytest.mark.parametrize("error", [NotImplementedError("no"), UnsupportedFeatureError("no")])
def test_refusal_on_purpose_is_told_apart(error: Exception) -> None:
    assert SubjectError.of(error).refusal


def raising(error: BaseException) -> None:
    """Raise what is given."""
    kept = torch.zeros(7)  # noqa: F841 - a frame that would keep it
    raise error


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), GeneratorExit(), BaseException("all")])
def test_guarded_call_gives_a_result(error: BaseException) -> None:
    with pytest.raises(SubjectError) as caught:
        guarded(raising, error)
    assert caught.value.place is not None
    assert caught.value.place.text == "raise error"
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_interrupt_is_the_users_own_unless_the_process_is_the_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        guarded(raising, KeyboardInterrupt())
    monkeypatch.setattr(Heartbeat, "alone", True)
    with pytest.raises(SubjectError, match="KeyboardInterrupt"):
        guarded(raising, KeyboardInterrupt())


def test_settings_are_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def change() -> str:
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        monkeypatch.chdir(Path(sys.prefix))
        return "done"

    assert guarded(change) == "done"
    assert torch.get_default_dtype() == torch.float32
    assert torch.is_grad_enabled()
    assert Path.cwd() == tmp_path


def test_settings_are_put_back_after_an_exception() -> None:
    def change() -> None:
        torch.set_default_dtype(torch.bfloat16)
        raise RuntimeError

    with pytest.raises(SubjectError):
        guarded(change)
    assert torch.get_default_dtype() == torch.float32
