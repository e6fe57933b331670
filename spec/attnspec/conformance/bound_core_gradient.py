r"""How far a core's right gradients may be from the exact ones, by the same reasoning as `bound`.

With the upstream gradient $G$: $dV = P^\top G$, $dP = G V^\top$, $r = \sum_j P_j dP_j$,
$dS = P (dP - r)$, then the slope $1 - \tanh^2$ of a softcap, $dQ = \text{scale}\; dS K$ and
$dK = \text{scale}\; dS^\top Q$. Beyond what the forward pass may do, the bound knows

- stores: $P$ with $u_p$; $dP$ and $dS$, also scaled, also three times around a softcap, with $u_s$; what
  leaves with $u_o$, twice where the operand was scaled;
- $r$ summed over keys, or as $G \cdot Y$ with the rounded output, whichever is worse;
- drifting weights sum to 0, so they meet $|dP_j - r|$ and not $|dP_j|$; their rounding does not;
- fused kernels compute scores again, with fresh rounding, and weights from them and a stored log-sum-exp,
  so that nothing renormalises these: $\hat p\,\mathrm{expm1}(D' + \ln \sum p e^{D'})$ with the budget $D'$ of
  accumulation alone;
- $P\,dP$ and $P r$ as products of their own, whose difference loses digits;
- where weights are normalised block by block, $dP$ is stored while it is still multiplied by what will turn
  out to be a tiny factor: an absolute $u_s$ of the smallest normal number in $dS$;
- heads of a group stored one by one, then summed in the tensors' own dtype;
- a shift of a whole row of scores that is differentiated through (`bound_shift`).
"""

from dataclasses import replace

import torch
from torch import Tensor

from attnspec._inputs import CoreInputs
from attnspec.oracle.vectorised import CoreResult
from attnspec.precision import Roundoffs

from .bound import SHARP_LIMIT, Operands, Spread, core_error, operands, spread, weight_drift
from .bound_shift import row_sum, shift_of_logits, with_shift
from .inexact import Off, accumulator_tiny, gamma, judged, known, partials, product, score_tiny


def _recomputed(
    inputs: CoreInputs, exact: CoreResult, given: Operands, around: Spread, roundoffs: Roundoffs
) -> Tensor:
    """Return how far weights may be off that are computed again from a stored log-sum-exp."""
    query, key = known(given.query, given.query_error).size, known(given.key, given.key_error).size
    dots = gamma(query.shape[-1] + 4, roundoffs.accumulation) * abs(inputs.factor)
    sizes = exact.steps["scale_scores"].detach().abs() + exact.logits.detach().abs()
    error = torch.add((query * dots) @ key.mT, sizes, alpha=gamma(8, roundoffs.accumulation))
    error = error.masked_fill(around.budget == 0, 0.0).clamp(max=300.0)
    total = (around.highest * error.expm1()).sum(-1, keepdim=True).log1p()
    return around.highest * (error + total).expm1()


def _score_gradient(
    around: Spread, upstream: Off, value: Off, output: Off, roundoffs: Roundoffs
) -> tuple[Off, Off, Tensor]:
    """Return the gradient of the logits, stored, that of the weights, and the largest size of its mean."""
    unit, length, width = roundoffs.accumulation, around.weights.shape[-1], value.exact.shape[-1]
    tiny, hidden = score_tiny(roundoffs), around.budget == 0
    weights, largest = around.weights, around.highest + around.rounding
    mixed = product(upstream, value.map(lambda t: t.mT), roundoffs)
    mixed = mixed.map(lambda t: t.masked_fill(hidden, 0.0)).store(roundoffs.scores, tiny)
    mean = (weights * mixed.exact).sum(-1, keepdim=True)
    centred = mixed.exact - mean
    over_keys = (
        around.drift * centred.abs() + around.rounding * mixed.exact.abs()
        + largest * (mixed.error + gamma(length + 2, unit) * mixed.size)
    ).sum(-1, keepdim=True)  # fmt: skip
    over_features = (
        upstream.error * output.exact.abs()
        + upstream.size * (output.error + gamma(width + 2, unit) * output.size)
    ).sum(-1, keepdim=True)
    mean_error = torch.maximum(over_keys, over_features)
    weight_error = weight_drift(around) + around.rounding
    inside = mixed.error + mean_error + gamma(4, unit) * (mixed.size + mean.abs() + mean_error)
    error = weight_error * centred.abs() + (weights + weight_error) * inside
    lost = roundoffs.scores * tiny + 4 * accumulator_tiny(roundoffs)
    error = error + lost
    found = Off(weights * centred, error).map(lambda t: t.masked_fill(hidden, 0.0))
    found = found.store(roundoffs.scores, tiny)
    return found, mixed, mean.abs() + mean_error


def _through_softcap(
    inputs: CoreInputs, exact: CoreResult, around: Spread, logits: Off, roundoffs: Roundoffs
) -> Off:
    """Return the gradient of the scaled scores from that of the capped ones."""
    if inputs.softcap is None:
        return logits
    at, off = exact.steps["scale_scores"].detach().abs() / inputs.softcap, around.score_error / inputs.softcap

    def slope(where: Tensor) -> Tensor:
        return where.cosh().square().reciprocal()

    exact_slope = slope(at)
    error = (
        slope((at - off).clamp(min=0.0))
        - slope(at + off)
        + gamma(4, roundoffs.scores) * (1 + at.tanh().square())
    )
    error = logits.error * exact_slope + logits.size * error.clamp(max=1.0)
    found = Off(logits.exact * exact_slope, error).map(lambda t: t.masked_fill(around.budget == 0, 0.0))
    return found.store(roundoffs.scores, score_tiny(roundoffs) * max(1.0, inputs.softcap), times=3)


def _group(off: Off, group: int, roundoffs: Roundoffs) -> Off:
    """Sum the gradients of a key/value head over the query heads that share it."""
    if group == 1:
        return off
    error = off.error + partials(off.size, group, roundoffs)
    return Off(off.exact, error).map(lambda t: t.unflatten(1, (-1, group)).sum(2))


def _bias_gradient(bias: Tensor, logits: Off, roundoffs: Roundoffs) -> Off:
    count = logits.exact.numel() // max(bias.numel(), 1)
    error = logits.error + gamma(count + 1, roundoffs.accumulation) * logits.size
    reduced = Off(logits.exact, error).map(lambda t: t.sum_to_size(bias.shape))
    return reduced.store(roundoffs.output, roundoffs.output_smallest_normal)


def core_gradients(
    inputs: CoreInputs,
    exact: CoreResult,
    given: Operands,
    around: Spread,
    upstream: Off,
    output: Off,
    roundoffs: Roundoffs,
) -> dict[str, Off]:
    """Return each gradient of a core with its error; `kv_len` and `q_len` are at least 1."""
    out, tiny = roundoffs.output, roundoffs.output_smallest_normal
    group, scale = inputs.sizes["group"], inputs.factor
    again = _recomputed(inputs, exact, given, around, roundoffs)
    first, around = around, replace(around, rounding=around.rounding + again)
    query, key = known(given.query, given.query_error), known(given.key, given.key_error)
    value = known(given.value, given.value_error)
    held = Off(around.weights, weight_drift(around) + around.rounding)
    logits, mixed, mean = _score_gradient(around, upstream, value, output, roundoffs)
    summed = row_sum(first, mixed, mean, logits, upstream, value, roundoffs)
    scores = _through_softcap(inputs, exact, around, logits, roundoffs)
    scaled = scores.map(lambda t: t * abs(scale)).store(roundoffs.scores, score_tiny(roundoffs))
    scaled = Off(scaled.exact * (-1 if scale < 0 else 1), scaled.error)
    stored_twice = tiny * max(1.0, abs(scale))
    found = {
        "query": product(scaled, key, roundoffs, relative=roundoffs.operands),
        "key": product(scaled.map(lambda t: t.mT), query, roundoffs, relative=roundoffs.operands),
    }
    found = with_shift(found, summed, key, query, first, scale)
    found = {name: off.store(out, stored_twice, times=2) for name, off in found.items()}
    found["value"] = product(held.map(lambda t: t.mT), upstream, roundoffs).store(out, tiny)
    found |= {name: _group(found[name], group, roundoffs) for name in ("key", "value")}
    if inputs.bias is not None:
        back = Off(logits.exact, logits.error + shift_of_logits(summed, first))
        found["bias"] = _bias_gradient(inputs.bias, back, roundoffs)
    return found


def no_gradients(inputs: CoreInputs) -> dict[str, Off]:
    """Return the gradients of a call in which nothing is attended: zeros, exactly."""
    tensors = {name: getattr(inputs, name) for name in ("query", "key", "value", "bias")}
    return {n: known(torch.zeros_like(t, dtype=torch.float64)) for n, t in tensors.items() if t is not None}


@torch.no_grad()
def core_gradient_bounds(
    inputs: CoreInputs, exact: CoreResult, upstream: Tensor, roundoffs: Roundoffs
) -> dict[str, Tensor]:
    """Return the error that is allowed for each element of a core's gradients, float64.

    Args:
        inputs: The call.
        exact: Its exact result.
        upstream: The gradient of the output, `batch heads q_len d_v`.
        roundoffs: Where the implementation rounds, forwards and backwards.

    Returns:
        By name: `query`, `key`, `value` and, where it is given, `bias`, each in the shape of the input.
    """
    output = exact.output.detach()
    if not exact.weights.numel() or not output.numel():
        return {name: off.error for name, off in no_gradients(inputs).items()}
    given = operands(inputs)
    around = spread(inputs, exact, given, roundoffs)
    sharp = exact.weights.numel() * output.shape[-1] <= SHARP_LIMIT
    error = core_error(exact, given, around, roundoffs, sharp=sharp)
    held = known(output.nan_to_num(0.0, 0.0, 0.0), error).store(
        roundoffs.output, roundoffs.output_smallest_normal
    )
    found = core_gradients(inputs, exact, given, around, known(upstream.detach().double()), held, roundoffs)
    return {name: judged(off.error, roundoffs) for name, off in found.items()}
