"""Half precision where it is cheap, single precision where it matters.

Inputs, projections and values may be float16 or bfloat16; the scores and their softmax are float32. Scores
are where half precision hurts: bfloat16 keeps eight bits, so a score of 100 is only known to within 0.25,
and its weight to within 28 percent; float16 overflows beyond 65504. The weights are rounded to the inputs'
dtype once they are finished, so that the second product is one of halves, with sums in float32.

Under `torch.autocast` the projections run in autocast's dtype as any linear layer does. The region between
them leaves autocast, which would round the scores, and is computed as said above. The output has
autocast's dtype.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnspec._checks import check_layer_call
from attnspec._registry import Implementation

from ._formula import attention_weights, visible_keys
from ._projections import SeparateProjections
from ._types import Bias, Mask, ModelOutput, Weights, Window


class MixedPrecisionAttention(SeparateProjections):
    """Multi-head and grouped-query attention whose scores and softmax are at least float32."""

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
            "MixedPrecisionAttention", query, key, value, d_model=self.d_model, heads=self.heads,
            mask=mask, bias=bias, scale=scale, window=window, softcap=softcap,
        )  # fmt: skip
        key = query if key is None else key
        value = key if value is None else value
        group, d_k = self.heads // self.kv_heads, self.d_k
        q = self.W_q(query).unflatten(-1, (self.heads, d_k)).transpose(1, 2)
        k = self.W_k(key).unflatten(-1, (self.kv_heads, d_k)).transpose(1, 2)
        v = self.W_v(value).unflatten(-1, (self.kv_heads, d_k)).transpose(1, 2)
        visible = visible_keys(q, k, mask=mask, causal=causal, window=window)
        wide = torch.promote_types(q.dtype, torch.float32)
        with torch.autocast(q.device.type, enabled=False):
            weights = attention_weights(
                q.to(wide), k.to(wide).repeat_interleave(group, dim=1),
                visible=visible, bias=bias, softcap=softcap, scale=scale,
            ).to(q.dtype)  # fmt: skip
            dropped = nn.functional.dropout(weights, self.dropout, self.training)
            mixed = dropped @ v.repeat_interleave(group, dim=1)
        output = self.W_o(mixed.transpose(1, 2).flatten(2))
        return (output, weights) if return_weights else output


IMPLEMENTATION = Implementation(
    name="mixed_precision",
    contract="layer",
    target=MixedPrecisionAttention,
    summary="scores and softmax in float32 whatever the dtype of the inputs",
    idea="Inputs, projections and values may be halves, which take half the memory; the scores, where few"
    " bits hurt most, are float32. Under autocast it does the same, on autocast's dtype.",
    precision="mixed",
)
