"""The caller's query is changed."""

from torch import Tensor


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query *= query.shape[-1] ** -0.5  # wrong
    # right: query = query * query.shape[-1] ** -0.5
    scores = query @ key.transpose(-2, -1)
    return scores.softmax(-1) @ value
