"""The core by torch's fused kernels; see `_torch_sdpa` for what is mended around them."""

from jaxtyping import Float
from torch import Tensor

from attnspec._checks import check_core_call
from attnspec._registry import Implementation

from ._torch_sdpa import torch_attention
from ._types import Bias, HeadOutput, Mask, Weights, Window


def sdpa_attention(
    query: Float[Tensor, "batch heads q_len d_k"],
    key: Float[Tensor, "batch kv_heads kv_len d_k"],
    value: Float[Tensor, "batch kv_heads kv_len d_v"],
    *,
    mask: Mask | None = None,
    bias: Bias | None = None,
    causal: bool = False,
    window: Window | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    return_weights: bool = False,
) -> HeadOutput | tuple[HeadOutput, Weights]:
    """Attend from `query` to `key`, and mix what `value` holds there.

    Args:
        query: Projected queries.
        key: Projected keys; their heads divide the queries', and query head `h` reads head `h // group`.
        value: Projected values, in as many heads as the keys.
        mask: True where a query may attend. None allows everything.
        bias: Added to the scaled and capped scores. None adds nothing.
        causal: Whether to hide the future; the last query stands at the last key.
        window: How many keys before and after its own position a query sees; -1 is unbounded.
        softcap: Bound of the scaled scores. None is no cap.
        scale: Factor on the scores. None means `d_k ** -0.5`.
        dropout: Probability of dropping a weight; 0 draws no random number.
        return_weights: Whether to return the weights, taken before dropout, as well.

    Returns:
        The output in the dtype of `query`; with `return_weights` a pair.

    Raises:
        ShapeError: If a rank, a size or a setting is not allowed.
        DtypeError: If a dtype, or a mix of dtypes, is not allowed.
    """
    check_core_call(
        "sdpa_attention", query, key, value,
        mask=mask, bias=bias, scale=scale, window=window, softcap=softcap, dropout=dropout,
    )  # fmt: skip
    output, weights = torch_attention(
        query, key, value, mask=mask, bias=bias, causal=causal, window=window,
        softcap=softcap, scale=scale, dropout=dropout, return_weights=return_weights,
    )  # fmt: skip
    return output if weights is None else (output, weights)


IMPLEMENTATION = Implementation(
    name="sdpa_core",
    contract="core",
    target=sdpa_attention,
    summary="torch's fused kernels, with the contract's answer where theirs differ",
    idea="torch.nn.functional.scaled_dot_product_attention behind the contract's arguments: no scores in"
    " memory where a fused kernel runs, and the same answer in the corners whichever kernel it is.",
    precision="mixed",
)
