"""The softmax runs over the queries."""

from torch import Tensor


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    weights = scores.softmax(-2)  # wrong
    # right: weights = scores.softmax(-1)
    return weights @ value
