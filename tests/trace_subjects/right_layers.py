"""Right implementations, each in another way: none of them may be blamed for anything."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    def __init__(self, d_model, heads, bias=True):
        super().__init__()
        self.heads, self.d_k = heads, d_model // heads
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(d_model, d_model, bias) for _ in range(4))

    def split(self, t):
        return t.view(*t.shape[:2], self.heads, self.d_k).transpose(1, 2)

    def merge(self, t):
        return self.W_o(t.transpose(1, 2).flatten(2))


def attend(q, k, v, seen):
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    if seen is not None:
        dead = ~seen.any(-1, keepdim=True)
        scores = scores.masked_fill(~seen, float("-inf"))
        return torch.where(dead, 0.0, scores.masked_fill(dead, 0.0).softmax(-1)) @ v
    return scores.softmax(-1) @ v


class Plain(Layer):
    def forward(self, x, seen=None):
        return self.merge(
            attend(self.split(self.W_q(x)), self.split(self.W_k(x)), self.split(self.W_v(x)), seen)
        )


class Einsum(Layer):
    def forward(self, x, seen=None):
        w = [m.weight.view(self.heads, self.d_k, -1) for m in (self.W_q, self.W_k, self.W_v)]
        b = [m.bias.view(self.heads, 1, self.d_k) for m in (self.W_q, self.W_k, self.W_v)]
        q, k, v = (torch.einsum("bsm,hdm->bhsd", x, weight) + bias for weight, bias in zip(w, b, strict=True))
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(self.d_k)
        if seen is not None:
            scores = torch.where(seen, scores, torch.full_like(scores, -torch.inf))
        weights = torch.nan_to_num(scores.softmax(-1))
        mixed = torch.einsum("bhqk,bhkd->bqhd", weights, v)
        return (
            torch.einsum("bqhd,mhd->bqm", mixed, self.W_o.weight.view(-1, self.heads, self.d_k))
            + self.W_o.bias
        )


class Fused(Layer):
    def forward(self, x, seen=None):
        mixed = F.scaled_dot_product_attention(
            self.split(self.W_q(x)), self.split(self.W_k(x)), self.split(self.W_v(x)), attn_mask=seen
        )
        return self.merge(mixed if seen is None else mixed.masked_fill(~seen.any(-1, keepdim=True), 0.0))


class Loop(Layer):
    def forward(self, x, seen=None):
        parts = []
        for h in range(self.heads):
            rows = slice(h * self.d_k, (h + 1) * self.d_k)
            q, k, v = (F.linear(x, m.weight[rows], m.bias[rows]) for m in (self.W_q, self.W_k, self.W_v))
            parts.append(attend(q, k, v, None if seen is None else seen.expand(x.shape[0], 1, -1, -1)[:, 0]))
        return self.W_o(torch.cat(parts, dim=-1))


class WithoutConcat(Layer):
    def forward(self, x, seen=None):
        q, k, v = (self.split(m(x)) for m in (self.W_q, self.W_k, self.W_v))
        mixed = attend(q, k, v, seen)
        out = self.W_o.bias.expand(x.shape).clone()
        for h in range(self.heads):
            out += mixed[:, h] @ self.W_o.weight[:, h * self.d_k : (h + 1) * self.d_k].T
        return out


class Buffer(Layer):
    def forward(self, x, seen=None):
        q, k, v = (self.split(m(x)) for m in (self.W_q, self.W_k, self.W_v))
        q *= self.d_k**-0.5
        out = torch.zeros(x.shape[0], x.shape[1], self.heads, self.d_k, dtype=x.dtype)
        for h in range(self.heads):
            scores = q[:, h] @ k[:, h].mT
            if seen is not None:
                scores.masked_fill_(~seen.expand(x.shape[0], 1, -1, -1)[:, 0], -torch.inf)
            scores -= scores.amax(-1, keepdim=True).clamp(min=-1e30)
            scores.exp_()
            scores /= scores.sum(-1, keepdim=True).clamp(min=1e-30)
            out[:, :, h] = scores @ v[:, h]
        return self.W_o(out.flatten(2))


class Blockwise(Layer):
    block = 4

    def forward(self, x, seen=None):
        q, k, v = (self.split(m(x)) for m in (self.W_q, self.W_k, self.W_v))
        q = q / math.sqrt(self.d_k)
        top = torch.full((*q.shape[:-1], 1), -1e30, dtype=x.dtype)
        total, out = torch.zeros_like(top), torch.zeros_like(q)
        for start in range(0, k.shape[2], self.block):
            scores = q @ k[:, :, start : start + self.block].transpose(-2, -1)
            if seen is not None:
                part = seen.expand(*scores.shape[:2], *seen.shape[-2:])[..., start : start + self.block]
                scores = scores.masked_fill(~part, -torch.inf)
            new = torch.maximum(top, scores.amax(-1, keepdim=True))
            p, old = torch.exp(scores - new), torch.exp(top - new)
            total = total * old + p.sum(-1, keepdim=True)
            out = out * old + p @ v[:, :, start : start + self.block]
            top = new
        return self.merge(out / total.clamp(min=1e-30))


class KeyBiasDropped(Layer):
    def forward(self, x, seen=None):
        k = self.split(F.linear(x, self.W_k.weight))
        return self.merge(attend(self.split(self.W_q(x)), k, self.split(self.W_v(x)), seen))


class ScaleOnBoth(Layer):
    def forward(self, x, seen=None):
        root = self.d_k**-0.25
        q, k = self.split(self.W_q(x) * root), self.split(self.W_k(x) * root)
        scores = (k @ q.mT).mT
        if seen is not None:
            scores = scores + torch.zeros_like(scores).masked_fill(~seen, -torch.inf)
        weights = torch.exp2((scores - scores.amax(-1, keepdim=True).clamp(min=-1e30)) * math.log2(math.e))
        mixed = weights @ self.split(self.W_v(x))
        return self.merge(mixed / weights.sum(-1, keepdim=True).clamp(min=1e-30))


class BatchTimesHeads(Layer):
    def forward(self, x, seen=None):
        b, s, _ = x.shape
        q, k, v = (
            self.split(m(x)).reshape(b * self.heads, s, self.d_k) for m in (self.W_q, self.W_k, self.W_v)
        )
        scores = torch.bmm(q, k.transpose(1, 2)) / self.d_k**0.5
        if seen is not None:
            flat = seen.expand(b, self.heads, s, s).reshape(b * self.heads, s, s)
            scores = scores.masked_fill(~flat, -torch.inf)
        mixed = torch.bmm(scores.softmax(-1).nan_to_num(), v)
        return self.W_o(mixed.view(b, self.heads, s, self.d_k).permute(0, 2, 1, 3).reshape(b, s, -1))


class Stacked(Layer):
    layout = "stacked"

    def __init__(self, d_model, heads, bias=True):
        super().__init__(d_model, heads, bias)
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def load(self, weights):
        with torch.no_grad():
            matrix, bias = weights.fused(self.layout)
            self.qkv.weight.copy_(matrix)
            self.qkv.bias.copy_(bias)
            self.W_o.weight.copy_(weights.W_o)
            self.W_o.bias.copy_(weights.b_o)

    def forward(self, x, seen=None):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        return self.merge(attend(self.split(q), self.split(k), self.split(v), seen))


class Interleaved(Stacked):
    layout = "interleaved"

    def forward(self, x, seen=None):
        qkv = self.qkv(x).reshape(*x.shape[:2], self.heads, 3 * self.d_k)
        q, k, v = (t.transpose(1, 2) for t in torch.chunk(qkv, 3, dim=-1))
        return self.merge(attend(q, k, v, seen))


class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v

    @staticmethod
    def backward(ctx, grad):
        raise NotImplementedError


class OwnFunction(Layer):
    def forward(self, x, seen=None):
        return self.merge(Function.apply(*(self.split(m(x)) for m in (self.W_q, self.W_k, self.W_v))))


class Permuted(Layer):
    """Heads last inside, undone before the weights meet: another order, the same function."""

    def forward(self, x, seen=None):
        q, k, v = (
            m(x).unflatten(-1, (self.heads, -1)).permute(2, 0, 3, 1) for m in (self.W_q, self.W_k, self.W_v)
        )
        scores = q.transpose(-2, -1) @ k * self.d_k**-0.5
        if seen is not None:
            scores = scores.masked_fill(~seen.expand(x.shape[0], 1, -1, -1)[:, 0], -torch.inf)
        mixed = v @ scores.softmax(-1).nan_to_num().transpose(-2, -1)
        return self.W_o(mixed.permute(1, 3, 0, 2).flatten(2))
