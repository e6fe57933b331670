"""attnspec: the executable standard for multi-head attention.

Everything named here is imported when it is first asked for, so `import attnspec` itself is cheap and
does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import conventions as conventions
    from . import oracle as oracle
    from . import stages as stages
    from ._check import check_implementation as check_implementation
    from ._clauses import CONTRACT_VERSION as CONTRACT_VERSION
    from ._clauses import Clause as Clause
    from ._clauses import clauses as clauses
    from ._errors import AttnspecError as AttnspecError
    from ._errors import DeclarationError as DeclarationError
    from ._errors import DtypeError as DtypeError
    from ._errors import NameClashError as NameClashError
    from ._errors import ReportError as ReportError
    from ._errors import ShapeError as ShapeError
    from ._errors import TargetError as TargetError
    from ._errors import UnknownNameError as UnknownNameError
    from ._errors import UnsupportedFeatureError as UnsupportedFeatureError
    from ._inputs import CoreInputs as CoreInputs
    from ._inputs import LayerInputs as LayerInputs
    from ._registry import Implementation as Implementation
    from ._registry import registry as registry
    from .conformance import strategies as strategies
    from .declaration import Declaration as Declaration
    from .report import Report as Report
    from .weights import LayerWeights as LayerWeights

_PLACES: dict[str, str] = {
    "AttnspecError": "_errors",
    "CONTRACT_VERSION": "_clauses",
    "Clause": "_clauses",
    "CoreInputs": "_inputs",
    "Declaration": "declaration",
    "DeclarationError": "_errors",
    "DtypeError": "_errors",
    "Implementation": "_registry",
    "LayerInputs": "_inputs",
    "LayerWeights": "weights",
    "NameClashError": "_errors",
    "Report": "report",
    "ReportError": "_errors",
    "ShapeError": "_errors",
    "TargetError": "_errors",
    "UnknownNameError": "_errors",
    "UnsupportedFeatureError": "_errors",
    "check_implementation": "_check",
    "clauses": "_clauses",
    "conventions": "",
    "oracle": "",
    "registry": "_registry",
    "stages": "",
    "strategies": "conformance",
}

__all__ = [*sorted(_PLACES)]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("attnspec")
        except PackageNotFoundError:
            return "unknown"
    if name == "parametrize_with_clauses":
        return import_module("attnspec_pytest").parametrize_with_clauses
    if name not in _PLACES:
        raise AttributeError(f"module 'attnspec' has no attribute {name!r}")
    place = _PLACES[name]
    module = import_module(f".{place}", __name__) if place else import_module(f".{name}", __name__)
    if place == "conformance":
        return import_module(f".conformance.{name}", __name__)
    return getattr(module, name) if place else module


def __dir__() -> list[str]:
    return [*__all__, "__version__", "parametrize_with_clauses"]
