"""The shape table of the first document, row by row, and which rows a document has.

The stages name the row that they refine; these are the rows themselves, in the document's own words.
"""

# Name of the row in the contract: (step, operation, shape) as the document writes them.
ROWS: dict[str, tuple[str, str, str]] = {
    "projection": ("线性投影", "self.W_q(x)", "(batch_size, seq_len, d_model)"),
    "split heads": ("分头", "view(..., num_heads, d_k)", "(batch_size, seq_len, num_heads, d_k)"),
    "heads first": ("维度置换", "transpose(1, 2)", "(batch_size, num_heads, seq_len, d_k)"),
    "scores": ("点积计算", "Q @ K.transpose(-2, -1)", "(batch_size, num_heads, seq_len, seq_len)"),
    "scale": ("缩放", "/ sqrt(d_k)", "(batch_size, num_heads, seq_len, seq_len)"),
    "mask": ("Mask（可选）", "masked_fill", "(batch_size, num_heads, seq_len, seq_len)"),
    "softmax": ("Softmax", "F.softmax", "(batch_size, num_heads, seq_len, seq_len)"),
    "aggregate values": ("聚合 V", "attn_weights @ V", "(batch_size, num_heads, seq_len, d_k)"),
    "merge heads": ("维度还原", "transpose(1, 2).view", "(batch_size, seq_len, d_model)"),
    "output projection": ("输出投影", "self.W_o", "(batch_size, seq_len, d_model)"),
    "share heads": ("分组查询注意力（GQA）", "repeat(1, group_size, 1, 1)", "[batch, heads, seq, dim]"),
}

# Rows of the contract that no document has.
NEW = frozenset({"softcap", "bias", "dropout"})


def row(name: str) -> tuple[str, str, str] | None:
    """Return a row of the documents, or None for what only the contract has.

    Raises:
        KeyError: If the stage names a row that nobody knows, so that a typing error is found.
    """
    return None if name in NEW else ROWS[name]
