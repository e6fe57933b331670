"""From multi-head to grouped heads: averaging, and what it saves exactly.

Ainslie et al., 2023 (arXiv:2305.13245, section 2.1) build each key and value head of a grouped layer as the
mean of the heads that it replaces, then train on for some 5 % of the original steps. The mean is where that
training starts; it does not compute what the original did, unless the heads of a group were alike.
"""

from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from .._errors import ShapeError
from ..weights import LayerWeights


def group_heads(weights: LayerWeights, kv_heads: int) -> LayerWeights:
    """Average key and value heads until `kv_heads` are left.

    Args:
        weights: Of a layer with more key/value heads.
        kv_heads: How many to keep; divides those that are there.

    Returns:
        New weights; new head `g` is the mean of the heads `g * n` to `g * n + n - 1` that it replaces,
        computed in float64 and rounded once. Queries, output projection and dtype stay.

    Raises:
        ShapeError: If `kv_heads` does not divide the heads that are there.
    """
    if kv_heads < 1 or weights.kv_heads % kv_heads:
        raise ShapeError(f"group_heads: kv_heads must divide {weights.kv_heads}; got {kv_heads}")

    def mean(name: str, tensor: Tensor) -> Tensor:
        if name[2:] not in ("k", "v"):
            return tensor
        heads = tensor.to(torch.float64).unflatten(0, (kv_heads, weights.kv_heads // kv_heads, -1))
        return heads.mean(1).flatten(0, 1).to(tensor.dtype)

    averaged = {name: mean(name, tensor) for name, tensor in weights.tensors().items()}
    return LayerWeights(**averaged, heads=weights.heads, kv_heads=kv_heads)


@dataclass(frozen=True, kw_only=True)
class GroupedSavings:
    """What grouping saves, in whole numbers.

    Attributes:
        parameters_before: Of the attention layers, biases included.
        parameters_after: Likewise, with grouped heads.
        cache_bytes_before: Keys and values of every layer, sequence and position.
        cache_bytes_after: Likewise, with grouped heads.
    """

    parameters_before: int
    parameters_after: int
    cache_bytes_before: int
    cache_bytes_after: int

    @property
    def parameters_saved(self) -> Fraction:
        """The share of the attention's parameters that is saved."""
        return Fraction(self.parameters_before - self.parameters_after, self.parameters_before)

    @property
    def cache_saved(self) -> Fraction:
        """The share of the cache that is saved: `1 - kv_heads / heads`, if all heads had their own."""
        if self.cache_bytes_before == 0:
            return Fraction(0)
        return Fraction(self.cache_bytes_before - self.cache_bytes_after, self.cache_bytes_before)


def grouped_savings(
    *, d_model: int, heads: int, kv_heads: int, before: int | None = None, d_k: int | None = None,
    d_v: int | None = None, bias: bool = False, layers: int = 1, batch: int = 1, length: int = 0,
    bytes_per_number: int = 2,
) -> GroupedSavings:  # fmt: skip
    """Count what grouped heads save in parameters and in the key/value cache; nothing is estimated.

    Args:
        d_model: Width of the model.
        heads: Query heads.
        kv_heads: Key and value heads afterwards; divides `heads`.
        before: Key and value heads before; None means `heads`.
        d_k: Width of a query or key head; None means `d_model // heads`.
        d_v: Width of a value head; None means `d_k`.
        bias: Whether the projections have biases.
        layers: Attention layers.
        batch: Sequences in the cache.
        length: Positions of each.
        bytes_per_number: 2 for float16 and bfloat16, 4 for float32.

    Raises:
        ShapeError: If the heads do not divide as they must.
    """
    before = heads if before is None else before
    if kv_heads < 1 or heads % kv_heads or heads % before:
        raise ShapeError(f"grouped_savings: kv_heads must divide heads; got {before}, {kv_heads} and {heads}")
    d_k = d_model // heads if d_k is None else d_k
    d_v = d_k if d_v is None else d_v

    def parameters(shared: int) -> int:
        rows = heads * d_k + shared * (d_k + d_v)
        matrices = rows * d_model + d_model * heads * d_v
        return layers * (matrices + (rows + d_model if bias else 0))

    def cache(shared: int) -> int:
        return layers * batch * length * shared * (d_k + d_v) * bytes_per_number

    return GroupedSavings(
        parameters_before=parameters(before), parameters_after=parameters(kv_heads),
        cache_bytes_before=cache(before), cache_bytes_after=cache(kv_heads),
    )  # fmt: skip
