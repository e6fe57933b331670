"""The mask read wrongly: polarity, axes, samples, fills."""

import torch
from torch.nn.functional import pad

from .bank import defect
from .reference import INF, Core, wide, zero_dead_rows


@defect(
    "mask",
    "B030 lucidrains/halonet-pytorch#4",
    "mask.polarity",
    case="two keys, one masked",
    fingerprint="mask_inverted",
)
class MaskInverted(Core):
    """The keep-mask is used as a drop-mask."""

    def read_mask(self, mask, query, key, call):
        return ~mask


@defect(
    "mask",
    "B031 opendilab/DI-engine#333",
    "mask.value",
    "mask.irrelevant.finite",
    case="two keys, one masked",
    fingerprint="mask_ignored",
)
class MaskIgnored(Core):
    """The result of an out-of-place `masked_fill` is thrown away."""

    def read_mask(self, mask, query, key, call):
        return torch.ones_like(mask)


@defect(
    "mask",
    "B032 huggingface/pytorch-image-models#2236",
    "mask.slice",
    "mask.value",
    "value.constant",
    place="mask_scores",
    case="two keys, one masked",
    fingerprint="mask_after_softmax",
)
class MaskAfterSoftmax(Core):
    """Probabilities are computed over all keys and masked afterwards."""

    def normalise(self, scores, seen, call):
        return scores.softmax(-1).masked_fill(~seen, 0.0)

    def mask_scores(self, scores, seen, call):
        return scores


@defect(
    "mask",
    "B032 huggingface/pytorch-image-models#2236",
    "mask.extremes",
    place="mask_scores",
    case="a hidden score far above the visible ones",
)
class MaskAfterSoftmaxRenormalised(Core):
    """Probabilities are masked and normalised again: right until a hidden key takes all the weight."""

    def normalise(self, scores, seen, call):
        weights = scores.softmax(-1) * seen
        total = weights.sum(-1, keepdim=True)
        return weights / total.masked_fill(~seen.any(-1, keepdim=True), 1.0)

    def mask_scores(self, scores, seen, call):
        return scores


@defect(
    "mask",
    "B034 huggingface/transformers#41443",
    "mask.value",
    "mask.irrelevant.finite",
    case="two keys, one masked",
    fingerprint="mask_added_as_number",
)
class MaskAddedAsNumber(Core):
    """The boolean mask is added to the scores: allowed ones gain 1."""

    def mask_scores(self, scores, seen, call):
        return scores + seen


@defect(
    "mask",
    "common learner error",
    "mask.value",
    case="two keys, one masked",
    fingerprint="mask_multiplied",
)
class MaskMultiplied(Core):
    """Scores are multiplied by the mask: a hidden key gets score 0."""

    def mask_scores(self, scores, seen, call):
        return scores * seen


@defect("mask", "common learner error", "mask.value", case="two keys, one masked")
class FillIsTiny(Core):
    """The fill is -1e-9: the exponent's sign was mistyped."""

    def mask_scores(self, scores, seen, call):
        return scores.masked_fill(~seen, -1e-9)


def _filled(amount):
    def mask_scores(self, scores, seen, call):
        return scores.masked_fill(~seen, amount)

    return mask_scores


def _plain_softmax(self, scores, seen, call):
    return scores.softmax(-1)


@defect(
    "mask",
    "B029 hyunwoongko/transformer#40",
    "mask.extremes",
    "mask.dead_row.zero",
    case="visible scores below -1e4",
    fingerprint="finite_fill",
)
class FilledWithTenThousand(Core):
    """Hidden scores become -1e4."""

    mask_scores = _filled(-1e4)
    normalise = _plain_softmax


@defect("mask", "common learner error", "mask.dead_row.zero", case="one dead row", fingerprint="finite_fill")
class FilledWithABillion(Core):
    """Hidden scores become -1e9: a row without keys becomes the mean of what it may not see."""

    mask_scores = _filled(-1e9)
    normalise = _plain_softmax


@defect(
    "mask",
    "B021 pytorch/pytorch#109517",
    "mask.dead_row.zero",
    case="one dead row",
    fingerprint="finite_fill",
)
class FilledWithTheLeastNumber(Core):
    """Hidden scores become `finfo.min`."""

    mask_scores = _filled(torch.finfo(torch.float32).min)
    normalise = _plain_softmax


@defect(
    "mask",
    "common learner error",
    "mask.extremes",
    "mask.dead_row.zero",
    case="visible scores below -1e4",
    place="mask_scores",
)
class AdditiveTenThousand(Core):
    """The BERT form: `(1 - mask) * -10000` is added."""

    normalise = _plain_softmax

    def mask_scores(self, scores, seen, call):
        return scores + (1.0 - seen.to(scores.dtype)) * -10000.0


@defect("mask", "common learner error", "mask.extremes", place="mask_scores", case="large scores, d_k=64")
class FilledBeforeTheScale(Core):
    """Hidden scores become -1e4 before the scale makes -1250 of it; dead rows are handled."""

    def mask_scores(self, scores, seen, call):
        dead = ~seen.any(-1, keepdim=True)
        return scores.masked_fill(~seen, -1e4 / 8).masked_fill(dead, -INF)


@defect(
    "mask", "B029 hyunwoongko/transformer#40", "mask.value", "mask.slice", case="a padded key, q_len = kv_len"
)
class PaddingOnTheQueryAxis(Core):
    """A mask of keys is put on the query axis."""

    def read_mask(self, mask, query, key, call):
        return mask.mT if mask.shape[-2] == 1 and query.shape[2] == key.shape[2] else mask


@defect("mask", "B025 pytorch/pytorch#63271", "mask.value", case="one padded key, q_len = kv_len")
class PaddingMarksRowsToo(Core):
    """A padded position is masked as a key and as a query."""

    def read_mask(self, mask, query, key, call):
        square = mask.shape[-2] == 1 and query.shape[2] == key.shape[2]
        return mask & mask.mT if square else mask


@defect(
    "mask",
    "B026 line/lighthouse#77",
    "mask.per_sample",
    "mask.value",
    case="batch=2, heads=2, masks differ",
    fingerprint="mask_tiled_over_heads",
)
class SampleMasksTiled(Core):
    """Per-sample masks are repeated as a whole while the fused axis is batch-major."""

    def read_mask(self, mask, query, key, call):
        batch, heads = query.shape[:2]
        if mask.dim() != 4 or mask.shape[1] != 1:
            return mask
        whole = mask.expand(batch, 1, query.shape[2], key.shape[2])[:, 0]
        return whole.repeat(heads, 1, 1).view(batch, heads, *whole.shape[1:])


@defect("mask", "common learner error", "mask.per_sample", case="batch=2, masks differ")
class MaskOfTheFirstSample(Core):
    """Only the first sample's mask is read."""

    def read_mask(self, mask, query, key, call):
        return mask[:1] if mask.dim() == 4 else mask


@defect("mask", "common learner error", "mask.per_sample", case="batch=2, masks differ")
class MaskOfTheNextSample(Core):
    """Each sample gets its neighbour's mask."""

    def read_mask(self, mask, query, key, call):
        return mask.roll(1, 0) if mask.dim() == 4 else mask


@defect("mask", "common learner error", "mask.value", "mask.broadcast", case="heads=2, masks differ")
class MaskOfTheFirstHead(Core):
    """Only the first head's mask is read."""

    def read_mask(self, mask, query, key, call):
        return mask[:, :1] if mask.dim() == 4 else mask


@defect("mask", "common learner error", "mask.value", "mask.broadcast", case="heads=2, masks differ")
class MaskOfAnyHead(Core):
    """What one head may see, all may."""

    def read_mask(self, mask, query, key, call):
        return mask.any(1, keepdim=True) if mask.dim() == 4 else mask


@defect("mask", "common learner error", "mask.rank_two", case="rank 2, q_len = kv_len")
class RankTwoMaskTransposed(Core):
    """A mask of rank 2 is transposed where that fits."""

    def read_mask(self, mask, query, key, call):
        return mask.mT if mask.dim() == 2 and mask.shape[0] == mask.shape[1] else mask


@defect("mask", "common learner error", "mask.value", case="q_len = kv_len = 2")
class MaskTransposed(Core):
    """Rows and columns of a square mask change places."""

    def read_mask(self, mask, query, key, call):
        return mask.mT if mask.shape[-1] == mask.shape[-2] else mask


@defect(
    "mask", "common learner error", "mask.value", "mask.broadcast", case="two queries with different masks"
)
class MaskRowOfTheFirstQuery(Core):
    """The first query's row of the mask serves all."""

    def read_mask(self, mask, query, key, call):
        return mask[..., :1, :]


@defect(
    "mask", "common learner error", "mask.value", "mask.broadcast", case="two queries with different masks"
)
class MaskRowOfTheLastQuery(Core):
    """The last query's row of the mask serves all."""

    def read_mask(self, mask, query, key, call):
        return mask[..., -1:, :]


@defect(
    "mask", "B042 tensorflow/tensorflow#60626", "size.coincidence", "mask.broadcast", case="batch = heads = 2"
)
class MaskAxesSwappedWhenTheyFit(Core):
    """Batch and heads of the mask change places where their sizes agree."""

    def read_mask(self, mask, query, key, call):
        swap = mask.dim() == 4 and query.shape[0] == query.shape[1]
        return mask.transpose(0, 1) if swap else mask


@defect("mask", "common learner error", "mask.value", place="mask_scores", case="a hidden key")
class MaskOnTheValues(Core):
    """Hidden values are zeroed, hidden scores still take part in the softmax."""

    def mask_scores(self, scores, seen, call):
        return scores

    def aggregate_values(self, weights, value, seen):
        return (weights * seen) @ wide(value)


@defect("mask", "B036 Kyubyong/transformer#69", "value.zeros", place="mask_scores", case="a key of zeros")
class PaddingGuessedFromZeroKeys(Core):
    """A key of zeros is taken for padding."""

    def visible(self, query, key, call):
        seen = super().visible(query, key, call)
        return seen & (key != 0).any(-1)[:, :, None]


@defect("mask", "B036 Kyubyong/transformer#69", "value.zeros", place="mask_scores", case="a value of zeros")
class PaddingGuessedFromZeroScores(Core):
    """A score of exactly 0 is taken for a masked one."""

    def mask_scores(self, scores, seen, call):
        return super().mask_scores(scores, seen & (scores != 0), call)


@defect("mask", "common learner error", "mask.value", case="the first key hidden")
class FirstKeyAlwaysVisible(Core):
    """The first key is made visible to all, so that no row is dead."""

    def read_mask(self, mask, query, key, call):
        first = torch.arange(key.shape[2]) == 0
        return mask | first


@defect("mask", "common learner error", "mask.dead_row.zero", "mask.value", case="a dead row, q_len = kv_len")
class OwnPositionAlwaysVisible(Core):
    """Each query may see its own position, so that no row is dead."""

    def read_mask(self, mask, query, key, call):
        return mask | torch.eye(query.shape[2], key.shape[2], dtype=torch.bool)


@defect("mask", "common learner error", "mask.all_true", case="a mask of ones")
class AnyMaskMeansCausal(Core):
    """A mask, whatever is in it, turns the causal rule on."""

    def read_mask(self, mask, query, key, call):
        return mask & mask.new_ones(query.shape[2], key.shape[2]).tril(key.shape[2] - query.shape[2])


@defect(
    "mask", "B032 huggingface/pytorch-image-models#2236", "mask.value", "value.constant", case="hidden key"
)
class MaskedWeightsNotRenormalised(Core):
    """The denominator sums over hidden keys as well."""

    def normalise(self, scores, seen, call):
        hidden = call.notes["scores"]
        top = hidden.amax(-1, keepdim=True).detach() if hidden.shape[-1] else 0.0
        return torch.exp(scores - top) / torch.exp(hidden - top).sum(-1, keepdim=True)

    def mask_scores(self, scores, seen, call):
        call.notes["scores"] = scores
        return super().mask_scores(scores, seen, call)


@defect(
    "mask", "common learner error", "refusal.mask_shape", case="a mask one key short", place="mask_scores"
)
class ShortMaskPadded(Core):
    """A mask that is too short is padded with True, one that is too long is cut."""

    def refuse_mask(self, query, key, mask):
        pass

    def read_mask(self, mask, query, key, call):
        rows, columns = query.shape[2], key.shape[2]
        mask = mask[..., :rows, :columns]
        if mask.shape[-1] not in (1, columns):
            mask = pad(mask, (0, columns - mask.shape[-1]), value=True)
        return mask


@defect("mask", "common learner error", "mask.value", case="a sparse mask", place="normalise")
class HiddenKeysKeepAFloor(Core):
    """Weights are smoothed by 1e-4 over all keys, hidden ones too."""

    def normalise(self, scores, seen, call):
        return zero_dead_rows(scores) * 0.9999 + 0.0001 / max(scores.shape[-1], 1)
