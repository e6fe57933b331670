"""Canonical weights of a layer, and the fused layouts that checkpoints use.

Canonical means: four matrices as `torch.nn.Linear` stores them (`out_features in_features`), heads
major: rows `h * d_k : (h + 1) * d_k` belong to head `h`. A fused layout is either stacked
(`3 heads d_k`) or interleaved by head (`heads 3 d_k`); the two have the same shape, so a checkpoint
of the other kind loads without a word and is wrong. That is why every conversion here names it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal, Self

import torch
from torch import Tensor

from ._errors import ShapeError, UnknownNameError

FusedLayout = Literal["stacked", "interleaved"]
MATRICES = ("W_q", "W_k", "W_v", "W_o")
BIASES = ("b_q", "b_k", "b_v", "b_o")


@dataclass(frozen=True, kw_only=True)
class LayerWeights:
    """Canonical weights: four matrices, up to four biases, and the number of heads.

    Attributes:
        W_q: `heads*d_k d_model`.
        W_k: `kv_heads*d_k d_model`.
        W_v: `kv_heads*d_v d_model`.
        W_o: `d_model heads*d_v`.
        b_q: `heads*d_k`, or None; `b_k`, `b_v`, `b_o` likewise.
        heads: Query heads.
        kv_heads: Key and value heads; divides `heads`.
    """

    W_q: Tensor
    W_k: Tensor
    W_v: Tensor
    W_o: Tensor
    b_q: Tensor | None = None
    b_k: Tensor | None = None
    b_v: Tensor | None = None
    b_o: Tensor | None = None
    heads: int
    kv_heads: int

    def __post_init__(self) -> None:
        """Refuse sizes that no layer can have."""
        if self.heads < 1 or self.kv_heads < 1 or self.heads % self.kv_heads:
            raise ShapeError(
                f"LayerWeights: kv_heads must divide heads; got kv_heads={self.kv_heads}, heads={self.heads}"
            )
        for name, rows in (("W_q", self.heads), ("W_k", self.kv_heads), ("W_v", self.kv_heads)):
            if getattr(self, name).shape[0] % rows:
                raise ShapeError(
                    f"LayerWeights: the rows of {name} must be a multiple of its heads;"
                    f" got {getattr(self, name).shape[0]} rows for {rows} heads"
                )

    @property
    def d_model(self) -> int:
        """Width of the query input."""
        return self.W_q.shape[1]

    @property
    def d_k(self) -> int:
        """Width of one query or key head."""
        return self.W_q.shape[0] // self.heads

    @property
    def d_v(self) -> int:
        """Width of one value head."""
        return self.W_v.shape[0] // self.kv_heads

    @property
    def has_bias(self) -> bool:
        """Whether any projection has a bias."""
        return any(getattr(self, name) is not None for name in BIASES)

    def tensors(self) -> dict[str, Tensor]:
        """Return the matrices and biases that are there, by canonical name."""
        return {f.name: v for f in fields(self) if isinstance(v := getattr(self, f.name), Tensor)}

    def replace(self, **changes: Tensor | None) -> Self:
        """Return a copy with some tensors changed."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def map(self, function: Callable[[str, Tensor], Tensor]) -> Self:
        """Return a copy whose tensors went through `function(name, tensor)`."""
        return replace(self, **{name: function(name, tensor) for name, tensor in self.tensors().items()})  # type: ignore[arg-type]

    def to(self, dtype: torch.dtype) -> Self:
        """Return a copy in `dtype`."""
        return self.map(lambda _, tensor: tensor.to(dtype))

    @classmethod
    def random(
        cls,
        d_model: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        d_k: int | None = None,
        d_v: int | None = None,
        bias: bool = True,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> Self:
        """Draw weights whose projections keep the variance of their input; no two are alike.

        Args:
            d_model: Width of the model.
            heads: Query heads.
            kv_heads: Key and value heads; None means `heads`.
            d_k: Width of a query or key head; None means `d_model // heads`.
            d_v: Width of a value head; None means `d_k`.
            bias: Whether to draw biases too.
            generator: Source of randomness; None is torch's own.
            dtype: Of the result.
        """
        kv_heads = heads if kv_heads is None else kv_heads
        d_k = d_model // heads if d_k is None else d_k
        d_v = d_k if d_v is None else d_v

        def draw(*shape: int, factor: float) -> Tensor:
            return (torch.randn(*shape, generator=generator, dtype=torch.float64) * factor).to(dtype)

        rows = {"q": heads * d_k, "k": kv_heads * d_k, "v": kv_heads * d_v, "o": d_model}
        columns = {"q": d_model, "k": d_model, "v": d_model, "o": heads * d_v}
        drawn = {f"W_{x}": draw(rows[x], columns[x], factor=columns[x] ** -0.5) for x in rows}
        if bias:
            drawn |= {f"b_{x}": draw(rows[x], factor=0.5) for x in rows}
        return cls(**drawn, heads=heads, kv_heads=kv_heads)

    def fused(self, layout: FusedLayout) -> tuple[Tensor, Tensor | None]:
        """Return the query, key and value projections as one matrix and one bias.

        Args:
            layout: `stacked` or `interleaved`.

        Returns:
            The matrix `3*heads*d_k d_model`, and the bias or None; new tensors.

        Raises:
            ShapeError: If heads are grouped or `d_v` differs from `d_k`: such weights do not fuse evenly.
        """
        if self.kv_heads != self.heads or self.d_v != self.d_k:
            raise ShapeError(
                "LayerWeights.fused: needs kv_heads = heads and d_v = d_k;"
                f" got kv_heads={self.kv_heads}, heads={self.heads}, d_k={self.d_k}, d_v={self.d_v}"
            )
        matrices, biases = [self.W_q, self.W_k, self.W_v], [self.b_q, self.b_k, self.b_v]
        if all(bias is None for bias in biases):
            return self._fuse(matrices, layout), None
        # One that is left out, as Whisper's of the keys, is a bias of zeros.
        filled = [m.new_zeros(m.shape[0]) if b is None else b for m, b in zip(matrices, biases, strict=True)]
        return self._fuse(matrices, layout), self._fuse(filled, layout)

    def _fuse(self, parts: list[Tensor], layout: FusedLayout) -> Tensor:
        if layout == "stacked":
            return torch.cat(parts)
        return torch.stack([part.unflatten(0, (self.heads, -1)) for part in parts], dim=1).flatten(0, 2)

    @classmethod
    def from_fused(
        cls,
        matrix: Tensor,
        bias: Tensor | None,
        W_o: Tensor,
        b_o: Tensor | None,
        *,
        heads: int,
        layout: FusedLayout,
    ) -> Self:
        """Take apart a fused projection; the inverse of `fused`.

        Raises:
            ShapeError: If the rows are not a multiple of `3 * heads`.
        """
        if matrix.shape[0] % (3 * heads):
            raise ShapeError(
                "LayerWeights.from_fused: rows must be a multiple of 3*heads;"
                f" got {matrix.shape[0]}, heads={heads}"
            )
        W_q, W_k, W_v = split_fused(matrix, heads=heads, layout=layout)
        b_q, b_k, b_v = (None, None, None) if bias is None else split_fused(bias, heads=heads, layout=layout)
        return cls(
            W_q=W_q,
            W_k=W_k,
            W_v=W_v,
            W_o=W_o,
            b_q=b_q,
            b_k=b_k,
            b_v=b_v,
            b_o=b_o,
            heads=heads,
            kv_heads=heads,
        )

    @classmethod
    def from_mapping(cls, tensors: Mapping[str, Tensor], *, heads: int, kv_heads: int | None = None) -> Self:
        """Build from tensors under their canonical names, as a safetensors file holds them.

        Raises:
            UnknownNameError: If one of the four matrices is not there, naming it and what is there.
        """
        for name in MATRICES:
            if name not in tensors:
                raise UnknownNameError("tensor", name, tensors)
        known = {name: tensors[name] for name in (*MATRICES, *BIASES) if name in tensors}
        return cls(**known, heads=heads, kv_heads=heads if kv_heads is None else kv_heads)


def split_fused(tensor: Tensor, *, heads: int, layout: FusedLayout) -> tuple[Tensor, Tensor, Tensor]:
    """Return the query, key and value rows of a fused matrix or bias, each heads major."""
    if layout == "stacked":
        q, k, v = tensor.chunk(3)
        return q, k, v
    q, k, v = tensor.unflatten(0, (heads, 3, -1)).unbind(1)
    return q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
