"""What every part of the validation shares: records, what is in range, gradients, comparisons."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import drawn
import torch
from torch import Tensor

import right
from attnspec._inputs import CoreInputs, LayerInputs

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
FLOAT16_LIMIT = 3e4


@dataclass
class Record:
    """What one implementation did in one dtype: the largest error/bound of every comparison."""

    ratios: list[float] = field(default_factory=list)
    elements: int = 0
    worst: str = ""

    def add(self, error: Tensor, bound: Tensor, case: str) -> None:
        """Add one comparison."""
        if not bound.numel():
            return
        ratio = torch.where(error == 0, torch.zeros_like(error), error / bound)
        largest = float(ratio.nan_to_num(torch.inf, torch.inf).max())
        if largest > max(self.ratios, default=0.0):
            self.worst = case
        self.ratios.append(largest)
        self.elements += bound.numel()

    def summary(self) -> dict[str, Any]:
        """Return the figures."""
        return {
            "comparisons": len(self.ratios), "elements": self.elements,
            "violations": sum(r > 1 for r in self.ratios), "largest": round(max(self.ratios), 4),
            "median": round(statistics.median(self.ratios), 4), "worst_case": self.worst,
        }  # fmt: skip


Records = dict[tuple[str, str, str], Record]


def in_range(dtype: str, *tensors: Tensor) -> bool:
    """Say whether a half type holds these magnitudes; beyond, there is no right answer in it."""
    return dtype != "float16" or all(
        float(t.detach().abs().max()) < FLOAT16_LIMIT for t in tensors if t.numel()
    )


def scores_in_range(dtype: str, inputs: CoreInputs) -> bool:
    """Say whether scores, before and after scaling, are in range."""
    wide = inputs.to(torch.float64)
    size = wide.query.abs() @ right.shared(wide)[0].abs().mT
    return in_range(dtype, size * max(1.0, abs(inputs.factor)))


def seen_by(inputs: CoreInputs) -> Tensor:
    """Return where a query may attend, an infinite bias included."""
    seen = right.visible(inputs)
    return seen if inputs.bias is None else seen & (inputs.bias != -torch.inf)


def difference(got: Tensor, exact: Tensor) -> Tensor:
    """Return the absolute error; not a number counts as infinite."""
    return (got.detach().double() - exact).abs().nan_to_num(torch.inf, torch.inf)


def leaves(inputs: Any) -> Any:
    """Return a copy whose floating tensors are leaves that want a gradient."""
    changed = inputs.map_tensors(
        lambda _, t: t.detach().clone().requires_grad_() if t.is_floating_point() else t
    )
    if isinstance(inputs, LayerInputs):
        changed = changed.replace(
            weights=inputs.weights.map(lambda _, t: t.detach().clone().requires_grad_())
        )
    return changed


def gradients(inputs: Any, output: Tensor, upstream: Tensor) -> dict[str, Tensor]:
    """Return the gradients of every leaf."""
    tensors = {
        n: t
        for n, t in inputs.tensors().items()
        if t.requires_grad and not (n == "bias" and is_layer(inputs))
    }
    if is_layer(inputs):
        tensors |= inputs.weights.tensors()
    if not output.requires_grad:
        return {n: torch.zeros_like(t) for n, t in tensors.items()}
    found = torch.autograd.grad(output, list(tensors.values()), upstream, allow_unused=True)
    return {
        n: torch.zeros_like(t) if g is None else g for (n, t), g in zip(tensors.items(), found, strict=True)
    }


def is_layer(inputs: Any) -> bool:
    """Say whether inputs are a layer's."""
    return isinstance(inputs, LayerInputs)


def upstream_for(output: Tensor, seed: int, dtype: torch.dtype) -> Tensor:
    """Return an upstream gradient, of a family drawn from the seed."""
    g = torch.Generator().manual_seed(seed + 1)
    family = ("normal", "ones", "outlier", "small", "integers", "offset")[seed % 6]
    return drawn.values(family, tuple(output.shape), g).to(dtype)


def compare(quantity: str, name: str, which: str, got: Mapping[str, Tensor], exact: Mapping[str, Tensor],
            bounds: Mapping[str, Tensor], case: str, records: Records) -> None:  # fmt: skip
    """Compare gradients by name."""
    for tensor, bound in bounds.items():
        if tensor in got:
            records[f"{quantity} {tensor}", name, which].add(
                difference(got[tensor], exact[tensor]), bound, case
            )
