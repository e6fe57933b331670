"""Core and layer with 40 digits, forwards and backwards by formula: what float64 is held against."""

import mpmath
import numpy as np
import torch
from torch import Tensor

from attnspec._inputs import CoreInputs, LayerInputs

Array = np.ndarray
mpmath.mp.dps = 40
_exp = np.frompyfunc(mpmath.exp, 1, 1)
_tanh = np.frompyfunc(mpmath.tanh, 1, 1)
_number = np.frompyfunc(mpmath.mpf, 1, 1)


def precise(tensor: Tensor) -> Array:
    """Return an array of mpmath numbers, each exactly the tensor's."""
    return np.asarray(_number(tensor.detach().double().numpy().astype(object)), dtype=object)


def nearest(array: Array, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return an array as float64, and what that leaves out, so that differences stay exact."""
    high = np.asarray(array, dtype=object).astype(float)
    low = (np.asarray(array, dtype=object) - _number(high.astype(object))).astype(float)
    return torch.from_numpy(np.array(high)).reshape(like.shape), torch.from_numpy(np.array(low)).reshape(
        like.shape
    )


def _product(left: Array, right: Array) -> Array:
    """Multiply matrices over leading axes, empty ones included."""
    if not left.shape[-1]:
        return np.full((*left.shape[:-1], right.shape[-1]), mpmath.mpf(0), dtype=object)
    return (left[..., :, :, None] * right[..., None, :, :]).sum(-2)


def _turned(array: Array) -> Array:
    return array.swapaxes(-1, -2)


def _sum_to(array: Array, shape: tuple[int, ...]) -> Array:
    """Sum over the axes along which something of `shape` was broadcast."""
    for axis, size in enumerate(shape):
        if size == 1:
            array = array.sum(axis, keepdims=True)
    return array


class PreciseCore:
    """One core call: its output, and its gradients for an upstream gradient."""

    def __init__(self, inputs: CoreInputs, seen: Tensor, query: Array, key: Array, value: Array) -> None:
        """Compute the output; `seen` says where a query may attend, an infinite bias included."""
        self.inputs, self.query, self.group = inputs, query, query.shape[1] // key.shape[1]
        self.key, self.value = (np.repeat(t, self.group, axis=1) for t in (key, value))
        # The default scale is irrational; what the contract means is its exact value.
        self.scale = (
            mpmath.mpf(query.shape[-1]) ** mpmath.mpf("-0.5")
            if inputs.scale is None
            else mpmath.mpf(inputs.scale)
        )
        scores, self.slope = _product(query, _turned(self.key)) * self.scale, 1
        if inputs.softcap is not None:
            bent = _tanh(scores / mpmath.mpf(inputs.softcap))
            scores, self.slope = bent * mpmath.mpf(inputs.softcap), 1 - bent * bent
        if inputs.bias is not None:
            scores = scores + precise(inputs.bias.masked_fill(inputs.bias == -torch.inf, 0.0))
        shown = seen.numpy()
        scores = np.where(shown, scores, mpmath.mpf("-1e9"))
        powers = np.where(shown, _exp(scores - scores.max(-1, keepdims=True)), mpmath.mpf(0))
        total = powers.sum(-1, keepdims=True)
        self.weights = powers / np.where(total == 0, mpmath.mpf(1), total)
        self.output = _product(self.weights, self.value)

    def gradients(self, upstream: Array) -> dict[str, Array]:
        """Return the gradients of query, key, value and bias."""
        mixed = _product(upstream, _turned(self.value))
        logits = self.weights * (mixed - (self.weights * mixed).sum(-1, keepdims=True))
        scores = logits * self.slope * self.scale

        def gathered(array: Array) -> Array:
            batch, heads, *rest = array.shape
            return array.reshape(batch, heads // self.group, self.group, *rest).sum(2)

        found = {
            "query": _product(scores, self.key),
            "key": gathered(_product(_turned(scores), self.query)),
            "value": gathered(_product(_turned(self.weights), upstream)),
        }
        if self.inputs.bias is not None:
            found["bias"] = _sum_to(logits, tuple(self.inputs.bias.shape))
        return found


def core(inputs: CoreInputs, seen: Tensor, upstream: Tensor) -> dict[str, Array]:
    """Return the output and every gradient of a core."""
    found = PreciseCore(inputs, seen, *(precise(t) for t in (inputs.query, inputs.key, inputs.value)))
    return {"output": found.output, **found.gradients(precise(upstream))}


def _heads(array: Array, count: int) -> Array:
    batch, length, width = array.shape
    return array.reshape(batch, length, count, width // count).transpose(0, 2, 1, 3)


def _merged(array: Array) -> Array:
    batch, heads, length, width = array.shape
    return array.transpose(0, 2, 1, 3).reshape(batch, length, heads * width)


def layer(inputs: LayerInputs, seen: Tensor, upstream: Tensor) -> dict[str, Array]:
    """Return the output and the gradient of every input and parameter of a layer."""
    w = inputs.weights
    names = {
        "q": (inputs.query, w.heads),
        "k": (inputs.key_input, w.kv_heads),
        "v": (inputs.value_input, w.kv_heads),
    }
    matrices = {name: precise(tensor) for name, tensor in w.tensors().items()}
    given = {name: precise(tensor) for name, (tensor, _) in names.items()}

    def project(name: str, array: Array) -> Array:
        return _product(array, _turned(matrices[f"W_{name}"])) + matrices.get(f"b_{name}", mpmath.mpf(0))

    inner = PreciseCore(
        CoreInputs(query=inputs.query, key=inputs.key_input, value=inputs.value_input, **inputs.options()),
        seen,
        *(_heads(project(name, given[name]), count) for name, (_, count) in names.items()),
    )
    merged, arriving = _merged(inner.output), precise(upstream)
    found = {"output": project("o", merged)}
    inside = inner.gradients(_heads(_product(arriving, matrices["W_o"]), w.heads))
    ends = {"q": "query", "k": "query" if inputs.key is None else "key"}
    ends["v"] = ends["k"] if inputs.value is None else "value"
    roads = {"o": (merged, arriving)} | {
        name: (given[name], _merged(inside[full]))
        for name, full in (("q", "query"), ("k", "key"), ("v", "value"))
    }
    for name, (array, gradient) in roads.items():
        rows = gradient.reshape(-1, gradient.shape[-1])
        found[f"W_{name}"] = _product(_turned(rows), array.reshape(-1, array.shape[-1]))
        if f"b_{name}" in matrices:
            found[f"b_{name}"] = rows.sum(0)
        if name in ends:
            found[ends[name]] = found.get(ends[name], 0) + _product(gradient, matrices[f"W_{name}"])
    return found
