"""The result of masked_fill is thrown away."""

from torch import Tensor


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    if mask is None:
        return scores.softmax(-1) @ value
    dead = ~mask.any(-1, keepdim=True)
    scores.masked_fill(~mask & ~dead, float("-inf"))  # wrong
    # right: scores = scores.masked_fill(~mask & ~dead, float("-inf"))
    return scores.softmax(-1).masked_fill(dead, 0.0) @ value
