"""A core lifts to a layer through the canonical projections, so a kernel is held to the layer's clauses too.

What a kernel meets in a layer is not what it meets alone: heads that are views of one projection,
gradients that flow on into weights, modules that are moved to another dtype.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


class LiftedLayer(nn.Module):
    """A layer around a core: project, split, call the core, merge, project.

    Args:
        core: The attention function, heads on axis 1.
        d_model: Width of the model.
        heads: Query heads.
        kv_heads: Key and value heads; None means `heads`.
        bias: Whether the projections have biases.

    Raises:
        ValueError: If `heads` does not divide `d_model`, or `kv_heads` does not divide `heads`.
    """

    def __init__(
        self,
        core: Callable[..., Any],
        d_model: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        if d_model % heads or heads % kv_heads:
            raise ValueError(
                "heads must divide d_model and kv_heads must divide heads;"
                f" got d_model={d_model}, heads={heads}, kv_heads={kv_heads}"
            )
        self.core, self.heads, self.kv_heads = core, heads, kv_heads
        width = d_model // heads
        self.W_q = nn.Linear(d_model, heads * width, bias=bias)
        self.W_k = nn.Linear(d_model, kv_heads * width, bias=bias)
        self.W_v = nn.Linear(d_model, kv_heads * width, bias=bias)
        self.W_o = nn.Linear(heads * width, d_model, bias=bias)

    def forward(
        self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None, **options: Any
    ) -> Any:
        """Attend; options go to the core as they are."""
        key = query if key is None else key
        value = key if value is None else value
        split = [
            layer(x).unflatten(-1, (count, -1)).transpose(1, 2)
            for layer, x, count in (
                (self.W_q, query, self.heads),
                (self.W_k, key, self.kv_heads),
                (self.W_v, value, self.kv_heads),
            )
        ]
        result = self.core(*split, **options)
        output, rest = (result[0], tuple(result[1:])) if isinstance(result, tuple) else (result, ())
        projected = self.W_o(output.transpose(1, 2).flatten(2))
        return (projected, *rest) if rest else projected


def lift(core: Callable[..., Any]) -> Callable[..., LiftedLayer]:
    """Return a constructor of layers around a core: `lift(my_attention)(d_model, heads)`."""

    def construct(d_model: int, heads: int, *, kv_heads: int | None = None, bias: bool = True) -> LiftedLayer:
        return LiftedLayer(core, d_model, heads, kv_heads=kv_heads, bias=bias)

    return construct
