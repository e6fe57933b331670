"""More than attention, and other ways to call and to return."""

from dataclasses import dataclass

import torch
from construction import attend, heads_of, merged
from torch import nn


class Small(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj, self.k_proj = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.v_proj, self.out_proj = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def inner(self, x, mask=None, scale=None):
        q, k, v = (heads_of(w(x), self.num_heads) for w in (self.q_proj, self.k_proj, self.v_proj))
        return self.out_proj(merged(attend(q, k, v, mask, scale=scale)))


class PreNorm(Small):
    """A norm before, a residual after."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.norm = nn.LayerNorm(d_model)

    def forward(self, x, mask=None):
        return x + self.inner(self.norm(x), mask)


class PreNormUnscaled(PreNorm):
    """The mistake inside the block: scores are not scaled."""

    def forward(self, x, mask=None):
        return x + self.inner(self.norm(x), mask, scale=1.0)


class PostNorm(nn.Module):
    """`(n_head, d_model, d_k, d_v, dropout=0.1)`: residual, then norm; returns output and weights."""

    def __init__(self, n_head, d_model, d_k, d_v, dropout=0.1):
        super().__init__()
        self.n_head, self.d_k, self.d_v = n_head, d_k, d_v
        self.w_qs, self.w_ks = (
            nn.Linear(d_model, n_head * d_k, bias=False),
            nn.Linear(d_model, n_head * d_k, bias=False),
        )
        self.w_vs, self.fc = (
            nn.Linear(d_model, n_head * d_v, bias=False),
            nn.Linear(n_head * d_v, d_model, bias=False),
        )
        self.dropout, self.layer_norm = nn.Dropout(dropout), nn.LayerNorm(d_model, eps=1e-6)

    def forward(self, q, k, v, mask=None):
        residual = q
        q, k, v = (heads_of(w(x), self.n_head) for w, x in ((self.w_qs, q), (self.w_ks, k), (self.w_vs, v)))
        scores = torch.matmul(q / self.d_k**0.5, k.transpose(2, 3))
        if mask is not None:
            scores = scores.masked_fill(mask.unsqueeze(1) == 0, -1e9)
        weights = self.dropout(scores.softmax(-1))
        output = self.layer_norm(self.dropout(self.fc(merged(weights @ v))) + residual)
        return output, weights


class Plus(Small):
    """What goes in is added to what comes out, and nothing says why: a block or a bug."""

    def forward(self, x, mask=None):
        return self.inner(x, mask) + x


class KeywordOnly(Small):
    """Keyword-only arguments."""

    def forward(self, *, query, key, value, attn_mask=None):
        q, k, v = (
            heads_of(w(x), self.num_heads)
            for w, x in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value))
        )
        return self.out_proj(merged(attend(q, k, v, attn_mask)))


class KeywordOnlySwapped(Small):
    """The mistake: keys and values change places."""

    def forward(self, *, query, key, value, attn_mask=None):
        q, k, v = (
            heads_of(w(x), self.num_heads)
            for w, x in ((self.q_proj, query), (self.k_proj, value), (self.v_proj, key))
        )
        return self.out_proj(merged(attend(q, k, v, attn_mask)))


@dataclass
class Returned:
    last_hidden_state: torch.Tensor
    attentions: torch.Tensor | None = None


class ReturnsDataclass(Small):
    """A dataclass whose first member is the output, with the weights as second."""

    def forward(self, x, mask=None, output_attentions=False):
        q, k, v = (heads_of(w(x), self.num_heads) for w in (self.q_proj, self.k_proj, self.v_proj))
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        weights = scores.softmax(-1) if mask is None else scores.masked_fill(~mask, float("-inf")).softmax(-1)
        return Returned(self.out_proj(merged(weights @ v)), weights if output_attentions else None)


class ReturnsMeanWeights(Small):
    """The mistake: the weights it returns are averaged over the heads."""

    def forward(self, x, mask=None):
        q, k, v = (heads_of(w(x), self.num_heads) for w in (self.q_proj, self.k_proj, self.v_proj))
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        weights = scores.softmax(-1) if mask is None else scores.masked_fill(~mask, float("-inf")).softmax(-1)
        return self.out_proj(merged(weights @ v)), weights.mean(1)


class WeightsFirst(Small):
    """The weights come first, the output second."""

    def forward(self, x):
        q, k, v = (heads_of(w(x), self.num_heads) for w in (self.q_proj, self.k_proj, self.v_proj))
        weights = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1)
        return weights, self.out_proj(merged(weights @ v))


@dataclass
class ModelArgs:
    dim: int = 4096
    n_heads: int = 32
    n_kv_heads: int | None = None
    max_seq_len: int = 2048
    norm_eps: float = 1e-5


class Rotated(nn.Module):
    """wq to wo, grouped heads, and rotations that are handed in as complex numbers."""

    def __init__(self, args: ModelArgs):
        super().__init__()
        self.n_heads, self.n_kv_heads = args.n_heads, args.n_kv_heads or args.n_heads
        d = args.dim // args.n_heads
        self.wq, self.wo = (
            nn.Linear(args.dim, args.n_heads * d, bias=False),
            nn.Linear(args.n_heads * d, args.dim, bias=False),
        )
        self.wk, self.wv = (
            nn.Linear(args.dim, self.n_kv_heads * d, bias=False),
            nn.Linear(args.dim, self.n_kv_heads * d, bias=False),
        )

    def turn(self, t, freqs_cis):
        pairs = torch.view_as_complex(t.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * freqs_cis).flatten(3).type_as(t)

    def share(self, t):
        return t.repeat_interleave(self.n_heads // self.n_kv_heads, dim=1)

    def forward(self, x, freqs_cis, mask=None):
        q = self.turn(heads_of(self.wq(x), self.n_heads), freqs_cis)
        k, v = (
            self.turn(heads_of(self.wk(x), self.n_kv_heads), freqs_cis),
            heads_of(self.wv(x), self.n_kv_heads),
        )
        scores = q @ self.share(k).transpose(-2, -1) / q.shape[-1] ** 0.5
        if mask is not None:
            scores = scores + mask
        return self.wo(merged(scores.softmax(-1).type_as(q) @ self.share(v)))


class RotatedTiled(Rotated):
    """The mistake: key/value heads are tiled."""

    def share(self, t):
        return t.repeat(1, self.n_heads // self.n_kv_heads, 1, 1)


class RotaryInside(Small):
    """Rotary positions from a buffer of its own."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        d = d_model // num_heads
        self.register_buffer("inv_freq", 10000.0 ** -(torch.arange(0, d, 2).float() / d), persistent=False)

    def turn(self, t):
        angles = torch.arange(t.shape[2], dtype=self.inv_freq.dtype)[:, None] * self.inv_freq
        cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
        first, second = t.chunk(2, dim=-1)
        return t * cos + torch.cat([-second, first], dim=-1) * sin

    def forward(self, x, mask=None):
        q, k, v = (heads_of(w(x), self.num_heads) for w in (self.q_proj, self.k_proj, self.v_proj))
        return self.out_proj(merged(attend(self.turn(q), self.turn(k), v, mask)))


class RotaryInsideUnscaled(RotaryInside):
    """The mistake inside: scores are not scaled."""

    def forward(self, x, mask=None):
        q, k, v = (heads_of(w(x), self.num_heads) for w in (self.q_proj, self.k_proj, self.v_proj))
        return self.out_proj(merged(attend(self.turn(q), self.turn(k), v, mask, scale=1.0)))


class Cached(Small):
    """A cache of keys and values, taken and returned."""

    def forward(self, x, past=None, use_cache=False):
        q, k, v = (heads_of(w(x), self.num_heads) for w in (self.q_proj, self.k_proj, self.v_proj))
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        output = self.out_proj(merged(attend(q, k, v)))
        return (output, (k, v)) if use_cache else output


class HardDropout(Small):
    """Dropout that its constructor does not take."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.drop = nn.Dropout(0.1)

    def forward(self, x, mask=None):
        return self.drop(self.inner(x, mask))


class DropoutInEval(Small):
    """The mistake: dropout acts in eval mode too."""

    def __init__(self, d_model, num_heads, dropout=0.1):
        super().__init__(d_model, num_heads)
        self.rate = dropout

    def forward(self, x, mask=None):
        return nn.functional.dropout(self.inner(x, mask), self.rate, training=True)
