"""The contract through `torch.nn.attention.flex_attention`: one function says what becomes of a score.

Where other implementations prepare a mask as long and as wide as the scores, this one hands over a function
of a score and its position. Compiled, on a GPU, it becomes part of a fused kernel; called as it is, torch
applies it to all scores at once.

On a CPU torch offers no gradient for it: there the forward pass is FlexAttention's and the backward pass
the plain formula's. Where `torch.compile` traces a CPU model for training, both are the formula's.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.attention.flex_attention as torch_flex
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnspec._checks import check_layer_call
from attnspec._registry import Implementation

from ._band import Band
from ._formula import attention_weights, visible_keys
from ._projections import SeparateProjections
from ._types import Bias, Mask, ModelOutput, Window

ScoreFunction = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


class FlexAttention(SeparateProjections):
    """Multi-head and grouped-query attention by torch's FlexAttention."""

    def __init__(self, d_model: int, heads: int, *, kv_heads: int | None = None, bias: bool = True) -> None:
        """Make the layer; FlexAttention has no dropout.

        Args:
            d_model: Width of the model; a multiple of `heads`.
            heads: Query heads.
            kv_heads: Key and value heads; divides `heads`. None means `heads`.
            bias: Whether the projections have biases.

        Raises:
            ShapeError: If a size is not allowed.
        """
        super().__init__(d_model, heads, kv_heads=kv_heads, bias=bias)

    def forward(
        self,
        query: Float[Tensor, "batch q_len d_model"],
        key: Float[Tensor, "batch kv_len d_model"] | None = None,
        value: Float[Tensor, "batch kv_len d_model"] | None = None,
        *,
        mask: Mask | None = None,
        bias: Bias | None = None,
        causal: bool = False,
        window: Window | None = None,
        softcap: float | None = None,
        scale: float | None = None,
    ) -> ModelOutput:
        """Attend from `query` to `key`, and mix what `value` holds there.

        Args:
            query: Inputs that ask.
            key: Inputs that are looked at. None means `query`: self-attention.
            value: Inputs that are mixed. None means where keys come from.
            mask: True where a query may attend. None allows everything.
            bias: Added to the scaled and capped scores. None adds nothing.
            causal: Whether to hide the future; the last query stands at the last key.
            window: How many keys before and after its own position a query sees; -1 is unbounded.
            softcap: Bound of the scaled scores. None is no cap.
            scale: Factor on the scores. None means `d_k ** -0.5`.

        Returns:
            The output in the dtype of `query`.

        Raises:
            ShapeError: If a rank, a size or a setting is not allowed.
            DtypeError: If a dtype, or a mix of dtypes, is not allowed.
        """
        check_layer_call(
            "FlexAttention", query, key, value, d_model=self.d_model, heads=self.heads,
            mask=mask, bias=bias, scale=scale, window=window, softcap=softcap,
        )  # fmt: skip
        key = query if key is None else key
        value = key if value is None else value
        d_k = self.d_k
        q = self.W_q(query).unflatten(-1, (self.heads, d_k)).transpose(1, 2)
        k = self.W_k(key).unflatten(-1, (self.kv_heads, d_k)).transpose(1, 2)
        v = self.W_v(value).unflatten(-1, (self.kv_heads, d_k)).transpose(1, 2)
        options: dict[str, Any] = {
            "mask": mask, "causal": causal, "window": window, "softcap": softcap, "scale": scale
        }  # fmt: skip
        no_gradient = q.device.type == "cpu" and torch.is_grad_enabled()
        empty = q.numel() == 0 or k.shape[2] == 0  # FlexAttention refuses an empty axis
        if empty or (no_gradient and torch.compiler.is_compiling()):
            mixed = formula_attention(q, k, v, bias=bias, **options)
        elif no_gradient:
            mixed = FormulaGradient.apply(q, k, v, bias, options)
        else:
            mixed = flexible_attention(q, k, v, bias=bias, **options)
        return self.W_o(mixed.transpose(1, 2).flatten(2))


def score_function(
    query: Tensor, key: Tensor, *, mask: Mask | None, bias: Bias | None, causal: bool, window: Window | None,
    softcap: float | None,
) -> ScoreFunction:  # fmt: skip
    """Return what becomes of one score: softcap, bias, mask, and the band of `causal` and `window`."""
    band = Band.of(query, key, causal=causal, window=window)
    shape = (query.shape[0], query.shape[1], band.q_len, band.kv_len)
    mask, bias = (None if matrix is None else matrix.expand(shape) for matrix in (mask, bias))

    # A lambda, since runtime type checks would prepare an inner function anew at every call.
    return lambda score, batch, head, q, k: changed(
        score, (batch, head, q, k), band=band, mask=mask, bias=bias, softcap=softcap
    )


def changed(
    score: Tensor, position: tuple[Tensor, ...], *, band: Band, mask: Tensor | None, bias: Tensor | None,
    softcap: float | None,
) -> Tensor:  # fmt: skip
    """Return what becomes of the score at `position`: batch, head, query, key."""
    *_, q, k = position
    distance = k - q - band.offset
    if softcap is not None:
        score = softcap * torch.tanh(score / softcap)
    if bias is not None:
        score = score + element(bias, position)
    if mask is not None:
        score = torch.where(element(mask, position), score, float("-inf"))
    if band.left >= 0:
        score = torch.where(distance >= -band.left, score, float("-inf"))
    return torch.where(distance <= band.right, score, float("-inf")) if band.right >= 0 else score


def element(matrix: Tensor, position: tuple[Tensor, ...]) -> Tensor:
    """Return `matrix[position]`, which a compiler needs; without one that takes torch four times longer."""
    if torch.compiler.is_compiling():
        return matrix[position]
    found: Tensor = torch.ops.aten.index.Tensor(matrix, position)
    return found


def flexible_attention(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float | None, **options: Any
) -> Tensor:
    """Attend by FlexAttention; called as it is, it would compile anew for every length."""
    uncompiled = query.device.type == "cpu" and not torch.compiler.is_compiling()
    # Inductor's CPU lowering takes no views of a projection's result.
    query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    with applied_eagerly() if uncompiled else nullcontext():
        output: Tensor = torch_flex.flex_attention(
            query, key, value, score_mod=score_function(query, key, **options), scale=scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )  # fmt: skip
    return output


@contextmanager
def applied_eagerly() -> Iterator[None]:
    """Have torch apply the score function without a compiler, as its documentation has it for debugging."""
    switch = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
    before = getattr(torch_flex, switch, False)
    setattr(torch_flex, switch, True)
    try:
        yield
    finally:
        setattr(torch_flex, switch, before)


def formula_attention(
    query: Tensor, key: Tensor, value: Tensor, *, bias: Bias | None, mask: Mask | None, causal: bool,
    window: Window | None, softcap: float | None, scale: float | None,
) -> Tensor:  # fmt: skip
    """Attend by the formula, at FlexAttention's precision: all is wide between the inputs and the output."""
    group, wide = query.shape[1] // key.shape[1], torch.promote_types(query.dtype, torch.float32)
    visible = visible_keys(query, key, mask=mask, causal=causal, window=window)
    key, value = (t.to(wide).repeat_interleave(group, dim=1) for t in (key, value))
    weights = attention_weights(query.to(wide), key, visible=visible, bias=bias, softcap=softcap, scale=scale)
    return (weights @ value).to(query.dtype)


class FormulaGradient(torch.autograd.Function):
    """FlexAttention forward, the formula's gradient backward. It can be differentiated once."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, options: dict[str, Any]
    ) -> Tensor:
        """Attend by FlexAttention."""
        ctx.save_for_backward(query, key, value, bias)
        ctx.options = options
        # FlexAttention looks at the flag of its inputs, even where no gradient is recorded.
        query, key, value = query.detach(), key.detach(), value.detach()
        return flexible_attention(query, key, value, bias=bias, **options)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the formula, and differentiate it."""
        saved = zip(ctx.saved_tensors, ctx.needs_input_grad, strict=False)
        leaves: list[Any] = [None if t is None else t.detach().requires_grad_(need) for t, need in saved]
        with torch.enable_grad():
            query, key, value, bias = leaves
            output = formula_attention(query, key, value, bias=bias, **ctx.options)
        wanted = [t for t in leaves if t is not None and t.requires_grad]
        grads = iter(torch.autograd.grad(output, wanted, grad))
        return *(next(grads) if need else None for need in ctx.needs_input_grad[:4]), None


IMPLEMENTATION = Implementation(
    name="flex",
    contract="layer",
    target=FlexAttention,
    summary="torch's FlexAttention: a function says what becomes of a score",
    idea="Masks, bias and cap become one function of a score and its position, which a compiler can fuse into"
    " the kernel. Use it on a GPU, compiled; on a CPU it keeps all scores, and gradients are the formula's.",
    precision="mixed",
)
