"""The verdict: exit status, what decides it, causes, and what machines read."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from attnspec._clauses import Level, clauses
from attnspec._errors import ReportError
from attnspec._terminal import console, failures, matrix, tally, verdict
from attnspec.conformance.results import ClauseResult, Failure
from attnspec.report import Report, failure_text, junit

SHOULD = next(clause.name for clause in clauses().values() if clause.level == Level.SHOULD)
MUST, OTHER, THIRD = "shape.output", "scale.default", "mask.value"


def result(clause: str, status: Any, reason: str = "", **failure: Any) -> ClauseResult:
    found = Failure(**{"what": "it is wrong", "case": "batch=1", **failure}) if status == "failed" else None
    return ClauseResult(clause, status, reason=reason, examples=7, seconds=0.5, failure=found)


def report(*results: ClauseResult) -> Report:
    return Report(
        target="mine.py:Mine",
        recognised={"contract": "core"},
        results=results,
        profile="quick",
        seed=3,
        device="cpu",
        seconds=1.25,
    )


def shown(*renderables: Any) -> str:
    out = console()
    with out.capture() as captured:
        for renderable in renderables:
            out.print(renderable)
    return captured.get()


@pytest.mark.parametrize(
    ("results", "status"),
    [
        ([result(MUST, "passed")], 0),
        ([result(MUST, "passed"), result(OTHER, "failed")], 1),
        ([result(MUST, "passed"), result(SHOULD, "failed")], 0),
        ([result(MUST, "passed"), result(SHOULD, "question", "which?")], 0),
        ([result(MUST, "passed"), result(OTHER, "question", "which?")], 1),
        ([result(MUST, "passed"), result(OTHER, "error", "attnspec failed")], 1),
        ([result(MUST, "passed"), result(SHOULD, "error", "attnspec failed")], 1),
        ([result(MUST, "passed"), result(OTHER, "deviation", "on purpose")], 0),
        ([result(MUST, "passed"), result(OTHER, "not applicable", "it has none")], 0),
        ([result(MUST, "passed"), result(OTHER, "not run", "the process died")], 1),
        ([result(MUST, "not applicable", "it has none")], 2),
        ([result(MUST, "not run", "the process died")], 2),
        ([], 2),
    ],
)
def test_status_is_0_1_or_2(results: list[ClauseResult], status: int) -> None:
    found = report(*results)
    assert found.status == status
    assert found.ok == (status == 0)


def test_what_ran_is_counted() -> None:
    found = report(
        result(MUST, "passed"),
        result(OTHER, "failed"),
        result(THIRD, "not applicable", "it takes no mask"),
        result("mask.polarity", "not applicable", "it takes no mask"),
        result("causal.value", "not run", "it died"),
        result("bias.value", "not applicable", "it takes no bias"),
        result(SHOULD, "failed"),
    )
    assert found.ran == 3
    assert [r.clause for r in found.broken] == [OTHER, "causal.value"]
    assert [r.clause for r in found.advised] == [SHOULD]
    assert found.inapplicable() == {"it takes no mask": 2, "it died": 1, "it takes no bias": 1}
    assert found.chapters()["shape"] == (1, 1)
    assert found.chapters()["scale"] == (0, 1)
    assert "bias" not in found.chapters()
    assert [r.clause for r in found.of("passed")] == [MUST]


def test_causes_gather_one_mistake_and_lead_with_a_must() -> None:
    found = report(
        result(SHOULD, "failed", where="mine.py:3"),
        result(MUST, "failed", looks_like="tiled: heads are tiled", case="batch=1 heads=4 with much more"),
        result(OTHER, "failed", looks_like="tiled: heads are tiled"),
        result(THIRD, "failed", where="mine.py:5"),
        result("causal.value", "not run", "the process died"),
        result("window.value", "not run", "the process died"),
    )
    causes = [[r.clause for r in group] for group in found.causes()]
    assert causes[:3] == [[OTHER, MUST], [THIRD], ["causal.value", "window.value"]]
    assert causes[3] == [SHOULD]


def test_cause_is_led_by_the_clause_that_names_its_kind() -> None:
    long = {"case": "batch=1 heads=4 kv_heads=2", "looks_like": "tiled: heads are tiled"}
    found = report(
        result(MUST, "failed", looks_like="tiled: heads are tiled"),
        result("grouped.order", "failed", kin=("grouped.order", "grouped.equals_repeated"), **long),
    )
    assert [r.clause for r in found.causes()[0]] == ["grouped.order", MUST]


def test_failure_says_everything() -> None:
    failed = result(
        OTHER,
        "failed",
        got=0.7310585786,
        expected=0.0,
        allowed=1e-7,
        index=(0, 0, 1, 2),
        ratio=250.0,
        looks_like="unscaled: no scale",
        fix="scale it",
        where="mine.py:41  scores = q @ k",
        script=".attnspec/x.py",
    )
    lines = failure_text(clauses()[OTHER], failed).split("\n")
    assert lines[0] == f"{OTHER} (MUST)  {clauses()[OTHER].statement}"
    assert lines[1:8] == [
        "  what       it is wrong",
        "  smallest   batch=1",
        "  got 0.7310586  expected 0  allowed error 1e-07  at [0, 0, 1, 2]  (250 times the allowed error)",
        "  looks like unscaled: no scale",
        "  fix        scale it",
        "  where      mine.py:41  scores = q @ k",
        "  again      python .attnspec/x.py",
    ]
    assert lines[-1] == "  see        attnspec show scale.default"


def test_question_is_its_text() -> None:
    asked = result(MUST, "question", "which axis is the heads'?")
    assert failure_text(clauses()[MUST], asked).split("\n")[1] == "  question   which axis is the heads'?"


RESULTS = (
    result(MUST, "passed"),
    result(OTHER, "failed", got=float("nan"), what='less < more & "quoted" \x07'),
    result(THIRD, "not applicable", "it takes no mask"),
    result("mask.polarity", "deviation", "on purpose"),
    result(SHOULD, "failed"),
)


def test_json_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.json"
    report(*RESULTS).write_json(path)
    data = json.loads(path.read_text())
    assert (data["target"], data["status"], data["ran"], data["of"]) == ("mine.py:Mine", 1, 4, 5)
    assert (data["profile"], data["seed"], data["device"], data["seconds"]) == ("quick", 3, "cpu", 1.25)
    assert [r["status"] for r in data["results"]] == [
        "passed",
        "failed",
        "not applicable",
        "deviation",
        "failed",
    ]
    assert [r["level"] for r in data["results"]] == ["MUST", "MUST", "MUST", "MUST", "SHOULD"]


def test_json_has_no_numbers_that_json_lacks(tmp_path: Path) -> None:
    """Strict readers refuse NaN and infinity, and a failure may well have got one."""
    path = tmp_path / "report.json"
    report(*RESULTS).write_json(path)

    def refuse(word: str) -> None:
        raise AssertionError(word)

    data = json.loads(path.read_text(), parse_constant=refuse)
    assert data["results"][1]["failure"]["got"] == "nan"


def test_junit_is_valid_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "report.xml"
    report(*RESULTS).write_junit(path)
    (suite,) = ElementTree.parse(path).getroot()
    assert suite.attrib == {
        "name": "mine.py:Mine", "tests": "5", "failures": "1", "errors": "0", "skipped": "2", "time": "1.250",
    }  # fmt: skip
    assert [case.get("name") for case in suite] == [r.clause for r in RESULTS]
    assert [[child.tag for child in case] for case in suite] == [
        [], ["failure"], ["skipped"], ["skipped"], ["system-out"],
    ]  # fmt: skip
    assert suite[1][0].get("message") == 'less < more & "quoted" �'
    assert suite[2][0].get("message") == "it takes no mask"


def test_junit_counts_failures_as_it_shows_them() -> None:
    (suite,) = junit([report(result(SHOULD, "failed"), result(MUST, "error", "attnspec failed"))])
    assert (suite.get("failures"), suite.get("errors")) == ("0", "1")
    assert suite[1][0].tag == "error"


@pytest.mark.parametrize("write", [Report.write_json, Report.write_junit])
def test_report_that_cannot_be_written_says_so(tmp_path: Path, write: Any) -> None:
    with pytest.raises(ReportError) as caught:
        write(report(*RESULTS), tmp_path)
    assert str(caught.value) == (
        f"the report cannot be written to {tmp_path}: Is a directory; the verdict above stands"
    )


def test_result_comes_back_the_same_from_plain_data() -> None:
    failed = result(OTHER, "failed", index=(0, 1, 2), kin=("a.b",))
    assert ClauseResult.from_dict(json.loads(json.dumps(failed.as_dict()))) == failed
    passed = result(MUST, "passed")
    assert ClauseResult.from_dict(json.loads(json.dumps(passed.as_dict()))) == passed


def test_verdict_in_words() -> None:
    assert "conforms  (" in shown(verdict(report(result(MUST, "passed"))))
    assert "conforms, 1 SHOULD not followed" in shown(
        verdict(report(result(MUST, "passed"), result(SHOULD, "failed")))
    )
    broken = report(result(MUST, "passed"), result(OTHER, "failed"), result(THIRD, "not run", "it died"))
    assert "NOT multi-head attention as specified: 1 clause broken, 1 not run  (" in shown(verdict(broken))
    assert shown(verdict(report())).strip() == "nothing ran: that is a failure, not a pass"


def test_tally_says_what_did_not_apply_and_why() -> None:
    text = shown(tally(report(*RESULTS)))
    assert text.splitlines()[0].startswith("ran 4 of 5 clauses that apply to a core")
    assert "    1  it takes no mask" in text


def test_failures_are_one_a_cause() -> None:
    same = {"looks_like": "tiled: heads are tiled"}
    text = shown(
        *failures(report(result(MUST, "failed", **same), result(OTHER, "failed", **same), *RESULTS[3:]))
    )
    assert text.count("FAILED") == 1
    assert f"also broken 1 for the same cause: {OTHER}" in text
    assert f"ADVICE {SHOULD}" in text
    assert "DEVIATION mask.polarity  on purpose" in text


def test_matrix_has_a_row_for_each_implementation() -> None:
    text = shown(matrix([report(*RESULTS), report(result(MUST, "passed")), report()]))
    rows = [line for line in text.splitlines() if line.startswith("mine.py:Mine")]
    assert rows[0].rstrip().endswith("1 broken, 1 advised")
    assert rows[1].rstrip().endswith("conforms")
    assert rows[2].rstrip().endswith("nothing ran")


def test_a_layer_whose_weights_were_not_found_is_undecided() -> None:
    why = "its weights were not recognised (its parameters are w (4, 18, 18))"
    waits = result(OTHER, "not applicable", why)
    found = report(result(MUST, "passed"), waits)
    found = replace(found, recognised={"contract": "layer", "absent": {"parameters": why}})
    assert (found.status, found.ok, found.waiting) == (2, False, (waits,))
    assert shown(verdict(found)).startswith("UNDECIDED: nothing broken, but 1 clause waits for its weights")
    assert "undecided" in shown(matrix([found]))
    broken = replace(found, results=(result(MUST, "failed"), waits))
    assert broken.status == 1
