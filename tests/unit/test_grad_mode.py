"""Calls are made in the grad mode of their case, unless they are about gradients themselves."""

from typing import Any

import pytest
import torch

from attnspec.conformance.cases import Case
from attnspec.conformance.check import OWN_MODE, checks
from attnspec.conformance.grad_mode import GRAD_MODES, GradMode, mode_of, recording, released
from attnspec.conformance.space import Space
from attnspec.conformance.subject import CoreSubject
from attnspec.declaration import Declaration

ARGUMENTS = {"query": "q", "key": "k", "value": "v"}


def seen_modes(mode: str, **changes: Any) -> tuple[bool, bool, bool]:
    """Return what a core sees of autograd: enabled, inference, and whether its query asks."""
    seen: list[tuple[bool, bool, bool]] = []

    def core(q, k, v):  # type: ignore[no-untyped-def]
        seen.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled(), q.requires_grad))
        return (q @ k.mT).softmax(-1) @ v

    subject = CoreSubject(core, Declaration(arguments=ARGUMENTS), {}, Space(contract="core"), name="core")
    inputs = Case(heads=2, kv_heads=2, q_len=3, kv_len=3, seed=1).core_inputs()
    with GradMode.of(mode):
        outcome = subject.run(inputs.replace(**{n: c(getattr(inputs, n)) for n, c in changes.items()}))
    assert outcome.output.requires_grad is bool(changes)
    assert not outcome.output.is_inference()
    return seen[0]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("plain", (True, False, False)),
        ("no_grad", (False, False, False)),
        ("inference_mode", (False, True, False)),
        ("recorded", (True, False, True)),
    ],
)
def test_call_is_made_in_the_mode_of_the_case(mode: str, expected: tuple[bool, bool, bool]) -> None:
    assert seen_modes(mode) == expected


@pytest.mark.parametrize("mode", GRAD_MODES)
def test_call_that_asks_for_gradients_is_left_alone(mode: str) -> None:
    assert seen_modes(mode, query=lambda t: t.requires_grad_()) == (True, False, True)


def test_one_tensor_in_two_places_stays_one() -> None:
    tensor = torch.ones(2)
    given = recording({"query": tensor, "key": tensor, "mask": torch.ones(2, dtype=torch.bool)}, "recorded")
    assert given["query"] is given["key"]
    assert given["query"].requires_grad
    assert not given["mask"].requires_grad


def test_mode_ends_with_its_block() -> None:
    with GradMode.of("no_grad"):
        assert mode_of({}) == "no_grad"
    assert mode_of({}) == "plain"


def test_what_comes_out_of_inference_can_be_saved_for_a_backward_pass() -> None:
    with torch.inference_mode():
        made = torch.ones(2)
    leaf = torch.ones(2, requires_grad=True)
    (leaf * released(made, "inference_mode")).sum().backward()
    assert leaf.grad is not None


def test_checks_of_numbers_vary_the_mode_and_those_of_autograd_do_not() -> None:
    for clause, found in checks().items():
        own = clause.partition(".")[0] in OWN_MODE or "gradient" in clause
        assert {check.recipe.grad_modes for check in found} == {GRAD_MODES[:1] if own else GRAD_MODES}
