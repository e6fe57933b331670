"""Multi-head attention as the first document teaches it, mended."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model: int, num_heads: int):
        super().__init__()
        assert d_model % num_heads == 0, "d_model must be divisible by num_heads"
        self.d_k = d_model // num_heads
        self.num_heads = num_heads
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)

    def forward(self, x: torch.Tensor, mask: torch.Tensor = None) -> torch.Tensor:
        batch_size, seq_len, _ = x.size()
        Q = self.W_q(x).view(batch_size, seq_len, self.num_heads, self.d_k).transpose(1, 2)
        K = self.W_k(x).view(batch_size, seq_len, self.num_heads, self.d_k).transpose(1, 2)
        V = self.W_v(x).view(batch_size, seq_len, self.num_heads, self.d_k).transpose(1, 2)
        attn_score = (Q * self.d_k**-0.5) @ K.transpose(-2, -1)
        if mask is not None:
            dead = mask.all(dim=-1, keepdim=True)
            attn_score = attn_score.masked_fill(mask & ~dead, float("-inf"))
        attn_weights = F.softmax(attn_score, dim=-1)
        if mask is not None:
            attn_weights = attn_weights.masked_fill(dead, 0.0)
        attn_output = attn_weights @ V
        attn_output = attn_output.transpose(1, 2).flatten(2)
        return self.W_o(attn_output)
