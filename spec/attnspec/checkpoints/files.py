"""Converting safetensors files, one attention layer or all of a model at once."""

import re
from pathlib import Path

from torch import Tensor

from .._errors import ReportError, TargetError, UnknownNameError
from .grouping import group_heads
from .layouts import find_layout
from .mapping import fitting_layouts, read_weights, under, write_weights

SUFFIX = ".safetensors"


def convert_file(
    source: str | Path, destination: str | Path, *, source_layout: str = "canonical",
    target_layout: str = "canonical", heads: int, kv_heads: int | None = None, prefix: str = "",
    target_prefix: str | None = None, group: int | None = None,
) -> list[str]:  # fmt: skip
    """Read a safetensors file in one layout and write it in another.

    Args:
        source: The file to read.
        destination: The file to write; one that is there is replaced.
        source_layout: Its layout; see `LAYOUTS`.
        target_layout: The layout to write.
        heads: Query heads.
        kv_heads: Key and value heads in the source; None means `heads`.
        prefix: Of the names to read. A `*` in it stands for every number that is there: `h.*.attn.` converts
            all layers of a model.
        target_prefix: Of the names to write, with a `*` where `prefix` has one; None means `prefix`.
        group: Average key and value heads down to so many; None keeps them.

    Returns:
        The names in the source that were not converted: no part of the layers that were.

    Raises:
        TargetError: If the source cannot be read, or is not a safetensors file.
        ReportError: If the destination cannot be written.
        UnknownNameError: If a layout, a prefix or a tensor is not there.
        ShapeError: If the shapes do not fit a layout.
    """
    find_layout(source_layout), find_layout(target_layout)
    tensors = load_tensors(Path(source))
    if Path(destination).suffix != SUFFIX:
        raise ReportError(f"convert writes {SUFFIX} files only; got {destination}")
    target_prefix = prefix if target_prefix is None else target_prefix
    if target_prefix.count("*") != prefix.count("*"):
        raise TargetError(
            f"the prefixes must have a * in the same places; got {prefix!r} and {target_prefix!r}"
        )
    written: dict[str, Tensor] = {}
    left = dict(tensors)
    for numbers in _layers(tensors, prefix):
        where = _filled(prefix, numbers)
        weights = read_weights(tensors, source_layout, heads, kv_heads, where)
        if group is not None:
            weights = group_heads(weights, group)
        written |= write_weights(weights, target_layout, _filled(target_prefix, numbers))
        for name in _used(tensors, source_layout, heads, where):
            left.pop(name, None)
    save_tensors(written, Path(destination), {"layout": target_layout, "heads": str(heads)})
    return sorted(left)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a safetensors file.

    Raises:
        TargetError: If it is another kind of file, or broken.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise TargetError(f"{path}: no such file")
    if path.suffix != SUFFIX:
        raise TargetError(
            f"{path}: convert reads {SUFFIX} files only; a pickled checkpoint (.pt, .pth, .bin) can run code"
            " when it is read\n  if you trust it: safetensors.torch.save_file(torch.load(path), new_path)"
        )
    try:
        return dict(load_file(path))
    except (SafetensorError, OSError) as error:
        raise TargetError(f"{path}: not a safetensors file: {error}") from None


def save_tensors(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    """Write tensors to a safetensors file.

    Raises:
        ReportError: If it cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(tensors, path, metadata={"format": "pt", **metadata})
    except (SafetensorError, OSError) as error:
        raise ReportError(f"{path} could not be written: {error}") from None


def _layers(tensors: dict[str, Tensor], prefix: str) -> list[tuple[str, ...]]:
    """Return the numbers that the stars of a prefix stand for, in order; one empty tuple without a star."""
    if "*" not in prefix:
        return [()]
    pattern = re.compile(r"(\d+)".join(re.escape(part) for part in prefix.split("*")))
    found = {match.groups() for name in tensors if (match := pattern.match(name))}
    if not found:
        raise UnknownNameError.worded(
            f"no tensor is called like {prefix!r}; there: {', '.join(sorted(tensors)[:8])}"
        )
    return sorted(found, key=lambda numbers: [int(n) for n in numbers])


def _filled(prefix: str, numbers: tuple[str, ...]) -> str:
    for number in numbers:
        prefix = prefix.replace("*", number, 1)
    return prefix


def _used(tensors: dict[str, Tensor], layout: str, heads: int, prefix: str) -> list[str]:
    from .place import Place

    there = under(tensors, prefix)
    places = [Place.parse(name, text) for name, text in find_layout(layout).places.items()]
    start = prefix if not prefix or prefix.endswith(".") else f"{prefix}."
    return [f"{start}{path}" for place in places for path in place.paths(heads) if path in there]


def layout_lines(path: Path | None = None, prefix: str = "") -> list[str]:
    """Return one line for each layout; with a file, only for those whose names are in it."""
    from .layouts import LAYOUTS

    names = list(LAYOUTS) if path is None else fitting_layouts(load_tensors(path), prefix)
    width = max(map(len, LAYOUTS))
    return [f"{name:<{width}}  {LAYOUTS[name].keeps}" for name in names]
