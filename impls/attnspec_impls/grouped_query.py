"""Several query heads share a key/value head, and no copy of keys or values is made for it.

The query heads of a group are laid one below the other, as if they were more positions of one head:
`batch kv_heads group*q_len d_k`. One batched product with the group's only key head then scores them all.
Repeating the keys first (`repeat_interleave`) gives the same numbers and moves `group` times the memory;
so, behind the scenes, does a product that broadcasts.
"""

from jaxtyping import Float
from torch import Tensor, nn

from attnspec._checks import check_layer_call
from attnspec._registry import Implementation

from ._formula import normalise_scores, scale_queries, visible_keys
from ._projections import SeparateProjections
from ._types import Bias, Mask, ModelOutput, Weights, Window


class GroupedQueryAttention(SeparateProjections):
    """Grouped-query attention: `kv_heads` from 1 (multi-query) to `heads` (multi-head)."""

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
            "GroupedQueryAttention", query, key, value, d_model=self.d_model, heads=self.heads,
            mask=mask, bias=bias, scale=scale, window=window, softcap=softcap,
        )  # fmt: skip
        key = query if key is None else key
        value = key if value is None else value
        d_k = self.d_k
        q = self.W_q(query).unflatten(-1, (self.heads, d_k)).transpose(1, 2)
        k = self.W_k(key).unflatten(-1, (self.kv_heads, d_k)).transpose(1, 2)
        v = self.W_v(value).unflatten(-1, (self.kv_heads, d_k)).transpose(1, 2)
        visible = visible_keys(q, k, mask=mask, causal=causal, window=window)
        scores = self._unfold_group(self._fold_group(scale_queries(q, scale)) @ k.transpose(-2, -1))
        weights = normalise_scores(scores, visible=visible, bias=bias, softcap=softcap)
        dropped = nn.functional.dropout(weights, self.dropout, self.training)
        mixed = self._unfold_group(self._fold_group(dropped) @ v)
        output = self.W_o(mixed.transpose(1, 2).flatten(2))
        return (output, weights) if return_weights else output

    def _fold_group(
        self, tensor: Float[Tensor, "batch heads q_len width"]
    ) -> Float[Tensor, "batch {self.kv_heads} {self.heads//self.kv_heads}*q_len width"]:
        """Lay the query heads of each group one below the other; head `h` goes to group `h // group`."""
        return tensor.unflatten(1, (self.kv_heads, self.heads // self.kv_heads)).flatten(2, 3)

    def _unfold_group(
        self, tensor: Float[Tensor, "batch kv_heads rows width"]
    ) -> Float[Tensor, "batch {self.heads} q_len width"]:
        """Give each query head its own axis again."""
        group = self.heads // self.kv_heads
        return tensor.unflatten(2, (group, tensor.shape[2] // group)).flatten(1, 2)


IMPLEMENTATION = Implementation(
    name="grouped_query",
    contract="layer",
    target=GroupedQueryAttention,
    summary="query heads share key/value heads without copies of keys and values",
    idea="With fewer key/value heads, decoding has less to keep and to read: the cache shrinks by"
    " heads / kv_heads. The queries of a group are folded into one longer head, so that keys and values are"
    " never repeated.",
)
