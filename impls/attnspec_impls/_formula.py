"""The part in which most implementations here do not differ: which keys count, and how much each.

What they do differ in, such as projections, the layout of heads or the order of evaluation, is in
their own files. Nothing here is shared with the oracles, which judge the outcome.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ._band import Band
from ._types import Mask, Window


def visible_keys(
    query: Float[Tensor, "batch _ q_len _"],
    key: Float[Tensor, "batch _ kv_len _"],
    *,
    mask: Mask | None = None,
    causal: bool = False,
    window: Window | None = None,
) -> Mask | None:
    """Combine mask, causal flag and window: a key is visible where all of them allow it.

    Args:
        query: Only its length is read.
        key: Only its length is read.
        mask: True where a query may attend. None allows everything.
        causal: Whether to hide the future; the last query stands at the last key.
        window: How many keys before and after its own position a query sees; -1 is unbounded.

    Returns:
        True where the query may attend; None if nothing is forbidden; `mask` itself if it stands alone.

    Clauses: mask.value, causal.value, causal.alignment, window.value.
    """
    band = Band.of(query, key, causal=causal, window=window)
    near = band.allows(slice(0, band.q_len), slice(0, band.kv_len), query.device)
    if near is None or mask is None:
        return mask if near is None else near
    return near & mask


def attention_weights(
    query: Float[Tensor, "*batch_heads q_len d_k"],
    key: Float[Tensor, "*batch_heads kv_len d_k"],
    *,
    visible: Bool[Tensor, "*#batch_heads #q_len #kv_len"] | None = None,
    bias: Float[Tensor, "*#batch_heads #q_len #kv_len"] | None = None,
    softcap: float | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*batch_heads q_len kv_len"]:
    """Say how much each key counts for each query.

    Args:
        query: Projected queries.
        key: Projected keys, one head for each query head.
        visible: True where a query may attend; None is everywhere.
        bias: Added to the capped scores; in their dtype.
        softcap: Bound of the scaled scores. None is no cap.
        scale: Factor on the products. None means `d_k ** -0.5`.

    Returns:
        Weights in the dtype of `query`, whose rows sum to 1, or are 0 where a query sees nothing.

    Clauses: value.oracle, scale.default, scale.explicit.
    """
    scores = scale_queries(query, scale) @ key.transpose(-2, -1)
    return normalise_scores(scores, visible=visible, bias=bias, softcap=softcap)


def scale_queries(
    query: Float[Tensor, "*batch_heads q_len d_k"], scale: float | None
) -> Float[Tensor, "*batch_heads q_len d_k"]:
    """Scale the queries instead of the scores: fewer products, and in float16 fewer overflows.

    Args:
        query: Projected queries.
        scale: Factor on the scores to come. None means `d_k ** -0.5`.

    Returns:
        A new tensor in the dtype of `query`.
    """
    return query * (query.shape[-1] ** -0.5 if scale is None else scale)


def normalise_scores(
    scores: Float[Tensor, "*batch_heads q_len kv_len"],
    *,
    visible: Bool[Tensor, "*#batch_heads #q_len #kv_len"] | None = None,
    bias: Float[Tensor, "*#batch_heads #q_len #kv_len"] | None = None,
    softcap: float | None = None,
) -> Float[Tensor, "*batch_heads q_len kv_len"]:
    r"""Turn scaled scores into weights: softcap, bias, mask, softmax, in this order.

    $$P = \text{softmax}(c \tanh(S / c) + B)$$

    A query that sees nothing has a row of `-inf`. The row is filled with a number *before* the softmax and
    cleared after it: clearing alone would give zeros, and NaN gradients, since zero times NaN is NaN.

    Clauses: softcap.before_mask, bias.unscaled, mask.dead_row.zero, mask.dead_row.gradient.
    """
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    if bias is None and visible is None:
        return scores.softmax(-1)
    dead = (scores == float("-inf")).all(-1, keepdim=True)
    return scores.masked_fill(dead, 0.0).softmax(-1).masked_fill(dead, 0.0)
