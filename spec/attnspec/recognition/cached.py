"""A layer with a cache is a layer that is always causal, and more: it takes and returns what it remembers."""

from dataclasses import replace

from ..declaration import Declaration
from ..loading import Target
from .findings import Finding, Recognition
from .recognise import recognise as recognise_plain

CACHE_NAMES = ("cache", "past_key_value", "past_key_values", "layer_past", "kv_cache", "past", "state")


def recognise(target: Target, declared: Declaration) -> Recognition:
    """Find out how to use the target; what is declared is taken as said.

    Raises:
        TargetError: If it cannot be recognised; the message names the argument that supplies what is missing.
    """
    record = target.implementation
    contract = declared.contract or (record.contract if record is not None else None)
    if contract != "cached":
        return recognise_plain(target, declared)
    found = recognise_plain(target, declared.replace(contract="layer", causal=declared.causal or "always"))
    return as_cached(found)


def as_cached(found: Recognition) -> Recognition:
    """Return the recognition of a layer, held to the contract of a cached layer."""
    import inspect

    module = found.subject.construct(d_model=4, heads=2, kv_heads=2, d_k=2, d_v=2)
    parameters = inspect.signature(module.forward).parameters
    name = found.declaration.arguments.get("cache") or next((n for n in CACHE_NAMES if n in parameters), None)
    arguments = {**found.declaration.arguments, **({"cache": name} if name else {})}
    if "use_cache" in parameters:  # returns the cache only where it is asked to
        arguments["use_cache"] = "use_cache"
    features = (
        found.space.features
        | ({"cache"} if name else set())
        | ({"lengths"} if "lengths" in parameters else set())
    )
    declaration = found.declaration.replace(arguments=arguments)
    space = replace(found.space, contract="cached", features=features)
    found.subject.declaration, found.subject.space = declaration, space
    absent = (
        found.absent
        if name
        else {
            **found.absent,
            "cache": "its forward takes no cache; declare its name with --declare arguments.cache=...",
        }
    )
    said = Finding(
        "cache", f"argument {name}" if name else "not recognised", "by name", "arguments.cache=<name>"
    )
    kept = (f for f in found.findings if not (f.topic == "adds" and f.value.startswith("a cache")))
    return replace(found, declaration=declaration, space=space, findings=(*kept, said), absent=absent)
