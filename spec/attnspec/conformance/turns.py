"""Calls of one subject in turn, at the same sizes: each may leave something behind for the next."""

import random
from collections.abc import Iterator

from .cases import Case
from .space import Space

# What a call may be given; None and False stand more than once, so that a call without comes often.
CHOICES: dict[str, tuple[object, ...]] = {
    "mask": (None, None, "random", "padding"),
    "causal": (False, True),
    "bias": (None, None, "hqk"),
    "window": (None, None, None, (2, 1), (1, 0)),
    "softcap": (None, None, None, 1.5, 0.6),
    "scale": (None, None, None, 0.3, 0.8),
}


def turns(space: Space, case: Case, count: int) -> Iterator[Case]:
    """Yield calls that differ from a case in their data and their options, never in a size.

    A mask that is kept, a buffer that is keyed by sizes, a flag that sticks: all show only where the next
    call has the same sizes, and often only where it has one option less.

    Args:
        space: What the subject can express.
        case: Gives the sizes; its seed decides everything.
        count: How many calls.
    """
    draw = random.Random(case.seed)
    for number in range(1, count + 1):
        options = {name: draw.choice(values) for name, values in CHOICES.items() if space.has(name)}
        fitted = space.fit(case.replace(**options, seed=case.seed + 10 * number))
        if fitted is not None:
            yield fitted
