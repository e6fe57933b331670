"""Run the subjects of this folder: build a layer with the oracle's weights, and make traceable runs of it."""

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from attnspec._inputs import CoreInputs, LayerInputs
from attnspec.oracle.vectorised import core, layer
from attnspec.trace import Run, prime_sizes
from attnspec.weights import LayerWeights

HERE = Path(__file__).parent
MARK = re.compile(r"#\s*departs:\s*(\w+)")


def load(name: str) -> ModuleType:
    """Import a subject's file afresh."""
    spec = importlib.util.spec_from_file_location(f"trace_subject_{name}", HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def marks(name: str) -> dict[str, tuple[int, str]]:
    """Return, for each class of a file, the line and the stage that its comment names."""
    found, current = {}, ""
    for number, text in enumerate((HERE / f"{name}.py").read_text().splitlines(), 1):
        if text.startswith("class "):
            current = re.split(r"\W", text[6:])[0]
        if hit := MARK.search(text):
            found[current] = (number, hit.group(1))
    return found


def draw(*shape: int, seed: int = 7) -> torch.Tensor:
    """Draw a tensor from a generator of its own."""
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64
    )


def mask_of(kind: str | None, sizes: dict[str, int]) -> torch.Tensor | None:
    """Return a mask, True where a query may attend: `some`, `causal`, or `dead` (one row sees nothing)."""
    if kind is None:
        return None
    q_len, kv_len = sizes["q_len"], sizes["kv_len"]
    if kind == "causal":
        return torch.ones(q_len, kv_len, dtype=torch.bool).tril()
    seen = draw(sizes["batch"], 1, q_len, kv_len, seed=3) > -0.5
    seen |= torch.eye(q_len, kv_len, dtype=torch.bool)
    if kind == "dead":
        seen[:, :, 1] = False
    return seen


def layer_runs(
    build: Callable[[dict[str, int]], Any],
    *,
    mask: str | None = None,
    grouped: bool = False,
    runs: int = 3,
    dtype: torch.dtype = torch.float64,
    give: Callable[[torch.Tensor], torch.Tensor] | None = None,
    bias: bool = True,
) -> list[Run]:
    """Make runs of a self-attention layer.

    Args:
        build: Makes the module from the sizes; it has `load(weights)` or is filled by its `W_q` and so on.
        mask: See `mask_of`; handed over as the second argument.
        grouped: Whether heads share keys and values.
        runs: How many.
        dtype: Of the run.
        give: Changes the mask to what the module wants.
        bias: Whether projections have biases.
    """
    return [_layer_run(build, s, mask, dtype, give, bias) for s in prime_sizes(grouped=grouped, runs=runs)]


def _layer_run(build: Any, sizes: dict[str, int], mask: str | None, dtype: Any, give: Any, bias: bool) -> Run:
    generator = torch.Generator().manual_seed(1)
    weights = LayerWeights.random(
        sizes["d_model"], sizes["heads"], kv_heads=sizes["kv_heads"], bias=bias, generator=generator
    )
    x = draw(sizes["batch"], sizes["q_len"], sizes["d_model"])
    seen = mask_of(mask, sizes)
    steps = layer(LayerInputs(query=x, mask=seen, weights=weights)).steps
    module = build(sizes).to(dtype).eval()
    fill(module, weights)
    x = x.to(dtype)
    given = None if seen is None else give(seen) if give else seen
    inputs = {"x": x} | ({} if given is None else {"mask": given})
    named = dict(module.named_parameters()) if isinstance(module, torch.nn.Module) else {}
    return Run(sizes, lambda: module(*inputs.values()), inputs, named | weights.tensors(), steps)


def fill(module: Any, weights: LayerWeights) -> None:
    """Load canonical weights into a subject."""
    if hasattr(module, "load"):
        module.load(weights)
        return
    with torch.no_grad():
        for name in "qkvo":
            linear = getattr(module, f"W_{name}")
            linear.weight.copy_(getattr(weights, f"W_{name}"))
            if linear.bias is not None:
                linear.bias.copy_(getattr(weights, f"b_{name}"))


def core_runs(
    function: Callable[..., Any],
    *,
    mask: str | None = None,
    grouped: bool = False,
    cross: bool = False,
    bias: bool = False,
    runs: int = 3,
    **options: Any,
) -> list[Run]:
    """Make runs of a core `f(query, key, value[, mask][, bias])`; options are the oracle's alone."""
    made = []
    for s in prime_sizes(grouped=grouped, cross=cross, runs=runs):
        q = draw(s["batch"], s["heads"], s["q_len"], s["d_k"], seed=1)
        k = draw(s["batch"], s["kv_heads"], s["kv_len"], s["d_k"], seed=2)
        v = draw(s["batch"], s["kv_heads"], s["kv_len"], s["d_v"], seed=4)
        seen = mask_of(mask, s)
        added = draw(s["batch"], s["heads"], s["q_len"], s["kv_len"], seed=5) if bias else None
        steps = core(CoreInputs(query=q, key=k, value=v, mask=seen, bias=added, **options)).steps
        given = {"query": q, "key": k, "value": v, "mask": seen, "bias": added}
        inputs = {name: tensor for name, tensor in given.items() if tensor is not None}
        made.append(Run(s, lambda i=inputs: function(*i.values()), inputs, {}, steps))
    return made
