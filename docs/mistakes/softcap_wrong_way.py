"""The cap bends the scores the wrong way."""

import torch
from torch import Tensor


def attention(query: Tensor, key: Tensor, value: Tensor, softcap: float | None = None) -> Tensor:
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    if softcap is not None:
        scores = scores * torch.tanh(scores / softcap)  # wrong
        # right: scores = softcap * torch.tanh(scores / softcap)
    return scores.softmax(-1) @ value
