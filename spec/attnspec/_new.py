"""Skeletons: a file that runs, passes, and can be changed line by line."""

import keyword
from pathlib import Path

from ._errors import AttnspecError

CORE = '''"""{name}: an attention core of your own. Change it, then run: attnspec check {file}:{name}"""

import torch
from torch import Tensor


def {name}(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Attend with heads on axis 1, batch heads q_len d_k -> batch heads q_len d_v; True = may attend."""
    if mask is not None and (mask.dtype != torch.bool or mask.dim() not in (2, 4)):
        raise TypeError(f"mask must be boolean of rank 2 or 4; got {{mask.dtype}} of rank {{mask.dim()}}")
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = (query * factor) @ key.transpose(-2, -1)
    if causal:
        q_len, kv_len = scores.shape[-2:]
        past = torch.ones(q_len, kv_len, dtype=torch.bool, device=query.device).tril(kv_len - q_len)
        mask = past if mask is None else mask & past
    if mask is None:
        return scores.softmax(-1) @ value
    # A query that may attend to nothing gives zeros: keep its scores finite, and clear its weights.
    dead = ~mask.any(-1, keepdim=True)
    weights = scores.masked_fill(~(mask | dead), float("-inf")).softmax(-1).masked_fill(dead, 0.0)
    return weights @ value
'''

LAYER = '''"""{name}: an attention layer of your own. Change it, then run: attnspec check {file}:{name}"""

import torch
from torch import Tensor, nn


class {name}(nn.Module):
    """Self-attention from d_model to d_model: batch seq d_model -> batch seq d_model."""

    def __init__(self, d_model: int, heads: int) -> None:
        super().__init__()
        if d_model % heads:
            raise ValueError(f"d_model must be a multiple of heads; got d_model={{d_model}}, heads={{heads}}")
        self.heads = heads
        self.W_q = nn.Linear(d_model, d_model)
        self.W_k = nn.Linear(d_model, d_model)
        self.W_v = nn.Linear(d_model, d_model)
        self.W_o = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Attend; True in the mask (rank 2 or 4) means that a query may attend."""
        projections = (self.W_q, self.W_k, self.W_v)
        query, key, value = (w(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for w in projections)
        scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
        if causal:
            past = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).tril()
            mask = past if mask is None else mask & past
        if mask is None:
            weights = scores.softmax(-1)
        else:
            # A query that may attend to nothing gives zeros: keep its scores finite, and clear its weights.
            dead = ~mask.any(-1, keepdim=True)
            weights = scores.masked_fill(~(mask | dead), float("-inf")).softmax(-1).masked_fill(dead, 0.0)
        return self.W_o((weights @ value).transpose(1, 2).flatten(2))
'''

REGISTER = """

# To register it, so that `attnspec check {entry}` finds it by name, add an implementation record
#
#     from attnspec import Implementation
#     IMPLEMENTATION = Implementation(name="{entry}", contract="{kind}", target={name}, summary="One line.")
#
# and, in the pyproject.toml of your package, the entry point
#
#     [project.entry-points."attnspec.implementations"]
#     {entry} = "{entry}:IMPLEMENTATION"
"""


def write_skeleton(name: str, *, kind: str, folder: Path) -> tuple[Path, str]:
    """Write a skeleton and return its path and the target to check.

    Args:
        name: A Python name; a layer's class gets it in capitals.
        kind: `layer` or `core`.
        folder: Where to write.

    Raises:
        AttnspecError: If the name is not a Python name, the file exists, or it cannot be written.
    """
    entry = name.removesuffix(".py")
    if not entry.isidentifier() or keyword.iskeyword(entry):
        near = "".join(c if c.isalnum() else "_" for c in entry).strip("_")
        near = near if near.isidentifier() else "my_attention"
        raise AttnspecError(
            f"new: {name!r} is not a Python name; try {f'my_{near}' if keyword.iskeyword(near) else near}"
        )
    path = folder / f"{entry}.py"
    if path.exists():
        raise AttnspecError(f"new: {path} exists; choose another name or move it away")
    title = entry if kind == "core" else "".join(part[:1].upper() + part[1:] for part in entry.split("_"))
    text = (CORE if kind == "core" else LAYER) + REGISTER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(name=title, file=path, entry=entry, kind=kind), encoding="utf-8")
    except OSError as error:
        raise AttnspecError(f"new: cannot write {path}: {error.strerror}") from None
    return path, f"{path}:{title}"
