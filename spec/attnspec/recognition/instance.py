"""The sizes of a layer that is constructed already."""

from typing import Any

from torch import nn

from .._errors import TargetError
from ..declaration import Declaration
from .names import NEW_NAMES, PER_HEAD, match_sizes


def fixed_sizes(module: nn.Module, declared: Declaration) -> dict[str, int]:
    """Return the sizes of an instance, read from its attributes (and those of its config).

    Raises:
        TargetError: If its number of heads is not there.
    """
    holders = [module, getattr(module, "config", None), getattr(module, "self", None), *module.children()]
    found: dict[str, int] = {}
    for holder in holders:
        if holder is None:
            continue
        held = {
            n: v
            for n, v in {**vars(holder), **_public(holder)}.items()
            if isinstance(v, int) and not isinstance(v, bool)
        }
        for meaning, name in match_sizes(held).items():
            if meaning in ("d_model", "heads", "kv_heads", "d_k") and not isinstance(holder, nn.Linear):
                found.setdefault(meaning, held[name])
    lists = [inner for inner in module.children() if isinstance(inner, nn.ModuleList) and len(inner) > 1]
    if "heads" not in found and len(lists) == 1 and is_list_of_heads(lists[0]):
        found["heads"], found["d_k"] = len(lists[0]), next(lists[0].parameters()).shape[0]
    found |= dict(declared.sizes)
    if "heads" not in found:
        width = next((p.shape[-1] for p in module.parameters() if p.dim() >= 2), 0)
        example = next((n for n in (8, 4, 3, 2) if width % n == 0), 1)
        raise TargetError(
            f"an instance of {type(module).__name__} must say its number of heads: "
            f"--declare sizes.heads={example}"
        )
    if "d_model" not in found:
        widths = [p.shape[-1] for _, p in module.named_parameters() if p.dim() >= 2]
        found["d_model"] = found["heads"] * found["d_k"] if "d_k" in found else widths[0]
    found.setdefault("kv_heads", found["heads"])
    found.setdefault("d_k", found["d_model"] // found["heads"])
    return {name: found[name] for name in ("d_model", "heads", "kv_heads", "d_k")}


def is_list_of_heads(inner: nn.ModuleList) -> bool:
    """Return whether each member of a list holds query, key and value projections of one head."""
    shapes = [[tuple(p.shape) for p in member.parameters() if p.dim() == 2] for member in inner]
    return len(shapes[0]) == 3 and all(s == shapes[0] for s in shapes) and len(set(shapes[0])) == 1


def _public(holder: Any) -> dict[str, Any]:
    names = (n for table in (NEW_NAMES, PER_HEAD) for words in table.values() for n in words)
    if type(holder).__module__.startswith("torch.nn.modules.linear"):
        return {}
    values = {}
    for name in names:
        try:
            values[name] = getattr(holder, name)
        except Exception:
            continue
    return values
