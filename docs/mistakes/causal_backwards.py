"""The past is hidden, and the future is seen."""

import torch
from torch import Tensor


def attention(query: Tensor, key: Tensor, value: Tensor, causal: bool = False) -> Tensor:
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    if causal:
        hidden = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril(-1)  # wrong
        # right: hidden = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    return scores.softmax(-1) @ value
