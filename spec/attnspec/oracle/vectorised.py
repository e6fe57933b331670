"""The vectorised oracle: the stages composed, in float64."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from .. import stages
from .._inputs import CoreInputs, LayerInputs
from ..checked import checked


@dataclass(frozen=True, kw_only=True)
class CoreResult:
    """What a core must return, and everything on the way to it.

    Attributes:
        output: `batch heads q_len d_v`.
        weights: `batch heads q_len kv_len`, after softmax and before dropout.
        logits: The scores that enter the softmax, forbidden ones included.
        visible: True where a query may attend.
        steps: Every stage's result, by the stage function's name.
    """

    output: Tensor
    weights: Tensor
    logits: Tensor
    visible: Tensor
    steps: dict[str, Tensor] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class LayerResult:
    """What a layer must return: its output, the core call inside it, and that core's result."""

    output: Tensor
    core_inputs: CoreInputs
    core: CoreResult
    steps: dict[str, Tensor] = field(repr=False)


def core(inputs: CoreInputs) -> CoreResult:
    """Compute a core's exact result: scale, softcap, bias, mask, softmax, aggregate.

    Differentiable in every floating tensor of `inputs`; those are widened to float64 first.
    """
    inputs = inputs.to(torch.float64)
    steps: dict[str, Tensor] = {}

    def run(stage, *tensors, **settings):  # type: ignore[no-untyped-def]
        steps[stage.__name__] = checked(stage)(*tensors, **settings)
        return steps[stage.__name__]

    group = inputs.sizes["group"]
    key = run(stages.share_heads, inputs.key, group=group) if group != 1 else inputs.key
    value = checked(stages.share_heads)(inputs.value, group=group) if group != 1 else inputs.value
    logits = run(stages.scale_scores, run(stages.scores, inputs.query, key), scale=inputs.factor)
    if inputs.softcap is not None:
        logits = run(stages.cap_scores, logits, softcap=inputs.softcap)
    if inputs.bias is not None:
        logits = run(stages.add_bias, logits, inputs.bias[(None,) * (4 - inputs.bias.dim())])
    left, right = inputs.extent
    seen = checked(stages.visible_positions)(inputs.query, key, offset=inputs.offset, left=left, right=right)
    visible = seen.expand_as(logits) if inputs.mask is None else (seen & inputs.mask).expand_as(logits)
    masked = run(stages.mask_scores, logits, visible)
    weights = run(stages.normalise, masked)
    # A forbidden NaN or infinity must not matter, and zero times it would.
    finite = value if bool(torch.isfinite(value).all()) else None
    output = (
        run(stages.aggregate_values, weights, value)
        if finite is not None
        else _mix_visible(weights, value, visible)
    )
    steps["aggregate_values"] = output
    return CoreResult(output=output, weights=weights, logits=logits, visible=visible, steps=steps)


def _mix_visible(weights: Tensor, value: Tensor, visible: Tensor) -> Tensor:
    """Aggregate where some values are not finite: only what a query sees takes part."""
    products = weights.unsqueeze(-1) * value.unsqueeze(-3)
    return torch.where(visible.unsqueeze(-1), products, torch.zeros_like(products)).sum(-2)


def project(inputs: LayerInputs) -> tuple[CoreInputs, dict[str, Tensor]]:
    """Run the stages from a layer's inputs to the heads that its core is given."""
    wide = inputs.to(torch.float64)
    w, steps = wide.weights, {}

    def heads_of(stage, tensor, name, count):  # type: ignore[no-untyped-def]
        bias = getattr(w, f"b_{name}")
        split_bias = None if bias is None else bias.unflatten(0, (count, -1))
        projected = checked(stage)(tensor, getattr(w, f"W_{name}").unflatten(0, (count, -1)), split_bias)
        split = checked(stages.split_heads)(projected, heads=count)
        first = checked(stages.heads_first)(split)
        steps.update({stage.__name__: projected, f"split_heads:{name}": split, f"heads_first:{name}": first})
        return first

    core_inputs = CoreInputs(
        query=heads_of(stages.project_queries, wide.query, "q", w.heads),
        key=heads_of(stages.project_keys, wide.key_input, "k", w.kv_heads),
        value=heads_of(stages.project_values, wide.value_input, "v", w.kv_heads),
        **wide.options(),
    )
    return core_inputs, steps


def layer(inputs: LayerInputs) -> LayerResult:
    """Compute a layer's exact result: project, split, attend, merge, project."""
    core_inputs, steps = project(inputs)
    inner = core(core_inputs)
    weights = inputs.weights.to(torch.float64)
    merged = checked(stages.merge_heads)(inner.output)
    output = checked(stages.project_output)(merged, weights.W_o, weights.b_o)
    steps |= inner.steps | {"merge_heads": merged, "project_output": output}
    return LayerResult(output=output, core_inputs=core_inputs, core=inner, steps=steps)
