"""What each step of a layer costs: the calls that a layer makes of the stages, and their operations.

Shapes are read from the stages' signatures. Here stand only the facts that a signature does not have: which
roles go through a stage, what its free axes mean there, and how many floating-point operations it takes.
A multiplication with an addition counts as 2; the additions of biases are left out, as in most counters.
"""

import ast
import operator
import re
from dataclasses import dataclass, field
from typing import Any

import torch

from attnspec import stages
from attnspec._axes import AXES
from attnspec._table import STAGES, Argument, Stage

assert stages  # imported for the table that it fills
SCORES = "batch*heads*q_len*kv_len"
DERIVED = {"d_k": "d_model/heads", "d_v": "d_model/heads", "group": "heads/kv_heads"}
FIELDS = {"batch": 2, "q_len": 512, "kv_len": 512, "heads": 8, "kv_heads": 8, "d_model": 512}
DTYPES = {
    str(d).removeprefix("torch."): torch.finfo(d).bits // 8
    for d in (torch.float32, torch.bfloat16, torch.float16, torch.float64)
}
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


@dataclass(frozen=True)
class Call:
    """One step of a layer.

    Attributes:
        stage: The stage's function.
        role: Which tensor goes through it, where several do.
        bind: Meaning of the stage's axes in this step; those of the vocabulary mean themselves.
        flops: Floating-point operations, as an expression of the axes.
        view: The result is a view: no element is copied.
        cached: The result is what a key/value cache keeps.
        grouped: The step is there only where heads share keys and values.
    """

    stage: str
    role: str = ""
    bind: dict[str, str] = field(default_factory=dict)
    flops: str = "0"
    view: bool = False
    cached: bool = False
    grouped: bool = False


def _three(stage: str, **options: Any) -> tuple[Call, ...]:
    """Return a step that queries, keys and values go through one after the other."""
    keys = {"seq": "kv_len", "heads": "kv_heads"}
    cached = options.pop("cached", False)
    return (
        Call(stage, "query", {"seq": "q_len", "width": "heads*d_k"}, **options),
        Call(stage, "key", {**keys, "width": "kv_heads*d_k"}, cached=cached, **options),
        Call(stage, "value", {**keys, "width": "kv_heads*d_v", "d_k": "d_v"}, cached=cached, **options),
    )


CALLS: tuple[Call, ...] = (
    Call("project_queries", flops="2*batch*q_len*d_model*heads*d_k"),
    Call("project_keys", flops="2*batch*kv_len*d_model*kv_heads*d_k"),
    Call("project_values", flops="2*batch*kv_len*d_model*kv_heads*d_v"),
    *_three("split_heads", view=True),
    *_three("heads_first", view=True, cached=True),
    Call("share_heads", "key", {"width": "d_k"}, grouped=True),
    Call("share_heads", "value", {"width": "d_v"}, grouped=True),
    Call("scores", flops=f"2*{SCORES}*d_k"),
    Call("scale_scores", flops=SCORES),
    Call("mask_scores", flops=SCORES),
    # Per score: find the maximum, subtract it, take the exponential, sum up, divide.
    Call("normalise", flops=f"5*{SCORES}"),
    Call("aggregate_values", flops=f"2*{SCORES}*d_v"),
    Call("merge_heads"),
    Call("project_output", bind={"width": "heads*d_v"}, flops="2*batch*q_len*heads*d_v*d_model"),
)  # fmt: skip


def evaluate(expression: str, values: dict[str, int]) -> int:
    """Return the value of an axis expression.

    Raises:
        ValueError: If a division leaves a remainder, or the expression is of another kind.
    """

    def walk(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.Name):
            return values[node.id]
        if isinstance(node, ast.BinOp):
            left, right = walk(node.left), walk(node.right)
            if isinstance(node.op, ast.Div):
                if right == 0 or left % right:
                    raise ValueError(f"{expression}: {right} does not divide {left}")
                return left // right
            return OPERATORS[type(node.op)](left, right)
        raise ValueError(f"not an axis expression: {expression}")

    return walk(ast.parse(re.sub(r"[#{}]", "", expression), mode="eval").body)


def sizes(call: Call, fields: dict[str, int]) -> dict[str, int]:
    """Return the value of every axis in one step."""
    values = dict(fields)
    for name, expression in DERIVED.items():
        values[name] = evaluate(expression, values)
    return values | {name: evaluate(expression, values) for name, expression in call.bind.items()}


def shape(argument: Argument, call: Call, fields: dict[str, int]) -> tuple[int, ...]:
    """Return the concrete shape of an argument or result in one step."""
    return tuple(evaluate(d, sizes(call, fields)) for d in argument.dims)


def flops(call: Call, fields: dict[str, int]) -> int:
    """Return the floating-point operations of one step."""
    return evaluate(call.flops, sizes(call, fields))


def _product(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())


def parameters(fields: dict[str, int]) -> dict[str, int]:
    """Return how many weights and biases a layer has: the sizes of the projections' arguments."""
    projections = [c for c in CALLS if c.stage.startswith("project_")]
    found = {"weight": 0, "bias": 0}
    for call in projections:
        for argument in STAGES[call.stage].arguments:
            if argument.name in found:
                found[argument.name] += _product(shape(argument, call, fields))
    return found


def cache_elements(fields: dict[str, int]) -> int:
    """Return how many elements a key/value cache of these sizes keeps."""
    return sum(_product(shape(STAGES[c.stage].result, c, fields)) for c in CALLS if c.cached)


def as_data() -> dict[str, Any]:
    """Return everything that the explorer needs, as plain data."""

    def argument(found: Argument) -> dict[str, Any]:
        return {"name": found.name, "dims": list(found.dims), "kind": found.kind}

    def described(stage: Stage) -> dict[str, Any]:
        arguments = [argument(a) for a in stage.arguments]
        return {"name": stage.name, "arguments": arguments, "result": argument(stage.result)}

    smallest = {axis.name: axis.smallest for axis in AXES}
    return {
        "fields": [{"name": n, "value": v, "smallest": smallest[n]} for n, v in FIELDS.items()],
        "dtypes": DTYPES,
        "derived": DERIVED,
        "stages": {name: described(stage) for name, stage in STAGES.items()},
        "calls": [vars(call) for call in CALLS],
    }  # fmt: skip
