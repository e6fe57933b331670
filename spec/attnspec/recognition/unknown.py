"""Arguments of a call that no table knows: None where they must be there, and said where they may be left."""

import ast
from collections.abc import Callable, Mapping
from inspect import Parameter, isclass
from typing import Any

from torch import nn

from .._errors import TargetError
from ..declaration import Declaration
from ..loading import Target
from .construct import made
from .experiments import Probe
from .names import (
    CALL_CONSTANTS,
    CALL_NAMES,
    NEUTRAL_ARGUMENTS,
    match_names,
    named,
    names_in_call,
    parameters_of,
)

KNOWN: Mapping[str, str] = {**NEUTRAL_ARGUMENTS, **CALL_CONSTANTS}
VARIABLE = (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL)


def call_parameters(target: Target, declared: Declaration) -> dict[str, Parameter]:
    """Return the parameters of what is called: a function, or the `forward` of a module."""
    found: Any = target.object
    if declared.contract != "core" and not isclass(found) and not isinstance(found, nn.Module):
        found = made(target, declared.new or "None")
    return parameters_of(getattr(found, "forward", found)) if found is not None else {}


def with_none(target: Target, declared: Declaration) -> Declaration | None:
    """Return a declaration that hands None to what must be there and is unknown; None if nothing is."""
    parameters = call_parameters(target, declared)
    arguments = {**match_names(named(parameters), CALL_NAMES), **declared.arguments}
    needed = {"query", "key", "value"} if declared.contract == "core" else {"query"}
    wanted = [n for n, p in parameters.items() if p.default is p.empty and p.kind not in VARIABLE]
    left = [n for n in wanted if n not in arguments.values()]
    if declared.call is not None or needed - set(arguments) or not set(left) - set(KNOWN):
        return None
    kept = {
        name: meaning
        for meaning, name in arguments.items()
        if name in parameters and parameters[name].default in (Parameter.empty, None, False, 0.0)
    }
    words = {**kept, **{name: KNOWN.get(name, "None") for name in left}}
    call = f"f({', '.join(f'{name}={meaning}' for name, meaning in words.items())})"
    return declared.replace(call=call, arguments=names_in_call(call))


def probed(
    target: Target, declared: Declaration, probe: Callable[[Declaration], Probe], stated: Declaration
) -> Probe:
    """Probe a target, with None for what is unknown if a call runs so; say what is left unchecked.

    Args:
        target: What is probed.
        declared: How it is constructed and called, so far.
        probe: Finds out the rest.
        stated: What a person declared.

    Raises:
        TargetError: If it stays unknown how it is called.
    """
    try:
        found = probe(declared)
    except TargetError:
        filled = with_none(target, declared)
        guessed = _attempted(probe, filled) if filled is not None else None
        if guessed is None:
            raise
        found = guessed
    if stated.call is None and target.implementation is None:
        _say_unused(target, found)
    return found


def _attempted(probe: Callable[[Declaration], Probe], guess: Declaration) -> Probe | None:
    """Return what is found out with a guess, or None where no call runs so."""
    try:
        found = probe(guess)
    except Exception:
        return None
    return None if any(finding.topic == "call" for finding in found.findings) else found


def _say_unused(target: Target, probe: Probe) -> None:
    """Name every argument of the call that is neither used nor known."""
    parameters = call_parameters(target, probe.declaration)
    used = dict.fromkeys(getattr(target.object, "keywords", {}), "bound")  # Of a functools.partial.
    used |= _used(probe.declaration, list(parameters))
    cached = any(_of_cache(name) for name in parameters)
    for name, p in parameters.items():
        if p.kind in VARIABLE or name in KNOWN or _of_cache(name) or (cached and name == "lengths"):
            continue
        if used.get(name) == "None":
            probe.find(f"argument {name}", "not known, called with None, not checked", "assumed", "call=...")
        elif name not in used:
            meanings = [meaning for meaning, words in CALL_NAMES.items() if name in words]
            why = "not used" if meanings else "not known"
            probe.find(f"argument {name}", f"{why}, not checked", "by name", f"arguments.<name>={name}")


def _of_cache(name: str) -> bool:
    return "past" in name or "cache" in name


def _used(declared: Declaration, parameters: list[str]) -> dict[str, str]:
    """Return the parameters that get a value, each with the expression for it."""
    if declared.call is None:
        return {name: meaning for meaning, name in declared.arguments.items()}
    used: dict[str, str] = {}
    for node in ast.walk(ast.parse(declared.call, mode="eval")):
        if isinstance(node, ast.Call):
            used |= {k.arg: ast.unparse(k.value) for k in node.keywords if k.arg}
            if isinstance(node.func, ast.Name) and node.func.id == "f":
                used |= dict(zip(parameters, map(ast.unparse, node.args), strict=False))
    return used
