"""Where a module keeps its canonical weights: reading and writing them through one description.

A place is `path` or `path : axes`. The axes are those in which the parameter is stored, in the
words of the contract, a product written with `*`: `d_model 3*heads*d_k` is GPT-2's transposed
stacked projection. A `*` as a part of the path stands for the number of a head.
"""

from collections.abc import Callable, Mapping
from itertools import permutations, product
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from ._errors import DeclarationError
from .weights import LayerWeights

Read = Callable[[nn.Module, str], Tensor]

# The axes in which a canonical tensor is thought of, and how a linear layer stores it.
CANONICAL = {
    "W_q": ("heads d_k d_model", "heads*d_k d_model"),
    "W_k": ("kv_heads d_k d_model", "kv_heads*d_k d_model"),
    "W_v": ("kv_heads d_v d_model", "kv_heads*d_v d_model"),
    "W_o": ("d_model heads d_v", "d_model heads*d_v"),
    "b_q": ("heads d_k", "heads*d_k"),
    "b_k": ("kv_heads d_k", "kv_heads*d_k"),
    "b_v": ("kv_heads d_v", "kv_heads*d_v"),
    "b_o": ("d_model", "d_model"),
}
# W_qkv, W_kv and every other order of the parts: W_vkq holds the values first.
FUSED = {
    f"{kind}_{''.join(order)}": tuple(f"{kind}_{part}" for part in order)
    for kind, parts in product("Wb", ("qkv", "kv"))
    for order in permutations(parts)
}


def to_einops(axes: str) -> str:
    """Translate `heads*d_k d_model` into einops' `(heads d_k) d_model`."""
    return " ".join(f"({' '.join(word.split('*'))})" if "*" in word else word for word in axes.split())


def find_tensor(module: Any, path: str) -> Tensor:
    """Return the tensor at a dotted path; numbers index lists.

    Raises:
        DeclarationError: If the path leads nowhere, naming the part that is missing and what is there.
    """
    here: Any = module
    for part in path.split("."):
        try:
            here = here[int(part)] if part.isdigit() and not hasattr(here, part) else getattr(here, part)
        except (AttributeError, IndexError, KeyError, TypeError):
            known = ", ".join(name for name, _ in module.named_parameters()) or "none"
            raise DeclarationError(
                f"weights: no parameter at {path!r} ({part!r} is not there)\n  parameters: {known}"
            ) from None
    if not isinstance(here, Tensor):
        raise DeclarationError(
            f"weights: {path!r} is a {type(here).__name__}, not a tensor; add .weight or .bias"
        )
    return here


def is_absent(module: nn.Module, path: str) -> bool:
    """Return whether the path ends in None, as the bias of a linear layer without one does."""
    here: Any = module
    for part in path.replace("*", "0").split("."):
        try:
            here = here[int(part)] if part.isdigit() and not hasattr(here, part) else getattr(here, part)
        except (AttributeError, IndexError, KeyError, TypeError):
            return False
    return here is None


def parse_place(name: str, place: str) -> tuple[str, str]:
    """Return the path and the stored axes of one place, the usual axes filled in."""
    path, colon, axes = (part.strip() for part in place.partition(":"))
    if colon:
        return path, axes
    if name in FUSED:
        raise DeclarationError(
            f"weights.{name}: a fused place must say its axes;"
            f" write '{path} : {len(FUSED[name])}*heads*d_k d_model' (stacked)"
            f" or '{path} : heads*{len(FUSED[name])}*d_k d_model' (interleaved by head)"
        )
    return path, CANONICAL[name][1]


class Slots:
    """The places of all canonical tensors in one module's layout."""

    def __init__(self, places: Mapping[str, str]) -> None:
        for name in places:
            if name not in CANONICAL and name not in FUSED:
                raise DeclarationError(f"weights: {name!r} is not one of {', '.join((*CANONICAL, *FUSED))}")
        self._places = {name: parse_place(name, place) for name, place in places.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """The canonical tensors that have a place."""
        return tuple(dict.fromkeys(n for name in self._places for n in FUSED.get(name, (name,))))

    def present(self, module: nn.Module) -> tuple[str, ...]:
        """The canonical tensors that this very module has, an absent bias left out."""
        there = (name for name, (path, _) in self._places.items() if not is_absent(module, path))
        return tuple(dict.fromkeys(n for name in there for n in FUSED.get(name, (name,))))

    def lacks(self, module: nn.Module, name: str) -> bool:
        """Return whether the place of a canonical tensor is not there at all in this very module."""
        if name not in self._places:
            return False
        try:
            _targets(module, self._places[name][0])
        except DeclarationError:
            return True
        return False

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths, stars included."""
        return tuple(path for path, _ in self._places.values())

    def write(self, module: nn.Module, weights: LayerWeights) -> None:
        """Copy canonical weights into the module, in the module's own dtype."""
        sizes = _sizes(weights)
        with torch.no_grad():
            for name, (path, axes) in self._places.items():
                whole = _gather(name, weights, axes)
                if whole is None and is_absent(module, path):
                    continue
                if whole is None:
                    whole = _zeros_like_place(name, weights, axes)
                for number, target in enumerate(_targets(module, path)):
                    _store(
                        target,
                        whole,
                        axes,
                        sizes,
                        name=name,
                        path=path,
                        number=number if "*" in path.split(".") else None,
                    )

    def read(self, module: nn.Module, like: LayerWeights, *, gradient: bool = False) -> dict[str, Tensor]:
        """Return the canonical tensors (or their gradients) that the module holds.

        Args:
            module: Where to look.
            like: Gives the sizes.
            gradient: Return `.grad` of each parameter; a missing one counts as zeros.
        """
        found: dict[str, Tensor] = {}
        sizes = _sizes(like)
        for name, (path, axes) in self._places.items():
            if is_absent(module, path):
                continue
            stored = []
            for target in _targets(module, path):
                kept = _gradient(module, path, target) if gradient else target
                stored.append(kept.detach().to(like.W_q.device))
            found |= _scatter(name, stored, axes, sizes, like, starred="*" in path.split("."))
        return found


def _gradient(module: nn.Module, path: str, target: Tensor) -> Tensor:
    """Return the gradient of a tensor at a path, zeros if it has none; a matrix of a stack has its part."""
    if target.is_leaf:
        return torch.zeros_like(target) if target.grad is None else target.grad
    stem, _, number = path.rpartition(".")
    return _gradient(module, stem, find_tensor(module, stem))[int(number)]


def _sizes(w: LayerWeights) -> dict[str, int]:
    return {
        "heads": w.heads,
        "kv_heads": w.kv_heads,
        "d_k": w.d_k,
        "d_v": w.d_v,
        "d_model": w.d_model,
        "group": w.heads // w.kv_heads,
    }


def _targets(module: nn.Module, path: str) -> list[Tensor]:
    parts = path.split(".")
    if "*" not in parts:
        return [find_tensor(module, path)]
    star = parts.index("*")
    container: Any = module
    for part in parts[:star]:
        container = container[int(part)] if part.isdigit() else getattr(container, part)
    return [
        find_tensor(module, ".".join((*parts[:star], str(i), *parts[star + 1 :])))
        for i in range(len(container))
    ]


def _thought(name: str, weights: LayerWeights) -> Tensor | None:
    tensor = getattr(weights, name)
    if tensor is None:
        return None
    source, stored = CANONICAL[name]
    sizes = {k: v for k, v in _sizes(weights).items() if k in source.split()}
    return rearrange(tensor, f"{to_einops(stored)} -> {source}", **sizes)


def _zeros_like_place(name: str, weights: LayerWeights, axes: str) -> Tensor:
    matrix = {part: getattr(weights, "W" + part[1:]) for part in FUSED.get(name, (name,))}
    blank = weights.replace(**{part: tensor.new_zeros(tensor.shape[0]) for part, tensor in matrix.items()})
    whole = _gather(name, blank, axes)
    assert whole is not None
    return whole


def _gather(name: str, weights: LayerWeights, axes: str) -> Tensor | None:
    """Return the tensor to store, in its thought-of axes; for a fused place with the part in front."""
    if name in CANONICAL:
        return _thought(name, weights)
    parts = [_thought(part, weights) for part in FUSED[name]]
    if any(part is None for part in parts):
        return None
    if _even(parts):
        return torch.stack(parts)  # type: ignore[arg-type]
    return torch.cat([part.flatten(0, 1) for part in parts])  # type: ignore[union-attr]


def _even(parts: list[Any]) -> bool:
    return len({tuple(part.shape) for part in parts}) == 1


def _fused_source(name: str, axes: str, even: bool) -> tuple[str, dict[str, int]]:
    count = len(FUSED[name])
    tail = " d_model" if name.startswith("W") else ""
    if not even:
        return "rows" + tail, {}
    heads = "kv_heads" if "q" not in name and "kv_heads" in axes else "heads"
    width = "d_v" if "d_v" in axes and "d_k" not in axes else "d_k"
    return f"part {heads} {width}{tail}", {"part": count}


def _pattern(name: str, axes: str, even: bool) -> tuple[str, str]:
    """Return thought-of axes and stored axes for einops."""
    if name in CANONICAL:
        source = CANONICAL[name][0]
        if "heads" in axes.replace("kv_heads", "") and "kv_heads" in source:
            axes = axes.replace("heads", "kv_heads") if "kv_heads" not in axes else axes
        if "d_v" not in axes and "d_v" in source:
            axes = axes.replace("d_k", "d_v")
        return source, to_einops(axes)
    source, _ = _fused_source(name, axes, even)
    count = str(len(FUSED[name]))
    words = []
    for word in axes.split():
        factors = word.split("*")
        if count in factors:
            factors = ["part" if f == count else f for f in factors] if even else ["rows"]
        words.append("*".join(factors))
    return source, to_einops(" ".join(words))


def _store(
    target: Tensor,
    whole: Tensor,
    axes: str,
    sizes: Mapping[str, int],
    *,
    name: str,
    path: str,
    number: int | None,
) -> None:
    even = name in CANONICAL or whole.dim() == (4 if name.startswith("W") else 3)
    source, stored = _pattern(name, axes, even)
    if number is not None:
        head_axis = next(i for i, word in enumerate(source.split()) if word in ("heads", "kv_heads"))
        whole = whole.select(head_axis, number)
        source = " ".join(word for word in source.split() if word not in ("heads", "kv_heads"))
        stored = to_einops(" ".join(_without_heads(axes)))
    try:
        value = rearrange(whole, f"{source} -> {stored}")
    except Exception as error:
        raise DeclarationError(
            f"weights.{name}: axes {axes!r} do not describe it: {str(error).splitlines()[0]}"
        ) from None
    if value.shape != target.shape:
        raise DeclarationError(
            f"weights.{name}: {path} has shape {tuple(target.shape)};"
            f" axes {axes!r} would make it {tuple(value.shape)}"
        )
    target.copy_(value)


def _without_heads(axes: str) -> list[str]:
    words = []
    for word in axes.split():
        kept = [f for f in word.split("*") if f not in ("heads", "kv_heads")]
        if kept:
            words.append("*".join(kept))
    return words


def _scatter(
    name: str, stored: list[Tensor], axes: str, sizes: Mapping[str, int], like: LayerWeights, *, starred: bool
) -> dict[str, Tensor]:
    """Take stored tensors apart into canonical ones; the inverse of `_gather` and `_store`."""
    parts = FUSED.get(name, (name,))
    even = name in CANONICAL or len({tuple(_rows(p, like)) for p in parts}) == 1
    source, pattern = _pattern(name, axes, even)
    if starred:
        head_word = next(word for word in source.split() if word in ("heads", "kv_heads"))
        rest = " ".join(word for word in source.split() if word != head_word)
        pieces = [
            rearrange(t, f"{to_einops(' '.join(_without_heads(axes)))} -> {rest}", **_used(rest, sizes))
            for t in stored
        ]
        whole = torch.stack(pieces, dim=source.split().index(head_word))
    else:
        known = _used(source, {**sizes, "part": len(parts)})
        whole = rearrange(stored[0], f"{pattern} -> {source}", **known)
    if name in CANONICAL:
        return {name: rearrange(whole, f"{CANONICAL[name][0]} -> {to_einops(CANONICAL[name][1])}")}
    if even:
        return {p: whole[i].flatten(0, 1) for i, p in enumerate(parts)}
    counts = [_rows(p, like)[0] for p in parts]
    return dict(zip(parts, whole.split(counts), strict=True))


def _rows(name: str, like: LayerWeights) -> tuple[int, ...]:
    matrix = getattr(like, "W" + name[1:])
    return (matrix.shape[0],)


def _used(words: str, sizes: Mapping[str, int]) -> dict[str, int]:
    return {word: sizes[word] for word in words.split() if word in sizes}
