"""Bars of a result, where matplotlib is at hand."""

from pathlib import Path

from .._errors import ReportError
from .results import MIB, Results, Row, cells


def plot_results(results: Results, path: Path) -> None:
    """Draw time and memory of every cell into one file; its suffix says which kind.

    Raises:
        ReportError: If matplotlib is missing, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ReportError("plots need matplotlib: pip install 'attnspec[plot]'") from None
    groups = cells(row for row in results.rows if row.ratio is not None)
    figure = Figure(
        figsize=(11, max(2.5, sum(0.5 + 0.25 * len(rows) for rows in groups.values()))), layout="constrained"
    )
    axes = figure.subplots(
        len(groups), 2, squeeze=False, gridspec_kw={"height_ratios": [len(r) + 2 for r in groups.values()]}
    )
    for (left, right), (cell, rows) in zip(axes, groups.items(), strict=True):
        ordered = sorted(rows, key=lambda row: row.ratio or 0.0, reverse=True)
        _bars(left, ordered)
        left.set_title(" · ".join(cell), fontsize=9, loc="left")
        right.barh(
            [row.name for row in ordered], [(row.peak_bytes or 0) / MIB for row in ordered], color="#8a8a8a"
        )
        right.set_xlabel("peak extra memory, MiB", fontsize=8)
        for axis in (left, right):
            axis.tick_params(labelsize=8)
            axis.spines[["top", "right"]].set_visible(False)
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise ReportError(f"{path} could not be written: {error}") from None


def _bars(axis: object, rows: list[Row]) -> None:
    middle = [row.ratio or 0.0 for row in rows]
    low = [m - (row.low or m) for m, row in zip(middle, rows, strict=True)]
    high = [(row.high or m) - m for m, row in zip(middle, rows, strict=True)]
    draw = axis
    draw.barh([row.name for row in rows], middle, xerr=[low, high], color="#3b6ea5", ecolor="#222222")  # type: ignore[attr-defined]
    draw.axvline(1.0, color="#222222", linewidth=0.8)  # type: ignore[attr-defined]
    draw.set_xlabel("time, as a multiple of the floor (median, quartiles)", fontsize=8)  # type: ignore[attr-defined]
