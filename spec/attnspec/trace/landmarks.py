"""What a traced tensor is held against: the oracle's stage values, cut into their atomic axes.

Stages that only move values around (projection, split, heads first) hold the same numbers, so they
share one landmark; which of them a tensor is follows from the order of its axes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from attnspec import stages
from attnspec._table import STAGES

ROLES = ("q", "k", "v")
PROJECTIONS = {
    "q": stages.project_queries.__name__,
    "k": stages.project_keys.__name__,
    "v": stages.project_values.__name__,
}
SPLIT, FIRST, SHARE = stages.split_heads.__name__, stages.heads_first.__name__, stages.share_heads.__name__
SCORES, SCALE, CAP, BIAS = (
    f.__name__ for f in (stages.scores, stages.scale_scores, stages.cap_scores, stages.add_bias)
)
MASK, SOFTMAX, DROPOUT = stages.mask_scores.__name__, stages.normalise.__name__, stages.drop_weights.__name__
AGGREGATE, MERGE, OUTPUT = (
    f.__name__ for f in (stages.aggregate_values, stages.merge_heads, stages.project_output)
)
POSITION_AXES = ("q_len", "kv_len")


@dataclass(frozen=True)
class Landmark:
    """One value that code may pass through.

    Attributes:
        name: `q`, `k`, `v`, `k shared`, `v shared`, `qkv`, `kv`, `scores`, `cap`, `bias`, `weights`, `mixed`,
            `output`, or `input` and the input's name.
        value: The oracle's value, one dimension an atomic axis.
        axes: The name of each dimension.
        kind: How a tensor is compared with it (see `match`).
    """

    name: str
    value: Tensor
    axes: tuple[str, ...]
    kind: str

    @property
    def rms(self) -> float:
        """Root mean square of the finite entries; 0 where there are none."""
        finite = self.value[torch.isfinite(self.value)]
        return float(finite.square().mean().sqrt()) if finite.numel() else 0.0


@dataclass(frozen=True)
class Chart:
    """All landmarks of one run, and what is needed to compare with them.

    Attributes:
        landmarks: By name, in the contract's order.
        visible: True where a query may attend, in the axes of the scores.
        masked: Whether anything is hidden.
        scale: The contract's factor on the scores.
        layer: Whether the run is of a layer; else of a core.
        stages: The contract's rows of this run, by stage function name, roles after a colon.
        output: What the run must return.
    """

    landmarks: Mapping[str, Landmark]
    visible: Tensor
    masked: bool
    scale: float
    layer: bool
    stages: tuple[str, ...]
    output: Tensor


def chart(sizes: Mapping[str, int], inputs: Mapping[str, Tensor], steps: Mapping[str, Tensor]) -> Chart:
    """Draw the chart of a run from the oracle's steps."""
    layer = OUTPUT in steps
    found: dict[str, Landmark] = {}
    values = _roles(sizes, inputs, steps, layer, found)
    grouped = sizes["kv_heads"] != sizes["heads"]
    heads = ("kv_heads", "group") if grouped else ("heads",)

    def cut(value: Tensor) -> Tensor:
        return value.unflatten(1, (sizes["kv_heads"], -1)) if grouped else value

    for role in ROLES:
        axes = ("batch", "q_len" if role == "q" else "kv_len", "d_v" if role == "v" else "d_k")
        inner = heads if role == "q" else ("kv_heads",) if grouped else heads
        value = cut(values[role]) if role == "q" else values[role]
        found[role] = Landmark(
            role, value, (axes[0], *inner, axes[1], axes[2]), "value" if role == "v" else "factor"
        )
        if grouped and role != "q":
            shared = cut(stages.share_heads(values[role], group=sizes["heads"] // sizes["kv_heads"]))
            kind = "value" if role == "v" else "factor"
            found[f"{role} shared"] = Landmark(
                f"{role} shared", shared, (axes[0], *heads, axes[1], axes[2]), kind
            )
    found |= _bundles(values)
    pairs = ("batch", *heads, "q_len", "kv_len")
    for name, step in (("scores", SCORES), ("cap", CAP), ("bias", BIAS)):
        if step in steps:
            found[name] = Landmark(name, cut(steps[step]), pairs, "scores")
    found["weights"] = Landmark("weights", cut(steps[SOFTMAX]), pairs, "weights")
    found["mixed"] = Landmark("mixed", cut(steps[AGGREGATE]), ("batch", *heads, "q_len", "d_v"), "mixed")
    if layer:
        found["output"] = Landmark("output", steps[OUTPUT], ("batch", "q_len", "d_model"), "output")
    visible = (
        cut(steps[MASK] != float("-inf"))
        if MASK in steps
        else torch.ones_like(cut(steps[SCORES]), dtype=torch.bool)
    )
    raw, scaled = steps[SCORES].flatten(), steps[SCALE].flatten()
    scale = float((raw @ scaled) / (raw @ raw)) if raw.numel() and bool(raw.any()) else 1.0
    masked = not bool(visible.all())
    return Chart(
        found,
        visible,
        masked,
        scale,
        layer,
        _rows(steps, layer, grouped, masked),
        steps[OUTPUT if layer else AGGREGATE],
    )


def _roles(
    sizes: Mapping[str, int], inputs: Mapping[str, Tensor], steps: Mapping[str, Tensor], layer: bool,
    found: dict[str, Landmark],
) -> dict[str, Tensor]:  # fmt: skip
    floating = {
        n: t for n, t in inputs.items() if t.is_floating_point() and "mask" not in n and "bias" not in n
    }
    if f"{FIRST}:q" not in steps:
        named = [t.detach().cpu().to(torch.float64) for t in floating.values()]
        return dict(zip(ROLES, named[:3], strict=True))
    for name, tensor in floating.items() if layer else ():
        if tensor.dim() == 3:
            same = tensor.shape[1] == sizes["q_len"]
            axes = ("batch", "q_len" if same else "kv_len", "d_model")
            found[f"input {name}"] = Landmark(
                f"input {name}", tensor.detach().cpu().to(torch.float64), axes, "value"
            )
    return {r: steps[f"{FIRST}:{r}"] for r in ROLES}


def _bundles(values: Mapping[str, Tensor]) -> dict[str, Landmark]:
    """Return the landmarks of fused projections, where the parts are alike."""
    q, k, v = (values[r] for r in ROLES)
    found: dict[str, Landmark] = {}
    if k.shape == v.shape:
        axes = ("batch", "heads", "kv_len", "d_k")
        found["kv"] = Landmark("kv", torch.stack([k, v], 2), ("batch", "heads", "2", *axes[2:]), "value")
        if q.shape == k.shape:
            found["qkv"] = Landmark(
                "qkv", torch.stack([q, k, v], 2), ("batch", "heads", "3", *axes[2:]), "value"
            )
    if q.shape[1] != k.shape[1] and q.shape[2:] == k.shape[2:] == v.shape[2:]:
        wide = torch.cat([t.transpose(1, 2).flatten(2) for t in (q, k, v)], -1)
        found["qkv"] = Landmark("qkv", wide, ("batch", "kv_len", "(heads+2*kv_heads)*d_k"), "value")
    return found


def _rows(steps: Mapping[str, Tensor], layer: bool, grouped: bool, masked: bool) -> tuple[str, ...]:
    moved = [f"{s}:{r}" for r in ROLES for s in (PROJECTIONS[r], SPLIT, FIRST)] if layer else []
    moved.sort(key=lambda s: list(STAGES).index(s.split(":")[0]))
    moved = [s.split(":")[0] if s.startswith("project") else s for s in moved]
    shared = [f"{SHARE}:k", f"{SHARE}:v"] if grouped else []
    kept = [s for s in (CAP, BIAS) if s in steps]
    masking = [MASK] if masked else []
    last = [MERGE, OUTPUT] if layer else []
    return (*moved, *shared, SCORES, SCALE, *kept, *masking, SOFTMAX, AGGREGATE, *last)
