"""A mask that must always be there: what to hand over where the contract has none.

`forward(q, k, v, mask)` without a default may still take None. Where it does not, a mask that hides nothing
is found by trying: what it is filled with, of which dtype, over which axes. The code must run then, without
NaN, and follow its keys. Which number means visible is thus not assumed; that is decided later.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from inspect import Parameter
from itertools import product
from typing import Any

from ..declaration import Declaration
from .experiments import Probe
from .names import names_in_call, parameters_of

AXES = ("batch, 1, q_len, kv_len", "batch, q_len, kv_len", "q_len, kv_len", "batch, kv_len")
NEEDED = "must be there"
DTYPES = ("torch.bool", "torch.long", "query.dtype")


def find_needed_mask(probe: Probe, function: Any, works: Callable[[Declaration], bool]) -> None:
    """Declare a call that always hands over a mask, if this one needs it.

    Args:
        probe: What is known so far.
        function: What is called; its signature tells whether the mask has a default.
        works: Whether a call by a declaration runs and gives something that depends on keys.
    """
    declared = probe.declaration
    arguments, parameters = declared.arguments, parameters_of(function)
    mask = parameters.get(arguments.get("mask", ""))
    if declared.call is not None or mask is None or mask.default is not Parameter.empty or works(declared):
        return
    for everything, call in _calls(arguments, parameters):
        changed = declared.replace(call=call, arguments=names_in_call(call))
        if works(changed):
            probe.declare(call=call, arguments=changed.arguments)
            probe.find("mask", f"{NEEDED}: none is {everything}", "probed", "call=...")
            return


def settle_needed_mask(probe: Probe) -> None:
    """Hand over zeros where masks turned out to be added: ones would do too, but cost digits."""
    call = probe.declaration.call or ""
    if probe.declaration.mask != "additive" or " if mask is None else mask)" not in call:
        return
    added = re.sub(
        r"torch\.\w+\(([^()]*), dtype=[\w.]+\) if mask", r"torch.zeros(\1, dtype=query.dtype) if mask", call
    )
    probe.declare(call=added)
    probe.findings = [
        replace(f, value=f"{NEEDED}: none is zeros, which are added") if f.value.startswith(NEEDED) else f
        for f in probe.findings
    ]


def _calls(arguments: Mapping[str, str], parameters: Mapping[str, Parameter]) -> Iterator[tuple[str, str]]:
    """Yield masks that may hide nothing, each with the call that hands it over where there is no other."""
    kept = {
        name: meaning
        for meaning, name in arguments.items()
        if meaning != "mask" and parameters[name].default in (Parameter.empty, None, False, 0.0)
    }
    said = "".join(f"{name}={meaning}, " for name, meaning in kept.items())
    for axes, dtype, fill in product(AXES, DTYPES, ("ones", "zeros")):
        everything = f"torch.{fill}({axes}, dtype={dtype})"
        yield everything, f"f({said}{arguments['mask']}={everything} if mask is None else mask)"
