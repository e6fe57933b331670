"""Shared key/value heads: which query head reads which."""

import torch

from .bank import defect
from .reference import Core


@defect(
    "gqa",
    "B063 apple/axlearn#842",
    "grouped.order",
    "grouped.equals_repeated",
    case="heads=4, kv_heads=2",
    fingerprint="heads_tiled",
)
class HeadsTiled(Core):
    """Heads are tiled: head `h` reads head `h % kv_heads`."""

    def share_heads(self, tensor, group):
        return tensor.repeat(1, group, 1, 1)


@defect(
    "gqa",
    "common learner error",
    "grouped.order",
    case="heads=4, kv_heads=2",
    fingerprint="first_kv_head_only",
)
class OnlyTheFirstKeyHead(Core):
    """Every query head reads the first key/value head."""

    def share_heads(self, tensor, group):
        return tensor if group == 1 else tensor[:, :1].expand(-1, tensor.shape[1] * group, -1, -1)


@defect("gqa", "common learner error", "grouped.order", "grouped.gradient", case="heads=4, kv_heads=2")
class KeyHeadsAveraged(Core):
    """Grouped heads read the mean of all key/value heads."""

    def share_heads(self, tensor, group):
        whole = tensor.repeat_interleave(group, 1)
        return whole if group == 1 else whole.mean(1, keepdim=True).expand_as(whole)


@defect(
    "gqa", "B095 XunhaoLai/native-sparse-attention-triton#27", "grouped.order", case="heads=6, kv_heads=2"
)
class DividedByTheOtherCount(Core):
    """The head index is divided by `kv_heads`, not by the group: right only where both are equal."""

    def share_heads(self, tensor, group):
        kv_heads = tensor.shape[1]
        index = torch.arange(kv_heads * group) // kv_heads
        return tensor[:, index.clamp_max(kv_heads - 1)]


@defect("gqa", "common learner error", "grouped.order", case="heads=4, kv_heads=2")
class ValuesTiledKeysNot(Core):
    """Keys are repeated rightly, values are tiled."""

    def share_values(self, value, group):
        return value.repeat(1, group, 1, 1)


@defect("gqa", "common learner error", "grouped.order", case="heads=4, kv_heads=2")
class KeyHeadsReversed(Core):
    """The groups read the key/value heads from the last to the first."""

    def share_heads(self, tensor, group):
        return super().share_heads(tensor if group == 1 else tensor.flip(1), group)


@defect("gqa", "common learner error", "grouped.single", case="heads=2, kv_heads=1", place="share_heads")
class OneQueryHeadForAll(Core):
    """With one key/value head only the first query head is computed, and copied."""

    def attend(self, query, key, value, call):
        if key.shape[1] == 1 and query.shape[1] > 1:
            query = query[:, :1].expand_as(query)
        return super().attend(query, key, value, call)


@defect(
    "gqa",
    "common learner error",
    "grouped.single",
    "grouped.equals_repeated",
    case="heads=2, kv_heads=1",
    place="scale_scores",
)
class ScaledByTheGroup(Core):
    """With shared heads the width under the root is that of a whole group."""

    def attend(self, query, key, value, call):
        group = query.shape[1] // key.shape[1]
        if call.scale is None and group > 1:
            call.scale = (query.shape[-1] * group) ** -0.5
        return super().attend(query, key, value, call)


@defect(
    "gqa",
    "common learner error",
    "grouped.combined",
    place="mask_scores",
    case="heads=4, kv_heads=2, a mask of heads",
)
class MaskReadByKeyHead(Core):
    """In the grouped path a mask of heads is read once a key/value head."""

    def attend(self, query, key, value, call):
        call.notes["group"] = query.shape[1] // key.shape[1]
        return super().attend(query, key, value, call)

    def read_mask(self, mask, query, key, call):
        group = call.notes["group"]
        whole = group == 1 or mask.dim() == 2 or mask.shape[1] == 1
        return mask if whole else mask[:, ::group].repeat_interleave(group, 1)


@defect(
    "gqa", "common learner error", "grouped.combined", place="visible_positions", case="grouped and causal"
)
class GroupedPathIsNotCausal(Core):
    """The path for shared heads forgets the causal rule."""

    def attend(self, query, key, value, call):
        if query.shape[1] != key.shape[1]:
            call.causal = False
        return super().attend(query, key, value, call)


@defect(
    "gqa", "common learner error", "grouped.combined", place="add_bias", case="grouped and a bias of heads"
)
class BiasReadByKeyHead(Core):
    """The bias of a group's first head serves the group."""

    def attend(self, query, key, value, call):
        group = query.shape[1] // key.shape[1]
        if group > 1 and call.bias is not None and call.bias.shape[1] > 1:
            call.bias = call.bias[:, ::group].repeat_interleave(group, 1)
        return super().attend(query, key, value, call)


@defect(
    "error-handling",
    "B167 fla-org/flash-linear-attention#1029",
    "refusal.kv_heads",
    case="heads=3, kv_heads=2",
    place="share_heads",
)
class GroupsFloored(Core):
    """A number of heads that does not divide is rounded down; the last heads read the last key/value head."""

    def __call__(self, query, key, value, **options):
        heads, kv_heads = query.shape[1], key.shape[1]
        if heads % kv_heads:
            index = (torch.arange(heads) // max(heads // kv_heads, 1)).clamp_max(kv_heads - 1)
            key, value = key[:, index], value[:, index]
        return super().__call__(query, key, value, **options)
