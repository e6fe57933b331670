"""What the three documents' classes do, in our own words."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class First(nn.Module):
    """The first document: separate projections, a mask whose True is blocked, a finite fill."""

    def __init__(self, d_model: int, num_heads: int):
        super().__init__()
        assert d_model % num_heads == 0, "heads must divide d_model"
        self.num_heads, self.d_k = num_heads, d_model // num_heads
        self.W_q, self.W_k = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.W_v, self.W_o = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):
        batch, length, _ = x.size()
        q, k, v = (
            w(x).view(batch, length, self.num_heads, self.d_k).transpose(1, 2)
            for w in (self.W_q, self.W_k, self.W_v)
        )
        scores = q @ k.transpose(-2, -1) / torch.sqrt(torch.tensor(self.d_k, dtype=torch.float32))
        if mask is not None:
            # positions where the mask is True are blocked: they get a very low score
            scores = scores.masked_fill(mask, -1e9)
        mixed = F.softmax(scores, dim=-1) @ v
        return self.W_o(mixed.transpose(1, 2).contiguous().view(batch, length, -1))


def split_heads(tensor, num_heads):
    batch, length, width = tensor.size()
    return tensor.view(batch, length, num_heads, width // num_heads).transpose(1, 2)


class Second(nn.Module):
    """The second document, as printed: two names in forward are not defined anywhere."""

    def __init__(self, d_model=512, num_heads=8):
        super().__init__()
        self.d_head = d_model // num_heads
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)

    def forward(self, Q, K, V):
        q = split_heads(self.W_q(Q), num_heads)  # noqa: F821
        k = split_heads(self.W_k(K), num_heads)  # noqa: F821
        v = split_heads(self.W_v(V), num_heads)  # noqa: F821
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_head)
        output = torch.matmul(F.softmax(scores, dim=-1), v)
        return output.transpose(1, 2).contiguous().view(batch_size, seq_len, -1)  # noqa: F821


class SecondMended(nn.Module):
    """The second document with its names defined; it still has no output projection."""

    def __init__(self, d_model=512, num_heads=8):
        super().__init__()
        self.num_heads, self.d_head = num_heads, d_model // num_heads
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)

    def forward(self, Q, K, V):
        q, k, v = (
            split_heads(w(x), self.num_heads) for w, x in ((self.W_q, Q), (self.W_k, K), (self.W_v, V))
        )
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_head)
        output = torch.matmul(F.softmax(scores, dim=-1), v)
        return output.transpose(1, 2).contiguous().view(Q.size(0), Q.size(1), -1)


class SecondGrouped(nn.Module):
    """The second document's grouped sketch, made a class: key/value heads are tiled."""

    def __init__(self, d_model, num_heads, num_kv_heads):
        super().__init__()
        self.num_heads, self.num_kv_heads, self.d_head = num_heads, num_kv_heads, d_model // num_heads
        self.W_q, self.W_o = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, num_kv_heads * self.d_head)
        self.W_v = nn.Linear(d_model, num_kv_heads * self.d_head)

    def forward(self, x):
        group = self.num_heads // self.num_kv_heads
        q = split_heads(self.W_q(x), self.num_heads)
        k = split_heads(self.W_k(x), self.num_kv_heads).repeat(1, group, 1, 1)
        v = split_heads(self.W_v(x), self.num_kv_heads).repeat(1, group, 1, 1)
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_head)
        output = torch.matmul(F.softmax(scores, dim=-1), v)
        return self.W_o(output.transpose(1, 2).flatten(2))


class Third(nn.Module):
    """The third document: one projection, split by head first, and a mask documented with three axes."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
        self.qkv_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, mask=None):
        """Attend.

        x: (batch_size, seq_len, embed_dim)
        mask: (batch_size, seq_len, seq_len)
        """
        batch_size, seq_len, embed_dim = x.shape
        qkv = self.qkv_proj(x).reshape(batch_size, seq_len, self.num_heads, 3 * self.head_dim)
        q, k, v = (part.transpose(1, 2) for part in torch.chunk(qkv, 3, dim=-1))
        scores = torch.matmul(q, k.transpose(-2, -1)) / torch.sqrt(torch.tensor(self.head_dim))
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        output = torch.matmul(F.softmax(scores, dim=-1), v)
        return self.out_proj(output.transpose(1, 2).reshape(batch_size, seq_len, embed_dim))
