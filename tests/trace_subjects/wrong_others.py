"""Wrong layers in other styles: einsum, fused kernels, loops, buffers; written after the blame was."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    mask = "causal"

    def __init__(self, d_model, heads):
        super().__init__()
        self.heads, self.d_k = heads, d_model // heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.proj = nn.Linear(d_model, d_model)
        self.register_buffer("tril", torch.ones(64, 64, dtype=torch.bool).tril())

    def load(self, weights):
        with torch.no_grad():
            matrix, bias = weights.fused("stacked")
            self.qkv.weight.copy_(matrix)
            self.qkv.bias.copy_(bias)
            self.proj.weight.copy_(weights.W_o)
            self.proj.bias.copy_(weights.b_o)


class SplitByWrongWidth(Layer):
    def forward(self, x, seen):
        b, t, c = x.shape
        qkv = self.qkv(x).view(b, t, self.heads, 3, self.d_k)  # departs: split_heads
        q, k, v = qkv.permute(3, 0, 2, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, c))


class KernelUpperInsteadOfMask(Layer):
    mask = "some"

    def forward(self, x, seen):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, self.d_k).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # departs: mask_scores
        return self.proj(y.transpose(1, 2).reshape(b, t, c))


class KernelHeadsOnTheWrongAxis(Layer):
    def forward(self, x, seen):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, self.d_k).unbind(2)
        y = F.scaled_dot_product_attention(q, k, v)  # departs: scores
        return self.proj(y.reshape(b, t, c))


class EinsumMergesWrongly(Layer):
    def forward(self, x, seen):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, self.d_k).unbind(2)
        scores = torch.einsum("bihd,bjhd->bhij", q, k) * self.d_k**-0.5
        weights = scores.masked_fill(~self.tril[:t, :t], -torch.inf).softmax(-1)
        mixed = torch.einsum("bhij,bjhd->bidh", weights, v)
        return self.proj(mixed.flatten(2))  # departs: merge_heads


class EinsumSumsTheWrongAxis(Layer):
    def forward(self, x, seen):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, self.d_k).unbind(2)
        scores = torch.einsum("bihd,bjhd->bhij", q, k) * self.d_k**-0.5
        weights = scores.masked_fill(~self.tril[:t, :t], -torch.inf).softmax(-1)
        mixed = torch.einsum("bhij,bihd->bjhd", weights, v)  # departs: aggregate_values
        return self.proj(mixed.flatten(2))


class EinsumMixesHeads(Layer):
    def forward(self, x, seen):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, self.d_k).unbind(2)
        scores = torch.einsum("bihd,bjgd->bhij", q, k) * self.d_k**-0.5  # departs: scores
        weights = scores.masked_fill(~self.tril[:t, :t], -torch.inf).softmax(-1)
        return self.proj(torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2))


class LoopForgetsScale(Layer):
    def forward(self, x, seen):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, self.d_k).permute(2, 3, 0, 1, 4)
        out = []
        for h in range(self.heads):
            scores = (q[h] @ k[h].mT).masked_fill(~self.tril[:t, :t], -torch.inf)
            out.append(scores.softmax(-1) @ v[h])  # departs: scale_scores
        return self.proj(torch.cat(out, -1))


class LoopForgetsMask(Layer):
    def forward(self, x, seen):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, self.d_k).permute(2, 3, 0, 1, 4)
        out = []
        for h in range(self.heads):
            scores = q[h] @ k[h].mT / math.sqrt(self.d_k)
            out.append(scores.softmax(-1) @ v[h])  # departs: mask_scores
        return self.proj(torch.cat(out, -1))


class LoopSoftmaxOverQueries(Layer):
    def forward(self, x, seen):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, self.d_k).permute(2, 3, 0, 1, 4)
        out = []
        for h in range(self.heads):
            scores = (q[h] @ k[h].mT / math.sqrt(self.d_k)).masked_fill(~self.tril[:t, :t], -torch.inf)
            weights = torch.softmax(scores, dim=1)  # departs: normalise
            out.append(weights @ v[h])
        return self.proj(torch.cat(out, -1))


class LoopReadsOneHead(Layer):
    def forward(self, x, seen):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, self.d_k).permute(2, 3, 0, 1, 4)
        out = []
        for h in range(self.heads):
            scores = q[h] @ k[0].mT / math.sqrt(self.d_k)  # departs: scores
            out.append(scores.masked_fill(~self.tril[:t, :t], -torch.inf).softmax(-1) @ v[h])
        return self.proj(torch.cat(out, -1))


class LoopReversed(Layer):
    def forward(self, x, seen):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, self.d_k).permute(2, 3, 0, 1, 4)
        out = []
        for h in reversed(range(self.heads)):
            scores = q[h] @ k[h].mT / math.sqrt(self.d_k)
            out.append(scores.masked_fill(~self.tril[:t, :t], -torch.inf).softmax(-1) @ v[h])
        return self.proj(torch.cat(out, -1))  # departs: merge_heads


class MaskStrict(Layer):
    def forward(self, x, seen):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, self.d_k).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT * self.d_k**-0.5
        scores = scores.masked_fill(self.tril[:t, :t].logical_not().fliplr(), -1e9)  # departs: mask_scores
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))


class MaskOfOnesAdded(Layer):
    def forward(self, x, seen):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, self.d_k).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT * self.d_k**-0.5
        scores = scores + (1.0 - self.tril[:t, :t].double())  # departs: mask_scores
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))


class MaskBeforeScale(Layer):
    def forward(self, x, seen):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, self.d_k).permute(2, 0, 3, 1, 4)
        scores = (q @ k.mT).masked_fill(~self.tril[:t, :t], -1.0) * self.d_k**-0.5  # departs: mask_scores
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))


class RenormalisedTwice(Layer):
    def forward(self, x, seen):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, self.d_k).permute(2, 0, 3, 1, 4)
        scores = (q @ k.mT * self.d_k**-0.5).masked_fill(~self.tril[:t, :t], -torch.inf)
        weights = scores.softmax(-1)
        weights = weights.softmax(-1)  # departs: normalise
        return self.proj((weights @ v).transpose(1, 2).reshape(b, t, c))


class ScaleOnKeysAndScores(Layer):
    def forward(self, x, seen):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, self.d_k).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q * self.d_k**-0.5, k, v, is_causal=True)  # departs: scale_scores
        return self.proj(y.transpose(1, 2).reshape(b, t, c))


class Residual(Layer):
    def forward(self, x, seen):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, self.d_k).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.proj(y.transpose(1, 2).reshape(b, t, c))  # departs: project_output


class InputScaled(Layer):
    def forward(self, x, seen):
        b, t, c = x.shape
        x = F.layer_norm(x, (c,))  # departs: project_queries
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, self.d_k).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, c))


class FirstKeyDropped(Layer):
    def forward(self, x, seen):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, self.d_k).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT * self.d_k**-0.5
        scores = scores.masked_fill(~self.tril[:t, :t], -torch.inf)
        weights = scores[..., :-1].softmax(-1)  # departs: normalise
        return self.proj((weights @ v[:, :, :-1]).transpose(1, 2).reshape(b, t, c))


class TransposedTwice(Layer):
    def forward(self, x, seen):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, self.d_k).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).transpose(1, 2).reshape(b, t, c)  # departs: merge_heads
        return self.proj(y)
