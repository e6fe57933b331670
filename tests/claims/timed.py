"""The claims about time, as ratios within one run, on this machine's CPU."""

from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch import nn

from attnspec._registry import built_in
from attnspec.bench.grid import Shape
from attnspec.bench.subjects import Subject, build
from attnspec.bench.timing import step, time_rounds

PASSES = ("forward", "forward+backward")


class EncoderLayer(nn.Module):
    """A transformer layer around an attention: two norms and a feed-forward part of four times the width."""

    def __init__(self, attention: nn.Module, d_model: int) -> None:
        super().__init__()
        self.attention = attention
        self.first, self.second = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.feed_forward = nn.Sequential(
            nn.Linear(d_model, 4 * d_model), nn.GELU(), nn.Linear(4 * d_model, d_model)
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Run the layer."""
        inputs = self.first(inputs + self.attention(inputs))
        return self.second(inputs + self.feed_forward(inputs))


def heads(rounds: int, *, d_model: int = 768) -> dict[str, Any]:
    """Time one to twelve heads at BERT's width, alone and inside a whole transformer layer."""
    calls = [(4, 128), (1, 512)]
    cells = product(calls, ("batched", "sdpa"), (False, True), PASSES)
    rows = [_extra(rounds, *call, d_model, name, inside, which) for call, name, inside, which in cells]
    return {"d_model": d_model, "from": 1, "to": 12, "rows": rows}


def _extra(
    rounds: int, batch: int, length: int, d_model: int, name: str, inside: bool, which: str
) -> dict[str, Any]:
    """Return how much more time twelve heads take than one."""
    steps = {}
    for count in (1, 12):
        shape = Shape(batch, length, d_model, count)
        inner = build(name, shape, torch.float32, causal=False, device="cpu").call
        assert isinstance(inner, nn.Module)
        layer = EncoderLayer(inner, d_model) if inside else inner
        subject = Subject(str(count), layer, tuple(layer.parameters()))
        steps[str(count)] = step(subject, torch.randn(batch, length, d_model), which)
    timing = time_rounds(steps, "1", rounds=rounds, seconds=0.05, clock="cpu")["12"]
    return {
        "batch": batch,
        "length": length,
        "implementation": name,
        "whole_layer": inside,
        "which": which,
        "extra": timing.ratio - 1,
        "low": timing.low - 1,
        "high": timing.high - 1,
    }


def head_width(rounds: int, *, batch: int = 2, length: int = 256, d_model: int = 1024) -> dict[str, Any]:
    """Time head widths from 16 to 512 at one width of the model, as multiples of 128."""
    rows = []
    for name in ("batched", "sdpa"):
        for which in PASSES:
            steps = {}
            for width in (16, 32, 64, 128, 256, 512):
                subject = build(
                    name,
                    Shape(batch, length, d_model, d_model // width),
                    torch.float32,
                    causal=False,
                    device="cpu",
                )
                steps[str(width)] = step(subject, torch.randn(batch, length, d_model), which)
            found = time_rounds(steps, "128", rounds=rounds, seconds=0.02, clock="cpu")
            rows.append(
                {"implementation": name, "which": which, "ratios": {w: t.ratio for w, t in found.items()}}
            )
    return {"batch": batch, "length": length, "d_model": d_model, "relative_to": 128, "rows": rows}


def grouped_decoding(
    rounds: int, *, length: int = 4096, heads: int = 16, d_k: int = 64, group: int = 4
) -> dict[str, Any]:
    """Time one decoding step against a full cache: all heads, and groups of four."""
    core = built_in("sdpa_core").target
    shapes = {"all": heads, "grouped": heads // group}
    steps: dict[str, Callable[[], Any]] = {}
    for name, kv_heads in shapes.items():
        query = torch.randn(1, heads, 1, d_k)
        key, value = torch.randn(1, kv_heads, length, d_k), torch.randn(1, kv_heads, length, d_k)
        steps[name] = lambda query=query, key=key, value=value: core(query, key, value)
    timing = time_rounds(steps, "all", rounds=rounds, seconds=0.02, clock="cpu")["grouped"]
    return {
        "length": length,
        "heads": heads,
        "d_k": d_k,
        "group": group,
        "ratio": timing.ratio,
        "low": timing.low,
        "high": timing.high,
    }
