"""Hypothesis strategies read from jaxtyping annotations; useful without the suite.

Axis names become shared integers: every tensor of one call that says `kv_len` gets the same one.
Products in the vocabulary (`heads = kv_heads * group`) are kept. What is drawn is structure and one
seed; tensors are built from them, never element by element.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Generator, Tensor

from .._axes import AXES, RELATIONS
from .._table import Argument, read_signature
from .cases import Case
from .recipes import GENERAL, Recipe
from .space import Space
from .tensors import LAYOUTS, REVEALING, VALUES

Sizes = dict[str, int]
BLOCK_SIZES = tuple(n + step for n in (16, 32, 64, 128) for step in (-1, 0, 1))


@st.composite
def axis_sizes(
    draw: st.DrawFn,
    names: tuple[str, ...],
    *,
    largest: int = 9,
    blocks: bool = False,
    fixed: Mapping[str, int] | None = None,
) -> Sizes:
    """Draw one size for each axis name; products of the vocabulary hold.

    Args:
        draw: Hypothesis' own.
        names: Axis names, for example those of a stage.
        largest: The largest size that is drawn freely.
        blocks: Whether lengths may also be one below, at or one above a block size.
        fixed: Sizes that are given.
    """
    sizes: Sizes = dict(fixed or {})
    for product, factors in RELATIONS:
        if product in sizes:
            sizes.update(_split(draw, sizes[product], factors, sizes))
        elif product in names:
            for factor in factors:
                sizes.setdefault(factor, draw(st.integers(1, 4)))
            sizes[product] = math.prod(sizes[factor] for factor in factors)
    least = {axis.name: axis.smallest for axis in AXES}
    for name in names:
        if name in sizes:
            continue
        small = st.integers(max(1, least.get(name, 1)), largest)
        sizes[name] = draw(
            st.one_of(small, st.sampled_from(BLOCK_SIZES)) if blocks and name.endswith("len") else small
        )
    return sizes


def _split(draw: st.DrawFn, product: int, factors: tuple[str, ...], given: Mapping[str, int]) -> Sizes:
    """Draw the factors of a product that is given, those that are given too left as they are."""
    found = {name: given[name] for name in factors if name in given}
    open_ = [name for name in factors if name not in found]
    rest = product // math.prod(found.values())
    for name in open_[:-1]:
        found[name] = draw(st.sampled_from([n for n in range(1, rest + 1) if rest % n == 0]))
        rest //= found[name]
    found.update(dict.fromkeys(open_[-1:], rest))
    if math.prod(found.values()) != product:
        raise ValueError(
            f"axis_sizes: the factors {', '.join(factors)} must multiply to {product}; got {found}"
        )
    return found


def tensor_of(
    argument: Argument,
    sizes: Mapping[str, int],
    *,
    values: str,
    layout: str,
    generator: Generator,
    dtype: torch.dtype,
) -> Tensor:
    """Build one tensor for an annotated argument.

    Raises:
        KeyError: If a dimension is a name without a size.
    """
    shape = tuple(_size_of(word, sizes) for word in argument.dims)
    if argument.kind == "Bool":
        return torch.rand(shape, generator=generator) < 0.6
    return (
        LAYOUTS[layout](VALUES[values](shape, generator).to(dtype))
        if len(shape) >= 3
        else VALUES[values](shape, generator).to(dtype)
    )


def _size_of(word: str, sizes: Mapping[str, int]) -> int:
    size = 1
    for factor in word.lstrip("#").split("*"):
        size *= int(factor) if factor.isdigit() else sizes[factor.strip("{}")]
    return size


@st.composite
def arguments(
    draw: st.DrawFn,
    function: Callable[..., Any],
    *,
    dtype: torch.dtype = torch.float32,
    largest: int = 9,
    fixed: Mapping[str, int] | None = None,
) -> dict[str, Tensor]:
    """Draw tensors for every annotated tensor argument of a function.

    Args:
        draw: Hypothesis' own.
        function: Any function with jaxtyping annotations, a stage for example.
        dtype: Of the floating tensors.
        largest: The largest size of an axis.
        fixed: Sizes that are given.

    Returns:
        Keyword arguments; shared axis names have shared sizes.
    """
    tensors, _ = read_signature(function)
    words = (
        " ".join(str(a) for a in tensors)
        .replace("#", " ")
        .replace("*", " ")
        .replace("{", " ")
        .replace("}", " ")
        .split()
    )
    names = tuple(dict.fromkeys(w for w in words if not w.isdigit()))
    sizes = draw(axis_sizes(names, largest=largest, fixed=fixed))
    values = draw(st.sampled_from(tuple(VALUES)))
    layout = draw(st.sampled_from(tuple(LAYOUTS)))
    generator = Generator().manual_seed(draw(st.integers(0, 2**31 - 1)))
    return {
        a.name: tensor_of(a, sizes, values=values, layout=layout, generator=generator, dtype=dtype)
        for a in tensors
    }


def core_cases(space: Space | None = None, **options: Any) -> st.SearchStrategy[Case]:
    """Return cases for a core: every feature by itself, or as given in `options` (see `Recipe`)."""
    everything = Space(
        features=frozenset({"mask", "bias", "window", "softcap", "scale", "grouped", "cross", "value_width"}),
        causal="flag",
    )
    return Recipe({**GENERAL, "values": REVEALING, **options}).strategy(space or everything)
