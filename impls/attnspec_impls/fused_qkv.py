"""Queries, keys and values from one product: the three projections stacked in one matrix.

The rows of the matrix are all queries, then all keys, then all values (`3 heads d_k`), as GPT-2 keeps
them. Self-attention reads its input once instead of three times. Cross-attention has different inputs for
the three parts and applies each part's rows on their own.
"""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from attnspec._checks import check_layer_call, check_layer_sizes, check_layer_weights
from attnspec._registry import Implementation
from attnspec.weights import LayerWeights

from ._formula import attention_weights, visible_keys
from ._projections import copied, load_linear
from ._types import Bias, Mask, ModelOutput, Weights, Window

Heads = Float[Tensor, "batch heads seq d_k"]


class FusedQKVAttention(nn.Module):
    """Multi-head attention with one stacked projection for queries, keys and values."""

    def __init__(self, d_model: int, heads: int, *, bias: bool = True, dropout: float = 0.0) -> None:
        """Make the layer.

        Args:
            d_model: Width of the model; a multiple of `heads`.
            heads: Heads, of width `d_model // heads` each.
            bias: Whether the projections have biases.
            dropout: Probability of dropping a weight in training; at least 0, below 1.

        Raises:
            ShapeError: If a size or the probability is not allowed.
        """
        super().__init__()
        check_layer_sizes(type(self).__name__, d_model, heads, dropout=dropout)
        self.d_model, self.heads, self.dropout, self.has_bias = d_model, heads, dropout, bias
        self.W_qkv = nn.Linear(d_model, 3 * d_model, bias=bias)
        self.W_o = nn.Linear(d_model, d_model, bias=bias)

    def forward(
        self,
        query: Float[Tensor, "batch q_len d_model"],
        key: Float[Tensor, "batch kv_len d_model"] | None = None,
        value: Float[Tensor, "batch kv_len d_model"] | None = None,
        *,
        mask: Mask | None = None,
        bias: Bias | None = None,
        causal: bool = False,
        window: Window | None = None,
        softcap: float | None = None,
        scale: float | None = None,
        return_weights: bool = False,
    ) -> ModelOutput | tuple[ModelOutput, Weights]:
        """Attend from `query` to `key`, and mix what `value` holds there.

        Args:
            query: Inputs that ask.
            key: Inputs that are looked at. None means `query`: self-attention.
            value: Inputs that are mixed. None means where keys come from.
            mask: True where a query may attend. None allows everything.
            bias: Added to the scaled and capped scores. None adds nothing.
            causal: Whether to hide the future; the last query stands at the last key.
            window: How many keys before and after its own position a query sees; -1 is unbounded.
            softcap: Bound of the scaled scores. None is no cap.
            scale: Factor on the scores. None means `d_k ** -0.5`.
            return_weights: Whether to return the weights, taken before dropout, as well.

        Returns:
            The output in the dtype of `query`; with `return_weights` a pair.

        Raises:
            ShapeError: If a rank, a size or a setting is not allowed.
            DtypeError: If a dtype, or a mix of dtypes, is not allowed.
        """
        check_layer_call(
            "FusedQKVAttention", query, key, value, d_model=self.d_model, heads=self.heads,
            mask=mask, bias=bias, scale=scale, window=window, softcap=softcap,
        )  # fmt: skip
        if key is None and value is None:
            q, k, v = self._project_one(query)
        else:
            key = query if key is None else key
            q, k, v = self._project_each(query, key, key if value is None else value)
        visible = visible_keys(q, k, mask=mask, causal=causal, window=window)
        weights = attention_weights(q, k, visible=visible, bias=bias, softcap=softcap, scale=scale)
        mixed = nn.functional.dropout(weights, self.dropout, self.training) @ v
        output = self.W_o(mixed.transpose(1, 2).flatten(2))
        return (output, weights) if return_weights else output

    def _project_one(self, inputs: Float[Tensor, "batch seq d_model"]) -> tuple[Heads, Heads, Heads]:
        """Project self-attention's only input in one product; cut it: which of three, then the head."""
        projected = self.W_qkv(inputs).unflatten(-1, (3, self.heads, self.d_model // self.heads))
        q, k, v = projected.permute(2, 0, 3, 1, 4)
        return q, k, v

    def _project_each(
        self, *inputs: Float[Tensor, "batch _ d_model"]
    ) -> tuple[Float[Tensor, "batch heads _ d_k"], ...]:
        """Project three inputs, each by its third of the rows."""
        weights = self.W_qkv.weight.chunk(3)
        biases = self.W_qkv.bias.chunk(3) if self.has_bias else (None, None, None)
        projected = (linear(x, weight, bias) for x, weight, bias in zip(inputs, weights, biases, strict=True))
        split = (self.heads, self.d_model // self.heads)
        return tuple(x.unflatten(-1, split).transpose(1, 2) for x in projected)

    def load_canonical(self, weights: LayerWeights) -> "FusedQKVAttention":
        """Fuse canonical weights, copy them in, and return the layer.

        Raises:
            ShapeError: If they are of other sizes, or have biases that the layer has not.
        """
        check_layer_weights(
            type(self).__name__, weights, d_model=self.d_model, heads=self.heads, kv_heads=self.heads,
            d_k=self.d_model // self.heads, bias=self.has_bias,
        )  # fmt: skip
        load_linear(self.W_qkv, *weights.fused("stacked"))
        load_linear(self.W_o, weights.W_o, weights.b_o)
        return self

    def canonical_weights(self) -> LayerWeights:
        """Return copies of the projections as canonical weights."""
        return LayerWeights.from_fused(
            self.W_qkv.weight, self.W_qkv.bias, self.W_o.weight, self.W_o.bias,
            heads=self.heads, layout="stacked",
        ).map(copied)  # fmt: skip


IMPLEMENTATION = Implementation(
    name="fused_qkv",
    contract="layer",
    target=FusedQKVAttention,
    summary="one stacked projection for queries, keys and values",
    idea="One wide product instead of three narrow ones: fewer kernels, and the input is read once. The"
    " matrix is stacked (3, heads, d_k); a checkpoint that is interleaved by head has the same shape and must"
    " not be loaded as it is.",
    projection="stacked",
)
