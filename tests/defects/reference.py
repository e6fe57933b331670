"""A right core and a right layer in steps named after the contract's stages; a defect replaces one step."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

INF = float("inf")


@dataclass
class Call:
    """The options of one call, and room for what a step wants to hand to a later one."""

    mask: Tensor | None = None
    bias: Tensor | None = None
    causal: bool = False
    window: tuple[int, int] | None = None
    softcap: float | None = None
    scale: float | None = None
    dropout: float = 0.0
    return_weights: bool = False
    notes: dict[str, Any] = field(default_factory=dict)


def wide(tensor: Tensor) -> Tensor:
    """Return the tensor in at least float32."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def zero_dead_rows(scores: Tensor) -> Tensor:
    """Return the softmax over keys; a row of -inf becomes zeros, in the gradient as well."""
    dead = (scores == -INF).all(-1, keepdim=True)
    return scores.masked_fill(dead, 0.0).softmax(-1).masked_fill(dead, 0.0)


class Core:
    """A right core. Every step is a method that a defect may replace."""

    def __call__(
        self,
        query,
        key,
        value,
        *,
        mask=None,
        bias=None,
        causal=False,
        window=None,
        softcap=None,
        scale=None,
        dropout=0.0,
        return_weights=False,
    ):
        """Attend from `query` to `key`, and mix what `value` holds there."""
        call = Call(mask, bias, causal, window, softcap, scale, dropout, return_weights)
        self.refuse(query, key, value, call)
        return self.attend(query, key, value, call)

    def attend(self, query, key, value, call):
        """Take the steps in the order of the contract."""
        group = query.shape[1] // max(key.shape[1], 1)
        key, value = self.share_keys(key, group), self.share_values(value, group)
        scores = self.scale_scores(self.scores(query, key, call), query, call)
        if call.softcap is not None:
            scores = self.cap_scores(scores, call)
        if call.bias is not None:
            scores = self.add_bias(scores, call)
        seen = self.visible(query, key, call)
        weights = self.normalise(self.mask_scores(scores, seen, call), seen, call)
        mixed = self.aggregate_values(self.drop_weights(weights, call), value, seen)
        return self.hand_back(mixed.to(query.dtype), weights.to(query.dtype), query, call)

    def refuse(self, query, key, value, call):
        """Raise for what the contract does not allow."""
        if query.shape[1] % max(key.shape[1], 1) or key.shape[1] != value.shape[1]:
            raise ValueError(f"kv heads {key.shape[1]}, {value.shape[1]} for {query.shape[1]} heads")
        if query.shape[-1] != key.shape[-1] or key.shape[2] != value.shape[2]:
            raise ValueError(f"sizes do not fit: {[tuple(t.shape) for t in (query, key, value)]}")
        if len({query.dtype, key.dtype, value.dtype}) > 1:
            raise TypeError("query, key and value differ in dtype")
        if call.mask is not None:
            self.refuse_mask(query, key, call.mask)

    def refuse_mask(self, query, key, mask):
        """Raise for a mask of a rank, dtype or shape that the contract does not allow."""
        if mask.dtype != torch.bool or mask.dim() not in (2, 4):
            raise TypeError(f"mask must be boolean, of rank 2 or 4; got {mask.dtype}, rank {mask.dim()}")
        allowed = (*query.shape[:3], key.shape[2])[-mask.dim() :]
        if any(size not in (1, whole) for size, whole in zip(mask.shape, allowed, strict=True)):
            raise ValueError(f"mask of shape {tuple(mask.shape)} does not broadcast to {tuple(allowed)}")

    def share_keys(self, key, group):
        """Give each query head its key head."""
        return self.share_heads(key, group)

    def share_values(self, value, group):
        """Give each query head its value head."""
        return self.share_heads(value, group)

    def share_heads(self, tensor, group):
        """Head `h` reads head `h // group`."""
        return tensor.repeat_interleave(group, 1)

    def scores(self, query, key, call):
        """Score every query against every key, in at least float32."""
        return wide(query) @ wide(key).mT

    def scale_scores(self, scores, query, call):
        """Multiply by the scale, `d_k ** -0.5` where none is given."""
        return scores * (query.shape[-1] ** -0.5 if call.scale is None else call.scale)

    def cap_scores(self, scores, call):
        """Bend the scores into `(-softcap, softcap)`."""
        return call.softcap * torch.tanh(scores / call.softcap)

    def add_bias(self, scores, call):
        """Add the bias."""
        return scores + call.bias

    def visible_positions(self, q_len, kv_len, call):
        """Say what causality and the window allow, aligned lower right; None is everything."""
        if not call.causal and call.window is None:
            return None
        distance = torch.arange(kv_len) - torch.arange(q_len)[:, None] - (kv_len - q_len)
        left, right = call.window or (-1, -1)
        seen = torch.ones(q_len, kv_len, dtype=torch.bool)
        if call.causal:
            seen = seen & (distance <= 0)
        if left >= 0:
            seen = seen & (distance >= -left)
        return seen & (distance <= right) if right >= 0 else seen

    def visible(self, query, key, call):
        """Say where each query may attend: what position and mask both allow."""
        seen = self.visible_positions(query.shape[2], key.shape[2], call)
        mask = self.read_mask(call.mask, query, key, call) if call.mask is not None else None
        whole = (*query.shape[:3], key.shape[2])
        if seen is None or mask is None:
            seen = seen if mask is None else mask
            return torch.ones(whole, dtype=torch.bool) if seen is None else seen.expand(whole)
        return (seen & mask).expand(whole)

    def read_mask(self, mask, query, key, call):
        """Bring the mask into a form that broadcasts over the scores."""
        return mask

    def mask_scores(self, scores, seen, call):
        """Forbid what is not visible."""
        return scores.masked_fill(~seen, -INF)

    def normalise(self, scores, seen, call):
        """Turn scores into weights."""
        return zero_dead_rows(scores)

    def drop_weights(self, weights, call):
        """Drop weights at random, where asked to."""
        return nn.functional.dropout(weights, call.dropout) if call.dropout else weights

    def aggregate_values(self, weights, value, seen):
        """Mix the values; what no query sees is zeroed, for 0 times NaN would be NaN."""
        return weights @ wide(value).masked_fill(~seen.any(-2)[..., None], 0.0)

    def hand_back(self, output, weights, query, call):
        """Return the output, and the weights where they are asked for."""
        return (output, weights) if call.return_weights else output


class Layer(nn.Module):
    """A right layer around a core. Every step is a method that a defect may replace."""

    core = Core()

    def __init__(self, d_model, heads, *, kv_heads=None, bias=True, dropout=0.0):
        """Make the projections."""
        super().__init__()
        if d_model % heads:
            raise ValueError(f"heads must divide d_model; got d_model={d_model}, heads={heads}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1; got {dropout}")
        self.d_model, self.heads, self.kv_heads, self.dropout = d_model, heads, kv_heads or heads, dropout
        self.d_k = d_model // heads
        self.make(bias)

    def make(self, bias):
        """Make the four projections."""
        narrow = self.kv_heads * self.d_k
        self.W_q, self.W_o = (nn.Linear(self.d_model, self.d_model, bias=bias) for _ in range(2))
        self.W_k, self.W_v = (nn.Linear(self.d_model, narrow, bias=bias) for _ in range(2))

    def forward(
        self,
        query,
        key=None,
        value=None,
        *,
        mask=None,
        bias=None,
        causal=False,
        scale=None,
        return_weights=False,
    ):
        """Project, split, attend, merge and project."""
        key, value = self.sources(query, key, value)
        q = self.heads_first(self.split_heads(self.project_queries(query), self.heads))
        k = self.heads_first(self.split_heads(self.project_keys(key), self.kv_heads))
        v = self.heads_first(self.split_heads(self.project_values(value), self.kv_heads))
        options = {"mask": mask, "bias": bias, "causal": causal, "scale": scale}
        mixed, weights = self.attend(q, k, v, {n: t for n, t in options.items() if t is not None})
        output = self.project_output(self.merge_heads(mixed))
        return (output, weights) if return_weights else output

    def sources(self, query, key, value):
        """Say where keys and values come from."""
        key = query if key is None else key
        return key, key if value is None else value

    def project_queries(self, x):
        """Project the inputs that ask."""
        return self.W_q(x)

    def project_keys(self, x):
        """Project the inputs that are looked at."""
        return self.W_k(x)

    def project_values(self, x):
        """Project the inputs that are mixed."""
        return self.W_v(x)

    def split_heads(self, projected, heads):
        """Cut the width into heads: `batch seq heads d_k`."""
        return projected.unflatten(-1, (heads, self.d_k))

    def heads_first(self, split):
        """Move the heads in front of the positions."""
        return split.transpose(1, 2)

    def attend(self, q, k, v, options):
        """Let the core attend."""
        dropout = self.dropout if self.training else 0.0
        return self.core(q, k, v, dropout=dropout, return_weights=True, **options)

    def merge_heads(self, mixed):
        """Lay the heads side by side again."""
        return mixed.transpose(1, 2).flatten(2)

    def project_output(self, merged):
        """Mix the heads."""
        return self.W_o(merged)


class Cached(Layer):
    """A right layer with a cache: keys, values, and the position of each slot, -1 where it is empty."""

    def forward(self, inputs, *, cache=None, window=None, lengths=None):
        """Attend from the positions of this step to those of all steps so far."""
        cache = self.empty(inputs) if cache is None else cache
        new = self.positions(cache, inputs, lengths)
        q = self.heads_first(self.split_heads(self.project_queries(inputs), self.heads))
        k = self.heads_first(self.split_heads(self.project_keys(inputs), self.kv_heads))
        v = self.heads_first(self.split_heads(self.project_values(inputs), self.kv_heads))
        cache = self.extend(cache, k, v, new, window)
        seen = self.allowed(new, cache[2], window, cache)
        mixed = self.core(q, cache[0], cache[1], mask=seen[:, None])
        return self.project_output(self.merge_heads(mixed)), self.keep(cache, window)

    def empty(self, inputs):
        """Return a cache without slots."""
        nothing = inputs.new_zeros(inputs.shape[0], self.kv_heads, 0, self.d_k)
        return nothing, nothing, torch.zeros(inputs.shape[0], 0, dtype=torch.long)

    def positions(self, cache, inputs, lengths):
        """Number the new tokens of each sample behind its old ones; -1 is padding."""
        step = torch.arange(inputs.shape[1]).expand(inputs.shape[:2])
        new = step + (cache[2].amax(1, keepdim=True) + 1 if cache[2].shape[1] else 0)
        return new if lengths is None else torch.where(step < lengths[:, None], new, -1)

    def extend(self, cache, key, value, new, window):
        """Lay the new slots behind the old ones."""
        return torch.cat([cache[0], key], 2), torch.cat([cache[1], value], 2), torch.cat([cache[2], new], 1)

    def allowed(self, new, slots, window, cache):
        """Say which slots each query sees: `batch q_len slots`."""
        distance = slots[:, None, :] - new[:, :, None]
        seen = (slots[:, None, :] >= 0) & (distance <= 0)
        return seen if window is None or window[0] < 0 else seen & (distance >= -window[0])

    def keep(self, cache, window):
        """Return what the next step needs."""
        return cache
