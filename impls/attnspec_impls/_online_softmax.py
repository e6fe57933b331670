"""Attention over blocks of keys with a running softmax, forward and backward.

The softmax of a row can be taken piece by piece: keep the largest score so far, the sum of the powers
relative to it and the mixture so far, and shrink the last two whenever a larger score turns up (Milakov and
Gimelshein, 2018, arXiv:1805.02867). So no tensor has both lengths as axes. Autograd would store every block's
weights, as much as all of them at once; the backward pass here computes each block's scores a second time
instead (Dao et al., 2022, arXiv:2205.14135).

Queries carry their group as an axis of its own: `batch kv_heads group q_len d_k`. Everything between the
inputs and the output is held in at least float32.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from ._band import Band, cut_block
from ._types import Bias, HeadOutput, Mask, Window

GroupedQuery = Float[Tensor, "batch kv_heads group q_len d_k"]
GroupedOutput = Float[Tensor, "batch kv_heads group q_len d_v"]
Key = Float[Tensor, "batch kv_heads kv_len d_k"]
Value = Float[Tensor, "batch kv_heads kv_len d_v"]


def attend_in_blocks(
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
    block_size: int,
) -> HeadOutput:
    """Attend block by block; see `blockwise_core` for the arguments."""
    kv_heads = key.shape[1]
    band = Band.of(query, key, causal=causal, window=window)
    mixed = OnlineSoftmax.apply(
        query.unflatten(1, (kv_heads, query.shape[1] // kv_heads)), key, value,
        _grouped(mask, kv_heads), _grouped(bias, kv_heads), band,
        query.shape[-1] ** -0.5 if scale is None else scale, softcap, block_size,
    )  # fmt: skip
    return mixed.flatten(1, 2)


def _grouped(matrix: Tensor | None, kv_heads: int) -> Tensor | None:
    """Give a mask or bias the axes of the grouped scores; one of two axes fits them as it is."""
    if matrix is None or matrix.dim() == 2:
        return matrix
    shared = matrix.shape[1] == 1
    return matrix.unsqueeze(2) if shared else matrix.unflatten(1, (kv_heads, matrix.shape[1] // kv_heads))


class OnlineSoftmax(torch.autograd.Function):
    """Blockwise attention with a backward pass of its own. It can be differentiated once."""

    @staticmethod
    def forward(
        ctx: Any, query: GroupedQuery, key: Key, value: Value, mask: Tensor | None, bias: Tensor | None,
        band: Band, scale: float, softcap: float | None, block_size: int,
    ) -> GroupedOutput:  # fmt: skip
        """Run over the blocks of keys, keeping each row's largest score, sum of powers and mixture."""
        wide = torch.promote_types(query.dtype, torch.float32)
        scaled = query.to(wide) * scale
        top = scaled.new_full((*query.shape[:-1], 1), float("-inf"))
        total = torch.zeros_like(top)
        mixed = scaled.new_zeros(*query.shape[:-1], value.shape[-1])
        for rows, columns in band.key_blocks(block_size):
            scores, _ = _block_scores(scaled, key, mask, bias, band, softcap, rows, columns)
            before = top[..., rows, :]
            after = torch.maximum(before, scores.amax(-1, keepdim=True))
            anchor = _finite(after)
            powers = (scores - anchor).exp()
            shrink = (before - anchor).exp()
            total[..., rows, :] = total[..., rows, :] * shrink + powers.sum(-1, keepdim=True)
            block = powers @ value[:, :, None, columns].to(wide)
            mixed[..., rows, :] = mixed[..., rows, :] * shrink + block
            top[..., rows, :] = after
        # A row that saw nothing has a total of 0 and a mixture of 0: its quotient is to be 0.
        total = total.masked_fill(total == 0, 1)
        mixed = mixed / total
        ctx.save_for_backward(query, key, value, mask, bias, _finite(top), total, mixed)
        ctx.settings = band, scale, softcap, block_size
        return mixed.to(query.dtype, copy=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: GroupedOutput) -> tuple[Tensor | None, ...]:
        """Run over the blocks again, and give each score its share of the gradient."""
        query, key, value, mask, bias, anchor, total, mixed = ctx.saved_tensors
        band, scale, softcap, block_size = ctx.settings
        scaled, grad = query.to(mixed.dtype) * scale, grad.to(mixed.dtype)
        grad_query = torch.zeros_like(scaled)
        grad_key, grad_value = (torch.zeros_like(t, dtype=mixed.dtype) for t in (key, value))
        grad_bias = torch.zeros_like(bias, dtype=mixed.dtype) if ctx.needs_input_grad[4] else None
        # What every score of a row loses, because the weights of a row always sum to 1.
        common = (grad * mixed).sum(-1, keepdim=True)
        for rows, columns in band.key_blocks(block_size):
            scores, slope = _block_scores(scaled, key, mask, bias, band, softcap, rows, columns)
            weights = (scores - anchor[..., rows, :]).exp() / total[..., rows, :]
            grad_rows = grad[..., rows, :]
            grad_value[:, :, columns] += (weights.transpose(-2, -1) @ grad_rows).sum(2)
            grad_weights = grad_rows @ value[:, :, None, columns].to(mixed.dtype).transpose(-2, -1)
            grad_scores = weights * (grad_weights - common[..., rows, :])
            if grad_bias is not None:
                block = cut_block(grad_bias, rows, columns)
                block += grad_scores.sum_to_size(block.shape)
            grad_scores = grad_scores if slope is None else grad_scores * slope
            grad_query[..., rows, :] += grad_scores @ key[:, :, None, columns].to(mixed.dtype)
            grad_key[:, :, columns] += (grad_scores.transpose(-2, -1) @ scaled[..., rows, :]).sum(2)
        grad_query *= scale
        grad_bias = None if grad_bias is None else grad_bias.to(bias.dtype)
        grads = (grad_query.to(query.dtype), grad_key.to(key.dtype), grad_value.to(value.dtype))
        return *grads, None, grad_bias, None, None, None, None


def _block_scores(
    scaled: GroupedQuery, key: Key, mask: Tensor | None, bias: Tensor | None, band: Band,
    softcap: float | None, rows: slice, columns: slice,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Return the finished scores of one block, and the slope of the cap where there is one."""
    scores = scaled[..., rows, :] @ key[:, :, None, columns].to(scaled.dtype).transpose(-2, -1)
    slope = None
    if softcap is not None:
        bent = torch.tanh(scores / softcap)
        scores, slope = softcap * bent, 1 - bent * bent
    if bias is not None:
        scores = scores + cut_block(bias, rows, columns)
    for allowed in (
        band.allows(rows, columns, scores.device),
        None if mask is None else cut_block(mask, rows, columns),
    ):
        if allowed is not None:
            scores = scores.masked_fill(~allowed, float("-inf"))
    return scores, slope


def _finite(top: Tensor) -> Tensor:
    """Replace the largest score of a row that saw nothing: `-inf` minus `-inf` would be NaN."""
    return top.masked_fill(top == float("-inf"), 0.0)
