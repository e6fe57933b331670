"""Cores that compute the formula in another way."""

import torch

from .bank import right
from .shared import INF, factor, repeated, safe_scores, visible, zeroed


@right()
def grouped_einsum(query, key, value, mask=None, causal=False, scale=None):
    """Shared heads by an extra axis: nothing is repeated."""
    heads, kv_heads = query.shape[1], key.shape[1]
    if heads % kv_heads:
        raise ValueError(f"heads {heads} are no multiple of kv_heads {kv_heads}")
    shared = (kv_heads, heads // kv_heads)
    grouped = query.unflatten(1, shared)
    scores = torch.einsum("bngqd,bnkd->bngqk", grouped, key).flatten(1, 2) * factor(query, scale)
    seen = visible(query, key, mask, causal)
    weights = zeroed(safe_scores(scores, seen).softmax(-1), seen)
    return torch.einsum("bngqk,bnkd->bngqd", weights.unflatten(1, shared), value).flatten(1, 2)


@right()
def log_sum_exp(query, key, value, mask=None, causal=False, scale=None):
    """Weights as the exponential of scores minus their log-sum-exp."""
    key, value = repeated(query, key, value)
    scores = (query @ key.mT).float() if query.dtype != torch.float64 else query @ key.mT
    seen = visible(query, key, mask, causal)
    scores = safe_scores(scores * factor(query, scale), seen)
    weights = torch.exp(scores - scores.logsumexp(-1, keepdim=True)) if scores.shape[-1] else scores
    return zeroed(weights, seen).to(value.dtype) @ value


@right()
def scale_on_both(query, key, value, mask=None, causal=False, scale=None):
    """Half of the scale on the query, half on the key."""
    key, value = repeated(query, key, value)
    whole = factor(query, scale)
    half = abs(whole) ** 0.5
    scores = (query * (half if whole >= 0 else -half)) @ (key * half).mT
    seen = visible(query, key, mask, causal)
    return zeroed(safe_scores(scores, seen).softmax(-1), seen) @ value


@right()
def scale_on_the_key(query, key, value, mask=None, causal=False, scale=None):
    """The scale on the key alone."""
    key, value = repeated(query, key, value)
    scores = query @ (key * factor(query, scale)).mT
    seen = visible(query, key, mask, causal)
    return zeroed(safe_scores(scores, seen).softmax(-1), seen) @ value


@right()
def base_two(query, key, value, mask=None, causal=False, scale=None):
    """The softmax in base 2, its factor folded into the scores."""
    key, value = repeated(query, key, value)
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = (query @ key.mT).to(wide) * (factor(query, scale) * 1.4426950408889634)
    seen = visible(query, key, mask, causal)
    scores = safe_scores(scores, seen)
    powers = torch.exp2(scores - scores.amax(-1, keepdim=True)) if scores.shape[-1] else scores
    weights = powers / powers.sum(-1, keepdim=True)
    return zeroed(weights, seen).to(value.dtype) @ value


@right()
def masked_exponential(query, key, value, mask=None, causal=False, scale=None):
    """No -inf anywhere: `exp(s - max) * seen`, the maximum over what is visible."""
    key, value = repeated(query, key, value)
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = (query @ key.mT).to(wide) * factor(query, scale)
    seen = visible(query, key, mask, causal)
    low = torch.finfo(wide).min
    top = scores.masked_fill(~seen, low).amax(-1, keepdim=True) if scores.shape[-1] else 0.0
    powers = torch.exp((scores - top).clamp_max(0.0)) * seen
    total = powers.sum(-1, keepdim=True)
    return (powers / total.masked_fill(total == 0, 1.0)).to(value.dtype) @ value


@right()
def log_weights(query, key, value, mask=None, causal=False, scale=None):
    """`exp(log_softmax)`, in float32: logarithms stored in half precision would cost long rows their mass."""
    key, value = repeated(query, key, value)
    wide = torch.promote_types(query.dtype, torch.float32)
    seen = visible(query, key, mask, causal)
    scores = safe_scores((query @ key.mT).to(wide) * factor(query, scale), seen)
    return zeroed(scores.log_softmax(-1).exp(), seen).to(value.dtype) @ value


def _shifted(query, key, value, mask, causal, scale, shift):
    """Take a shift from each row of scores; the gradient flows through it too."""
    key, value = repeated(query, key, value)
    wide = torch.promote_types(query.dtype, torch.float32)
    q, k = query.to(wide), key.to(wide)
    seen = visible(query, key, mask, causal)
    scores = (q @ k.mT) * factor(query, scale)
    taken = zeroed(shift(q, k, scores, seen), seen)
    return (zeroed(safe_scores(scores - taken, seen).softmax(-1), seen) @ value.to(wide)).to(query.dtype)


@right()
def shifted_rows(query, key, value, mask=None, causal=False, scale=None):
    """A number that depends on the query alone is taken from each row of scores."""
    return _shifted(
        query,
        key,
        value,
        mask,
        causal,
        scale,
        lambda q, k, s, seen: q.mean(-1, keepdim=True).clamp(-1.0, 1.0),
    )


@right()
def less_the_mean_score(query, key, value, mask=None, causal=False, scale=None):
    """The mean of a row's visible scores is taken from it."""
    return _shifted(
        query, key, value, mask, causal, scale,
        lambda q, k, s, seen: (s * seen).sum(-1, keepdim=True) / seen.sum(-1, keepdim=True).clamp(min=1),
    )  # fmt: skip


@right()
def less_the_mean_key(query, key, value, mask=None, causal=False, scale=None):
    """The query times the mean of the keys it sees, not scaled, is taken from its row."""

    def shift(q, k, s, seen):
        even = seen.to(k.dtype) / seen.sum(-1, keepdim=True).clamp(min=1)
        return (q * (even @ k)).sum(-1, keepdim=True)

    return _shifted(query, key, value, mask, causal, scale, shift)


@right()
def less_the_maximum(query, key, value, mask=None, causal=False, scale=None):
    """The row's maximum is taken from it by hand, and differentiated."""
    low = -1e30
    return _shifted(
        query, key, value, mask, causal, scale,
        lambda q, k, s, seen: (
            s.masked_fill(~seen, low).amax(-1, keepdim=True) if s.shape[-1] else s.sum(-1, keepdim=True)
        ),
    )  # fmt: skip


@right()
def divided_last(query, key, value, mask=None, causal=False, scale=None):
    """The sum is divided out of the output, not out of the weights; the maximum is not differentiated."""
    key, value = repeated(query, key, value)
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = (query @ key.mT).to(wide) * factor(query, scale)
    seen = visible(query, key, mask, causal)
    scores = safe_scores(scores, seen)
    powers = torch.exp(scores - scores.detach().amax(-1, keepdim=True)) if scores.shape[-1] else scores
    powers = zeroed(powers, seen)
    total = powers.sum(-1, keepdim=True)
    return (powers @ value.to(wide) / total.masked_fill(total == 0, 1.0)).to(query.dtype)


@right()
def additive_mask(query, key, value, mask=None, causal=False, scale=None, bias=None):
    """The mask as an additive -inf, dead rows taken out before the softmax."""
    key, value = repeated(query, key, value)
    seen = visible(query, key, mask, causal)
    plane = torch.zeros(seen.shape, dtype=query.dtype).masked_fill(~seen, -INF)
    if bias is not None:
        plane = plane + bias
    dead = (plane == -INF).all(-1, keepdim=True)
    scores = (query @ key.mT) * factor(query, scale) + plane.masked_fill(dead, 0.0)
    return scores.softmax(-1).masked_fill(dead, 0.0) @ value
