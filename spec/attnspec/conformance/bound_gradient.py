r"""How far right gradients may be from the exact ones, by the same reasoning as `bound`.

With the upstream gradient $G$: $dV = P^\top G$, $dP = G V^\top$, $r = \sum_j P_j dP_j$, $dS = P (dP - r)$, then
the slope $1 - \tanh^2$ of a softcap, $dQ = \text{scale}\; dS K$ and $dK = \text{scale}\; dS^\top Q$. Stored on the
way: $P$ with $u_p$, $dP$ and $dS$ (also scaled, also three times around a softcap) with $u_s$, gradients that leave
with $u_o$, twice where the operand was scaled. $r$ may be summed over keys, or be $G \cdot Y$ with the rounded
output; the bound takes the larger. Drifting weights sum to 0, so they meet $|dP_j - r|$ and not $|dP_j|$; their
rounding does not. Heads of a group are stored one by one and then summed in the tensors' own dtype.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from attnspec._inputs import CoreInputs, LayerInputs
from attnspec.oracle.vectorised import CoreResult, LayerResult
from attnspec.precision import Roundoffs

from .bound import SHARP_LIMIT, Operands, Spread, core_error, gamma, judged, operands, score_tiny, spread, stored, weight_drift
from .bound_layer import layer_spread, projection_error


@dataclass(frozen=True, slots=True)
class Off:
    """An exact tensor, and how far a right implementation's may be from it."""

    exact: Tensor
    error: Tensor

    @property
    def size(self) -> Tensor:
        """The largest absolute value that a right implementation may hold."""
        return self.exact.abs() + self.error

    def store(self, unit: float, tiny: float, *, times: int = 1) -> "Off":
        """Return the same, stored `times` times."""
        return Off(self.exact, stored(self.exact, self.error, unit, tiny, times=times))

    def map(self, function) -> "Off":  # type: ignore[no-untyped-def]
        """Return the same under a change of shape."""
        return Off(function(self.exact), function(self.error))


def known(tensor: Tensor, error: Tensor | None = None) -> Off:
    """Return a tensor that is off by `error`, or by nothing."""
    return Off(tensor, torch.zeros_like(tensor) if error is None else error)


def product(left: Off, right: Off, relative: float) -> Off:
    """Return a matrix product of two inexact tensors, itself computed with a `relative` error."""
    size = right.size
    error = left.error @ size + left.exact.abs() @ right.error + relative * (left.size @ size)
    return Off(left.exact @ right.exact, error)


def _score_gradient(around: Spread, upstream: Off, value: Off, output: Off, roundoffs: Roundoffs) -> Off:
    """Return the gradient of the logits, stored."""
    unit, length, width = roundoffs.accumulation, around.weights.shape[-1], value.exact.shape[-1]
    tiny, hidden = score_tiny(roundoffs), around.budget == 0
    weights, largest = around.weights, around.highest + around.rounding
    mixed = product(upstream, value.map(lambda t: t.mT), gamma(width + 2, unit))
    mixed = mixed.map(lambda t: t.masked_fill(hidden, 0.0)).store(roundoffs.scores, tiny)
    mean = (weights * mixed.exact).sum(-1, keepdim=True)
    centred = mixed.exact - mean
    over_keys = (
        around.drift * centred.abs() + around.rounding * mixed.exact.abs()
        + largest * (mixed.error + gamma(length + 2, unit) * mixed.size)
    ).sum(-1, keepdim=True)  # fmt: skip
    over_features = (
        upstream.error * output.exact.abs() + upstream.size * (output.error + gamma(width + 2, unit) * output.size)
    ).sum(-1, keepdim=True)
    mean_error = torch.maximum(over_keys, over_features)
    weight_error = weight_drift(around) + around.rounding
    inside = mixed.error + mean_error + gamma(4, unit) * (mixed.size + mean.abs() + mean_error)
    error = weight_error * centred.abs() + (weights + weight_error) * inside
    found = Off(weights * centred, error).map(lambda t: t.masked_fill(hidden, 0.0))
    return found.store(roundoffs.scores, tiny)


def _through_softcap(inputs: CoreInputs, exact: CoreResult, around: Spread, logits: Off, roundoffs: Roundoffs) -> Off:
    """Return the gradient of the scaled scores from that of the capped ones."""
    if inputs.softcap is None:
        return logits
    at, off = exact.steps["scale_scores"].detach().abs() / inputs.softcap, around.score_error / inputs.softcap

    def slope(where: Tensor) -> Tensor:
        return where.cosh().square().reciprocal()

    exact_slope = slope(at)
    error = slope((at - off).clamp(min=0.0)) - slope(at + off) + gamma(4, roundoffs.scores) * (1 + at.tanh().square())
    error = logits.error * exact_slope + logits.size * error.clamp(max=1.0)
    found = Off(logits.exact * exact_slope, error).map(lambda t: t.masked_fill(around.budget == 0, 0.0))
    return found.store(roundoffs.scores, score_tiny(roundoffs) * max(1.0, inputs.softcap), times=3)


def _group(off: Off, group: int, unit: float) -> Off:
    """Sum the gradients of a key/value head over the query heads that share it."""
    if group == 1:
        return off
    error = off.error + gamma(group, unit) * off.size
    return Off(off.exact, error).map(lambda t: t.unflatten(1, (-1, group)).sum(2))


def _bias_gradient(bias: Tensor, logits: Off, roundoffs: Roundoffs) -> Off:
    count = logits.exact.numel() // max(bias.numel(), 1)
    error = logits.error + gamma(count + 1, roundoffs.accumulation) * logits.size
    reduced = Off(logits.exact, error).map(lambda t: t.sum_to_size(bias.shape))
    return reduced.store(roundoffs.output, roundoffs.output_smallest_normal)


def _core_gradients(
    inputs: CoreInputs, exact: CoreResult, given: Operands, around: Spread, upstream: Off, output: Off, roundoffs: Roundoffs
) -> dict[str, Off]:
    """Return each gradient of a core with its error; `kv_len` and `q_len` are at least 1."""
    unit, out, tiny = roundoffs.accumulation, roundoffs.output, roundoffs.output_smallest_normal
    group, scale = inputs.sizes["group"], inputs.factor
    q_len, kv_len = around.weights.shape[-2:]
    query, key = known(given.query, given.query_error), known(given.key, given.key_error)
    value = known(given.value, given.value_error)
    held = Off(around.weights, weight_drift(around) + around.rounding)
    logits = _score_gradient(around, upstream, value, output, roundoffs)
    scores = _through_softcap(inputs, exact, around, logits, roundoffs)
    scaled = scores.map(lambda t: t * abs(scale)).store(roundoffs.scores, score_tiny(roundoffs))
    scaled = Off(scaled.exact * (-1 if scale < 0 else 1), scaled.error)
    stored_twice = tiny * max(1.0, abs(scale))
    found = {
        "query": product(scaled, key, gamma(kv_len + 2, unit) + roundoffs.operands).store(out, stored_twice, times=2),
        "key": product(scaled.map(lambda t: t.mT), query, gamma(q_len + 2, unit) + roundoffs.operands)
        .store(out, stored_twice, times=2),
        "value": product(held.map(lambda t: t.mT), upstream, gamma(q_len + 2, unit)).store(out, tiny),
    }  # fmt: skip
    found |= {name: _group(found[name], group, out) for name in ("key", "value")}
    if inputs.bias is not None:
        found["bias"] = _bias_gradient(inputs.bias, logits, roundoffs)
    return found


def _no_gradients(inputs: CoreInputs) -> dict[str, Off]:
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
        return {name: off.error for name, off in _no_gradients(inputs).items()}
    given = operands(inputs)
    around = spread(inputs, exact, given, roundoffs)
    sharp = exact.weights.numel() * output.shape[-1] <= SHARP_LIMIT
    error = core_error(exact, given, around, roundoffs, sharp=sharp)
    held = known(output.nan_to_num(0.0, 0.0, 0.0), error).store(roundoffs.output, roundoffs.output_smallest_normal)
    found = _core_gradients(inputs, exact, given, around, known(upstream.detach().double()), held, roundoffs)
    return {name: judged(off.error, roundoffs) for name, off in found.items()}


def _parameters(name: str, gradient: Off, tensor: Off, roundoffs: Roundoffs, *, bias: bool) -> dict[str, Off]:
    """Return the gradients of one projection's matrix and bias; `gradient` and `tensor` are `rows width`."""
    rows, unit = gradient.exact.shape[0], roundoffs.accumulation
    found = {f"W_{name}": product(gradient.map(lambda t: t.mT), tensor, gamma(rows + 2, unit))}
    if bias:
        error = (gradient.error + gamma(rows + 2, unit) * gradient.size).sum(0)
        found[f"b_{name}"] = Off(gradient.exact.sum(0), error)
    return {n: off.store(roundoffs.output, roundoffs.output_smallest_normal) for n, off in found.items()}


def _input_gradients(inputs: LayerInputs, gradients: dict[str, Off], roundoffs: Roundoffs) -> dict[str, Off]:
    """Return the gradients of the inputs from those of the projections.

    One tensor may play several parts, and each head may be projected by itself: all those partial sums may be stored.
    """
    w = inputs.weights.to(torch.float64)
    key = "query" if inputs.key is None else "key"
    ends = {"q": "query", "k": key, "v": key if inputs.value is None else "value"}
    heads = {"q": w.heads, "k": w.kv_heads, "v": w.kv_heads}
    found: dict[str, Off] = {}
    for end in dict.fromkeys(ends.values()):
        names = [name for name in ends if ends[name] == end]
        width = sum(gradients[name].exact.shape[-1] for name in names)
        relative = gamma(width + 2, roundoffs.accumulation) + gamma(sum(heads[n] for n in names), roundoffs.output)
        parts = [product(gradients[name], known(getattr(w, f"W_{name}")), relative) for name in names]
        both = Off(sum(part.exact for part in parts), sum(part.error for part in parts))  # type: ignore[arg-type]
        found[end] = both.store(roundoffs.output, roundoffs.output_smallest_normal)
    return found


@torch.no_grad()
def layer_gradient_bounds(
    inputs: LayerInputs, exact: LayerResult, upstream: Tensor, roundoffs: Roundoffs
) -> dict[str, Tensor]:
    """Return the error that is allowed for each element of a layer's gradients, float64.

    Args:
        inputs: The call.
        exact: Its exact result.
        upstream: The gradient of the output, `batch q_len d_model`.
        roundoffs: Where the implementation rounds, forwards and backwards.

    Returns:
        By name: `query`, `key` and `value` as far as they are given, where one tensor that plays several
        parts has the sum of its roads, and every parameter by its canonical name.
    """
    wide, out, tiny = inputs.to(torch.float64), roundoffs.output, roundoffs.output_smallest_normal
    w, held = wide.weights, layer_spread(inputs, exact, roundoffs)
    clean = {
        n: t.detach().nan_to_num(0.0, 0.0, 0.0) for n, t in (("q", wide.query), ("k", wide.key_input), ("v", wide.value_input))
    }
    arriving = known(upstream.detach().double())
    output = exact.core.output.detach().nan_to_num(0.0, 0.0, 0.0)
    merged = Off(output.transpose(1, 2).flatten(2), held.merged)
    found = _parameters("o", *(o.map(lambda t: t.flatten(0, 1)) for o in (arriving, merged)), roundoffs, bias=w.b_o is not None)
    mixed = product(arriving, known(w.W_o), gamma(w.d_model + 2, roundoffs.accumulation)).store(out, tiny)
    mixed = mixed.map(lambda t: t.unflatten(-1, (w.heads, -1)).transpose(1, 2))
    inner = (
        _no_gradients(exact.core_inputs) if held.around is None
        else _core_gradients(exact.core_inputs, exact.core, held.given, held.around, mixed, Off(output, held.core), roundoffs)
    )  # fmt: skip
    gradients = {}
    for name, tensor in (("q", "query"), ("k", "key"), ("v", "value")):
        gradients[name] = gradient = inner[tensor].map(lambda t: t.transpose(1, 2).flatten(2))
        flat = gradient.map(lambda t: t.flatten(0, 1)), known(clean[name].flatten(0, 1))
        found |= _parameters(name, *flat, roundoffs, bias=getattr(w, f"b_{name}") is not None)
    found = _input_gradients(inputs, gradients, roundoffs) | found
    return {n: judged(off.error, roundoffs) for n, off in found.items()}
