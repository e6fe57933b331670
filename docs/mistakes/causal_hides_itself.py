"""The diagonal is hidden too."""

import torch
from torch import Tensor


def attention(query: Tensor, key: Tensor, value: Tensor, causal: bool = False) -> Tensor:
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    if causal:
        future = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).triu(0)  # wrong
        # right: future = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    return scores.softmax(-1) @ value
