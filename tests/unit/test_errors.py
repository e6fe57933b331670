"""Every exception class is one that a caller would catch anyway, and its messages are whole."""

import inspect

import pytest

from attnspec import _errors
from attnspec._errors import AttnspecError, UnknownNameError

BASES = {
    "ShapeError": ValueError, "DtypeError": TypeError, "UnsupportedFeatureError": NotImplementedError,
    "UnknownNameError": LookupError, "NameClashError": ValueError, "TargetError": Exception,
    "DeclarationError": ValueError, "ReportError": OSError, "SelfTestError": AssertionError,
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [n for n, c in vars(_errors).items() if inspect.isclass(c) and c.__module__ == _errors.__name__]
)
def test_error_is_of_attnspec_and_of_python(name: str) -> None:
    kind = getattr(_errors, name)
    assert issubclass(kind, AttnspecError)
    assert name.endswith("Error")
    assert issubclass(kind, BASES.get(name, Exception))


def test_unknown_name_lists_and_suggests() -> None:
    error = UnknownNameError("profile", "qick", ["thorough", "quick", "default"])
    assert (
        str(error) == "no profile is called 'qick'; did you mean 'quick'?\n  valid: default, quick, thorough"
    )


def test_unknown_name_far_from_all_suggests_nothing() -> None:
    assert str(UnknownNameError("profile", "zzz", ["quick"])) == "no profile is called 'zzz'\n  valid: quick"


def test_unknown_name_among_none_says_so() -> None:
    assert str(UnknownNameError("profile", "quick", [])) == "no profile is called 'quick'\n  valid: none"


def test_worded_message_stands_alone() -> None:
    assert str(UnknownNameError.worded("nothing of the kind")) == "nothing of the kind"
