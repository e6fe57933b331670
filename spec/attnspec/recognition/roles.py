"""Which parameter projects what, read from gradients: no name is looked at, and no output need be right.

Attention mixes its inputs. Take one output position, along a random direction, and its gradient with
respect to every matrix that a layer holds. Whatever the code does between the projections, each row is a
sum of inputs, and its coefficients tell the role:

- of the queries: the input at that very position, and no other;
- of the values: every input, all with one sign: they are a head's weights;
- of the keys: neither; they add up to 0, as softmax sees no common shift;
- of the output projection: no input at all, but the direction that was asked for.

Roles by rows show the layout of a fused matrix as well. Values of one head are mixed alike: rows that are
not belong to something else, such as the first of two matrices.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import permutations, product

import torch
from torch import Tensor, nn

from .places import AXES, Places, bias_place, held_tensors, shape_of

# Rounding of float64 gradients is far below, a coefficient that is there far above.
NOTHING = 1e-6
Label = tuple[str, int]


def places_by_gradient(
    module: nn.Module, output: Callable[[Tensor], Tensor], sizes: Mapping[str, int]
) -> Places | None:
    """Return where the weights are as gradients tell it, or None if they do not tell.

    Args:
        module: A layer in float64 and eval mode, constructed with `sizes`, no weight of it zero.
        output: Calls it as self-attention, from `1 seq d_model` to the same.
        sizes: `d_model`, `heads`, `kv_heads`, `d_k`, `d_v`.
    """
    generator = torch.Generator().manual_seed(29)
    # Small inputs: no weight is so near 1 that the others vanish, whatever the scale is.
    inputs = torch.randn(1, 5, sizes["d_model"], generator=generator, dtype=torch.float64) / 4
    direction = torch.randn(sizes["d_model"], generator=generator, dtype=torch.float64)
    tensors = dict(_matrices(held_tensors(module)))
    given = output(inputs)
    if given.shape != inputs.shape or not given.requires_grad:
        return None
    whole = [t for t in held_tensors(module).values() if t.requires_grad]
    grads = torch.autograd.grad((given[0, -1] * direction).sum(), whole, allow_unused=True)
    by_tensor = {id(t): g for t, g in zip(whole, grads, strict=True)}
    found: dict[str, list[Places]] = {}
    starred: dict[tuple[str, str], list[str]] = {}
    for path, (owner, index) in tensors.items():
        grad = by_tensor.get(id(owner))
        if grad is None:
            continue
        grad = grad if index is None else grad[index]
        for role, axes in _readings(grad, inputs[0], direction, sizes):
            found.setdefault(role, []).append(_place(module, role, path, axes))
        for role, stem in _of_one_head(path, grad, inputs[0], direction, sizes):
            starred.setdefault((role, stem), []).append(path)
    for (role, stem), paths in starred.items():
        if len(paths) == sizes["heads"]:
            axes = {"v": "d_v d_model", "o": "d_model d_v"}.get(role, "d_k d_model")
            found.setdefault(role, []).append(_place(module, role, stem, axes))
    return _together(found)


def _together(found: Mapping[str, list[Places]]) -> Places | None:
    """Return the one way to fill all roles; an output projection may be missing."""
    fused = [(role,) for role in found if set(role) == {"q", "k", "v"}]
    halves = [("q", role) for role in found if set(role) == {"k", "v"}]
    for roles in (*fused, ("q", "k", "v"), *halves):
        if all(len(_distinct(found.get(role, []))) == 1 for role in roles):
            outputs = found.get("o", [])
            if len(_distinct(outputs)) > 1:
                return None
            chosen = [found[role][0] for role in roles] + outputs[:1]
            return {name: place for part in chosen for name, place in part.items()}
    return None


def _distinct(readings: list[Places]) -> set[str]:
    """Return the paths among readings: of several axes for one path the usual one stands first."""
    return {next(iter(places.values())).partition(" :")[0] for places in readings}


def _matrices(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, tuple[Tensor, int | None]]]:
    """Yield every tensor that may be a projection, and each matrix of a small stack of them."""
    for path, tensor in tensors.items():
        if tensor.dim() >= 2 and tensor.requires_grad:
            yield path, (tensor, None)
            if tensor.dim() == 3 and tensor.shape[0] in (3, 4):
                yield from ((f"{path}.{n}", (tensor, n)) for n in range(tensor.shape[0]))


def _readings(
    grad: Tensor, inputs: Tensor, direction: Tensor, sizes: Mapping[str, int]
) -> Iterator[tuple[str, str]]:
    """Yield the roles and axes that a gradient fits."""
    tail = " 1" if grad.dim() > 2 and grad.shape[-1] == 1 else ""  # a convolution of width 1
    grad = grad.squeeze(-1) if tail else grad
    for axis in range(grad.dim()):
        if grad.shape[axis] != sizes["d_model"]:
            continue
        rows = grad.movedim(axis, -1).flatten(0, -2)
        if _along(rows, direction[None]) is not None:
            for axes in AXES["o"]:
                if shape_of(axes, sizes) == tuple(grad.shape) and _position(axes, "d_model") == axis:
                    yield "o", axes + tail
                    break
            continue
        group = sizes["heads"] // sizes["kv_heads"]
        read = _roles(rows, inputs, grouped=group > 1)
        if read is None:
            continue
        for role in _candidates(set(read[0]) - {"?"}):
            for axes in AXES["".join(sorted(role, key="qkv".index))]:
                fits = shape_of(axes, sizes) == tuple(grad.shape) and _position(axes, "d_model") == axis
                if fits and _same_layout(*read, _expected(role, axes, sizes), group):
                    yield role, axes + tail
                    break


def _candidates(seen: set[str]) -> list[str]:
    """Return the projections that a matrix may hold, alone or fused in some order, by its rows' roles."""
    if seen == {"q"}:
        return ["q"]
    fused = ["".join(order) for order in permutations("qkv" if "q" in seen else "kv")]
    return fused if "q" in seen else ["k", "v", *fused]


def _position(axes: str, word: str) -> int:
    return axes.split().index(word)


def _along(rows: Tensor, basis: Tensor) -> Tensor | None:
    """Return the coefficients of rows in a basis, or None if they are not made of it."""
    size = rows.norm()
    if size == 0:
        return None
    coefficients = torch.linalg.lstsq(basis.T, rows.T).solution.T
    return coefficients if (coefficients @ basis - rows).norm() <= NOTHING * size else None


def _roles(rows: Tensor, inputs: Tensor, *, grouped: bool) -> tuple[list[str], Tensor] | None:
    """Return whose projection each row belongs to, and its coefficients; None if rows are no sums of inputs.

    A row that nothing comes of, as of a head that the code leaves out, may be anybody's: `?`.
    """
    found = _along(rows, inputs)
    if found is None:
        return None
    size = found.norm(dim=-1, keepdim=True)
    unit = found / size.where(size > NOTHING * found.norm(), torch.inf)
    unit = torch.where(unit.sum(-1, keepdim=True) < 0, -unit, unit)
    roles = []
    for row in unit:
        if not bool(row.any()):
            roles.append("?")
        elif row[:-1].norm() <= NOTHING:
            roles.append("q")
        elif row.sum().abs() <= NOTHING or (bool((row < -NOTHING).any()) and not grouped):
            roles.append("k")
        else:  # a shared head's row is a sum over its query heads, and may have both signs
            roles.append("v")
    return roles, unit


def _expected(role: str, axes: str, sizes: Mapping[str, int]) -> list[Label]:
    """Return the labels that the rows of a place would have."""
    words = [word for word in axes.split() if word != "d_model"]
    factors = [factor for word in words for factor in word.split("*")]
    if len(role) == 3 and sizes["kv_heads"] != sizes["heads"]:
        counts = ((part, sizes["heads" if part == "q" else "kv_heads"]) for part in role)
        return [(part, head) for part, n in counts for head in range(n) for _ in range(sizes["d_k"])]
    ranges = [range(int(f) if f.isdigit() else sizes[f]) for f in factors]
    labels = []
    for at in product(*ranges):
        where = dict(zip(factors, at, strict=True))
        part = next((role[n] for f, n in where.items() if f.isdigit()), role)
        labels.append((part, where.get("heads", where.get("kv_heads", 0))))
    return labels


def _same_layout(roles: list[str], rows: Tensor, expected: list[Label], group: int) -> bool:
    """Return whether rows have the expected roles, and whether values of one head are mixed alike."""
    at = {part: [n for n, label in enumerate(expected) if label[0] == part] for part, _ in expected}
    for part, numbers in at.items():
        labels = {roles[n] for n in numbers} - {"?"}
        if any((label == "q") != (part == "q") for label in labels):
            return False
        heads = {expected[n] for n in numbers}
        alike = all(_rank(rows[[label == head for label in expected]]) <= group for head in heads)
        # Keys that are rotated have coefficients of any sign: they are what does not look like values.
        if part != "q" and (part == "v") != (labels == {"v"} and alike):
            return False
    return True


def _rank(rows: Tensor) -> int:
    return int(torch.linalg.matrix_rank(rows, rtol=NOTHING))


def _of_one_head(
    path: str, grad: Tensor, inputs: Tensor, direction: Tensor, sizes: Mapping[str, int]
) -> Iterator[tuple[str, str]]:
    """Yield the role of a matrix that belongs to one head, and its path with a star for the head."""
    parts = path.split(".")
    numbers = [n for n, part in enumerate(parts) if part.isdigit()]
    if not numbers or grad.dim() != 2:
        return
    stems = [".".join("*" if n == number else part for n, part in enumerate(parts)) for number in numbers]
    if tuple(grad.shape) == (sizes["d_k"], sizes["d_model"]):
        read = _roles(grad, inputs, grouped=False)
        if read is not None and len(set(read[0])) == 1 and (read[0][0] != "v" or _rank(read[1]) == 1):
            yield from ((read[0][0], stem) for stem in stems)
        return
    whole = tuple(grad.shape) == (sizes["d_model"], sizes["d_v"])
    if whole and _along(grad.T, direction[None]) is not None:
        yield from (("o", stem) for stem in stems)


def _place(module: nn.Module, role: str, path: str, axes: str) -> Places:
    """Return the place of a matrix, and of the bias beside it where it is a linear layer's weight."""
    matrix = {f"W_{role}": f"{path} : {axes}"}
    held = path.removesuffix("weight") + "bias"
    if not path.endswith("weight") or held.replace("*", "0") not in dict(module.named_parameters()):
        return matrix
    return matrix | ({f"b_{role}": held} if "*" in path else bias_place(role, held, axes.removesuffix(" 1")))
