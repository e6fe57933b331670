"""Building tensors from a structure and one seed: families of values, masks and memory layouts.

Families are ordered from the simplest to the most demanding, so that shrinking moves to the left.
"""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

Shape = tuple[int, ...]
Build = Callable[[Shape, Generator], Tensor]


def _normal(shape: Shape, g: Generator) -> Tensor:
    return torch.randn(shape, generator=g, dtype=torch.float64)


def _one_hot(shape: Shape, g: Generator) -> Tensor:
    out = torch.zeros(shape, dtype=torch.float64)
    if out.numel():
        hot = torch.randint(shape[-1], shape[:-1], generator=g)
        out.scatter_(-1, hot.unsqueeze(-1), 1.0)
    return out


def _integers(shape: Shape, g: Generator) -> Tensor:
    return torch.randint(-3, 4, shape, generator=g).double()


def _outlier(shape: Shape, g: Generator) -> Tensor:
    """Mostly small, with one entry in eight ten times as large."""
    return _normal(shape, g) * torch.where(torch.rand(shape, generator=g) < 0.125, 10.0, 1.0)


VALUES: dict[str, Build] = {
    "ones": lambda shape, g: torch.ones(shape, dtype=torch.float64),
    "one_hot": _one_hot,
    "integers": _integers,
    "normal": _normal,
    "outlier": _outlier,
    "offset": lambda shape, g: _normal(shape, g) + 4.0,
    "scaled": lambda shape, g: _normal(shape, g) * 6.0,
}
REVEALING = ("integers", "normal", "outlier", "offset", "scaled")


def _keep_one(mask: Tensor, g: Generator) -> Tensor:
    """Give every row that sees nothing one key at random."""
    if mask.shape[-1] == 0:
        return mask
    chosen = torch.randint(mask.shape[-1], (*mask.shape[:-1], 1), generator=g)
    rescue = torch.zeros_like(mask).scatter_(-1, chosen, True)
    return mask | (rescue & ~mask.any(-1, keepdim=True))


def _positions(shape: Shape) -> tuple[Tensor, Tensor]:
    return torch.arange(shape[-2])[:, None], torch.arange(shape[-1])[None, :]


def _padding(shape: Shape, g: Generator) -> Tensor:
    lengths = torch.randint(1, max(shape[-1], 1) + 1, (*shape[:-2], 1, 1), generator=g)
    return (torch.arange(shape[-1]) < lengths).expand(shape).clone()


def _banded(shape: Shape, g: Generator) -> Tensor:
    rows, columns = _positions(shape)
    centre = (rows * max(shape[-1], 1)) // max(shape[-2], 1)
    return ((columns - centre).abs() <= 1).expand(shape).clone()


def _corners(shape: Shape, g: Generator) -> Tensor:
    """A random mask whose corners look causal."""
    mask = torch.rand(shape, generator=g) < 0.6
    if min(shape[-2:]) > 1:
        mask[..., 0, -1], mask[..., -1, 0], mask[..., 0, 0], mask[..., -1, -1] = False, True, True, True
    return _keep_one(mask, g)


def _dead(shape: Shape, g: Generator) -> Tensor:
    mask = _keep_one(torch.rand(shape, generator=g) < 0.6, g)
    dead = torch.rand((*shape[:-1], 1), generator=g) < 0.4
    if dead.numel():
        dead.view(-1)[int(torch.randint(dead.numel(), (1,), generator=g))] = True
    return mask & ~dead


MASKS: dict[str, Build] = {
    "all": lambda shape, g: torch.ones(shape, dtype=torch.bool),
    "single": lambda shape, g: _keep_one(torch.zeros(shape, dtype=torch.bool), g),
    "random": lambda shape, g: _keep_one(torch.rand(shape, generator=g) < 0.6, g),
    "sparse": lambda shape, g: _keep_one(torch.rand(shape, generator=g) < 0.25, g),
    "padding": _padding,
    "left_padding": lambda shape, g: _padding(shape, g).flip(-1),
    "banded": _banded,
    "last_key": lambda shape, g: (torch.arange(shape[-1]) >= shape[-1] - 1).expand(shape).clone(),
    "corners": _corners,
    "dead": _dead,
    "nothing": lambda shape, g: torch.zeros(shape, dtype=torch.bool),
}
ALIVE = tuple(name for name in MASKS if name not in ("dead", "nothing"))


def _strided(t: Tensor) -> Tensor:
    """Heads and positions swapped in memory, as `view` then `transpose` leaves a projection."""
    return (
        t.transpose(1, 2).contiguous().transpose(1, 2)
        if t.dim() == 4
        else t.transpose(0, 1).contiguous().transpose(0, 1)
    )


def _sliced(t: Tensor) -> Tensor:
    """A slice out of a wider buffer, as one third of a fused projection is."""
    wide = torch.full((*t.shape[:-1], t.shape[-1] * 3 + 1), 7.25, dtype=t.dtype, device=t.device)
    wide[..., t.shape[-1] : 2 * t.shape[-1]] = t
    return wide[..., t.shape[-1] : 2 * t.shape[-1]]


def _every_other(t: Tensor) -> Tensor:
    """Every second element of the last axis of a larger tensor."""
    wide = torch.full((*t.shape[:-1], t.shape[-1] * 2), -5.5, dtype=t.dtype, device=t.device)
    wide[..., ::2] = t
    return wide[..., ::2]


def _last_two(t: Tensor) -> Tensor:
    """Positions and width swapped in memory, as a key is that is kept ready for the product."""
    return t.mT.contiguous().mT


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda t: t,
    "last_two": _last_two,
    "transposed": _strided,
    "sliced": _sliced,
    "every_other": _every_other,
}
