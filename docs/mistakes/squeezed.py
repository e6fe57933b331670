"""An axis of size 1 disappears."""

from torch import Tensor


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    return (scores.softmax(-1) @ value).squeeze()  # wrong
    # right: return scores.softmax(-1) @ value
