"""Heads are split by a view alone."""

from torch import Tensor, nn


class Attention(nn.Module):
    def __init__(self, d_model: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        batch, seq, d_model = x.shape
        d_k = d_model // self.heads
        q = self.W_q(x).view(batch, self.heads, seq, d_k)  # wrong
        # right: q = self.W_q(x).view(batch, seq, self.heads, d_k).transpose(1, 2)
        k = self.W_k(x).view(batch, self.heads, seq, d_k)  # wrong
        # right: k = self.W_k(x).view(batch, seq, self.heads, d_k).transpose(1, 2)
        v = self.W_v(x).view(batch, self.heads, seq, d_k)  # wrong
        # right: v = self.W_v(x).view(batch, seq, self.heads, d_k).transpose(1, 2)
        scores = (q * d_k**-0.5) @ k.transpose(-2, -1)
        mixed = scores.softmax(-1) @ v
        return self.W_o(mixed.transpose(1, 2).reshape(batch, seq, d_model))
