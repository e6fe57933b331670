"""A script that reproduces one failure with torch and the user's file alone."""

import pprint
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .._clauses import Clause
from .results import Failure

LARGEST = 4096


class LastCall:
    """The latest call of the code under test: what was called, and with what."""

    function: Any = None
    again: Callable[[], Any] | None = None
    trouble: Exception | None = None
    given: ClassVar[dict[str, Any]] = {}
    state: dict[str, Tensor] | None = None
    given_sizes: ClassVar[dict[str, Any]] = {}


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
    """Write the script of the latest call and return its path; None if the call is too large to write out.

    Raises:
        OSError: Never; a folder that cannot be written to means no script.
    """
    given = LastCall.given
    tensors = [v for v in given.values() if isinstance(v, Tensor)] + list((LastCall.state or {}).values())
    if LastCall.function is None or sum(t.numel() for t in tensors) > LARGEST:
        return None
    text = script_text(clause, failure, recognition)
    path = folder / f"{clause.name}.py"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError:
        return None
    return path


def script_text(clause: Clause, failure: Failure, recognition: Any) -> str:
    """Return the script as text."""
    declaration = recognition.declaration
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
    names = []
    for name, value in LastCall.given.items():
        lines.append(f"{name} = {literal(value) if isinstance(value, Tensor) else repr(value)}")
        names.append(name)
    lines += _call_lines(declaration, names)
    lines += ["print('output', output)"]
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


def _call_lines(declaration: Any, names: list[str]) -> list[str]:
    lines = []
    called = "target"
    if isinstance(LastCall.function, nn.Module) and LastCall.state is not None:
        sizes = LastCall.given_sizes.items()
        lines += [f"{k} = {literal(v) if isinstance(v, Tensor) else repr(v)}" for k, v in sizes]
        lines.append("_target = target")
        lines.append(f"layer = {declaration.new}")
        some = next(iter(LastCall.state.values()), None)
        if some is not None:
            lines.append(f"layer = layer.to({some.dtype})")
        lines.append("layer.load_state_dict({")
        lines += [f"    {name!r}: {literal(tensor)}," for name, tensor in LastCall.state.items()]
        lines.append("})")
        lines.append("layer.train()" if LastCall.function.training else "layer.eval()")
        called = "layer"
    if declaration.call is not None:
        missing = [
            n for n in ("key", "value", "mask", "bias", "window", "softcap", "scale") if n not in names
        ]
        lines += [f"{n} = None" for n in missing] + [f"f = {called}", f"output = {declaration.call}"]
    else:
        words = ", ".join(
            f"{declaration.arguments[name]}={name}" for name in names if name in declaration.arguments
        )
        lines.append(f"output = {called}({words})")
    return lines
