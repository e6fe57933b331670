"""What the code inside a model does to its process is a result, and the other kinds are still checked."""

import sys
from pathlib import Path

import pytest

from attnspec._cli import main

MODELS = Path(__file__).parent / "models.py"
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals as POSIX has them")


def check(capsys: pytest.CaptureFixture[str], name: str, *clauses: str) -> tuple[int, str, str]:
    """Check a model's insides and return the exit status and what is printed."""
    words = [word for clause in clauses for word in ("--clause", clause)]
    status = main(
        ["check", "--inside", f"{MODELS}:{name}", "--profile", "quick", "--limit", "4", "--jobs", "1", *words]
    )
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def sections(text: str) -> tuple[str, str]:
    """Return what is printed about the module that acts, and about the one beside it."""
    acting, plain = text.split("\nother ")[1].split("\nplain Attention\n")
    return acting, plain


@pytest.mark.parametrize(
    ("name", "what", "line"),
    [
        ("Exits", "SystemExit: exit(3)", "models.py:35  os._exit(3)"),
        ("Crashes", "the process was ended by SIGSEGV", "models.py:45"),
        ("Hangs", "a call did not return within 4 seconds (a hang)", "models.py:55"),
    ],
)
def test_act_inside_a_model_is_a_result_of_that_module(
    capsys: pytest.CaptureFixture[str], name: str, what: str, line: str
) -> None:
    status, out, _ = check(capsys, name, "size.one", "state.train_eval")
    acting, plain = sections(out)
    assert status == 1
    assert "state 0/1" in acting
    assert what in acting
    assert line in acting
    assert plain.count("conforms") == 1


def test_default_dtype_changed_inside_a_model_is_a_result(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = check(capsys, "Doubles", "state.settings")
    acting, plain = sections(out)
    assert status == 1
    assert "the call changes the default dtype" in acting
    assert plain.count("conforms") == 1


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("ExitsWhenMade", "the model cannot be made: SystemExit: exit(0)"),
        ("CrashesWhenMade", "while the model was loaded and made, the process was ended by SIGSEGV"),
        (
            "HangsWhenMade",
            "while the model was loaded and made, a call did not return within 4 seconds (a hang)",
        ),
    ],
)
def test_model_that_cannot_be_made_is_one_message(
    capsys: pytest.CaptureFixture[str], name: str, how: str
) -> None:
    status, out, err = check(capsys, name, "size.one")
    assert (status, out) == (2, "")
    assert how in err
    assert "models.py:" in err.split(how)[1]
