"""All known mistakes, each as a core and as a layer where it can be."""

from dataclasses import replace

from .bank_heads import HEADS
from .bank_layer import LAYER
from .bank_masks import MASKS
from .bank_positions import POSITIONS
from .bank_scores import SCORES
from .bank_softmax import SOFTMAX
from .builder import lift
from .record import Fingerprint


def _complete(found: Fingerprint) -> Fingerprint:
    return found if found.core is None or found.layer is not None else replace(found, layer=lift(found.core))


BANK: tuple[Fingerprint, ...] = tuple(
    _complete(f) for part in (MASKS, POSITIONS, SCORES, SOFTMAX, HEADS, LAYER) for f in part
)
