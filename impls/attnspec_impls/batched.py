"""All heads at once: one product a projection, heads split off by a view and a transpose.

This is the form that most people write. The one step in it that goes wrong without a word is the
split: the heads must be cut out of the *last* axis and only then moved in front of the positions. A view
straight to `batch heads seq d_k` has the right shape and mixes positions with features.
"""

from jaxtyping import Float
from torch import Tensor, nn

from attnspec._checks import check_layer_call
from attnspec._registry import Implementation

from ._formula import attention_weights, visible_keys
from ._projections import SeparateProjections
from ._types import Bias, Mask, ModelOutput, Weights, Window


class BatchedAttention(SeparateProjections):
    """Multi-head attention with four projections, all heads in one batched product."""

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
        super().__init__(d_model, heads, bias=bias, dropout=dropout)

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
            "BatchedAttention", query, key, value, d_model=self.d_model, heads=self.heads,
            mask=mask, bias=bias, scale=scale, window=window, softcap=softcap,
        )  # fmt: skip
        key = query if key is None else key
        value = key if value is None else value
        q = self._split_heads(self.W_q(query))
        k = self._split_heads(self.W_k(key))
        v = self._split_heads(self.W_v(value))
        visible = visible_keys(q, k, mask=mask, causal=causal, window=window)
        weights = attention_weights(q, k, visible=visible, bias=bias, softcap=softcap, scale=scale)
        mixed = nn.functional.dropout(weights, self.dropout, self.training) @ v
        output = self.W_o(self._merge_heads(mixed))
        return (output, weights) if return_weights else output

    def _split_heads(
        self, projected: Float[Tensor, "batch seq d_model"]
    ) -> Float[Tensor, "batch heads seq d_k"]:
        """Cut the width into heads, then move the heads in front of the positions."""
        batch, seq, d_model = projected.shape
        return projected.view(batch, seq, self.heads, d_model // self.heads).transpose(1, 2)

    def _merge_heads(self, mixed: Float[Tensor, "batch heads seq d_k"]) -> Float[Tensor, "batch seq d_model"]:
        """Move the heads back behind the positions, then lay them side by side."""
        batch, _, seq, _ = mixed.shape
        return mixed.transpose(1, 2).reshape(batch, seq, self.d_model)


IMPLEMENTATION = Implementation(
    name="batched",
    contract="layer",
    target=BatchedAttention,
    summary="all heads in one batched product; split by view and transpose",
    idea="The textbook form. Each projection is one matrix product for all heads; the heads are then a view"
    " of its result. Clear and fast enough for short sequences; the scores of all pairs are kept in memory.",
)
