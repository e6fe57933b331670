"""Four projections kept apart, and canonical weights in and out of `torch.nn.Linear`."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnspec._checks import check_layer_sizes, check_layer_weights
from attnspec.weights import LayerWeights


def load_linear(
    linear: nn.Linear, weight: Float[Tensor, "rows columns"], bias: Float[Tensor, " rows"] | None
) -> None:
    """Copy a matrix and a bias into `linear`; no bias is a bias of zeros."""
    with torch.no_grad():
        linear.weight.copy_(weight)
        if bias is not None:
            linear.bias.copy_(bias)
        elif isinstance(linear.bias, Tensor):
            linear.bias.zero_()


def copied(_: str, parameter: Tensor) -> Tensor:
    """Return a copy that shares neither memory nor history with a named parameter."""
    return parameter.detach().clone()


class SeparateProjections(nn.Module):
    """A layer's `W_q`, `W_k`, `W_v` and `W_o`, stored as the contract's canonical weights are.

    Attributes:
        d_model: Width of the model.
        heads: Query heads.
        kv_heads: Key and value heads; query head `h` reads head `h // (heads // kv_heads)`.
        dropout: Probability of dropping a weight in training.
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
        kv_width = self.kv_heads * (d_model // heads)
        self.W_q = nn.Linear(d_model, d_model, bias=bias)
        self.W_k = nn.Linear(d_model, kv_width, bias=bias)
        self.W_v = nn.Linear(d_model, kv_width, bias=bias)
        self.W_o = nn.Linear(d_model, d_model, bias=bias)

    def load_canonical(self, weights: LayerWeights) -> "SeparateProjections":
        """Copy canonical weights in, and return the layer.

        Raises:
            ShapeError: If they are of other sizes, or have biases that the layer has not.
        """
        check_layer_weights(
            type(self).__name__, weights, d_model=self.d_model, heads=self.heads, kv_heads=self.kv_heads,
            d_k=self.d_model // self.heads, bias=self.has_bias,
        )  # fmt: skip
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
