"""One head after the other: small projections in a list, a Python loop over them.

The definition taken at its word. Slow with many heads, and the easiest to read: nothing is split, moved
or merged but by `torch.cat` at the end.
"""

from jaxtyping import Float
from torch import Tensor, cat, nn, stack

from attnspec._checks import check_layer_call, check_layer_sizes, check_layer_weights
from attnspec._registry import Implementation
from attnspec.weights import LayerWeights

from ._formula import attention_weights, visible_keys
from ._projections import copied, load_linear
from ._types import Bias, Mask, ModelOutput, Weights, Window


class PerHeadLoopAttention(nn.Module):
    """Multi-head attention as a list of single heads."""

    def __init__(self, d_model: int, heads: int, *, bias: bool = True, dropout: float = 0.0) -> None:
        """Make the layer.

        Args:
            d_model: Width of the model; a multiple of `heads`.
            heads: Heads, of width `d_model // heads` each.
            bias: Whether the projections have biases.
            dropout: Probability of dropping a weight in training; at least 0, below 1.

        Raises:
            ShapeError: If a size or the probability is not allowed.
        """
        super().__init__()
        check_layer_sizes(type(self).__name__, d_model, heads, dropout=dropout)
        self.d_model, self.heads, self.dropout, self.has_bias = d_model, heads, dropout, bias
        d_k = d_model // heads
        self.W_q = nn.ModuleList(nn.Linear(d_model, d_k, bias=bias) for _ in range(heads))
        self.W_k = nn.ModuleList(nn.Linear(d_model, d_k, bias=bias) for _ in range(heads))
        self.W_v = nn.ModuleList(nn.Linear(d_model, d_k, bias=bias) for _ in range(heads))
        self.W_o = nn.Linear(d_model, d_model, bias=bias)

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
        return_weights: bool = False,
    ) -> ModelOutput | tuple[ModelOutput, Weights]:
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
            return_weights: Whether to return the weights, taken before dropout, as well.

        Returns:
            The output in the dtype of `query`; with `return_weights` a pair.

        Raises:
            ShapeError: If a rank, a size or a setting is not allowed.
            DtypeError: If a dtype, or a mix of dtypes, is not allowed.
        """
        check_layer_call(
            "PerHeadLoopAttention", query, key, value, d_model=self.d_model, heads=self.heads,
            mask=mask, bias=bias, scale=scale, window=window, softcap=softcap,
        )  # fmt: skip
        key = query if key is None else key
        value = key if value is None else value
        visible = visible_keys(query[:, None], key[:, None], mask=mask, causal=causal, window=window)
        mixed, weights = [], []
        for head, (W_q, W_k, W_v) in enumerate(zip(self.W_q, self.W_k, self.W_v, strict=True)):
            weight = attention_weights(
                W_q(query), W_k(key), visible=_of_head(visible, head), bias=_of_head(bias, head),
                softcap=softcap, scale=scale,
            )  # fmt: skip
            mixed.append(nn.functional.dropout(weight, self.dropout, self.training) @ W_v(value))
            weights.append(weight)
        output = self.W_o(cat(mixed, dim=-1))
        return (output, stack(weights, dim=1)) if return_weights else output

    def load_canonical(self, weights: LayerWeights) -> "PerHeadLoopAttention":
        """Cut canonical weights into heads, copy them in, and return the layer.

        Raises:
            ShapeError: If they are of other sizes, or have biases that the layer has not.
        """
        check_layer_weights(
            type(self).__name__, weights, d_model=self.d_model, heads=self.heads, kv_heads=self.heads,
            d_k=self.d_model // self.heads, bias=self.has_bias,
        )  # fmt: skip
        for name in ("q", "k", "v"):
            matrices = getattr(weights, f"W_{name}").chunk(self.heads)
            bias = getattr(weights, f"b_{name}")
            shifts = [None] * self.heads if bias is None else bias.chunk(self.heads)
            for linear, matrix, shift in zip(getattr(self, f"W_{name}"), matrices, shifts, strict=True):
                load_linear(linear, matrix, shift)
        load_linear(self.W_o, weights.W_o, weights.b_o)
        return self

    def canonical_weights(self) -> LayerWeights:
        """Return copies of the projections as canonical weights, head 0 first."""
        tensors = {"W_o": self.W_o.weight, "b_o": self.W_o.bias}
        for name in ("q", "k", "v"):
            linears = getattr(self, f"W_{name}")
            tensors[f"W_{name}"] = cat([linear.weight for linear in linears])
            if self.has_bias:
                tensors[f"b_{name}"] = cat([linear.bias for linear in linears])
        return LayerWeights(**tensors, heads=self.heads, kv_heads=self.heads).map(copied)


def _of_head(matrix: Tensor | None, head: int) -> Tensor | None:
    """Return what a mask or bias says about one head; with no head axis, or one of size 1, all are alike."""
    if matrix is None or matrix.dim() == 2:
        return matrix
    return matrix[:, head if matrix.shape[1] > 1 else 0]


IMPLEMENTATION = Implementation(
    name="per_head_loop",
    contract="layer",
    target=PerHeadLoopAttention,
    summary="a list of small projections and a Python loop over the heads",
    idea="The definition taken at its word: each head projects, scores, normalises and mixes on its own, and"
    " the results are laid side by side. Read this one first; use it where a single head is to be looked at.",
    projection="per head",
)
