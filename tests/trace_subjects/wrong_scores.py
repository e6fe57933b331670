"""Layers that go wrong between the scores and the mixed values; the comment marks the line and the row."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    def __init__(self, d_model, heads):
        super().__init__()
        self.heads, self.d_k = heads, d_model // heads
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(d_model, d_model) for _ in range(4))

    def project(self, x):
        return (
            m(x).unflatten(-1, (self.heads, self.d_k)).transpose(1, 2) for m in (self.W_q, self.W_k, self.W_v)
        )

    def merge(self, t):
        return self.W_o(t.transpose(1, 2).flatten(2))


class Unscaled(Layer):
    def forward(self, x, seen):
        q, k, v = self.project(x)
        scores = (q @ k.mT).masked_fill(~seen, -torch.inf)
        weights = scores.softmax(-1)  # departs: scale_scores
        return self.merge(weights @ v)


class ScaledByTheModel(Layer):
    def forward(self, x, seen):
        q, k, v = self.project(x)
        scores = q @ k.mT
        scores = scores / math.sqrt(self.heads * self.d_k)  # departs: scale_scores
        return self.merge(scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v)


class ScaledWithoutRoot(Layer):
    def forward(self, x, seen):
        q, k, v = self.project(x)
        scores = q @ k.mT / self.d_k  # departs: scale_scores
        return self.merge(scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v)


class ScaledTwice(Layer):
    def forward(self, x, seen):
        q, k, v = self.project(x)
        q = q / math.sqrt(self.d_k)
        scores = q @ k.mT
        scores /= math.sqrt(self.d_k)  # departs: scale_scores
        return self.merge(scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v)


class ScaledAfterSoftmax(Layer):
    def forward(self, x, seen):
        q, k, v = self.project(x)
        scores = (q @ k.mT).masked_fill(~seen, -torch.inf)
        weights = scores.softmax(-1)  # departs: scale_scores
        return self.merge(weights / math.sqrt(self.d_k) @ v)


class SoftmaxOverQueries(Layer):
    def forward(self, x, seen):
        q, k, v = self.project(x)
        scores = (q @ k.mT / math.sqrt(self.d_k)).masked_fill(~seen, -torch.inf)
        weights = F.softmax(scores, dim=-2)  # departs: normalise
        return self.merge(weights.nan_to_num() @ v)


class SoftmaxOverHeads(Layer):
    def forward(self, x, seen):
        q, k, v = self.project(x)
        scores = (q @ k.mT / math.sqrt(self.d_k)).masked_fill(~seen, -1e30)
        weights = F.softmax(scores, dim=1)  # departs: normalise
        return self.merge(weights @ v)


class OwnSoftmaxOverQueries(Layer):
    def forward(self, x, seen):
        q, k, v = self.project(x)
        scores = (q @ k.mT / math.sqrt(self.d_k)).masked_fill(~seen, -torch.inf)
        weights = torch.exp(scores - scores.amax(-1, keepdim=True))
        total = weights.sum(-2, keepdim=True)  # departs: normalise
        return self.merge(weights / total @ v)


class NeverDivided(Layer):
    def forward(self, x, seen):
        q, k, v = self.project(x)
        scores = (q @ k.mT / math.sqrt(self.d_k)).masked_fill(~seen, -torch.inf)
        weights = torch.exp(scores - scores.amax(-1, keepdim=True))  # departs: normalise
        return self.merge(weights @ v)


class NoSoftmax(Layer):
    def forward(self, x, seen):
        q, k, v = self.project(x)
        scores = (q @ k.mT / math.sqrt(self.d_k)).masked_fill(~seen, -1e9)
        return self.merge(scores @ v)  # departs: normalise


class QueriesAndKeysExchanged(Layer):
    def forward(self, x, seen):
        q, k, v = self.project(x)
        scores = k @ q.mT / math.sqrt(self.d_k)  # departs: scores
        return self.merge(scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v)


class ValuesByTransposedWeights(Layer):
    def forward(self, x, seen):
        q, k, v = self.project(x)
        weights = (q @ k.mT / math.sqrt(self.d_k)).masked_fill(~seen, -torch.inf).softmax(-1)
        mixed = weights.mT @ v  # departs: aggregate_values
        return self.merge(mixed)


class MixesKeys(Layer):
    def forward(self, x, seen):
        q, k, _ = self.project(x)
        weights = (q @ k.mT / math.sqrt(self.d_k)).masked_fill(~seen, -torch.inf).softmax(-1)
        mixed = weights @ k  # departs: aggregate_values
        return self.merge(mixed)


class MaskInverted(Layer):
    def forward(self, x, seen):
        q, k, v = self.project(x)
        scores = q @ k.mT / math.sqrt(self.d_k)
        scores = scores.masked_fill(seen, -1e9)  # departs: mask_scores
        return self.merge(scores.softmax(-1) @ v)


class MaskIgnored(Layer):
    def forward(self, x, seen):
        q, k, v = self.project(x)
        scores = q @ k.mT / math.sqrt(self.d_k)
        weights = scores.softmax(-1)  # departs: mask_scores
        return self.merge(weights @ v)


class MaskAfterSoftmax(Layer):
    def forward(self, x, seen):
        q, k, v = self.project(x)
        scores = q @ k.mT / math.sqrt(self.d_k)
        weights = scores.softmax(-1)  # departs: mask_scores
        weights = weights.masked_fill(~seen, 0.0)
        return self.merge(weights @ v)


class MaskAdded(Layer):
    def forward(self, x, seen):
        q, k, v = self.project(x)
        scores = q @ k.mT / math.sqrt(self.d_k)
        scores = scores + seen  # departs: mask_scores
        return self.merge(scores.softmax(-1) @ v)


class MaskMultiplied(Layer):
    def forward(self, x, seen):
        q, k, v = self.project(x)
        scores = q @ k.mT / math.sqrt(self.d_k)
        scores = scores * seen  # departs: mask_scores
        return self.merge(scores.softmax(-1) @ v)


class MaskFillTooSmall(Layer):
    def forward(self, x, seen):
        q, k, v = self.project(x)
        scores = q @ k.mT / math.sqrt(self.d_k)
        scores = scores.masked_fill(~seen, -1.0)  # departs: mask_scores
        return self.merge(scores.softmax(-1) @ v)


class MaskResultDropped(Layer):
    def forward(self, x, seen):
        q, k, v = self.project(x)
        scores = q @ k.mT / math.sqrt(self.d_k)
        scores.masked_fill(~seen, -torch.inf)
        weights = torch.softmax(scores, -1)  # departs: mask_scores
        return self.merge(weights @ v)


class MaskTransposed(Layer):
    def forward(self, x, seen):
        q, k, v = self.project(x)
        scores = q @ k.mT / math.sqrt(self.d_k)
        scores = scores.masked_fill(~seen.mT, -1e9)  # departs: mask_scores
        return self.merge(scores.softmax(-1) @ v)


class CausalOffByOne(Layer):
    mask = "causal"

    def forward(self, x, seen):
        q, k, v = self.project(x)
        scores = q @ k.mT / math.sqrt(self.d_k)
        ahead = torch.ones_like(scores, dtype=torch.bool).triu(2)
        scores = scores.masked_fill(ahead, -torch.inf)  # departs: mask_scores
        return self.merge(scores.softmax(-1) @ v)


class AntiCausal(Layer):
    mask = "causal"

    def forward(self, x, seen):
        q, k, v = self.project(x)
        scores = q @ k.mT / math.sqrt(self.d_k)
        scores = scores.masked_fill(torch.ones_like(scores).tril() == 0, 0.0)  # departs: mask_scores
        return self.merge(scores.softmax(-1) @ v)


class FiniteFill(Layer):
    mask = "dead"

    def forward(self, x, seen):
        q, k, v = self.project(x)
        scores = q @ k.mT / math.sqrt(self.d_k)
        scores = scores.masked_fill(~seen, -1e9)  # departs: mask_scores
        return self.merge(scores.softmax(-1) @ v)


class DeadRowsNan(Layer):
    mask = "dead"

    def forward(self, x, seen):
        q, k, v = self.project(x)
        scores = (q @ k.mT / math.sqrt(self.d_k)).masked_fill(~seen, -torch.inf)
        weights = scores.softmax(-1)  # departs: normalise
        return self.merge(weights @ v)


class DropoutInEval(Layer):
    def forward(self, x, seen):
        q, k, v = self.project(x)
        weights = (q @ k.mT / math.sqrt(self.d_k)).masked_fill(~seen, -torch.inf).softmax(-1)
        weights = F.dropout(weights, 0.3)  # departs: drop_weights
        return self.merge(weights @ v)


class KernelUnscaled(Layer):
    def forward(self, x, seen):
        q, k, v = self.project(x)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=1)  # departs: scale_scores
        return self.merge(mixed)


class KernelMaskIgnored(Layer):
    def forward(self, x, seen):
        q, k, v = self.project(x)
        return self.merge(F.scaled_dot_product_attention(q, k, v))  # departs: mask_scores


class KernelMaskInverted(Layer):
    mask = "causal"

    def forward(self, x, seen):
        q, k, v = self.project(x)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=~seen)  # departs: mask_scores
        return self.merge(mixed.nan_to_num())


class KernelDropout(Layer):
    def forward(self, x, seen):
        q, k, v = self.project(x)
        mixed = F.scaled_dot_product_attention(q, k, v, seen, dropout_p=0.4)  # departs: drop_weights
        return self.merge(mixed)


class InPlaceOnSharedScores(Layer):
    def forward(self, x, seen):
        q, k, v = self.project(x)
        scores = q @ k.mT / math.sqrt(self.d_k)
        raw = scores.view_as(scores)
        raw.masked_fill_(seen, 0.0)  # departs: mask_scores
        return self.merge(scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v)


class OnlineWithoutRescaling(Layer):
    def forward(self, x, seen):
        q, k, v = self.project(x)
        scores = (q @ k.mT / math.sqrt(self.d_k)).masked_fill(~seen, -1e30)
        top, total, out = scores[..., :1] * 0 - 1e30, 0.0, 0.0
        for part, values in zip(scores.split(4, -1), v.split(4, -2), strict=True):
            top = torch.maximum(top, part.amax(-1, keepdim=True))
            p = torch.exp(part - top)  # departs: normalise
            total, out = total + p.sum(-1, keepdim=True), out + p @ values
        return self.merge(out / total)
