"""What is timed: implementations, and their peers in the same run, all with the same weights."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._errors import AttnspecError
from .._registry import Implementation
from ..checkpoints import write_weights
from ..declaration import Declaration
from ..weights import BIASES, MATRICES, LayerWeights
from .grid import Shape

FLOOR, MODULE, TEXTBOOK = "floor", "torch_mha", "textbook"
PEERS = {
    FLOOR: "scaled_dot_product_attention between two bare matrix products (the floor)",
    MODULE: "torch.nn.MultiheadAttention, need_weights=False",
    TEXTBOOK: "the formula, line by line, scores kept",
}
Call = Callable[[Tensor], Tensor]


class CannotRunError(AttnspecError):
    """This subject does not do what the grid asks; it is left out, by name."""


@dataclass(frozen=True)
class Subject:
    """One thing to time.

    Attributes:
        name: In tables.
        call: From `batch length d_model` to the same.
        parameters: What a backward pass gives gradients to, beside the input.
    """

    name: str
    call: Call
    parameters: tuple[Tensor, ...]


class Floor(nn.Module):
    """Two matrix products with torch's fused attention between them: what no layer can do without."""

    def __init__(self, weights: LayerWeights, *, causal: bool) -> None:
        super().__init__()
        self.W_qkv, self.W_o = nn.Parameter(weights.fused("stacked")[0]), nn.Parameter(weights.W_o.clone())
        self.heads, self.causal = weights.heads, causal

    def forward(self, inputs: Tensor) -> Tensor:
        """Attend to the inputs themselves."""
        q, k, v = F.linear(inputs, self.W_qkv).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return F.linear(mixed.transpose(1, 2).flatten(2), self.W_o)


class Projected(nn.Module):
    """The canonical projections, around whatever a subclass or a core puts between them."""

    W_q: Tensor
    W_k: Tensor
    W_v: Tensor
    W_o: Tensor
    b_q: Tensor | None
    b_k: Tensor | None
    b_v: Tensor | None
    b_o: Tensor | None

    def __init__(self, weights: LayerWeights, between: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        for name in (*MATRICES, *BIASES):
            tensor = getattr(weights, name)
            self.register_parameter(name, None if tensor is None else nn.Parameter(tensor.clone()))
        self.heads, self.between = weights.heads, between

    def forward(self, inputs: Tensor) -> Tensor:
        """Attend to the inputs themselves."""
        pairs = ((self.W_q, self.b_q), (self.W_k, self.b_k), (self.W_v, self.b_v))
        q, k, v = (F.linear(inputs, w, b).unflatten(-1, (self.heads, -1)).transpose(1, 2) for w, b in pairs)
        return F.linear(self.between(q, k, v).transpose(1, 2).flatten(2), self.W_o, self.b_o)


def textbook(weights: LayerWeights, *, causal: bool) -> nn.Module:
    """Return the formula as teaching texts write it; autograd keeps the scores of all pairs."""

    def formula(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
        if causal:
            length = scores.shape[-1]
            future = torch.ones(length, length, dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(future, float("-inf"))
        return scores.softmax(-1) @ value

    return Projected(weights, formula)


class TorchModule(nn.Module):
    """`torch.nn.MultiheadAttention`, called as self-attention."""

    def __init__(self, weights: LayerWeights, *, causal: bool) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(weights.d_model, weights.heads, batch_first=True)
        self.inner.load_state_dict(write_weights(weights.to(torch.float32), "torch"))
        self.causal = causal

    def forward(self, inputs: Tensor) -> Tensor:
        """Attend to the inputs themselves."""
        mask = None
        if self.causal:
            mask = nn.Transformer.generate_square_subsequent_mask(
                inputs.shape[1], inputs.device, inputs.dtype
            )
        output: Tensor = self.inner(
            inputs, inputs, inputs, attn_mask=mask, is_causal=self.causal, need_weights=False
        )[0]
        return output


class WithOptions(nn.Module):
    """A layer with the options of every call filled in."""

    def __init__(self, layer: nn.Module, options: dict[str, Any]) -> None:
        super().__init__()
        self.layer, self.options = layer, options

    def forward(self, inputs: Tensor) -> Tensor:
        """Attend to the inputs themselves."""
        output: Any = self.layer(inputs, **self.options)
        return output if isinstance(output, Tensor) else output[0]


PEER_CLASSES: dict[str, Callable[..., nn.Module]] = {FLOOR: Floor, MODULE: TorchModule, TEXTBOOK: textbook}


def random_weights(shape: Shape) -> LayerWeights:
    """Return the weights that every subject of one shape has."""
    return LayerWeights.random(shape.d_model, shape.heads, generator=torch.Generator().manual_seed(1))


def build(target: str, shape: Shape, dtype: torch.dtype, *, causal: bool, device: str) -> Subject:
    """Build a peer by its name, or an implementation by anything that `attnspec check` takes.

    Raises:
        CannotRunError: If it cannot hide the future and is asked to.
    """
    weights = random_weights(shape)
    module = (
        PEER_CLASSES[target](weights, causal=causal)
        if target in PEER_CLASSES
        else _implementation(target, weights, causal)
    )
    module = module.to(device=device, dtype=dtype).eval()
    return Subject(target, module, tuple(module.parameters()))


def _implementation(target: str, weights: LayerWeights, causal: bool) -> nn.Module:
    from ..loading import load_target

    found = load_target(target)
    record = found.implementation
    if record is None:
        return _foreign(found, weights, causal)
    options = {"causal": True} if causal else {}
    if record.contract == "core":
        return Projected(weights, partial(record.target, **options))
    return WithOptions(_construct(record, weights), options)


def _construct(record: Implementation, weights: LayerWeights) -> nn.Module:
    layer: nn.Module = record.target(weights.d_model, weights.heads, **dict(record.extra))
    layer.to(weights.W_q.dtype).load_canonical(weights)  # type: ignore[operator]
    return layer


def _foreign(found: Any, weights: LayerWeights, causal: bool) -> nn.Module:
    """Build code that attnspec did not write, as recognition finds it."""
    from ..conformance.caller import bind_arguments
    from ..recognition import recognise

    recognition = recognise(found, Declaration())
    declaration, subject = recognition.declaration, recognition.subject
    if declaration.call is not None or declaration.layout not in (
        None,
        "batch heads q_len d_k",
        "batch q_len d_model",
    ):
        raise CannotRunError(f"{found.name}: bench times code whose call is recognised by its argument names")
    if causal != (declaration.causal == "always") and not (causal and declaration.causal == "flag"):
        raise CannotRunError(f"{found.name}: its causality does not suit this run")
    given = {declaration.arguments["causal"]: True} if causal and declaration.causal == "flag" else {}
    if declaration.contract == "core":
        return Projected(weights, partial(found.object, **given))
    module = subject.build(subject.holdable(weights)).module
    names = [n for n in ("query", "key", "value") if n in declaration.arguments]

    class Foreign(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, inputs: Tensor) -> Tensor:
            positional, keywords = bind_arguments(
                self.inner, declaration.arguments, dict.fromkeys(names, inputs)
            )
            output: Any = self.inner(*positional, **keywords, **given)
            return output if isinstance(output, Tensor) else output[0]

    return Foreign()
