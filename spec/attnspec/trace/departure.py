"""Where code that fails a case departs from the contract: the call that says most is found and traced."""

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import torch

from .. import oracle
from .._errors import AttnspecError
from .._inputs import LayerInputs
from ..conformance.bound import core_bound
from ..conformance.bound_layer import layer_bound
from ..conformance.cases import Case
from ..conformance.failures import NotApplicable, SubjectError, Violation
from ..conformance.judge import alive_rows, require_within, roundoffs_for
from ..conformance.layer_subject import LayerSubject
from .build import trace_runs
from .match import TOLERANCES
from .reading import same_values
from .record import LARGEST_KEPT
from .solve import prime_sizes
from .table import Departure
from .target import AXES, run_on

_OWN_SIZES = (("q_len", "kv_len"), ("batch",), ("heads", "kv_heads"), ("d_k", "d_v"))


def departure_of(recognition: Any, case: Case, inputs: Any = None) -> Departure | None:
    """Return where code first departs from the contract on a failing case; None if nowhere.

    Sizes that tell every axis from every other say most, so the first calls tried have those and only the
    options of the case; then, one after the other, its values and its own sizes, until one is wrong.

    Args:
        recognition: What recognition found.
        case: A case that a clause fails on.
        inputs: What the failing call was given, where that is known.
    """
    subject = recognition.subject
    for given in _calls(recognition, case, inputs):
        try:
            if _is_right(subject, given) and _is_exact(subject, given):
                continue
            found = trace_runs([run_on(subject, given)], title=recognition.name, inexact=True).departure
            if found is not None:
                return found
        except (AttnspecError, SubjectError, NotApplicable):
            continue
    return None


def _calls(recognition: Any, case: Case, inputs: Any) -> Iterator[Any]:
    """Yield the inputs of calls like a failing one, ever more like it; in the end the very same."""
    subject, space = recognition.subject, recognition.space
    layer = isinstance(subject, LayerSubject)
    if layer and not space.has("parameters"):
        return
    cross = space.has("cross") and case.q_len != case.kv_len
    sizes = next(iter(prime_sizes(grouped=case.kv_heads != case.heads, cross=cross, runs=1)))
    telling = {name: sizes[name] for name in AXES}
    changes: dict[str, Any] = {
        "dtype": "float64" if "float64" in space.dtypes else space.dtypes[0],
        "causal": case.causal and space.causal == "flag",
        "sources": space.sources[-1] if layer and cross and case.sources == "self" else case.sources,
        "projection_bias": True,
    }
    alike = case.replace(**telling, **changes)
    plain: dict[str, Any] = {
        "values": "normal",
        "layout": "contiguous",
        "mask_axes": "bhqk",
        "mask_rank": 4,
        "seed": 5,
    }
    if case.scale == 0:  # nothing of the scores would be left to tell them by
        plain["scale"] = 0.5
    plain["mask"] = "dead" if case.mask == "nothing" else case.mask
    tried = [alike.replace(**plain), alike]
    for count in (1, 2):
        for groups in combinations(_OWN_SIZES, count):
            own = {name: getattr(case, name) for names in groups for name in names}
            tried.append(alike.replace(**own, values=case.values))
    for candidate in tried:
        fitted = space.fit(candidate)
        if fitted is not None and fitted.batch * fitted.heads * fitted.q_len * fitted.kv_len < LARGEST_KEPT:
            yield subject.layer_inputs(fitted) if layer else fitted.core_inputs()
    if layer and not isinstance(inputs, LayerInputs):
        fitted = space.fit(case)
        inputs = None if fitted is None else subject.layer_inputs(fitted)
    elif inputs is None:
        inputs = case.core_inputs()
    for dtype in dict.fromkeys((torch.float64, inputs.query.dtype)) if inputs is not None else ():
        if str(dtype).removeprefix("torch.") in space.dtypes:
            yield inputs.to(dtype)


def _is_right(subject: Any, inputs: Any) -> bool:
    """Whether one call gives what the contract says; code that raises is not."""
    layer = isinstance(inputs, LayerInputs)
    exact = oracle.layer(inputs).output if layer else oracle.core(inputs).output
    try:
        output = (subject.run_layer if layer else subject.run)(inputs).output.detach()
    except SubjectError:
        return False
    tolerance = TOLERANCES.get(str(output.dtype).removeprefix("torch."), 1e-3)
    return same_values(output.to(torch.float64), exact.detach(), tolerance)


def _is_exact(subject: Any, inputs: Any) -> bool:
    """Whether one call is as exact as its dtype and its declared precision allow."""
    layer = isinstance(inputs, LayerInputs)
    exact: Any = oracle.layer(inputs) if layer else oracle.core(inputs)
    roundoffs = roundoffs_for(subject, inputs.query.dtype)
    allowed = layer_bound(inputs, exact, roundoffs) if layer else core_bound(inputs, exact, roundoffs)
    output = (subject.run_layer if layer else subject.run)(inputs).output
    try:
        require_within(output, exact.output, allowed, what="output", rows=alive_rows(exact))
    except Violation:
        return False
    return True


def departure_line(departure: Departure) -> str:
    """Return a departure in one line: file, line, source, and what is wrong there."""
    source = f"  {departure.source.strip()}" if departure.source else ""
    place = f"{Path(departure.file).name}:{departure.line}{source}" if departure.file else departure.name
    said = (
        departure.text.removeprefix(f"{Path(departure.file).name}:{departure.line} ")
        if departure.file
        else ""
    )
    return f"{place}  ({said})" if said else place
