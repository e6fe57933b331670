"""One layer in experiments: constructed and called as it is known so far."""

from typing import Any

import torch
from torch import Tensor

from .._inputs import LayerInputs
from ..conformance.cases import Case
from ..conformance.layer_subject import Layer, LayerSubject
from ..declaration import Declaration
from .experiments import Probe, attempt, batch_of, moved, rows_changed, seen_layer

BASE = Case(batch=2, heads=3, kv_heads=3, q_len=4, kv_len=4, d_k=6, d_v=6, seed=17, dtype="float32")


class Runner:
    """Runs the layer as it is known so far; `changes` try another declaration."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe

    def case(self, **changes: Any) -> Case:
        """Return a case that the layer can take; its sizes all differ where they are free."""
        case = BASE.replace(**changes)
        if self.probe.space.has("grouped") and not self.probe.space.fixed and "heads" not in changes:
            case = case.replace(heads=4, kv_heads=2)
        fitted = self.probe.space.fit(case)
        return case if fitted is None else fitted

    def subject(self, **changes: Any) -> LayerSubject:
        """Return the layer under a declaration with some changes."""
        return LayerSubject(
            self.probe.declaration.replace(**changes),
            self.probe.namespace,
            self.probe.space,
            name=self.probe.target.name,
        )

    def layer(self, case: Case, **changes: Any) -> tuple[Layer, LayerInputs]:
        """Return one module with weights in it, and inputs for it."""
        return self.subject(**changes).build_any(case), case.layer_inputs()

    def positions_meet(self, declaration: Declaration) -> bool:
        """Return whether a call by a declaration runs, gives numbers, and one position changes another."""
        changes = {"call": declaration.call, "arguments": declaration.arguments}
        built, _ = attempt(lambda: self.layer(self.case(), **changes))
        if built is None:
            return False
        layer, inputs = built
        before, _ = attempt(lambda: layer.run(inputs).output)
        after, _ = attempt(lambda: layer.run(inputs.replace(query=moved(inputs.query, 1, 1))).output)
        if before is None or after is None or before.shape != after.shape:
            return False
        return bool(before.isfinite().all() and rows_changed(before, after)[:, 0].any())

    def see(self, mask: Tensor | None, changes: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Return what each query is seen to use under a mask, where that can be told, and the output."""
        source = "memory" if self.probe.space.has("cross") else "self"
        case = self.case(sources=source).replace(
            batch=batch_of(mask, BASE), q_len=BASE.q_len, kv_len=BASE.kv_len, causal=False
        )
        layer, inputs = self.layer(case, **changes)
        if mask is not None and mask.shape[1] > 1:
            mask = mask[:, :1].expand(-1, inputs.weights.heads, -1, -1)
        inputs = inputs.replace(mask=mask)
        if mask is None or bool(mask.all()):
            return torch.empty(0), torch.empty(0), layer.run(inputs).output
        return *seen_layer(lambda changed: layer.run(changed).output, inputs), layer.run(inputs).output
