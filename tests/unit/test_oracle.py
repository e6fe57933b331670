"""The two oracles: known numbers by hand, agreement on random calls within their counted roundings."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from attnspec import oracle
from attnspec._errors import SelfTestError
from attnspec._inputs import CoreInputs
from attnspec.conformance.cases import Case
from attnspec.conformance.strategies import core_cases
from attnspec.oracle import agreement, scalar, vectorised

UNIT = torch.finfo(torch.float64).eps / 2
LENGTHS, WIDTHS = ((5, 7), (4, 4), (7, 3), (1, 6), (6, 1), (2, 9)), ((5, 5), (3, 7), (2, 2), (7, 3))
WINDOWS = (None, (1, 2), (0, 0), (-1, 1))
MASKS = (None, "random", "padding", "banded", "dead", "nothing", "last_key")


def tiny(**options: Any) -> CoreInputs:
    """One head of width 1: scores are the products of plain numbers."""
    query, key, value = (
        torch.tensor(x, dtype=torch.float64).reshape(1, 1, -1, 1)
        for x in ([1.0, 2.0], [0.0, math.log(3.0)], [4.0, 8.0])
    )
    return CoreInputs(query=query, key=key, value=value, **options)


BOTH = pytest.mark.parametrize(
    "core", [lambda i: vectorised.core(i).output, scalar.core], ids=["vectorised", "scalar"]
)


@BOTH
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # Query 1 sees weights 1 : 3, query 2 sees 1 : 9.
        ({}, [7.0, 7.6]),
        ({"causal": True}, [4.0, 7.6]),
        ({"scale": 0.0}, [6.0, 6.0]),
        ({"scale": -1.0}, [5.0, 4.4]),
        ({"mask": torch.tensor([[True, False], [False, False]])}, [4.0, 0.0]),
        ({"bias": torch.tensor([[0.0, -math.log(3.0)]], dtype=torch.float64)}, [6.0, 7.0]),
        ({"window": (0, 0)}, [4.0, 8.0]),
        ({"window": (0, -1)}, [7.0, 8.0]),
        ({"window": (-1, 0)}, [4.0, 7.6]),
    ],
    ids=[
        "plain",
        "causal",
        "scale zero",
        "scale negative",
        "mask",
        "bias",
        "window",
        "window ahead",
        "window back",
    ],
)
def test_known_numbers(core: Any, options: dict[str, Any], expected: list[float]) -> None:
    got = core(tiny(**options)).flatten().tolist()
    assert got == pytest.approx(expected, rel=8 * UNIT, abs=0)


@BOTH
def test_softcap_bends_the_scores(core: Any) -> None:
    power = math.exp(0.5 * math.tanh(math.log(3.0) / 0.5))
    got = core(tiny(softcap=0.5)).flatten().tolist()
    assert got[0] == pytest.approx((4.0 + 8.0 * power) / (1.0 + power), rel=8 * UNIT, abs=0)


@BOTH
@pytest.mark.parametrize(("alignment", "expected"), [("lower_right", [7.0]), ("upper_left", [4.0])])
def test_alignment_places_the_first_query(core: Any, alignment: Any, expected: list[float]) -> None:
    inputs = tiny(causal=True, alignment=alignment)
    got = core(inputs.replace(query=inputs.query[:, :, :1])).flatten().tolist()
    assert got == pytest.approx(expected, rel=8 * UNIT, abs=0)


@BOTH
def test_heads_share_in_order(core: Any) -> None:
    """Query heads 0 and 1 read key/value head 0; 2 and 3 read head 1."""
    query = torch.zeros(1, 4, 1, 1, dtype=torch.float64)
    value = torch.tensor([3.0, 5.0], dtype=torch.float64).reshape(1, 2, 1, 1)
    got = core(CoreInputs(query=query, key=torch.zeros_like(value), value=value))
    assert got.flatten().tolist() == [3.0, 3.0, 5.0, 5.0]


@BOTH
def test_no_keys_give_zeros(core: Any) -> None:
    inputs = tiny()
    got = core(inputs.replace(key=inputs.key[:, :, :0], value=inputs.value[:, :, :0]))
    assert got.tolist() == [[[[0.0], [0.0]]]]


def allowance(inputs: CoreInputs) -> Tensor:
    """Return how far two float64 computations of the definition may lie apart, roundings counted.

    A score is a sum of `d_k` products, scaled, capped and shifted: fewer than `d_k + 10` roundings of numbers
    that are at most `largest`. A weight is the exponential of such a score over a sum of `kv_len` of them.
    The output sums `kv_len` products of weights and values. Twice, for there are two of them.
    """
    n = inputs.sizes
    widest = inputs.query.abs().sum(-1).max() * inputs.key.abs().max() * max(abs(inputs.factor), 1e-300)
    largest = float(widest) + (float(inputs.bias.abs().max()) if inputs.bias is not None else 0.0)
    score = (n["d_k"] + 10) * UNIT * largest
    weight = math.expm1(2 * score) + (n["kv_len"] + 8) * UNIT
    total = weight + (n["kv_len"] + 2) * UNIT
    value = inputs.value.abs().repeat_interleave(n["group"], 1)
    return 2 * total * value.amax(-2, keepdim=True)


@settings(max_examples=60, deadline=None)
@given(
    core_cases(
        lengths=LENGTHS, widths=WIDTHS, dtype=("float64",), mask=MASKS, softcap=(None, 2.0), window=WINDOWS,
        values=("integers", "normal", "outlier", "offset", "scaled"),
    )
)  # fmt: skip
def test_oracles_agree_on_any_small_call(case: Case) -> None:
    inputs = case.core_inputs()
    left, right = vectorised.core(inputs).output, scalar.core(inputs)
    assert left.shape == right.shape
    assert bool(((left - right).abs() <= allowance(inputs)).all())


def test_allowance_is_small() -> None:
    """It would not hide a mistake: for numbers near 1 it is below 1e-12."""
    case = Case(batch=2, heads=4, kv_heads=2, q_len=5, kv_len=7, d_k=5, d_v=3, dtype="float64", seed=1)
    assert float(allowance(case.core_inputs()).max()) < 1e-12


def test_oracle_widens_to_float64() -> None:
    inputs = tiny().to(torch.bfloat16)
    assert oracle.core(inputs).output.dtype == torch.float64


def test_oracle_returns_every_step() -> None:
    steps = oracle.core(tiny(softcap=2.0, bias=torch.zeros(2, 2, dtype=torch.float64))).steps
    assert list(steps) == [
        "scores",
        "scale_scores",
        "cap_scores",
        "add_bias",
        "mask_scores",
        "normalise",
        "aggregate_values",
    ]


def test_forbidden_values_that_are_not_finite_do_not_matter() -> None:
    inputs = tiny(mask=torch.tensor([True, False])[None])
    value = inputs.value.clone()
    value[0, 0, 1, 0] = float("nan")
    assert oracle.core(inputs.replace(value=value)).output.flatten().tolist() == [4.0, 4.0]


def test_agreement_is_measured() -> None:
    assert 0.0 < oracle.require_agreement() < 1e-14


def test_disagreement_is_the_suite_at_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement.scalar, "core", lambda inputs: vectorised.core(inputs).output + 1e-9)
    with pytest.raises(
        SelfTestError, match=r"the two oracles differ by 1e-09; the suite is at fault, please report it"
    ):
        agreement.require_agreement.__wrapped__()
