"""Where a module keeps its weights: candidates by name and shape, decided by an experiment."""

from collections.abc import Mapping
from itertools import product

from torch import Tensor, nn

from .._slots import FUSED
from .names import WEIGHT_NAMES

Places = dict[str, str]


def held_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return every tensor that could be a projection: parameters, and weights of layers in plain lists."""
    found: dict[str, Tensor] = dict(module.named_parameters())
    for name, value in vars(module).items():
        if isinstance(value, list | tuple) and value and all(isinstance(v, nn.Module) for v in value):
            for number, layer in enumerate(value):
                found.update({f"{name}.{number}.{n}": p for n, p in layer.named_parameters()})
        elif isinstance(value, Tensor) and value.dim() in (2, 3) and name not in found:
            found[name] = value
    return found


def _find(tensors: Mapping[str, Tensor], words: tuple[str, ...]) -> tuple[str, str | None] | None:
    """Return path and bias path of the outermost layer, or bare parameter, that has one of the names."""
    for word in words:
        ends = [path for path in tensors if path == f"{word}.weight" or path.endswith(f".{word}.weight")]
        if ends:
            path = min(ends, key=lambda p: p.count("."))
            bias = path.removesuffix("weight") + "bias"
            return path, bias if bias in tensors else None
        for bare in (word, f"{word}_weight"):
            if bare in tensors:
                stem = bare.removesuffix("_weight").removesuffix("weight")
                names = (
                    f"{word}_bias",
                    f"{stem}_bias",
                    f"{stem}bias",
                    f"b{word[1:]}" if word[:1] in "wW" else "",
                )
                return bare, next((b for b in names if b in tensors), None)
    return None


def _starred(tensors: Mapping[str, Tensor], words: tuple[str, ...]) -> tuple[str, str | None] | None:
    """Return the path, with a star for the head, where each head has a layer of its own."""
    for word in words:
        for path in tensors:
            parts = path.split(".")
            if len(parts) >= 3 and parts[-1] == "weight" and parts[-2] == word and parts[-3].isdigit():
                stem = ".".join((*parts[:-3], "*", word))
                return f"{stem}.weight", f"{stem}.bias" if ".".join(
                    (*parts[:-1], "bias")
                ) in tensors else None
            plural = (
                word,
                f"{word}s",
                f"{word}_heads",
                f"{word}_layers",
                f"{word}_projs",
                f"{word}_list",
                f"{word}_linears",
            )
            if len(parts) == 3 and parts[-1] == "weight" and parts[-2].isdigit() and parts[0] in plural:
                beside = [p for p in tensors if p.startswith(f"{parts[0]}.") and p.endswith(".weight")]
                if len(beside) == 1:  # one layer in a container, with what has no weights
                    bias = f"{parts[0]}.{parts[1]}.bias"
                    return path, bias if bias in tensors else None
                stem = f"{parts[0]}.*"
                return f"{stem}.weight", f"{stem}.bias" if f"{parts[0]}.{parts[1]}.bias" in tensors else None
    return None


def candidate_places(module: nn.Module, sizes: Mapping[str, int]) -> list[Places]:
    """Return every reading of where the weights are that names and shapes allow; the likeliest first.

    Args:
        module: Constructed with `sizes`, whose values all differ.
        sizes: `d_model`, `heads`, `kv_heads`, `d_k`, `d_v`.
    """
    readings = _readings(held_tensors(module), sizes)
    return [places for places in readings if _as_linear_stores(module, places)] or readings


def _as_linear_stores(module: nn.Module, places: Places) -> bool:
    """Return whether no weight of an `nn.Linear` is read as `in out`: it stores `out in`, always."""
    modules = dict(module.named_modules())
    for name, place in places.items():
        path, _, axes = (part.strip() for part in place.partition(":"))
        owner = modules.get(path.removesuffix(".weight")) if path.endswith(".weight") else None
        if (
            name.startswith("W_")
            and type(owner) is nn.Linear
            and axes
            and axes.startswith("d_model") != (name == "W_o")
        ):
            return False
    return True


def unnamed_places(module: nn.Module, sizes: Mapping[str, int], *, limit: int = 240) -> list[Places]:
    """Return readings by shape alone, for names that are not known; an experiment must single one out."""
    tensors = {
        path: t
        for path, t in held_tensors(module).items()
        if t.dim() in (2, 3) and "norm" not in path.lower()
    }
    ways = {
        role: [
            (path, axes)
            for path, t in tensors.items()
            for axes in AXES[role][:3]
            if shape_of(axes, sizes) == tuple(t.shape)
        ]
        for role in AXES
    }
    found: list[Places] = []
    for roles in (("q", "k", "v", "o"), ("qkv", "o"), ("q", "kv", "o")):
        for combination in product(*(ways[role] for role in roles)):
            paths = [path for path, _ in combination]
            styles = {
                axes.startswith("d_model")
                for role, (_, axes) in zip(roles, combination, strict=True)
                if role != "o"
            }
            if len(set(paths)) < len(paths) or len(styles) > 1 or len(paths) < len(tensors):
                continue
            places: Places = {}
            for role, (path, axes) in zip(roles, combination, strict=True):
                bias = path.removesuffix("weight") + "bias"
                held = bias if path.endswith("weight") and bias in dict(module.named_parameters()) else None
                places |= {f"W_{role}": f"{path} : {axes}", **bias_place(role, held, axes)}
            found.append(places)
    return found[:limit]


def roles_by_name(tensors: Mapping[str, Tensor]) -> set[str]:
    """Return the roles (`q`, `k`, `v`, `o`, `qkv`, `kv`) that some tensor has the name of."""
    return {role for role, words in WEIGHT_NAMES.items() if _find(tensors, words) or _starred(tensors, words)}


def _readings(tensors: Mapping[str, Tensor], sizes: Mapping[str, int]) -> list[Places]:
    found = {role: _find(tensors, words) for role, words in WEIGHT_NAMES.items()}
    per_head = {role: _starred(tensors, WEIGHT_NAMES[role]) for role in ("q", "k", "v")}
    if all(per_head.values()):
        found |= per_head
    options: list[list[Places]] = []
    if found["q"] and found["k"] and found["v"]:
        options += [_role(tensors, found[role], role, sizes) for role in ("q", "k", "v")]
    elif found["q"] and found["kv"]:
        options += [_role(tensors, found["q"], "q", sizes), _role(tensors, found["kv"], "kv", sizes)]
    elif found["qkv"]:
        options.append(_role(tensors, found["qkv"], "qkv", sizes))
    else:
        return []
    taken = {path for role in ("q", "k", "v", "kv", "qkv") if found[role] for path in found[role][:1]}  # type: ignore[index]
    if found["o"] and found["o"][0] not in taken:
        options.append(_role(tensors, found["o"], "o", sizes))
    if not all(options):
        return []
    beside = _biases_beside(tensors, sizes)
    # One way of storing for all of q, k and v together: mixtures are not a convention.
    merged: list[Places] = []
    for combination in product(*options):
        styles = {
            place.partition(":")[2].strip().startswith("d_model")
            for p in combination
            for n, place in p.items()
            if n in ("W_q", "W_k", "W_v")
        }
        if len(styles) <= 1:
            places = {name: place for part in combination for name, place in part.items()}
            fused = {n for name in places for n in FUSED.get(name, ()) if name.startswith("b_")}
            merged.append({**{n: p for n, p in beside.items() if n not in fused}, **places})
    return merged


BIAS_NAMES = {"q": ("q_bias", "query_bias"), "k": ("k_bias", "key_bias"), "v": ("v_bias", "value_bias")}


def _biases_beside(tensors: Mapping[str, Tensor], sizes: Mapping[str, int]) -> Places:
    """Return biases that are parameters of their own beside the projections, as BEiT keeps them."""
    found: Places = {}
    for role, words in BIAS_NAMES.items():
        heads, width = ("heads", "d_k") if role == "q" else ("kv_heads", "d_v" if role == "v" else "d_k")
        for path, tensor in tensors.items():
            if path.rpartition(".")[2] in words:
                for axes in (f"{heads}*{width}", f"{heads} {width}"):
                    if shape_of(axes, sizes) == tuple(tensor.shape):
                        found[f"b_{role}"] = f"{path} : {axes}"
    return found


AXES: dict[str, tuple[str, ...]] = {
    "q": (
        "heads*d_k d_model",
        "d_model heads*d_k",
        "heads d_model d_k",
        "heads d_k d_model",
        "d_model heads d_k",
    ),
    "k": (
        "kv_heads*d_k d_model",
        "d_model kv_heads*d_k",
        "kv_heads d_model d_k",
        "kv_heads d_k d_model",
        "d_model kv_heads d_k",
    ),
    "v": (
        "kv_heads*d_v d_model",
        "d_model kv_heads*d_v",
        "kv_heads d_model d_v",
        "kv_heads d_v d_model",
        "d_model kv_heads d_v",
    ),
    "o": ("d_model heads*d_v", "heads*d_v d_model", "heads d_v d_model", "d_model heads d_v"),
    "qkv": (
        "3*heads*d_k d_model",
        "heads*3*d_k d_model",
        "d_model 3*heads*d_k",
        "d_model heads*3*d_k",
        "3 heads d_k d_model",
        "3 heads d_model d_k",
        "heads*d_k*3 d_model",
        "3 d_model heads*d_k",
        "3 heads*d_k d_model",
    ),
    "kv": (
        "2*kv_heads*d_k d_model",
        "kv_heads*2*d_k d_model",
        "d_model 2*kv_heads*d_k",
        "d_model kv_heads*2*d_k",
    ),
}


def shape_of(axes: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape that axes would have."""
    fused = {"3*heads*d_k": (sizes["heads"] + 2 * sizes["kv_heads"]) * sizes["d_k"]}
    shape = []
    for word in axes.split():
        if word in fused:
            shape.append(fused[word])
            continue
        size = 1
        for factor in word.split("*"):
            size *= int(factor) if factor.isdigit() else sizes[factor]
        shape.append(size)
    return tuple(shape)


def _role(
    tensors: Mapping[str, Tensor], found: tuple[str, str | None] | None, role: str, sizes: Mapping[str, int]
) -> list[Places]:
    """Return the ways in which one place can hold one role."""
    assert found is not None
    path, bias = found
    biased = {f"b_{role}": bias} if bias else {}
    if "*" in path:
        axes = "d_v d_model" if role == "v" else "d_model d_v" if role == "o" else "d_k d_model"
        return [{f"W_{role}": f"{path} : {axes}", **biased}]
    shape = tuple(tensors[path].shape)
    ways = [axes for axes in AXES[role] if shape_of(axes, sizes) == shape]
    shaped = bias is not None and tensors[bias].dim() > 1
    return [{f"W_{role}": f"{path} : {axes}", **bias_place(role, bias, axes, shaped=shaped)} for axes in ways]


def bias_place(role: str, bias: str | None, axes: str, *, shaped: bool = False) -> Places:
    """Return the place of a bias, stored as the rows of its matrix are; none is no place."""
    if bias is None:
        return {}
    if len(role) == 1 and not shaped:
        return {f"b_{role}": bias}
    kept = [word for word in axes.split() if word != "d_model"]
    return {f"b_{role}": f"{bias} : {' '.join(kept)}"}
