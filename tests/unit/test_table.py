"""The shape table: read from the signatures, in the words of the vocabulary, in the order of the contract."""

import inspect

import pytest
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnspec import stages
from attnspec._axes import AXES, RELATIONS, axis
from attnspec._clauses import clauses
from attnspec._table import STAGES, Argument, read_annotation, read_signature

NAMES = {a.name for a in AXES}
# Scale, softcap, bias, mask, softmax, dropout, aggregate: contract, semantics.
ROWS = [
    "projection", "split heads", "heads first", "share heads", "scores", "scale", "softcap", "bias", "mask",
    "softmax", "dropout", "aggregate values", "merge heads", "output projection",
]  # fmt: skip


def test_rows_are_in_the_order_of_the_contract() -> None:
    assert list(dict.fromkeys(stage.row for stage in STAGES.values())) == ROWS


def test_stages_are_every_public_function_of_the_module() -> None:
    public = [n for n, f in vars(stages).items() if inspect.isfunction(f) and f.__module__ == stages.__name__]
    assert list(STAGES) == public


@pytest.mark.parametrize("name", STAGES)
def test_stage_uses_words_of_the_vocabulary_alone(name: str) -> None:
    assert set(STAGES[name].axes) <= NAMES


@pytest.mark.parametrize("name", STAGES)
def test_stage_names_clauses_that_exist(name: str) -> None:
    named = STAGES[name].clauses
    assert named
    assert set(named) <= set(clauses())


@pytest.mark.parametrize("name", STAGES)
def test_stage_is_the_function_itself(name: str) -> None:
    """Nothing wraps a stage, so a call costs what its body costs."""
    function = STAGES[name].function
    assert function is getattr(stages, name)
    assert inspect.isfunction(function)
    assert not hasattr(function, "__wrapped__")
    assert function.__code__.co_filename == stages.__file__
    assert function.__code__.co_name == name


@pytest.mark.parametrize("name", STAGES)
def test_stage_says_what_it_does(name: str) -> None:
    stage = STAGES[name]
    assert stage.summary.endswith(".")
    assert stage.formula or stage.path != "common"


def test_scores_is_read_from_its_signature() -> None:
    stage = STAGES["scores"]
    assert [str(a) for a in stage.arguments] == ["batch heads q_len d_k", "batch heads kv_len d_k"]
    assert str(stage.result) == "batch heads q_len kv_len"
    assert stage.axes == ("batch", "heads", "q_len", "d_k", "kv_len")
    assert not stage.optional


def test_project_queries_has_an_optional_bias() -> None:
    assert STAGES["project_queries"].arguments[2] == Argument(
        "bias", ("heads", "d_k"), "Float", optional=True
    )


def test_signature_of_any_annotated_function_is_read() -> None:
    def mine(
        left: Float[Tensor, "heads 3*d_k"], flag: bool, seen: Bool[Tensor, "#batch kv_len"]
    ) -> Float[Tensor, " d_k"]:
        raise NotImplementedError

    arguments, result = read_signature(mine)
    assert arguments == (
        Argument("left", ("heads", "3*d_k"), "Float"),
        Argument("seen", ("#batch", "kv_len"), "Bool"),
    )
    assert result == Argument("return", ("d_k",), "Float")


def test_signature_without_an_annotated_result_is_refused() -> None:
    def mine(left: Float[Tensor, " heads"]) -> torch.Tensor:
        raise NotImplementedError

    with pytest.raises(TypeError, match=r"^mine: the result has no jaxtyping annotation$"):
        read_signature(mine)


def test_annotation_that_is_no_tensor_is_none() -> None:
    assert read_annotation("heads", int) is None


def test_axes_have_one_name_each() -> None:
    assert len(NAMES) == len(AXES)
    assert all(a.meaning for a in AXES)


def test_axis_is_found_by_its_name() -> None:
    assert axis("d_k").meaning == "width of one query or key head"
    with pytest.raises(KeyError, match="no axis is called 'd_q'; the vocabulary is batch, q_len"):
        axis("d_q")


def test_relations_speak_of_axes() -> None:
    for product, factors in RELATIONS:
        assert {product, *factors} <= NAMES
