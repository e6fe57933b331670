"""From an object to a `Recognition`: which contract, how to call it, what it supports."""

import inspect
from typing import Any

from torch import nn

from .._errors import TargetError
from ..conformance.layer_subject import LayerSubject
from ..conformance.subject import CoreSubject
from ..declaration import Declaration
from ..loading import Target
from . import core_probes, layer_probes
from .findings import Finding, Recognition
from .names import CALL_NAMES, NEW_NAMES, match_names, parameters_of


def recognise(target: Target, declared: Declaration) -> Recognition:
    """Find out how to use the target; what is declared is taken as said.

    Raises:
        TargetError: If it cannot be recognised; the message names the argument that supplies what is missing.
    """
    if target.implementation is not None:
        declared = declared.over(from_record(target))
    contract = declared.contract or guess_contract(target)
    if contract == "core":
        return _core(target, declared.over(Declaration(contract="core")))
    return _layer(target, declared.over(Declaration(contract=contract)))


def from_record(target: Target) -> Declaration:
    """Return what a registered record says about itself."""
    record = target.implementation
    return Declaration(
        contract=record.contract, precision=record.precision, alignment=record.alignment, mask="attend",
        deviations=record.deviations,
    )  # fmt: skip


def guess_contract(target: Target) -> str:
    """Return `core` for a function of projected tensors, `layer` for a module class."""
    found = target.object
    if inspect.isclass(found) and issubclass(found, nn.Module):
        return "layer"
    if isinstance(found, nn.Module):
        return "layer" if any(True for _ in found.parameters()) else "core"
    if callable(found):
        arguments = match_names(parameters_of(found), CALL_NAMES)
        if {"query", "key", "value"} <= set(arguments):
            return "core"
        if "d_model" in match_names(parameters_of(found), NEW_NAMES):
            return "layer"
    raise TargetError(
        f"{target.name}: neither an attention function (query, key, value, ...) nor a module class;"
        f" it is a {type(found).__name__}{_signature(found)}\n"
        "  say what it is: --declare contract=core, or --declare contract=layer --new 'MyLayer(d_model, heads)'"
    )


def _signature(found: Any) -> str:
    try:
        return f" with the signature {inspect.signature(found)}"
    except (TypeError, ValueError):
        return ""


def call_arguments(function: Any, declared: Declaration) -> dict[str, str]:
    """Return contract argument → parameter name, for a function or the forward of a module."""
    parameters = parameters_of(function.forward if isinstance(function, nn.Module) else function)
    found = match_names(parameters, CALL_NAMES)
    return {**found, **declared.arguments}


def _core(target: Target, declared: Declaration) -> Recognition:
    findings: list[Finding] = []
    arguments = call_arguments(target.object, declared)
    if declared.call is None and not {"query", "key", "value"} <= set(arguments):
        raise TargetError(
            f"{target.name}: cannot tell which parameters are query, key and value{_signature(target.object)}\n"
            "  say how to call it: --call 'f(query, key, value, mask=mask)'"
        )
    if declared.call is not None:
        arguments = names_in_call(declared.call)
    declaration = declared.replace(arguments=arguments)
    probe = core_probes.probe_core(target, declaration, findings)
    subject = CoreSubject(target.object, probe.declaration, target.namespace, probe.space, name=target.name)
    return Recognition(
        target.name, probe.declaration, probe.space, tuple(findings), tuple(probe.questions), probe.absent, subject
    )


def names_in_call(call: str) -> dict[str, str]:
    """Return the contract names that occur in a call expression."""
    code = compile(call, "<declared call>", "eval")
    return {name: name for name in code.co_names if name in CALL_NAMES}


def new_expression(target: Target, declared: Declaration) -> str:
    """Return the expression that constructs the layer.

    Raises:
        TargetError: If its constructor has a parameter without a default that no contract name stands for.
    """
    if declared.new is not None:
        return declared.new
    cls = target.object
    parameters = parameters_of(cls)
    found = match_names(parameters, NEW_NAMES)
    by_parameter = {parameter: meaning for meaning, parameter in found.items()}
    words = []
    twice = {"d_in": "d_model", "d_out": "d_model"}
    for name, p in parameters.items():
        meaning = by_parameter.get(name) or twice.get(name)
        if meaning is not None:
            words.append(f"{name}={meaning}" if p.kind is not p.POSITIONAL_ONLY else meaning)
        elif p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
            said = ", ".join(words) + (", " if words else "")
            raise TargetError(
                f"{target.name}: cannot tell what its constructor wants as {name!r} in {cls.__name__}({', '.join(parameters)})\n"
                f"  say how to construct it: --new '{cls.__name__}({said}{name}=...)'"
            )
    words += [f"{name}={value!r}" for name, value in target.namespace.get("_extra", {}).items()]
    return f"_target({', '.join(words)})"


def _layer(target: Target, declared: Declaration) -> Recognition:
    findings: list[Finding] = []
    declaration = declared.replace(new=new_expression(target, declared))
    namespace = {**target.namespace, "_target": target.object}
    probe = layer_probes.probe_layer(target, declaration, namespace, findings)
    subject = LayerSubject(probe.declaration, namespace, probe.space, name=target.name)
    return Recognition(
        target.name, probe.declaration, probe.space, tuple(findings), tuple(probe.questions), probe.absent, subject
    )
