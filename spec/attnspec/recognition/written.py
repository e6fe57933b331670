"""What the source of a class says about it: its trees, and the sizes that it keeps in its module."""

import ast
import inspect
import textwrap
from typing import Any

from torch import nn

from ..loading import Target
from .names import NEW_NAMES, match_names


def trees_of(found: Any) -> list[ast.Module]:
    """Return the source of a class and of its own bases, or of a function, as far as it can be read."""
    trees = []
    for cls in getattr(found, "__mro__", (found,)):
        if cls in (object, nn.Module):
            continue
        try:
            trees.append(ast.parse(textwrap.dedent(inspect.getsource(cls))))
        except (OSError, TypeError, SyntaxError):
            continue
    return trees


def global_sizes(target: Target) -> dict[str, str]:
    """Return the sizes that a class and its neighbours read from their module, as scripts keep them."""
    numbers = {
        name: value
        for name, value in target.namespace.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    own = [v for v in target.namespace.values() if inspect.isclass(v) and issubclass(v, nn.Module)]
    read = {
        node.id
        for cls in (*own, target.object)
        if getattr(cls, "__module__", None) == getattr(target.object, "__module__", "")
        for tree in trees_of(cls)
        for node in ast.walk(tree)
        if isinstance(node, ast.Name)
    }
    matched = match_names([name for name in numbers if name in read], NEW_NAMES)
    return {n: m for m, n in matched.items() if m in ("d_model", "max_len", "dropout", "heads", "d_k")}
