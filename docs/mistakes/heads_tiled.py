"""Key and value heads are tiled instead of repeated."""

from torch import Tensor


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat(1, group, 1, 1), value.repeat(1, group, 1, 1)  # wrong
    # right: key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    return scores.softmax(-1) @ value
