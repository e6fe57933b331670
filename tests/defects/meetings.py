"""Mistakes that need two things at once: an option and a grad mode, a block, dropout, or what was before."""

import torch
from torch import nn

from .bank import defect
from .gradient import Backward
from .reference import INF, Cached, Core, Layer

OWN = "a kind of its own"
HALF = (torch.float16, torch.bfloat16)
BLOCK = 64


def as_dense(tensor):
    """Return what a kernel reads that is handed a pointer and a shape."""
    if tensor.numel() == 0 or 0 in tensor.stride() or tensor.requires_grad:
        return tensor
    steps = [1]
    for size in reversed(tensor.shape[1:]):
        steps.insert(0, steps[0] * size)
    return tensor.as_strided(tensor.shape, steps, tensor.storage_offset())


@defect("state/mutation", OWN, "softcap.value", "state.grad_mode", case="no_grad", place="cap_scores")
class NoSoftcapWithoutGradients(Core):
    """Where nothing is recorded, a fast path has no softcap."""

    def cap_scores(self, scores, call):
        return super().cap_scores(scores, call) if torch.is_grad_enabled() else scores


@defect("state/mutation", OWN, "window.value", "state.grad_mode", case="no_grad", place="visible_positions")
class NoWindowWithoutGradients(Core):
    """Where nothing is recorded, a fast path has no window."""

    def visible_positions(self, q_len, kv_len, call):
        if not torch.is_grad_enabled():
            call.window = None
        return super().visible_positions(q_len, kv_len, call)


@defect("dropout", OWN, "dropout.survivors", case="dropout and a bias", place="add_bias")
class DropoutForgetsTheBias(Core):
    """The path with dropout has no bias."""

    def add_bias(self, scores, call):
        return scores if call.dropout else super().add_bias(scores, call)


@defect("dropout", OWN, "dropout.survivors", case="dropout, causal, two lengths", place="visible_positions")
class DropoutAlignsUpperLeft(Core):
    """The path with dropout aligns the causal rule with the first key."""

    def visible_positions(self, q_len, kv_len, call):
        if not call.dropout or not call.causal:
            return super().visible_positions(q_len, kv_len, call)
        return torch.ones(q_len, kv_len, dtype=torch.bool).tril()


@defect("dropout", OWN, "mask.dead_row.zero", case="dropout and a dead row", place="normalise")
class DropoutMakesDeadRowsNan(Core):
    """The path with dropout does not guard rows that see nothing."""

    def normalise(self, scores, seen, call):
        return scores.softmax(-1) if call.dropout else super().normalise(scores, seen, call)


@defect("dropout", OWN, "dropout.per_element", case="dropout, 140 keys", place="drop_weights")
class DropoutPerTileAlike(Core):
    """Each tile of 64 keys drops what the first one drops."""

    def drop_weights(self, weights, call):
        if not call.dropout:
            return weights
        kept = nn.functional.dropout(torch.ones_like(weights[..., :BLOCK]), call.dropout)
        tiles = -(-weights.shape[-1] // BLOCK)
        return weights * kept.repeat(1, 1, 1, tiles)[..., : weights.shape[-1]]


@defect("window/softcap/bias", OWN, "bias.infinite", case="a mask and a bias of -inf", place="normalise")
class DeadByMaskAndBiasTogether(Core):
    """Dead rows are looked for in the mask and in the bias, each alone."""

    def normalise(self, scores, seen, call):
        dead = ~seen.any(-1, keepdim=True)
        if call.bias is not None:
            dead = dead | (call.bias == -INF).all(-1, keepdim=True)
        return scores.masked_fill(dead, 0.0).softmax(-1).masked_fill(dead, 0.0)


@defect("window/softcap/bias", OWN, "window.value", case="bfloat16, 300 keys", place="visible_positions")
class DistancesInTheDtypeOfTheQuery(Core):
    """The window's distances are numbers of the query's dtype, and bfloat16 counts to 256."""

    def attend(self, query, key, value, call):
        call.notes["dtype"] = query.dtype
        return super().attend(query, key, value, call)

    def visible_positions(self, q_len, kv_len, call):
        if call.window is None or call.notes["dtype"] != torch.bfloat16:
            return super().visible_positions(q_len, kv_len, call)
        rows = (torch.arange(q_len) + kv_len - q_len).to(torch.bfloat16)
        distance = torch.arange(kv_len).to(torch.bfloat16) - rows[:, None]
        left, right = call.window
        seen = torch.ones(q_len, kv_len, dtype=torch.bool)
        seen = seen & (distance <= 0) if call.causal else seen
        seen = seen & (distance >= -left) if left >= 0 else seen
        return seen & (distance <= right) if right >= 0 else seen


@defect("window/softcap/bias", OWN, "size.combined", case="65 queries and a bias", place="add_bias")
class TilesReadTheFirstBias(Core):
    """Each tile of 64 queries reads the bias of the first."""

    def add_bias(self, scores, call):
        if call.bias.shape[-2] <= BLOCK:
            return super().add_bias(scores, call)
        rows = torch.arange(call.bias.shape[-2]) % BLOCK
        return scores + call.bias[..., rows, :]


@defect("mask", OWN, "size.combined", case="65 keys, a mask per head", place="mask_scores")
class MaskPointerMovesBySample(Core):
    """Beyond a tile of keys the mask of the first head is read for all."""

    def read_mask(self, mask, query, key, call):
        if mask.dim() < 4 or key.shape[2] <= BLOCK or mask.shape[1] == 1:
            return mask
        later = torch.arange(key.shape[2]) >= BLOCK
        return torch.where(later, mask[:, :1], mask)


@defect("gqa", OWN, "value.combined", case="float16, grouped heads and a scale", place="scale_scores")
class SharedHeadsInHalfLoseTheScale(Core):
    """In half precision the path for shared heads takes the usual scale."""

    def attend(self, query, key, value, call):
        if query.dtype in HALF and query.shape[1] != key.shape[1]:
            call.scale = None
        return super().attend(query, key, value, call)


@defect("gqa", OWN, "value.combined", case="one query, grouped heads and a bias", place="add_bias")
class DecodingTurnsTheBiasOfAGroup(Core):
    """In half precision a single query of shared heads reads the bias in the order of the group's members."""

    def attend(self, query, key, value, call):
        call.notes["turned"] = query.shape[2] == 1 and query.dtype in HALF
        call.notes["group"] = query.shape[1] // max(key.shape[1], 1)
        return super().attend(query, key, value, call)

    def add_bias(self, scores, call):
        bias, group = call.bias, call.notes["group"]
        if call.notes["turned"] and group > 1 and bias.shape[1] > 1:
            bias = bias.unflatten(1, (-1, group)).transpose(1, 2).flatten(1, 2)
        return scores + bias


@defect(
    "softmax-numerics", OWN, "value.wide_range", case="150 keys, half of them 13 lower", place="normalise"
)
class NegligibleTilesAreSkipped(Core):
    """A tile of 64 keys whose best score is 12 below the largest of the row is left out."""

    def normalise(self, scores, seen, call):
        if scores.shape[-1] <= BLOCK:
            return super().normalise(scores, seen, call)
        top = scores.amax(-1, keepdim=True)
        tiles = [t.masked_fill(t.amax(-1, keepdim=True) < top - 12, -INF) for t in scores.split(BLOCK, -1)]
        return super().normalise(torch.cat(tiles, -1), seen, call)


@defect("gradient", OWN, "bias.gradient", case="a bias of samples that heads share", place="add_bias")
class SharedBiasHasOneHeadsGradient(Core):
    """A bias that all heads of a sample share gets the gradient of the first."""

    def add_bias(self, scores, call):
        bias = call.bias
        if bias.dim() < 4 or bias.shape[1] > 1 or bias.shape[0] == 1 or scores.shape[1] == 1:
            return scores + bias
        first = (torch.arange(scores.shape[1]) == 0)[:, None, None]
        return scores + torch.where(first, bias, bias.detach())


@defect("mask", OWN, "mask.dead_row.zero", case="300 keys, a dead row", place="normalise")
class HalvesOfDeadRowsAreNan(Core):
    """Beyond 256 keys two halves are merged by their sums, and of nothing and nothing comes NaN."""

    def normalise(self, scores, seen, call):
        if scores.shape[-1] <= 256:
            return super().normalise(scores, seen, call)
        return scores.softmax(-1)


@defect("gradient", OWN, "gradient.interleaved", case="two calls, then two backward passes")
class BackwardOfTheLatestCall(Core):
    """What the way back needs is kept in one place for all calls."""

    def drop_weights(self, weights, call):
        self.latest = weights.detach()
        return super().drop_weights(weights, call)

    def aggregate_values(self, weights, value, seen):
        kept, mixed = self.latest, super().aggregate_values(weights, value, seen)
        return Backward.apply(mixed, lambda grad, _: grad * (1.0 if self.latest is kept else 0.5))


@defect("gradient", OWN, "window.gradient", case="70 queries, a window of 3", place="mask_scores")
class BackwardSkipsATile(Core):
    """On the way back tiles of 64 keys are skipped that the window of a tile's last query leaves out."""

    def mask_scores(self, scores, seen, call):
        masked = super().mask_scores(scores, seen, call)
        if call.window is None or scores.shape[-2] <= BLOCK or call.window[0] < 0:
            return masked
        last = scores.shape[-1] - 1
        skipped = torch.arange(scores.shape[-1]) < (last - call.window[0]) // BLOCK * BLOCK
        later = torch.arange(scores.shape[-2])[:, None] >= scores.shape[-2] // BLOCK * BLOCK
        return Backward.apply(masked, lambda grad, _: grad.masked_fill(skipped & later, 0.0))


@defect("gradient", OWN, "gradient.alone", case="queries and keys, constant values", place="scale_scores")
class PairScaledTwice(Core):
    """Where values are constant the gradient of the scores is scaled once for queries, once more for keys."""

    def attend(self, query, key, value, call):
        pair = query.requires_grad and key.requires_grad and not value.requires_grad
        return super().attend(query, Backward.apply(key, lambda g, _: g / 2) if pair else key, value, call)


@defect("layout/stride", OWN, "layout.mixed", case="slices of one buffer, keys first")
class OneBufferIsTakenAsPacked(Core):
    """Three slices of one buffer are taken for queries, keys and values in this order."""

    def attend(self, query, key, value, call):
        starts = {t.untyped_storage().data_ptr() for t in (query, key, value)}
        if len(starts) == 1 and query.shape == key.shape == value.shape and query.numel():
            query, key, value = sorted((query, key, value), key=lambda t: t.storage_offset())
        return super().attend(query, key, value, call)


@defect("edge-size", OWN, "size.many_sequences", case="65,583 heads in all")
class GridEnds(Core):
    """Heads beyond the 65,535th are not computed."""

    def aggregate_values(self, weights, value, seen):
        mixed = super().aggregate_values(weights, value, seen)
        if mixed.shape[0] * mixed.shape[1] <= 65_535:
            return mixed
        number = torch.arange(mixed.shape[0] * mixed.shape[1]).view(*mixed.shape[:2], 1, 1)
        return mixed.masked_fill(number >= 65_535, 0.0)


@defect("edge-size", OWN, "size.empty_key", case="no keys and a bias")
class NoKeysAndABias(Core):
    """Without keys the bias is reduced over nothing."""

    def add_bias(self, scores, call):
        return super().add_bias(scores - call.bias.amax(-1, keepdim=True) * 0, call)


@defect("mask", OWN, "layout.mask", case="a mask cut out of a larger one")
class MaskReadAsDense(Core):
    """A mask is read from its memory with the row length of its shape."""

    def read_mask(self, mask, query, key, call):
        return as_dense(mask)


@defect("layout/stride", OWN, "layout.bias", case="a transposed bias", place="add_bias")
class BiasReadAsDense(Core):
    """A bias is read from its memory with the row length of its shape."""

    def add_bias(self, scores, call):
        return scores + as_dense(call.bias)


@defect("window/softcap/bias", OWN, "state.train_eval", case="train mode and a bias")
class NoBiasInTraining(Layer):
    """In train mode the fused path has no bias."""

    def attend(self, q, k, v, options):
        if self.training:
            options.pop("bias", None)
        return super().attend(q, k, v, options)


@defect("weights/params", OWN, "state.weights_change", case="weights written as data, under no_grad")
class FusedByVersion(Layer):
    """Without gradients a fused matrix is kept for as long as the versions of its parts stay."""

    def fused(self):
        parts = (self.W_q.weight, self.W_k.weight, self.W_v.weight)
        key = tuple((id(part), part._version, part.dtype) for part in parts)
        if torch.is_grad_enabled() or torch.is_inference_mode_enabled():
            return parts
        if getattr(self, "kept", (None, None))[0] != key:
            self.kept = key, tuple(part.detach().clone() for part in parts)
        return self.kept[1]

    def project_queries(self, x):
        return nn.functional.linear(x, self.fused()[0], self.W_q.bias)

    def project_keys(self, x):
        return nn.functional.linear(x, self.fused()[1], self.W_k.bias)

    def project_values(self, x):
        return nn.functional.linear(x, self.fused()[2], self.W_v.bias)


@defect("weights/params", OWN, "state.weights_replaced", case="a parameter put in place of another")
class WeightsInAList(Layer):
    """Parameters are collected once, in a list that knows nothing of later ones."""

    def make(self, bias):
        super().make(bias)
        self.parts = [self.W_q.weight, self.W_k.weight]

    def project_queries(self, x):
        return nn.functional.linear(x, self.parts[0], self.W_q.bias)


@defect("weights/params", OWN, "value.layer", case="one tensor handed in three times", place="project_values")
class OneTensorTakesThePackedBias(Layer):
    """One tensor in each part takes a packed path that has the biases of keys and values exchanged."""

    def forward(self, query, key=None, value=None, **options):
        self.packed = key is query and value is query
        return super().forward(query, key, value, **options)

    def project_values(self, x):
        swap = self.packed and self.W_v.bias is not None and self.W_v.bias.shape == self.W_k.bias.shape
        return nn.functional.linear(x, self.W_v.weight, self.W_k.bias if swap else self.W_v.bias)


@defect("shape", OWN, "size.coincidence", case="a sequence as long as the model is wide")
class ChannelsFirstByGuess(Layer):
    """Inputs are turned where the sequence is as long as the model is wide."""

    def project_keys(self, x):
        return super().project_keys(x.mT if x.shape[1] == x.shape[2] else x)


@defect("edge-size", OWN, "size.many_sequences", case="more than 2,048 positions")
class LastChunkOfRowsIsLost(Layer):
    """Values of more than 2,048 positions are made in chunks, and the last one is not."""

    def project_values(self, x):
        made = super().project_values(x)
        rows = x.shape[0] * x.shape[1]
        if rows <= 2048:
            return made
        number = torch.arange(rows).view(x.shape[0], x.shape[1], 1)
        return made.masked_fill(number >= rows - rows % 2048, 0.0)


@defect("dtype", OWN, "dtype.autocast", case="autocast, backward")
class AutocastCutsTheScores(Layer):
    """Under autocast the scores are taken of copies without a graph."""

    def attend(self, q, k, v, options):
        if torch.is_autocast_enabled("cpu"):
            q, k = q.detach(), k.detach()
        return super().attend(q, k, v, options)


@defect("cache", OWN, "cache.unchanged", case="two continuations of one cache")
class RoomToGrowIsShared(Cached):
    """Slots are written into a buffer with room to grow, which all continuations share."""

    def extend(self, cache, key, value, new, window):
        start, end = cache[2].shape[1], cache[2].shape[1] + new.shape[1]
        room = cache[3] if len(cache) > 3 and cache[3][0].shape[2] >= end else None
        if room is None:
            shape = (key.shape[0], key.shape[1], 2 * end, key.shape[3])
            room = key.new_zeros(shape), value.new_zeros(shape)
            for buffer, old in zip(room, cache, strict=False):
                buffer[:, :, :start] = old.detach()
        with torch.no_grad():
            room[0][:, :, start:end], room[1][:, :, start:end] = key, value
        return room[0][:, :, :end], room[1][:, :, :end], torch.cat([cache[2], new], 1), room


@defect("cache", OWN, "cache.split", case="66 slots, a chunk of three")
class LongChunksAlignUpperLeft(Cached):
    """With more than 64 slots a chunk of several tokens starts at the first."""

    def allowed(self, new, slots, window, cache):
        seen = super().allowed(new, slots, window, cache)
        if slots.shape[1] <= BLOCK or not 1 < new.shape[1] < slots.shape[1]:
            return seen
        rows = torch.arange(new.shape[1])[:, None]
        return seen & (torch.arange(slots.shape[1]) <= rows)


@defect("cache", OWN, "cache.split", case="train mode, two steps")
class NoPastInTraining(Cached):
    """In train mode the cache is switched off."""

    def forward(self, inputs, *, cache=None, window=None, lengths=None):
        return super().forward(inputs, cache=None if self.training else cache, window=window, lengths=lengths)
