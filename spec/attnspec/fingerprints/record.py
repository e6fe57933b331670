"""What a known mistake is, and what it means to have found one."""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from .._inputs import CoreInputs, LayerInputs

WrongCore = Callable[[CoreInputs], Tensor | None]
WrongLayer = Callable[[LayerInputs], Tensor | None]


@dataclass(frozen=True)
class Fingerprint:
    """A known mistake, as a reference that makes it.

    A reference takes float64 inputs and returns the wrong output in float64, or None where the mistake
    cannot be made or changes nothing. NaN in its output means that there the mistake fixes no number (how
    a row that sees nothing comes out is a matter of its own), unless `literal` says that NaN is meant.

    Attributes:
        name: Stable, `family.mistake`.
        sentence: What is wrong, for people.
        fix: What to change.
        needs: The feature of a call that must be there for the mistake to show.
        core: The wrong output of a core.
        layer: The wrong output of a layer; for a mistake of the core it is made from `core`.
        literal: NaN in the reference is what the mistaken code returns.
        special_of: The more general mistake to name where no call can tell the two apart.
    """

    name: str
    sentence: str
    fix: str
    needs: str = ""
    core: WrongCore | None = field(default=None, repr=False)
    layer: WrongLayer | None = field(default=None, repr=False)
    literal: bool = False
    special_of: str | None = None

    def applies_to(self, inputs: CoreInputs | LayerInputs) -> bool:
        """Return whether the mistake can be made on such inputs."""
        return (self.layer if isinstance(inputs, LayerInputs) else self.core) is not None


@dataclass(frozen=True)
class Match:
    """A mistake that explains what the code returned.

    Attributes:
        fingerprint: The mistake.
        inputs: On how many different inputs the wrong outputs agree.
    """

    fingerprint: Fingerprint
    inputs: int
