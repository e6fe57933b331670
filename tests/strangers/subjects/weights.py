"""Ways to keep the weights."""

import torch
from construction import attend, heads_of, merged
from torch import nn


class Concat(nn.Module):
    """w_q, w_k, w_v and w_concat."""

    def __init__(self, d_model, n_head):
        super().__init__()
        self.n_head = n_head
        self.w_q, self.w_k = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.w_v, self.w_concat = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def forward(self, q, k, v, mask=None):
        q, k, v = (heads_of(w(x), self.n_head) for w, x in ((self.w_q, q), (self.w_k, k), (self.w_v, v)))
        return self.w_concat(merged(attend(q, k, v, mask)))


class ConcatKeysForValues(Concat):
    """The mistake: values are projected from the keys' input."""

    def forward(self, q, k, v, mask=None):
        q, k, v = (heads_of(w(x), self.n_head) for w, x in ((self.w_q, q), (self.w_k, k), (self.w_v, k)))
        return self.w_concat(merged(attend(q, k, v, mask)))


class Vision(nn.Module):
    """qkv and proj, `(dim, num_heads=8, qkv_bias=False, attn_drop=0., proj_drop=0.)`, stacked."""

    def __init__(self, dim, num_heads=8, qkv_bias=False, attn_drop=0.0, proj_drop=0.0):
        super().__init__()
        self.num_heads, self.scale = num_heads, (dim // num_heads) ** -0.5
        self.qkv, self.proj = nn.Linear(dim, dim * 3, bias=qkv_bias), nn.Linear(dim, dim)
        self.attn_drop, self.proj_drop = nn.Dropout(attn_drop), nn.Dropout(proj_drop)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        attn = self.attn_drop(((q * self.scale) @ k.transpose(-2, -1)).softmax(dim=-1))
        return self.proj_drop(self.proj((attn @ v).transpose(1, 2).reshape(B, N, C)))


class VisionNoSoftmaxAxis(Vision):
    """The mistake: softmax over the heads."""

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        attn = ((q * self.scale) @ k.transpose(-2, -1)).softmax(dim=1)
        return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))


class Conv1D(nn.Module):
    def __init__(self, n_out, n_in):
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.randn(n_in, n_out) * 0.02),
            nn.Parameter(torch.zeros(n_out)),
        )

    def forward(self, x):
        return x @ self.weight + self.bias


class Transposed(nn.Module):
    """c_attn and c_proj that store `in out`, stacked."""

    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn, self.c_proj = Conv1D(3 * n_embd, n_embd), Conv1D(n_embd, n_embd)

    def forward(self, x, mask=None):
        q, k, v = (heads_of(t, self.n_head) for t in self.c_attn(x).chunk(3, dim=-1))
        return self.c_proj(merged(attend(q, k, v, mask)))


class TransposedLastHead(Transposed):
    """The mistake: the first head is attended with, the others stay as they were."""

    def forward(self, x, mask=None):
        q, k, v = (heads_of(t, self.n_head) for t in self.c_attn(x).chunk(3, dim=-1))
        mixed = attend(q, k, v, mask)
        return self.c_proj(merged(torch.cat([mixed[:, :1], v[:, 1:]], dim=1)))


class Raw(nn.Module):
    """Parameters `heads d_model d_k`, combined by einsum."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        d = d_model // num_heads
        self.W_Q = nn.Parameter(torch.randn(num_heads, d_model, d) * d_model**-0.5)
        self.W_K = nn.Parameter(torch.randn(num_heads, d_model, d) * d_model**-0.5)
        self.W_V = nn.Parameter(torch.randn(num_heads, d_model, d) * d_model**-0.5)
        self.W_O = nn.Parameter(torch.randn(num_heads, d, d_model) * d_model**-0.5)

    def forward(self, x, mask=None):
        q, k, v = (torch.einsum("bsm,hmd->bhsd", x, w) for w in (self.W_Q, self.W_K, self.W_V))
        return torch.einsum("bhsd,hdm->bsm", attend(q, k, v, mask), self.W_O)


class RawKeyTwice(Raw):
    """The mistake: queries are projected by the keys' weights."""

    def forward(self, x, mask=None):
        q, k, v = (torch.einsum("bsm,hmd->bhsd", x, w) for w in (self.W_K, self.W_K, self.W_V))
        return torch.einsum("bhsd,hdm->bsm", attend(q, k, v, mask), self.W_O)


class Head(nn.Module):
    def __init__(self, n_embd, head_size, block_size):
        super().__init__()
        self.key, self.query = (
            nn.Linear(n_embd, head_size, bias=False),
            nn.Linear(n_embd, head_size, bias=False),
        )
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))

    def forward(self, x):
        T = x.shape[1]
        k, q = self.key(x), self.query(x)
        wei = (q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5).masked_fill(
            self.tril[:T, :T] == 0, float("-inf")
        )
        return wei.softmax(dim=-1) @ self.value(x)


class HeadModules(nn.Module):
    """One module per head, laid side by side and projected."""

    def __init__(self, n_embd, n_head, block_size=256):
        super().__init__()
        self.heads = nn.ModuleList([Head(n_embd, n_embd // n_head, block_size) for _ in range(n_head)])
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        return self.proj(torch.cat([h(x) for h in self.heads], dim=-1))


class HeadModulesReversed(HeadModules):
    """The mistake: heads are laid side by side in reverse."""

    def forward(self, x):
        return self.proj(torch.cat([h(x) for h in self.heads[::-1]], dim=-1))


class LinearPerHead(nn.Module):
    """Lists of one linear per head."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        d = d_model // num_heads
        self.queries = nn.ModuleList([nn.Linear(d_model, d) for _ in range(num_heads)])
        self.keys = nn.ModuleList([nn.Linear(d_model, d) for _ in range(num_heads)])
        self.values = nn.ModuleList([nn.Linear(d_model, d) for _ in range(num_heads)])
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):
        found = [
            attend(q(x), k(x), v(x), mask)
            for q, k, v in zip(self.queries, self.keys, self.values, strict=True)
        ]
        return self.out(torch.cat(found, dim=-1))


class LinearPerHeadFirstValue(LinearPerHead):
    """The mistake: every head uses the first head's values."""

    def forward(self, x, mask=None):
        found = [
            attend(q(x), k(x), self.values[0](x), mask) for q, k in zip(self.queries, self.keys, strict=True)
        ]
        return self.out(torch.cat(found, dim=-1))


class InProjection(nn.Module):
    """in_proj_weight and in_proj_bias as bare parameters, out_proj a layer."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.in_proj_weight = nn.Parameter(torch.randn(3 * embed_dim, embed_dim) * embed_dim**-0.5)
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * embed_dim))
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, mask=None):
        projected = nn.functional.linear(x, self.in_proj_weight, self.in_proj_bias)
        q, k, v = (heads_of(t, self.num_heads) for t in projected.chunk(3, dim=-1))
        return self.out_proj(merged(attend(q, k, v, mask)))


class InProjectionScaledTwice(InProjection):
    """The mistake: scaled twice."""

    def forward(self, x, mask=None):
        projected = nn.functional.linear(x, self.in_proj_weight, self.in_proj_bias)
        q, k, v = (heads_of(t, self.num_heads) for t in projected.chunk(3, dim=-1))
        return self.out_proj(merged(attend(q * q.shape[-1] ** -0.5, k, v, mask)))


class OtherLanguage(nn.Module):
    """Names that no table knows; four linears of one shape."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.frage, self.schluessel = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.wert, self.ausgang = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):
        q, k, v = (heads_of(w(x), self.num_heads) for w in (self.frage, self.schluessel, self.wert))
        return self.ausgang(merged(attend(q, k, v, mask)))


class OtherLanguageUnscaled(OtherLanguage):
    """The mistake: not scaled; where its weights are cannot be found by experiment then."""

    def forward(self, x, mask=None):
        q, k, v = (heads_of(w(x), self.num_heads) for w in (self.frage, self.schluessel, self.wert))
        return self.ausgang(merged(attend(q, k, v, mask, scale=1.0)))


class Unknowable(nn.Module):
    """Projections by two layers each: no canonical weights, only relations can be checked."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.enter = nn.ModuleList(
            [
                nn.Sequential(nn.Linear(d_model, d_model), nn.GELU(), nn.Linear(d_model, d_model))
                for _ in range(3)
            ]
        )
        self.leave = nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):
        q, k, v = (heads_of(w(x), self.num_heads) for w in self.enter)
        return self.leave(merged(attend(q, k, v, mask)))


class UnknowableBatchMixed(Unknowable):
    """The mistake: the mean of the batch is taken out of every key."""

    def forward(self, x, mask=None):
        q, k, v = (heads_of(w(x), self.num_heads) for w in self.enter)
        return self.leave(merged(attend(q, k - k.mean(0, keepdim=True), v, mask)))


class Interleaved(nn.Module):
    """One projection, split by head first."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.Wqkv, self.Wo = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):
        q, k, v = self.Wqkv(x).unflatten(-1, (self.num_heads, 3, -1)).permute(3, 0, 2, 1, 4)
        return self.Wo(merged(attend(q, k, v, mask)))


class InterleavedMixed(Interleaved):
    """The mistake: split by head, then the heads are laid out as if `d_k` came first."""

    def forward(self, x, mask=None):
        q, k, v = self.Wqkv(x).unflatten(-1, (self.num_heads, 3, -1)).permute(3, 0, 2, 1, 4)
        mixed = attend(q, k, v, mask)
        return self.Wo(mixed.permute(0, 2, 3, 1).flatten(2))


class BiasesBeside(nn.Module):
    """One matrix without a bias, and the biases of queries and values as parameters of their own."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.q_bias, self.v_bias = (nn.Parameter(torch.zeros(d_model)) for _ in range(2))
        self.proj = nn.Linear(d_model, d_model)

    def forward(self, x):
        bias = torch.cat([self.q_bias, torch.zeros_like(self.q_bias), self.v_bias])
        q, k, v = (self.qkv(x) + bias).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return self.proj((((q @ k.mT) * q.shape[-1] ** -0.5).softmax(-1) @ v).transpose(1, 2).flatten(2))


class BiasesBesideSwapped(BiasesBeside):
    """The mistake: the biases of queries and values are exchanged."""

    def forward(self, x):
        bias = torch.cat([self.v_bias, torch.zeros_like(self.q_bias), self.q_bias])
        q, k, v = (self.qkv(x) + bias).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return self.proj((((q @ k.mT) * q.shape[-1] ** -0.5).softmax(-1) @ v).transpose(1, 2).flatten(2))


class InContainers(nn.Module):
    """Each projection in a container, with what has no weights."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.to_q, self.to_k, self.to_v = (
            nn.Sequential(nn.Linear(d_model, d_model), nn.Identity()) for _ in range(3)
        )
        self.to_out = nn.Sequential(nn.Linear(d_model, d_model), nn.Dropout(0.0))

    def forward(self, x):
        parts = (w(x) for w in (self.to_q, self.to_k, self.to_v))
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in parts)
        return self.to_out((((q @ k.mT) * q.shape[-1] ** -0.5).softmax(-1) @ v).transpose(1, 2).flatten(2))
