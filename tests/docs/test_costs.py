"""The explorer's data: shapes as the stages give them, operations as torch counts them."""

from typing import Any

import pytest
import torch
from _build import costs
from torch.utils.flop_counter import FlopCounterMode

from attnspec import stages
from attnspec._table import STAGES

FIELDS = {"batch": 2, "q_len": 3, "kv_len": 5, "heads": 4, "kv_heads": 2, "d_model": 28}
OPTIONS: dict[str, dict[str, Any]] = {
    "share_heads": {"group": 2}, "scale_scores": {"scale": 0.5},
}  # fmt: skip


def run(call: costs.Call) -> tuple[torch.Tensor, list[torch.Tensor], int]:
    """Run the stage of a step on tensors of its shapes; return result, arguments and counted operations."""
    stage = STAGES[call.stage]
    arguments = []
    for argument in stage.arguments:
        shape = costs.shape(argument, call, FIELDS)
        arguments.append(
            torch.ones(shape, dtype=torch.bool) if argument.kind == "Bool" else torch.randn(shape)
        )
    options = OPTIONS.get(call.stage, {})
    if call.stage == "split_heads":
        options = {"heads": costs.sizes(call, FIELDS)["heads"]}
    with FlopCounterMode(display=False) as counter:
        result = getattr(stages, call.stage)(*arguments, **options)
    return result, arguments, counter.get_total_flops()


@pytest.mark.parametrize("call", costs.CALLS, ids=lambda c: f"{c.stage}-{c.role}")
def test_step_has_the_shape_that_the_stage_gives(call: costs.Call) -> None:
    result, arguments, counted = run(call)
    assert tuple(result.shape) == costs.shape(STAGES[call.stage].result, call, FIELDS)
    shares = any(result.untyped_storage().data_ptr() == a.untyped_storage().data_ptr() for a in arguments)
    assert shares == call.view
    if counted:
        assert costs.flops(call, FIELDS) == counted


def test_parameters_are_those_of_a_layer() -> None:
    from attnspec_impls.grouped_query import GroupedQueryAttention

    layer = GroupedQueryAttention(FIELDS["d_model"], FIELDS["heads"], kv_heads=FIELDS["kv_heads"])
    assert sum(costs.parameters(FIELDS).values()) == sum(p.numel() for p in layer.parameters())


def test_cache_keeps_keys_and_values_of_all_positions() -> None:
    d_k = FIELDS["d_model"] // FIELDS["heads"]
    assert costs.cache_elements(FIELDS) == 2 * FIELDS["batch"] * FIELDS["kv_heads"] * FIELDS["kv_len"] * d_k


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2*heads*d_k", 24),
        ("width/{heads}", 5),
        ("#batch", 2),
        ("(heads+1)*2", 10),
        ("width/(5*{heads})", 1),
        ("0", 0),
    ],
)
def test_evaluate_reads_axis_expressions(expression: str, value: int) -> None:
    assert costs.evaluate(expression, {"heads": 4, "d_k": 3, "width": 20, "batch": 2}) == value


def test_evaluate_refuses_a_remainder() -> None:
    with pytest.raises(ValueError, match="3 does not divide 10"):
        costs.evaluate("width/heads", {"width": 10, "heads": 3})
