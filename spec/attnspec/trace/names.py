"""Which of query, key and value a line of code means, by the words that it uses."""

import re

import torch

from .reading import Sight
from .record import Event, Run

_ROLE = re.compile(
    r"(?:^|_|\.)(?:(q|k|v)(?:$|_|\d|s$|[a-z]?$|proj|h|mat)|(query|queries|quer)|(key|keys)|(value|values|val))",
    re.IGNORECASE,
)
_TARGETS = re.compile(r"^\s*([\w.]+(?:\s*,\s*[\w.]+)*)\s*(?::[^=]+)?=(?!=)")


def role_in(word: str) -> str | None:
    """Return `q`, `k` or `v` if a name says so."""
    found = _ROLE.search(word)
    if found is None:
        return None
    if found.group(1):
        return found.group(1).lower()
    return "q" if found.group(2) else "k" if found.group(3) else "v"


def assigned_role(sight: Sight, output: int) -> str | None:
    """Return the role that the variable on the left of an event's line is named after.

    Where the line is in a function that returns it, the function's own name says it.
    """
    found = _TARGETS.match(sight.event.place.source)
    if found is None:
        return _function_role(sight.event)
    targets = [t.strip() for t in found.group(1).split(",")]
    if len(targets) == 1:
        return role_in(targets[0])
    return role_in(targets[output]) if output < len(targets) == len(sight.event.outputs) else None


def _function_role(event: Event) -> str | None:
    if not event.place.source.startswith("return"):
        return None
    function = event.place.site[event.place.depth][1].rpartition(".")[2]
    return role_in(function)


def weight_role(run: Run, event: Event) -> str | None:
    """Return the role of the canonical weight that an event reads, by name or by value."""
    canonical = {n[-1]: _wide(t) for n, t in run.weights.items() if n in ("W_q", "W_k", "W_v")}
    for tensor in event.inputs:
        if tensor.data or tensor.value is None or not tensor.value.is_floating_point():
            continue
        for role, weight in canonical.items():
            for form in (weight, weight.T):
                if tensor.value.shape == form.shape and torch.allclose(
                    tensor.value, form, rtol=1e-2, atol=1e-3
                ):
                    return role
        if tensor.name is not None and (named := role_in(tensor.name.removesuffix(".weight"))) is not None:
            return named
    return None


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().to(torch.float64)
