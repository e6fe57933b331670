"""The pytest plugin, run by pytest on files of its own: outcomes, selection, and what a failure shows."""

from importlib.metadata import entry_points

import pytest

from attnspec import clauses

MINE = """
def attend(query, key, value):
    scores = (query @ key.transpose(-2, -1)) * query.shape[-1] ** -0.5
    return scores.softmax(-1) @ value


def unscaled(query, key, value):
    scores = query @ key.transpose(-2, -1)
    return scores.softmax(-1) @ value
"""
INSTALLED = any(point.value == "attnspec_pytest" for point in entry_points(group="pytest11"))
CORE = [clause.name for clause in clauses().values() if clause.holds_for("core")]


@pytest.fixture
def run(pytester: pytest.Pytester):
    """Return a function that runs pytest in a process of its own, in a folder with one file of user code."""
    pytester.makepyfile(mine=MINE)
    plugin = () if INSTALLED else ("-p", "attnspec_pytest")

    def start(*words: str) -> pytest.RunResult:
        return pytester.runpytest_subprocess(*plugin, "-p", "no:cacheprovider", *words, timeout=150)

    return start


def test_each_clause_is_a_test_of_its_own(run) -> None:
    result = run("--attnspec", "mine.py:attend", "--collect-only", "-q")
    named = [line.rpartition("::")[2] for line in result.outlines if "::" in line]
    assert named == CORE


def test_outcomes_of_a_right_core(run) -> None:
    """What it has is tested, what it lacks is skipped with the reason."""
    result = run("--attnspec", "mine.py:attend", "-k", "shape or scale", "-rs", "-v")
    outcomes = result.parseoutcomes()
    assert outcomes["passed"] >= 5
    assert outcomes["skipped"] >= 1
    assert "failed" not in outcomes
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*shape.output PASSED*", "*SKIPPED*not applicable: it takes no scale*"])


def test_failure_shows_the_clause_without_a_traceback(run) -> None:
    result = run("--attnspec", "mine.py:unscaled", "-k", "scale.default")
    assert result.ret == 1
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(
        ["scale.default (MUST)  *", "  smallest   batch=1 *", "  see        attnspec show scale.default"]
    )
    text = result.stdout.str()
    assert "Traceback" not in text
    assert "attnspec_pytest.py:" not in text


def test_tests_of_the_folder_run_beside_the_clauses(run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_own="def test_mine():\n    pass\n\ndef test_other():\n    pass\n")
    result = run("--attnspec", "mine.py:attend", "-k", "test_mine or shape.output", "-v")
    assert result.parseoutcomes() == {"passed": 2, "deselected": len(CORE)}
    result.stdout.fnmatch_lines(["*test_own.py::test_mine PASSED*", "*shape.output PASSED*"])


def test_clauses_are_shared_among_processes(run) -> None:
    pytest.importorskip("xdist")
    result = run("--attnspec", "mine.py:attend", "-n", "2", "-k", "shape")
    assert result.ret == 0
    assert result.parseoutcomes()["passed"] == 4


def test_marker_selects_the_clauses(run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_own="def test_mine():\n    pass\n")
    result = run(
        "--attnspec",
        "mine.py:attend",
        "-m",
        "attnspec",
        "-k",
        "shape.output or test_mine",
        "--strict-markers",
    )
    assert result.parseoutcomes()["passed"] == 1


def test_unknown_target_is_a_usage_error(run) -> None:
    result = run("--attnspec", "mine.py:atend")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: attnspec: mine.py: no object is called 'atend'; did you mean attend?"]
    )


def test_unknown_profile_is_a_usage_error(run) -> None:
    result = run("--attnspec", "mine.py:attend", "--attnspec-profile", "qick")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: attnspec: no profile is called 'qick'; did you mean 'quick'?"])


def test_unknown_declaration_is_a_usage_error(run) -> None:
    result = run("--attnspec", "mine.py:attend", "--attnspec-declare", "maks=blocked")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: attnspec: no --declare key is called 'maks'; did you mean 'mask'?"])


DECORATED = """
import torch
from torch import nn

import attnspec


class Mine(nn.Module):
    def __init__(self, d_model, heads):
        super().__init__()
        self.heads = heads
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x):
        projected = (w(x) for w in (self.W_q, self.W_k, self.W_v))
        query, key, value = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in projected)
        weights = (query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5).softmax(-1)
        return self.W_o((weights @ value).transpose(1, 2).flatten(2))


@attnspec.parametrize_with_clauses(Mine, clause=["shape", "mask.value"])
def test_conforms(check_clause):
    check_clause()
"""


@pytest.mark.parametrize("mode", ["prepend", "importlib"])
def test_decorator_gives_one_test_a_clause(run, pytester: pytest.Pytester, mode: str) -> None:
    """The class stands in the test file, which under `importlib` no other process finds by a name."""
    pytester.makepyfile(test_decorated=DECORATED)
    result = run("-v", "-rs", "-W", "error", "test_decorated.py", f"--import-mode={mode}")
    result.stdout.fnmatch_lines(["*::test_conforms?shape.output? PASSED*"])
    outcomes = result.parseoutcomes()
    assert outcomes.get("passed", 0) >= 2
    assert outcomes.get("skipped", 0) >= 1
    assert result.ret == 0


FAILING = """
import attnspec


def unscaled(query, key, value):
    return (query @ key.transpose(-2, -1)).softmax(-1) @ value


def strange(query, key, value):
    raise RuntimeError("not today")


@attnspec.parametrize_with_clauses(unscaled, clause="scale.default")
def test_unscaled(check_clause):
    check_clause()


@attnspec.parametrize_with_clauses(strange, clause="shape")
def test_strange(check_clause):
    check_clause()
"""


def test_decorated_failures_show_no_traceback(run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_failing=FAILING)
    result = run("test_failing.py")
    assert result.parseoutcomes() == {"failed": 5}
    text = result.stdout.str()
    assert "scale.default (MUST)" in text
    assert "RuntimeError: not today" in text
    assert "Traceback" not in text
    assert "attnspec_pytest.py:" not in text
    assert "_check.py" not in text


def test_advice_that_is_not_followed_is_expected_to_fail(run, pytester: pytest.Pytester) -> None:
    """A SHOULD decides nothing."""
    pytester.makepyfile(
        test_advice="""
        import attnspec_pytest
        from attnspec import clauses
        from attnspec.conformance.results import ClauseResult, Failure

        def result(name, status):
            return ClauseResult(name, status, reason="why", failure=Failure(what="wrong", case="batch=1"))

        SHOULD = next(c.name for c in clauses().values() if c.level == "SHOULD")

        def test_advice():
            attnspec_pytest.judge_result(SHOULD, result(SHOULD, "failed"))

        def test_rule():
            attnspec_pytest.judge_result("shape.output", result("shape.output", "failed"))

        def test_deviation():
            attnspec_pytest.judge_result("shape.output", result("shape.output", "deviation"))

        def test_error():
            attnspec_pytest.judge_result(SHOULD, result(SHOULD, "error"))

        def test_not_run():
            attnspec_pytest.judge_result("shape.output", result("shape.output", "not run"))
        """
    )
    result = run("test_advice.py")
    assert result.parseoutcomes() == {"xfailed": 1, "failed": 3, "skipped": 1}


def test_plugin_without_targets_does_nothing(run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_own="import sys\n\ndef test_mine():\n    assert 'torch' not in sys.modules\n")
    result = run("test_own.py")
    assert result.parseoutcomes() == {"passed": 1}
