"""One place of a layout: a stored tensor taken apart into canonical ones, and put together again."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from .._errors import ShapeError
from .._slots import FUSED, parse_place
from ..weights import LayerWeights


@dataclass(frozen=True)
class Place:
    """Where one tensor is kept.

    Attributes:
        canonical: The canonical tensors in it: one, or the three of a fused place.
        path: Its name, without the prefix; `*` counts heads.
        transposed: Rows and columns are exchanged.
        interleaved: The parts follow each other within each head, not one after the other as a whole.
    """

    canonical: tuple[str, ...]
    path: str
    transposed: bool
    interleaved: bool

    @classmethod
    def parse(cls, name: str, text: str) -> Self:
        """Build a place from its description in a layout."""
        path, axes = parse_place(name, text)
        parts = FUSED.get(name, (name,))
        words = axes.split()
        rows = (
            "d_model" if name == "W_o" else next(word for word in words if "heads" in word or len(words) == 1)
        )
        factors = rows.split("*")
        interleaved = len(parts) > 1 and factors.index(str(len(parts))) > 0
        return cls(parts, path, len(words) == 2 and words[0] != rows, interleaved)

    @property
    def starred(self) -> bool:
        """Whether it stands for one tensor a head."""
        return "*" in self.path.split(".")

    def paths(self, heads: int) -> list[str]:
        """Return the names it stands for."""
        if not self.starred:
            return [self.path]
        return [
            ".".join(str(i) if part == "*" else part for part in self.path.split(".")) for i in range(heads)
        ]

    def take_apart(self, stored: list[Tensor], widths: Mapping[str, int], heads: int) -> dict[str, Tensor]:
        """Return the canonical tensors of a place.

        Args:
            stored: One tensor, or one a head.
            widths: The rows of each canonical tensor of a fused place.
            heads: Into how many heads interleaved rows are cut.

        Raises:
            ShapeError: If the rows are not those that the widths make.
        """
        whole = torch.cat([t.t() if self.transposed and t.dim() == 2 else t for t in stored])
        if len(self.canonical) == 1:
            return {self.canonical[0]: whole}
        rows = [widths[name[2:]] for name in self.canonical]
        if whole.shape[0] != sum(rows):
            raise ShapeError(f"{self.path} has {whole.shape[0]} rows; these heads make {sum(rows)}")
        if not self.interleaved:
            return dict(zip(self.canonical, whole.split(rows), strict=True))
        parts = whole.unflatten(0, (heads, -1)).split([r // heads for r in rows], dim=1)
        return {name: part.flatten(0, 1) for name, part in zip(self.canonical, parts, strict=True)}

    def put_together(self, weights: LayerWeights) -> list[Tensor] | None:
        """Return what is to be stored: one tensor or one a head; None if there is nothing (no bias).

        Raises:
            ShapeError: If the parts of a fused matrix have inputs of different widths.
        """
        parts = [getattr(weights, name) for name in self.canonical]
        if all(part is None for part in parts):
            return None
        found = [
            _zeros(weights, name) if part is None else part
            for name, part in zip(self.canonical, parts, strict=True)
        ]
        if len({part.shape[1:] for part in found}) > 1:
            widths = ", ".join(
                f"{name} {part.shape[1]}" for name, part in zip(self.canonical, found, strict=True)
            )
            raise ShapeError(
                f"{self.path} fuses projections of one input; here their inputs' widths are {widths}"
            )
        if self.interleaved:
            heads = [part.unflatten(0, (weights.heads, -1)) for part in found]
            whole = torch.cat(heads, dim=1).flatten(0, 1)
        else:
            whole = torch.cat(found)
        if self.transposed:
            whole = whole.t()
        if not self.starred:
            return [whole]
        count = weights.heads if self.canonical[0][2:] == "q" else weights.kv_heads
        return list(whole.chunk(count))


def _zeros(weights: LayerWeights, bias: str) -> Tensor:
    matrix: Tensor = getattr(weights, f"W_{bias[2:]}")
    return matrix.new_zeros(matrix.shape[0])
