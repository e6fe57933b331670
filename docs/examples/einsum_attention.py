"""Attention by einsum: the axes are letters, and no transpose is needed."""

import torch
from torch import Tensor, nn

from attnspec import Implementation


class EinsumAttention(nn.Module):
    """Self-attention whose every product is an einsum."""

    def __init__(self, d_model: int, heads: int) -> None:
        super().__init__()
        if d_model % heads:
            raise ValueError(f"d_model must be a multiple of heads; got d_model={d_model}, heads={heads}")
        self.heads = heads
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend; True in the mask (rank 2 or 4) means that a query may attend."""
        q, k, v = (w(x).unflatten(-1, (self.heads, -1)) for w in (self.W_q, self.W_k, self.W_v))
        scores = torch.einsum("bihd,bjhd->bhij", q * q.shape[-1] ** -0.5, k)
        if mask is None:
            weights = scores.softmax(-1)
        else:
            dead = ~mask.any(-1, keepdim=True)
            weights = scores.masked_fill(~(mask | dead), float("-inf")).softmax(-1).masked_fill(dead, 0.0)
        return self.W_o(torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2))


IMPLEMENTATION = Implementation(
    name="einsum",
    contract="layer",
    target=EinsumAttention,
    summary="every product is an einsum; no transpose",
    idea="The letters say which axes meet. Good to read, and as fast as the batched form.",
)
