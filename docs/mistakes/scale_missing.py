"""The scores are not scaled."""

from torch import Tensor


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = query @ key.transpose(-2, -1)  # wrong
    # right: scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    return scores.softmax(-1) @ value
