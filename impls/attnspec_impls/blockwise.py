"""The layer in blocks of keys: what to use for long sequences where no fused kernel is at hand.

See `_online_softmax` for how it works. It has no dropout and shows no weights: both would need what it
avoids, a number for each pair of positions.
"""

from jaxtyping import Float
from torch import Tensor

from attnspec._checks import check_layer_call
from attnspec._registry import Implementation

from ._online_softmax import attend_in_blocks
from ._projections import SeparateProjections
from ._types import Bias, Mask, ModelOutput, Window


class BlockwiseAttention(SeparateProjections):
    """Multi-head and grouped-query attention whose memory grows linearly with length."""

    def __init__(
        self,
        d_model: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        bias: bool = True,
        block_size: int = 128,
    ) -> None:
        """Make the layer.

        Args:
            d_model: Width of the model; a multiple of `heads`.
            heads: Query heads.
            kv_heads: Key and value heads; divides `heads`. None means `heads`.
            bias: Whether the projections have biases.
            block_size: Keys looked at together; changes the rounding, and nothing else.

        Raises:
            ShapeError: If a size is not allowed.
        """
        super().__init__(d_model, heads, kv_heads=kv_heads, bias=bias)
        self.block_size = block_size

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
    ) -> ModelOutput:
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

        Returns:
            The output in the dtype of `query`.

        Raises:
            ShapeError: If a rank, a size or a setting is not allowed.
            DtypeError: If a dtype, or a mix of dtypes, is not allowed.
        """
        check_layer_call(
            "BlockwiseAttention", query, key, value, d_model=self.d_model, heads=self.heads,
            mask=mask, bias=bias, scale=scale, window=window, softcap=softcap,
        )  # fmt: skip
        key = query if key is None else key
        value = key if value is None else value
        d_k = self.d_k
        mixed = attend_in_blocks(
            self.W_q(query).unflatten(-1, (self.heads, d_k)).transpose(1, 2),
            self.W_k(key).unflatten(-1, (self.kv_heads, d_k)).transpose(1, 2),
            self.W_v(value).unflatten(-1, (self.kv_heads, d_k)).transpose(1, 2),
            mask=mask, bias=bias, causal=causal, window=window,
            softcap=softcap, scale=scale, block_size=self.block_size,
        )  # fmt: skip
        return self.W_o(mixed.transpose(1, 2).flatten(2))


IMPLEMENTATION = Implementation(
    name="blockwise",
    contract="layer",
    target=BlockwiseAttention,
    summary="blocks of keys with a running softmax; memory linear in length",
    idea="Keys are looked at in blocks, and the softmax is corrected as larger scores turn up; the backward"
    " pass computes the scores again instead of keeping them. Plain PyTorch, so it runs on any device.",
    precision="fused",
)
