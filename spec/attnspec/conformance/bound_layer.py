r"""How far a right layer may be from the exact result.

A projection $Q = X W^\top + b$ is off by $\gamma_{n+2}(u_a)(|X||W|^\top + |b|)$, and by two stores in the
tensors' own dtype where the bias is added apart. Errors of queries and keys enter the logit budget as
$|\text{scale}|(e_Q \cdot |K| + |Q| \cdot e_K + e_Q \cdot e_K)$, those of values as $\sum_j \hat p_j e_V$.
The output projection carries the core's error through $|W_o|$, and adds $\gamma_{heads}(u_o)$ of
$|Y||W_o|^\top$, because a right layer may project each head by itself and sum the products in the tensors'
own dtype.

Under autocast the roundoffs are those of the half type, and inputs, matrices and biases are rounded to it
before they meet: with `autocast` the bound counts that too. For numbers of the half type it makes no
difference.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from attnspec._inputs import LayerInputs
from attnspec.oracle.vectorised import LayerResult
from attnspec.precision import Roundoffs

from .bound import SHARP_LIMIT, Operands, Spread, core_error, operands, spread
from .inexact import gamma, judged, narrowed, partials, stored


def projection_error(
    tensor: Tensor, weight: Tensor, bias: Tensor | None, exact: Tensor, roundoffs: Roundoffs, *,
    error: Tensor | None = None, heads: int = 1, autocast: bool = False,
) -> Tensor:  # fmt: skip
    """Return how far a stored projection may be off.

    Args:
        tensor: What is projected, exact, float64.
        weight: The matrix as `torch.nn.Linear` stores it.
        bias: What is added, or None.
        exact: The projection without rounding.
        roundoffs: Where the implementation rounds.
        error: How far `tensor` may be off already; None is not at all.
        heads: How many partial products may be summed in storage.
        autocast: Whether matrix and bias are rounded first.
    """
    unit, tiny = roundoffs.output, roundoffs.output_smallest_normal
    matrix = weight.abs().mT
    size = tensor.abs() @ matrix
    carried = torch.zeros_like(size) if error is None else error @ matrix
    if autocast:
        held = tensor.abs() if error is None else tensor.abs() + error
        carried = carried + held @ narrowed(weight, roundoffs).mT
    products = size + carried
    lost = torch.zeros_like(carried) if bias is None or not autocast else narrowed(bias, roundoffs)
    total = products if bias is None else products + bias.abs() + lost
    off = (
        carried
        + lost
        + partials(products, heads, roundoffs)
        + gamma(tensor.shape[-1] + 2, roundoffs.accumulation) * total
    )
    if bias is not None:
        off = stored(exact - bias, off, unit, tiny)
    return stored(exact, off, unit, tiny)


@dataclass(frozen=True, slots=True)
class LayerSpread:
    """Everything that the bounds of a layer's output and of its gradients share.

    Attributes:
        given: The core's operands with the errors of their projections.
        around: Where the weights may lie; None where there is no key or no query.
        core: The core's output, off by this much once stored.
        merged: The same with the heads side by side.
    """

    given: Operands
    around: Spread | None
    core: Tensor
    merged: Tensor


def _head_errors(
    inputs: LayerInputs, exact: LayerResult, roundoffs: Roundoffs, autocast: bool
) -> tuple[Tensor, Tensor, Tensor]:
    wide = inputs.to(torch.float64)
    w, found = wide.weights, []
    for name, tensor, stage, count in (
        ("q", wide.query, "project_queries", w.heads),
        ("k", wide.key_input, "project_keys", w.kv_heads),
        ("v", wide.value_input, "project_values", w.kv_heads),
    ):
        clean = tensor.detach().nan_to_num(0.0, 0.0, 0.0)
        projected = exact.steps[stage].detach().nan_to_num(0.0, 0.0, 0.0)
        off = projection_error(
            clean, getattr(w, f"W_{name}"), getattr(w, f"b_{name}"), projected, roundoffs,
            error=narrowed(clean, roundoffs) if autocast else None, autocast=autocast,
        )  # fmt: skip
        found.append(off.unflatten(-1, (count, off.shape[-1] // count)).transpose(1, 2))
    return found[0], found[1], found[2]


def layer_spread(
    inputs: LayerInputs, exact: LayerResult, roundoffs: Roundoffs, *, autocast: bool = False
) -> LayerSpread:
    """Follow the errors of a layer to the merged heads."""
    given = operands(exact.core_inputs, _head_errors(inputs, exact, roundoffs, autocast))
    output, around = exact.core.output.detach(), None
    error = torch.zeros_like(output)
    if exact.core.weights.numel():
        around = spread(exact.core_inputs, exact.core, given, roundoffs)
        sharp = exact.core.weights.numel() * output.shape[-1] <= SHARP_LIMIT
        error = core_error(exact.core, given, around, roundoffs, sharp=sharp)
        error = stored(output, error, roundoffs.output, roundoffs.output_smallest_normal)
    return LayerSpread(given, around, error, error.transpose(1, 2).flatten(2))


@torch.no_grad()
def layer_bound(
    inputs: LayerInputs, exact: LayerResult, roundoffs: Roundoffs, *, autocast: bool = False
) -> Tensor:
    """Return the error that is allowed for each element of a layer's output, float64.

    Args:
        inputs: The call.
        exact: Its exact result.
        roundoffs: Where the implementation rounds.
        autocast: Whether inputs and weights are rounded to the dtype of the output first.
    """
    weights = inputs.weights.to(torch.float64)
    merged = exact.core.output.detach().transpose(1, 2).flatten(2).nan_to_num(0.0, 0.0, 0.0)
    bound = projection_error(
        merged, weights.W_o, weights.b_o, exact.output.detach(), roundoffs,
        error=layer_spread(inputs, exact, roundoffs, autocast=autocast).merged,
        heads=weights.heads, autocast=autocast,
    )  # fmt: skip
    return judged(bound, roundoffs)
