"""A window that the constructor takes: how it counts, from what each query is seen to use."""

import re

import torch
from torch import Tensor

from .._inputs import LayerInputs
from .experiments import Probe, attempt, seen_layer
from .layer_call import shown_new
from .layer_runner import Runner
from .names import OPTION_NAMES


def decide_window(probe: Probe, run: Runner) -> None:
    """How does the constructor's window count? With 2, a query sees itself and 1 or 2 keys before it.

    Taken only if what is seen is one of the two and nothing later; else the window is kept open.
    """
    word = next((w for w in ("max_len", "None") if f"={w}" in _window_word(probe)), None)
    if word is None or "window" in probe.declaration.arguments:
        return
    name = _window_word(probe).partition("=")[0]
    new = probe.declaration.new or ""
    with_two = new.replace(f"{name}={word}", f"{name}=2")
    inputs = run.case(q_len=6, kv_len=6).layer_inputs()
    found, _ = attempt(lambda: _seen(run, with_two, inputs))
    counts = {1: "window[0] + 1", 2: "window[0]"}
    fitting = [] if found is None else [n for n in counts if _is_band(*found, before=n)]
    if len(fitting) != 1 or probe.space.causal == "flag":
        probe.find(
            "window",
            f"{name} of its constructor is left open ({word}): the window is not checked",
            "by name",
            f"new={shown_new(probe)}",
        )
        return
    count = counts[fitting[0]]
    probe.declare(
        new=new.replace(f"{name}={word}", f"{name}={word} if window is None or window[0] < 0 else {count}"),
        arguments={**probe.declaration.arguments, "window": "window"},
    )
    probe.add("window")
    probe.absent.pop("window", None)
    what = "keys, its own position among them" if fitting[0] == 1 else "keys before its own position"
    probe.find("window", f"{name} of its constructor counts {what}", "probed", f"new={shown_new(probe)}")


def _window_word(probe: Probe) -> str:
    """Return the word of the construction that leaves a window open, `window_size=max_len`, or nothing."""
    words = re.findall(r"(\w+)=(max_len|None)\b", probe.declaration.new or "")
    return next((f"{name}={word}" for name, word in words if name in OPTION_NAMES["window"]), "")


def _seen(run: Runner, new: str, inputs: LayerInputs) -> tuple[Tensor, Tensor]:
    layer = run.subject(new=new).build_any(run.case(q_len=6, kv_len=6))
    return seen_layer(lambda changed: layer.run(changed).output, inputs)


def _is_band(seen: Tensor, telling: Tensor, *, before: int) -> bool:
    """Return whether each query is seen to use so many keys before its own position, and no later one."""
    size = seen.shape[-1]
    band = torch.ones(size, size, dtype=torch.bool).tril().triu(-before)
    return bool(((seen == band) | ~telling).all())
