"""Caches that lose, invent or misplace what earlier steps left."""

import torch

from .bank import defect
from .reference import Cached


@defect("causal", "B052 Mikyx-1/TinyLLM#17", "cache.whole", case="a prompt of two tokens")
class PrefillIsNotCausal(Cached):
    """With an empty cache nothing is masked."""

    def allowed(self, new, slots, window, cache):
        seen = super().allowed(new, slots, window, cache)
        return seen | (slots[:, None] >= 0) if new.shape[1] == slots.shape[1] else seen


@defect("causal", "B052 Mikyx-1/TinyLLM#17", "cache.split", case="a step of two tokens after one")
class LaterStepsAreNotCausal(Cached):
    """Causality is applied only while the cache is empty."""

    def allowed(self, new, slots, window, cache):
        seen = super().allowed(new, slots, window, cache)
        return seen if new.shape[1] == slots.shape[1] else seen | (slots[:, None] >= 0)


@defect(
    "causal",
    "B053 meta-llama/llama#899",
    "cache.split",
    "cache.one_by_one",
    case="past 1, a step of two tokens",
)
class SquareMaskForAStep(Cached):
    """The mask of a step starts at the first slot, not behind the past."""

    def allowed(self, new, slots, window, cache):
        rows = torch.arange(new.shape[1])[:, None]
        return (torch.arange(slots.shape[1]) <= rows) & (slots[:, None] >= 0)


@defect("causal", "B054 rasbt/LLMs-from-scratch#697", "cache.one_by_one", case="past 1, one token")
class OneTokenReadsTheCorner(Cached):
    """A single token reads the first row of the mask."""

    def allowed(self, new, slots, window, cache):
        seen = super().allowed(new, slots, window, cache)
        return seen & (torch.arange(slots.shape[1]) == 0) if new.shape[1] == 1 else seen


@defect(
    "cache", "B113 meta-pytorch/gpt-fast#233", "cache.whole", "cache.split", case="capacity 4, two tokens"
)
class UnwrittenSlotsTakePart(Cached):
    """A slot of zeros that was never written is visible."""

    def extend(self, cache, key, value, new, window):
        key, value, slots = super().extend(cache, key, value, new, window)
        blank = torch.zeros_like(key[:, :, :1])
        return (
            torch.cat([key, blank], 2),
            torch.cat([value, blank], 2),
            torch.cat([slots, slots[:, :1] * 0], 1),
        )

    def keep(self, cache, window):
        return tuple(t[:, :, :-1] if t.dim() == 4 else t[:, :-1] for t in cache)


@defect("cache", "B111 huggingface/transformers#37574", "cache.window", case="window 2, four steps")
class WindowRollsTooEarly(Cached):
    """The oldest key is dropped one step before it may be."""

    def keep(self, cache, window):
        if window is None or window[0] < 0:
            return cache
        kept = max(window[0] - 1, 1)
        return tuple(t[:, :, -kept:] if t.dim() == 4 else t[:, -kept:] for t in cache)


@defect("cache", "B120 skyzh/tiny-llm#46", "cache.window", case="prompt 2, two steps, a window")
class OffsetGrowsByThePrompt(Cached):
    """The position jumps by the number of slots again at every step."""

    def positions(self, cache, inputs, lengths):
        new = super().positions(cache, inputs, lengths)
        return torch.where(new < 0, new, new + cache[2].shape[1])


@defect("cache", "B122 trymirai/lalamo#200", "cache.window", case="window 2, past 2, a step of two")
class WindowByStepRows(Cached):
    """The window is counted from the row in the step."""

    def allowed(self, new, slots, window, cache):
        seen = super().allowed(new, slots, None, cache)
        if window is None or window[0] < 0:
            return seen
        return seen & (torch.arange(slots.shape[1]) - torch.arange(new.shape[1])[:, None] >= -window[0])


@defect(
    "window/softcap/bias",
    "B196 ml-explore/mlx-lm#390",
    "cache.window_whole",
    "cache.window",
    case="window 2, length 4",
)
class PrefillWindowOneTooWide(Cached):
    """The prompt's mask keeps one key more than the steps do."""

    def allowed(self, new, slots, window, cache):
        if window is not None and window[0] >= 0 and new.shape[1] > 1:
            window = (window[0] + 1, window[1])
        return super().allowed(new, slots, window, cache)


@defect("cache", "B119 tanishqkumar/ssd#22", "cache.window", case="two blocks of one token, a window")
class BlocksInPhysicalOrder(Cached):
    """The past is read in the order of its blocks, the last first, under positions of the right order."""

    def extend(self, cache, key, value, new, window):
        turned = (cache[0].flip(2), cache[1].flip(2), cache[2])
        return super().extend(turned if window is not None else cache, key, value, new, window)


@defect(
    "cache",
    "B123 huggingface/transformers#30108",
    "cache.split",
    "cache.one_by_one",
    case="three steps of one token",
)
class UpdateIsLost(Cached):
    """Once there is a cache, the one that was passed in comes back."""

    def keep(self, cache, window):
        return self.past if self.past[2].shape[1] else cache

    def extend(self, cache, key, value, new, window):
        self.past = cache
        return super().extend(cache, key, value, new, window)


@defect("cache", "B138 huggingface/transformers#37078", "cache.unchanged", case="two steps from one cache")
class CacheGrowsInPlace(Cached):
    """The new slots are put into the cache that was handed in."""

    def forward(self, inputs, *, cache=None, window=None, lengths=None):
        output, grown = super().forward(inputs, cache=cache, window=window, lengths=lengths)
        if cache is None:
            return output, list(grown)
        cache[:] = grown
        return output, cache


@defect("cache", "B207 vllm-project/vllm#1570", "cache.samples", "cache.split", case="batch=2")
class PastOfTheNextSample(Cached):
    """Each sample continues its neighbour's past."""

    def extend(self, cache, key, value, new, window):
        turned = (cache[0].roll(1, 0), cache[1].roll(1, 0), cache[2])
        return super().extend(turned, key, value, new, window)


@defect("varlen", "B206 jax-ml/jax#23349", "cache.lengths", case="batch=2, lengths 1 and 2")
class LengthsIgnored(Cached):
    """Padding becomes real keys."""

    def positions(self, cache, inputs, lengths):
        return super().positions(cache, inputs, None)


@defect("varlen", "B207 vllm-project/vllm#1570", "cache.lengths", case="batch=2, lengths 1 and 2")
class LongestLengthForAll(Cached):
    """Every sample gets the length of the longest."""

    def positions(self, cache, inputs, lengths):
        longest = None if lengths is None else lengths.amax().expand_as(lengths)
        return super().positions(cache, inputs, longest)


@defect("cache", "common learner error", "cache.grouped", case="heads=4, kv_heads=2, two steps")
class PastHeadsTurned(Cached):
    """Shared heads of the past are stored in another order."""

    def keep(self, cache, window):
        return (cache[0].flip(1), cache[1].flip(1), cache[2]) if self.kv_heads < self.heads else cache


@defect("cache", "common learner error", "cache.gradient", case="two steps, backward")
class PastIsDetached(Cached):
    """No gradient flows into earlier steps."""

    def keep(self, cache, window):
        return cache[0].detach(), cache[1].detach(), cache[2]


@defect("cache", "common learner error", "cache.dtype", "cache.split", case="float64, two steps")
class PastIsStoredInHalf(Cached):
    """Keys and values are stored in bfloat16."""

    def keep(self, cache, window):
        return (*(t.to(torch.bfloat16).to(t.dtype) for t in cache[:2]), cache[2])


@defect("cache", "common learner error", "cache.empty_step", case="a step of no tokens")
class EmptyStepStartsAnew(Cached):
    """A step of no tokens empties the cache."""

    def forward(self, inputs, *, cache=None, window=None, lengths=None):
        output, cache = super().forward(inputs, cache=cache, window=window, lengths=lengths)
        return output, cache if inputs.shape[1] else None
