"""Precision classes: where an implementation rounds, as unit roundoffs for each dtype.

The tolerance is computed from these (see `conformance.bound`); none is chosen by hand.
"""

from dataclasses import dataclass

import torch

from ._errors import UnknownNameError


def unit_roundoff(dtype: torch.dtype) -> float:
    """Return half the distance from 1 to the next number of `dtype`."""
    return torch.finfo(dtype).eps / 2


@dataclass(frozen=True, slots=True)
class Roundoffs:
    """The unit roundoffs of one implementation at one dtype.

    Attributes:
        accumulation: Of sums and products inside a kernel.
        operands: Of queries and keys after they were scaled, where that is stored.
        scores: Of stored scores.
        probabilities: Of stored probabilities.
        output: Of everything that leaves the implementation or passes between its projections.
        smallest_normal: Below this a probability may be flushed to zero.
        output_smallest_normal: Below this an output may be flushed to zero.
    """

    accumulation: float
    operands: float
    scores: float
    probabilities: float
    output: float
    smallest_normal: float
    output_smallest_normal: float


@dataclass(frozen=True, slots=True)
class Precision:
    """A named precision class.

    Attributes:
        name: What a declaration says.
        meaning: One line for people.
        wide_scores: Scores and scaled operands are held in at least float32.
        wide_probabilities: Probabilities are held in at least float32.
    """

    name: str
    meaning: str
    wide_scores: bool
    wide_probabilities: bool

    def at(self, dtype: torch.dtype) -> Roundoffs:
        """Return the roundoffs for inputs of `dtype`; sums are held in at least float32 in every class."""
        wide = torch.promote_types(dtype, torch.float32)
        score_dtype = wide if self.wide_scores else dtype
        probability_dtype = wide if self.wide_probabilities else dtype
        return Roundoffs(
            accumulation=unit_roundoff(wide),
            operands=unit_roundoff(score_dtype),
            scores=unit_roundoff(score_dtype),
            probabilities=unit_roundoff(probability_dtype),
            output=unit_roundoff(dtype),
            smallest_normal=torch.finfo(probability_dtype).tiny,
            output_smallest_normal=torch.finfo(dtype).tiny,
        )


PRECISIONS: dict[str, Precision] = {
    p.name: p
    for p in (
        Precision("stored", "scores and probabilities are stored in the input's dtype", False, False),
        Precision(
            "mixed", "scores and softmax in float32, probabilities rounded to the input's dtype", True, False
        ),
        Precision(
            "fused", "scores and probabilities stay in float32; only the output is rounded", True, True
        ),
    )
}


def precision(name: str) -> Precision:
    """Return the precision class called `name`.

    Raises:
        UnknownNameError: If there is none.
    """
    if name not in PRECISIONS:
        raise UnknownNameError("precision class", name, PRECISIONS)
    return PRECISIONS[name]
