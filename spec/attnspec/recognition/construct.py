"""How a layer is constructed: by the names of its parameters, through a config, or not at all."""

import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any

from torch import nn

from .._errors import TargetError
from ..conformance.caller import HELPERS, MADE_WITH
from ..declaration import Declaration
from ..loading import Target
from .config import Use, config_escapes, config_parameter, config_uses, derived_names
from .names import (
    CALL_NAMES,
    NEW_CONSTANTS,
    NEW_NAMES,
    OPTION_NAMES,
    match_names,
    match_sizes,
    parameters_of,
)
from .written import global_sizes

# Further widths of inputs and outputs, all of them `d_model` in a test.
TWICE = dict.fromkeys(
    (
        *("d_in", "d_out", "d_key_in", "d_value_in", "dim_in", "dim_out", "in_features", "out_features"),
        *("E_q", "E_k", "E_v", "E_total", "key_size", "query_size", "value_size", "kdim", "vdim"),
        *("q_dim", "k_dim", "v_dim", "key_dim", "value_dim", "context_dim"),
    ),
    "d_model",
)
# What a constructor gets that must be told an option which the call takes as well.
UNUSED = {"causal": "False", "mask": "None", "window": "max_len"}
UNKNOWN = "..."
# What the names in an expression are while it is only tried.
EXAMPLE_SIZES: dict[str, Any] = {
    "d_model": 12, "heads": 3, "kv_heads": 3, "group": 1, "d_k": 4, "d_v": 4, "max_len": 64,
    "dropout": 0.0, "bias": True, "causal": False, "mask": None, "window": None,
}  # fmt: skip
# The methods of a config that is read as an object and as a dictionary.
BY_KEY = "{'get': lambda c, n, d=None: getattr(c, n, d), '__getitem__': lambda c, n: getattr(c, n)}"
SUPPLIED = "d_model heads kv_heads d_k d_v bias dropout max_len causal mask window"


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
    words, missing = argument_words(parameters, called=called_with(target.object))
    if missing:
        raise _cannot(target, missing[0], words)
    words += [f"{name}={value!r}" for name, value in target.namespace.get("_extra", {}).items()]
    made = f"_target({', '.join(words)})"
    held = {} if any(word.endswith("=d_model") for word in words) else global_sizes(target)
    if "d_model" not in held.values():
        return made
    said = ", ".join(f"{name}={meaning}" for name, meaning in held.items())
    return f"with_globals(_target, {said}, make=lambda: {made})"


def called_with(found: Any) -> frozenset[str]:
    """Return the options that the call of a class takes: its constructor is not asked for those."""
    return frozenset(match_names(parameters_of(getattr(found, "forward", found)), CALL_NAMES))


def argument_words(
    parameters: Mapping[str, inspect.Parameter], *, called: frozenset[str] = frozenset(MADE_WITH)
) -> tuple[list[str], list[str]]:
    """Return `name=meaning` for every parameter with a known name, and the required ones without.

    Args:
        parameters: Of the constructor, or fields of a config.
        called: Options that a call takes; only the others are chosen where the layer is constructed.
    """
    by_parameter = {parameter: meaning for meaning, parameter in match_sizes(parameters).items()}
    words, missing = [], []
    for name, p in parameters.items():
        if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
            continue
        meaning = by_parameter.get(name) or TWICE.get(name) or _further(name, by_parameter)
        required = p.default is p.empty
        option = option_word(name, p) if meaning is None else None
        if option is not None and (required or option[0] not in called):
            words.append(f"{name}={UNUSED[option[0]] if option[0] in called else option[1]}")
            continue
        if meaning == "batch_first":
            meaning = "True"
        if meaning == TWICE.get(name) and not required:
            continue
        if meaning is None and required:
            meaning = NEW_CONSTANTS.get(name)
        if meaning is not None and (required or _wanted(name, meaning, p.default)):
            words.append(meaning if p.kind is p.POSITIONAL_ONLY else f"{name}={meaning}")
        elif required:
            missing.append(name)
    return words, missing


def option_word(name: str, parameter: inspect.Parameter) -> tuple[str, str] | None:
    """Return the option of a call that a parameter of a constructor chooses, and the expression for it.

    A switch is causality, whatever its name says of masks; a window hides nothing until it is known how
    it counts.
    """
    default, empty = parameter.default, parameter.default is parameter.empty
    switch = isinstance(default, bool) or (empty and "bool" in str(parameter.annotation))
    bare = empty and parameter.annotation is parameter.empty and name not in OPTION_NAMES["mask"]
    if (switch and name in OPTION_NAMES["mask"]) or ((switch or bare) and name in OPTION_NAMES["causal"]):
        return "causal", "causal"
    if name in OPTION_NAMES["mask"] and (empty or default is None):
        return "mask", "mask"
    if name in OPTION_NAMES["window"] and (empty or default is None or type(default) is int):
        return "window", "None" if default is None else "max_len"
    return None


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


def _with_config(target: Target, config: str, parameters: Mapping[str, inspect.Parameter]) -> str:
    cls = config_class(target, parameters[config])
    inner = _from_class(target, cls, config) if cls is not None else _from_source(target, config)
    rest = {name: p for name, p in parameters.items() if name != config}
    # Modules of transformers leave causality to the mask of the call, whatever their constructor says.
    called = frozenset(MADE_WITH) if hasattr(cls, "_attn_implementation") else called_with(target.object)
    words, missing = argument_words(rest, called=called)
    if missing:
        raise _cannot(target, missing[0], [f"{config}={inner}", *words])
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
    fitting = [v for v in own if not _by_key(uses) and 2 * len(set(uses) & _held_names(v)) >= len(uses)]
    return fitting[0] if len(fitting) == 1 else None


def _by_key(uses: Mapping[str, Use]) -> bool:
    return any(use.how == "subscript" for use in uses.values())


def _held_names(cls: type) -> set[str]:
    """Return the names that an object of a config class answers to."""
    names = {f.name for f in fields(cls)} if is_dataclass(cls) else set(parameters_of(cls))
    return names | set(dir(cls)) | set(getattr(cls, "attribute_map", {}))


def _from_class(target: Target, cls: type, config: str) -> str:
    """Return the call of a config class, its fields matched by name.

    A field that the layer does not read is no option of it, though other layers share the config.
    """
    own = target.namespace.get("__name__")
    name = (
        cls.__name__
        if target.namespace.get(cls.__name__) is cls
        else f"__import__({cls.__module__!r}, fromlist=['_']).{cls.__name__}"
    )
    absent = inspect.Parameter.empty
    if is_dataclass(cls):
        required = {
            f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING and f.init
        }
        kind = inspect.Parameter.KEYWORD_ONLY
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
                n for n in (*known, *vars(cls), *config_uses(target.object, config)) if not n.startswith("_")
            ]
            names |= {
                n: inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=0)
                for n in used
                if n not in names and _is_size(n)
            }
    unread = _unread_options(target, cls, config, names)
    words, missing = argument_words(
        {
            n: p
            for n, p in names.items()
            if p.kind is not p.VAR_KEYWORD and (p.default is absent or n not in unread)
        },
        called=called_with(target.object) | ({"mask", "window"} if cls.__module__ != own else set()),
    )
    if missing:
        held = f"{name}({', '.join([*words, *(f'{n}={UNKNOWN}' for n in missing)])})"
        raise _cannot(target, f"{missing[0]} of {cls.__name__}", [], f"{config}={held}")
    if hasattr(cls, "_attn_implementation"):
        words.append("attn_implementation='eager'")
    return f"{name}({', '.join(words)})"


def _unread_options(target: Target, cls: type, config: str, names: Iterable[str]) -> set[str]:
    """Return the fields that would give the layer an option, of which it reads none."""
    if config_escapes(target.object, config):
        return set()
    aliases: Mapping[str, str] = getattr(cls, "attribute_map", {})
    read = set(config_uses(target.object, config)) | derived_names(cls)
    read |= {aliases[name] for name in read if name in aliases}
    chosen = {*NEW_NAMES["dropout"], *(word for words in OPTION_NAMES.values() for word in words)}
    return {name for name in names if (name in chosen or "drop" in name) and name not in read}


def _is_size(name: str) -> bool:
    return any(name in words for words in NEW_NAMES.values())


def _from_source(target: Target, config: str) -> str:
    """Return a namespace, or a dictionary, with everything that the source reads from its config."""
    uses = config_uses(target.object, config)
    if not uses:
        raise _cannot(target, config, [])
    meanings = {parameter: meaning for meaning, parameter in match_sizes(uses).items()}
    called = called_with(target.object)
    words, missing = [], []
    for name, use in uses.items():
        meaning = meanings.get(name) or _further(name, meanings)
        if meaning is None and name in OPTION_NAMES["causal"] and "causal" not in called:
            meaning = "causal"
        if meaning is None and not use.optional:
            meaning = TWICE.get(name) or NEW_CONSTANTS.get(name) or _guess(name)
            if meaning is None:
                missing.append(name)
        if meaning is not None:
            words.append(f"{name}={'True' if meaning == 'batch_first' else meaning}")
    if missing:
        held = _holder([*words, *(f"{name}={UNKNOWN}" for name in missing)], uses)
        raise _cannot(target, f"{config}.{missing[0]}", [], f"{config}={held}")
    return _holder(words, uses)


def _holder(words: list[str], uses: Mapping[str, Use]) -> str:
    """Return an object, a dictionary, or what is both, that holds `name=meaning` as it is read."""
    if not _by_key(uses):
        return f"SimpleNamespace({', '.join(words)})"
    if all(use.how == "subscript" for use in uses.values()):
        pairs = (word.split("=", 1) for word in words)
        return "{" + ", ".join(f"{name!r}: {meaning}" for name, meaning in pairs) + "}"
    return f"type('Config', (SimpleNamespace,), {BY_KEY})({', '.join(words)})"


def _guess(name: str) -> str | None:
    if "drop" in name:
        return "dropout"
    if "bias" in name:
        return "bias"
    if name.startswith(("use_", "is_", "has_", "with_", "enable_")):
        return "False"
    return None


def _cannot(target: Target, what: str, words: list[str], unsaid: str = "") -> TargetError:
    """Return the error, with an example in which unknown parameters take the sizes that are left.

    An example that does not construct anything takes dots instead.

    Args:
        target: What is to be constructed.
        what: Names the unknown parameter.
        words: `name=meaning` of the parameters that are known.
        unsaid: The same for a config of which not everything is known, with dots.
    """
    cls = getattr(target.object, "__name__", "it")
    parameters = parameters_of(target.object)
    said = {word.partition("=")[0] for word in (*words, unsaid)}
    missing = [
        name
        for name, p in parameters.items()
        if name not in said and p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]
    dotted = [*words, unsaid] if unsaid else words
    free = [size for size in ("d_model", "heads") if size not in re.findall(r"\w+", " ".join(dotted))]
    shown = f"{cls}({', '.join([*dotted, *(f'{name}={_example(parameters[name])}' for name in missing)])})"
    tried = shown
    for size in free:
        tried = tried.replace(UNKNOWN, size, 1)
    if all(_may_be_none(parameters[name]) for name in missing):
        tried = tried.replace(UNKNOWN, "None")
    new = tried if made(target, tried) is not None else shown
    dots = f", with what belongs there in place of {UNKNOWN}" if UNKNOWN in new else ""
    return TargetError(
        f"{target.name}: cannot tell what its constructor wants as {what} in {cls}({', '.join(parameters)})\n"
        f"  say how to construct it, in the names {SUPPLIED}{dots}: --new '{new}'"
    )


def _example(parameter: inspect.Parameter) -> str:
    """Return the first member where a parameter takes an enumeration, and dots elsewhere."""
    kind = parameter.annotation
    members = list(kind) if inspect.isclass(kind) and issubclass(kind, Enum) else []
    return f"{kind.__name__}.{members[0].name}" if members else UNKNOWN


def _may_be_none(parameter: inspect.Parameter) -> bool:
    said = str(parameter.annotation)
    return parameter.annotation is parameter.empty or bool(re.search("None|Optional|Any", said))


def made(target: Target, new: str) -> nn.Module | None:
    """Return the module that an expression makes at example sizes, or None if it raises or makes none."""
    named = {"_target": target.object, getattr(target.object, "__name__", "it"): target.object}
    try:
        module = eval(new, {**HELPERS, **target.namespace, **named, **EXAMPLE_SIZES})
    except Exception:
        return None
    return module if isinstance(module, nn.Module) else None
