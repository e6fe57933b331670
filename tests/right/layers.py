"""Layers that keep their weights, or put their heads together, in another way."""

import torch
from torch import nn

from .bank import right
from .forms import float32_inside


class _Base(nn.Module):
    def __init__(self, d_model, heads):
        super().__init__()
        if d_model % heads:
            raise ValueError(f"heads must divide d_model; got d_model={d_model}, heads={heads}")
        self.d_model, self.heads = d_model, heads

    def split(self, t):
        return t.unflatten(-1, (self.heads, -1)).transpose(1, 2)


@right("layer")
class SumOverHeads(_Base):
    """No concatenation: each head has its own part of the output projection, and the parts are added."""

    def __init__(self, d_model, heads):
        super().__init__(d_model, heads)
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, query, key=None, value=None, mask=None, causal=False):
        key = query if key is None else key
        value = key if value is None else value
        q, k, v = self.split(self.W_q(query)), self.split(self.W_k(key)), self.split(self.W_v(value))
        mixed = float32_inside(q, k, v, mask, causal)
        parts = self.W_o.weight.unflatten(-1, (self.heads, -1))
        return torch.einsum("bhqd,ohd->bqo", mixed, parts) + self.W_o.bias


@right("layer")
class KeyBiasLeftOut(_Base):
    """Keys have no bias: it would shift whole rows of scores, and change nothing."""

    def __init__(self, d_model, heads):
        super().__init__(d_model, heads)
        self.W_q, self.W_v, self.W_o = (nn.Linear(d_model, d_model) for _ in range(3))
        self.W_k = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x, mask=None, causal=False):
        q, k, v = self.split(self.W_q(x)), self.split(self.W_k(x)), self.split(self.W_v(x))
        return self.W_o(float32_inside(q, k, v, mask, causal).transpose(1, 2).flatten(2))


@right("layer")
class Stacked(_Base):
    """One matrix for queries, keys and values; all query rows first."""

    def __init__(self, d_model, heads):
        super().__init__(d_model, heads)
        self.qkv, self.proj = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x, mask=None, causal=False):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(float32_inside(q, k, v, mask, causal).transpose(1, 2).reshape(x.shape))


@right("layer")
class Interleaved(_Base):
    """One matrix for all, each head's query, key and value rows together."""

    def __init__(self, d_model, heads):
        super().__init__(d_model, heads)
        self.query_key_value, self.dense = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, hidden_states, attention_mask=None):
        q, k, v = (
            self.query_key_value(hidden_states).unflatten(-1, (self.heads, 3, -1)).permute(3, 0, 2, 1, 4)
        )
        mixed = float32_inside(q, k, v, attention_mask)
        return self.dense(mixed.transpose(1, 2).flatten(2))


@right("layer")
class MatricesPerHead(_Base):
    """Weights with an axis for heads, products by einsum, no linear layer anywhere."""

    def __init__(self, d_model, heads):
        super().__init__(d_model, heads)
        d_k = d_model // heads
        shape = (heads, d_model, d_k)
        self.W_Q, self.W_K, self.W_V = (nn.Parameter(torch.randn(shape) * d_model**-0.5) for _ in range(3))
        self.W_O = nn.Parameter(torch.randn(heads, d_k, d_model) * d_model**-0.5)

    def forward(self, x, mask=None):
        q, k, v = (torch.einsum("bsm,hmd->bhsd", x, w) for w in (self.W_Q, self.W_K, self.W_V))
        return torch.einsum("bhsd,hdm->bsm", float32_inside(q, k, v, mask), self.W_O)


@right("layer")
class GroupedWithDropout(_Base):
    """Fewer key/value heads, dropout by a module, weights on request."""

    def __init__(self, d_model, heads, kv_heads=None, dropout=0.0):
        super().__init__(d_model, heads)
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1; got {dropout}")
        self.kv_heads, d_k = kv_heads or heads, d_model // heads
        self.q_proj, self.o_proj = (nn.Linear(d_model, d_model, bias=False) for _ in range(2))
        self.k_proj, self.v_proj = (nn.Linear(d_model, self.kv_heads * d_k, bias=False) for _ in range(2))
        self.drop = nn.Dropout(dropout)

    def forward(self, x, mask=None, return_weights=False):
        q = self.split(self.q_proj(x))
        k, v = (p(x).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2) for p in (self.k_proj, self.v_proj))
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, 1) for t in (k, v))
        scores = q @ k.mT * q.shape[-1] ** -0.5
        seen = torch.ones(scores.shape, dtype=torch.bool) if mask is None else mask.expand(scores.shape)
        dead = ~seen.any(-1, keepdim=True)
        weights = scores.masked_fill(~seen & ~dead, float("-inf")).softmax(-1).masked_fill(dead, 0.0)
        output = self.o_proj((self.drop(weights) @ v).transpose(1, 2).flatten(2))
        return (output, weights) if return_weights else output


@right("layer")
class SequenceFirstInside(_Base):
    """Positions in front of samples inside, batch first outside."""

    def __init__(self, d_model, heads):
        super().__init__(d_model, heads)
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x, mask=None, causal=False):
        turned = x.transpose(0, 1)
        q, k, v = (
            w(turned).unflatten(-1, (self.heads, -1)).permute(1, 2, 0, 3)
            for w in (self.W_q, self.W_k, self.W_v)
        )
        mixed = float32_inside(q, k, v, mask, causal)
        return self.W_o(mixed.permute(2, 0, 1, 3).flatten(2)).transpose(0, 1)


@right("layer")
class AlwaysCausal(_Base):
    """Causal by a buffer, as decoders are."""

    def __init__(self, d_model, heads, context_length=1024):
        super().__init__(d_model, heads)
        self.c_attn, self.c_proj = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        whole = torch.ones(context_length, context_length, dtype=torch.bool).tril()
        self.register_buffer("causal_mask", whole, persistent=False)

    def forward(self, x):
        q, k, v = (self.split(t) for t in self.c_attn(x).chunk(3, -1))
        seen = self.causal_mask[: x.shape[1], : x.shape[1]]
        return self.c_proj(float32_inside(q, k, v, seen).transpose(1, 2).flatten(2))
