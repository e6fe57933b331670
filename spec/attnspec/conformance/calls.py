"""The calls of the code under test: the latest one, and on request all that one case makes."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Call:
    """One call, as it was when it was made.

    Attributes:
        function: What was called.
        handed: The very arguments, by contract name.
        given: The same, with copies of the tensors.
        state: The parameters and buffers of a module.
        sizes: What it was constructed with.
        training: Whether a module was in train mode.
        grad: Whether gradients were recorded.
        inference: Whether the call was made in inference mode.
    """

    function: Any
    handed: Mapping[str, Any]
    given: Mapping[str, Any]
    state: Mapping[str, Tensor] | None
    sizes: Mapping[str, Any]
    training: bool
    grad: bool
    inference: bool

    def tensors(self) -> list[Tensor]:
        """Return every tensor that a script has to write out."""
        return [v for v in self.given.values() if isinstance(v, Tensor)] + list((self.state or {}).values())


class LastCall:
    """The latest call of the code under test: what was called, and with what."""

    function: Any = None
    again: Callable[[], Any] | None = None
    trouble: Exception | None = None
    given: ClassVar[dict[str, Any]] = {}
    state: dict[str, Tensor] | None = None
    grad = True
    inference = False
    given_sizes: ClassVar[dict[str, Any]] = {}
    sequence: ClassVar[list[Call]] = []
    _log: ClassVar[list[Call] | None] = None


def remember(function: Any, given: Mapping[str, Any], again: Callable[[], Any]) -> None:
    """Keep the latest call, for the script that reproduces a failure and for the trace that explains it."""
    LastCall.function, LastCall.given, LastCall.again = function, dict(given), again
    LastCall.state = function.state_dict() if isinstance(function, nn.Module) else None
    LastCall.grad, LastCall.inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    if LastCall._log is not None:
        LastCall._log.append(_as_it_is())


@contextmanager
def recorded() -> Iterator[list[Call]]:
    """Collect every call that is made while the block around it runs."""
    LastCall._log = []
    try:
        yield LastCall._log
    finally:
        LastCall._log = None


@contextmanager
def aside() -> Iterator[None]:
    """Forget the calls of the block around it: they tell what a failure means, and are no part of it."""
    kept = {
        name: getattr(LastCall, name)
        for name in ("function", "again", "given", "state", "grad", "inference", "given_sizes", "_log")
    }
    LastCall._log = None
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(LastCall, name, value)


def latest_call() -> list[Call]:
    """Return the latest call alone, if there was one."""
    return [] if LastCall.function is None or LastCall.again is None else [_as_it_is()]


def _as_it_is() -> Call:
    state = LastCall.state
    return Call(
        LastCall.function,
        LastCall.given,
        {n: _copied(v) if isinstance(v, Tensor) else v for n, v in LastCall.given.items()},
        None if state is None else {n: _copied(t) for n, t in state.items()},
        dict(LastCall.given_sizes),
        bool(getattr(LastCall.function, "training", False)),
        LastCall.grad,
        LastCall.inference,
    )


def _copied(tensor: Tensor) -> Tensor:
    with torch.inference_mode(False):
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)
