"""Whether autograd watches a call: code that asks, or that writes in place, must give the same number.

A case names one of the modes, and every call of it is made so, unless its check asks for gradients itself.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor

# plain: gradients could be recorded, but no input asks for one; recorded: each input asks for one.
GRAD_MODES = ("plain", "no_grad", "inference_mode", "recorded")


class GradMode:
    """The mode in which the calls of the case at hand are made."""

    current: ClassVar[str] = "plain"

    @classmethod
    @contextmanager
    def of(cls, mode: str) -> Iterator[None]:
        """Make every call of the block around it in `mode`."""
        before, cls.current = cls.current, mode
        try:
            yield
        finally:
            cls.current = before


def mode_of(given: Mapping[str, Any]) -> str:
    """Return the mode for a call: that of the case, unless the call itself is about gradients."""
    asks = any(isinstance(value, Tensor) and value.requires_grad for value in given.values())
    own = asks or not torch.is_grad_enabled() or torch.is_inference_mode_enabled()
    return "plain" if own else GradMode.current


@contextmanager
def entered(mode: str) -> Iterator[None]:
    """Enter a mode of torch."""
    if mode == "no_grad":
        with torch.no_grad():
            yield
    elif mode == "inference_mode":
        with torch.inference_mode():
            yield
    else:
        yield


def recording(given: Mapping[str, Any], mode: str) -> dict[str, Any]:
    """Return the arguments of a call; in the mode `recorded` each tensor of numbers asks for its gradient.

    A tensor that is handed over twice stays one tensor.
    """
    if mode != "recorded":
        return dict(given)
    leaves: dict[int, Tensor] = {}
    for value in given.values():
        if isinstance(value, Tensor) and value.is_floating_point():
            leaves.setdefault(id(value), value.detach().requires_grad_())
    return {name: leaves.get(id(value), value) for name, value in given.items()}


def released(tensor: Tensor, mode: str) -> Tensor:
    """Return what came out as any other tensor: without a graph that only the mode made, and free of it."""
    if mode == "inference_mode":
        return tensor.clone()
    return tensor.detach() if mode == "recorded" else tensor
