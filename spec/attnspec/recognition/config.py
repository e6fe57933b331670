"""What a class reads from its config, as its source says: names, in which way, and what it does without."""

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .names import CONFIG_NAMES, NEW_NAMES, match_names, parameters_of
from .written import trees_of

# What a config is asked for that is no size, what takes all of it, and what only looks at it.
METHODS = ("get", "pop", "items", "keys", "values", "copy", "update", "setdefault", "to_dict", "__dict__")
WHOLE = ("items", "values", "copy", "to_dict", "__dict__")
LOOKS = ("getattr", "hasattr", "isinstance", "type", "print", "deepcopy")


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


@dataclass(frozen=True, slots=True)
class Use:
    """How a class reads one name from its config.

    Attributes:
        how: `attribute` or `subscript`; `get` and `pop` are subscripts, `getattr` and `vars` attributes.
        optional: Whether it does without the name as well.
    """

    how: str
    optional: bool


def config_uses(found: Any, config: str) -> dict[str, Use]:
    """Return the names that a class, or what it hands its config to, reads from the config."""
    read = [(node, names) for tree, names in _readers(found, config) for node in ast.walk(tree)]
    uses: dict[str, Use] = {}
    for name, use in (said for node, names in read if (said := _use(node, names))):
        before = uses.get(name, use)
        uses[name] = Use(before.how, before.optional or use.optional)
    tested = {word for node, names in read if (word := _tested(node, names))}
    return {name: Use(use.how, use.optional or name in tested) for name, use in uses.items()}


def config_escapes(found: Any, config: str) -> bool:
    """Return whether a config is walked through, or handed to what has no source here: all may be read."""
    return any(
        _escapes(node, names, getattr(tree, "followed", ()))
        for tree, names in _readers(found, config)
        for node in ast.walk(tree)
    )


def derived_names(cls: type) -> set[str]:
    """Return the names from which a config class itself works something out, beside keeping them."""
    nodes = [node for tree in trees_of(cls) for node in ast.walk(tree)]
    kept = [node.value for node in nodes if isinstance(node, ast.Assign) and _keeps(node)]
    names = {node.id for node in nodes if isinstance(node, ast.Name) and _loads(node) and node not in kept}
    return names | {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and _loads(node) and _is_self(node.value)
    }


def _keeps(node: ast.Assign) -> bool:
    """Whether a statement is `self.name = name`."""
    kept = [target.attr for target in node.targets if isinstance(target, ast.Attribute)]
    return isinstance(node.value, ast.Name) and kept == [node.value.id]


def _readers(found: Any, config: str) -> list[tuple[ast.Module, set[str]]]:
    """Return the sources that see the config of a class, each with the names that it has there.

    A class or a function of the same module that is handed the config sees it too; the calls that are
    followed so are kept as `followed` of the tree.
    """
    reached, waiting = [found], [(found, {config})]
    read: list[tuple[ast.Module, set[str]]] = []
    while waiting:
        here, names = waiting.pop()
        around = vars(sys.modules.get(getattr(here, "__module__", ""), object))
        trees = trees_of(here)
        names = names | {name for tree in trees for name in _aliases(tree, names)}
        for tree in trees:
            tree.followed = []  # type: ignore[attr-defined]
            for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
                callee = around.get(call.func.id) if isinstance(call.func, ast.Name) else None
                if not (inspect.isclass(callee) or inspect.isfunction(callee)):
                    continue
                called = _called_there(call, callee, names)
                if called is None or not trees_of(callee):
                    continue
                tree.followed.append(call)  # type: ignore[attr-defined]
                if callee not in reached:
                    reached.append(callee)
                    waiting.append((callee, {called}))
            read.append((tree, names))
    return read


def _aliases(tree: ast.Module, names: set[str]) -> Iterator[str]:
    """Yield what else the config is called: `self.cfg = config`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and _is_config(node.value, names):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield target.id
                elif isinstance(target, ast.Attribute) and _is_self(target.value):
                    yield target.attr


def _called_there(call: ast.Call, callee: Any, names: set[str]) -> str | None:
    """Return the parameter that gets the config in a call, if one does."""
    parameters = list(parameters_of(callee))
    at = next((i for i, word in enumerate(call.args) if _is_config(word, names)), None)
    if at is not None:
        return parameters[at] if at < len(parameters) else None
    return next((word.arg for word in call.keywords if word.arg and _is_config(word.value, names)), None)


def _use(node: ast.AST, names: set[str]) -> tuple[str, Use] | None:
    """Return the name that an expression reads from the config, if it does."""
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and _is_config(node.value, names):
        return None if node.attr in METHODS else (node.attr, Use("attribute", False))
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        if _is_config(node.value, names):
            return str(node.slice.value), Use("subscript", False)
        return (str(node.slice.value), Use("attribute", False)) if _is_vars(node.value, names) else None
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Name) and node.func.id == "getattr":
        word = _constant(node.args, 1) if node.args and _is_config(node.args[0], names) else None
        return None if word is None else (word, Use("attribute", len(node.args) > 2))
    if isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "pop"):
        word, optional = _constant(node.args, 0), node.func.attr == "get" or len(node.args) > 1
        if word is not None and _is_config(node.func.value, names):
            return word, Use("subscript", optional)
        if word is not None and _is_vars(node.func.value, names):
            return word, Use("attribute", optional)
    return None


def _tested(node: ast.AST, names: set[str]) -> str | None:
    """Return the name that an expression looks for in the config: `hasattr`, or `in`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "hasattr":
        return _constant(node.args, 1) if node.args and _is_config(node.args[0], names) else None
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
        return _constant([node.left], 0) if _is_config(node.comparators[0], names) else None
    return None


def _escapes(node: ast.AST, names: set[str], followed: Sequence[ast.Call]) -> bool:
    """Whether an expression takes the config as a whole, where nobody sees what is read of it."""
    if isinstance(node, ast.Attribute):
        return _is_config(node.value, names) and node.attr in WHOLE
    if isinstance(node, ast.Subscript):
        return _is_config(node.value, names) and not isinstance(node.slice, ast.Constant)
    if isinstance(node, ast.Call):
        whole = any(_is_config(word, names) for word in (*node.args, *(k.value for k in node.keywords)))
        plain = isinstance(node.func, ast.Name) and node.func.id in LOOKS
        handed_up = isinstance(node.func, ast.Attribute) and node.func.attr == "__init__"
        return whole and not plain and not handed_up and node not in followed
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.BoolOp | ast.Compare | ast.If | ast.IfExp):
        return False
    if isinstance(node, ast.keyword | ast.UnaryOp):
        return False
    return any(_is_config(child, names) for child in ast.iter_child_nodes(node) if _loads(child))


def _loads(node: ast.AST) -> bool:
    return isinstance(getattr(node, "ctx", None), ast.Load)


def _constant(words: Sequence[ast.expr], at: int) -> str | None:
    word = words[at] if at < len(words) else None
    return word.value if isinstance(word, ast.Constant) and isinstance(word.value, str) else None


def _is_vars(node: ast.expr, names: set[str]) -> bool:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "vars"):
        return False
    return len(node.args) == 1 and _is_config(node.args[0], names)


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _is_config(node: ast.AST, names: set[str]) -> bool:
    if isinstance(node, ast.Name):
        return node.id in names
    return isinstance(node, ast.Attribute) and node.attr in names and _is_self(node.value)
