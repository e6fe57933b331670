"""What probes share: one call, held against the oracle or against another call, with a plain yes or no."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from .. import oracle
from .._errors import DeclarationError
from .._inputs import CoreInputs, LayerInputs
from ..conformance.bound import core_bound
from ..conformance.bound_layer import layer_bound
from ..conformance.cases import Case
from ..conformance.failures import NotApplicable, SubjectError
from ..conformance.space import Space
from ..declaration import Declaration
from ..loading import Target
from ..precision import precision
from .findings import Finding, How, Question


@dataclass
class Probe:
    """What the experiments of one target have decided so far.

    Attributes:
        target: What is looked at.
        namespace: Names for its expressions.
        declaration: What is declared or was found so far; `stated` is what was declared before.
        space: What it can be asked.
        heads: Query heads in experiments.
        findings: And questions, absent: see `Recognition`.
    """

    target: Target
    namespace: Mapping[str, Any]
    declaration: Declaration
    space: Space
    stated: Declaration = field(default_factory=Declaration)
    heads: int = 3
    findings: list[Finding] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)

    def set(self, **changes: Any) -> None:
        """Change what is known about the space."""
        self.space = replace(self.space, **changes)

    def declare(self, **changes: Any) -> None:
        """Change what is known about the declaration."""
        self.declaration = self.declaration.replace(**changes)

    def add(self, *features: str) -> None:
        """Note features that are there, unless they are declared as unsupported."""
        self.set(features=(self.space.features | set(features)) - set(self.declaration.unsupported))

    def drop(self, feature: str, reason: str) -> None:
        """Note a feature that is not there, and why."""
        self.set(features=self.space.features - {feature})
        self.absent[feature] = reason

    def find(self, topic: str, value: str, how: How, override: str = "") -> None:
        """Note one finding."""
        self.findings.append(Finding(topic, value, how, override))

    def ask(self, clause: str, text: str, declare: str) -> None:
        """Note a question."""
        self.questions.append(Question(clause, text, declare))


def attempt(call: Callable[[], Any]) -> tuple[Any, SubjectError | NotApplicable | None]:
    """Return a call's result, or what stopped it."""
    try:
        return call(), None
    except DeclarationError as error:
        return None, SubjectError("parameters", str(error))
    except (SubjectError, NotApplicable) as error:
        return None, error


def agrees(output: Tensor | None, inputs: CoreInputs | LayerInputs, *, factor: float = 4.0) -> bool:
    """Return whether an output is the exact one, up to a generous multiple of the bound.

    Generous, because a probe tells conventions apart, which differ in every digit; clauses are precise.
    """
    if output is None:
        return False
    rounding = precision("stored").at(inputs.query.dtype)
    if isinstance(inputs, CoreInputs):
        core = oracle.core(inputs)
        exact, allowed = core.output, core_bound(inputs, core, rounding)
    else:
        layer = oracle.layer(inputs)
        exact, allowed = layer.output, layer_bound(inputs, layer, rounding)
    if output.shape != exact.shape:
        return False
    return bool(((output.detach().double() - exact.detach()).abs() <= factor * allowed.detach()).all())


def distance(output: Tensor | None, inputs: LayerInputs) -> float:
    """Return how far an output is from the exact one, relative to its size."""
    if output is None:
        return float("inf")
    exact = oracle.layer(inputs).output
    if output.shape != exact.shape:
        return float("inf")
    gap = (output.detach().double() - exact).norm() / exact.norm().clamp_min(torch.finfo(torch.float64).tiny)
    return float(gap.nan_to_num(nan=float("inf")))


REFUSALS = (
    "NotImplementedError",
    "ValueError",
    "TypeError",
    "AssertionError",
    "UnsupportedFeatureError",
    "ShapeError",
    "DtypeError",
)


def is_refusal(error: Any, word: str) -> bool:
    """Return whether an option is refused on purpose: by an error made for it, or a message that names it."""
    if isinstance(error, NotApplicable):
        return True
    return isinstance(error, SubjectError) and (
        error.refusal or error.kind in REFUSALS or (error.kind == "RuntimeError" and word in error.message)
    )


def rows_changed(before: Tensor, after: Tensor) -> Tensor:
    """Return which rows (all axes but the last) of an output moved, by more than float32 rounding could."""
    before, after = before.detach().double().nan_to_num(0.0), after.detach().double().nan_to_num(0.0)
    scale = before.abs().amax().clamp_min(torch.finfo(torch.float32).tiny)
    return (after - before).abs().amax(-1) > scale * torch.finfo(torch.float32).eps * 64


def moved(tensor: Tensor, axis: int, position: int) -> Tensor:
    """Return a copy with other content at one position of one axis."""
    other = tensor.clone()
    piece = other.select(axis, position)
    piece.copy_(
        torch.randn(piece.shape, generator=torch.Generator().manual_seed(97 + position), dtype=torch.float64)
        * 2
    )
    return other


def batch_of(mask: Tensor | None, base: Case) -> int:
    """Return how many sequences a call with this mask has: its own, or those of the usual case."""
    return base.batch if mask is None or mask.shape[0] == 1 else mask.shape[0]


def seen_core(run: Callable[[CoreInputs], Tensor], inputs: CoreInputs) -> Tensor:
    """Return which key each query is seen to use (`batch heads q_len kv_len`), moving one value at a time."""
    before = run(inputs)
    columns = [
        rows_changed(before, run(inputs.replace(value=moved(inputs.value, 2, j))))
        for j in range(inputs.value.shape[2])
    ]
    return torch.stack(columns, dim=-1)


def seen_layer(run: Callable[[LayerInputs], Tensor], inputs: LayerInputs) -> tuple[Tensor, Tensor]:
    """Return which key each query is seen to use (`batch q_len kv_len`), and where the experiment can tell.

    Where queries and keys come from one tensor, a position moves its own query too: nothing is learnt there.
    """
    before = run(inputs)
    name = "query" if inputs.key is None else "key"
    columns = []
    for j in range(inputs.key_input.shape[1]):
        changes = {name: moved(getattr(inputs, name), 1, j)}
        if inputs.value is not None:
            changes["value"] = moved(inputs.value, 1, j)
        columns.append(rows_changed(before, run(inputs.replace(**changes))))
    seen = torch.stack(columns, dim=-1)
    telling = torch.ones_like(seen)
    if inputs.key is None:
        telling &= ~torch.eye(seen.shape[-1], dtype=torch.bool)
    return seen, telling


def hides_future(seen: Tensor, telling: Tensor | None = None) -> bool:
    """Return whether no query is seen to use a later key, while some use an earlier one."""
    size = seen.shape[-1]
    late, early = (
        torch.ones(size, size, dtype=torch.bool).triu(1),
        torch.ones(size, size, dtype=torch.bool).tril(-1),
    )
    return not bool((seen & late).any()) and bool((seen & early).any())


def settle_alignment(probe: Probe, seen: Tensor) -> None:
    """Compare what two queries see of five keys with both alternatives."""
    shapes = {
        "lower_right": torch.ones(2, 5, dtype=torch.bool).tril(3),
        "upper_left": torch.ones(2, 5, dtype=torch.bool).tril(0),
    }
    for alignment, expected in shapes.items():
        if seen.shape[-2:] == expected.shape and bool((seen == expected).all()):
            probe.set(alignment=alignment)
            if alignment == "upper_left":
                probe.find(
                    "causal", "aligned upper left when lengths differ", "probed", "alignment=lower_right"
                )
            return
    probe.find(
        "causal",
        "with other lengths it fits neither lower right nor upper left",
        "probed",
        "alignment=upper_left",
    )
