"""Queries, keys and values from one product, interleaved by head.

The rows of the matrix belong to head 0, then head 1, and so on; within a head come its query, key and value
rows (`heads 3 d_k`), as BLOOM and GPT-NeoX keep them. The shape is that of a stacked matrix, so either kind
loads into the other without a word; only the split tells them apart.
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


class InterleavedQKVAttention(nn.Module):
    """Multi-head attention with one projection that is interleaved by head."""

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
            "InterleavedQKVAttention", query, key, value, d_model=self.d_model, heads=self.heads,
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
        """Project self-attention's only input in one product; cut it: the head, then which of three."""
        projected = self.W_qkv(inputs).unflatten(-1, (self.heads, 3 * (self.d_model // self.heads)))
        q, k, v = projected.transpose(1, 2).chunk(3, dim=-1)
        return q, k, v

    def _project_each(
        self, *inputs: Float[Tensor, "batch _ d_model"]
    ) -> tuple[Float[Tensor, "batch heads _ d_k"], ...]:
        """Project three inputs, each by its rows of every head."""
        biases = self._rows_of_each(self.W_qkv.bias) if self.has_bias else (None, None, None)
        parts = zip(inputs, self._rows_of_each(self.W_qkv.weight), biases, strict=True)
        projected = (linear(x, weight, bias) for x, weight, bias in parts)
        split = (self.heads, self.d_model // self.heads)
        return tuple(x.unflatten(-1, split).transpose(1, 2) for x in projected)

    def _rows_of_each(self, fused: Tensor) -> tuple[Tensor, ...]:
        """Gather the query, the key and the value rows of a fused matrix or bias, head 0 first."""
        parts = fused.unflatten(0, (self.heads, 3, self.d_model // self.heads)).unbind(1)
        return tuple(part.flatten(0, 1) for part in parts)

    def load_canonical(self, weights: LayerWeights) -> "InterleavedQKVAttention":
        """Fuse canonical weights, copy them in, and return the layer.

        Raises:
            ShapeError: If they are of other sizes, or have biases that the layer has not.
        """
        check_layer_weights(
            type(self).__name__, weights, d_model=self.d_model, heads=self.heads, kv_heads=self.heads,
            d_k=self.d_model // self.heads, bias=self.has_bias,
        )  # fmt: skip
        load_linear(self.W_qkv, *weights.fused("interleaved"))
        load_linear(self.W_o, weights.W_o, weights.b_o)
        return self

    def canonical_weights(self) -> LayerWeights:
        """Return copies of the projections as canonical weights."""
        return LayerWeights.from_fused(
            self.W_qkv.weight, self.W_qkv.bias, self.W_o.weight, self.W_o.bias,
            heads=self.heads, layout="interleaved",
        ).map(copied)  # fmt: skip


IMPLEMENTATION = Implementation(
    name="fused_qkv_interleaved",
    contract="layer",
    target=InterleavedQKVAttention,
    summary="one projection for queries, keys and values, interleaved by head",
    idea="One wide product, its rows ordered by head (heads, 3, d_k): a head's rows lie together, so heads"
    " can be dealt out to devices by plain slicing. A stacked checkpoint has the same shape and must not be"
    " loaded as it is.",
    projection="interleaved",
)
