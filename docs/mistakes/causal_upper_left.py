"""With a cache, the mask is aligned at the wrong corner."""

import torch
from torch import Tensor


def attention(query: Tensor, key: Tensor, value: Tensor, causal: bool = False) -> Tensor:
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    if causal:
        q_len, kv_len = scores.shape[-2:]
        past = torch.ones(q_len, kv_len, dtype=torch.bool).tril()  # wrong
        # right: past = torch.ones(q_len, kv_len, dtype=torch.bool).tril(kv_len - q_len)
        dead = ~past.any(-1, keepdim=True)
        return scores.masked_fill(~past & ~dead, float("-inf")).softmax(-1).masked_fill(dead, 0.0) @ value
    return scores.softmax(-1) @ value
