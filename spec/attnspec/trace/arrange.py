"""Every way to see the shape of a tensor as a landmark's atomic axes, moved and merged."""

from collections.abc import Iterator
from functools import lru_cache
from itertools import permutations
from math import prod

from torch import Tensor


def _in_order(group: list[str]) -> bool:
    """Whether heads that share an axis with their width or their groups lie as in the contract."""
    ranks = [
        r
        for a in group
        if (r := {"kv_heads": 0, "heads": 0, "group": 1, "d_k": 2, "d_v": 2}.get(a)) is not None
    ]
    return ranks == sorted(ranks) or "3" in group or "2" in group


@lru_cache(maxsize=4096)
def arrangements(
    shape: tuple[int, ...], sizes: tuple[int, ...], names: tuple[str, ...]
) -> tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[str, ...], ...]], ...]:
    """Return every way to see a shape as atomic axes laid in some order, some of them merged.

    Returns:
        For each way: the sizes to reshape to, the permutation back to the landmark's order, and which
        atomic axes lie in each axis of the shape. Axes of size 1 are nobody's.
    """
    atoms = [i for i, size in enumerate(sizes) if size != 1]
    found = []

    def lay(
        axis: int, left: tuple[int, ...], groups: tuple[tuple[int, ...], ...]
    ) -> Iterator[tuple[tuple[int, ...], ...]]:
        if axis == len(shape):
            if not left:
                yield groups
            return
        if shape[axis] == 1:
            yield from lay(axis + 1, left, (*groups, ()))
            return
        for count in range(1, len(left) + 1):
            for chosen in permutations(left, count):
                if prod(sizes[c] for c in chosen) == shape[axis]:
                    yield from lay(axis + 1, tuple(x for x in left if x not in chosen), (*groups, chosen))

    for groups in lay(0, tuple(atoms), ()):
        if not all(_in_order([names[a] for a in group]) for group in groups):
            continue
        laid = [a for group in groups for a in group]
        order = tuple(laid.index(a) for a in atoms)
        axes = tuple(tuple(names[a] for a in group) for group in groups)
        found.append((tuple(sizes[a] for a in laid), order, axes))
    return tuple(found)


def laid_as(tensor: Tensor, landmark: Tensor, names: tuple[str, ...], axes: object) -> Tensor | None:
    """Return a tensor with its axes in a landmark's order, where it has the given arrangement; else None."""
    if tensor.numel() != landmark.numel():
        return None
    for sizes, order, found in arrangements(tuple(tensor.shape), tuple(landmark.shape), names):
        if found == axes:
            return tensor.reshape(sizes).permute(order).reshape(landmark.shape)
    return None
