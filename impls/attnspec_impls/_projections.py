"""A layer's projections, kept apart or stacked, and canonical weights in and out of `torch.nn.Linear`."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from attnspec._checks import check_layer_sizes, check_layer_weights
from attnspec.weights import LayerWeights


def load_linear(
    module: nn.Linear, weight: Float[Tensor, "rows columns"], bias: Float[Tensor, " rows"] | None
) -> None:
    """Copy a matrix and a bias into `module`; no bias is a bias of zeros."""
    copy_projection(module.weight, module.bias, weight, bias)


def copy_projection(
    held: Float[Tensor, "rows columns"],
    held_bias: Float[Tensor, " rows"] | None,
    weight: Float[Tensor, "rows columns"],
    bias: Float[Tensor, " rows"] | None,
) -> None:
    """Copy a matrix and a bias into parameters, or into rows of them; no bias is a bias of zeros."""
    with torch.no_grad():
        held.copy_(weight)
        if bias is not None and held_bias is not None:
            held_bias.copy_(bias)
        elif held_bias is not None:
            held_bias.zero_()


def copied(_: str, parameter: Tensor) -> Tensor:
    """Return a copy that shares neither memory nor history with a named parameter."""
    return parameter.detach().clone()


class _Projections(nn.Module):
    """What layers know however their matrices are stored.

    Attributes:
        d_model: Width of the model.
        heads: Query heads.
        kv_heads: Key and value heads; query head `h` reads head `h // (heads // kv_heads)`.
        d_k: Width of a head.
        dropout: Probability of dropping a weight in training.
        has_bias: Whether the projections have biases.
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        """Make the projections.

        Args:
            d_model: Width of the model; a multiple of `heads`.
            heads: Query heads.
            kv_heads: Key and value heads; divides `heads`. None means `heads`.
            bias: Whether the projections have biases.
            dropout: Probability of dropping a weight in training; at least 0, below 1.

        Raises:
            ShapeError: If a size or the probability is not allowed.
        """
        super().__init__()
        check_layer_sizes(type(self).__name__, d_model, heads, kv_heads, dropout)
        self.d_model, self.heads, self.dropout, self.has_bias = d_model, heads, dropout, bias
        self.kv_heads = heads if kv_heads is None else kv_heads
        self.d_k = d_model // heads
        self._make_matrices()

    def _make_matrices(self) -> None:
        raise NotImplementedError

    def _check_weights(self, weights: LayerWeights) -> None:
        check_layer_weights(
            type(self).__name__, weights, d_model=self.d_model, heads=self.heads, kv_heads=self.kv_heads,
            d_k=self.d_k, bias=self.has_bias,
        )  # fmt: skip


class SeparateProjections(_Projections):
    """A layer's `W_q`, `W_k`, `W_v` and `W_o`, stored as the contract's canonical weights are."""

    def _make_matrices(self) -> None:
        kv_width = self.kv_heads * self.d_k
        self.W_q = nn.Linear(self.d_model, self.d_model, bias=self.has_bias)
        self.W_k = nn.Linear(self.d_model, kv_width, bias=self.has_bias)
        self.W_v = nn.Linear(self.d_model, kv_width, bias=self.has_bias)
        self.W_o = nn.Linear(self.d_model, self.d_model, bias=self.has_bias)

    def load_canonical(self, weights: LayerWeights) -> "SeparateProjections":
        """Copy canonical weights in, and return the layer.

        Raises:
            ShapeError: If they are of other sizes, or have biases that the layer has not.
        """
        self._check_weights(weights)
        load_linear(self.W_q, weights.W_q, weights.b_q)
        load_linear(self.W_k, weights.W_k, weights.b_k)
        load_linear(self.W_v, weights.W_v, weights.b_v)
        load_linear(self.W_o, weights.W_o, weights.b_o)
        return self

    def canonical_weights(self) -> LayerWeights:
        """Return copies of the projections as canonical weights."""
        return LayerWeights(
            W_q=self.W_q.weight, W_k=self.W_k.weight, W_v=self.W_v.weight, W_o=self.W_o.weight,
            b_q=self.W_q.bias, b_k=self.W_k.bias, b_v=self.W_v.bias, b_o=self.W_o.bias,
            heads=self.heads, kv_heads=self.kv_heads,
        ).map(copied)  # fmt: skip


class StackedProjections(_Projections):
    """A layer's projections with queries, keys and values in one matrix, and `W_o`.

    The rows of `W_qkv` are all query heads, then all key heads, then all value heads. Self-attention then
    takes one product instead of three, which short calls feel.
    """

    def _make_matrices(self) -> None:
        self.parts = (self.heads, self.kv_heads, self.kv_heads)
        self.W_qkv = nn.Linear(self.d_model, sum(self.parts) * self.d_k, bias=self.has_bias)
        self.W_o = nn.Linear(self.d_model, self.d_model, bias=self.has_bias)

    def project(
        self,
        query: Float[Tensor, "batch q_len d_model"],
        key: Float[Tensor, "batch kv_len d_model"] | None,
        value: Float[Tensor, "batch kv_len d_model"] | None,
    ) -> tuple[
        Float[Tensor, "batch heads q_len d_k"],
        Float[Tensor, "batch kv_heads kv_len d_k"],
        Float[Tensor, "batch kv_heads kv_len d_k"],
    ]:
        """Project the inputs and split them into heads; without `key` and `value`, in one product."""
        if key is None and value is None:
            heads = self.W_qkv(query).unflatten(-1, (sum(self.parts), self.d_k)).transpose(1, 2)
            q, k, v = heads.split(self.parts, dim=1)
            return q, k, v
        key = query if key is None else key
        inputs = (query, key, key if value is None else value)
        q, k, v = (
            linear(x, weight, bias).unflatten(-1, (-1, self.d_k)).transpose(1, 2)
            for x, (weight, bias) in zip(inputs, self._rows(), strict=True)
        )
        return q, k, v

    def _rows(self) -> list[tuple[Tensor, Tensor | None]]:
        """Return the rows of the matrix and of the bias that make queries, keys and values."""
        rows = [part * self.d_k for part in self.parts]
        biases = self.W_qkv.bias.split(rows) if self.has_bias else (None, None, None)
        return list(zip(self.W_qkv.weight.split(rows), biases, strict=True))

    def load_canonical(self, weights: LayerWeights) -> "StackedProjections":
        """Copy canonical weights in, and return the layer.

        Raises:
            ShapeError: If they are of other sizes, or have biases that the layer has not.
        """
        self._check_weights(weights)
        given = ((weights.W_q, weights.b_q), (weights.W_k, weights.b_k), (weights.W_v, weights.b_v))
        for held, (weight, bias) in zip(self._rows(), given, strict=True):
            copy_projection(*held, weight, bias)
        copy_projection(self.W_o.weight, self.W_o.bias, weights.W_o, weights.b_o)
        return self

    def canonical_weights(self) -> LayerWeights:
        """Return copies of the projections as canonical weights."""
        (W_q, b_q), (W_k, b_k), (W_v, b_v) = self._rows()
        return LayerWeights(
            W_q=W_q, W_k=W_k, W_v=W_v, W_o=self.W_o.weight, b_q=b_q, b_k=b_k, b_v=b_v, b_o=self.W_o.bias,
            heads=self.heads, kv_heads=self.kv_heads,
        ).map(copied)  # fmt: skip
