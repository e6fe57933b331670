r"""How far a layer's right gradients may be from the exact ones.

The upstream gradient passes the output projection, the core (`bound_core_gradient`) with operands that are
off already, and the other projections; each result is stored in the tensors' own dtype. Gradients of an input
that plays several parts, or whose heads are projected one by one, are partial sums that may be stored each.
"""

import torch
from torch import Tensor

from attnspec._inputs import LayerInputs
from attnspec.oracle.vectorised import LayerResult
from attnspec.precision import Roundoffs

from .bound_core_gradient import core_gradient_bounds, core_gradients, no_gradients
from .bound_layer import layer_spread
from .inexact import Off, gamma, judged, known, narrowed, partials, product

__all__ = ["core_gradient_bounds", "layer_gradient_bounds"]


def _merged(tensor: Tensor) -> Tensor:
    return tensor.transpose(1, 2).flatten(2)


def _rows(tensor: Tensor) -> Tensor:
    return tensor.flatten(0, 1)


def _parameters(
    name: str, gradient: Off, tensor: Off, roundoffs: Roundoffs, *, bias: bool, group: int
) -> dict[str, Off]:
    """Return the gradients of one projection's matrix and bias; `gradient` and `tensor` are `rows width`.

    Where `group` heads share the projection, each may leave its part of the gradient by itself.
    """
    rows, unit = gradient.exact.shape[0], roundoffs.accumulation
    found = {f"W_{name}": product(gradient.map(lambda t: t.mT), tensor, roundoffs)}
    if bias:
        error = (gradient.error + gamma(rows + 2, unit) * gradient.size).sum(0)
        found[f"b_{name}"] = Off(gradient.exact.sum(0), error)
    apart = {n: Off(off.exact, off.error + partials(off.size, group, roundoffs)) for n, off in found.items()}
    return {n: off.store(roundoffs.output, roundoffs.output_smallest_normal) for n, off in apart.items()}


def _input_gradients(
    inputs: LayerInputs, gradients: dict[str, Off], matrices: dict[str, Off], roundoffs: Roundoffs
) -> dict[str, Off]:
    """Return the gradients of the inputs from those of the projections.

    One tensor may play several parts, and each head may be projected by itself: all those partial
    sums may be stored.
    """
    key = "query" if inputs.key is None else "key"
    ends = {"q": "query", "k": key, "v": key if inputs.value is None else "value"}
    found: dict[str, Off] = {}
    for end in dict.fromkeys(ends.values()):
        names = [name for name in ends if ends[name] == end]
        width = sum(gradients[name].exact.shape[-1] for name in names)
        rounding = gamma(width, roundoffs.accumulation)
        parts = [product(gradients[n], matrices[n], roundoffs, relative=rounding) for n in names]
        sizes = torch.stack([gradients[n].size @ matrices[n].size for n in names]).sum(0)
        count = len(names) * inputs.weights.heads
        error = sum(part.error for part in parts) + partials(sizes, count, roundoffs)
        both = Off(sum(part.exact for part in parts), error)  # type: ignore[arg-type]
        found[end] = both.store(roundoffs.output, roundoffs.output_smallest_normal)
    return found


@torch.no_grad()
def layer_gradient_bounds(
    inputs: LayerInputs,
    exact: LayerResult,
    upstream: Tensor,
    roundoffs: Roundoffs,
    *,
    autocast: bool = False,
) -> dict[str, Tensor]:
    """Return the error that is allowed for each element of a layer's gradients, float64.

    Args:
        inputs: The call.
        exact: Its exact result.
        upstream: The gradient of the output, `batch q_len d_model`.
        roundoffs: Where the implementation rounds, forwards and backwards.
        autocast: Whether inputs and weights are rounded to the dtype of the output first.

    Returns:
        By name: `query`, `key` and `value` as far as they are given, where one tensor that plays several
        parts has the sum of its roads, and every parameter by its canonical name.
    """
    wide, out, tiny = inputs.to(torch.float64), roundoffs.output, roundoffs.output_smallest_normal
    w, held = wide.weights, layer_spread(inputs, exact, roundoffs, autocast=autocast)

    def rounded(tensor: Tensor) -> Off:
        clean = tensor.detach().nan_to_num(0.0, 0.0, 0.0)
        return known(clean, narrowed(clean, roundoffs) if autocast else None)

    matrices = {name: rounded(getattr(w, f"W_{name}")) for name in "qkvo"}
    arriving, output = known(upstream.detach().double()), exact.core.output.detach().nan_to_num(0.0, 0.0, 0.0)
    mixed = product(arriving, matrices["o"], roundoffs).store(out, tiny)
    mixed = mixed.map(lambda t: t.unflatten(-1, (w.heads, -1)).transpose(1, 2))
    core = exact.core_inputs, exact.core, held.given
    inner = no_gradients(exact.core_inputs)
    if held.around is not None:
        inner = core_gradients(*core, held.around, mixed, Off(output, held.core), roundoffs)
    gradients = {
        name: inner[full].map(_merged) for name, full in (("q", "query"), ("k", "key"), ("v", "value"))
    }
    sources = {"q": wide.query, "k": wide.key_input, "v": wide.value_input}
    pairs = {n: (gradients[n], rounded(t)) for n, t in sources.items()}
    pairs["o"] = arriving, Off(output, held.core).map(_merged)
    found = _input_gradients(inputs, gradients, matrices, roundoffs)
    for name, (gradient, tensor) in pairs.items():
        biased = getattr(w, f"b_{name}") is not None
        group = w.heads // w.kv_heads if name in "kv" else 1
        flat = gradient.map(_rows), tensor.map(_rows)
        found |= _parameters(name, *flat, roundoffs, bias=biased, group=group)
    return {n: judged(off.error, roundoffs) for n, off in found.items()}
