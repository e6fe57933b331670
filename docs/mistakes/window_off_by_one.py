"""The window is one key too long."""

import torch
from torch import Tensor


def attention(query: Tensor, key: Tensor, value: Tensor, window: tuple[int, int] | None = None) -> Tensor:
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    if window is not None:
        left, right = window
        q_len, kv_len = scores.shape[-2:]
        distance = torch.arange(kv_len) - torch.arange(q_len)[:, None] - (kv_len - q_len)
        seen = distance >= -left - 1  # wrong
        # right: seen = distance >= -left
        if left < 0:
            seen = seen | True
        if right >= 0:
            seen = seen & (distance <= right)
        dead = ~seen.any(-1, keepdim=True)
        return scores.masked_fill(~seen & ~dead, float("-inf")).softmax(-1).masked_fill(dead, 0.0) @ value
    return scores.softmax(-1) @ value
