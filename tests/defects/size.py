"""Sizes that a kernel treats specially: blocks, tails, ones and empties."""

import torch

from .bank import defect
from .reference import INF, Core, wide


class HidesKeys(Core):
    """Hides keys by their number; a defect says which."""

    def lost(self, kv_len):
        """Return where keys are lost."""
        raise NotImplementedError

    def visible(self, query, key, call):
        return super().visible(query, key, call) & ~self.lost(key.shape[2])


@defect(
    "edge-size", "B151 jax-ml/jax#27224", "size.tail", "size.blocks", case="kv_len=65", place="mask_scores"
)
class TailOf64Dropped(HidesKeys):
    """Keys past the last whole block of 64 are lost."""

    def lost(self, kv_len):
        return torch.arange(kv_len) >= (kv_len // 64 * 64 if kv_len > 64 else kv_len)


@defect(
    "edge-size", "B151 jax-ml/jax#27224", "size.tail", "size.blocks", case="kv_len=129", place="mask_scores"
)
class TailOf128Dropped(HidesKeys):
    """Keys past the last whole block of 128 are lost."""

    def lost(self, kv_len):
        return torch.arange(kv_len) >= (kv_len // 128 * 128 if kv_len > 128 else kv_len)


@defect("edge-size", "seeded-defects.md", "size.tail", "size.blocks", case="kv_len=33", place="mask_scores")
class LastKeyDroppedPast32(HidesKeys):
    """With more than 32 keys the last one is lost."""

    def lost(self, kv_len):
        return torch.arange(kv_len) >= (kv_len - 1 if kv_len > 32 else kv_len)


@defect(
    "edge-size", "common learner error", "size.tail", "size.blocks", case="kv_len=16", place="mask_scores"
)
class LastKeyDroppedAtMultiplesOf16(HidesKeys):
    """With a whole number of blocks of 16 the last key is lost."""

    def lost(self, kv_len):
        return torch.arange(kv_len) >= (kv_len - 1 if kv_len % 16 == 0 and kv_len else kv_len)


@defect(
    "edge-size", "common learner error", "size.tail", "size.blocks", case="kv_len=1025", place="mask_scores"
)
class KeysPast512Dropped(HidesKeys):
    """A buffer holds 512 keys."""

    def lost(self, kv_len):
        return torch.arange(kv_len) >= 512


@defect(
    "edge-size", "common learner error", "size.tail", "size.blocks", case="kv_len=257", place="mask_scores"
)
class FirstKeyOfALaterBlockDropped(HidesKeys):
    """The key at 256 belongs to neither block."""

    def lost(self, kv_len):
        return torch.arange(kv_len) == 256


@defect(
    "cache",
    "B113 meta-pytorch/gpt-fast#233",
    "size.blocks",
    "value.plain",
    case="kv_len=3, capacity 4",
    place="normalise",
)
class PaddedKeysTakePart(Core):
    """Keys are padded to a multiple of 8, and the padding has score 0, not -inf."""

    def normalise(self, scores, seen, call):
        missing = -scores.shape[-1] % 8
        padded = torch.nn.functional.pad(scores, (0, missing), value=0.0)
        dead = ~seen.any(-1, keepdim=True)
        return padded.softmax(-1)[..., : scores.shape[-1]].masked_fill(dead, 0.0)


@defect("edge-size", "common learner error", "size.blocks", case="q_len=33", place="aggregate_values")
class QueriesPast32Unwritten(Core):
    """The last partial block of 32 queries is never written."""

    def aggregate_values(self, weights, value, seen):
        q_len = weights.shape[2]
        output = super().aggregate_values(weights, value, seen)
        tail = torch.arange(q_len)[:, None] >= (q_len // 32 * 32 if q_len > 32 else q_len)
        return output.masked_fill(tail, 0.0)


@defect(
    "edge-size",
    "B146 Dao-AILab/flash-attention#1537",
    "size.one",
    "mask.value",
    place="mask_scores",
    case="q_len=1 and a mask",
)
class OneQueryIgnoresTheMask(Core):
    """The shortcut for a single query does not look at the mask."""

    def read_mask(self, mask, query, key, call):
        return torch.ones_like(mask) if query.shape[2] == 1 else mask


@defect("edge-size", "common learner error", "value.plain", "size.one", place="scale_scores", case="q_len=1")
class OneQueryIsUnscaled(Core):
    """The shortcut for a single query forgets the scale."""

    def scale_scores(self, scores, query, call):
        return (
            scores
            if query.shape[2] == 1 and call.scale is None
            else super().scale_scores(scores, query, call)
        )


@defect(
    "edge-size", "common learner error", "size.coincidence", place="heads_first", case="batch = heads = 2"
)
class BatchEqualsHeads(Core):
    """A layout is guessed from sizes: where batch equals heads, the two are swapped in the values."""

    def attend(self, query, key, value, call):
        if value.shape[0] == value.shape[1] > 1:
            value = value.transpose(0, 1)
        return super().attend(query, key, value, call)


@defect(
    "edge-size", "common learner error", "size.coincidence", place="heads_first", case="length = heads = 3"
)
class LengthEqualsHeads(Core):
    """A layout is guessed from sizes: where heads equal positions, the tensor is taken for heads last."""

    def attend(self, query, key, value, call):
        if key.shape[1] == key.shape[2] > 1:
            key, value = key.transpose(1, 2), value.transpose(1, 2)
        return super().attend(query, key, value, call)


@defect(
    "edge-size",
    "common learner error",
    "size.coincidence",
    place="scores",
    case="kv_len = d_k",
)
class KeyTransposedWhenSquare(Core):
    """The key is transposed only if its shape does not already fit."""

    def scores(self, query, key, call):
        fits = query.shape[-1] == key.shape[-2] and key.shape[-1] == key.shape[-2]
        return wide(query) @ (wide(key) if fits else wide(key).mT)


@defect("edge-size", "common learner error", "size.coincidence", place="scores", case="q_len = d_k")
class QueryTransposedWhenSquare(Core):
    """A square query is transposed."""

    def scores(self, query, key, call):
        query = query.mT if query.shape[-1] == query.shape[-2] else query
        return super().scores(query, key, call)


@defect("edge-size", "common learner error", "size.widths", place="scores", case="d_k=65")
class WidthPast64Ignored(Core):
    """Only the first 64 dimensions take part in the scores."""

    def scores(self, query, key, call):
        return super().scores(query[..., :64], key[..., :64], call)


@defect("edge-size", "common learner error", "size.widths", place="scores", case="d_k=17")
class WidthTailIgnored(Core):
    """Past 16 dimensions, those beyond a multiple of 16 are left out."""

    def scores(self, query, key, call):
        d_k = query.shape[-1]
        kept = d_k if d_k < 16 else d_k // 16 * 16
        return super().scores(query[..., :kept], key[..., :kept], call)


@defect(
    "edge-size", "B153 pytorch/pytorch#97128", "size.many_heads", place="aggregate_values", case="heads=9"
)
class HeadsPastEightUnwritten(Core):
    """Heads are computed in blocks of eight, and the rest is left at zero."""

    def aggregate_values(self, weights, value, seen):
        output = super().aggregate_values(weights, value, seen)
        return output.masked_fill(torch.arange(output.shape[1])[:, None, None] >= 8, 0.0)


@defect("edge-size", "pytorch/pytorch#142228", "size.many_sequences", case="batch=33")
class MaskOf32Sequences(Core):
    """The mask of the first 32 sequences is prepared; the others attend to everything."""

    def visible(self, query, key, call):
        seen = super().visible(query, key, call)
        if seen is None:
            return None
        late = torch.arange(query.shape[0]).view(-1, 1, 1, 1) >= 32
        return seen | late


@defect("edge-size", "pytorch/pytorch#142228", "size.many_sequences", case="batch=65")
class BatchInWholeChunks(Core):
    """Past 64 sequences the batch is taken in chunks of 64, and the rest is left at zero."""

    def aggregate_values(self, weights, value, seen):
        output = super().aggregate_values(weights, value, seen)
        batch = output.shape[0]
        kept = batch if batch < 64 else batch // 64 * 64
        return output.masked_fill(torch.arange(batch).view(-1, 1, 1, 1) >= kept, 0.0)


@defect("gqa", "common learner error", "size.many_heads", case="heads=16, kv_heads=2")
class GroupsPastFour(Core):
    """Beyond four query heads a group reads the next key head."""

    def share_heads(self, tensor, group):
        shared = super().share_heads(tensor, group)
        member = torch.arange(shared.shape[1]) % group
        return torch.where((member >= 4).view(-1, 1, 1), shared.roll(-group, 1), shared)


@defect("edge-size", "B147 Dao-AILab/flash-attention#1159", "size.empty_batch", case="batch=0", place="")
class EmptyBatchRaises(Core):
    """The first sample is looked at, there being none."""

    def attend(self, query, key, value, call):
        query.select(0, 0)
        return super().attend(query, key, value, call)


@defect("edge-size", "B146 Dao-AILab/flash-attention#1537", "size.empty_query", case="q_len=0", place="")
class NoQueriesRaise(Core):
    """The maximum over no queries raises."""

    def normalise(self, scores, seen, call):
        scores.detach().amax(-2)
        return super().normalise(scores, seen, call)


@defect("edge-size", "B146 Dao-AILab/flash-attention#1537", "size.empty_key", case="kv_len=0", place="")
class NoKeysRaise(Core):
    """The maximum over no keys raises."""

    def normalise(self, scores, seen, call):
        scores.detach().amax(-1)
        return super().normalise(scores, seen, call)


@defect(
    "edge-size", "common learner error", "size.one", "value.single_key", place="normalise", case="kv_len=1"
)
class OneKeyIsNotNormalised(Core):
    """With one key the weight is the exponential of its score."""

    def normalise(self, scores, seen, call):
        return torch.exp(scores) if scores.shape[-1] == 1 else super().normalise(scores, seen, call)


@defect("edge-size", "common learner error", "value.plain", place="aggregate_values", case="batch=3")
class BatchPastTwoUnwritten(Core):
    """Samples past the second keep what the buffer held: zeros."""

    def aggregate_values(self, weights, value, seen):
        output = super().aggregate_values(weights, value, seen)
        return output.masked_fill(torch.arange(output.shape[0])[:, None, None, None] >= 2, 0.0)


@defect("edge-size", "common learner error", "size.one", place="normalise", case="heads=1")
class OneHeadAddsAnAxis(Core):
    """With one head the softmax runs over another axis."""

    def normalise(self, scores, seen, call):
        if scores.shape[1] == 1:
            moved = scores.mT.masked_fill((scores.mT == -INF).all(-1, keepdim=True), 0.0)
            return moved.softmax(-1).mT
        return super().normalise(scores, seen, call)
