"""Local attention: each query sees a band of keys, and nothing outside of the band is computed.

Queries are taken in blocks. The bands of a block lie in one run of keys, so its scores are a small
rectangle, and the cost grows with length times width of the band instead of length squared. Keys and values
are split into chunks once, and a run is put together from chunks. A plain slice would do in the forward
pass, but the gradient of each slice is as long as the whole, and there are as many slices as blocks.
"""

from itertools import starmap

from jaxtyping import Float
from torch import Tensor, cat, nn

from attnspec._checks import check_layer_call, check_local_heads, check_positive
from attnspec._registry import Implementation

from ._band import Band, cut_block
from ._formula import attention_weights
from ._projections import SeparateProjections
from ._types import Bias, Mask, ModelOutput, Window

BLOCK = 128


class LocalWindowAttention(SeparateProjections):
    """Multi-head and grouped-query attention on a band of keys, at a cost linear in length.

    The band is what the call's `causal` and `window` leave. A layer may have a pattern of its own besides:
    in its first `local_heads` heads a query sees the last `last` positions at most, its own included. Its
    other heads see what the call allows.
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        last: int | None = None,
        local_heads: int | None = None,
    ) -> None:
        """Make the layer.

        Args:
            d_model: Width of the model; a multiple of `heads`.
            heads: Query heads.
            kv_heads: Key and value heads; divides `heads`. None means `heads`.
            bias: Whether the projections have biases.
            dropout: Probability of dropping a weight in training; at least 0, below 1.
            last: How many positions a query of a local head sees, its own included. None means that the
                layer has no pattern of its own.
            local_heads: How many heads are local; a multiple of `heads // kv_heads`. None means all.

        Raises:
            ShapeError: If a size or the probability is not allowed.
        """
        super().__init__(d_model, heads, kv_heads=kv_heads, bias=bias, dropout=dropout)
        self.group = heads // self.kv_heads
        self.last, self.local_heads = last, heads if local_heads is None else local_heads
        check_positive("LocalWindowAttention", last=1 if last is None else last)
        check_local_heads("LocalWindowAttention", self.local_heads, heads=heads, group=self.group)

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
            "LocalWindowAttention", query, key, value, d_model=self.d_model, heads=self.heads,
            mask=mask, bias=bias, scale=scale, window=window, softcap=softcap,
        )  # fmt: skip
        key = query if key is None else key
        value = key if value is None else value
        d_k = self.d_k
        q = self.W_q(query).unflatten(-1, (self.heads, d_k)).transpose(1, 2)
        k = self.W_k(key).unflatten(-1, (self.kv_heads, d_k)).transpose(1, 2)
        v = self.W_v(value).unflatten(-1, (self.kv_heads, d_k)).transpose(1, 2)

        def attend(heads: slice, band: Band) -> Tensor:
            shared = slice(heads.start // self.group, heads.stop // self.group)
            return self._attend(
                q[:, heads], k[:, shared], v[:, shared], band=band,
                mask=_of_heads(mask, heads), bias=_of_heads(bias, heads), softcap=softcap, scale=scale,
            )  # fmt: skip

        parts = self._parts(Band.of(q, k, causal=causal, window=window))
        mixed = cat(list(starmap(attend, parts)), dim=1)
        return self.W_o(mixed.transpose(1, 2).flatten(2))

    def _parts(self, band: Band) -> list[tuple[slice, Band]]:
        """Deal the heads out: the local ones with the layer's pattern, the others with the call's band."""
        if self.last is None:
            return [(slice(0, self.heads), band)]
        left = self.last - 1 if band.left < 0 else min(band.left, self.last - 1)
        parts = [
            (slice(0, self.local_heads), band._replace(left=left, right=0)),
            (slice(self.local_heads, self.heads), band),
        ]
        return [(heads, part) for heads, part in parts if heads.start < heads.stop]

    def _attend(
        self,
        query: Float[Tensor, "batch heads q_len d_k"],
        key: Float[Tensor, "batch kv_heads kv_len d_k"],
        value: Float[Tensor, "batch kv_heads kv_len d_k"],
        *,
        band: Band,
        mask: Mask | None,
        bias: Bias | None,
        softcap: float | None,
        scale: float | None,
    ) -> Float[Tensor, "batch heads q_len d_k"]:
        """Attend block by block of queries, each to the run of chunks that holds its keys."""
        key_chunks, value_chunks = key.split(BLOCK, dim=2), value.split(BLOCK, dim=2)
        mixed = []
        for block, (rows, seen) in zip(query.split(BLOCK, dim=2), band.query_blocks(BLOCK), strict=True):
            first = min(seen.start // BLOCK, len(key_chunks) - 1)
            run = slice(first, max(-(-seen.stop // BLOCK), first + 1))
            columns = slice(run.start * BLOCK, min(run.stop * BLOCK, band.kv_len))
            visible = band.allows(rows, columns, query.device)
            if mask is not None:
                allowed = cut_block(mask, rows, columns)
                visible = allowed if visible is None else visible & allowed
            weights = attention_weights(
                block, self._share(key_chunks[run]), visible=visible,
                bias=None if bias is None else cut_block(bias, rows, columns), softcap=softcap, scale=scale,
            )  # fmt: skip
            dropped = nn.functional.dropout(weights, self.dropout, self.training)
            mixed.append(dropped @ self._share(value_chunks[run]))
        return cat(mixed, dim=2)

    def _share(self, chunks: tuple[Tensor, ...]) -> Tensor:
        """Join a run of chunks, and give every query head its key/value head."""
        return cat(chunks, dim=2).repeat_interleave(self.group, dim=1)


def _of_heads(matrix: Tensor | None, heads: slice) -> Tensor | None:
    """Return what a mask or bias says about some heads; without a head axis all are alike."""
    return matrix if matrix is None or matrix.dim() == 2 or matrix.shape[1] == 1 else matrix[:, heads]


IMPLEMENTATION = Implementation(
    name="local_window",
    contract="layer",
    target=LocalWindowAttention,
    summary="only the band of a window is computed; cost linear in length",
    idea="With a window, or a layer's own pattern of the last positions in all or some heads, each block of"
    " queries is scored against the run of keys that its bands cover. Without either it is exact and plain.",
)
