"""The core in blocks of keys: memory grows with one length, not with the product of both."""

from jaxtyping import Float
from torch import Tensor

from attnspec._checks import check_core_call
from attnspec._registry import Implementation

from ._online_softmax import attend_in_blocks
from ._types import Bias, HeadOutput, Mask, Window


def blockwise_attention(
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
    block_size: int = 128,
) -> HeadOutput:
    """Attend from `query` to `key`, a block of keys at a time, and mix what `value` holds there.

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
        block_size: Keys looked at together; changes the rounding, and nothing else.

    Returns:
        The output in the dtype of `query`.

    Raises:
        ShapeError: If a rank, a size or a setting is not allowed.
        DtypeError: If a dtype, or a mix of dtypes, is not allowed.
    """
    check_core_call(
        "blockwise_attention", query, key, value,
        mask=mask, bias=bias, scale=scale, window=window, softcap=softcap,
    )  # fmt: skip
    return attend_in_blocks(
        query, key, value, mask=mask, bias=bias, causal=causal, window=window,
        softcap=softcap, scale=scale, block_size=block_size,
    )  # fmt: skip


IMPLEMENTATION = Implementation(
    name="blockwise_core",
    contract="core",
    target=blockwise_attention,
    summary="blocks of keys with a running softmax; memory linear in length",
    idea="The scores of one block of keys at a time, a softmax that is corrected as larger scores turn up,"
    " and a backward pass that computes the scores again. Plain PyTorch, so it runs on any device.",
    precision="fused",
)
