"""A mask of the contract in the form that the code takes: its meaning, its dtype, its axes, its arguments."""

from collections.abc import Collection, Mapping

import torch
from einops import rearrange
from torch import Tensor

from .._slots import to_einops
from ..conventions import additive_from_attend
from ..declaration import Declaration
from .failures import NotApplicable


def handed_masks(
    mask: Tensor, declared: Declaration, takes: Collection[str], sizes: Mapping[str, int], dtype: torch.dtype
) -> dict[str, Tensor]:
    """Return the mask as the code takes it: in one argument, in two, or over `batch kv_len` alone.

    Args:
        mask: True = may attend, in the contract's axes.
        declared: What the code's masks mean.
        takes: The names that the call can hand over.
        sizes: Of this call, by the contract's names.
        dtype: Of the query, for a mask that is added or multiplied.

    Raises:
        NotApplicable: If the code has no form for this mask.
    """
    if mask.dim() not in (2, 4) and (declared.mask_shape or "padding" in takes):
        raise NotApplicable(f"its mask is brought into the axes {declared.mask_shape or 'batch kv_len'!r}")
    if "padding" not in takes:
        return {"mask": convert_mask(_first_form(mask, declared.mask_shape, sizes), declared, dtype)}
    whole = mask if mask.dim() == 4 else mask[None, None]
    kept, rest = split_mask(whole)
    found: dict[str, Tensor] = {}
    if kept is None or ("mask" in takes and bool(kept.all())):
        rest, kept = whole, None
    if kept is not None:
        padding = declared.replace(mask=declared.padding or "blocked", mask_dtype="bool")
        found["padding"] = convert_mask(_first_form(kept, "batch kv_len", sizes), padding, dtype)
    if kept is None or not bool(rest.all()):
        if "mask" not in takes:
            raise NotApplicable("its mask is over batch and keys alone")
        found["mask"] = convert_mask(_first_form(rest, declared.mask_shape, sizes), declared, dtype)
    return found


def _first_form(mask: Tensor, forms: str | None, sizes: Mapping[str, int]) -> Tensor:
    """Bring a mask into the first of the declared forms that can express it."""
    if not forms:
        return mask
    whole = mask if mask.dim() == 4 else mask[None, None]
    problem: NotApplicable | None = None
    for form in forms.split("|"):
        try:
            return shaped_mask(
                whole, form.strip(), sizes["batch"], sizes["q_len"], sizes["kv_len"], sizes["heads"]
            )
        except NotApplicable as reason:
            problem = problem or reason
    assert problem is not None
    raise problem


def split_mask(whole: Tensor) -> tuple[Tensor | None, Tensor]:
    """Take a mask apart into one over `batch kv_len` and one alike in the batch, if together they are it."""
    kept, rest = whole.any(2, keepdim=True).any(1, keepdim=True), whole.any(0, keepdim=True)
    if whole.shape[1] == 1 and whole.shape[2] == 1:
        return whole, torch.ones_like(whole[:1])
    if whole.shape[0] > 1 and bool(((kept & rest) == whole).all()) and whole.shape[2] > 1:
        return kept, rest
    return None, whole


def shaped_mask(mask: Tensor, axes: str, batch: int, q_len: int, kv_len: int, heads: int) -> Tensor:
    """Bring a rank-4 mask into the declared axes; an axis that is left out must not vary."""
    words = [part for word in axes.split() for part in word.split("*")]
    sizes = {"batch": batch, "heads": heads, "q_len": q_len, "kv_len": kv_len}
    wanted = [sizes[name] if name in words else 1 for name in sizes]
    if any(m not in (1, sizes[name]) for m, name in zip(mask.shape, sizes, strict=True)):
        raise NotApplicable(f"its mask is brought into the axes {axes!r}, which this one does not fit")
    whole = mask.expand(*[w if m == 1 else m for m, w in zip(mask.shape, wanted, strict=True)])
    kept = {name: i for i, name in enumerate(sizes) if name in words}
    if any(whole.shape[i] != 1 for i, name in enumerate(sizes) if name not in words):
        raise NotApplicable(f"its mask has the axes {axes!r} and cannot express this one")
    squeezed = whole[tuple(slice(None) if name in kept else 0 for name in sizes)]
    return rearrange(squeezed, f"{' '.join(kept)} -> {to_einops(axes)}")


def convert_mask(mask: Tensor, declaration: Declaration, dtype: torch.dtype) -> Tensor:
    """Bring a True = attend mask into the declared convention; one of another dtype is handed on as it is."""
    if mask.dtype != torch.bool:
        return mask
    if declaration.mask == "additive":
        return additive_from_attend(mask, dtype)
    mask = ~mask if declaration.mask == "blocked" else mask
    if declaration.mask_dtype == "int":
        return mask.to(torch.int64)
    return mask.to(dtype) if declaration.mask_dtype == "float" else mask
