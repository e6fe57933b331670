"""Inputs for the validation of the bound: a structure and values, drawn from one seed."""

import random

import torch
from torch import Generator, Tensor

from attnspec._inputs import CoreInputs, LayerInputs
from attnspec.weights import LayerWeights

LENGTHS = (1, 2, 3, 5, 16, 17, 33, 64, 65)
WIDTHS = (1, 2, 3, 5, 8, 16, 17, 64)
FAMILIES = ("zeros", "ones", "one_hot", "integers", "normal", "small", "outlier", "offset", "large")


def values(family: str, shape: tuple[int, ...], g: Generator) -> Tensor:
    """Return a tensor of one family, in float64."""
    normal = torch.randn(shape, generator=g, dtype=torch.float64)
    match family:
        case "zeros":
            return torch.zeros_like(normal)
        case "ones":
            return torch.ones_like(normal)
        case "one_hot":
            return torch.zeros_like(normal).scatter_(
                -1, torch.randint(shape[-1], (*shape[:-1], 1), generator=g), 1.0
            )
        case "integers":
            return torch.randint(-3, 4, shape, generator=g).double()
        case "small":
            return normal * 1e-3
        case "outlier":
            return normal * torch.where(torch.rand(shape, generator=g) < 0.05, 30.0, 1.0)
        case "offset":
            return normal + float(torch.randint(4, 100, (), generator=g))
        case "large":
            return normal * float(torch.randint(8, 41, (), generator=g))
    return normal


def _family(pick: random.Random) -> str:
    return pick.choices(FAMILIES, (1, 1, 1, 2, 6, 1, 2, 2, 2))[0]


def _broadcast(pick: random.Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size if pick.random() < 0.6 else 1 for size in shape)


def options(
    pick: random.Random, g: Generator, scores: tuple[int, int, int, int], *, cap: bool = True
) -> dict:
    """Return masks, biases and flags for scores of a shape."""
    found: dict = {}
    if pick.random() < 0.4:
        mask = torch.rand(_broadcast(pick, scores), generator=g) < pick.choice((0.2, 0.6, 0.95))
        if pick.random() < 0.5:
            mask[..., 0, :] = False
        found["mask"] = mask
    if pick.random() < 0.3:
        bias = values(pick.choice(("normal", "normal", "integers", "large")), _broadcast(pick, scores), g)
        if pick.random() < 0.2:
            bias[torch.rand(bias.shape, generator=g) < 0.2] = -torch.inf
        found["bias"] = bias
    if pick.random() < 0.3:
        found |= {"causal": True, "alignment": pick.choice(("lower_right", "upper_left"))}
    if pick.random() < 0.15:
        found["window"] = (pick.randint(-1, 5), pick.randint(-1, 5))
    if cap and pick.random() < 0.2:
        found["softcap"] = pick.choice((0.5, 2.0, 20.0, 50.0))
    if pick.random() < 0.3:
        found["scale"] = pick.choice((0.0, 1.0, -0.7, 0.05, 2.0))
    return found


def core(seed: int, *, small: bool = False) -> CoreInputs:
    """Return one call of a core, in float64."""
    pick, g = random.Random(seed), Generator().manual_seed(seed)
    kv_heads, group = pick.choice((1, 1, 2, 3)), pick.choice((1, 1, 1, 2, 3))
    batch, heads = pick.choice((1, 1, 2)), kv_heads * group
    lengths, widths = (LENGTHS[:4], WIDTHS[:4]) if small else (LENGTHS, WIDTHS)
    q_len, kv_len, d_k = pick.choice(lengths), pick.choice(lengths), pick.choice(widths)
    kv_len = q_len if pick.random() < 0.4 else kv_len
    d_v = d_k if pick.random() < 0.7 else pick.choice(widths)
    same = _family(pick)
    families = [same if pick.random() < 0.5 else _family(pick) for _ in range(3)]
    shapes = (batch, heads, q_len, d_k), (batch, kv_heads, kv_len, d_k), (batch, kv_heads, kv_len, d_v)
    query, key, value = (values(f, s, g) for f, s in zip(families, shapes, strict=True))
    extra = options(pick, g, (batch, heads, q_len, kv_len))
    return CoreInputs(query=query, key=key, value=value, **extra)


def layer(seed: int, *, small: bool = False) -> LayerInputs:
    """Return one call of a layer, in float64."""
    pick, g = random.Random(seed), Generator().manual_seed(seed)
    kv_heads, group, width = pick.choice((1, 2, 2, 4)), pick.choice((1, 1, 1, 2)), pick.choice((1, 3, 8, 16))
    heads = kv_heads * group
    if small:
        kv_heads, heads, width = 2, 2 * min(group, 2), pick.choice((1, 3))
    d_model, batch = heads * width, pick.choice((1, 2, 3))
    lengths = LENGTHS[:4] if small else LENGTHS[:7]
    q_len, kv_len = pick.choice(lengths), pick.choice(lengths)
    sources = pick.choice(("self", "self", "cross", "apart"))
    kv_len = q_len if sources == "self" else kv_len
    family = pick.choice(
        ("normal", "normal", "normal", "outlier", "offset", "integers", "ones", "small", "zeros")
    )
    tensors = {"query": values(family, (batch, q_len, d_model), g)}
    if sources != "self":
        tensors["key"] = values(family, (batch, kv_len, d_model), g)
    if sources == "apart":
        tensors["value"] = values(family, (batch, kv_len, d_model), g)
    weights = LayerWeights.random(d_model, heads, kv_heads=kv_heads, bias=pick.random() < 0.6, generator=g)
    extra = options(pick, g, (batch, heads, q_len, kv_len), cap=pick.random() < 0.3)
    return LayerInputs(**tensors, weights=weights, **extra)
