"""The softmax runs over the heads."""

from torch import Tensor


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    weights = scores.softmax(dim=1)  # wrong
    # right: weights = scores.softmax(dim=-1)
    return weights @ value
