"""Cores: functions, and classes without parameters."""

import math

import torch
from torch import nn


def scores_of(q, k, scale):
    return q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)


def attention(q, k, v, mask=None, causal=False, scale=None):
    """Heads on axis 1; everything that the contract wants."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = scores_of(q, k, scale)
    visible = torch.ones(scores.shape[-2:], dtype=torch.bool)
    if causal:
        visible = visible.tril(k.shape[2] - q.shape[2])
    if mask is not None:
        visible = visible & mask
    weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
    return weights.masked_fill(~visible, 0.0) @ v


def attention_tiled(q, k, v, mask=None, causal=False, scale=None):
    """The mistake: key/value heads are tiled."""
    group = q.shape[1] // k.shape[1]
    return attention(q, k.repeat(1, group, 1, 1), v.repeat(1, group, 1, 1), mask, causal, scale)


def upper_left(query, key, value, attn_mask=None, is_causal=False):
    """Causal by a lower triangle from the first key."""
    visible = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool)
    if is_causal:
        visible = visible.tril()
    if attn_mask is not None:
        visible = visible & attn_mask
    weights = scores_of(query, key, None).masked_fill(~visible, float("-inf")).softmax(-1)
    return weights.masked_fill(~visible, 0.0) @ value


def upper_left_off_by_one(query, key, value, attn_mask=None, is_causal=False):
    """The mistake: a query sees one key too many."""
    visible = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool)
    if is_causal:
        visible = visible.tril(1)
    if attn_mask is not None:
        visible = visible & attn_mask
    weights = scores_of(query, key, None).masked_fill(~visible, float("-inf")).softmax(-1)
    return weights.masked_fill(~visible, 0.0) @ value


def heads_last(q, k, v, softmax_scale=None, causal=False):
    """Arguments: (batch, seqlen, nheads, headdim), as in flash attention."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    scores = scores_of(q, k, softmax_scale)
    if causal:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
        weights = scores.masked_fill(~visible, float("-inf")).softmax(-1).masked_fill(~visible, 0.0)
    else:
        weights = scores.softmax(-1)
    return (weights @ v).transpose(1, 2)


def heads_last_silently(q, k, v):
    """Scores between the vectors that stand together: a convention, or a transpose that is missing."""
    return torch.einsum(
        "xijn,xjna->xina", torch.einsum("xina,xjna->xijn", q, k).mul(q.shape[-1] ** -0.5).softmax(2), v
    )


def heads_last_wrong(q, k, v, softmax_scale=None, causal=False):
    """Arguments: (batch, seqlen, nheads, headdim); the mistake: the scale divides instead of multiplying."""
    return heads_last(q, k, v, None if softmax_scale is None else 1 / softmax_scale, causal)


def registered(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
    """As transformers registers attention functions; returns batch seq heads d, and the weights."""
    group = module.num_key_value_groups
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    scores = torch.matmul(query, key.transpose(2, 3)) * (
        query.size(-1) ** -0.5 if scaling is None else scaling
    )
    if attention_mask is not None:
        scores = scores + attention_mask[:, :, :, : key.shape[-2]]
    weights = nn.functional.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def registered_scale_ignored(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
    """The mistake: the scale that it is given is not used."""
    return registered(module, query, key, value, attention_mask, None, dropout, **kwargs)


class ScaledDotProduct(nn.Module):
    """A class without parameters, told its temperature; returns output and weights."""

    def __init__(self, temperature, attn_dropout=0.1):
        super().__init__()
        self.temperature, self.dropout = temperature, nn.Dropout(attn_dropout)

    def forward(self, q, k, v, mask=None):
        scores = torch.matmul(q / self.temperature, k.transpose(2, 3))
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        weights = self.dropout(scores.softmax(-1))
        return torch.matmul(weights, v), weights


class ScaledDotProductWrongWidth(nn.Module):
    """A class without parameters; the mistake: scaled by the length of the keys."""

    def forward(self, q, k, v, mask=None):
        scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(k.size(2))
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        return torch.matmul(scores.softmax(-1), v)


def strange_names(a, b, c):
    """Parameters that say nothing: its one line is the message's own."""
    return scores_of(a, b, None).softmax(-1) @ c


def wrong_axis(q, k, v):
    """The mistake: softmax over the queries."""
    return scores_of(q, k, None).softmax(-2) @ v


def always_causal(q, k, v):
    """Causal without a flag."""
    scores = scores_of(q, k, None)
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1 + k.shape[2] - q.shape[2])
    return scores.masked_fill(hidden, float("-inf")).softmax(-1).masked_fill(hidden, 0.0) @ v


def module_dropout(query, key, value, mask=None, dropout=None):
    """A teaching core whose dropout is a module."""
    scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(mask == 0, float("-inf"))
    weights = scores.softmax(-1)
    if mask is not None:
        weights = torch.where(mask == 0, torch.zeros_like(weights), weights)
    if dropout is not None:
        weights = dropout(weights)
    return weights @ value, weights


def module_dropout_forgotten(query, key, value, mask=None, dropout=None):
    """The mistake: dropout is taken and not applied."""
    return module_dropout(query, key, value, mask)


def registered_not_moved(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
    """The mistake: a function as transformers registers them that leaves heads before positions."""
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = scores.softmax(-1)
    return weights @ value, weights


def over_weights(x, params, n_heads, mask=None):
    """Attention in the functional style: its weights are handed over."""
    return module_dropout(*(x @ params[name] for name in ("wq", "wk", "wv")), mask)[0] @ params["wo"]


def mask_first_asked(q, k, v, mask):
    """A mask without a default, which may be None all the same."""
    return attention(q, k, v, mask)


def mask_must_be_given(q, k, v, mask):
    """A mask without a default, which may not be None."""
    scores = scores_of(q, k, None).masked_fill(mask == 0, float("-inf"))
    return scores.softmax(-1).nan_to_num(0.0) @ v


def mask_must_be_given_unscaled(q, k, v, mask):
    """The mistake in it: scores are not scaled."""
    return scores_of(q, k, 1.0).masked_fill(mask == 0, float("-inf")).softmax(-1).nan_to_num(0.0) @ v


def seq_first(q, k, v, mask=None):
    """Documented: heads and batch behind positions, (seq, batch, heads, d)."""
    q, k, v = (t.permute(1, 2, 0, 3) for t in (q, k, v))
    return attention(q, k, v, mask).permute(2, 0, 1, 3)


def merged_batch(q, k, v, mask=None):
    """Batch and heads in one axis, as torch.bmm wants it."""
    scores = torch.bmm(q, k.transpose(1, 2)) * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return torch.bmm(scores.softmax(-1).nan_to_num(0.0), v)


def mask_must_be_added(q, k, v, mask):
    """A mask without a default that is added to the scores."""
    scores = scores_of(q, k, None) + mask
    alive = (scores != float("-inf")).any(-1, keepdim=True)
    return torch.where(alive, scores, 0.0).softmax(-1).mul(alive) @ v


def needs_its_scale(q, k, v, scale):
    """A scale that the caller must say."""
    return (q @ k.transpose(-2, -1) * scale).softmax(-1) @ v


def side_by_side(queries, keys, values, heads, causal=False):
    """Heads side by side: `batch seq heads*d`."""
    q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (queries, keys, values))
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
        scores = scores.masked_fill(~seen, float("-inf"))
    return (scores.softmax(-1).nan_to_num() @ v).transpose(1, 2).flatten(2)
