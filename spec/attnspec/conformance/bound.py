r"""How far a right core may be from the exact result: computed for every element, never chosen.

With the exact weights $p$, logits $s$, row maximum $m$ and output $Y$, and the unit roundoffs $u$ of
accumulation (a), operands (q), scores (s), probabilities (p) and output (o), each logit may be off by

$$D = \text{scale}\,(\gamma_{d+4}(u_a) + \gamma_2(u_q))\,|q|\cdot|k| + \gamma_3(u_s)|s| + u_s|s + b|
      + 2 u_a (m - s) + 4 u_a (T + 1)$$

The terms: the dot product and scaled operands that are stored; scores stored as product, scaled and with
a rounded scale; the bias; the subtraction of the maximum, and of the maximum of a block that is merged;
an exponential of 2 ulp, and one more each time a running maximum moves. Softcap maps the interval
through tanh, then adds three stores. Since $\sum_j p_j (V_j - Y) = 0$,

$$|\tilde Y - Y| \le \sum_j \frac{p_j\,\mathrm{expm1}(D_j)}{\sum_k p_k e^{-D_k}} |V_j - Y|
      + c \sum_j \hat p_j |V_j| + \text{flush} + u_o(|Y| + \text{all of it})$$

with $c = 2\gamma_T(u_a) + u_p + 4u_a + 4u_a(|m| + \ln(T + 1))$; the last term is for forms that subtract a
rounded log-sum-exp and so do not renormalise. Subnormals may be flushed wherever something is stored.
Overflow is not covered: inputs whose scores leave the range of a half type have no right answer in it.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attnspec._inputs import CoreInputs
from attnspec.oracle.vectorised import CoreResult
from attnspec.precision import Roundoffs, unit_roundoff

from .inexact import accumulator_tiny, gamma, judged, score_tiny, stored

SHARP_LIMIT = 2**21
_LARGEST_BUDGET = 600.0  # exp of it, and of its negative, are still normal numbers in float64


@dataclass(frozen=True, slots=True)
class Operands:
    """Queries, keys and values in float64, shared out to heads, and how far each may be off already.

    What is not finite became finite: where it is visible no bound applies, and elsewhere it must not matter.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    query_error: Tensor | None = None
    key_error: Tensor | None = None
    value_error: Tensor | None = None


def _clean(tensor: Tensor) -> Tensor:
    return tensor.detach().double().nan_to_num(0.0, 0.0, 0.0)


def operands(inputs: CoreInputs, errors: tuple[Tensor, Tensor, Tensor] | None = None) -> Operands:
    """Widen, clean and share out the tensors of a core call, with their `errors` where they have any."""
    group = inputs.sizes["group"]

    def shared(tensor: Tensor) -> Tensor:
        return tensor.repeat_interleave(group, 1) if group != 1 else tensor

    plain = _clean(inputs.query), shared(_clean(inputs.key)), shared(_clean(inputs.value))
    return (
        Operands(*plain)
        if errors is None
        else Operands(*plain, errors[0], shared(errors[1]), shared(errors[2]))
    )


@dataclass(frozen=True, slots=True)
class Spread:
    """Where the weights of a right implementation may lie; shapes as `batch heads q_len kv_len`.

    Attributes:
        weights: The exact ones.
        budget: $D$, the possible error of a logit; 0 where nothing is seen.
        score_error: The same before softcap and bias, of the scaled scores.
        drift: How far a weight may move with the logits, as the sum of all moves is 0.
        highest: The largest weight there may be.
        rounding: What rounding adds to a weight, after the drift.
        alive: `batch heads q_len 1`, True where a query sees anything.
    """

    weights: Tensor
    budget: Tensor
    score_error: Tensor
    drift: Tensor
    highest: Tensor
    rounding: Tensor
    alive: Tensor


def _dot_error(inputs: CoreInputs, given: Operands, roundoffs: Roundoffs) -> Tensor:
    """Return how far the scaled scores may be off before they are stored."""
    scale, query, key = abs(inputs.factor), given.query.abs(), given.key.abs()
    carried = None
    if given.query_error is not None and given.key_error is not None:
        wide_key = key + given.key_error
        left = torch.cat((given.query_error, query), -1)
        carried = left @ torch.cat((wide_key, given.key_error), -1).mT
        query, key = query + given.query_error, wide_key
    relative = gamma(query.shape[-1] + 4, roundoffs.accumulation) + gamma(2, roundoffs.operands)
    error = (query * (relative * scale)) @ key.mT
    if carried is not None:
        error = torch.add(error, carried, alpha=scale)
    tiny = score_tiny(roundoffs)
    return error if tiny < 1e-30 else error + _operand_underflow(query, key, scale, tiny)


def _operand_underflow(query: Tensor, key: Tensor, scale: float, tiny: float) -> Tensor:
    """Return what flushing operands, scaled or not, does to a score; only float16 has so large a `tiny`."""
    cut, limit = tiny / min(1.0, scale or 1.0), tiny * max(1.0, scale)

    def lost(size: Tensor) -> Tensor:
        return (size * scale).clamp(max=limit).masked_fill_(size >= cut, 0.0)

    return torch.cat((lost(query), query), -1) @ torch.cat((key, lost(key)), -1).mT


def _logit_error(
    inputs: CoreInputs, exact: CoreResult, error: Tensor, roundoffs: Roundoffs
) -> tuple[Tensor, Tensor]:
    """Return how far scaled scores, and then logits, may be off once they were stored, capped and biased."""
    unit, tiny = roundoffs.scores, score_tiny(roundoffs)
    scaled = exact.steps["scale_scores"].detach()
    before = error = stored(scaled, error, unit, tiny * max(1.0, abs(inputs.factor)), times=3)
    if inputs.softcap is not None:
        cap, at = inputs.softcap, scaled.abs() / inputs.softcap
        error = cap * (at.tanh() - (at - error / cap).tanh())
        capped = exact.steps["cap_scores"].detach()
        error = torch.add(error, capped.abs(), alpha=gamma(4, roundoffs.accumulation))
        error = stored(capped, error, unit, tiny * max(1.0, cap), times=3)
    if inputs.bias is not None:
        error = stored(exact.logits.detach(), error, unit, tiny)
    return before, error


def spread(inputs: CoreInputs, exact: CoreResult, given: Operands, roundoffs: Roundoffs) -> Spread:
    """Work out where weights may lie; `kv_len` is at least 1."""
    logits, weights, unit = exact.logits.detach(), exact.weights.detach(), roundoffs.accumulation
    seen = exact.visible & (logits != -math.inf)
    hidden, alive = ~seen, seen.any(-1, keepdim=True)
    top = logits.masked_fill(hidden, -math.inf).amax(-1, keepdim=True).masked_fill(~alive, 0.0)
    before, error = _logit_error(inputs, exact, _dot_error(inputs, given, roundoffs), roundoffs)
    length = logits.shape[-1]
    budget = torch.add(error, top - logits, alpha=2 * unit).add_(4 * unit * (length + 1))
    budget = budget.clamp_(max=_LARGEST_BUDGET).masked_fill_(hidden, 0.0)
    least = (weights * (-budget).exp()).sum(-1, keepdim=True).masked_fill(~alive, 1.0)
    drift = (weights * budget.expm1() / least).clamp(max=1.0)
    highest = (weights / least + drift).clamp(max=1.0)
    per_row = (
        (top.abs() + math.log(length + 1) + 1) * (4 * unit)
        + 2 * gamma(length, unit)
        + roundoffs.probabilities
    )
    rounding = stored(weights, drift, 0.0, roundoffs.smallest_normal) - drift + per_row * highest
    return Spread(weights, budget, before.masked_fill(hidden, 0.0), drift, highest, rounding, alive)


def _moved(spread: Spread, value: Tensor, output: Tensor, sharp: bool) -> Tensor:
    """Return what drifting weights do: the sum of `drift * |value - output|`, or its Cauchy-Schwarz bound."""
    if sharp:
        distance = value.unsqueeze(-3) - output.unsqueeze(-2)
        return (spread.drift.unsqueeze(-2) @ distance.abs_()).squeeze(-2)
    total, first, second = (
        spread.drift.sum(-1, keepdim=True),
        spread.drift @ value,
        spread.drift @ value.square(),
    )
    size = second + output.square() * total
    square = (size - 2 * output * first).clamp_(min=0.0) + 4 * value.shape[-2] * unit_roundoff(
        torch.float64
    ) * size
    return (total * square).sqrt()


def core_error(
    exact: CoreResult, given: Operands, spread: Spread, roundoffs: Roundoffs, *, sharp: bool
) -> Tensor:
    """Return how far the output may be off before it is stored."""
    value, output = given.value, exact.output.detach().nan_to_num(0.0, 0.0, 0.0)
    error = _moved(spread, value, output, sharp) + spread.rounding @ value.abs()
    if given.value_error is not None:
        error = error + (spread.highest + spread.rounding) @ given.value_error
    lost = accumulator_tiny(roundoffs) * (value.shape[-2] + 1)
    return (error + lost).masked_fill(~spread.alive, 0.0)


@torch.no_grad()
def core_bound(
    inputs: CoreInputs, exact: CoreResult, roundoffs: Roundoffs, *, sharp: bool | None = None
) -> Tensor:
    """Return the error that is allowed for each element of a core's output.

    Args:
        inputs: The call.
        exact: Its exact result.
        roundoffs: Where the implementation rounds.
        sharp: Whether to sum over every key and feature, or to use the Cauchy-Schwarz form, at most
            about twice as wide; None chooses by size.

    Returns:
        `batch heads q_len d_v`, float64; 0 for a query that sees nothing.
    """
    output = exact.output.detach()
    if not exact.weights.numel() or not output.numel():
        return torch.zeros_like(output)
    if sharp is None:
        sharp = exact.weights.numel() * output.shape[-1] <= SHARP_LIMIT
    given = operands(inputs)
    error = core_error(exact, given, spread(inputs, exact, given, roundoffs), roundoffs, sharp=sharp)
    return judged(stored(output, error, roundoffs.output, roundoffs.output_smallest_normal), roundoffs)


def _others(terms: Tensor) -> Tensor:
    """Return for each key the sum over all other keys; a term that dwarfs the rest costs no digits."""
    at = terms.argmax(-1, keepdim=True)
    rest = terms.scatter(-1, at, 0.0).sum(-1, keepdim=True)
    return (terms.sum(-1, keepdim=True) - terms).scatter(-1, at, rest)


def weight_drift(spread: Spread) -> Tensor:
    """Return how far a single weight may be off with the logits; unlike `drift`, without a common shift."""
    weights, up, down = spread.weights, spread.budget.expm1(), -(-spread.budget).expm1()
    lift, fall, rest = weights * up, weights * down, _others(weights)
    rise = (
        weights * (rest * up + _others(fall)) / (weights + lift + _others(weights - fall)).clamp(min=1e-300)
    )
    drop = (
        weights * (rest * down + _others(lift)) / (weights - fall + _others(weights + lift)).clamp(min=1e-300)
    )
    return torch.maximum(rise.clamp(max=1.0), torch.minimum(drop, weights))


@torch.no_grad()
def weights_bound(inputs: CoreInputs, exact: CoreResult, roundoffs: Roundoffs) -> Tensor:
    """Return the error that is allowed for each returned weight, `batch heads q_len kv_len`, float64."""
    if not exact.weights.numel():
        return torch.zeros_like(exact.weights)
    around = spread(inputs, exact, operands(inputs), roundoffs)
    error = weight_drift(around) + around.rounding
    return judged(
        stored(around.weights, error, roundoffs.output, roundoffs.output_smallest_normal), roundoffs
    )
