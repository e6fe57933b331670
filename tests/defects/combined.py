"""Two options that work alone and fail together."""

import torch

from .bank import defect
from .reference import INF, Core, wide


@defect(
    "mask",
    "seeded-defects.md",
    "grouped.combined",
    "value.oracle",
    place="mask_scores",
    case="a mask, causal and grouped heads",
)
class MaskCausalGrouped(Core):
    """Only with a mask, causality and shared heads together is the mask lost."""

    def attend(self, query, key, value, call):
        call.notes["grouped"] = query.shape[1] != key.shape[1]
        return super().attend(query, key, value, call)

    def read_mask(self, mask, query, key, call):
        return torch.ones_like(mask) if call.causal and call.notes["grouped"] else mask


@defect(
    "mask",
    "common learner error",
    "mask.rank_two",
    place="mask_scores",
    case="a rank-2 mask, batch=2",
)
class RankTwoMaskOfTheFirstSample(Core):
    """A mask of rank 2 is put on the first sample only."""

    def read_mask(self, mask, query, key, call):
        if mask.dim() == 4:
            return mask
        return mask | (torch.arange(query.shape[0])[:, None, None, None] > 0)


@defect(
    "mask", "common learner error", "bias.with_mask", place="mask_scores", case="a bias and a mask of keys"
)
class BiasDilutesTheMask(Core):
    """With a bias the mask becomes a number that is added: -4."""

    def mask_scores(self, scores, seen, call):
        if call.bias is None or call.mask is None:
            return super().mask_scores(scores, seen, call)
        dead = ~seen.any(-1, keepdim=True)
        return (scores - 4.0 * ~seen).masked_fill(dead, -INF)


@defect(
    "layout/stride",
    "B108 pytorch/pytorch#191937",
    "grouped.combined",
    "layout.transposed",
    place="share_heads",
    case="grouped heads, transposed tensors",
)
class GroupedAndStrided(Core):
    """Shared heads of a transposed tensor are tiled."""

    def share_heads(self, tensor, group):
        if group > 1 and not tensor.is_contiguous():
            return tensor.repeat(1, group, 1, 1)
        return super().share_heads(tensor, group)


@defect(
    "state/mutation",
    "B022 pytorch/pytorch#160064",
    "state.weights_flag",
    place="mask_scores",
    case="a mask, weights asked for",
)
class WeightsPathIgnoresTheMask(Core):
    """Asked for weights, the mask is not applied to the output."""

    def read_mask(self, mask, query, key, call):
        return torch.ones_like(mask) if call.return_weights else mask


@defect(
    "dtype",
    "B187 pytorch/pytorch#191612",
    "dtype.combined",
    place="visible_positions",
    case="bfloat16 and causal",
)
class CausalLostInHalf(Core):
    """In half precision the causal rule is lost."""

    def attend(self, query, key, value, call):
        if query.dtype in (torch.bfloat16, torch.float16):
            call.causal = False
        return super().attend(query, key, value, call)


@defect("dtype", "common learner error", "dtype.combined", place="add_bias", case="float16 and a bias")
class BiasLostInHalf(Core):
    """In float16 the bias is lost."""

    def add_bias(self, scores, call):
        return scores if call.bias.dtype == torch.float16 else super().add_bias(scores, call)


@defect("edge-size", "common learner error", "size.blocks", place="mask_scores", case="a mask, kv_len=33")
class MaskEndsAtABlock(Core):
    """The mask is read for the first 32 keys; later ones are visible."""

    def read_mask(self, mask, query, key, call):
        return mask | (torch.arange(key.shape[2]) >= 32)


@defect(
    "edge-size",
    "common learner error",
    "size.blocks",
    "causal.value",
    place="visible_positions",
    case="causal, length 129",
)
class CausalBlockSkipsTheDiagonal(Core):
    """Past the first block of 128, the block on the diagonal is not masked inside."""

    def visible_positions(self, q_len, kv_len, call):
        if not call.causal:
            return super().visible_positions(q_len, kv_len, call)
        rows = torch.arange(q_len)[:, None] + kv_len - q_len
        columns = torch.arange(kv_len)
        return (columns <= rows) | ((columns // 128 == rows // 128) & (rows >= 128))


@defect(
    "scale",
    "common learner error",
    "scale.options",
    "value.oracle",
    place="scale_scores",
    case="causal and a scale",
)
class ScaleLostWhenCausal(Core):
    """With the causal flag an explicit scale is ignored."""

    def scale_scores(self, scores, query, call):
        if call.causal:
            return scores * query.shape[-1] ** -0.5
        return super().scale_scores(scores, query, call)


@defect(
    "scale",
    "common learner error",
    "grouped.combined",
    place="scale_scores",
    case="grouped heads and a scale",
)
class ScaleLostWhenGrouped(Core):
    """With shared heads an explicit scale is ignored."""

    def attend(self, query, key, value, call):
        if query.shape[1] != key.shape[1]:
            call.scale = None
        return super().attend(query, key, value, call)


@defect(
    "mask", "common learner error", "mask.value", "size.one", place="mask_scores", case="batch=1 and a mask"
)
class OneSampleIsNeverMasked(Core):
    """For a single sample nothing can be padding: the mask is skipped."""

    def read_mask(self, mask, query, key, call):
        return torch.ones_like(mask) if query.shape[0] == 1 else mask


@defect(
    "causal",
    "common learner error",
    "grouped.combined",
    "value.oracle",
    place="aggregate_values",
    case="causal, d_v != d_k",
)
class CausalPathCutsWideValues(Core):
    """The causal path mixes only as many value dimensions as keys have."""

    def attend(self, query, key, value, call):
        if call.causal and value.shape[-1] > key.shape[-1]:
            value = value.masked_fill(torch.arange(value.shape[-1]) >= key.shape[-1], 0.0)
        return super().attend(query, key, value, call)


@defect("mask", "B153 pytorch/pytorch#97128", "mask.value", place="mask_scores", case="heads=3 and a mask")
class OddHeadsAreNotMasked(Core):
    """The mask is packed by pairs of heads: an odd last head is not masked."""

    def read_mask(self, mask, query, key, call):
        odd = query.shape[1] % 2 == 1
        return mask | (torch.arange(query.shape[1])[:, None, None] == query.shape[1] - 1) if odd else mask


@defect(
    "mask",
    "common learner error",
    "mask.irrelevant.finite",
    place="aggregate_values",
    case="a hidden value that is huge",
)
class HiddenValuesLeakByRounding(Core):
    """All values are shifted by their mean, hidden ones included, and shifted back."""

    def aggregate_values(self, weights, value, seen):
        centre = wide(value).mean(2, keepdim=True) if value.shape[2] else 0.0
        alive = seen.any(-1, keepdim=True)
        return weights @ (wide(value) - centre) + centre * alive


@defect(
    "mask",
    "meta-pytorch/gpt-fast#233",
    "mask.irrelevant.nonfinite",
    place="aggregate_values",
    case="a NaN in a hidden value",
)
class HiddenNaNsLeak(Core):
    """Hidden values are multiplied by a weight of zero, NaN or not."""

    def aggregate_values(self, weights, value, seen):
        return weights @ wide(value)


@defect(
    "gqa",
    "common learner error",
    "window.combined",
    place="visible_positions",
    case="grouped heads and a window",
)
class WindowLostWhenGrouped(Core):
    """The path for shared heads forgets the window."""

    def attend(self, query, key, value, call):
        if query.shape[1] != key.shape[1]:
            call.window = None
        return super().attend(query, key, value, call)


@defect(
    "window/softcap/bias",
    "common learner error",
    "window.combined",
    place="cap_scores",
    case="window and cap",
)
class SoftcapLostInAWindow(Core):
    """With a window the scores are not capped."""

    def cap_scores(self, scores, call):
        return scores if call.window is not None else super().cap_scores(scores, call)


@defect("gqa", "common learner error", "weights.combined", case="grouped heads, weights asked for", place="")
class GroupedWeightsOutOfOrder(Core):
    """The weights of shared heads come back in the order of the groups' members."""

    def hand_back(self, output, weights, query, call):
        group = query.shape[1] // call.notes["kv_heads"]
        if group > 1:
            weights = weights.unflatten(1, (-1, group)).transpose(1, 2).flatten(1, 2)
        return super().hand_back(output, weights, query, call)

    def attend(self, query, key, value, call):
        call.notes["kv_heads"] = key.shape[1]
        return super().attend(query, key, value, call)
