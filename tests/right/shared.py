"""What the cores of this bank have in common: who sees whom, and heads shared out."""

import torch

INF = float("inf")


def visible(query, key, mask=None, causal=False):
    """Return where queries may attend, `batch heads q_len kv_len`, aligned lower right."""
    whole = (*query.shape[:3], key.shape[2])
    seen = torch.ones(whole[2:], dtype=torch.bool)
    if causal:
        seen = seen.tril(whole[3] - whole[2])
    return (seen if mask is None else seen & mask).expand(whole)


def repeated(query, *tensors):
    """Give each query head its key/value head."""
    return [t.repeat_interleave(query.shape[1] // max(t.shape[1], 1), 1) for t in tensors]


def factor(query, scale):
    """Return the scale that applies."""
    return query.shape[-1] ** -0.5 if scale is None else scale


def zeroed(weights, seen):
    """Set rows that see nothing to zero, whatever stands there."""
    return weights.masked_fill(~seen.any(-1, keepdim=True), 0.0)


def safe_scores(scores, seen):
    """Hide what is not visible; a row that sees nothing keeps its scores, to stay finite."""
    return scores.masked_fill(~seen & seen.any(-1, keepdim=True), -INF)
