"""Multi-head attention as a learner writes it after the first document."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        assert d_model % num_heads == 0
        self.num_heads = num_heads
        self.d_k = d_model // num_heads
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):
        n, length, _ = x.shape
        q = self.W_q(x).view(n, length, self.num_heads, self.d_k).transpose(1, 2)
        k = self.W_k(x).view(n, length, self.num_heads, self.d_k).transpose(1, 2)
        v = self.W_v(x).view(n, length, self.num_heads, self.d_k).transpose(1, 2)
        logits = q @ k.transpose(-2, -1) / torch.sqrt(torch.tensor(self.d_k, dtype=torch.float32))
        if mask is not None:
            logits = logits.masked_fill(mask, -1e9)
        shares = F.softmax(logits, dim=-1)
        mixed = shares @ v
        merged = mixed.transpose(1, 2).contiguous().view(n, length, -1)
        return self.W_o(merged)
