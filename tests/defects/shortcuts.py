"""Paths that a kernel takes for some calls only: long rows, tiles, decoding, tensors that are the same."""

import torch

from .bank import defect
from .reference import INF, Core, wide, zero_dead_rows

OWN = "a kind of its own"


class LongRowsIgnoreTheMask(Core):
    """Past so many keys another path runs, which does not read the mask."""

    limit = 0

    def read_mask(self, mask, query, key, call):
        return torch.ones_like(mask) if key.shape[2] > self.limit else mask


@defect("mask", OWN, "size.blocks", case="kv_len=513 and a mask", place="mask_scores")
class RowsPast512IgnoreTheMask(LongRowsIgnoreTheMask):
    """Past 512 keys the mask is not read."""

    limit = 512


@defect("mask", OWN, "size.blocks", case="kv_len=1025 and a mask", place="mask_scores")
class RowsPast1024IgnoreTheMask(LongRowsIgnoreTheMask):
    """Past 1,024 keys the mask is not read."""

    limit = 1024


@defect("causal", OWN, "size.blocks", case="kv_len=201, causal")
class RowsPast200AreNotCausal(Core):
    """Past 200 keys neither the causal rule nor the window holds."""

    def visible_positions(self, q_len, kv_len, call):
        return None if kv_len > 200 else super().visible_positions(q_len, kv_len, call)


@defect("dtype", OWN, "size.blocks", case="kv_len=257")
class ScoresOfLongRowsInHalf(Core):
    """Past 256 keys scores are stored in bfloat16."""

    def scores(self, query, key, call):
        scores = super().scores(query, key, call)
        return scores.to(torch.bfloat16).to(scores.dtype) if key.shape[2] > 256 else scores


@defect("causal", OWN, "causal.value", "size.blocks", case="kv_len=129, causal")
class PositionsInOneByte(Core):
    """Positions are bytes with a sign, and wrap behind 127."""

    def visible_positions(self, q_len, kv_len, call):
        if not call.causal:
            return super().visible_positions(q_len, kv_len, call)
        rows = (torch.arange(q_len) + kv_len - q_len).to(torch.int8)[:, None]
        return torch.arange(kv_len).to(torch.int8) <= rows


@defect("edge-size", OWN, "size.blocks", case="batch=1, heads=1, kv_len=17", place="normalise")
class LastBlockOverlaps(Core):
    """The last block of 16 is moved back to be whole: keys in both blocks count twice."""

    def normalise(self, scores, seen, call):
        weights, kv_len = super().normalise(scores, seen, call), scores.shape[-1]
        if kv_len < 16 or kv_len % 16 == 0:
            return weights
        at = torch.arange(kv_len)
        weights = weights * (1 + ((at >= kv_len - 16) & (at < kv_len // 16 * 16)))
        return weights / weights.sum(-1, keepdim=True).clamp(min=1e-30)


@defect("edge-size", OWN, "value.plain", case="heads=3", place="aggregate_values")
class OddHeadsInPairs(Core):
    """Heads are computed in pairs; an odd last one gets what its neighbour has."""

    def aggregate_values(self, weights, value, seen):
        output = super().aggregate_values(weights, value, seen)
        odd = output.shape[1] > 1 and output.shape[1] % 2
        return torch.cat([output[:, :-1], output[:, -2:-1]], 1) if odd else output


@defect("edge-size", OWN, "size.coincidence", case="batch * heads = 33", place="aggregate_values")
class GridEndsAt32(Core):
    """Samples times heads past 32 are not in the grid, and stay zero."""

    def aggregate_values(self, weights, value, seen):
        output = super().aggregate_values(weights, value, seen)
        number = torch.arange(output.shape[0] * output.shape[1]).view(*output.shape[:2], 1, 1)
        return output.masked_fill(number >= 32, 0.0)


@defect("mask", OWN, "mask.value", "size.blocks", case="kv_len=17", place="mask_scores")
class TileJudgedByItsFirstColumn(Core):
    """A tile of 16 keys is skipped if nobody sees its first."""

    def read_mask(self, mask, query, key, call):
        kv_len = key.shape[2]
        if kv_len <= 16:
            return mask
        whole = mask.expand(*mask.shape[:-1], kv_len)
        return whole & whole[..., torch.arange(kv_len) // 16 * 16].any(-2, keepdim=True)


@defect("mask", OWN, "size.blocks", case="q_len=2, kv_len=17", place="mask_scores")
class TileJudgedByItsFirstRow(Core):
    """A tile of 16 by 16 counts as unmasked if its first row is."""

    def read_mask(self, mask, query, key, call):
        whole = mask.expand(*mask.shape[:-2], query.shape[2], key.shape[2]).clone()
        for row in range(0, whole.shape[-2], 16) if key.shape[2] > 16 else ():
            for column in range(0, whole.shape[-1], 16):
                full = whole[..., row, column : column + 16].all(-1)
                whole[..., row : row + 16, column : column + 16] |= full[..., None, None]
        return whole


@defect("causal", OWN, "causal.alignment", case="q_len=17, kv_len=20")
class CausalTilesByTheirFirstQuery(Core):
    """A tile of 16 keys that begins behind the first query of a tile is skipped for all of them."""

    def visible_positions(self, q_len, kv_len, call):
        seen = super().visible_positions(q_len, kv_len, call)
        if not call.causal or kv_len <= 16:
            return seen
        first = (torch.arange(q_len) // 16 * 16)[:, None] + kv_len - q_len
        return seen & (torch.arange(kv_len) // 16 * 16 <= first)


@defect("gqa", OWN, "grouped.combined", "value.oracle", case="heads=2, kv_heads=1, causal")
class CausalByTheFoldedRow(Core):
    """Heads of a group are folded into the queries, and causality counts folded rows."""

    def visible(self, query, key, call):
        group = call.notes["group"]
        if not call.causal or group == 1:
            return super().visible(query, key, call)
        q_len, kv_len = query.shape[2], key.shape[2]
        folded = torch.arange(query.shape[1])[:, None] % group * q_len + torch.arange(q_len)
        seen = torch.arange(kv_len) <= (folded + kv_len - q_len)[None, :, :, None]
        seen = seen if call.mask is None else seen & call.mask
        return seen.expand(*query.shape[:3], kv_len)

    def attend(self, query, key, value, call):
        call.notes["group"] = query.shape[1] // max(key.shape[1], 1)
        return super().attend(query, key, value, call)


@defect("window/softcap/bias", OWN, "window.with_causal", "window.count", case="window=(1, 0), q_len=3")
class WindowEdgeByTiles(Core):
    """Under causal the left edge of the window is rounded down to a tile of 16."""

    def visible_positions(self, q_len, kv_len, call):
        seen = super().visible_positions(q_len, kv_len, call)
        if not call.causal or call.window is None or call.window[0] < 0:
            return seen
        rows, keys = (torch.arange(q_len) + kv_len - q_len)[:, None], torch.arange(kv_len)
        return (keys <= rows) & (keys >= (rows - call.window[0]).clamp(min=0) // 16 * 16)


@defect("window/softcap/bias", OWN, "window.value", case="window=(5, 0), kv_len=5")
class WideWindowWraps(Core):
    """A window wider than the row is taken modulo its length."""

    def visible_positions(self, q_len, kv_len, call):
        if call.window is not None and call.window[0] >= kv_len > 0:
            call.window = (call.window[0] % kv_len, call.window[1])
        return super().visible_positions(q_len, kv_len, call)


@defect("window/softcap/bias", OWN, "bias.value", case="a bias of -0.0")
class NegativeZeroHides(Core):
    """Whatever has a sign bit and no size is read as minus infinity."""

    def add_bias(self, scores, call):
        return (scores + call.bias).masked_fill((call.bias == 0) & torch.signbit(call.bias), -INF)


@defect("window/softcap/bias", OWN, "weights.value", case="softcap and returned weights", place="")
class WeightsReturnedUncapped(Core):
    """The weights that come back are computed again, without the softcap."""

    def cap_scores(self, scores, call):
        call.notes["uncapped"] = scores
        return super().cap_scores(scores, call)

    def hand_back(self, output, weights, query, call):
        if "uncapped" in call.notes:
            hidden = (weights == 0) & call.notes["some"]
            weights = zero_dead_rows(call.notes["uncapped"].masked_fill(hidden, -INF)).to(weights.dtype)
        return super().hand_back(output, weights, query, call)

    def mask_scores(self, scores, seen, call):
        call.notes["some"] = ~seen
        return super().mask_scores(scores, seen, call)


@defect("state/mutation", OWN, "state.inputs_unchanged", case="d_k=64")
class WideKeysScaledInPlace(Core):
    """Keys at least 64 wide are scaled where they lie, and scaled back."""

    def attend(self, query, key, value, call):
        if key.shape[-1] < 64 or key.requires_grad:
            return super().attend(query, key, value, call)
        key.mul_(3.0)
        try:
            return super().attend(query, key / 3.0, value, call)
        finally:
            key.div_(3.0)


@defect("dropout", OWN, "dropout.per_element", case="kv_len=12, dropout")
class DropoutComesAgainEveryEightKeys(Core):
    """Eight random numbers a row are drawn, and used again for the next eight keys."""

    def drop_weights(self, weights, call):
        if not call.dropout:
            return weights
        kept = torch.rand(*weights.shape[:-1], 8) >= call.dropout
        kept = kept.repeat(1, 1, 1, weights.shape[-1] // 8 + 1)[..., : weights.shape[-1]]
        return weights * kept / (1 - call.dropout)


@defect("dropout", OWN, "dropout.survivors", case="dropout")
class DroppedWeightsNormalisedAgain(Core):
    """What dropout leaves of a row is made to sum to 1."""

    def drop_weights(self, weights, call):
        left = super().drop_weights(weights, call)
        total = left.sum(-1, keepdim=True)
        return left / total.masked_fill(total == 0, 1.0) if call.dropout else left


@defect("shape", OWN, "value.roles", case="key and value are one tensor", place="aggregate_values")
class OneTensorIsScaledTwice(Core):
    """Where key and value are one tensor, the scaled one is mixed."""

    def attend(self, query, key, value, call):
        value = value * key.shape[-1] ** -0.5 if key is value else value
        return super().attend(query, key, value, call)


@defect("gradient", OWN, "gradient.query", case="query and key are one tensor", place="")
class OneTensorGetsOneGradient(Core):
    """Where query and key are one tensor, only the query's part of the gradient comes back."""

    def attend(self, query, key, value, call):
        return super().attend(query, key.detach() if query is key else key, value, call)


class _Kept(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, kept):
        ctx.kept = kept
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.kept, None


@defect("gradient", OWN, "gradient.long", case="q_len=70", place="")
class KeyGradientOfTheLastQueries(Core):
    """Each block of 64 queries overwrites the key's gradient instead of adding to it."""

    def scores(self, query, key, call):
        q_len = query.shape[2]
        if q_len <= 64:
            return super().scores(query, key, call)
        last = (torch.arange(q_len) >= (q_len - 1) // 64 * 64)[:, None]
        of_keys = _Kept.apply(wide(query.detach()) @ wide(key).mT, last)
        of_queries = wide(query) @ wide(key.detach()).mT
        return of_keys + of_queries - of_queries.detach()


@defect("gradient", OWN, "bias.gradient", case="bias", place="")
class BackwardForgetsTheBias(Core):
    """Backward computes the weights again, without the bias."""

    def add_bias(self, scores, call):
        call.notes["unbiased"] = scores
        return super().add_bias(scores, call) + 0.0 * scores

    def normalise(self, scores, seen, call):
        weights = super().normalise(scores, seen, call)
        if "unbiased" not in call.notes:
            return weights
        again = zero_dead_rows(call.notes["unbiased"].masked_fill(~seen, -INF))
        return weights.detach() + again - again.detach()


@defect("gradient", OWN, "gradient.query", "gradient.key", case="softcap", place="")
class SlopeOfTheSoftcapMissing(Core):
    """The gradient passes the softcap as if it were not there."""

    def cap_scores(self, scores, call):
        return scores + (super().cap_scores(scores, call) - scores).detach()


@defect("softmax-numerics", OWN, "mask.extremes", "value.oracle", case="a hidden key with a large score")
class MaximumOverHiddenKeys(Core):
    """The maximum that is subtracted runs over hidden keys too."""

    def mask_scores(self, scores, seen, call):
        call.notes["top"] = scores.amax(-1, keepdim=True) if scores.shape[-1] else 0.0
        return super().mask_scores(scores, seen, call)

    def normalise(self, scores, seen, call):
        powers = torch.exp(scores - call.notes["top"])
        total = powers.sum(-1, keepdim=True)
        return powers / total.masked_fill(total == 0, 1.0)


@defect("mask", OWN, "mask.rank_two", case="batch=2, q_len=2", place="mask_scores")
class RankTwoMaskIsPadding(Core):
    """A mask of rank 2 is taken as `batch kv_len` where it has as many rows as there are samples."""

    def read_mask(self, mask, query, key, call):
        padding = mask.dim() == 2 and mask.shape[0] == query.shape[0] > 1
        return mask[:, None, None, :] if padding else mask


@defect("state/mutation", OWN, "state.filled_anew", case="a mask where another one lay", place="mask_scores")
class MaskKeptByAddress(Core):
    """A mask is copied once for each place in memory."""

    def __init__(self):
        """Start with no copies."""
        self.copies = {}

    def read_mask(self, mask, query, key, call):
        return self.copies.setdefault((mask.data_ptr(), tuple(mask.shape)), mask.clone())


@defect("state/mutation", OWN, "state.filled_anew", case="a key that was written to")
class HeadsSharedOncePerTensor(Core):
    """What the group's heads read is kept as long as the very same tensor comes."""

    def __init__(self):
        """Start with nothing."""
        self.kept = None, None

    def share_keys(self, key, group):
        if key.requires_grad:
            return super().share_keys(key, group)
        if self.kept[0] is not key:
            self.kept = key, super().share_keys(key, group)
        return self.kept[1]
