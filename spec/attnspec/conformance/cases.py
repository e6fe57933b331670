"""A case: the structure of one call and a seed. Tensors are built from it, never drawn element by element."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Self

import torch
from torch import Generator, Tensor

from .._inputs import Alignment, CoreInputs, LayerInputs
from ..weights import LayerWeights
from .tensors import ALIVE, LAYOUTS, MASKS, VALUES

Sources = Literal["self", "memory", "separate"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """The structure of one call.

    Attributes:
        batch: And every further axis of the vocabulary: its size.
        dtype: Name of a torch dtype.
        values: Family of the tensors' values.
        mask: Family of the mask, or None.
        mask_axes: On which axes the mask varies, as a word of `b`, `h`, `q`, `k`; elsewhere it has size 1.
        mask_rank: 4 or 2.
        bias: On which axes the bias varies, or None for no bias.
        layout: Memory layout of the tensors.
        sources: For a layer: where keys and values come from.
        projection_bias: For a layer: whether its projections have a bias.
        grad_mode: Whether autograd watches the calls; one of `GRAD_MODES`.
        seed: Of the generator.
    """

    batch: int = 1
    heads: int = 1
    kv_heads: int = 1
    q_len: int = 1
    kv_len: int = 1
    d_k: int = 1
    d_v: int = 1
    dtype: str = "float32"
    values: str = "normal"
    mask: str | None = None
    mask_axes: str = "bhqk"
    mask_rank: int = 4
    bias: str | None = None
    causal: bool = False
    alignment: Alignment = "lower_right"
    window: tuple[int, int] | None = None
    softcap: float | None = None
    scale: float | None = None
    layout: str = "contiguous"
    sources: Sources = "self"
    projection_bias: bool = True
    grad_mode: str = "plain"
    seed: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed."""
        return replace(self, **changes)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype itself."""
        found: torch.dtype = getattr(torch, self.dtype)
        return found

    @property
    def d_model(self) -> int:
        """Width of the model, for a layer."""
        return self.heads * self.d_k

    def generator(self, salt: int = 0) -> Generator:
        """Return a generator of its own for this case."""
        return Generator().manual_seed(self.seed * 1009 + salt)

    def describe(self) -> str:
        """Return the case in one line, leaving out what has its default."""
        sizes = " ".join(f"{n}={getattr(self, n)}" for n in self._size_names())
        words = [sizes, self.dtype]
        if self.values != "normal":
            words.append(f"values={self.values}")
        if self.mask:
            words.append(f"mask={self.mask}[{self.mask_axes}]" + (" rank 2" if self.mask_rank == 2 else ""))
        for name in ("bias", "window", "softcap", "scale"):
            if getattr(self, name) is not None:
                words.append(f"{name}={getattr(self, name)}")
        if self.causal:
            words.append("causal" + ("" if self.q_len == self.kv_len else f" {self.alignment}"))
        if self.layout != "contiguous":
            words.append(self.layout)
        if self.sources != "self":
            words.append(self.sources)
        if self.grad_mode != "plain":
            words.append(self.grad_mode)
        words += [f"{k}={v}" for k, v in self.extra.items()]
        return " ".join(words)

    def _size_names(self) -> tuple[str, ...]:
        names = ["batch", "heads", "kv_heads", "q_len", "kv_len", "d_k", "d_v"]
        if self.kv_heads == self.heads:
            names.remove("kv_heads")
        if self.d_v == self.d_k:
            names.remove("d_v")
        return tuple(names)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self)

    def _mask_shape(self, axes: str) -> tuple[int, ...]:
        sizes = {"b": self.batch, "h": self.heads, "q": self.q_len, "k": self.kv_len}
        return tuple(size if axis in axes else 1 for axis, size in sizes.items())

    def _build_mask(self) -> Tensor | None:
        if self.mask is None:
            return None
        mask = self._with_own_position(MASKS[self.mask](self._mask_shape(self.mask_axes), self.generator(4)))
        return mask[0, 0] if self.mask_rank == 2 else mask

    def _with_own_position(self, mask: Tensor) -> Tensor:
        """Let each query see its own position where a causal or window rule could leave its mask nothing."""
        positional = self.causal or self.window is not None
        if self.mask not in ALIVE or not positional or mask.shape[-2] == 1 or mask.shape[-1] == 1:
            return mask
        offset = self.kv_len - self.q_len if self.alignment == "lower_right" else 0
        own = torch.arange(self.q_len)[:, None] + offset == torch.arange(self.kv_len)[None, :]
        return mask | own

    def _build_bias(self) -> Tensor | None:
        if self.bias is None:
            return None
        values = (
            torch.randn(self._mask_shape(self.bias), generator=self.generator(5), dtype=torch.float64) * 1.5
        )
        return values.to(self.torch_dtype)

    def _options(self) -> dict[str, Any]:
        return {
            "mask": self._build_mask(), "bias": self._build_bias(), "causal": self.causal,
            "alignment": self.alignment, "window": self.window, "softcap": self.softcap, "scale": self.scale,
        }  # fmt: skip

    def tensor(self, salt: int, *shape: int) -> Tensor:
        """Build one tensor of this case's family, dtype and layout."""
        values = VALUES[self.values](shape, self.generator(salt)).to(self.torch_dtype)
        return LAYOUTS[self.layout](values)

    def core_inputs(self) -> CoreInputs:
        """Build the tensors for a core."""
        return CoreInputs(
            query=self.tensor(1, self.batch, self.heads, self.q_len, self.d_k),
            key=self.tensor(2, self.batch, self.kv_heads, self.kv_len, self.d_k),
            value=self.tensor(3, self.batch, self.kv_heads, self.kv_len, self.d_v),
            **self._options(),
        )

    def layer_inputs(self) -> LayerInputs:
        """Build the tensors and weights for a layer."""
        weights = LayerWeights.random(
            self.d_model, self.heads, kv_heads=self.kv_heads, d_k=self.d_k, d_v=self.d_v,
            bias=self.projection_bias, generator=self.generator(6), dtype=self.torch_dtype,
        )  # fmt: skip
        query = self.tensor(1, self.batch, self.q_len, self.d_model)
        key = value = None
        if self.sources != "self":
            key = self.tensor(2, self.batch, self.kv_len, self.d_model)
        if self.sources == "separate":
            value = self.tensor(3, self.batch, self.kv_len, self.d_model)
        return LayerInputs(query=query, key=key, value=value, weights=weights, **self._options())
