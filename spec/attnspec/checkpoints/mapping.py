"""Canonical weights from and to a mapping of named tensors, by a layout."""

from collections.abc import Mapping

import torch
from torch import Tensor

from .._errors import ShapeError, UnknownNameError
from ..weights import BIASES, MATRICES, LayerWeights
from .layouts import LAYOUTS, Layout, find_layout
from .place import Place

Tensors = Mapping[str, Tensor]


def read_weights(
    tensors: Tensors, layout: str, heads: int, kv_heads: int | None = None, prefix: str = ""
) -> LayerWeights:
    """Read one layer's weights.

    Args:
        tensors: Named tensors, for example a state dict or a safetensors file.
        layout: Name of the layout; see `LAYOUTS`.
        heads: Query heads: no tensor tells them.
        kv_heads: Key and value heads; None means `heads`.
        prefix: Of the layer's names, for example `h.0.attn.`; the dot at its end may be left out.

    Returns:
        Canonical weights; they share memory with `tensors` where no copy was needed.

    Raises:
        UnknownNameError: If the layout does not exist, or a tensor of it is missing; the message says which
            layout the names that are there would fit.
        ShapeError: If the tensors do not have the layout's axes for these heads, or the layer keeps something
            that canonical weights cannot hold.
    """
    found_layout, kv_heads = find_layout(layout), heads if kv_heads is None else kv_heads
    there = under(tensors, prefix)
    for name, reason in found_layout.refused.items():
        if name in there:
            raise ShapeError(f"read_weights: {prefix}{name} cannot be converted: {reason}")
    places = _places(found_layout)
    missing = [
        path for place in places for path in place.paths(heads if place.canonical[0] == "W_q" else kv_heads)
        if place.canonical[0] in MATRICES and path not in there
    ]  # fmt: skip
    if missing:
        raise UnknownNameError.worded(_missing(found_layout, missing, tensors, prefix))
    return _read(found_layout, places, there, heads, kv_heads)


def _read(layout: Layout, places: list[Place], there: Tensors, heads: int, kv_heads: int) -> LayerWeights:
    found: dict[str, Tensor] = {}
    widths: dict[str, int] = {}
    # The output projection comes first, since it tells the width of a value head; matrices before biases.
    for place in sorted(places, key=lambda p: (p.canonical[0] not in MATRICES, p.canonical != ("W_o",))):
        count = heads if place.canonical[0][2:] in ("q", "qkv") else kv_heads
        stored = [there[path] for path in place.paths(count) if path in there]
        if not stored:
            continue
        rank = 2 if place.canonical[0] in MATRICES else 1
        for path, tensor in zip(place.paths(count), stored, strict=False):
            if tensor.dim() != rank:
                raise ShapeError(
                    f"read_weights: {path} must have {rank} axes; got shape {tuple(tensor.shape)}"
                )
        try:
            if len(place.canonical) > 1 and rank == 2:
                widths = _fused_widths(place, stored[0], found["W_o"], heads, kv_heads)
            found |= place.take_apart(stored, widths, heads)
        except ShapeError as error:
            raise ShapeError(
                f"read_weights: layout {layout.name}: {error}{_other_shape(layout, there, heads, kv_heads)}"
            ) from None
        widths |= {name[2:]: found[name].shape[0] for name in place.canonical if name in MATRICES}
    weights = LayerWeights(**found, heads=heads, kv_heads=kv_heads)
    _require_consistent(layout, weights, there, heads, kv_heads)
    return weights


def _fused_widths(place: Place, stored: Tensor, W_o: Tensor, heads: int, kv_heads: int) -> dict[str, int]:
    """Return the rows of each part of a fused matrix: the output projection tells a value head's width."""
    if place.interleaved and kv_heads != heads:
        raise ShapeError(
            f"{place.path} is interleaved by head, which needs kv_heads = heads; got {kv_heads} and {heads}"
        )
    rows = stored.shape[1] if place.transposed else stored.shape[0]
    values = W_o.shape[1] * kv_heads // heads
    d_k, rest = divmod(rows - values, heads + kv_heads)
    if W_o.shape[1] % heads or rest or d_k < 1:
        raise ShapeError(
            f"{place.path} has {rows} rows and the output projection {W_o.shape[1]} columns,"
            f" which heads={heads}, kv_heads={kv_heads} do not divide"
        )
    return {"q": heads * d_k, "k": kv_heads * d_k, "v": values}


def _require_consistent(layout: Layout, w: LayerWeights, there: Tensors, heads: int, kv_heads: int) -> None:
    """Refuse matrices whose sizes cannot belong together."""
    problem = None
    if w.W_q.shape[0] * kv_heads != w.W_k.shape[0] * heads:
        problem = (
            f"queries have {w.W_q.shape[0]} rows for {heads} heads, keys {w.W_k.shape[0]} for {kv_heads}"
        )
    elif w.W_v.shape[0] * heads != w.W_o.shape[1] * kv_heads:
        problem = (
            f"values have {w.W_v.shape[0]} rows for {kv_heads} heads,"
            f" the output projection {w.W_o.shape[1]} columns for {heads}"
        )
    for bias in BIASES:
        tensor, matrix = getattr(w, bias), getattr(w, f"W_{bias[2:]}")
        if tensor is not None and tensor.shape[0] != matrix.shape[0]:
            problem = problem or f"{bias} has {tensor.shape[0]} elements, its matrix {matrix.shape[0]} rows"
    if problem is not None:
        raise ShapeError(
            f"read_weights: layout {layout.name}: {problem}{_other_shape(layout, there, heads, kv_heads)}"
        )


def write_weights(weights: LayerWeights, layout: str, prefix: str = "") -> dict[str, Tensor]:
    """Return one layer's weights as named tensors in a layout; the inverse of `read_weights`.

    Args:
        weights: Canonical weights.
        layout: Name of the layout.
        prefix: Put in front of every name; the dot at its end may be left out.

    Returns:
        New, contiguous tensors that share no memory with each other or with `weights`.

    Raises:
        UnknownNameError: If the layout does not exist.
        ShapeError: If the layout cannot keep these weights; the message names the sizes.
    """
    found_layout = find_layout(layout)
    check_holdable(weights, found_layout)
    if found_layout.biases == "together" and weights.has_bias:
        blank = {b: _zero_bias(weights, b) for b in BIASES if getattr(weights, b) is None}
        weights = weights.replace(**blank)
    result: dict[str, Tensor] = {}
    for place in _places(found_layout):
        try:
            stored = place.put_together(weights)
        except ShapeError as error:
            raise ShapeError(f"write_weights: layout {layout}: {error}") from None
        if stored is None:
            continue
        for path, tensor in zip(place.paths(len(stored)), stored, strict=True):
            result[_joined(prefix, path)] = tensor.detach().clone(memory_format=torch.contiguous_format)
    return result


def check_holdable(weights: LayerWeights, layout: Layout) -> None:
    """Refuse weights that a layout cannot keep.

    Raises:
        ShapeError: Naming the sizes, and a layout that can.
    """
    kept = f"write_weights: layout {layout.name} "
    if not layout.grouped and weights.kv_heads != weights.heads:
        able = ", ".join(name for name, other in LAYOUTS.items() if other.grouped)
        raise ShapeError(
            f"{kept}needs kv_heads = heads; got kv_heads={weights.kv_heads}, heads={weights.heads}\n"
            f"  these keep grouped heads: {able}"
        )
    interleaved = any(place.interleaved for place in _places(layout))
    if interleaved and weights.d_k != weights.d_v:
        raise ShapeError(f"{kept}needs d_v = d_k; got d_k={weights.d_k}, d_v={weights.d_v}")
    width = weights.W_q.shape[0], weights.W_v.shape[0], weights.W_o.shape[0]
    if layout.full_heads and any(size != weights.d_model for size in width):
        raise ShapeError(
            f"{kept}needs heads*d_k = heads*d_v = d_model; got d_model={weights.d_model},"
            f" heads*d_k={width[0]}, heads*d_v={width[1]}, output width {width[2]}"
        )


def fitting_layouts(tensors: Tensors, prefix: str = "") -> list[str]:
    """Return the layouts all of whose matrices are there by name, in the order of `LAYOUTS`."""
    there = under(tensors, prefix)
    return [
        name for name, layout in LAYOUTS.items()
        if all(path in there for p in _places(layout) if p.canonical[0] in MATRICES for path in p.paths(1))
    ]  # fmt: skip


def under(tensors: Tensors, prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, by what follows it."""
    start = _joined(prefix, "")
    return {name[len(start) :]: tensor for name, tensor in tensors.items() if name.startswith(start)}


def _places(layout: Layout) -> list[Place]:
    return [Place.parse(name, text) for name, text in layout.places.items()]


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}{name}" if not prefix or prefix.endswith(".") else f"{prefix}.{name}"


def _zero_bias(weights: LayerWeights, bias: str) -> Tensor:
    matrix: Tensor = getattr(weights, f"W_{bias[2:]}")
    return matrix.new_zeros(matrix.shape[0])


def _missing(layout: Layout, missing: list[str], tensors: Tensors, prefix: str) -> str:
    there = under(tensors, prefix)
    where = f" under {prefix!r}" if prefix else ""
    lines = [f"read_weights: layout {layout.name} needs {', '.join(missing)}{where}, which is not there"]
    fitting = fitting_layouts(tensors, prefix)
    listed = sorted(there)[:12]
    lines.append(f"  there: {', '.join(listed) or 'nothing'}{', ...' if len(there) > 12 else ''}")
    if fitting:
        lines.append(f"  their names fit the layout {' or '.join(fitting)}")
    prefixes = _prefixes(tensors, layout)
    if not fitting and prefixes:
        lines.append(f"  {layout.name} is there under the prefix {', '.join(map(repr, prefixes[:3]))}")
    return "\n".join(lines)


def _prefixes(tensors: Tensors, layout: Layout) -> list[str]:
    """Return the prefixes under which a matrix of the layout stands."""
    ends = [path for p in _places(layout) if p.canonical[0] in MATRICES for path in p.paths(1)]
    return [
        name[: -len(ends[0])] for name in tensors
        if name.endswith("." + ends[0]) and all(name[: -len(ends[0])] + end in tensors for end in ends)
    ]  # fmt: skip


def _other_shape(layout: Layout, there: Tensors, heads: int, kv_heads: int) -> str:
    """Return a line that names layouts with the same tensors, where those would read what is there."""
    able = []
    for name in fitting_layouts(there):
        if (
            name != layout.name
            and LAYOUTS[name].places.keys() == layout.places.keys()
            and _reads(name, there, heads, kv_heads)
        ):
            able.append(name)
    return f"\n  the shapes fit the layout {' or '.join(able)}" if able else ""


def _reads(name: str, there: Tensors, heads: int, kv_heads: int) -> bool:
    shapes = {path: tuple(tensor.shape) for path, tensor in there.items()}
    try:
        places = _places(LAYOUTS[name])
        W_o = next(p for p in places if p.canonical == ("W_o",))
        fused = next(p for p in places if len(p.canonical) > 1)
        columns = shapes[W_o.path][0 if W_o.transposed else 1]
        rows = shapes[fused.path][1 if fused.transposed else 0]
        width = shapes[fused.path][0 if fused.transposed else 1]
    except (StopIteration, KeyError, IndexError):
        return False
    outputs = shapes[W_o.path][1 if W_o.transposed else 0]
    return (
        width == outputs
        and not columns % heads
        and not (rows - columns * kv_heads // heads) % (heads + kv_heads)
    )
