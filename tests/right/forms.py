"""Cores that arrange memory, dtypes or gradients in their own way."""

import torch

from .bank import right
from .shared import factor, repeated, safe_scores, visible, zeroed


@right()
def bare(q, k, v, mask=None):
    """No validation, no options: the lines of a notebook, with dead rows in mind."""
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    dead = (scores == float("-inf")).all(-1, keepdim=True)
    return scores.masked_fill(dead, 0.0).softmax(-1).masked_fill(dead, 0.0) @ v


@right()
def float32_inside(query, key, value, mask=None, causal=False, scale=None):
    """Half precision is computed in float32, float64 stays."""
    wide = torch.promote_types(query.dtype, torch.float32)
    key, value = (t.to(wide) for t in repeated(query, key, value))
    seen = visible(query, key, mask, causal)
    scores = safe_scores(query.to(wide) @ key.mT * factor(query, scale), seen)
    return (zeroed(scores.softmax(-1), seen) @ value).to(query.dtype)


@right(precision="fused")
def float64_inside(query, key, value, mask=None, causal=False, scale=None):
    """Everything is computed in float64."""
    key, value = (t.double() for t in repeated(query, key, value))
    seen = visible(query, key, mask, causal)
    scores = safe_scores(query.double() @ key.mT * factor(query, scale), seen)
    return (zeroed(scores.softmax(-1), seen) @ value).to(query.dtype)


@right()
def flattened(query, key, value, mask=None, causal=False, scale=None):
    """Batch and heads as one axis, `bmm` for the products."""
    key, value = repeated(query, key, value)
    seen = visible(query, key, mask, causal).flatten(0, 1)
    q, k, v = (t.flatten(0, 1) for t in (query, key, value))
    scores = safe_scores(torch.bmm(q, k.mT) * factor(query, scale), seen)
    return torch.bmm(zeroed(scores.softmax(-1), seen), v).unflatten(0, query.shape[:2])


@right()
def baddbmm(query, key, value, mask=None, causal=False, scale=None, bias=None):
    """Bias, scale and product in one `baddbmm`."""
    key, value = repeated(query, key, value)
    seen = visible(query, key, mask, causal).flatten(0, 1)
    plane = torch.zeros(seen.shape, dtype=query.dtype)
    if bias is not None:
        plane = bias.expand(*query.shape[:3], key.shape[2]).reshape(seen.shape)
        seen = seen & (plane != float("-inf"))
        plane = plane.masked_fill(~seen, 0.0)
    q, k, v = (t.flatten(0, 1) for t in (query, key, value))
    scores = safe_scores(torch.baddbmm(plane, q, k.mT, beta=1.0, alpha=factor(query, scale)), seen)
    return torch.bmm(zeroed(scores.softmax(-1), seen), v).unflatten(0, query.shape[:2])


@right()
def keys_first(query, key, value, mask=None, causal=False, scale=None):
    """Scores as `kv_len q_len`, the softmax down the columns."""
    key, value = repeated(query, key, value)
    seen = visible(query, key, mask, causal).mT
    alive = seen.any(-2, keepdim=True)
    scores = (key @ query.mT * factor(query, scale)).masked_fill(~seen & alive, float("-inf"))
    weights = scores.softmax(-2).masked_fill(~alive, 0.0)
    return (value.mT @ weights).mT.contiguous()


@right()
def output_not_contiguous(query, key, value, mask=None, causal=False, scale=None):
    """The output lies in memory as `batch q_len heads d_v`."""
    output = float32_inside(query, key, value, mask, causal, scale)
    return output.transpose(1, 2).contiguous().transpose(1, 2)


class _Attention(torch.autograd.Function):
    """Attention with a backward pass by hand; weights are recomputed."""

    @staticmethod
    def weights(query, key, seen, scale):
        return zeroed(safe_scores(query @ key.mT * scale, seen).softmax(-1), seen)

    @staticmethod
    def forward(ctx, query, key, value, seen, scale):
        ctx.save_for_backward(query, key, value, seen)
        ctx.scale = scale
        return _Attention.weights(query, key, seen, scale) @ value

    @staticmethod
    def backward(ctx, grad):
        query, key, value, seen = ctx.saved_tensors
        weights = _Attention.weights(query, key, seen, ctx.scale)
        above = grad @ value.mT
        inner = weights * (above - (weights * above).sum(-1, keepdim=True)) * ctx.scale
        return inner @ key, inner.mT @ query, weights.mT @ grad, None, None


@right()
def own_backward(query, key, value, mask=None, causal=False, scale=None):
    """A hand-written backward pass that computes the weights again."""
    wide = torch.promote_types(query.dtype, torch.float32)
    key, value = (t.to(wide) for t in repeated(query, key, value))
    seen = visible(query, key, mask, causal)
    return _Attention.apply(query.to(wide), key, value, seen, factor(query, scale)).to(query.dtype)


@right()
def checkpointed(query, key, value, mask=None, causal=False, scale=None):
    """Activations are computed again in the backward pass."""
    from torch.utils.checkpoint import checkpoint

    return checkpoint(float32_inside, query, key, value, mask, causal, scale, use_reentrant=False)


@right(mask="blocked")
def blocked_means_blocked(query, key, value, mask=None, causal=False, scale=None):
    """In the mask True = blocked, and that is declared."""
    return float32_inside(query, key, value, None if mask is None else ~mask, causal, scale)


@right()
def upper_left(query, key, value, mask=None, causal=False, scale=None):
    """Causal from the upper left corner: the other alternative of the contract."""
    if causal:
        corner = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril()
        mask = corner if mask is None else corner & mask
    return float32_inside(query, key, value, mask, False, scale)


@right(layout="batch q_len heads d_k")
def heads_behind(query, key, value, mask=None, causal=False, scale=None):
    """Tensors come and go as `batch q_len heads d_k`."""
    return float32_inside(*(t.transpose(1, 2) for t in (query, key, value)), mask, causal, scale).transpose(
        1, 2
    )


@right()
def returns_a_pair(query, key, value, mask=None, return_weights=False):
    """Output and weights, where they are asked for."""
    key, value = repeated(query, key, value)
    seen = visible(query, key, mask)
    weights = zeroed(safe_scores(query @ key.mT * factor(query, None), seen).softmax(-1), seen)
    return (weights @ value, weights) if return_weights else weights @ value
