"""The bank names the mistakes of code that it has never seen, and never names a wrong one."""

import time
from dataclasses import replace
from typing import Any

import pytest
import torch

from attnspec import oracle
from attnspec.conformance.bound import core_bound
from attnspec.conformance.bound_layer import layer_bound
from attnspec.conformance.cases import Case
from attnspec.conformance.core_view import CoreView
from attnspec.conformance.failures import SubjectError
from attnspec.conformance.layer_subject import LayerSubject
from attnspec.fingerprints import BANK, identify, match_exception
from attnspec.fingerprints.observe import reference
from wrong_texts import TEXTS, WRONG, build

BASE: dict[str, Any] = {"batch": 2, "heads": 2, "kv_heads": 2, "q_len": 5, "kv_len": 5, "d_k": 4, "d_v": 4}
FEATURES = ("mask", "bias", "window", "softcap", "scale")


def is_wrong(subject: Any, case: Case) -> bool:
    """Hold one call against the oracle, as a clause does."""
    case = subject.space.fit(case)
    layer = isinstance(subject, LayerSubject)
    inputs = subject.layer_inputs(case) if layer else case.core_inputs()
    try:
        got = (subject.run_layer(inputs) if layer else subject.run(inputs)).output.double()
    except SubjectError:
        return False
    exact = oracle.layer(inputs) if layer else oracle.core(inputs)
    allowed = (layer_bound if layer else core_bound)(inputs, exact, subject.precision.at(inputs.query.dtype))
    return not bool(((got - exact.output).abs() <= allowed).all())


def smaller(case: Case) -> list[Case]:
    """Return cases one step simpler, sizes that are equal staying so."""
    found = []
    for names in (
        ("batch",),
        ("q_len",),
        ("kv_len",),
        ("q_len", "kv_len"),
        ("heads", "kv_heads"),
        ("d_k", "d_v"),
    ):
        if len(names) == 1 or len({getattr(case, n) for n in names}) == 1:
            found += [
                case.replace(**dict.fromkeys(names, size))
                for size in (1, getattr(case, names[0]) - 1)
                if size
            ]
    found += [case.replace(**{name: None}) for name in FEATURES if getattr(case, name) is not None]
    return [*found, case.replace(causal=False), case.replace(values="ones")]


def shrink(subject: Any, case: Case) -> Case:
    """Return a small case that still fails, as degenerate as the runner's."""
    for _ in range(40):
        for candidate in smaller(case):
            if candidate != case and is_wrong(subject, candidate):
                case = candidate
                break
        else:
            return case
    return case


def failing_case(subject: Any, features: dict[str, Any]) -> Case:
    cases = (Case(**{**BASE, "seed": seed, **features}) for seed in range(3, 13))
    return next(case for case in cases if is_wrong(subject, case))


@pytest.fixture(scope="module")
def named() -> list[tuple[Any, str, str | None, float]]:
    """Every wrong subject, with its case as it fails and shrunk: the name it gets, and the seconds."""
    found = []
    for wrong in WRONG:
        subject = build(wrong.text, wrong.edits)
        first = failing_case(subject, wrong.case)
        for case in (first, shrink(subject, first)):
            began = time.process_time()
            match = identify(subject, case, layer=isinstance(subject, LayerSubject))
            took = time.process_time() - began
            found.append((wrong, case.describe(), match and match.fingerprint.name, took))
    return found


def test_identify_knows_enough_wrong_subjects() -> None:
    assert len(WRONG) >= 100
    assert len([w for w in WRONG if not w.expected]) >= 8


def test_identify_never_names_a_wrong_mistake(named: list[tuple[Any, str, str | None, float]]) -> None:
    assert [(w.name, case, name) for w, case, name, _ in named if name not in (None, *w.expected)] == []


def test_identify_names_nine_in_ten(named: list[tuple[Any, str, str | None, float]]) -> None:
    known = [(w.name, name) for w, _, name, _ in named if w.expected]
    missed = [wrong for wrong, name in known if name is None]
    assert len(missed) <= len(known) / 10, missed


def test_identify_is_quick(named: list[tuple[Any, str, str | None, float]]) -> None:
    seconds = sorted(took for *_, took in named)
    assert seconds[len(seconds) // 2] < 0.5


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(
    "features",
    [
        {},
        {"mask": "random"},
        {"mask": "dead", "causal": True},
        {"mask": "random", "mask_axes": "bk"},
        {"values": "scaled"},
        {"q_len": 9, "kv_len": 33},
        {"dtype": "bfloat16"},
        {"heads": 4, "kv_heads": 2, "causal": True},
        {"window": (2, 1), "bias": "hqk", "softcap": 1.5, "scale": 0.3},
    ],
    ids=str,
)
def test_identify_leaves_right_code_alone(text: str, features: dict[str, Any]) -> None:
    subject = build(text)
    case = Case(**{**BASE, **features})
    if subject.space.fit(case) is None:
        case = Case(**BASE)
    assert identify(subject, case, layer=isinstance(subject, LayerSubject)) is None


def test_identify_sees_through_a_core_view() -> None:
    wrong = next(w for w in WRONG if w.expected == ("split.viewed",))
    view = CoreView(build(wrong.text, wrong.edits))
    match = identify(view, Case(heads=2, kv_heads=2, q_len=2, kv_len=2), layer=False)
    assert match is not None
    assert match.fingerprint.name == "split.viewed"
    assert match.inputs >= 2


def test_identify_says_with_what_a_mistake_goes() -> None:
    subject = build("core", (("if softcap is not None:", "if softcap is not None and not causal:"),))
    match = identify(subject, Case(**BASE, softcap=1.5, causal=True), layer=False)
    assert match is not None
    assert match.fingerprint.name == "softcap.missing"
    assert match.fingerprint.sentence == "the softcap is ignored, but only together with causal"


def test_identify_sees_an_output_of_another_dtype() -> None:
    subject = build("core", (("return y", "return y.float()"),))
    match = identify(subject, Case(**BASE, dtype="bfloat16"), layer=False)
    assert match is not None
    assert match.fingerprint.name == "output.dtype"


def test_identify_sees_dropout_in_eval() -> None:
    edits = (
        (
            "def __init__(self, d_model, heads, kv_heads):",
            "def __init__(self, d_model, heads, kv_heads, dropout):",
        ),
        ("self.p = 0.0", "self.p = dropout"),
        ("o = a @ v", "o = F.dropout(a, self.p) @ v"),
    )
    plain = build("layer", edits)
    declared = plain.declaration.replace(new="Attention(d_model, heads, kv_heads, dropout)")
    space = replace(plain.space, features=plain.space.features | {"dropout"})
    subject = LayerSubject(declared, plain.namespace, space, name="layer")
    match = identify(subject, Case(**BASE), layer=True)
    assert match is not None
    assert match.fingerprint.name == "dropout.in_eval"


def test_bank_names_and_words_are_complete() -> None:
    names = [f.name for f in BANK]
    assert len(names) == len(set(names))
    for found in BANK:
        assert found.sentence
        assert found.fix
        assert found.layer is not None
        assert found.special_of is None or found.special_of in names


def test_bank_takes_every_shape_of_call() -> None:
    case = Case(
        **BASE, mask="random", mask_axes="bk", bias="hqk", causal=True, window=(2, 1), softcap=1.5, scale=0.3
    )
    inputs = case.core_inputs().to(torch.float64)
    layer_inputs = case.layer_inputs().to(torch.float64)
    for found in BANK:
        for given in (inputs, layer_inputs):
            wrong = reference(found, given)
            assert wrong is None or wrong.dtype == torch.float64, found.name


@pytest.mark.parametrize(
    ("kind", "message", "place", "said"),
    [
        (
            "RuntimeError",
            "view size is not compatible with input tensor's size and stride (at least one dimension spans",
            "o.view(b, t, c)",
            "view cannot read",
        ),
        (
            "RuntimeError",
            "value cannot be converted to type c10::Half without overflow",
            "a.masked_fill(m, -1e9)",
            "does not fit Half",
        ),
        ("NameError", "name 'attn_mask' is not defined", "", "attn_mask is not defined"),
        (
            "RuntimeError",
            "The size of tensor a (4) must match the size of tensor b (2) at non-singleton dimension 1",
            "scores + mask",
            "a mask without a heads axis",
        ),
        ("RuntimeError", "expected scalar type Float but found Half", "", "two dtypes"),
        (
            "RuntimeError",
            "mat1 and mat2 must have the same dtype, but got Float and BFloat16",
            "",
            "two dtypes",
        ),
        (
            "RuntimeError",
            "cannot reshape tensor of 0 elements into shape [0, 3, -1] because the unspecified dimension",
            "",
            "empty tensor",
        ),
        (
            "RuntimeError",
            "Expected attn_mask dtype to be bool or float or to match query dtype, but got long int",
            "",
            "neither boolean nor",
        ),
        ("RuntimeError", "\"bitwise_and_cpu\" not implemented for 'Float'", "", "mask of numbers"),
        (
            "TypeError",
            "~ (operator.invert) is only implemented on integer and Boolean-type tensors",
            "~mask",
            "mask of numbers",
        ),
    ],
)
def test_match_exception_says_what_is_wrong(kind: str, message: str, place: str, said: str) -> None:
    found = match_exception(kind, f"it raises where the clause wants an answer: {kind}: {message}", place)
    assert found is not None
    assert said in found[0]
    assert found[1]


def test_match_exception_is_silent_about_what_it_does_not_know() -> None:
    assert match_exception("RuntimeError", "something else went wrong", "x = f(y)") is None
    assert (
        match_exception("ValueError", "view size is not compatible with input tensor's size and stride", "")
        is None
    )
