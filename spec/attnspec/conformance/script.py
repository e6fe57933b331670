"""A script that reproduces one failure with torch and the user's file alone."""

import pprint
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .._clauses import Clause
from ..loading import member_name
from .calls import Call, LastCall, latest_call
from .results import Failure

LARGEST = 4096


def literal(tensor: Tensor) -> str:
    """Return an expression that rebuilds a tensor exactly."""
    values = tensor.detach()
    if values.dtype in (torch.bfloat16, torch.float16, torch.float32):
        values = values.double()
    text = pprint.pformat(values.tolist(), width=100, compact=True)
    text = text.replace("nan", 'float("nan")').replace("-inf", 'float("-inf")')
    text = (
        text
        if "inf" not in text.replace('float("-inf")', "")
        else text.replace("inf", 'float("inf")').replace('float("-float("inf")")', 'float("-inf")')
    )
    shaped = f".reshape({tuple(tensor.shape)})" if tensor.numel() == 0 else ""
    return f"torch.tensor({text}, dtype={tensor.dtype}){shaped}"


def write_script(folder: Path, clause: Clause, failure: Failure, recognition: Any) -> Path | None:
    """Write the script of a failure and return its path; None if its calls are too large to write out.

    Where the failure lies in the order of calls, all are repeated; else the latest alone.

    Raises:
        OSError: Never; a folder that cannot be written to means no script.
    """
    calls = LastCall.sequence or latest_call()
    if not calls or sum(t.numel() for call in calls for t in call.tensors()) > LARGEST:
        return None
    text = script_text(clause, failure, recognition, calls)
    path = folder / f"{clause.name}.py"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError:
        return None
    return path


def script_text(clause: Clause, failure: Failure, recognition: Any, calls: Sequence[Call]) -> str:
    """Return the script as text."""
    lines = [
        f'"""{clause.name} ({clause.level}): {clause.statement}',
        "",
        f"{failure.what}",
        f"case: {failure.case}",
        f"got {failure.got}, expected {failure.expected}",
        f"allowed error {failure.allowed}, at {failure.index}",
        '"""',
        "",
        "import torch",
        *_import_lines(recognition.name),
        "",
    ]
    if len(calls) > 1:
        lines += ["# The calls in their order; the last is the one that goes wrong.", ""]
    lines += _calls_lines(recognition.declaration, calls)
    lines += ["torch.set_printoptions(precision=17)", "print('output', output)"]
    if failure.index is not None and failure.expected is not None:
        lines += [
            f"# In the contract's axes it is {failure.index}; a layer's core is seen through exact weights.",
            f"print('expected there', {failure.expected!r})",
        ]
    return "\n".join(lines) + "\n"


def _import_lines(name: str) -> list[str]:
    place, _, found = name.rpartition(":")
    if not place:
        return [
            f"from attnspec import registry  # {name} is a registered implementation",
            f"target = registry().get({name!r}).target",
        ]
    if place.endswith(".py"):
        path = str(Path(place).resolve())
        member = member_name(Path(path))
        if member is not None:
            folder, dotted = member
            return [
                "import importlib",
                "import sys",
                "",
                f"sys.path.insert(0, {folder!r})",
                f"target = importlib.import_module({dotted!r}).{found}",
            ]
        return [
            "import importlib.util",
            "import sys",
            "",
            f"sys.path.insert(0, {str(Path(path).parent)!r})",
            f"spec = importlib.util.spec_from_file_location('target_module', {path!r})",
            "module = importlib.util.module_from_spec(spec)",
            "sys.modules['target_module'] = module",
            "spec.loader.exec_module(module)",
            f"target = module.{found}",
        ]
    return [f"import {place}", f"target = {place}.{found}"]


def _calls_lines(declaration: Any, calls: Sequence[Call]) -> list[str]:
    lines: list[str] = []
    before: dict[int, Call] = {}  # by what is called
    last: Call | None = None
    for call in calls:
        for name, value in call.given.items():
            lines += _argument_lines(name, value, call, last)
        called = "target"
        if isinstance(call.function, nn.Module) and call.state is not None:
            earlier = before.get(id(call.function))
            number = list(before).index(id(call.function)) if earlier else len(before)
            called = "layer" if number == 0 else f"layer_{number + 1}"
            lines += _module_lines(declaration, called, call, earlier)
        made = _call_lines(declaration, called, list(call.given))
        if call.inference:
            lines += ["with torch.inference_mode():", *(f"    {line}" for line in made)]
        else:
            if len(calls) > 1 or not call.grad:
                lines.append(f"torch.set_grad_enabled({call.grad})")
            lines += made
        if call is not calls[-1]:
            lines.append("")
        before[id(call.function)] = last = call
    return lines


def _argument_lines(name: str, value: Any, call: Call, last: Call | None) -> list[str]:
    if not isinstance(value, Tensor):
        return [f"{name} = {value!r}"]
    if last is not None and last.handed.get(name) is call.handed[name]:
        same = torch.equal(last.given[name].nan_to_num(), value.nan_to_num())
        return [] if same else [f"{name}.copy_({literal(value)})  # the very same tensor"]
    asks = ".requires_grad_()" if value.requires_grad else ""
    return [f"{name} = {literal(value)}{asks}"]


def _module_lines(declaration: Any, called: str, call: Call, earlier: Call | None) -> list[str]:
    """Return what makes the module, or what changed in it since its earlier call."""
    lines, state = [], call.state or {}
    if earlier is None:
        sizes = call.sizes.items()
        lines += [f"{k} = {literal(v) if isinstance(v, Tensor) else repr(v)}" for k, v in sizes]
        lines += ["_target = target", f"{called} = {declaration.new}"]
    some = next(iter(state.values()), None)
    if some is not None and (earlier is None or _dtype(earlier.state) != some.dtype):
        lines.append(f"{called} = {called}.to({some.dtype})")
    if earlier is None or not _equal(earlier.state or {}, state):
        lines.append(f"{called}.load_state_dict({{")
        lines += [f"    {name!r}: {literal(tensor)}," for name, tensor in state.items()]
        lines.append("})")
    if earlier is None or earlier.training != call.training:
        lines.append(f"{called}.train()" if call.training else f"{called}.eval()")
    return lines


def _dtype(state: Mapping[str, Tensor] | None) -> torch.dtype | None:
    return next((tensor.dtype for tensor in (state or {}).values()), None)


def _equal(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    return all(
        torch.equal(first[n], t) and first[n].dtype == t.dtype for n, t in second.items() if n in first
    )


def _call_lines(declaration: Any, called: str, names: list[str]) -> list[str]:
    if declaration.call is not None:
        missing = [
            n for n in ("key", "value", "mask", "bias", "window", "softcap", "scale") if n not in names
        ]
        return [f"{n} = None" for n in missing] + [f"f = {called}", f"output = {declaration.call}"]
    words = ", ".join(
        f"{declaration.arguments[name]}={name}" for name in names if name in declaration.arguments
    )
    return [f"output = {called}({words})"]
