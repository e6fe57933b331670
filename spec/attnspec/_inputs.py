"""What one attention call is given: the plain data that oracles, bounds and subjects share."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor

from .weights import LayerWeights

Alignment = Literal["lower_right", "upper_left"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Everything beside the tensors that are attended over.

    Attributes:
        mask: True where a query may attend; broadcastable to `batch heads q_len kv_len`.
        bias: Added to the scaled scores; broadcastable likewise.
        causal: Whether the future is hidden.
        alignment: Where query 0 stands when lengths differ (contract, semantics 5).
        window: Inclusive distances `(left, right)`; -1 is unbounded; None is no window.
        softcap: Bound of the scores before bias and mask; None is no cap.
        scale: Factor on the scores; None is `d_k ** -0.5`.
    """

    mask: Tensor | None = None
    bias: Tensor | None = None
    causal: bool = False
    alignment: Alignment = "lower_right"
    window: tuple[int, int] | None = None
    softcap: float | None = None
    scale: float | None = None

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed."""
        return replace(self, **changes)

    def options(self) -> dict[str, Any]:
        """Return the fields of `Options` alone, for handing them on."""
        return {f.name: getattr(self, f.name) for f in fields(Options)}

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor that is given, by field name."""
        return {f.name: v for f in fields(self) if isinstance(v := getattr(self, f.name), Tensor)}

    def map_tensors(self, function: Any) -> Self:
        """Return a copy whose tensors went through `function(name, tensor)`."""
        return replace(self, **{name: function(name, tensor) for name, tensor in self.tensors().items()})

    def to(self, dtype: torch.dtype) -> Self:
        """Return a copy whose floating tensors have `dtype`."""
        return self.map_tensors(lambda _, t: t.to(dtype) if t.is_floating_point() else t)


@dataclass(frozen=True, kw_only=True)
class CoreInputs(Options):
    """One call of a core: projected heads in front of positions."""

    query: Tensor
    key: Tensor
    value: Tensor

    @property
    def sizes(self) -> Mapping[str, int]:
        """The size of each axis, by its name in the vocabulary."""
        batch, heads, q_len, d_k = self.query.shape
        kv_heads, kv_len, d_v = self.key.shape[1], self.key.shape[2], self.value.shape[3]
        return {
            "batch": batch, "heads": heads, "kv_heads": kv_heads, "group": heads // max(kv_heads, 1),
            "q_len": q_len, "kv_len": kv_len, "d_k": d_k, "d_v": d_v,
        }  # fmt: skip

    @property
    def factor(self) -> float:
        """The scale that applies, the default filled in."""
        return float(self.query.shape[-1]) ** -0.5 if self.scale is None else float(self.scale)

    @property
    def offset(self) -> int:
        """How far query 0 stands from key 0."""
        return self.key.shape[2] - self.query.shape[2] if self.alignment == "lower_right" else 0

    @property
    def extent(self) -> tuple[int, int]:
        """The window and the causal flag as one pair of inclusive distances."""
        left, right = self.window if self.window is not None else (-1, -1)
        return left, 0 if self.causal else right


@dataclass(frozen=True, kw_only=True)
class LayerInputs(Options):
    """One call of a layer: inputs of the model's width, with the weights to use.

    Attributes:
        query: `batch q_len d_model`.
        key: `batch kv_len d_model`; None means that keys come from `query`.
        value: `batch kv_len d_model`; None means that values come from where keys come from.
        weights: Canonical weights.
    """

    query: Tensor
    key: Tensor | None = None
    value: Tensor | None = None
    weights: LayerWeights = field(kw_only=True)

    @property
    def key_input(self) -> Tensor:
        """Where the keys come from."""
        return self.query if self.key is None else self.key

    @property
    def value_input(self) -> Tensor:
        """Where the values come from."""
        return self.key_input if self.value is None else self.value

    def to(self, dtype: torch.dtype) -> Self:
        """Return a copy whose floating tensors, weights included, have `dtype`."""
        return replace(super().to(dtype), weights=self.weights.to(dtype))
