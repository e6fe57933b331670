"""The layer around torch's fused kernels: what to use where the formula itself is not the point.

`torch.nn.functional.scaled_dot_product_attention` picks a kernel by device, dtype and shape, and keeps no
scores in memory. What it answers in the corners depends on the kernel; see `_torch_sdpa`.
"""

from jaxtyping import Float
from torch import Tensor

from attnspec._checks import check_layer_call
from attnspec._registry import Implementation

from ._projections import StackedProjections
from ._torch_sdpa import torch_attention
from ._types import Bias, Mask, ModelOutput, Weights, Window


class SDPAAttention(StackedProjections):
    """Multi-head and grouped-query attention by torch's fused kernels."""

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
            "SDPAAttention", query, key, value, d_model=self.d_model, heads=self.heads,
            mask=mask, bias=bias, scale=scale, window=window, softcap=softcap,
        )  # fmt: skip
        mixed, weights = torch_attention(
            *self.project(query, key, value),
            mask=mask, bias=bias, causal=causal, window=window, softcap=softcap, scale=scale,
            dropout=self.dropout if self.training else 0.0, return_weights=return_weights,
        )  # fmt: skip
        output = self.W_o(mixed.transpose(1, 2).flatten(2))
        return output if weights is None else (output, weights)


IMPLEMENTATION = Implementation(
    name="sdpa",
    contract="layer",
    target=SDPAAttention,
    summary="torch's fused kernels, with the contract's answer where theirs differ",
    idea="Stacked projections around torch.nn.functional.scaled_dot_product_attention. Dead rows, causal"
    " alignment, mask with causal, and NaN are mended around the call; a cap on the scores, or the weights,"
    " take the plain formula.",
    projection="stacked",
    precision="mixed",
)
