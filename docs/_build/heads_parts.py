"""Attention maps of a small layer with heads of known habits, drawn by `attnspec.plot`."""

import torch
from matplotlib import rc_context, style

from attnspec import stages
from attnspec.plot import plot_weights

from .site import DOCS, Output

FOLDER = DOCS / "assets" / "generated"
LENGTH = 12


def weights() -> torch.Tensor:
    """Return four causal heads: near keys, the first key, equal keys, and random scores."""
    torch.manual_seed(3)
    positions = torch.arange(LENGTH, dtype=torch.float64)
    distance = (positions[:, None] - positions[None, :]).abs()
    near, first, even = -1.5 * distance, torch.zeros(LENGTH, LENGTH), torch.zeros(LENGTH, LENGTH)
    first[:, 0] = 4.0
    scores = torch.stack(
        [near, first.double(), even.double(), 2 * torch.randn(LENGTH, LENGTH, dtype=torch.float64)]
    )
    empty = torch.zeros(1, 1, LENGTH, 1)
    visible = stages.visible_positions(empty, empty, offset=0, right=0)
    return stages.normalise(stages.mask_scores(scores[None], visible[None, None]))


def write(out: Output) -> None:
    """Draw the maps once for the light scheme and once for the dark one."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for scheme, name in (("light", "default"), ("dark", "dark_background")):
        path = FOLDER / f"heads-{scheme}.svg"
        with style.context(name), rc_context({"svg.hashsalt": "attnspec", "svg.fonttype": "path"}):
            figure = plot_weights(weights())
            figure.savefig(path, transparent=True, metadata={"Date": None})
        out.keep(path)
