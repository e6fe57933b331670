"""The typed stages of multi-head attention, one function a row of the shape table.

Every function here is a plain function with a jaxtyping signature. Nothing checks those signatures
at run time unless `attnspec.checked` wraps the function, so a stage costs what its body costs.
The order of definition is the order of the contract: scale, softcap, bias, mask, softmax, dropout,
aggregate. The vectorised oracle is the composition of these functions.
"""

from jaxtyping import Bool, Float
from torch import Tensor, arange, nn, ones, tanh, where, zeros_like
from torch.nn.functional import linear

from ._table import STAGES as STAGES
from ._table import stage


@stage("project queries", row="projection", formula=r"Q = X W_q^\top + b_q")
def project_queries(
    query_input: Float[Tensor, "batch q_len d_model"],
    weight: Float[Tensor, "heads d_k d_model"],
    bias: Float[Tensor, "heads d_k"] | None = None,
) -> Float[Tensor, "batch q_len heads*d_k"]:
    """Project the inputs that ask.

    Rows `h * d_k : (h + 1) * d_k` of the weight belong to head `h` (heads major).

    Clauses: value.layer, params.head_major.
    """
    return linear(query_input, weight.flatten(0, 1), None if bias is None else bias.flatten())


@stage("project keys", row="projection", formula=r"K = X W_k^\top + b_k")
def project_keys(
    key_input: Float[Tensor, "batch kv_len d_model"],
    weight: Float[Tensor, "kv_heads d_k d_model"],
    bias: Float[Tensor, "kv_heads d_k"] | None = None,
) -> Float[Tensor, "batch kv_len kv_heads*d_k"]:
    """Project the inputs that are looked at, once a key/value head.

    Clauses: value.layer, params.head_major.
    """
    return linear(key_input, weight.flatten(0, 1), None if bias is None else bias.flatten())


@stage("project values", row="projection", formula=r"V = X W_v^\top + b_v")
def project_values(
    value_input: Float[Tensor, "batch kv_len d_model"],
    weight: Float[Tensor, "kv_heads d_v d_model"],
    bias: Float[Tensor, "kv_heads d_v"] | None = None,
) -> Float[Tensor, "batch kv_len kv_heads*d_v"]:
    """Project the inputs that are mixed into the output.

    Clauses: value.layer, params.head_major.
    """
    return linear(value_input, weight.flatten(0, 1), None if bias is None else bias.flatten())


@stage(
    "project all, stacked",
    row="projection",
    path="fused stacked",
    formula=r"[Q, K, V] = X W_{qkv}^\top + b_{qkv}",
)
def project_stacked(
    inputs: Float[Tensor, "batch seq d_model"],
    weight: Float[Tensor, "3 heads d_k d_model"],
    bias: Float[Tensor, "3 heads d_k"] | None = None,
) -> Float[Tensor, "batch seq 3*heads*d_k"]:
    """Project queries, keys and values in one product; all query rows come first.

    Clauses: params.round_trip, params.head_major.
    """
    return linear(inputs, weight.flatten(0, 2), None if bias is None else bias.flatten())


@stage(
    "project all, interleaved",
    row="projection",
    path="fused interleaved",
    formula=r"[Q, K, V] = X W_{qkv}^\top + b_{qkv}",
)
def project_interleaved(
    inputs: Float[Tensor, "batch seq d_model"],
    weight: Float[Tensor, "heads 3 d_k d_model"],
    bias: Float[Tensor, "heads 3 d_k"] | None = None,
) -> Float[Tensor, "batch seq heads*3*d_k"]:
    """Project queries, keys and values in one product; each head's three blocks lie together.

    Clauses: params.round_trip, params.head_major.
    """
    return linear(inputs, weight.flatten(0, 2), None if bias is None else bias.flatten())


@stage("split heads", formula=r"Q_{b,i,h,d} = Q_{b,i,\,h d_k + d}")
def split_heads(
    projected: Float[Tensor, "batch seq width"], *, heads: int
) -> Float[Tensor, "batch seq {heads} width/{heads}"]:
    """Cut the projected width into heads; head `h` gets the slice `h * d_k : (h + 1) * d_k`.

    Raises:
        RuntimeError: If `heads` does not divide the width.

    Clauses: value.layer, params.head_major.
    """
    return projected.unflatten(-1, (heads, projected.shape[-1] // heads))


@stage("split heads, stacked", row="split heads", path="fused stacked")
def split_stacked(
    projected: Float[Tensor, "batch seq width"], *, heads: int
) -> Float[Tensor, "batch seq 3 {heads} width/(3*{heads})"]:
    """Cut a stacked projection: first query, key or value, then the head.

    Clauses: params.round_trip, params.head_major.
    """
    return projected.unflatten(-1, (3, heads, projected.shape[-1] // (3 * heads)))


@stage("split heads, interleaved", row="split heads", path="fused interleaved")
def split_interleaved(
    projected: Float[Tensor, "batch seq width"], *, heads: int
) -> Float[Tensor, "batch seq {heads} width/{heads}"]:
    """Cut an interleaved projection: first the head, then its query, key and value side by side.

    Clauses: params.round_trip, params.head_major.
    """
    return projected.unflatten(-1, (heads, projected.shape[-1] // heads))


@stage("heads first", formula=r"Q_{b,h,i,d} \leftarrow Q_{b,i,h,d}")
def heads_first(split: Float[Tensor, "batch seq heads d_k"]) -> Float[Tensor, "batch heads seq d_k"]:
    """Move the heads in front of the positions; a view, no copy.

    Clauses: value.layer.
    """
    return split.transpose(1, 2)


@stage("share heads", path="grouped", formula=r"K_{b,h} \leftarrow K_{b,\lfloor h / g \rfloor}")
def share_heads(
    tensor: Float[Tensor, "batch kv_heads kv_len width"], *, group: int
) -> Float[Tensor, "batch kv_heads*{group} kv_len width"]:
    """Give every query head its key/value head: head `h` reads head `h // group`.

    Clauses: grouped.order, grouped.equals_repeated.
    """
    return tensor.repeat_interleave(group, dim=1)


@stage("scores", formula=r"S_{bhij} = \sum_d Q_{bhid} K_{bhjd}")
def scores(
    query: Float[Tensor, "batch heads q_len d_k"], key: Float[Tensor, "batch heads kv_len d_k"]
) -> Float[Tensor, "batch heads q_len kv_len"]:
    """Score every query against every key.

    Clauses: value.oracle, shape.output.
    """
    return query @ key.transpose(-2, -1)


@stage("scale", formula=r"S \leftarrow \text{scale} \cdot S")
def scale_scores(
    raw: Float[Tensor, "batch heads q_len kv_len"], *, scale: float
) -> Float[Tensor, "batch heads q_len kv_len"]:
    """Multiply the scores by `scale`, dimensionless; the contract's default is `d_k ** -0.5`.

    Clauses: scale.default, scale.explicit, scale.zero, scale.negative.
    """
    return raw * scale


@stage("softcap", optional=True, formula=r"S \leftarrow c \tanh(S / c)")
def cap_scores(
    scaled: Float[Tensor, "batch heads q_len kv_len"], *, softcap: float
) -> Float[Tensor, "batch heads q_len kv_len"]:
    """Bend the scores smoothly into `(-softcap, softcap)`; odd, slope 1 at 0.

    Clauses: softcap.value, softcap.before_mask.
    """
    return softcap * tanh(scaled / softcap)


@stage("bias", optional=True, formula=r"S \leftarrow S + B")
def add_bias(
    scaled: Float[Tensor, "batch heads q_len kv_len"], bias: Float[Tensor, "#batch #heads #q_len #kv_len"]
) -> Float[Tensor, "batch heads q_len kv_len"]:
    """Add a bias to the scaled scores; it is neither scaled nor capped.

    Clauses: bias.value, bias.unscaled.
    """
    return scaled + bias


@stage(
    "visible",
    row="mask",
    optional=True,
    formula=r"j \le i + \text{offset},\; -l \le j - i - \text{offset} \le r",
)
def visible_positions(
    query: Float[Tensor, "batch heads q_len d_k"],
    key: Float[Tensor, "batch heads kv_len d_k"],
    *,
    offset: int,
    left: int = -1,
    right: int = -1,
) -> Bool[Tensor, "q_len kv_len"]:
    """Say which keys a query may see by position alone.

    Args:
        query: Only its length is read.
        key: Only its length is read.
        offset: How far query 0 stands from key 0: `kv_len - q_len` (lower right) or 0 (upper left).
        left: How many keys before its own position a query sees; -1 is all.
        right: How many keys after it; -1 is all, 0 is causal.

    Returns:
        True where the query may attend; a new tensor.

    Clauses: causal.value, causal.alignment, window.value.
    """
    rows = arange(query.shape[-2], device=query.device)[:, None]
    columns = arange(key.shape[-2], device=query.device)[None, :]
    distance = columns - rows - offset
    allowed = ones(distance.shape, dtype=bool, device=query.device)  # type: ignore[call-overload]
    if left >= 0:
        allowed = allowed & (distance >= -left)
    if right >= 0:
        allowed = allowed & (distance <= right)
    return allowed


@stage("mask", optional=True, formula=r"S_{bhij} \leftarrow -\infty \text{ where the mask forbids}")
def mask_scores(
    scaled: Float[Tensor, "batch heads q_len kv_len"], mask: Bool[Tensor, "#batch #heads #q_len #kv_len"]
) -> Float[Tensor, "batch heads q_len kv_len"]:
    """Forbid what the mask forbids; True means that the query may attend.

    Clauses: mask.value, mask.polarity, mask.broadcast.
    """
    return scaled.masked_fill(~mask, float("-inf"))


@stage("softmax", formula=r"P_{bhij} = \exp(S_{bhij} - m_i) / \sum_j \exp(S_{bhij} - m_i)")
def normalise(masked: Float[Tensor, "batch heads q_len kv_len"]) -> Float[Tensor, "batch heads q_len kv_len"]:
    """Turn each row of scores into weights that sum to 1; a row that sees nothing becomes zeros.

    Clauses: weights.rows, mask.dead_row.zero, mask.dead_row.gradient.
    """
    dead = (masked == float("-inf")).all(-1, keepdim=True)
    safe = where(dead, zeros_like(masked), masked)
    return where(dead, zeros_like(masked), safe.softmax(-1))


@stage("dropout", optional=True, formula=r"P \leftarrow P \odot M / (1 - p)")
def drop_weights(
    weights: Float[Tensor, "batch heads q_len kv_len"], *, dropout: float
) -> Float[Tensor, "batch heads q_len kv_len"]:
    """Drop weights at random and scale the survivors by `1 / (1 - dropout)`; only in training.

    Clauses: dropout.survivors, dropout.eval_off.
    """
    return nn.functional.dropout(weights, dropout, training=True)


@stage("aggregate values", formula=r"Y_{bhid} = \sum_j P_{bhij} V_{bhjd}")
def aggregate_values(
    weights: Float[Tensor, "batch heads q_len kv_len"], value: Float[Tensor, "batch heads kv_len d_v"]
) -> Float[Tensor, "batch heads q_len d_v"]:
    """Mix the values by the weights.

    Clauses: value.oracle, value.linear.
    """
    return weights @ value


@stage("merge heads", formula=r"Y_{b,i,\,h d_v + d} \leftarrow Y_{b,h,i,d}")
def merge_heads(mixed: Float[Tensor, "batch heads q_len d_v"]) -> Float[Tensor, "batch q_len heads*d_v"]:
    """Lay the heads side by side again, head 0 first.

    Clauses: value.layer.
    """
    return mixed.transpose(1, 2).flatten(2)


@stage("project output", row="output projection", formula=r"Z = Y W_o^\top + b_o")
def project_output(
    merged: Float[Tensor, "batch q_len width"],
    weight: Float[Tensor, "d_model width"],
    bias: Float[Tensor, " d_model"] | None = None,
) -> Float[Tensor, "batch q_len d_model"]:
    """Mix the heads and return to the width of the model.

    Clauses: value.layer, params.output_projection.
    """
    return linear(merged, weight, bias)
