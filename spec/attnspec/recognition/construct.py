"""How a layer is constructed: by the names of its parameters, through a config, or not at all."""

import ast
import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from torch import nn

from .._errors import TargetError
from ..declaration import Declaration
from ..loading import Target
from .names import CONFIG_NAMES, NEW_CONSTANTS, NEW_NAMES, match_names, parameters_of

TWICE = {"d_in": "d_model", "d_out": "d_model", "d_key_in": "d_model", "d_value_in": "d_model"}
SUPPLIED = "d_model heads kv_heads d_k d_v bias dropout max_len"


def new_expression(target: Target, declared: Declaration) -> str:
    """Return the expression that constructs the layer.

    Raises:
        TargetError: If a parameter without a default stands for nothing known; the message shows a `--new`.
    """
    if declared.new is not None:
        return declared.new
    if isinstance(target.object, nn.Module):
        return "deepcopy(_target)"
    parameters = parameters_of(target.object)
    config = config_parameter(parameters)
    if config is not None:
        return _with_config(target, config, parameters)
    words, missing = argument_words(parameters)
    if missing:
        raise _cannot(target, missing[0], words)
    words += [f"{name}={value!r}" for name, value in target.namespace.get("_extra", {}).items()]
    return f"_target({', '.join(words)})"


def argument_words(parameters: Mapping[str, inspect.Parameter]) -> tuple[list[str], list[str]]:
    """Return `name=meaning` for every parameter with a known name, and the required ones without."""
    by_parameter = {parameter: meaning for meaning, parameter in match_names(parameters, NEW_NAMES).items()}
    words, missing = [], []
    for name, p in parameters.items():
        if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
            continue
        meaning = by_parameter.get(name) or TWICE.get(name) or _further(name, by_parameter)
        required = p.default is p.empty
        if meaning == "batch_first":
            meaning = "True"
        if meaning is None and required:
            meaning = NEW_CONSTANTS.get(name)
        if meaning is not None and (required or _wanted(name, meaning, p.default)):
            words.append(meaning if p.kind is p.POSITIONAL_ONLY else f"{name}={meaning}")
        elif required:
            missing.append(name)
    return words, missing


def _further(name: str, taken: Mapping[str, str]) -> str | None:
    """Return the meaning of a second parameter for one size, such as `n_embd` beside `hidden_size`."""
    again = (m for m in ("d_model", "dropout", "bias") if name in NEW_NAMES[m] and name not in taken)
    return next(again, "dropout" if "drop" in name else None)


def _wanted(name: str, meaning: str, default: Any) -> bool:
    """Whether a parameter that has a default is worth setting: not where its name means something else."""
    if meaning == "bias":
        return isinstance(default, bool)
    if meaning == "dropout":
        return isinstance(default, int | float) and not isinstance(default, bool)
    return not isinstance(default, str | bool) or meaning == "True"


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


def _with_config(target: Target, config: str, parameters: Mapping[str, inspect.Parameter]) -> str:
    cls = config_class(target, parameters[config])
    inner = _from_class(target, cls) if cls is not None else _from_source(target, config)
    rest = {name: p for name, p in parameters.items() if name != config}
    words, missing = argument_words(rest)
    if missing:
        raise _cannot(target, missing[0], [f"{config}=..."])
    return f"_target({', '.join([inner, *words])})"


def config_class(target: Target, parameter: inspect.Parameter) -> type | None:
    """Return the class of the config: the annotation, or the module's one config class that fits."""
    annotation = parameter.annotation
    if isinstance(annotation, str):
        annotation = target.namespace.get(annotation.strip("'\"").split(" | ")[0], annotation)
    if inspect.isclass(annotation) and annotation not in (dict, inspect.Parameter.empty, object, str):
        return annotation if annotation.__module__ != "types" else None
    named = [
        v
        for n, v in target.namespace.items()
        if inspect.isclass(v)
        and not issubclass(v, nn.Module)
        and n.endswith(("Config", "Args", "Configuration"))
        and not n.startswith("PreTrained")
    ]
    own = [v for v in named if v.__module__ == target.namespace.get("__name__")] or named
    uses = config_uses(target.object, parameter.name)
    # An attribute may be set where it cannot be seen; most of what is read must be known.
    fitting = [
        v
        for v in own
        if "subscript" not in uses.values() and 2 * len(set(uses) & _held_names(v)) >= len(uses)
    ]
    return fitting[0] if len(fitting) == 1 else None


def _held_names(cls: type) -> set[str]:
    """Return the names that an object of a config class answers to."""
    names = {f.name for f in fields(cls)} if is_dataclass(cls) else set(parameters_of(cls))
    return names | set(dir(cls)) | set(getattr(cls, "attribute_map", {}))


def _from_class(target: Target, cls: type) -> str:
    """Return the call of a config class, its fields matched by name."""
    name = (
        cls.__name__
        if target.namespace.get(cls.__name__) is cls
        else f"__import__({cls.__module__!r}, fromlist=['_']).{cls.__name__}"
    )
    if is_dataclass(cls):
        required = {
            f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING and f.init
        }
        absent, kind = inspect.Parameter.empty, inspect.Parameter.KEYWORD_ONLY
        names = {
            f.name: inspect.Parameter(f.name, kind, default=absent if f.name in required else f.default)
            for f in fields(cls)
            if f.init
        }
    else:
        names = parameters_of(cls) or {}
        if any(p.kind is p.VAR_KEYWORD for p in names.values()) or not names:
            known = getattr(cls, "attribute_map", {})
            used = [
                n for n in (*known, *vars(cls), *config_uses(target.object, None)) if not n.startswith("_")
            ]
            names |= {
                n: inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=0)
                for n in used
                if n not in names and _is_size(n)
            }
    words, missing = argument_words({n: p for n, p in names.items() if p.kind is not p.VAR_KEYWORD})
    if missing:
        raise _cannot(target, f"{missing[0]} of {cls.__name__}", [])
    if hasattr(cls, "_attn_implementation"):
        words.append("attn_implementation='eager'")
    return f"{name}({', '.join(words)})"


def _is_size(name: str) -> bool:
    return any(name in words for words in NEW_NAMES.values())


def _from_source(target: Target, config: str) -> str:
    """Return a namespace, or a dictionary, with everything that the source reads from its config."""
    uses = config_uses(target.object, config)
    if not uses:
        raise _cannot(target, config, [])
    meanings = {parameter: meaning for meaning, parameter in match_names(uses, NEW_NAMES).items()}
    words = []
    for name in uses:
        meaning = (
            meanings.get(name)
            or TWICE.get(name)
            or _further(name, meanings)
            or NEW_CONSTANTS.get(name)
            or _guess(name)
        )
        if meaning is None:
            raise _cannot(target, f"{config}.{name}", [])
        words.append((name, "True" if meaning == "batch_first" else meaning))
    if "subscript" in uses.values():
        return "{" + ", ".join(f"{name!r}: {meaning}" for name, meaning in words) + "}"
    return f"SimpleNamespace({', '.join(f'{name}={meaning}' for name, meaning in words)})"


def _guess(name: str) -> str | None:
    if "drop" in name:
        return "dropout"
    if "bias" in name:
        return "bias"
    if name.startswith(("use_", "is_", "has_", "with_", "enable_")):
        return "False"
    return None


def config_uses(found: Any, config: str | None) -> dict[str, str]:
    """Return the names that a class reads from its config, each with how: `attribute` or `subscript`."""
    trees = []
    for cls in getattr(found, "__mro__", (found,)):
        if cls in (object, nn.Module):
            continue
        try:
            trees.append(ast.parse(textwrap.dedent(inspect.getsource(cls))))
        except (OSError, TypeError, SyntaxError):
            continue
    names = set(CONFIG_NAMES) if config is None else {config}
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


def _is_config(node: ast.expr, names: set[str]) -> bool:
    if isinstance(node, ast.Name):
        return node.id in names
    return (
        isinstance(node, ast.Attribute)
        and node.attr in names
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )


def _cannot(target: Target, what: str, words: list[str]) -> TargetError:
    """Return the error, with an example in which unknown parameters take the sizes that are left."""
    cls = getattr(target.object, "__name__", "it")
    parameters = parameters_of(target.object)
    said = dict(word.split("=", 1) for word in words if "=" in word)
    free = [size for size in ("d_model", "heads", "kv_heads", "d_k") if size not in said.values()]
    for name, p in parameters.items():
        if name not in said and p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
            said[name] = free.pop(0) if free and "." not in what and " of " not in what else "..."
    return TargetError(
        f"{target.name}: cannot tell what its constructor wants as {what} in {cls}({', '.join(parameters)})\n"
        f"  say how to construct it, in the names {SUPPLIED}: --new "
        f"'{cls}({', '.join(f'{n}={m}' for n, m in said.items())})'"
    )


def fixed_sizes(module: nn.Module, declared: Declaration) -> dict[str, int]:
    """Return the sizes of an instance, read from its attributes (and those of its config).

    Raises:
        TargetError: If its number of heads is not there.
    """
    holders = [module, getattr(module, "config", None), getattr(module, "self", None), *module.children()]
    found: dict[str, int] = {}
    for holder in holders:
        if holder is None:
            continue
        held = {
            n: v
            for n, v in {**vars(holder), **_public(holder)}.items()
            if isinstance(v, int) and not isinstance(v, bool)
        }
        for meaning, name in match_names(held, NEW_NAMES).items():
            if meaning in ("d_model", "heads", "kv_heads", "d_k") and not isinstance(holder, nn.Linear):
                found.setdefault(meaning, held[name])
    found |= dict(declared.sizes)
    if "heads" not in found:
        raise TargetError("an instance must say its number of heads: --declare sizes.heads=8")
    if "d_model" not in found:
        widths = [p.shape[-1] for _, p in module.named_parameters() if p.dim() >= 2]
        found["d_model"] = found["heads"] * found["d_k"] if "d_k" in found else widths[0]
    found.setdefault("kv_heads", found["heads"])
    found.setdefault("d_k", found["d_model"] // found["heads"])
    return {name: found[name] for name in ("d_model", "heads", "kv_heads", "d_k")}


def _public(holder: Any) -> dict[str, Any]:
    names = (n for words in NEW_NAMES.values() for n in words)
    if type(holder).__module__.startswith("torch.nn.modules.linear"):
        return {}
    values = {}
    for name in names:
        try:
            values[name] = getattr(holder, name)
        except Exception:
            continue
    return values
