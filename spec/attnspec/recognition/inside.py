"""The attention modules of a whole model: found by weights and names, each distinct kind once."""

import sys
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from .._errors import TargetError
from ..conformance.failures import SubjectError
from ..conformance.guard import guarded
from ..declaration import Declaration
from ..loading import Target
from .places import held_tensors, roles_by_name


@dataclass
class Kind:
    """One kind of attention inside a model.

    Attributes:
        module: The first of its kind, as an instance.
        paths: Where modules of this kind stand.
    """

    module: nn.Module
    paths: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The class, and the first path."""
        return f"{self.paths[0] or '(the model itself)'} {type(self.module).__name__}"


def find_attention(target: Target, declared: Declaration | None = None) -> tuple[list[Kind], dict[str, str]]:
    """Return the kinds of attention inside a model, and what was not taken for attention, with the reason.

    Args:
        target: An instance of a model, or a class or function that makes one without arguments.
        declared: Its `new` makes the model where arguments are needed.

    Raises:
        TargetError: If there is no model.
    """
    model = make_model(target, declared or Declaration())
    candidates = {path: inner for path, inner in model.named_modules() if is_attention(inner)}
    kinds: dict[Any, Kind] = {}
    left: dict[str, str] = {}
    for path, inner in candidates.items():
        within = [p for p in candidates if p != path and p.startswith(f"{path}." if path else "")]
        if within:
            if _is_named(inner):
                left[path] = f"it holds {within[0]}, which is attention itself"
            continue
        shapes = tuple((name, tuple(p.shape)) for name, p in inner.named_parameters())
        kinds.setdefault((type(inner), shapes), Kind(inner)).paths.append(path)
    for path, inner in model.named_modules():
        if (
            _is_named(inner)
            and path not in candidates
            and path not in left
            and not any(p == path or p.startswith(f"{path}.") for p in candidates)
        ):
            left[path] = "no query, key and value projections were found in it"
    return list(kinds.values()), left


def _is_named(module: nn.Module) -> bool:
    name = type(module).__name__.lower()
    return "attn" in name or "attention" in name


def make_model(target: Target, declared: Declaration) -> nn.Module:
    """Return the model that a target names, with the same weights each time.

    Raises:
        TargetError: If it cannot be made, or is no model.
    """
    found = target.object
    if isinstance(found, nn.Module):
        return found.eval()
    names = {**target.namespace, "_target": found}
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = guarded(eval, declared.new, names) if declared.new else guarded(found)
    except SubjectError as error:
        name = getattr(found, "__name__", "Model")
        place = f"\n  {error.place}" if error.place else ""
        raise TargetError(
            f"{target.name}: the model cannot be made: {error}{place}\n  say how: --new '{name}(...)'"
        ) from None
    if not isinstance(model, nn.Module):
        raise TargetError(f"{target.name}: it is a {type(model).__name__}, not a model")
    return model.eval()


def inner_target(target: Target, path: str, declared: Declaration) -> Target:
    """Return the module that stands at a path of a model, as a target of its own: an instance.

    Raises:
        TargetError: If the model cannot be made, or nothing stands there.
    """
    model = make_model(target, declared)
    try:
        found = model.get_submodule(path)
    except AttributeError as error:
        raise TargetError(f"{target.name}: {error}") from None
    home = sys.modules.get(type(found).__module__)
    namespace = dict(vars(home)) if home is not None else {}
    return Target(Kind(found, [path]).name, found, namespace, getattr(home, "__file__", None))


def is_attention(module: nn.Module) -> bool:
    """Whether a module holds projections of queries, keys and values, close below itself."""
    tensors = {path: t for path, t in held_tensors(module).items() if path.count(".") <= 3}
    roles = roles_by_name(tensors)
    if not (roles & {"qkv"} or {"q", "kv"} <= roles or {"q", "k", "v"} <= roles):
        return False
    return not isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential)
