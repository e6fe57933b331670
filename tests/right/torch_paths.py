"""Cores that hand the work to torch: its fused attention, its compiler, its vmap."""

import torch
from torch.nn.functional import scaled_dot_product_attention

from .bank import right
from .forms import float32_inside
from .shared import factor, repeated, visible


@right()
def corrected_sdpa(query, key, value, mask=None, causal=False, scale=None):
    """torch's own, with the alignment and the dead rows of the contract."""
    if query.shape[1] % max(key.shape[1], 1) or key.shape[2] != value.shape[2]:
        raise ValueError("sizes do not fit")
    key, value = repeated(query, key, value)
    seen = visible(query, key, mask, causal)
    dead = ~seen.any(-1, keepdim=True)
    if key.shape[2] == 0:
        return query.new_zeros(*query.shape[:3], value.shape[-1])
    output = scaled_dot_product_attention(
        query, key, value, attn_mask=seen | dead, scale=factor(query, scale)
    )
    return output.masked_fill(dead, 0.0)


@right()
def sdpa_with_a_float_mask(query, key, value, mask=None, causal=False, scale=None, bias=None):
    """torch's own, with everything in one additive mask."""
    key, value = repeated(query, key, value)
    seen = visible(query, key, mask, causal)
    plane = torch.zeros(seen.shape, dtype=query.dtype) if bias is None else bias.expand(seen.shape)
    seen = seen & (plane != float("-inf"))
    dead = ~seen.any(-1, keepdim=True)
    if key.shape[2] == 0:
        return query.new_zeros(*query.shape[:3], value.shape[-1])
    plane = plane.masked_fill(~seen, float("-inf")).masked_fill(dead, 0.0)
    output = scaled_dot_product_attention(query, key, value, attn_mask=plane, scale=factor(query, scale))
    return output.masked_fill(dead, 0.0)


_compiled = torch.compile(float32_inside, backend="eager", dynamic=True)


@right()
def compiled(query, key, value, mask=None, causal=False, scale=None):
    """Captured by torch's compiler, run by its eager backend."""
    return _compiled(query, key, value, mask, causal, scale)


@right()
def mapped(query, key, value, mask=None, causal=False, scale=None):
    """One sample at a time, by `torch.vmap`."""
    if query.shape[0] == 0:
        return query.new_zeros(*query.shape[:3], value.shape[-1])
    if len({t.shape[0] for t in (query, key, value)}) > 1:
        raise ValueError("batch sizes differ")
    key, value = repeated(query, key, value)
    seen = visible(query, key, mask, causal)

    def one(q, k, v, s):
        scores = q @ k.mT * factor(q, scale)
        dead = ~s.any(-1, keepdim=True)
        return scores.masked_fill(~s & ~dead, float("-inf")).softmax(-1).masked_fill(dead, 0.0) @ v

    return torch.vmap(one)(query, key, value, seen)
