"""The core inside a layer, reached exactly.

Where a projection's input is its own, the projection is the identity and the input is the tensor; where
queries, keys and values share one input, the inputs are one-hot positions and the tensor stands in the
weights. A product with 0 or 1 is exact in every dtype, so each clause for a core holds a layer to the same
numbers.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from .._inputs import CoreInputs, LayerInputs
from ..weights import LayerWeights
from .caller import Outcome
from .failures import SubjectError
from .layer_subject import LayerSubject


class CoreView:
    """The core inside a layer, called through weights that make its projections exact."""

    def __init__(self, layer: LayerSubject) -> None:
        self.layer, self.name, self.declaration = layer, layer.name, layer.declaration
        self.precision = layer.precision
        sources = layer.space.sources
        self._mode = "separate" if "separate" in sources else "memory" if "memory" in sources else "self"
        features = layer.space.features - {"value_width"}
        if self._mode == "self":
            features = features - {"cross"}
        self.space = replace(
            layer.space,
            contract="core",
            features=features,
            embedded=self._mode != "separate",
            layouts=("contiguous",),
        )

    def _embed(self, inputs: CoreInputs) -> tuple[LayerInputs, dict[str, str]]:
        """Return layer inputs whose projections give the core's tensors, and how each was placed."""
        n = inputs.sizes
        width, dtype = n["heads"] * n["d_k"], inputs.query.dtype
        placed = {"q": "one_hot" if self._mode == "self" else "identity"}
        placed |= dict.fromkeys("kv", "identity" if self._mode == "separate" else "one_hot")
        tensors = {"q": inputs.query, "k": inputs.key, "v": inputs.value}
        matrices, xs = {}, {}
        for name, tensor in tensors.items():
            flat = tensor.transpose(1, 2).flatten(2)
            if placed[name] == "identity":
                matrices[f"W_{name}"] = torch.eye(flat.shape[-1], width, dtype=dtype)
                xs[name] = nn.functional.pad(flat, (0, width - flat.shape[-1]))
            else:
                rows = flat.shape[0] * flat.shape[1]
                matrix = torch.zeros(flat.shape[-1], width, dtype=dtype)
                matrix[:, :rows] = flat.flatten(0, 1).t()
                matrices[f"W_{name}"] = matrix
                xs[name] = torch.eye(rows, width, dtype=dtype).reshape(flat.shape[0], flat.shape[1], width)
        weights = LayerWeights(
            **matrices, W_o=torch.eye(width, dtype=dtype), heads=n["heads"], kv_heads=n["kv_heads"]
        )
        key = None if self._mode == "self" else xs["k"]
        value = xs["v"] if self._mode == "separate" else None
        options = inputs.options()
        return LayerInputs(query=xs["q"], key=key, value=value, weights=weights, **options), placed

    def run(self, inputs: CoreInputs, *, want_weights: bool = False, dropout: float = 0.0) -> Outcome:
        """Call the layer so that its core sees `inputs`."""
        embedded, _ = self._embed(inputs)
        layer = self.layer.build(embedded.weights, dropout=dropout, max_len=max(inputs.key.shape[2], 64))
        if dropout:
            layer.module.train()
        outcome = layer.run(embedded, want_weights=want_weights)
        return Outcome(self._heads(outcome.output, inputs), outcome.weights, outcome.raw, outcome.handed)

    def _heads(self, output: Tensor, inputs: CoreInputs) -> Tensor:
        batch, heads, q_len, _ = inputs.query.shape
        if output.shape != (batch, q_len, heads * inputs.query.shape[-1]):
            raise SubjectError(
                "returned",
                f"an output of shape {tuple(output.shape)};"
                f" expected {(batch, q_len, heads * inputs.query.shape[-1])}",
            )
        return output.unflatten(-1, (heads, -1)).transpose(1, 2)

    def gradients(
        self, inputs: CoreInputs, upstream: Tensor, *, wrt: tuple[str, ...]
    ) -> tuple[Outcome, dict[str, Tensor]]:
        """Return the core's gradients, read from the layer's inputs or from its weights."""
        embedded, placed = self._embed(inputs)
        if "bias" in wrt:
            embedded = embedded.replace(bias=inputs.bias.detach().requires_grad_())  # type: ignore[union-attr]
        layer = self.layer.build(embedded.weights, max_len=max(inputs.key.shape[2], 64))
        outcome, found = layer.gradients(embedded, upstream.transpose(1, 2).flatten(2).to(inputs.query.dtype))
        gradients: dict[str, Tensor] = {}
        for short, name in (("q", "query"), ("k", "key"), ("v", "value")):
            tensor = getattr(inputs, name)
            batch, heads, length, width = tensor.shape
            if placed[short] == "identity":
                flat = found[name][..., : heads * width]
            else:
                flat = found[f"W_{short}"][:, : batch * length].t().reshape(batch, length, heads * width)
            gradients[name] = flat.unflatten(-1, (heads, width)).transpose(1, 2)
        if "bias" in wrt:
            grad = embedded.bias.grad  # type: ignore[union-attr]
            gradients["bias"] = torch.zeros_like(inputs.bias) if grad is None else grad  # type: ignore[arg-type]
        result = Outcome(self._heads(outcome.output, inputs), outcome.weights, outcome.raw, outcome.handed)
        return result, {name: gradients[name] for name in wrt}
