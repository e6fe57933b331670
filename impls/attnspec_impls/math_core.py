"""The core as the formula has it: every score in memory, shared heads repeated."""

from jaxtyping import Float
from torch import Tensor, nn

from attnspec._checks import check_core_call
from attnspec._registry import Implementation

from ._formula import attention_weights, visible_keys
from ._types import Bias, HeadOutput, Mask, Weights, Window


def math_attention(
    query: Float[Tensor, "batch heads q_len d_k"],
    key: Float[Tensor, "batch kv_heads kv_len d_k"],
    value: Float[Tensor, "batch kv_heads kv_len d_v"],
    *,
    mask: Mask | None = None,
    bias: Bias | None = None,
    causal: bool = False,
    window: Window | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    return_weights: bool = False,
) -> HeadOutput | tuple[HeadOutput, Weights]:
    """Attend from `query` to `key`, and mix what `value` holds there.

    Args:
        query: Projected queries.
        key: Projected keys; their heads divide the queries', and query head `h` reads head `h // group`.
        value: Projected values, in as many heads as the keys.
        mask: True where a query may attend. None allows everything.
        bias: Added to the scaled and capped scores. None adds nothing.
        causal: Whether to hide the future; the last query stands at the last key.
        window: How many keys before and after its own position a query sees; -1 is unbounded.
        softcap: Bound of the scaled scores. None is no cap.
        scale: Factor on the scores. None means `d_k ** -0.5`.
        dropout: Probability of dropping a weight; 0 draws no random number.
        return_weights: Whether to return the weights, taken before dropout, as well.

    Returns:
        The output in the dtype of `query`; with `return_weights` a pair.

    Raises:
        ShapeError: If a rank, a size or a setting is not allowed.
        DtypeError: If a dtype, or a mix of dtypes, is not allowed.
    """
    check_core_call(
        "math_attention", query, key, value,
        mask=mask, bias=bias, scale=scale, window=window, softcap=softcap, dropout=dropout,
    )  # fmt: skip
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    visible = visible_keys(query, key, mask=mask, causal=causal, window=window)
    weights = attention_weights(query, key, visible=visible, bias=bias, softcap=softcap, scale=scale)
    output = nn.functional.dropout(weights, dropout) @ value
    return (output, weights) if return_weights else output


IMPLEMENTATION = Implementation(
    name="math_core",
    contract="core",
    target=math_attention,
    summary="the formula as it stands",
    idea="Scores, softmax and the weighted sum, one after the other, in the dtype of the inputs. Its memory"
    " grows with the product of both lengths; what every other core is compared with.",
)
