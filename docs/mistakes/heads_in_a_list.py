"""Heads are kept in a plain Python list."""

import torch
from torch import Tensor, nn


class Head(nn.Module):
    def __init__(self, d_model: int, d_k: int) -> None:
        super().__init__()
        self.W_q = nn.Linear(d_model, d_k)
        self.W_k = nn.Linear(d_model, d_k)
        self.W_v = nn.Linear(d_model, d_k)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.W_q(x), self.W_k(x), self.W_v(x)
        return ((q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)).softmax(-1) @ v


class Attention(nn.Module):
    def __init__(self, d_model: int, heads: int) -> None:
        super().__init__()
        self.heads = [Head(d_model, d_model // heads) for _ in range(heads)]  # wrong
        # right: self.heads = nn.ModuleList(Head(d_model, d_model // heads) for _ in range(heads))
        self.W_o = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.W_o(torch.cat([head(x) for head in self.heads], dim=-1))
