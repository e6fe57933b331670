"""Attention as teaching scripts keep it: sizes in globals, a module for each head, configs handed on."""

import torch
from construction import attend, heads_of, merged
from torch import nn

n_embd, block_size, dropout = 36, 64, 0.0


class Head(nn.Module):
    """One head, always causal; its input width is a global."""

    def __init__(self, head_size):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))
        self.dropout = nn.Dropout(dropout)

    def width(self, x):
        return self.key.out_features

    def forward(self, x):
        length = x.shape[1]
        scores = self.query(x) @ self.key(x).transpose(-2, -1) * self.width(x) ** -0.5
        scores = scores.masked_fill(self.tril[:length, :length] == 0, float("-inf"))
        return self.dropout(scores.softmax(-1)) @ self.value(x)


class HeadOfWidth(Head):
    def width(self, x):
        return x.shape[-1]


class GlobalWidth(nn.Module):
    """`(num_heads, head_size)`: the width of the model is `n_embd` of the script."""

    head = Head

    def __init__(self, num_heads, head_size):
        super().__init__()
        self.heads = nn.ModuleList([self.head(head_size) for _ in range(num_heads)])
        self.proj = nn.Linear(head_size * num_heads, n_embd)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.dropout(self.proj(torch.cat([head(x) for head in self.heads], dim=-1)))


class GlobalWidthScaled(GlobalWidth):
    """The mistake: scores are scaled by the width of the model."""

    head = HeadOfWidth


four_heads = GlobalWidth(4, 9)
four_heads_scaled = GlobalWidthScaled(4, 9)


class SelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads = config.num_attention_heads
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x, mask=None, scale=None):
        q, k, v = (heads_of(p(x), self.heads) for p in (self.query, self.key, self.value))
        return merged(attend(q, k, v, mask, scale=scale))


class Output(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_states, input_tensor):
        return self.LayerNorm(self.dense(hidden_states) + input_tensor)


class HandedOn(nn.Module):
    """Its config is read in the modules that it constructs alone."""

    scale = None

    def __init__(self, config):
        super().__init__()
        self.self, self.output = SelfAttention(config), Output(config)

    def forward(self, hidden_states, attention_mask=None):
        return (self.output(self.self(hidden_states, attention_mask, self.scale), hidden_states),)


class HandedOnUnscaled(HandedOn):
    """The mistake: scores are not scaled."""

    scale = 1.0


class HeadMatrices(nn.Module):
    """`(n_heads, d_model, d_head)`: a matrix and a bias for each head, as bare parameters."""

    def __init__(self, n_heads, d_model, d_head):
        super().__init__()
        for name in "QKV":
            setattr(self, f"W_{name}", nn.Parameter(torch.randn(n_heads, d_model, d_head) * 0.1))
            setattr(self, f"b_{name}", nn.Parameter(torch.zeros(n_heads, d_head)))
        self.W_O = nn.Parameter(torch.randn(n_heads, d_head, d_model) * 0.1)
        self.b_O = nn.Parameter(torch.zeros(d_model))

    def bias(self, name):
        return getattr(self, f"b_{name}")[:, None]

    def project(self, x, name):
        return torch.einsum("bpd,hde->bhpe", x, getattr(self, f"W_{name}")) + self.bias(name)

    def forward(self, x):
        z = attend(*(self.project(x, name) for name in "QKV"))
        return torch.einsum("bhpe,hed->bpd", z, self.W_O) + self.b_O


class HeadMatricesShared(HeadMatrices):
    """The mistake: every head adds the first head's bias."""

    def bias(self, name):
        return getattr(self, f"b_{name}")[0]


class Packed(nn.Module):
    """`(E_q, E_k, E_v, E_total, nheads)`, one packed projection."""

    def __init__(self, E_q, E_k, E_v, E_total, nheads, bias=True):
        super().__init__()
        self.nheads = nheads
        self.packed_proj = nn.Linear(E_q, E_total * 3, bias=bias)
        self.out_proj = nn.Linear(E_total, E_q, bias=bias)

    def forward(self, x, mask=None):
        q, k, v = (heads_of(t, self.nheads) for t in self.packed_proj(x).chunk(3, dim=-1))
        return self.out_proj(merged(attend(q, k, v, mask)))


class PackedNotMoved(Packed):
    """The mistake: heads are merged without moving them behind the positions."""

    def forward(self, x, mask=None):
        q, k, v = (heads_of(t, self.nheads) for t in self.packed_proj(x).chunk(3, dim=-1))
        return self.out_proj(attend(q, k, v, mask).reshape(x.shape))


class RelativeBias(nn.Module):
    """A learnt bias by relative position, added to the scores."""

    def __init__(self, d_model, num_heads, num_buckets=8):
        super().__init__()
        self.num_heads, self.num_buckets = num_heads, num_buckets
        self.q, self.k = nn.Linear(d_model, d_model, bias=False), nn.Linear(d_model, d_model, bias=False)
        self.v, self.o = nn.Linear(d_model, d_model, bias=False), nn.Linear(d_model, d_model, bias=False)
        self.relative_attention_bias = nn.Embedding(num_buckets, num_heads)

    def bias(self, length):
        apart = (torch.arange(length)[None] - torch.arange(length)[:, None]).abs()
        return self.relative_attention_bias(apart.clamp(max=self.num_buckets - 1)).permute(2, 0, 1)[None]

    def factor(self, width):
        return width**-0.5

    def forward(self, x):
        q, k, v = (heads_of(p(x), self.num_heads) for p in (self.q, self.k, self.v))
        scores = q @ k.transpose(-2, -1) * self.factor(q.shape[-1]) + self.bias(x.shape[1])
        return self.o(merged(scores.softmax(-1) @ v))


class RelativeBiasUnscaled(RelativeBias):
    """No scale, as T5 has it: not what the contract says."""

    def factor(self, width):
        return 1.0
