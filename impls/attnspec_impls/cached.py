"""Decoding with a cache: a prefill, then steps of any size, and what one pass would have given.

A step projects its own positions only, lays their keys and values behind those of earlier steps, and lets
its queries see them all. That the last query stands at the last key, the contract's causal alignment, is
just what a step needs.

Sequences may have different lengths: `lengths` says how many positions of a step are real in each of them,
from the left. The cache keeps every sequence without gaps, so that position and slot are the same.

A cache is never changed, each step returns another one; that costs a copy a step and buys that a prefix can
be continued in several ways. With a window, the new cache forgets what no later query can see.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, cat

from attnspec._checks import check_cached_call
from attnspec._registry import Implementation

from ._projections import SeparateProjections
from ._torch_sdpa import torch_attention
from ._types import ModelOutput, Window


@dataclass(frozen=True, kw_only=True)
class Cache:
    """The keys and values of all positions so far.

    Attributes:
        key: Keys, sequence by sequence from slot 0 on.
        value: Their values.
        lengths: How many slots of each sequence are in use. None means all, in every sequence.
        reach: How many keys back the cache goes, where a window let it forget the rest; -1 is all.
    """

    key: Float[Tensor, "batch kv_heads past d_k"]
    value: Float[Tensor, "batch kv_heads past d_k"]
    lengths: Int[Tensor, " batch"] | None = None
    reach: int = -1


class CachedAttention(SeparateProjections):
    """Multi-head and grouped-query self-attention in steps."""

    def forward(
        self,
        inputs: Float[Tensor, "batch q_len d_model"],
        *,
        cache: Cache | None = None,
        causal: bool = True,
        window: Window | None = None,
        lengths: Int[Tensor, " batch"] | None = None,
    ) -> tuple[ModelOutput, Cache]:
        """Attend from the positions of this step to those of all steps so far.

        Args:
            inputs: The positions of this step.
            cache: What the step before returned; not changed. None starts anew.
            causal: Whether to hide the future; without it a query sees all of its own step.
            window: How many keys before and after its own position a query sees; -1 is unbounded. Once
                `left` is bounded, later steps cannot look back further.
            lengths: How many positions of this step are real in each sequence, from the left; the outputs
                of the others are those of a query that sees nothing. None means all.

        Returns:
            The output of this step in the dtype of `inputs`, and the cache for the next one.

        Raises:
            ShapeError: If a size is not allowed, or the window looks back further than the cache goes.
            DtypeError: If a dtype, or a mix of dtypes, is not allowed.
        """
        d_k = self.d_k
        key, value, reach = (None, None, -1) if cache is None else (cache.key, cache.value, cache.reach)
        check_cached_call(
            "CachedAttention", inputs, key, value, d_model=self.d_model, kv_heads=self.kv_heads, d_k=d_k,
            window=window, reach=reach, lengths=lengths,
        )  # fmt: skip
        q = self.W_q(inputs).unflatten(-1, (self.heads, d_k)).transpose(1, 2)
        k = self.W_k(inputs).unflatten(-1, (self.kv_heads, d_k)).transpose(1, 2)
        v = self.W_v(inputs).unflatten(-1, (self.kv_heads, d_k)).transpose(1, 2)
        before = Cache(key=k[:, :, :0], value=v[:, :, :0]) if cache is None else cache
        after = extended(before, k, v, lengths)
        dropout = self.dropout if self.training else 0.0
        if after.lengths is None:  # no gaps: the band alone, its end at the last key
            mixed, _ = torch_attention(
                q, after.key, after.value, causal=causal, window=window, dropout=dropout
            )
        else:
            mask = visible_slots(before, after, inputs.shape[1], causal=causal, window=window)
            mixed, _ = torch_attention(q, after.key, after.value, mask=mask, dropout=dropout)
        output = self.W_o(mixed.transpose(1, 2).flatten(2))
        return output, after if window is None or window[0] < 0 else shortened(after, window[0])


def extended(
    cache: Cache,
    key: Float[Tensor, "batch kv_heads q_len d_k"],
    value: Float[Tensor, "batch kv_heads q_len d_k"],
    lengths: Int[Tensor, " batch"] | None,
) -> Cache:
    """Return a cache with the keys and values of one step behind those of earlier steps.

    Where lengths differ, each sequence's new keys move up to the end of its old ones.
    """
    past, width = cache.key.shape[2], cache.key.shape[2] + key.shape[2]
    key, value = cat((cache.key, key), dim=2), cat((cache.value, value), dim=2)
    if cache.lengths is None and lengths is None:
        return Cache(key=key, value=value, reach=cache.reach)
    old, new = _used(cache), _counts(lengths, key, width - past)
    slot = torch.arange(width, device=key.device)
    source = torch.where(slot < old[:, None], slot, slot + past - old[:, None]).clamp(max=width - 1)
    key, value = _picked(key, source), _picked(value, source)
    return Cache(key=key, value=value, lengths=old + new, reach=cache.reach)


def shortened(cache: Cache, left: int) -> Cache:
    """Return a cache without what no later query sees: only the last `left` keys of each sequence."""
    excess = cache.key.shape[2] - left
    if excess <= 0:
        return Cache(key=cache.key, value=cache.value, lengths=cache.lengths, reach=left)
    if cache.lengths is None:
        return Cache(key=cache.key[:, :, excess:], value=cache.value[:, :, excess:], reach=left)
    source = torch.arange(left, device=cache.key.device) + (cache.lengths - left).clamp(min=0)[:, None]
    key, value = _picked(cache.key, source), _picked(cache.value, source)
    return Cache(key=key, value=value, lengths=cache.lengths.clamp(max=left), reach=left)


def visible_slots(
    before: Cache, after: Cache, q_len: int, *, causal: bool, window: Window | None
) -> Bool[Tensor, "batch 1 q_len kv_len"]:
    """Say which slots each query of a step sees; a query that is not real sees none."""
    left, right = (-1, -1) if window is None else window
    right = 0 if causal else right
    row = torch.arange(q_len, device=after.key.device)
    slot = torch.arange(after.key.shape[2], device=after.key.device)
    position, used = (_used(before)[:, None] + row)[..., None], _used(after)[:, None, None]
    allowed = (slot < used) & (position < used)
    if left >= 0:
        allowed = allowed & (slot >= position - left)
    if right >= 0:
        allowed = allowed & (slot <= position + right)
    return allowed[:, None]


def _used(cache: Cache) -> Int[Tensor, " batch"]:
    """Count the slots in use in each sequence."""
    return _counts(cache.lengths, cache.key, cache.key.shape[2])


def _counts(lengths: Int[Tensor, " batch"] | None, key: Tensor, full: int) -> Int[Tensor, " batch"]:
    """Return lengths as they are given, or the full length for every sequence."""
    return torch.full(key.shape[:1], full, device=key.device) if lengths is None else lengths


def _picked(
    tensor: Float[Tensor, "batch kv_heads past d_k"], source: Int[Tensor, "batch slots"]
) -> Float[Tensor, "batch kv_heads slots d_k"]:
    """Gather slots, another choice for each sequence."""
    index = source[:, None, :, None].expand(-1, tensor.shape[1], -1, tensor.shape[3])
    return tensor.gather(2, index)


IMPLEMENTATION = Implementation(
    name="cached",
    contract="cached",
    target=CachedAttention,
    summary="prefill and steps of any size, sequences of different lengths, a window",
    idea="Keys and values of earlier positions are kept, so that a step costs its own projections and one row"
    " of scores for each new position. Each step returns a new cache and leaves the old one as it is.",
    precision="mixed",
)
