"""Which keys a query may see by position alone, as a band of the score matrix, whole or in blocks."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from ._types import Window


class Band(NamedTuple):
    """The positions that the causal flag and the window allow.

    Query `i` stands at key position `i + kv_len - q_len`, so the last query stands at the last key.

    Attributes:
        q_len: Query positions.
        kv_len: Key positions.
        left: How many keys before its own position a query sees; -1 is all.
        right: How many keys after it; -1 is all.
    """

    q_len: int
    kv_len: int
    left: int
    right: int

    @classmethod
    def of(cls, query: Tensor, key: Tensor, *, causal: bool, window: Window | None) -> "Band":
        """Return the band of one call; positions are the last axis but one of both tensors."""
        left, right = (-1, -1) if window is None else window
        return cls(query.shape[-2], key.shape[-2], left, 0 if causal else right)

    @property
    def offset(self) -> int:
        """Where query 0 stands among the keys; negative if it stands before all of them."""
        return self.kv_len - self.q_len

    def allows(
        self, rows: slice, columns: slice, device: torch.device
    ) -> Bool[Tensor, "rows columns"] | None:
        """Say which keys of a block its queries may see; None is all of them."""
        if self.left < 0 and self.right < 0:
            return None
        position = torch.arange(rows.start + self.offset, rows.stop + self.offset, device=device)[:, None]
        distance = torch.arange(columns.start, columns.stop, device=device) - position
        near = distance >= -self.left if self.left >= 0 else distance <= self.right
        return near & (distance <= self.right) if self.left >= 0 and self.right >= 0 else near

    def key_blocks(self, size: int) -> Iterator[tuple[slice, slice]]:
        """Cut the keys into blocks, and yield the queries that see anything of one, with the block."""
        for start in range(0, self.kv_len, size):
            stop = min(start + size, self.kv_len)
            first = 0 if self.right < 0 else max(0, start - self.right - self.offset)
            last = self.q_len if self.left < 0 else min(self.q_len, stop + self.left - self.offset)
            if first < last:
                yield slice(first, last), slice(start, stop)

    def query_blocks(self, size: int) -> Iterator[tuple[slice, slice]]:
        """Cut the queries into blocks, one at least; yield each with the keys that it sees anything of."""
        for start in range(0, max(self.q_len, 1), size):
            stop = min(start + size, self.q_len)
            first = 0 if self.left < 0 else min(max(0, start + self.offset - self.left), self.kv_len)
            last = self.kv_len if self.right < 0 else min(self.kv_len, stop + self.offset + self.right)
            yield slice(start, stop), slice(first, max(first, last))


def cut_block(matrix: Tensor, rows: slice, columns: slice) -> Tensor:
    """Return a block of a mask or bias, a view; an axis of size 1 stands for all positions."""
    matrix = matrix[..., rows, :] if matrix.shape[-2] > 1 else matrix
    return matrix[..., columns] if matrix.shape[-1] > 1 else matrix
