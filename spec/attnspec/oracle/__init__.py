"""Two oracles by different roads; they must agree before anything is judged.

`vectorised` composes the typed stages in float64. `scalar` is three nested loops over plain Python
numbers and knows nothing of the stages.
"""

from .agreement import require_agreement
from .vectorised import CoreResult, LayerResult, core, layer, project

__all__ = ["CoreResult", "LayerResult", "core", "layer", "project", "require_agreement"]
