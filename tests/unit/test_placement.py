"""Moving the code under test to a device, tried without one: everything is copied, on the CPU."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import attnspec
from attnspec.conformance.placement import Placement, placed, show_changes


@pytest.fixture(autouse=True)
def _copying() -> Iterator[None]:
    Placement.moves = True
    yield
    Placement.moves = False


@pytest.mark.parametrize(
    "view",
    [
        torch.arange(24.0).reshape(4, 6),
        torch.arange(24.0).reshape(4, 6).t(),
        torch.arange(24.0).reshape(4, 6)[1:, ::2],
        torch.arange(4.0)[:, None].expand(4, 6),
        torch.empty(0, 6),
    ],
    ids=["contiguous", "transposed", "sliced", "expanded", "empty"],
)
def test_placed_tensor_keeps_values_and_strides(view: Tensor) -> None:
    moved = placed({"query": view, "causal": True})
    assert moved["causal"] is True
    assert torch.equal(moved["query"], view)
    assert moved["query"].stride() == view.stride()
    assert (
        moved["query"].untyped_storage().data_ptr() != view.untyped_storage().data_ptr() or view.numel() == 0
    )


def test_gradients_flow_back_to_the_case() -> None:
    leaf = torch.ones(3, requires_grad=True)
    placed({"query": leaf})["query"].sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [1.0, 1.0, 1.0]


def test_change_of_an_input_is_seen() -> None:
    before: dict[str, Any] = {"query": torch.ones(3), "scale": 2.0}
    after = placed(before)
    after["query"][1] = float("nan")
    show_changes(before, after)
    assert before["query"].isnan().tolist() == [False, True, False]


def overwriting(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend rightly, and spoil an input."""
    output = (query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5).softmax(-1) @ value
    with torch.no_grad():
        query.mul_(2)
    return output


def test_checks_see_the_same_through_copies() -> None:
    wanted = ["value.roles", "state.inputs_unchanged"]
    statuses = []
    for Placement.moves in (False, True):
        report = attnspec.check_implementation(overwriting, clause=wanted, profile="quick", isolation="none")
        statuses.append({r.clause: r.status for r in report.results})
    assert statuses[0] == statuses[1]
    assert statuses[0]["state.inputs_unchanged"] == "failed"


@pytest.mark.parametrize(
    ("name", "chapters"),
    [
        ("sdpa_core", ["shape", "layout", "state.no_alias", "state.output_kept", "gradient.query"]),
        ("grouped_query", ["params", "gradient.inputs", "gradient.parameters", "state.inputs_unchanged"]),
    ],
)
def test_built_in_conforms_through_copies(name: str, chapters: list[str]) -> None:
    report = attnspec.check_implementation(name, clause=chapters, profile="quick", isolation="none")
    assert [r.clause for r in report.broken] == []
