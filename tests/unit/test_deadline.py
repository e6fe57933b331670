"""A check goes on for as long as it may compute, and for four times as long by the clock."""

import time

import pytest

from attnspec.conformance.deadline import PATIENCE, Deadline


@pytest.mark.parametrize(
    ("computed", "gone", "is_over"),
    [(0.5, 0.5, False), (0.5, 3.0, False), (1.5, 1.5, True), (0.0, PATIENCE + 0.5, True)],
)
def test_deadline_counts_what_is_computed(
    monkeypatch: pytest.MonkeyPatch, computed: float, gone: float, is_over: bool
) -> None:
    monkeypatch.setattr(time, "process_time", lambda: 100.0)
    monkeypatch.setattr(time, "perf_counter", lambda: 100.0)
    deadline = Deadline(1.0)
    monkeypatch.setattr(time, "process_time", lambda: 100.0 + computed)
    monkeypatch.setattr(time, "perf_counter", lambda: 100.0 + gone)
    assert deadline.is_over is is_over
