"""Multi-head attention as it is often taught: a finite fill where the mask is True."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model: int, num_heads: int):
        super().__init__()
        assert d_model % num_heads == 0, "heads must divide d_model"
        self.num_heads = num_heads
        self.d_k = d_model // num_heads
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(d_model, d_model) for _ in range(4))

    def heads(self, projected: torch.Tensor) -> torch.Tensor:
        batch, seq, _ = projected.shape
        return projected.view(batch, seq, self.num_heads, self.d_k).transpose(1, 2)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        q, k, v = self.heads(self.W_q(x)), self.heads(self.W_k(x)), self.heads(self.W_v(x))
        scores = q @ k.transpose(-2, -1) / torch.sqrt(torch.tensor(self.d_k, dtype=torch.float32))
        if mask is not None:
            scores = scores.masked_fill(mask, -1e9)
        mixed = F.softmax(scores, dim=-1) @ v
        return self.W_o(mixed.transpose(1, 2).contiguous().view(x.shape[0], x.shape[1], -1))
