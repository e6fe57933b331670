"""The scores are multiplied by the mask."""

from torch import Tensor


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    if mask is None:
        return scores.softmax(-1) @ value
    dead = ~mask.any(-1, keepdim=True)
    scores = scores * mask  # wrong
    # right: scores = scores.masked_fill(~mask & ~dead, float("-inf"))
    return scores.softmax(-1).masked_fill(dead, 0.0) @ value
