"""Known mistakes by what the code raised: the message, in words, and the way out."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Raised:
    """A message that a known mistake gives.

    Attributes:
        kind: Pattern of the exception's class name.
        message: Pattern of its message.
        sentence: What is wrong; `{1}` stands for the first group of the message.
        fix: What to change.
        place: Pattern of the line that raised; empty is any line.
    """

    kind: str
    message: str
    sentence: str
    fix: str
    place: str = ""


RAISED = (
    Raised(
        "RuntimeError",
        r"view size is not compatible with input tensor's size and stride",
        "view cannot read what transpose left: the memory is not contiguous",
        ".reshape(...), or .contiguous().view(...)",
    ),
    Raised(
        "RuntimeError",
        r"value cannot be converted to type (?:c10::|at::)?(\w+) without overflow",
        "the fill value does not fit {1}",
        "masked_fill(~mask, float('-inf')), or torch.finfo(scores.dtype).min",
    ),
    Raised(
        "NameError|UnboundLocalError",
        r"(?:name|variable) '(\w+)'",
        "the name {1} is not defined on this path",
        "define {1} before it is used, on every branch",
    ),
    Raised(
        "AttributeError",
        r"'NoneType' object has no attribute '(\w+)'",
        "something that may be None is used without asking: .{1} of None",
        "check for None first; a mask, a bias and the bias of a linear layer may be missing",
    ),
    Raised(
        "AttributeError",
        r"object has no attribute '(\w+)'",
        "self.{1} was never set",
        "set it in __init__, or correct the name",
    ),
    Raised(
        "RuntimeError",
        r"The size of tensor a \(\d+\) must match the size of tensor "
        r"b \(\d+\) at non-singleton dimension 1\b",
        "a mask without a heads axis meets the heads of the scores",
        "mask.unsqueeze(1): batch 1 q_len kv_len",
        "mask|bias|score|attn",
    ),
    Raised(
        "RuntimeError",
        r"The size of tensor a \(\d+\) must match the size of tensor b "
        r"\(\d+\) at non-singleton dimension [23]\b",
        "the mask was built for other lengths than the scores have",
        "build it from q_len and kv_len of this very call",
        "mask|bias|score|attn|tril|triu",
    ),
    Raised(
        "RuntimeError",
        r"The size of tensor a \(\d+\) must match the size of tensor "
        r"b \(\d+\) at non-singleton dimension (\d)",
        "two tensors do not broadcast on axis {1}",
        "print both shapes; heads and positions are often swapped (transpose(1, 2))",
    ),
    Raised(
        "RuntimeError",
        r"expected scalar type (\w+) but found (\w+)|mat1 and mat2 must have the same dtype|"
        r"expected m1 and m2 to have the same dtype|Expected query, key, and "
        r"value to have the same dtype|must have the same dtype",
        "tensors of two dtypes meet: something was made in the default dtype or widened and not brought back",
        "create tensors with dtype=query.dtype, and cast weights back: weights.to(value.dtype)",
    ),
    Raised(
        "RuntimeError",
        r"cannot reshape tensor of 0 elements into shape",
        "-1 cannot be worked out for an empty tensor",
        "write the width out, or flatten(2) and unflatten(-1, (heads, d_k))",
    ),
    Raised(
        "RuntimeError",
        r"Expected attn_mask dtype to be bool or (?:float or )?to match query dtype|attn_mask.*dtype",
        "the mask handed to scaled_dot_product_attention is neither boolean nor of the query's dtype",
        "mask.to(torch.bool), or mask.to(query.dtype) for one that is added",
    ),
    Raised(
        "RuntimeError|TypeError",
        r"bitwise_not.*|.*~ \(operator\.invert\).*|\"bitwise_\w+\" not "
        r"implemented for '(?:Float|Half|BFloat16|Double)'",
        "~ or & is applied to a mask of numbers",
        "compare first: mask != 0, or mask.bool()",
    ),
    Raised(
        "RuntimeError",
        r"\"baddbmm|\"softmax|\"addmm.*not implemented for '(\w+)'",
        "this operation does not exist for {1} here",
        "compute in float32 and cast back",
    ),
    Raised(
        "RuntimeError",
        r"masked_fill_? only supports boolean masks|expects a boolean mask|masked_fill.*got .*mask",
        "masked_fill wants a boolean mask",
        "mask == 0, or mask.bool()",
    ),
    Raised(
        "RuntimeError",
        r"Explicit attn_mask should not be set when is_causal=True",
        "a mask and is_causal do not go together here",
        "join them: attn_mask = mask & torch.ones(q_len, kv_len).tril().bool()",
    ),
    Raised(
        "RuntimeError",
        r"shape '\[.*\]' is invalid for input of size \d+",
        "a view assumes sizes that the tensor does not have",
        "read the sizes from the very tensor: keys and queries may differ in length",
    ),
    Raised(
        "RuntimeError",
        r"mat1 and mat2 shapes cannot be multiplied",
        "a projection is given another width than it was built for",
        "check d_model, heads * d_k and kv_heads * d_k in the linear layers",
    ),
    Raised(
        "RuntimeError",
        r"Expected size for first two dimensions of batch2 tensor to "
        r"be|Sizes of tensors must match except in dimension",
        "batch and heads of two operands differ",
        "share the key/value heads out first: key.repeat_interleave(heads // kv_heads, 1)",
    ),
    Raised(
        "RuntimeError",
        r"Expected all tensors to be on the same device",
        "a tensor was created on the default device",
        "create it with device=query.device",
    ),
    Raised(
        "RuntimeError",
        r"modified by an inplace operation|a view of a leaf Variable "
        r"that requires grad is being used in an in-place|"
        r"a leaf Variable that requires grad is being used in an in-place",
        "a tensor that the gradient needs is changed in place",
        "masked_fill instead of masked_fill_, x = x * scale instead of x *= scale",
    ),
    Raised(
        "IndexError",
        r"Dimension out of range",
        "an axis is taken that the tensor does not have",
        "count axes from the end: dim=-1 are the keys",
    ),
    Raised(
        "ZeroDivisionError",
        r"",
        "a size of 0 is divided by",
        "an axis may have size 0; return an empty result",
    ),
    Raised(
        "IndexError",
        r"cannot perform reduction function|max\(\): Expected reduction dim|amax\(\): Expected reduction dim",
        "a maximum is taken over no key at all",
        "return zeros where kv_len is 0",
    ),
)


def match_exception(kind: str, message: str, place_text: str = "") -> tuple[str, str] | None:
    """Name the mistake behind an exception.

    Args:
        kind: Class name of what was raised.
        message: Its message.
        place_text: The user's line that raised, where it is known.

    Returns:
        One sentence and what to change, or None where the message says nothing certain.
    """
    for known in RAISED:
        if not re.fullmatch(known.kind, kind):
            continue
        found = re.search(known.message, message)
        if found is None or (known.place and not re.search(known.place, place_text, re.IGNORECASE)):
            continue
        group = next((g for g in found.groups() if g), "it") if found.groups() else "it"
        return known.sentence.replace("{1}", group), known.fix.replace("{1}", group)
    return None
