"""A core under test behind one interface, whatever its own conventions are.

A subject takes the contract's inputs and gives the contract's output.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .._inputs import CoreInputs
from ..declaration import Declaration
from ..precision import Precision, precision
from .caller import CORE_AXES, Caller, Outcome
from .failures import SubjectError
from .guard import guarded
from .space import Space


class CoreSubject:
    """A core function under test."""

    def __init__(
        self,
        function: Any,
        declaration: Declaration,
        namespace: Mapping[str, Any],
        space: Space,
        *,
        name: str,
    ) -> None:
        self.name, self.function, self.declaration, self.space = name, function, declaration, space
        self.precision: Precision = precision(declaration.precision or "stored")
        self._call = Caller(declaration, namespace, axes=CORE_AXES)

    def run(self, inputs: CoreInputs, *, want_weights: bool = False, dropout: float = 0.0) -> Outcome:
        """Call the core.

        Raises:
            SubjectError: If it raises.
            NotApplicable: If it does not take one of the arguments.
        """
        tensors = {"query": inputs.query, "key": inputs.key, "value": inputs.value}
        return self._call(
            self.function,
            tensors,
            inputs,
            d=inputs.query.shape[-1],
            want_weights=want_weights,
            dropout=dropout,
        )

    def gradients(
        self, inputs: CoreInputs, upstream: Tensor, *, wrt: tuple[str, ...]
    ) -> tuple[Outcome, dict[str, Tensor]]:
        """Call the core and return the gradients of the named tensors for one upstream gradient."""
        leaves = {name: getattr(inputs, name).detach().requires_grad_() for name in wrt}
        outcome = self.run(inputs.replace(**leaves))
        if not outcome.output.requires_grad:
            raise SubjectError("returned", "an output that is cut off from the graph: no gradient can flow")
        found = guarded(
            torch.autograd.grad, outcome.output, list(leaves.values()), upstream, allow_unused=True
        )
        filled = (
            torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves.values(), found, strict=True)
        )
        return outcome, dict(zip(leaves, filled, strict=True))
