"""Layers that go wrong while they project, split, share or merge; the comment marks the line and the row."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    def __init__(self, d_model, heads, kv_heads=None):
        super().__init__()
        self.heads, self.kv_heads, self.d_k = heads, kv_heads or heads, d_model // heads
        self.W_q, self.W_o = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.W_k, self.W_v = (nn.Linear(d_model, self.kv_heads * self.d_k) for _ in range(2))

    def split(self, t):
        return t.view(t.shape[0], t.shape[1], -1, self.d_k).transpose(1, 2)

    def attend(self, q, k, v, seen):
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.d_k)
        if seen is not None:
            scores = scores.masked_fill(~seen, float("-inf"))
        return scores.softmax(-1) @ v

    def merge(self, t):
        return self.W_o(t.transpose(1, 2).flatten(2))


class BareView(Layer):
    def forward(self, x, seen=None):
        b, s, _ = x.shape
        q = self.W_q(x).view(b, self.heads, s, self.d_k)  # departs: split_heads
        k = self.W_k(x).view(b, self.heads, s, self.d_k)
        v = self.W_v(x).view(b, self.heads, s, self.d_k)
        return self.merge(self.attend(q, k, v, seen))


class BareViewOfValues(Layer):
    def forward(self, x, seen=None):
        b, s, _ = x.shape
        q, k = self.split(self.W_q(x)), self.split(self.W_k(x))
        v = self.W_v(x).reshape(b, self.heads, s, self.d_k)  # departs: split_heads
        return self.merge(self.attend(q, k, v, seen))


class BareViewBothWays(Layer):
    def forward(self, x, seen=None):
        b, s, _ = x.shape
        q = self.W_q(x).view(b, self.heads, s, self.d_k)  # departs: split_heads
        k = self.W_k(x).view(b, self.heads, s, self.d_k)
        v = self.W_v(x).view(b, self.heads, s, self.d_k)
        return self.W_o(self.attend(q, k, v, seen).reshape(b, s, -1))


class HeadsLastInSplit(Layer):
    def forward(self, x, seen=None):
        b, s, _ = x.shape
        q = self.W_q(x).view(b, s, self.d_k, self.heads).permute(0, 3, 1, 2)  # departs: split_heads
        k = self.W_k(x).view(b, s, self.d_k, self.heads).permute(0, 3, 1, 2)
        v = self.W_v(x).view(b, s, self.d_k, self.heads).permute(0, 3, 1, 2)
        return self.merge(self.attend(q, k, v, seen))


class TransposedTooLate(Layer):
    def forward(self, x, seen=None):
        b, s, _ = x.shape
        q = self.W_q(x).view(b, s, self.heads, self.d_k)
        q = q.reshape(b, self.heads, s, self.d_k)  # departs: heads_first
        k, v = self.split(self.W_k(x)), self.split(self.W_v(x))
        return self.merge(self.attend(q, k, v, seen))


class MergeWithoutTranspose(Layer):
    def forward(self, x, seen=None):
        b, s, _ = x.shape
        mixed = self.attend(self.split(self.W_q(x)), self.split(self.W_k(x)), self.split(self.W_v(x)), seen)
        merged = mixed.contiguous().view(b, s, -1)  # departs: merge_heads
        return self.W_o(merged)


class MergeHeadsLast(Layer):
    def forward(self, x, seen=None):
        mixed = self.attend(self.split(self.W_q(x)), self.split(self.W_k(x)), self.split(self.W_v(x)), seen)
        merged = mixed.permute(0, 2, 3, 1).flatten(2)  # departs: merge_heads
        return self.W_o(merged)


class MeanOverHeads(Layer):
    def forward(self, x, seen=None):
        mixed = self.attend(self.split(self.W_q(x)), self.split(self.W_k(x)), self.split(self.W_v(x)), seen)
        merged = mixed.mean(1).repeat(1, 1, self.heads)  # departs: merge_heads
        return self.W_o(merged)


class KeysProjectedByQueries(Layer):
    def forward(self, x, seen=None):
        q = self.split(self.W_q(x))
        k = self.split(self.W_q(x))  # departs: project_keys
        v = self.split(self.W_v(x))
        return self.merge(self.attend(q, k, v, seen))


class ValuesProjectedByKeys(Layer):
    def forward(self, x, seen=None):
        q = self.split(self.W_q(x))
        k = self.split(self.W_k(x))
        v = self.split(self.W_k(x))  # departs: project_values
        return self.merge(self.attend(q, k, v, seen))


class QueriesAndKeysExchanged(Layer):
    def forward(self, x, seen=None):
        q = self.split(self.W_k(x))  # departs: project_queries
        k = self.split(self.W_q(x))
        v = self.split(self.W_v(x))
        return self.merge(self.attend(q, k, v, seen))


class ValuesNotProjected(Layer):
    def forward(self, x, seen=None):
        q, k = self.split(self.W_q(x)), self.split(self.W_k(x))
        v = self.split(x)  # departs: project_values
        return self.merge(self.attend(q, k, v, seen))


class WeightNotTransposed(Layer):
    def forward(self, x, seen=None):
        q = self.split(x @ self.W_q.weight + self.W_q.bias)  # departs: project_queries
        k, v = self.split(self.W_k(x)), self.split(self.W_v(x))
        return self.merge(self.attend(q, k, v, seen))


class QueryBiasForgotten(Layer):
    def forward(self, x, seen=None):
        q = self.split(F.linear(x, self.W_q.weight))  # departs: project_queries
        k, v = self.split(self.W_k(x)), self.split(self.W_v(x))
        return self.merge(self.attend(q, k, v, seen))


class ValueBiasForgotten(Layer):
    def forward(self, x, seen=None):
        q, k = self.split(self.W_q(x)), self.split(self.W_k(x))
        v = self.split(x @ self.W_v.weight.T)  # departs: project_values
        return self.merge(self.attend(q, k, v, seen))


class OutputProjectionForgotten(Layer):
    def forward(self, x, seen=None):
        mixed = self.attend(self.split(self.W_q(x)), self.split(self.W_k(x)), self.split(self.W_v(x)), seen)
        return mixed.transpose(1, 2).flatten(2)  # departs: project_output


class OutputBiasForgotten(Layer):
    def forward(self, x, seen=None):
        mixed = self.attend(self.split(self.W_q(x)), self.split(self.W_k(x)), self.split(self.W_v(x)), seen)
        return F.linear(mixed.transpose(1, 2).flatten(2), self.W_o.weight)  # departs: project_output


class OutputWeightNotTransposed(Layer):
    def forward(self, x, seen=None):
        mixed = self.attend(self.split(self.W_q(x)), self.split(self.W_k(x)), self.split(self.W_v(x)), seen)
        out = mixed.transpose(1, 2).flatten(2) @ self.W_o.weight  # departs: project_output
        return out + self.W_o.bias


class OutputTransposed(Layer):
    def forward(self, x, seen=None):
        mixed = self.attend(self.split(self.W_q(x)), self.split(self.W_k(x)), self.split(self.W_v(x)), seen)
        return self.merge(mixed).transpose(0, 1)  # departs: project_output


class LoopWithStridedHeads(Layer):
    def forward(self, x, seen=None):
        q, k, v = self.W_q(x), self.W_k(x), self.W_v(x)
        parts = []
        for h in range(self.heads):
            mine = q[..., h :: self.heads]  # departs: split_heads
            rows = slice(h * self.d_k, (h + 1) * self.d_k)
            part = self.attend(mine[:, None], k[:, None, :, rows], v[:, None, :, rows], seen)
            parts.append(part[:, 0])
        return self.W_o(torch.cat(parts, -1))


class StackedInsteadOfCat(Layer):
    def forward(self, x, seen=None):
        mixed = self.attend(self.split(self.W_q(x)), self.split(self.W_k(x)), self.split(self.W_v(x)), seen)
        parts = [mixed[:, h] for h in range(self.heads)]
        merged = torch.stack(parts, -1).flatten(2)  # departs: merge_heads
        return self.W_o(merged)


class ForgottenAliasing(Layer):
    def forward(self, x, seen=None):
        q, k, v = self.split(self.W_q(x)), self.split(self.W_k(x)), self.split(self.W_v(x))
        flat = v.view_as(v)
        flat += 1.0  # departs: aggregate_values
        return self.merge(self.attend(q, k, v, seen))


class Fused(Layer):
    layout = "stacked"

    def __init__(self, d_model, heads, kv_heads=None):
        super().__init__(d_model, heads)
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def load(self, weights):
        with torch.no_grad():
            matrix, bias = weights.fused(self.layout)
            self.qkv.weight.copy_(matrix)
            self.qkv.bias.copy_(bias)
            self.W_o.weight.copy_(weights.W_o)
            self.W_o.bias.copy_(weights.b_o)


class StackedReadAsInterleaved(Fused):
    def forward(self, x, seen=None):
        qkv = self.qkv(x).view(*x.shape[:2], self.heads, 3 * self.d_k)  # departs: split_heads
        q, k, v = qkv.transpose(1, 2).chunk(3, dim=-1)
        return self.merge(self.attend(q, k, v, seen))


class InterleavedReadAsStacked(Fused):
    layout = "interleaved"

    def forward(self, x, seen=None):
        q, k, v = self.qkv(x).chunk(3, dim=-1)  # departs: split_heads
        return self.merge(self.attend(self.split(q), self.split(k), self.split(v), seen))


class UnpackedInAnotherOrder(Fused):
    def forward(self, x, seen=None):
        k, q, v = self.qkv(x).chunk(3, dim=-1)  # departs: split_heads
        return self.merge(self.attend(self.split(q), self.split(k), self.split(v), seen))


class KeysAndValuesExchanged(Fused):
    def forward(self, x, seen=None):
        q, v, k = self.qkv(x).chunk(3, dim=-1)  # departs: split_heads
        return self.merge(self.attend(self.split(q), self.split(k), self.split(v), seen))


class GroupedTiled(Layer):
    def forward(self, x, seen=None):
        group = self.heads // self.kv_heads
        q, k, v = self.split(self.W_q(x)), self.split(self.W_k(x)), self.split(self.W_v(x))
        k = k.repeat(1, group, 1, 1)  # departs: share_heads
        v = v.repeat(1, group, 1, 1)
        return self.merge(self.attend(q, k, v, seen))


class GroupedViewTheOtherWay(Layer):
    def forward(self, x, seen=None):
        b, s, _ = x.shape
        group = self.heads // self.kv_heads
        q, k, v = self.split(self.W_q(x)), self.split(self.W_k(x)), self.split(self.W_v(x))
        q = q.view(b, group, self.kv_heads, s, self.d_k)  # departs: share_heads
        mixed = (q @ k[:, None].mT / math.sqrt(self.d_k)).softmax(-1) @ v[:, None]
        return self.merge(mixed.flatten(1, 2))
