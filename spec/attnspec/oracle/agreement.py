"""The suite checks itself before it judges anybody: both oracles must give the same numbers."""

from functools import cache

import torch

from .._errors import SelfTestError
from .._inputs import CoreInputs, LayerInputs
from ..weights import LayerWeights
from . import scalar, vectorised


def _draw(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def self_test_inputs() -> list[CoreInputs | LayerInputs]:
    """Return small calls that together use every option; all sizes differ."""
    g = torch.Generator().manual_seed(20261201)
    query, key, value = _draw(g, 2, 4, 3, 5), _draw(g, 2, 2, 6, 5), _draw(g, 2, 2, 6, 7)
    mask = torch.rand(2, 4, 3, 6, generator=g) < 0.6
    mask[0, 1, 2] = False
    bias = _draw(g, 1, 4, 1, 6)
    plain = CoreInputs(query=query, key=key, value=value)
    x, context = _draw(g, 2, 3, 8), _draw(g, 2, 5, 8)
    weights = LayerWeights.random(8, 4, kv_heads=2, generator=g)
    return [
        plain,
        plain.replace(mask=mask, bias=bias, scale=-0.7),
        plain.replace(causal=True, alignment="upper_left", softcap=1.5),
        plain.replace(causal=True, mask=mask, window=(1, -1)),
        plain.replace(window=(1, 2), bias=bias, softcap=2.0, mask=mask[:1, :, :1]),
        plain.replace(key=key[:, :, :0], value=value[:, :, :0]),
        LayerInputs(query=x, weights=weights, causal=True),
        LayerInputs(query=x, key=context, weights=weights, mask=mask[:, :, :, :5]),
    ]


@cache
def require_agreement() -> float:
    """Compare the oracles on `self_test_inputs` and return the largest difference.

    Raises:
        SelfTestError: If they differ by more than float64 rounding can explain.
    """
    worst = 0.0
    for inputs in self_test_inputs():
        if isinstance(inputs, CoreInputs):
            left, right = vectorised.core(inputs).output, scalar.core(inputs)
        else:
            left, right = vectorised.layer(inputs).output, scalar.layer(inputs)
        difference = float((left - right).abs().max()) if left.numel() else 0.0
        # Fewer than 2**10 roundings of numbers below 2**3 lie between the two.
        if left.shape != right.shape or not difference <= 2**13 * torch.finfo(torch.float64).eps:
            raise SelfTestError(
                f"the two oracles differ by {difference:.3g}; the suite is at fault, please report it"
            )
        worst = max(worst, difference)
    return worst
