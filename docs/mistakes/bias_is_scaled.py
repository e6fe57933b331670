"""The bias goes through the scale."""

from torch import Tensor


def attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> Tensor:
    scores = query @ key.transpose(-2, -1)  # wrong
    # right: scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    if bias is not None:
        scores = scores + bias
    weights = (scores * query.shape[-1] ** -0.5).softmax(-1)  # wrong
    # right: weights = scores.softmax(-1)
    return weights @ value
