"""`check_implementation`: selection, deviations, seeds, small cases, and objects without a name."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attnspec import TargetError, UnknownNameError, check_implementation
from attnspec._check import as_target, locate, select
from attnspec.conformance.profiles import PROFILES, profile


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend as the contract says."""
    return ((query @ key.transpose(-2, -1)) * query.shape[-1] ** -0.5).softmax(-1) @ value


def unscaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend without the scale."""
    return (query @ key.transpose(-2, -1)).softmax(-1) @ value


def here(target: Any, **options: Any) -> Any:
    """Check in this very process, quickly."""
    return check_implementation(target, profile="quick", isolation="none", **options)


def test_object_without_a_name_is_checked_here() -> None:
    report = here(lambda query, key, value: attend(query, key, value), clause="shape.output")
    assert (report.status, report.ran, report.target) == (
        0,
        1,
        "test_object_without_a_name_is_checked_here.<locals>.<lambda>",
    )


def test_results_are_in_the_order_of_the_contract() -> None:
    report = here(attend, clause=["value.shift", "shape.output", "scale.default", "shape"])
    assert [r.clause for r in report.results] == [
        c.name for c in select(["shape", "value.shift", "scale.default"])
    ]


def test_seed_decides_the_cases() -> None:
    def found(seed: int) -> str:
        return here(unscaled, clause="scale.default", seed=seed).results[0].failure

    assert found(3) == found(3)


def test_worst_error_is_kept_for_what_passes() -> None:
    (result,) = here(attend, clause="value.oracle").results
    assert 0.0 < result.worst < 1.0
    assert result.examples >= 9


def test_failure_is_the_smallest_case() -> None:
    """One query and one key give the value whatever the scale is, so the least failing case has two keys."""
    (result,) = here(unscaled, clause="scale.default").results
    assert result.status == "failed"
    structure = result.failure.structure
    assert (structure["batch"], structure["heads"], structure["kv_heads"], structure["q_len"]) == (1, 1, 1, 1)
    assert structure["kv_len"] == 2


def test_progress_and_recognition_are_told() -> None:
    seen: list[Any] = []
    told: list[Any] = []
    here(
        attend,
        clause="shape",
        recognised=told.append,
        progress=lambda r, done, total: seen.append((r.clause, done, total)),
    )
    assert [(done, total) for _, done, total in seen] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert told[0]["contract"] == "core"


def test_deviation_is_shown_and_not_held_against_it() -> None:
    report = here(
        unscaled, clause="scale.default", declaration={"deviations": {"scale.default": "folded elsewhere"}}
    )
    (result,) = report.results
    assert (result.status, result.reason, report.status) == ("deviation", "folded elsewhere", 0)


def test_deviation_that_is_none_is_an_error() -> None:
    report = here(attend, clause="scale.default", declaration={"deviations": {"scale.default": "folded"}})
    (result,) = report.results
    assert (result.status, report.status) == ("error", 1)
    assert result.reason == "declared to deviate (folded), but the clause holds: remove the deviation"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"profile": "qick"}, "no profile is called 'qick'; did you mean 'quick'?"),
        ({"clause": "masks"}, "no clause or chapter is called 'masks'; did you mean 'mask'?"),
        (
            {"declaration": {"deviations": {"scale.defalt": "x"}}},
            "no clause is called 'scale.defalt'; did you mean 'scale.default'?",
        ),
        ({"declaration": {"maks": "x"}}, "no declaration key is called 'maks'; did you mean 'mask'?"),
    ],
)
def test_unknown_name_is_said_before_anything_runs(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        check_implementation(attend, **options)
    assert str(caught.value).split("\n")[0] == message


def test_device_that_is_not_there_is_one_message() -> None:
    with pytest.raises(TargetError, match=r"^device 'cude' cannot be used here: "):
        here(attend, device="cude")


def test_object_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"^no target is called '5'"):
        here(5)


def test_function_of_a_module_is_located(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import attnspec_impls.math_core as module

    assert locate(module.IMPLEMENTATION.target) == module.IMPLEMENTATION.location
    assert locate(torch.nn.MultiheadAttention) == "torch.nn.modules.activation:MultiheadAttention"


def test_function_of_a_test_is_located_by_its_file() -> None:
    """pytest imports this file without a name that another process could import."""
    found = locate(attend)
    assert found is not None
    assert found.endswith(("test_check_implementation.py:attend", "test_check_implementation:attend"))


def test_object_that_is_nowhere_is_not_located() -> None:
    assert locate(lambda query: query) is None
    assert locate(torch.nn.Linear(3, 5)) is None


def test_target_of_an_instance_has_its_module() -> None:
    target = as_target(torch.nn.Linear(3, 5))
    assert target.name == "Linear"
    assert "F" in target.namespace


def test_profiles_try_ever_harder() -> None:
    quick, default, thorough = (profile(name) for name in PROFILES)
    assert list(PROFILES) == ["quick", "default", "thorough"]
    for easy, hard in ((quick, default), (default, thorough)):
        assert (easy.rows, easy.random, easy.seconds, easy.shrink) < (
            hard.rows,
            hard.random,
            hard.seconds,
            hard.shrink,
        )
        assert easy.rows < hard.rows
        assert easy.random < hard.random
