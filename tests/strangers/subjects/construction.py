"""Ways to construct a layer."""

import copy
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import nn


def attend(q, k, v, mask=None, *, scale=None, dropout=None):
    """Batch heads seq d; a mask that is 0 where nobody may look; rows that see nothing are zero."""
    scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if mask is None:
        weights = scores.softmax(-1)
    else:
        weights = scores.masked_fill(mask == 0, float("-inf")).softmax(-1)
        weights = torch.where(mask == 0, torch.zeros_like(weights), weights)
    return (weights if dropout is None else dropout(weights)) @ v


def heads_of(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merged(x):
    return x.transpose(1, 2).flatten(2)


class EmbedDim(nn.Module):
    """`(embed_dim, num_heads)`, q_proj to o_proj, no bias."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj, self.k_proj = (
            nn.Linear(embed_dim, embed_dim, bias=False),
            nn.Linear(embed_dim, embed_dim, bias=False),
        )
        self.v_proj, self.o_proj = (
            nn.Linear(embed_dim, embed_dim, bias=False),
            nn.Linear(embed_dim, embed_dim, bias=False),
        )

    def forward(self, hidden_states, attention_mask=None):
        q, k, v = (
            heads_of(p(hidden_states), self.num_heads) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        return self.o_proj(merged(attend(q, k, v, attention_mask)))


class EmbedDimUnscaled(EmbedDim):
    """The mistake: scores are not scaled."""

    def forward(self, hidden_states, attention_mask=None):
        q, k, v = (
            heads_of(p(hidden_states), self.num_heads) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        return self.o_proj(merged(attend(q, k, v, attention_mask, scale=1.0)))


class FourLinears(nn.Module):
    """`(h, d_model, dropout=0.1)` with a list of four linears; three inputs."""

    def __init__(self, h, d_model, dropout=0.1):
        super().__init__()
        self.d_k, self.h = d_model // h, h
        self.linears = nn.ModuleList([copy.deepcopy(nn.Linear(d_model, d_model)) for _ in range(4)])
        self.attn = None
        self.dropout = nn.Dropout(p=dropout)

    def forward(self, query, key, value, mask=None):
        if mask is not None:
            mask = mask.unsqueeze(1)
        n = query.size(0)
        query, key, value = (
            line(x).view(n, -1, self.h, self.d_k).transpose(1, 2)
            for line, x in zip(self.linears, (query, key, value), strict=False)
        )
        scores = torch.matmul(query, key.transpose(-2, -1)) / self.d_k**0.5
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        self.attn = self.dropout(scores.softmax(dim=-1))
        x = torch.matmul(self.attn, value).transpose(1, 2).contiguous().view(n, -1, self.h * self.d_k)
        return self.linears[-1](x)


class FourLinearsNoTranspose(FourLinears):
    """The mistake: heads are laid side by side without moving them back behind the positions."""

    def forward(self, query, key, value, mask=None):
        n = query.size(0)
        query, key, value = (
            line(x).view(n, -1, self.h, self.d_k).transpose(1, 2)
            for line, x in zip(self.linears, (query, key, value), strict=False)
        )
        scores = torch.matmul(query, key.transpose(-2, -1)) / self.d_k**0.5
        if mask is not None:
            scores = scores.masked_fill(mask.unsqueeze(1) == 0, -1e9)
        x = torch.matmul(scores.softmax(dim=-1), value).contiguous().view(n, -1, self.h * self.d_k)
        return self.linears[-1](x)


class DimHead(nn.Module):
    """`(dim, heads, dim_head)`, to_q, to_kv and to_out.0, an optional context."""

    def __init__(self, dim, heads=8, dim_head=64, dropout=0.0):
        super().__init__()
        self.heads, inner = heads, dim_head * heads
        self.to_q, self.to_kv = nn.Linear(dim, inner, bias=False), nn.Linear(dim, 2 * inner, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner, dim), nn.Dropout(dropout))

    def forward(self, x, context=None, mask=None):
        context = x if context is None else context
        q, (k, v) = self.to_q(x), self.to_kv(context).chunk(2, dim=-1)
        return self.to_out(merged(attend(*(heads_of(t, self.heads) for t in (q, k, v)), mask)))


class DimHeadWrongAxis(DimHead):
    """The mistake: softmax over the queries."""

    def forward(self, x, context=None, mask=None):
        context = x if context is None else context
        q, (k, v) = self.to_q(x), self.to_kv(context).chunk(2, dim=-1)
        q, k, v = (heads_of(t, self.heads) for t in (q, k, v))
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        return self.to_out(merged(scores.softmax(dim=-2) @ v))


class Book(nn.Module):
    """`(d_in, d_out, context_length, dropout, num_heads, qkv_bias=False)`, always causal by a buffer."""

    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__()
        self.d_out, self.num_heads, self.head_dim = d_out, num_heads, d_out // num_heads
        self.W_query, self.W_key = (
            nn.Linear(d_in, d_out, bias=qkv_bias),
            nn.Linear(d_in, d_out, bias=qkv_bias),
        )
        self.W_value, self.out_proj = nn.Linear(d_in, d_out, bias=qkv_bias), nn.Linear(d_out, d_out)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", torch.triu(torch.ones(context_length, context_length), diagonal=1))

    def forward(self, x):
        b, num_tokens, _ = x.shape
        keys, queries, values = (
            w(x).view(b, num_tokens, self.num_heads, self.head_dim).transpose(1, 2)
            for w in (self.W_key, self.W_query, self.W_value)
        )
        scores = queries @ keys.transpose(2, 3)
        scores.masked_fill_(self.mask.bool()[:num_tokens, :num_tokens], -torch.inf)
        weights = self.dropout(torch.softmax(scores / keys.shape[-1] ** 0.5, dim=-1))
        return self.out_proj((weights @ values).transpose(1, 2).contiguous().view(b, num_tokens, self.d_out))


class BookAntiCausal(Book):
    """The mistake: the past is hidden instead of the future."""

    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__(d_in, d_out, context_length, dropout, num_heads, qkv_bias)
        self.register_buffer("mask", torch.tril(torch.ones(context_length, context_length), diagonal=-1))


class BookBeyondBuffer(Book):
    """The mistake: a sequence that is longer than the buffer is not masked at all."""

    def forward(self, x):
        if x.shape[1] > self.mask.shape[0]:
            self.mask = torch.zeros(x.shape[1], x.shape[1])
        return super().forward(x)


@dataclass
class GPTConfig:
    block_size: int = 1024
    n_head: int = 12
    n_embd: int = 768
    dropout: float = 0.0
    bias: bool = True


class CausalSelfAttention(nn.Module):
    """One config object; c_attn and c_proj; always causal by a buffer."""

    def __init__(self, config):
        super().__init__()
        assert config.n_embd % config.n_head == 0
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.attn_dropout, self.resid_dropout = nn.Dropout(config.dropout), nn.Dropout(config.dropout)
        self.n_head, self.n_embd = config.n_head, config.n_embd
        tril = torch.tril(torch.ones(config.block_size, config.block_size))
        self.register_buffer("bias", tril.view(1, 1, config.block_size, config.block_size))

    def forward(self, x):
        B, T, C = x.size()  # noqa: RUF059
        q, k, v = (heads_of(t, self.n_head) for t in self.c_attn(x).split(self.n_embd, dim=2))
        att = (q @ k.transpose(-2, -1)) * (1.0 / k.size(-1) ** 0.5)
        att = self.attn_dropout(att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf")).softmax(-1))
        return self.resid_dropout(self.c_proj(merged(att @ v)))


class CausalSelfAttentionHeadWidth(CausalSelfAttention):
    """The mistake: scaled by the width of the model."""

    def forward(self, x):
        B, T, C = x.size()  # noqa: RUF059
        q, k, v = (heads_of(t, self.n_head) for t in self.c_attn(x).split(self.n_embd, dim=2))
        att = (q @ k.transpose(-2, -1)) * (1.0 / C**0.5)
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf")).softmax(-1)
        return self.c_proj(merged(att @ v))


class DictConfig(nn.Module):
    """A dictionary of settings, read by key."""

    def __init__(self, cfg):
        super().__init__()
        self.n_heads = cfg["n_heads"]
        self.wq, self.wk = (
            nn.Linear(cfg["emb_dim"], cfg["emb_dim"]),
            nn.Linear(cfg["emb_dim"], cfg["emb_dim"]),
        )
        self.wv, self.wo = (
            nn.Linear(cfg["emb_dim"], cfg["emb_dim"]),
            nn.Linear(cfg["emb_dim"], cfg["emb_dim"]),
        )
        self.drop = nn.Dropout(cfg["drop_rate"])

    def forward(self, x, mask=None):
        q, k, v = (heads_of(w(x), self.n_heads) for w in (self.wq, self.wk, self.wv))
        return self.drop(self.wo(merged(attend(q, k, v, mask))))


class AttributeConfig(nn.Module):
    """A config whose class is nowhere to be seen: only its attributes are read."""

    def __init__(self, config):
        super().__init__()
        self.num_attention_heads = config.num_attention_heads
        self.query, self.key = (
            nn.Linear(config.hidden_size, config.hidden_size),
            nn.Linear(config.hidden_size, config.hidden_size),
        )
        self.value, self.dense = (
            nn.Linear(config.hidden_size, config.hidden_size),
            nn.Linear(config.hidden_size, config.hidden_size),
        )
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)

    def forward(self, hidden_states, attention_mask=None):
        q, k, v = (
            heads_of(w(hidden_states), self.num_attention_heads) for w in (self.query, self.key, self.value)
        )
        return (self.dense(merged(attend(q, k, v, attention_mask, dropout=self.dropout))),)


class Grouped(nn.Module):
    """`(d_model, num_heads, num_kv_heads)`, shared out by repeat_interleave."""

    def __init__(self, d_model, num_heads, num_kv_heads):
        super().__init__()
        self.num_heads, self.num_kv_heads, d = num_heads, num_kv_heads, d_model // num_heads
        self.q_proj, self.o_proj = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.k_proj, self.v_proj = nn.Linear(d_model, num_kv_heads * d), nn.Linear(d_model, num_kv_heads * d)

    def share(self, t):
        return t.repeat_interleave(self.num_heads // self.num_kv_heads, dim=1)

    def forward(self, x, mask=None):
        q, k, v = (
            heads_of(self.q_proj(x), self.num_heads),
            *(heads_of(p(x), self.num_kv_heads) for p in (self.k_proj, self.v_proj)),
        )
        return self.o_proj(merged(attend(q, self.share(k), self.share(v), mask)))


class GroupedTiled(Grouped):
    """The mistake: key/value heads are tiled."""

    def share(self, t):
        return t.repeat(1, self.num_heads // self.num_kv_heads, 1, 1)


def make_attention(d_model, heads):
    """A factory function."""
    return EmbedDim(d_model, heads)


def make_unscaled(d_model, heads):
    """The mistake, through a factory."""
    return EmbedDimUnscaled(d_model, heads)


instance = EmbedDim(24, 4)
instance_unscaled = EmbedDimUnscaled(24, 4)
namespace_instance = AttributeConfig(
    SimpleNamespace(hidden_size=12, num_attention_heads=3, attention_probs_dropout_prob=0.1)
)


class Opaque(nn.Module):
    """A constructor that no table knows: its one line is the message's own."""

    def __init__(self, width_of_everything, how_many):
        super().__init__()
        self.inner = EmbedDim(width_of_everything, how_many)

    def forward(self, x):
        return self.inner(x)


class Headless(nn.Module):
    """An instance that nowhere says its number of heads."""

    def __init__(self, width, split):
        super().__init__()
        self.split = [split, -1]
        self.q_proj, self.k_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.v_proj, self.o_proj = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (
            p(x).unflatten(-1, self.split).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        return self.o_proj(merged(attend(q, k, v)))


headless_instance = Headless(12, 4)
