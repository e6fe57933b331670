"""From an object to a `Recognition`: which contract, how to call it, what it supports."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from .._errors import TargetError
from ..conformance.layer_subject import LayerSubject
from ..conformance.subject import CoreSubject
from ..declaration import Declaration
from ..loading import Target
from . import core_probes, layer_probes
from .advice import advice
from .config import config_parameter
from .construct import EXAMPLE_SIZES, argument_words, made, new_expression
from .experiments import Probe
from .findings import Recognition
from .instance import fixed_sizes
from .names import CALL_NAMES, NEW_NAMES, match_names, named, names_in_call, parameters_of
from .unknown import probed

# Built-in functions have no signature that Python could read.
KNOWN_CALLS: dict[Any, str] = {
    torch.nn.functional.scaled_dot_product_attention: (
        "f(query, key, value, attn_mask=mask if bias is None else bias if mask is None else "
        "bias.masked_fill(~mask, float('-inf')),"
        " dropout_p=dropout, is_causal=causal, scale=scale, enable_gqa=group > 1)"
    ),
}


def recognise(target: Target, declared: Declaration) -> Recognition:
    """Find out how to use the target; what is declared is taken as said.

    Raises:
        TargetError: If it cannot be recognised; the message names the argument that supplies what is missing.
    """
    stated = declared
    if target.implementation is not None:
        declared = declared.over(from_record(target))
    namespace = {**target.namespace, "_target": target.object}
    contract = declared.contract or guess_contract(target, declared)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if contract == "core":
            return _core(target, declared.over(Declaration(contract="core")), namespace, stated)
        return _layer(target, declared.over(Declaration(contract=contract)), namespace, stated)


def from_record(target: Target) -> Declaration:
    """Return what a registered record says about itself."""
    record = target.implementation
    return Declaration(
        contract=record.contract, precision=record.precision, alignment=record.alignment, mask="attend",
        deviations=record.deviations,
    )  # fmt: skip


def guess_contract(target: Target, declared: Declaration) -> str:
    """Return `core` for a function or a class without parameters over query, key and value, else `layer`."""
    found = target.object
    if isinstance(found, nn.Module):
        return "layer" if any(True for _ in found.parameters()) else "core"
    if inspect.isclass(found) and not issubclass(found, nn.Module):
        if declared.call is not None:
            return "core"
        if declared.new is not None and made(target, declared.new) is not None:
            return "layer"
    elif declared.new is not None or declared.weights:
        return "layer"
    if inspect.isclass(found) and issubclass(found, nn.Module):
        return "core" if _without_parameters(found) else "layer"
    if callable(found) and not inspect.isclass(found):
        if found in KNOWN_CALLS or declared.call is not None:
            return "core"
        arguments = match_names(parameters_of(found), CALL_NAMES)
        if {"query", "key", "value"} <= set(arguments) and len(set(arguments.values())) >= 3:
            return "core"
        names = parameters_of(found)
        if (
            {"d_model", "heads"} <= set(match_names(names, NEW_NAMES))
            or config_parameter(names)
            or declared.arguments
        ):
            return "core" if declared.arguments else "layer"
    raise TargetError(
        f"{target.name}: neither an attention function (query, key, value, ...) nor a module class;"
        f" it is a {type(found).__name__}{_signature(found)}\n  {advice(target)}"
    )


def _without_parameters(cls: type[nn.Module]) -> bool:
    """Whether a class is a core: it takes query, key and value, and what it constructs has no parameters."""
    if not {"query", "key", "value"} <= set(match_names(parameters_of(cls.forward), CALL_NAMES)):
        return False
    return class_core_call(cls, required=False) is not None


def class_core_call(cls: type[nn.Module], *, required: bool) -> str | None:
    """Return the call of a core that is a class without parameters, or None if it is none."""
    words, missing = argument_words(parameters_of(cls))
    if missing or ("heads=heads" in words and "d_model=d_model" in words):
        return None
    new = f"_target({', '.join(words)})"
    try:
        module = eval(new, {"_target": cls, **EXAMPLE_SIZES})
    except Exception:
        return None
    if any(True for _ in module.parameters()):
        return None
    forward = match_names(parameters_of(module.forward), CALL_NAMES)
    return f"{new}.train(dropout > 0)({', '.join(f'{name}={meaning}' for meaning, name in forward.items())})"


def _signature(found: Any) -> str:
    try:
        return f" with the signature {inspect.signature(found)}"
    except (TypeError, ValueError):
        return ""


def _core_call(target: Target, declared: Declaration) -> Declaration:
    """Complete how a core is called.

    Raises:
        TargetError: If query, key and value cannot be told apart, or another parameter has no default.
    """
    found = target.object
    parameters = parameters_of(found.forward if isinstance(found, nn.Module) else found)
    call = declared.call
    if call is None and not inspect.isclass(found) and not isinstance(found, nn.Module):
        call = KNOWN_CALLS.get(found) or core_probes.hugging_face_call(found, parameters)
    if call is None and inspect.isclass(found) and issubclass(found, nn.Module):
        call = class_core_call(found, required=True)
    if call is not None:
        return declared.replace(call=call, arguments=names_in_call(call))
    arguments = {**match_names(named(parameters), CALL_NAMES), **declared.arguments}
    wanted = [
        n
        for n, p in parameters.items()
        if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]
    unknown = [n for n in wanted if n not in arguments.values()]
    if not {"query", "key", "value"} <= set(arguments) or unknown:
        what = f"what {unknown[0]!r} is" if unknown else "which parameters are query, key and value"
        said = ", ".join(f"{name}={meaning}" for meaning, name in arguments.items()) or "query, key, value"
        raise TargetError(
            f"{target.name}: cannot tell {what}{_signature(found)}\n  say how to call it: --call "
            f"'f({said}{f', {unknown[0]}=...' if unknown else ''})'"
        )
    return declared.replace(arguments=arguments)


def _core(
    target: Target, declared: Declaration, namespace: Mapping[str, Any], stated: Declaration
) -> Recognition:
    def probe_with(declaration: Declaration) -> Probe:
        return core_probes.probe_core(target, _core_call(target, declaration), namespace, stated)

    probe = probed(target, declared, probe_with, stated)
    subject = CoreSubject(target.object, probe.declaration, namespace, probe.space, name=target.name)
    return _finish(probe, subject)


def _layer(
    target: Target, declared: Declaration, namespace: Mapping[str, Any], stated: Declaration
) -> Recognition:
    declaration = declared.replace(new=new_expression(target, declared))
    fixed = (
        fixed_sizes(target.object, declared)
        if isinstance(target.object, nn.Module) and declared.new is None
        else {}
    )

    def probe_with(declaration: Declaration) -> Probe:
        return layer_probes.probe_layer(target, declaration, namespace, stated, fixed)

    probe = probed(target, declaration, probe_with, stated)
    subject = LayerSubject(probe.declaration, namespace, probe.space, name=target.name)
    return _finish(probe, subject)


def _finish(probe: Probe, subject: Any) -> Recognition:
    return Recognition(
        probe.target.name,
        probe.declaration,
        probe.space,
        tuple(probe.findings),
        tuple(probe.questions),
        probe.absent,
        subject,
    )
