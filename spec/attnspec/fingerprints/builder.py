"""The parts of a wrong reference: attention in plain float64, with any step replaced.

Most mistakes are the right computation of other inputs, so a bank entry is mostly `attend` of a
changed call. A row that sees nothing comes out as NaN here: the softmax is the plain one.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._inputs import CoreInputs, LayerInputs
from .record import WrongCore, WrongLayer

Step = Callable[..., Tensor]


def share(tensor: Tensor, group: int) -> Tensor:
    """Give every query head its key/value head."""
    return tensor.repeat_interleave(group, 1) if group != 1 else tensor


def cap(x: CoreInputs, scores: Tensor) -> Tensor:
    """Apply the softcap, where there is one."""
    return scores if x.softcap is None else x.softcap * torch.tanh(scores / x.softcap)


def logits(x: CoreInputs, raw: Tensor) -> Tensor:
    """Scale, cap and bias the dot products."""
    scores = cap(x, raw * x.factor)
    return scores if x.bias is None else scores + x.bias


def by_position(x: CoreInputs, *, offset: int | None = None, extent: tuple[int, int] | None = None) -> Tensor:
    """Return which keys each query may see by position alone, `q_len kv_len`."""
    left, right = x.extent if extent is None else extent
    rows = torch.arange(x.query.shape[2])[:, None] + (x.offset if offset is None else offset)
    distance = torch.arange(x.key.shape[2])[None, :] - rows
    seen = torch.ones_like(distance, dtype=torch.bool)
    if left >= 0:
        seen &= distance >= -left
    if right >= 0:
        seen &= distance <= right
    return seen


def sight(x: CoreInputs) -> Tensor:
    """Return what each query may see."""
    seen = by_position(x)
    return seen if x.mask is None else seen & x.mask


def seeing(x: CoreInputs, visible: Tensor) -> CoreInputs:
    """Return the call with this visibility instead of its mask, causal flag and window."""
    return x.replace(mask=visible if visible.dim() == 4 else visible[None, None], causal=False, window=None)


def forbid(x: CoreInputs, scores: Tensor) -> Tensor:
    """Hide what may not be seen."""
    return scores.masked_fill(~sight(x), -torch.inf)


def positions_only(x: CoreInputs, scores: Tensor) -> Tensor:
    """Hide what may not be seen by position; the mask is left to another step."""
    return scores.masked_fill(~by_position(x), -torch.inf)


def softmax(scores: Tensor) -> Tensor:
    """Normalise over the keys; NaN where nothing is seen."""
    return scores.softmax(-1)


def mix(x: CoreInputs, weights: Tensor, value: Tensor) -> Tensor:
    """Mix the values."""
    return weights @ value


def attend(
    x: CoreInputs,
    *,
    logits: Step = logits,
    block: Step = forbid,
    softmax: Step = softmax,
    mix: Step = mix,
    share: Step = share,
) -> Tensor:
    """Attend, with any step replaced.

    Args:
        x: The call, float64.
        logits: From the call and the dot products to the logits.
        block: From the call and the logits to the masked logits.
        softmax: From those to the weights.
        mix: From the call, the weights and the shared values to the output.
        share: From a tensor and the group's size to a tensor with all heads.
    """
    group = x.query.shape[1] // x.key.shape[1]
    scores = block(x, logits(x, x.query @ share(x.key, group).mT))
    return mix(x, softmax(scores), share(x.value, group))


def right_core(x: CoreInputs) -> Tensor:
    """Attend rightly: a query that sees nothing gives zeros."""
    dead = ~sight(x).any(-1, keepdim=True)
    return attend(x).masked_fill(dead, 0.0)


def split(x: Any, projected: Tensor, heads: int) -> Tensor:
    """Cut the width into heads and move them to the front."""
    return projected.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge(x: Any, mixed: Tensor) -> Tensor:
    """Lay the heads side by side."""
    return mixed.transpose(1, 2).flatten(2)


def linear(tensor: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Project as a linear layer does."""
    return tensor @ weight.mT if bias is None else tensor @ weight.mT + bias


def project(
    x: LayerInputs, *, split: Step = split, key: Tensor | None = None, value: Tensor | None = None
) -> CoreInputs:
    """Project and split; `key` and `value` replace the inputs that those come from."""
    w = x.weights
    sources = {
        "q": x.query,
        "k": x.key_input if key is None else key,
        "v": x.value_input if value is None else value,
    }
    heads = {"q": w.heads, "k": w.kv_heads, "v": w.kv_heads}
    q, k, v = (
        split(x, linear(sources[n], getattr(w, f"W_{n}"), getattr(w, f"b_{n}")), heads[n]) for n in "qkv"
    )
    return CoreInputs(query=q, key=k, value=v, **x.options())


def run_layer(
    x: LayerInputs, *, core: WrongCore = attend, split: Step = split, merge: Step = merge, **sources: Any
) -> Tensor | None:
    """Run a layer, with any step replaced."""
    mixed = core(project(x, split=split, **sources))
    return None if mixed is None else linear(merge(x, mixed), x.weights.W_o, x.weights.b_o)


def lift(core: WrongCore) -> WrongLayer:
    """Return the layer around a wrong core."""
    return lambda x: run_layer(x, core=core)


def right_layer(x: LayerInputs) -> Tensor | None:
    """Run a layer rightly."""
    return run_layer(x, core=right_core)
