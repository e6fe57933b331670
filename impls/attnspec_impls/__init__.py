"""The catalogue: every built-in implementation of the contract, one module each.

A module is imported when its name is asked for. To add an implementation, add its file here and its
name below; packages of other people register by the entry point group `attnspec.implementations`.

Every layer is made and called alike, so that one can stand in for another:

    layer = BatchedAttention(d_model, heads, bias=True, dropout=0.0)
    output = layer(query, key, value, mask=None, bias=None, causal=False, window=None)

`key` left out means self-attention; `value` left out means that values come from where keys come from.
An argument that a layer's signature lacks is a feature that it does not have. The modules whose names
start with an underscore are what several implementations have in common and none of them is about.
"""

CATALOGUE: tuple[str, ...] = (
    "per_head_loop",
    "batched",
    "fused_qkv",
    "fused_qkv_interleaved",
    "grouped_query",
    "sdpa",
    "blockwise",
    "mixed_precision",
    "local_window",
    "flex",
    "cached",
    "math_core",
    "sdpa_core",
    "blockwise_core",
)
