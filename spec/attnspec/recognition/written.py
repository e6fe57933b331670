"""What the source of a class says about its construction: its config, and sizes kept in its module."""

import ast
import inspect
import sys
import textwrap
from collections.abc import Mapping
from typing import Any

from torch import nn

from ..loading import Target
from .names import CONFIG_NAMES, NEW_NAMES, match_names


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


def config_parameter(parameters: Mapping[str, inspect.Parameter]) -> str | None:
    """Return the parameter that is a config object, if it stands for the sizes."""
    names = [n for n, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    if not names or {"d_model", "heads"} <= set(match_names(names, NEW_NAMES)):
        return None
    first = names[0]
    annotation = getattr(parameters[first].annotation, "__name__", str(parameters[first].annotation))
    looks = (
        first in CONFIG_NAMES
        or first.endswith(("config", "cfg", "args"))
        or annotation.strip("'").endswith(("Config", "Args"))
    )
    return first if looks else None


def config_uses(found: Any, config: str | None) -> dict[str, str]:
    """Return the names that a class reads from its config, each with how: `attribute` or `subscript`."""
    names = set(CONFIG_NAMES) if config is None else {config}
    trees = [tree for cls in (found, *handed_to(found, names)) for tree in trees_of(cls)]
    used: dict[str, str] = {}
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Attribute) and _is_config(node.value, names):
            used.setdefault(node.attr, "attribute")
        elif (
            isinstance(node, ast.Subscript)
            and _is_config(node.value, names)
            and isinstance(node.slice, ast.Constant)
        ):
            used.setdefault(str(node.slice.value), "subscript")
    return {name: how for name, how in used.items() if name not in ("get", "items", "keys")}


def handed_to(found: Any, names: set[str]) -> list[Any]:
    """Return the classes of the same module that a class constructs with its config, and theirs."""
    around = vars(sys.modules.get(getattr(found, "__module__", ""), object))
    reached: list[Any] = []
    waiting = [found]
    while waiting:
        for node in (node for tree in trees_of(waiting.pop()) for node in ast.walk(tree)):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            cls = around.get(node.func.id)
            if inspect.isclass(cls) and cls not in reached and any(_is_config(a, names) for a in node.args):
                reached.append(cls)
                waiting.append(cls)
    return reached


def _is_config(node: ast.expr, names: set[str]) -> bool:
    if isinstance(node, ast.Name):
        return node.id in names
    return (
        isinstance(node, ast.Attribute)
        and node.attr in names
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )


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
