"""The contract's answer from `torch.nn.functional.scaled_dot_product_attention`.

Where torch's own answer differs, the call is prepared or its result mended:

- a query that sees nothing: what comes out differs by backend, so such a query is shown everything and its
  row cleared afterwards;
- causal with two lengths: torch stands query 0 at key 0, the contract the last query at the last key;
- a mask together with `is_causal`: torch refuses it or, by backend, takes it;
- causal with a factor that is not positive: the fused CPU kernel returns NaN;
- a row whose scores are all NaN: the fused CPU kernel returns zeros.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import dropout as drop
from torch.nn.functional import scaled_dot_product_attention

from ._formula import attention_weights, visible_keys
from ._types import Bias, HeadOutput, Mask, Weights, Window


def torch_attention(
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
) -> tuple[HeadOutput, Weights | None]:
    """Attend by torch's fused kernels where they can, by the formula where they cannot.

    They cannot cap scores or show weights, and some cannot do with an empty axis. See `math_core` for the
    arguments.

    Returns:
        The output in the dtype of `query`; the weights if `return_weights` asks for them.
    """
    q_len, kv_len = query.shape[-2], key.shape[-2]
    if softcap is not None or return_weights or query.numel() == 0 or kv_len == 0:
        visible = visible_keys(query, key, mask=mask, causal=causal, window=window)
        output, weights = _formula(
            query, key, value, visible=visible, bias=bias, softcap=softcap, scale=scale, dropout=dropout
        )
        return output, weights if return_weights else None
    # The one causal case in which torch and the contract mean the same; the kernel then skips half the work.
    # The CPU kernel forbids before it scales, so that a factor of zero or less makes NaN of what it forbade.
    plain = mask is None and bias is None and window is None
    square = causal and plain and q_len == kv_len and (scale is None or scale > 0)
    visible = allowed = dead = None
    if not square and (causal or not plain):
        visible = visible_keys(query, key, mask=mask, causal=causal, window=window)
        allowed, dead = _show_dead_rows_everything(visible, bias)
    output = scaled_dot_product_attention(
        query, key, value, attn_mask=allowed, dropout_p=dropout, is_causal=square, scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )  # fmt: skip
    # Adding is one plain pass; filling under a mask takes several times as long.
    lost = _nan_of_rows(query, key, visible=visible)
    output = output + lost if output.requires_grad else output.add_(lost)
    return (output if dead is None else output.masked_fill(dead, 0.0)), None


def _show_dead_rows_everything(
    visible: Mask | None, bias: Bias | None
) -> tuple[Tensor | None, Tensor | None]:
    """Return the mask to hand to torch, without a row that forbids everything, and where there was one.

    With a bias the mask is a float: the bias where a key is visible and `-inf` elsewhere.
    """
    if bias is None:
        if visible is None:
            return None, None
        dead = ~visible.any(-1, keepdim=True)
        return visible | dead, dead
    added = bias if visible is None else torch.where(visible, bias, float("-inf"))
    dead = (added == float("-inf")).all(-1, keepdim=True)
    return added.masked_fill(dead, 0.0), dead


def _nan_of_rows(
    query: Float[Tensor, "batch heads q_len d_k"],
    key: Float[Tensor, "batch kv_heads kv_len d_k"],
    *,
    visible: Mask | None,
) -> Float[Tensor, "batch heads q_len 1"]:
    """Return NaN for each query that is NaN or sees nothing but keys that are, and 0 for every other.

    The largest number of a row is NaN if any of it is, and found much faster than by asking each number.
    Without a mask every query sees the first key, and as long as one key that it sees is sound, the kernel
    itself makes NaN of the others: so the first key stands for all. Whether a query sees a sound key under a
    mask is counted by a product. A query with an infinite number may become NaN here as well: its scores are
    infinite or NaN, and softmax makes no number of such scores.
    """
    group = query.shape[1] // key.shape[1]
    query, key = query.detach(), key.detach()
    largest = query.amax(-1, keepdim=True)
    if visible is None:
        # Short calls feel each operation: what follows looks at one key of each head.
        first = key[:, :, :1].amax(-1, keepdim=True)
        return (largest + (first if group == 1 else first.repeat_interleave(group, dim=1))).clamp_(0, 0)
    lost = key.amax(-1).isnan()
    lost = lost if group == 1 else lost.repeat_interleave(group, dim=1)
    seen = visible.expand(*visible.shape[:-1], key.shape[-2])
    only = seen.float() @ (~lost).float()[..., None] == 0
    return largest.clamp_(0, 0).masked_fill(only, float("nan"))


def _formula(
    query: Tensor, key: Tensor, value: Tensor, *, visible: Tensor | None, bias: Tensor | None,
    softcap: float | None, scale: float | None, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Compute what the fused kernels do not offer, at their precision: scores in at least float32."""
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    wide = torch.promote_types(query.dtype, torch.float32)
    weights = attention_weights(
        query.to(wide), key.to(wide), visible=visible, bias=bias, softcap=softcap, scale=scale
    ).to(query.dtype)
    return drop(weights, dropout) @ value, weights
