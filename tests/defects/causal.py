"""Causality: off by one, aligned wrongly, lost beside other options."""

import torch

from .bank import defect
from .reference import INF, Core, zero_dead_rows


def _lower(rows, columns, diagonal):
    return torch.ones(rows, columns, dtype=torch.bool).tril(diagonal)


@defect(
    "causal",
    "common learner error",
    "causal.value",
    "causal.future",
    case="length 2",
    fingerprint="causal_sees_one_ahead",
)
class SeesOneAhead(Core):
    """Each query sees the next position as well."""

    def visible_positions(self, q_len, kv_len, call):
        return _lower(q_len, kv_len, kv_len - q_len + 1) if call.causal else None


@defect(
    "causal",
    "B062 common learner error",
    "causal.first_row",
    "causal.value",
    case="length 2",
    fingerprint="causal_strict",
)
class DoesNotSeeItself(Core):
    """The diagonal is masked too."""

    def visible_positions(self, q_len, kv_len, call):
        return _lower(q_len, kv_len, kv_len - q_len - 1) if call.causal else None


@defect(
    "causal",
    "B044 rasbt/LLMs-from-scratch#1062",
    "causal.first_row",
    "causal.future",
    "causal.future_gradient",
    case="length 2",
    fingerprint="anti_causal",
)
class SeesOnlyTheFuture(Core):
    """An upper triangle of blocked pairs is read as allowed ones."""

    def visible_positions(self, q_len, kv_len, call):
        return torch.ones(q_len, kv_len, dtype=torch.bool).triu(kv_len - q_len) if call.causal else None


@defect(
    "causal", "B053 meta-llama/llama#899", "causal.alignment", case="q_len=2, kv_len=3, and q_len=3, kv_len=2"
)
class AlignmentDependsOnWhichIsLonger(Core):
    """Lower right with more keys, upper left with more queries."""

    def visible_positions(self, q_len, kv_len, call):
        return _lower(q_len, kv_len, max(kv_len - q_len, 0)) if call.causal else None


@defect("causal", "B054 rasbt/LLMs-from-scratch#697", "causal.alignment", case="q_len=2, kv_len=4")
class AlignedInTheMiddle(Core):
    """The first query sees half of what came before."""

    def visible_positions(self, q_len, kv_len, call):
        return _lower(q_len, kv_len, (kv_len - q_len) // 2) if call.causal else None


@defect("causal", "B054 rasbt/LLMs-from-scratch#697", "causal.alignment", case="q_len=1, kv_len=3")
class OneQueryGetsTheCorner(Core):
    """A single query reads the corner of the buffer: only the first key."""

    def visible_positions(self, q_len, kv_len, call):
        return _lower(q_len, kv_len, 0 if q_len == 1 else kv_len - q_len) if call.causal else None


@defect(
    "causal",
    "common learner error",
    "causal.value",
    "value.constant",
    place="visible_positions",
    case="length 2",
    fingerprint="causal_after_softmax",
)
class CausalAfterSoftmax(Core):
    """Future weights are zeroed after the softmax; rows no longer sum to 1."""

    def visible_positions(self, q_len, kv_len, call):
        return None

    def normalise(self, scores, seen, call):
        weights = zero_dead_rows(scores)
        q_len, kv_len = scores.shape[-2:]
        return weights * _lower(q_len, kv_len, kv_len - q_len) if call.causal else weights


@defect("causal", "B052 Mikyx-1/TinyLLM#17", "causal.alignment", case="q_len=2, kv_len=3")
class CausalOnlyWhenSquare(Core):
    """With different lengths the flag is ignored."""

    def visible_positions(self, q_len, kv_len, call):
        return _lower(q_len, kv_len, 0) if call.causal and q_len == kv_len else None


@defect(
    "causal",
    "common learner error",
    "value.oracle",
    "scale.options",
    place="visible_positions",
    case="causal and a bias",
)
class CausalIgnoredWithABias(Core):
    """A bias takes the place of the causal rule."""

    def visible_positions(self, q_len, kv_len, call):
        return None if call.bias is not None else super().visible_positions(q_len, kv_len, call)


@defect(
    "causal",
    "B049 keras-team/keras#23040",
    "causal.with_mask",
    case="causal and a mask of ones",
    fingerprint="causal_ignored_with_mask",
)
class CausalIgnoredWithAMask(Core):
    """An explicit mask turns the flag off."""

    def visible_positions(self, q_len, kv_len, call):
        return None if call.mask is not None else super().visible_positions(q_len, kv_len, call)


@defect(
    "causal",
    "B050 facebookresearch/xformers#103",
    "causal.equals_mask",
    "causal.value",
    case="causal, no mask",
)
class CausalOnlyWithAMask(Core):
    """The causal rule is merged into the mask, where there is one."""

    def visible_positions(self, q_len, kv_len, call):
        return super().visible_positions(q_len, kv_len, call) if call.mask is not None else None


@defect("causal", "common learner error", "causal.with_mask", place="mask_scores", case="causal and a mask")
class MaskIgnoredWhenCausal(Core):
    """With the flag the mask is not read."""

    def visible(self, query, key, call):
        seen = self.visible_positions(query.shape[2], key.shape[2], call)
        whole = (*query.shape[:3], key.shape[2])
        return seen.expand(whole) if call.causal else super().visible(query, key, call)


@defect("causal", "common learner error", "causal.with_mask", place="mask_scores", case="causal and a mask")
class CausalOrMask(Core):
    """What the causal rule or the mask allows is visible."""

    def visible(self, query, key, call):
        if not call.causal or call.mask is None:
            return super().visible(query, key, call)
        seen = self.visible_positions(query.shape[2], key.shape[2], call) | call.mask
        return seen.expand(*query.shape[:3], key.shape[2])


@defect("causal", "B059 huggingface/transformers#41966", "causal.with_mask", case="causal, one padded key")
class PaddingTurnsCausalOff(Core):
    """A mask of keys alone turns the causal rule off."""

    def visible_positions(self, q_len, kv_len, call):
        padding = call.mask is not None and call.mask.shape[-2] == 1
        return None if padding else super().visible_positions(q_len, kv_len, call)


@defect("causal", "B055 huggingface/transformers#48172", "causal.off", case="q_len=1, kv_len=2, no mask")
class CausalByDefault(Core):
    """Without a mask and with different lengths the core is causal, flag or not."""

    def visible_positions(self, q_len, kv_len, call):
        if call.mask is None and q_len != kv_len and not call.causal:
            return _lower(q_len, kv_len, 0)
        return super().visible_positions(q_len, kv_len, call)


@defect(
    "causal",
    "B053 meta-llama/llama#899",
    "causal.dead_row",
    case="q_len=2, kv_len=1",
    place="visible_positions",
)
class EveryQuerySeesTheFirstKey(Core):
    """A query before all keys is shown the first one."""

    def visible_positions(self, q_len, kv_len, call):
        seen = super().visible_positions(q_len, kv_len, call)
        return seen if seen is None else seen | (torch.arange(kv_len) == 0)


@defect("causal", "B122 trymirai/lalamo#200", "causal.value", "size.blocks", case="length 65")
class CausalWithinTheChunk(Core):
    """Row numbers start anew in each chunk of 64 queries."""

    def visible_positions(self, q_len, kv_len, call):
        if not call.causal:
            return None
        rows = torch.arange(q_len) % 64
        return torch.arange(kv_len) <= rows[:, None] + kv_len - q_len


@defect("causal", "common learner error", "causal.value", "size.blocks", case="length 65")
class CausalOnlyInTheFirstBlock(Core):
    """Queries after the first 64 see everything."""

    def visible_positions(self, q_len, kv_len, call):
        seen = super().visible_positions(q_len, kv_len, call)
        return seen if seen is None else seen | (torch.arange(q_len)[:, None] >= 64)


@defect(
    "causal",
    "B057 huggingface/transformers#30652",
    "state.weights_flag",
    "weights.value",
    "weights.forbidden",
    case="causal, weights asked for",
)
class WeightsPathIsNotCausal(Core):
    """Asked for weights, the causal rule and the mask are lost."""

    def visible(self, query, key, call):
        if call.return_weights:
            return torch.ones(*query.shape[:3], key.shape[2], dtype=torch.bool)
        return super().visible(query, key, call)


@defect(
    "causal", "common learner error", "causal.future_gradient", place="normalise", case="length 2, backward"
)
class FutureLeaksThroughTheGradient(Core):
    """The output is causal, its gradient is that of an unmasked softmax."""

    def normalise(self, scores, seen, call):
        hard = zero_dead_rows(scores)
        if not call.causal:
            return hard
        soft = call.notes["raw"].softmax(-1)
        return hard.detach() + soft - soft.detach()

    def mask_scores(self, scores, seen, call):
        call.notes["raw"] = scores
        return super().mask_scores(scores, seen, call)


@defect(
    "causal", "common learner error", "causal.future", "causal.value", case="length 2, large future scores"
)
class FutureFilledWithZero(Core):
    """Future scores become 0, not -inf."""

    def mask_scores(self, scores, seen, call):
        return scores * seen if call.causal and call.mask is None else scores.masked_fill(~seen, -INF)


@defect("causal", "B043 facebookresearch/xformers#1185", "causal.with_mask", case="causal, a mask in batch")
class CausalLostWithSampleMasks(Core):
    """A mask of samples replaces the causal one, a mask of rank 2 is merged."""

    def visible_positions(self, q_len, kv_len, call):
        samples = call.mask is not None and call.mask.dim() == 4 and call.mask.shape[0] > 1
        return None if samples else super().visible_positions(q_len, kv_len, call)


@defect("causal", "common learner error", "causal.value", case="causal, batch=2")
class CausalOnTheFirstSample(Core):
    """Only the first sample is masked."""

    def visible(self, query, key, call):
        seen = super().visible(query, key, call)
        later = torch.arange(query.shape[0])[:, None, None, None] > 0
        return seen | later if call.causal and call.mask is None else seen


@defect("causal", "common learner error", "causal.future", "causal.value", case="causal, heads=2")
class LastHeadIsNotCausal(Core):
    """The last head sees everything."""

    def visible(self, query, key, call):
        seen = super().visible(query, key, call)
        last = torch.arange(query.shape[1])[:, None, None] == query.shape[1] - 1
        return seen | last if call.causal and query.shape[1] > 1 and call.mask is None else seen


@defect("causal", "B052 Mikyx-1/TinyLLM#17", "causal.value", case="length 4")
class OnlyTheLastKeyIsHidden(Core):
    """All but the last query are kept from the last key, and from nothing else."""

    def visible_positions(self, q_len, kv_len, call):
        if not call.causal:
            return None
        last_key = torch.arange(kv_len) == kv_len - 1
        return ~last_key | (torch.arange(q_len)[:, None] == q_len - 1)
