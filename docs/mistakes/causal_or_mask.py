"""Causality is forgotten as soon as there is a mask."""

import torch
from torch import Tensor


def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    past = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril(key.shape[-2] - query.shape[-2])
    if causal and mask is None:  # wrong
        # right: if causal:
        mask = past if mask is None else mask & past
    if mask is None:
        return scores.softmax(-1) @ value
    dead = ~mask.any(-1, keepdim=True)
    return scores.masked_fill(~mask & ~dead, float("-inf")).softmax(-1).masked_fill(dead, 0.0) @ value
