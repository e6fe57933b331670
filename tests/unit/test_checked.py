"""Run-time shape checks: on where the suite wraps a stage, absent from the stage itself."""

import pytest
import torch
from jaxtyping import TypeCheckError

from attnspec import stages
from attnspec.checked import checked

QUERY, KEY = torch.zeros(2, 3, 5, 7), torch.zeros(2, 3, 11, 7)


def test_checked_stage_returns_what_the_stage_returns() -> None:
    assert torch.equal(checked(stages.scores)(QUERY, KEY), stages.scores(QUERY, KEY))


def test_checked_stage_refuses_axes_that_differ() -> None:
    with pytest.raises(TypeCheckError, match="d_k"):
        checked(stages.scores)(QUERY, torch.zeros(2, 3, 11, 13))


def test_checked_stage_refuses_a_rank() -> None:
    with pytest.raises(TypeCheckError):
        checked(stages.merge_heads)(QUERY[0])


def test_checked_stage_refuses_a_dtype() -> None:
    with pytest.raises(TypeCheckError):
        checked(stages.mask_scores)(QUERY, torch.zeros(5, 7))


def test_bare_stage_stays_bare() -> None:
    """Wrapping gives another function and leaves the stage as it was: production pays for its body."""
    before = stages.scores.__code__
    wrapped = checked(stages.scores)
    assert wrapped is not stages.scores
    assert stages.scores.__code__ is before
    assert not hasattr(stages.scores, "__wrapped__")
    assert stages.scores(torch.zeros(3, 5), torch.zeros(7, 5)).shape == (3, 7)


def test_stage_is_wrapped_once() -> None:
    assert checked(stages.scores) is checked(stages.scores)
