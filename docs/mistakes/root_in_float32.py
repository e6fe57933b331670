"""A float32 number in the middle of a float64 computation."""

import torch
from torch import Tensor


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    root = torch.sqrt(torch.tensor(query.shape[-1], dtype=torch.float32))  # wrong
    # right: root = query.shape[-1] ** 0.5
    scores = (query / root) @ key.transpose(-2, -1)
    return scores.softmax(-1) @ value
