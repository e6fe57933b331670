"""Attention maps, one a head, drawn with matplotlib; for one's own tensors as well.

matplotlib is an extra (`pip install attnspec[plot]`) and is imported when something is drawn.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ._errors import AttnspecError, DtypeError, ShapeError

COLUMNS = 4
TICKS = 6


def plot_weights(weights: Tensor, *, sample: int = 0) -> Any:
    """Draw the attention weights of one sample, a map for each head, all on one scale from 0 to 1.

    Args:
        weights: After the softmax, `batch heads q_len kv_len`, or `heads q_len kv_len` for one sample.
        sample: Which sample of the batch.

    Returns:
        A matplotlib `Figure` that belongs to no window; `figure.savefig(path)` writes it. Over each map
        stands how many keys the head looks at on average: the mean over queries of the exponential of the
        entropy.

    Raises:
        ShapeError: If the rank is another, an axis is empty, or there is no such sample.
        DtypeError: If the tensor is not floating.
        AttnspecError: If matplotlib is not installed.
    """
    maps = _of_sample(weights, sample)
    figure_class, grid = _matplotlib()
    heads, q_len, kv_len = maps.shape
    columns = min(heads, COLUMNS)
    rows = -(-heads // columns)
    height = 2.6 * min(max(q_len / kv_len, 0.4), 2.5) + 0.9
    figure = figure_class(figsize=(2.6 * columns + 0.9, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    image: Any = None
    for head, ax in enumerate(axes.flat):
        if head >= heads:
            ax.set_visible(False)
            continue
        image = ax.imshow(maps[head].numpy(), vmin=0.0, vmax=1.0, cmap="viridis", interpolation="nearest")
        ax.set_title(f"head {head}\nlooks at {_keys_seen(maps[head]):.1f} keys", fontsize=9)
        for axis, length in ((ax.xaxis, kv_len), (ax.yaxis, q_len)):
            axis.set_major_locator(grid(nbins=min(length, TICKS), integer=True))
        ax.tick_params(labelsize=8)
    figure.supxlabel("key position", fontsize=9)
    figure.supylabel("query position", fontsize=9)
    figure.colorbar(image, ax=axes, shrink=0.7, label="weight")
    return figure


def plot_file(weights_path: str | Path, output_path: str | Path, sample: int = 0) -> None:
    """Draw the attention weights in a safetensors file and write the picture.

    Args:
        weights_path: A file with one tensor of attention weights, or with one that is called `weights`.
        output_path: The picture; its ending says the format (`.png`, `.svg`, `.pdf`).
        sample: Which sample of the batch.

    Raises:
        AttnspecError: If a file cannot be read or written, or it is not clear which tensor is meant.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(weights_path)
    except (OSError, SafetensorError) as error:
        raise AttnspecError(f"plot: {weights_path} cannot be read as safetensors: {error}") from None
    name = next(iter(tensors)) if len(tensors) == 1 else "weights"
    if name not in tensors:
        known = ", ".join(sorted(tensors)) or "none"
        raise AttnspecError(
            f"plot: {weights_path} must hold one tensor, or one called 'weights'; it holds: {known}"
        )
    figure = plot_weights(tensors[name], sample=sample)
    try:
        figure.savefig(output_path, dpi=150)
    except (OSError, ValueError) as error:
        raise AttnspecError(f"plot: {output_path} cannot be written: {error}") from None


def _of_sample(weights: Tensor, sample: int) -> Tensor:
    """Return the maps of one sample as float64 on the CPU, after checking them."""
    if not weights.is_floating_point():
        raise DtypeError(f"plot_weights: weights must be floating; got {weights.dtype}")
    if weights.dim() not in (3, 4) or 0 in weights.shape:
        raise ShapeError(
            "plot_weights: weights must be batch heads q_len kv_len, or heads q_len kv_len, and not empty;"
            f" got {tuple(weights.shape)}"
        )
    batched = weights if weights.dim() == 4 else weights[None]
    if not 0 <= sample < len(batched):
        raise ShapeError(
            f"plot_weights: sample must be at least 0 and below batch; got {sample}, batch is {len(batched)}"
        )
    return batched[sample].detach().to("cpu", torch.float64)


def _keys_seen(weights: Tensor) -> float:
    """Return the mean over rows of the exponential of the entropy; rows that see nothing do not count."""
    rows = weights[weights.sum(-1) > 0]
    if not len(rows):
        return 0.0
    entropy = -torch.special.xlogy(rows, rows).sum(-1)
    return float(entropy.exp().mean())


def _matplotlib() -> tuple[Any, Any]:
    """Return what is used of matplotlib."""
    # By name: type checkers run without the extra too.
    try:
        figure, ticker = (import_module(f"matplotlib.{name}") for name in ("figure", "ticker"))
    except ImportError:
        raise AttnspecError("plot: matplotlib is needed for this: pip install 'attnspec[plot]'") from None
    return figure.Figure, ticker.MaxNLocator
