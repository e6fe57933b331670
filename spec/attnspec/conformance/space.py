"""What a subject can be asked: the part of all cases that it declares, or was found, to support."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from .._inputs import Alignment
from .cases import Case

ALL_DTYPES = ("float32", "float64", "bfloat16", "float16")


# A core inside a layer of one input is called through a matrix as wide as there are positions: beyond so many
# the layer itself is called, with a width of its own.
EMBEDDED = 400


@dataclass(frozen=True, kw_only=True)
class Space:
    """The cases that one subject can express.

    Attributes:
        contract: Which contract the subject is held to.
        dtypes: Those in which a plain call runs.
        features: Names of what it supports: `mask`, `bias`, `window`, `softcap`, `scale`, `dropout`,
            `weights` (it returns them), `grouped`, `cross` (lengths may differ), `value_width`
            (`d_v` may differ from `d_k`), `parameters` (a layer whose weights can be set).
        causal: Whether causality is a flag, always on, or not there.
        alignment: Its causal alignment when lengths differ.
        mask_axes: On which axes its mask can vary, as a word of `b`, `h`, `q`, `k`.
        mask_ranks: Ranks that it takes.
        sources: For a layer: where keys and values may come from.
        embedded: The core is reached through one-hot inputs, so `batch * length <= heads * d_k`.
        separable: Key and value heads may have widths and heads of their own choosing.
        max_len: The longest sequence, where a buffer limits it.
        layouts: Memory layouts that reach the subject unchanged.
        biases: Whether its projections can have, or be without, a bias.
        fixed: Sizes of an instance that is already built.
        even_widths: Widths must be even, as halves of a rotation are.
        apart: Pairs of options that are refused together; the second gives way.
    """

    contract: Literal["core", "layer", "cached"] = "core"
    dtypes: tuple[str, ...] = ALL_DTYPES
    features: frozenset[str] = field(default_factory=frozenset)
    causal: Literal["flag", "always", "never"] = "never"
    alignment: Alignment = "lower_right"
    mask_axes: str = "bhqk"
    mask_ranks: tuple[int, ...] = (4, 2)
    sources: tuple[str, ...] = ("self",)
    embedded: bool = False
    max_len: int | None = None
    layouts: tuple[str, ...] = ("contiguous", "transposed", "sliced", "every_other", "last_two")
    biases: tuple[bool, ...] = (True, False)
    fixed: Mapping[str, int] = field(default_factory=dict)
    even_widths: bool = False
    apart: tuple[tuple[str, str], ...] = ()

    def has(self, feature: str) -> bool:
        """Return whether the subject supports a feature."""
        if feature == "causal":
            return self.causal != "never"
        if feature == "causal_flag":
            return self.causal == "flag"
        if feature == "bidirectional":
            return self.causal != "always"
        if feature in ALL_DTYPES:
            return feature in self.dtypes
        if feature.startswith("mask_") and len(feature) == 6:
            return "mask" in self.features and feature[-1] in self.mask_axes
        return feature in self.features

    def fit(self, case: Case) -> Case | None:
        """Return the case changed as little as possible to be expressed; None if it cannot be."""
        changes: dict[str, object] = {}
        heads, kv_heads = case.heads, case.kv_heads if self.has("grouped") else case.heads
        heads, kv_heads = self.fixed.get("heads", heads), self.fixed.get("kv_heads", kv_heads)
        q_len, kv_len = case.q_len, case.kv_len
        sources = case.sources if case.sources in self.sources else self.sources[0]
        if not self.has("cross") or (self.contract != "core" and not self.embedded and sources == "self"):
            q_len = kv_len = max(q_len, kv_len) if min(q_len, kv_len) else 0
        if self.max_len is not None:
            q_len, kv_len = min(q_len, self.max_len), min(kv_len, self.max_len)
        d_k, d_v = self._widths(case)
        if self.embedded and self.fixed:
            room = heads * d_k // max(case.batch, 1)
            if room == 0:
                return None
            q_len, kv_len = min(q_len, room), min(kv_len, room)
        elif self.embedded:
            if case.batch * max(q_len, kv_len) > EMBEDDED:
                return None
            d_k = max(d_k, -(-case.batch * max(q_len, kv_len, 1) // heads))
            d_k += d_k % 2 if self.even_widths else 0
            d_v = d_k if d_v == case.d_k or not self.has("value_width") else d_v
        if case.mask is not None:
            axes = "".join(a for a in case.mask_axes if a in self.mask_axes)
            rank = case.mask_rank if case.mask_rank in self.mask_ranks else self.mask_ranks[0]
            changes |= {
                "mask_axes": "".join(a for a in axes if a in "qk") if rank == 2 else axes,
                "mask_rank": rank,
            }
        if self.causal == "always":
            changes["causal"] = True
        elif self.causal == "never":
            changes["causal"] = False
        for first, second in self.apart:
            if getattr(case, first) not in (None, False) and getattr(case, second) not in (None, False):
                changes[second] = False if second == "causal" else None
        if case.projection_bias not in self.biases:
            changes["projection_bias"] = self.biases[0]
        if case.layout not in self.layouts:
            changes["layout"] = self.layouts[0]
        fitted = case.replace(
            heads=heads, kv_heads=kv_heads, q_len=q_len, kv_len=kv_len, d_k=d_k, d_v=d_v,
            sources=sources, alignment=self.alignment, **changes,
        )  # fmt: skip
        missing = [
            f
            for f in ("mask", "bias", "window", "softcap", "scale")
            if getattr(fitted, f) is not None and not self.has(f)
        ]
        return None if missing or fitted.dtype not in self.dtypes else fitted

    def _widths(self, case: Case) -> tuple[int, int]:
        """Return the widths of heads that the subject can have."""
        d_k = self.fixed.get("d_k", case.d_k)
        if self.even_widths:
            d_k += d_k % 2
        return d_k, case.d_v if self.has("value_width") and not self.fixed else d_k
