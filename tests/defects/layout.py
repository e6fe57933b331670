"""Strides: tensors that are not laid out as a kernel assumes."""

import torch

from .bank import defect
from .reference import Core


def packed(tensor):
    """Read a tensor's memory from its start as if it were contiguous; gradients flow as usual."""
    if tensor.is_contiguous() or not tensor.numel():
        return tensor
    strides = torch.empty(tensor.shape, device="meta").stride()
    needed = (
        sum((n - 1) * s for n, s in zip(tensor.shape, strides, strict=True)) + tensor.storage_offset() + 1
    )
    if needed > tensor.untyped_storage().size() // tensor.element_size():
        return tensor.detach() * 0
    return torch.as_strided(tensor.detach(), tensor.shape, strides, tensor.storage_offset())


@defect(
    "layout/stride",
    "B109 common learner error",
    "layout.transposed",
    case="transposed, length 2, heads 2",
    place="",
)
class ViewsWithoutContiguous(Core):
    """`.view` on a transposed tensor raises."""

    def attend(self, query, key, value, call):
        key = key.view(-1, *key.shape[2:]).view(key.shape)
        return super().attend(query, key, value, call)


@defect(
    "layout/stride",
    "common learner error",
    "layout.transposed",
    "layout.sliced",
    case="a transposed query",
    place="",
)
class IgnoresTheStridesOfTheQuery(Core):
    """The query's memory is read as if it were contiguous."""

    def attend(self, query, key, value, call):
        return super().attend(packed(query), key, value, call)


@defect(
    "layout/stride",
    "B104 Dao-AILab/flash-attention#2541",
    "layout.sliced",
    "layout.mixed",
    case="a sliced value",
    place="",
)
class IgnoresTheStridesOfTheValue(Core):
    """The value's memory is read as if it were contiguous."""

    def attend(self, query, key, value, call):
        return super().attend(query, key, packed(value), call)


@defect("layout/stride", "common learner error", "layout.sliced", case="every second element", place="")
class LastAxisTakenForDense(Core):
    """The last axis is assumed to have stride 1."""

    def attend(self, query, key, value, call):
        if key.numel() and key.stride(-1) != 1:
            strides = (*key.stride()[:-1], 1)
            key = torch.as_strided(key.detach(), key.shape, strides, key.storage_offset())
        return super().attend(query, key, value, call)


@defect("layout/stride", "common learner error", "layout.mixed", case="query transposed, key not", place="")
class KeyReadWithTheQuerysStrides(Core):
    """One set of strides, the query's, serves query and key where their shapes agree."""

    def attend(self, query, key, value, call):
        if query.shape == key.shape and query.stride() != key.stride():
            size = key.untyped_storage().size() // key.element_size()
            reach = sum((n - 1) * s for n, s in zip(query.shape, query.stride(), strict=True))
            if reach + key.storage_offset() < size:
                key = torch.as_strided(key.detach(), key.shape, query.stride(), key.storage_offset())
        return super().attend(query, key, value, call)


@defect(
    "layout/stride",
    "B108 pytorch/pytorch#191937",
    "layout.expanded",
    case="expanded heads, kv_len=33",
    place="",
)
class ExpandedTailIsCorrupt(Core):
    """Keys of stride 0 lose the last key at lengths of 1 modulo 32."""

    def visible(self, query, key, call):
        seen = super().visible(query, key, call)
        lost = call.notes["expanded"] and key.shape[2] > 1 and key.shape[2] % 32 == 1
        return seen & (torch.arange(key.shape[2]) < key.shape[2] - lost)

    def attend(self, query, key, value, call):
        call.notes["expanded"] = any(s == 0 and n > 1 for s, n in zip(key.stride(), key.shape, strict=True))
        return super().attend(query, key, value, call)


@defect(
    "layout/stride",
    "B108 pytorch/pytorch#191937",
    "layout.expanded",
    case="expanded over the batch",
    place="",
)
class WritesThroughExpandedMemory(Core):
    """Working in place on a tensor of stride 0 raises."""

    def attend(self, query, key, value, call):
        if 0 in (s for s, n in zip(query.stride(), query.shape, strict=True) if n > 1):
            query = query.detach().mul_(1.0)
        return super().attend(query, key, value, call)


@defect("layout/stride", "common learner error", "layout.mask", case="a transposed mask", place="mask_scores")
class MaskReadInMemoryOrder(Core):
    """The mask's memory is read as if it were contiguous."""

    def read_mask(self, mask, query, key, call):
        return packed(mask)


@defect(
    "layout/stride",
    "common learner error",
    "grouped.combined",
    case="grouped heads, strided keys",
    place="share_heads",
)
class GroupedPathViews(Core):
    """Shared heads are laid out by a view of the memory as if it were contiguous."""

    def share_heads(self, tensor, group):
        return super().share_heads(packed(tensor) if group > 1 else tensor, group)
