"""What to say of an object that is not recognised: a line that could work, or in words what is missing."""

import re
from inspect import isclass
from itertools import zip_longest
from typing import Any

from ..loading import Target
from .construct import argument_words, made
from .names import CALL_NAMES, NEW_NAMES, WEIGHT_NAMES, match_names, parameters_of

# Parameters of a function that hold the weights of a layer.
HELD = ("params", "parameters", "weights", "weight", "state_dict", "state", "p")
LAYOUT = "--declare 'layout=batch q_len heads d_k'"
NO_MODULE = (
    "a class that is no torch.nn.Module holds weights that nobody can set: make it one, with its weights as "
    "parameters"
)
OVER_WEIGHTS = "a function over an input and its weights goes into a module class that holds the weights"
POINT = "point at a function over query, key and value, or at a module class: my_attention.py:MyAttention"


def advice(target: Target) -> str:
    """Return what a person can do about an object that is neither an attention function nor a layer."""
    found = target.object
    if not callable(found):
        return POINT
    if isclass(found):
        return _of_plain_class(found)
    constructed = _construction(target)
    return f"say how to construct it: --new '{constructed}'" if constructed else _of_function(found)


def _of_plain_class(cls: type) -> str:
    """Return how a plain class is called, where its call takes query, key and value."""
    called = match_names(parameters_of(cls.__call__), CALL_NAMES)
    words, missing = argument_words(parameters_of(cls))
    if not {"query", "key", "value"} <= set(called) or missing:
        return NO_MODULE
    said = ", ".join(f"{name}={meaning}" for meaning, name in called.items())
    return f"say how to call it: --call 'f({', '.join(words)})({said})'"


def _construction(target: Target) -> str | None:
    """Return the call by which a function makes a module; what is unknown takes the sizes left, then None."""
    words, missing = argument_words(parameters_of(target.object))
    if not words and not missing:
        return None  # Whatever it does, it does not depend on sizes.
    said = {word.rpartition("=")[2] for word in words}
    free = [size for size in ("d_model", "heads") if size not in said]
    left = [f"{name}={size}" for name, size in zip_longest(missing, free[: len(missing)], fillvalue="None")]
    new = f"{getattr(target.object, '__name__', 'it')}({', '.join([*words, *left])})"
    return new if made(target, new) is not None else None


def _of_function(function: Any) -> str:
    """Return how a function is called, as far as its parameters tell."""
    parameters = parameters_of(function).values()
    names = [
        p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if any(p.kind is p.VAR_POSITIONAL for p in parameters) and not names:
        return "say how to call it: --call 'f(query, key, value)'"
    if len(names) == 1 and re.search("qkv|pack", names[0].lower()):
        return (
            f"it seems to take one packed tensor; say how it is packed, for example --call "
            f"'f(torch.stack((query, key, value), 2))' {LAYOUT} "
            "--declare unsupported.cross=packed --declare unsupported.value_width=packed"
        )
    if len(names) == 2 and "kv" in names[1].lower() and names[0] in CALL_NAMES["query"]:
        return (
            f"it seems to take keys and values packed; say how, for example --call "
            f"'f({names[0]}=query, {names[1]}=torch.stack((key, value), 2))' {LAYOUT} "
            "--declare unsupported.value_width=packed"
        )
    if any(name in HELD or _is_weight(name) or _is_size(name) for name in names):
        return OVER_WEIGHTS
    if len(names) < 3:
        return (
            f"its parameters do not tell where query, key and value go; {OVER_WEIGHTS}; any other by its "
            "call, --call and an expression of f, query, key and value"
        )
    said = zip(names, ("query", "key", "value", "mask"), strict=False)
    return f"say how to call it: --call 'f({', '.join(f'{name}={meaning}' for name, meaning in said)})'"


def _is_size(name: str) -> bool:
    return any(name in NEW_NAMES[size] for size in ("d_model", "heads", "kv_heads"))


def _is_weight(name: str) -> bool:
    """Whether a name is one under which a layer holds a weight, and no query, key or value."""
    inputs = {word for words in CALL_NAMES.values() for word in words}
    held = {word.lower() for words in WEIGHT_NAMES.values() for word in words}
    return name not in inputs and (name.lower() in held or name.lower().startswith(("w_", "b_")))
