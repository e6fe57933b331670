"""Named converters for the conventions that the contract does not share.

The contract: True = may attend, rank 2 or 4, a float belongs in `bias`, window distances are
inclusive. Each function here takes one other convention and returns the contract's.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ._errors import DtypeError, ShapeError


def attend_from_blocked(blocked: Bool[Tensor, "..."]) -> Bool[Tensor, "..."]:
    """Return the contract's mask for one in which True means blocked.

    Raises:
        DtypeError: If the mask is not boolean.
    """
    if blocked.dtype != torch.bool:
        raise DtypeError(
            f"attend_from_blocked: mask must be bool; got {blocked.dtype}, compare it first (mask != 0)"
        )
    return ~blocked


def attend_from_additive(additive: Float[Tensor, "..."]) -> Bool[Tensor, "..."]:
    """Return the contract's mask for an additive one that holds 0 and -inf alone.

    Raises:
        DtypeError: If the tensor is not floating.
        ShapeError: If it holds anything else: such a tensor is a bias, and belongs there.
    """
    if not additive.is_floating_point():
        raise DtypeError(f"attend_from_additive: mask must be floating; got {additive.dtype}")
    attend = additive == 0
    if not bool((attend | (additive == float("-inf"))).all()):
        raise ShapeError(
            "attend_from_additive: every entry must be 0 or -inf; hand anything else over as bias"
        )
    return attend


def blocked_from_attend(attend: Bool[Tensor, "..."]) -> Bool[Tensor, "..."]:
    """Return a mask in which True means blocked, for code that takes it that way."""
    return ~attend


def additive_from_attend(attend: Bool[Tensor, "..."], dtype: torch.dtype) -> Float[Tensor, "..."]:
    """Return an additive mask: 0 where a query may attend, -inf elsewhere."""
    return torch.zeros(attend.shape, dtype=dtype, device=attend.device).masked_fill(~attend, float("-inf"))


def window_from_count(keys: int, *, causal: bool = True) -> tuple[int, int]:
    """Return the contract's inclusive distances for a window that counts keys, its own included.

    Args:
        keys: How many keys a query sees on one side, its own position included; at least 1.
        causal: Whether the window looks back only; otherwise it reaches as far ahead.

    Raises:
        ShapeError: If `keys` is less than 1.
    """
    if keys < 1:
        raise ShapeError(f"window_from_count: keys must be at least 1; got {keys}")
    return keys - 1, 0 if causal else keys - 1
