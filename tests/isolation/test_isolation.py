"""What code does to its process is one result; the clause behind it and the next target are untouched."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from attnspec import TargetError, check_implementation
from attnspec.conformance.results import ClauseResult
from attnspec.conformance.session import ProcessSession, innermost_line
from attnspec.declaration import Declaration

SUBJECTS = Path(__file__).parent / "subjects.py"
ACTED, AFTER = "scale.zero", "scale.negative"
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and descriptors as POSIX has them")


@pytest.fixture(scope="module")
def act_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the file in which the subject reads what to do."""
    path = tmp_path_factory.mktemp("act") / "act.txt"
    path.write_text("nothing")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNSPEC_TEST_ACT", str(path))
        yield path


@pytest.fixture(scope="module")
def session(act_file: Path) -> Iterator[ProcessSession]:
    """Return one session for all acts: a process that dies is followed by another."""
    found = ProcessSession(f"{SUBJECTS}:attend", Declaration(), profile_name="quick", limit=6.0, memory=6.0)
    found.recognise()
    yield found
    found.close()


@pytest.fixture
def act(session: ProcessSession, act_file: Path) -> Callable[[str], ClauseResult]:
    """Return a function that has the subject act in one clause, and sees that the next is untouched."""

    def run(name: str) -> ClauseResult:
        session._deaths = 0
        act_file.write_text(name)
        result = session.run(ACTED)
        act_file.write_text("nothing")
        after = session.run(AFTER)
        assert (result.clause, after.clause, after.status) == (ACTED, AFTER, "passed")
        return result

    return run


def line_of(text: str) -> int:
    """Return the number of the line of the subjects that holds a text."""
    lines = SUBJECTS.read_text().splitlines()
    (number,) = (n for n, line in enumerate(lines, 1) if text in line)
    return number


FAILS = {
    "exits": ("it raises where the clause wants an answer: SystemExit: exit(3)", "os._exit(3)"),
    "exits by name": ("it raises where the clause wants an answer: SystemExit: exit(4)", "sys.exit(4)"),
    "segfaults": ("the process was ended by SIGSEGV", '"segfaults": '),
    "is killed": ("the process was ended by SIGKILL", None),
    "hangs": ("a call did not return within 6 seconds (a hang)", "time.sleep(0.01)"),
    "allocates": ("it raises where the clause wants an answer: RuntimeError: ", "torch.empty(2**27)"),
    "recurses": ("it raises where the clause wants an answer: RecursionError: ", "    _recurse(query)"),
    "interrupts": ("it raises where the clause wants an answer: KeyboardInterrupt", "    raise error"),
    "raises base": ("it raises where the clause wants an answer: BaseException: of all", "    raise error"),
    "raises": ("it raises where the clause wants an answer: ValueError: three", "    raise error"),
    "reads": ("it raises where the clause wants an answer: EOFError: EOF when reading a line", '"reads": '),
    "closes everything": ("the process ended with exit status 1", None),
}


@pytest.mark.parametrize("name", FAILS)
def test_act_is_the_result_of_one_clause(act: Callable[[str], ClauseResult], name: str) -> None:
    result, (what, line) = act(name), FAILS[name]
    assert result.status == "failed"
    assert result.failure is not None
    assert result.failure.what.startswith(what)
    if line is not None:
        assert result.failure.where is not None
        assert result.failure.where.split("  ")[0] == f"subjects.py:{line_of(line)}"


HARMLESS = (
    "nothing", "closes", "prints", "prints to the descriptor", "doubles", "without gradient", "moves",
    "forks", "forks and returns", "forks and stays", "leaves a thread",
)  # fmt: skip


@pytest.mark.parametrize("name", HARMLESS)
def test_act_that_leaves_the_answer_right_changes_nothing(
    act: Callable[[str], ClauseResult], name: str
) -> None:
    assert act(name).status == "passed"


def test_mutated_input_is_a_result() -> None:
    report = check_implementation(
        f"{SUBJECTS}:mutates", profile="quick", clause=["state.inputs_unchanged", "shape.output"]
    )
    assert {result.clause: result.status for result in report.results} == {
        "shape.output": "passed",
        "state.inputs_unchanged": "failed",
    }


def test_process_that_died_often_is_given_up(
    session: ProcessSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_deaths", 3)
    result = session.run(ACTED)
    assert (result.status, result.reason) == ("not run", "the process died 3 times")


@pytest.mark.parametrize(
    ("name", "how", "line"),
    [
        ("hangs_at_once", "a call did not return within 2 seconds (a hang)", "time.sleep(0.01)"),
        ("dies_at_once", "the process was ended by SIGSEGV", "    ctypes.string_at(0)"),
        ("EndsWhenMade", "the process was ended by SIGSEGV", "os.kill(os.getpid(), 11)"),
    ],
)
def test_process_that_ends_at_once_is_one_message(name: str, how: str, line: str) -> None:
    with pytest.raises(TargetError) as caught:
        check_implementation(f"{SUBJECTS}:{name}", profile="quick", limit=2.0)
    assert str(caught.value) == (
        f"{SUBJECTS}:{name}: while it was loaded and tried, {how}\n  subjects.py:{line_of(line)}"
    )


def test_nothing_is_left_behind(act_file: Path) -> None:
    """A process that the code forked and left ends with the session."""
    session = ProcessSession(f"{SUBJECTS}:attend", Declaration(), profile_name="quick")
    session.recognise()
    act_file.write_text("forks and stays")
    assert session.run(ACTED).status == "passed"
    act_file.write_text("nothing")
    assert session._worker is not None
    group = session._worker._process.pid
    session.close()
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("a process is still there")


def test_line_is_the_innermost_of_the_user() -> None:
    here, library = __file__, __import__("json").__file__
    traceback = (
        "Traceback (most recent call last):\n"
        f'  File "{here}", line 3, in outer\n    inner()\n  File "{here}", line 5, in inner\n    loads()\n'
        f'  File "{library}", line 7, in loads\nKeyboardInterrupt\n'
    )
    dump = (
        "Fatal Python error: Segmentation fault\n\nThread 0x01 (most recent call first):\n"
        f'  File "{here}", line 11 in other\n\nCurrent thread 0x02 (most recent call first):\n'
        f'  File "{library}", line 13 in loads\n  File "{here}", line 17 in inner\n'
        f'  File "{here}", line 19 in outer\n\n'
        f'Thread 0x03 (most recent call first):\n  File "{here}", line 23 in other\n'
    )
    assert innermost_line(traceback) == "\n  test_isolation.py:5"
    assert innermost_line(dump) == "\n  test_isolation.py:17"
    assert innermost_line(traceback + dump) == "\n  test_isolation.py:17"
    assert innermost_line("no line at all\n") == ""
