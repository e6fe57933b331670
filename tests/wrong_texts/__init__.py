"""Wrong cores and layers as people write them: one right text each, and a small edit for every mistake."""

from .heads import HEADS
from .masks import MASKS
from .numbers import NUMBERS
from .texts import TEXTS, build

WRONG = (*MASKS, *NUMBERS, *HEADS)

__all__ = ["TEXTS", "WRONG", "build"]
