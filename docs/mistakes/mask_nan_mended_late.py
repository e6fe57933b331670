"""NaN is replaced after the softmax: right numbers, wrong gradients."""

import torch
from torch import Tensor


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    if mask is None:
        return scores.softmax(-1) @ value
    additive = torch.zeros(mask.shape, dtype=query.dtype).masked_fill(~mask, float("-inf"))
    weights = (scores + additive).softmax(-1).nan_to_num(0.0)  # wrong
    # right: dead = ~mask.any(-1, keepdim=True)
    # right: weights = scores.masked_fill(~mask & ~dead, float("-inf")).softmax(-1).masked_fill(dead, 0.0)
    return weights @ value
