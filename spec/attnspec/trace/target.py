"""Traceable runs of whatever recognition understands: the code is called exactly as the suite calls it."""

import copy
import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .. import oracle
from .._errors import TargetError
from .._inputs import LayerInputs
from ..conformance.calls import LastCall
from ..conformance.cases import Case
from ..conformance.failures import NotApplicable, SubjectError
from ..conformance.layer_subject import LayerSubject
from ..declaration import Declaration
from ..loading import load_target
from .build import trace_runs
from .landmarks import FIRST
from .record import Run
from .solve import prime_sizes
from .table import Trace

AXES = ("batch", "heads", "kv_heads", "q_len", "kv_len", "d_k", "d_v")


def trace_target(text: str, declared: Declaration) -> Trace:
    """Recognise a target and trace it: with a mask and causality where it takes them.

    Raises:
        TargetError: If it cannot be found, recognised, or called at the sizes of a trace.
    """
    from ..recognition import recognise

    recognition = recognise(load_target(text), declared)
    space = recognition.space
    return trace_recognised(
        recognition, mask="random" if space.has("mask") else None, grouped=space.has("grouped"), title=text
    )


def trace_input(text: str, declared: Declaration, expression: str) -> Trace:
    """Trace anything that can be called: a whole model, say, on inputs of your own.

    Args:
        text: The target: a class, a function or an instance.
        declared: `new` says how to construct a class.
        expression: The inputs, with `batch`, `seq`, `d_model`, `heads`, `d_k` and `torch` bound, for example
            `torch.randn(batch, seq, d_model)`; a tuple is several.

    Raises:
        TargetError: If it cannot be constructed, or the expression does not evaluate.
    """
    target = load_target(text)
    runs = []
    for sizes in prime_sizes():
        names = {
            **target.namespace,
            **sizes,
            "torch": torch,
            "bias": True,
            "dropout": 0.0,
            "max_len": 64,
            "_target": target.object,
        }
        try:
            made = eval(declared.new, names) if declared.new else target.object
            called: Any = made() if inspect.isclass(made) else copy.deepcopy(made)
            given = eval(expression, names)
        except Exception as error:
            raise TargetError(
                f"{text}: {type(error).__name__}: {error}\n"
                f"  bound are {', '.join(sizes)}; a class needs --new 'Model(d_model, heads)',"
                " the inputs --input 'torch.randn(batch, seq, d_model)'"
            ) from error
        inputs = given if isinstance(given, tuple) else (given,)
        weights = dict(called.named_parameters()) if isinstance(called, nn.Module) else {}
        if isinstance(called, nn.Module):
            called.eval()
        named = {f"input {i}" if len(inputs) > 1 else "input": x for i, x in enumerate(inputs)}
        runs.append(Run(sizes, partial(called, *inputs), named, weights))
    return trace_runs(runs, title=text)


def trace_recognised(
    recognition: Any,
    *,
    mask: str | None = None,
    causal: bool = False,
    grouped: bool = False,
    cross: bool = False,
    runs: int = 3,
    title: str = "",
    options: Mapping[str, Any] | None = None,
) -> Trace:
    """Trace a recognised subject.

    Args:
        recognition: What recognition found.
        mask: Family of the mask, or None.
        causal: Whether to ask for causality.
        grouped: Whether heads share keys and values.
        cross: Whether keys come from an input of their own.
        runs: How many sizes to run.
        title: For headings.
        options: Further fields of the case, `scale` for example.

    Raises:
        TargetError: If it cannot be run at these sizes.
    """
    made = []
    for sizes in prime_sizes(grouped=grouped, cross=cross, runs=runs):
        run = _run(recognition, sizes, {"mask": mask, "causal": causal, **(options or {})})
        if run is not None:
            made.append(run)
    if not made:
        raise TargetError(f"{title or recognition.name}: it cannot be run at the sizes of a trace")
    return trace_runs(made, title=title or recognition.name)


def _run(recognition: Any, sizes: Mapping[str, int], fields: dict[str, Any]) -> Run | None:
    subject, space = recognition.subject, recognition.space
    dtype = "float64" if "float64" in space.dtypes else space.dtypes[0]
    known: dict[str, Any] = {k: v for k, v in sizes.items() if k in AXES}
    case = space.fit(Case(**known, dtype=dtype, seed=5, **{k: v for k, v in fields.items() if v is not None}))
    if case is None:
        return None
    inputs: Any = subject.layer_inputs(case) if isinstance(subject, LayerSubject) else case.core_inputs()
    try:
        return run_on(subject, inputs, sizes)
    except NotApplicable:
        return None


def run_on(subject: Any, inputs: Any, sizes: Mapping[str, int] | None = None) -> Run:
    """Return the run of one call; names of axes that `sizes` adds are kept."""
    layer = isinstance(inputs, LayerInputs)
    LastCall.again = None
    try:
        (subject.run_layer if layer else subject.run)(inputs)
    except SubjectError:
        # Code that fails half-way is traced up to where it does.
        if LastCall.again is None:
            raise
    assert LastCall.again is not None
    steps = oracle.layer(inputs).steps if layer else oracle.core(inputs).steps | _heads_of(inputs)
    given = {name: value for name, value in LastCall.given.items() if isinstance(value, Tensor)}
    weights: dict[str, Tensor] = {}
    if isinstance(LastCall.function, nn.Module):
        weights = dict(LastCall.function.named_parameters())
    if layer:
        weights |= inputs.weights.tensors()
    return Run({**(sizes or {}), **_sizes_of(inputs)}, LastCall.again, given, weights, steps)


def _heads_of(inputs: Any) -> dict[str, Tensor]:
    """Return what a core is given as the rows that end with it, in the contract's axes."""
    pairs = (("q", inputs.query), ("k", inputs.key), ("v", inputs.value))
    return {f"{FIRST}:{role}": tensor.detach().cpu().to(torch.float64) for role, tensor in pairs}


def _sizes_of(inputs: Any) -> dict[str, int]:
    """Return the size of each axis of one call by the contract's names."""
    if not isinstance(inputs, LayerInputs):
        sizes = dict(inputs.sizes)
        return sizes | {"d_model": sizes["heads"] * sizes["d_k"]}
    weights = inputs.weights
    return {
        "batch": inputs.query.shape[0], "q_len": inputs.query.shape[1], "kv_len": inputs.key_input.shape[1],
        "heads": weights.heads, "kv_heads": weights.kv_heads, "group": weights.heads // weights.kv_heads,
        "d_k": weights.d_k, "d_v": weights.d_v, "d_model": weights.d_model,
    }  # fmt: skip
