"""Wrong cores and layers as people write them: one right text each, and a small edit for every mistake.

Nothing here shares code with the bank of fingerprints; everything computes in the dtype it is given.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from attnspec.conformance.layer_subject import LayerSubject
from attnspec.conformance.space import Space
from attnspec.conformance.subject import CoreSubject
from attnspec.declaration import Declaration

CORE = """
def attention(q, k, v, mask=None, bias=None, causal=False, window=None, softcap=None, scale=None):
    B, H, T, D = q.shape
    G, S = k.shape[1], k.shape[2]
    k = k.repeat_interleave(H // G, dim=1)
    v = v.repeat_interleave(H // G, dim=1)
    if scale is None:
        scale = 1 / math.sqrt(D)
    att = torch.einsum("bhtd,bhsd->bhts", q, k) * scale
    if softcap is not None:
        att = softcap * torch.tanh(att / softcap)
    if bias is not None:
        att = att + bias
    shift = S - T
    ok = torch.ones(T, S, dtype=torch.bool)
    if causal:
        ok = ok.tril(shift)
    if window is not None:
        gap = torch.arange(S) - torch.arange(T)[:, None] - shift
        if window[0] >= 0:
            ok = ok & (gap >= -window[0])
        if window[1] >= 0:
            ok = ok & (gap <= window[1])
    if mask is not None:
        ok = ok & mask
    att = att.masked_fill(~ok, float("-inf"))
    w = att.softmax(dim=-1)
    w = w.masked_fill(~ok.any(-1, keepdim=True), 0)
    y = torch.einsum("bhts,bhsd->bhtd", w, v)
    return y
"""

LAYER = """
class Attention(nn.Module):
    def __init__(self, d_model, heads, kv_heads):
        super().__init__()
        self.h, self.g, self.d = heads, kv_heads, d_model // heads
        self.wq = nn.Linear(d_model, heads * self.d)
        self.wk = nn.Linear(d_model, kv_heads * self.d)
        self.wv = nn.Linear(d_model, kv_heads * self.d)
        self.wo = nn.Linear(d_model, d_model)
        self.p = 0.0

    def forward(self, x, memory=None, values=None, mask=None, causal=False):
        src = x if memory is None else memory
        val = src if values is None else values
        b, t, c = x.shape
        s = src.shape[1]
        q = self.wq(x)
        k = self.wk(src)
        v = self.wv(val)
        q = q.view(b, t, self.h, self.d).transpose(1, 2)
        k = k.view(b, s, self.g, self.d).transpose(1, 2)
        v = v.view(b, s, self.g, self.d).transpose(1, 2)
        k = k.repeat_interleave(self.h // self.g, 1)
        v = v.repeat_interleave(self.h // self.g, 1)
        a = q @ k.transpose(-2, -1) / self.d**0.5
        keep = torch.ones(b, 1, t, s, dtype=torch.bool)
        if mask is not None:
            keep = keep & mask
        if causal:
            keep = keep & torch.tril(torch.ones(t, s, dtype=torch.bool), s - t)
        a = a.masked_fill(~keep, -torch.inf)
        a = torch.where(keep.any(-1, keepdim=True), torch.softmax(a, -1), torch.zeros_like(a))
        o = a @ v
        o = o.transpose(1, 2).reshape(b, t, c)
        return self.wo(o)
"""

FUSED = """
class Fused(nn.Module):
    def __init__(self, d_model, heads):
        super().__init__()
        self.h = heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.proj = nn.Linear(d_model, d_model)

    def forward(self, x, mask=None, causal=False):
        B, T, C = x.shape
        q, k, v = self.qkv(x).reshape(B, T, 3, self.h, C // self.h).permute(2, 0, 3, 1, 4)
        keep = None
        if causal:
            keep = torch.ones(T, T, dtype=torch.bool).tril()
        if mask is not None:
            keep = mask if keep is None else keep & mask
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        return self.proj(y.transpose(1, 2).reshape(B, T, C))
"""

FLASH = """
def flash(q, k, v, mask=None, causal=False):
    B, H, T, D = q.shape
    S, N = k.shape[2], 16
    out = torch.zeros(B, H, T, v.shape[-1], dtype=q.dtype)
    total = torch.zeros(B, H, T, 1, dtype=q.dtype)
    top = torch.full((B, H, T, 1), -torch.inf, dtype=q.dtype)
    keep = torch.ones(B, 1, T, S, dtype=torch.bool)
    if mask is not None:
        keep = keep & mask
    if causal:
        keep = keep & torch.ones(T, S, dtype=torch.bool).tril(S - T)
    for j in range(0, S, N):
        s = q @ k[:, :, j : j + N].mT / math.sqrt(D)
        s = s.masked_fill(~keep[..., j : j + N], -torch.inf)
        new = torch.maximum(top, s.amax(-1, keepdim=True))
        safe = new.masked_fill(new == -torch.inf, 0)
        p = torch.exp(s - safe)
        old = torch.exp(top - safe)
        total = total * old + p.sum(-1, keepdim=True)
        out = out * old + p @ v[:, :, j : j + N]
        top = new
    return out / total.masked_fill(total == 0, 1)
"""

TEXTS = {"core": CORE, "layer": LAYER, "fused": FUSED, "flash": FLASH}


@dataclass(frozen=True)
class Wrong:
    """One edit of a right text.

    Attributes:
        expected: Names of the fingerprint that it is, any of them; empty where the bank has none.
        text: Which right text.
        edits: Old and new lines.
        case: The features that must be there for it to fail.
    """

    expected: tuple[str, ...]
    text: str
    edits: tuple[tuple[str, str], ...]
    case: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return (
            f"{self.text}:{self.expected[0] if self.expected else 'unknown'}:{self.edits[0][1].strip()[:40]}"
        )


def build(text: str, edits: tuple[tuple[str, str], ...] = ()) -> Any:
    source = TEXTS[text]
    for old, new in edits:
        assert old in source, old
        source = source.replace(old, new)
    namespace: dict[str, Any] = {"torch": torch, "nn": nn, "F": F, "math": math}
    exec(compile(source, f"<{text}>", "exec"), namespace)
    return _SUBJECTS[text](namespace)


def _core(namespace: dict[str, Any]) -> CoreSubject:
    names = {"query": "q", "key": "k", "value": "v"} | {
        n: n for n in ("mask", "bias", "causal", "window", "softcap", "scale")
    }
    features = {"mask", "bias", "window", "softcap", "scale", "grouped", "cross", "value_width"}
    space = Space(contract="core", features=frozenset(features), causal="flag")
    declared = Declaration(contract="core", arguments=names, mask="attend", causal="flag")
    return CoreSubject(namespace["attention"], declared, {}, space, name="core")


def _flash(namespace: dict[str, Any]) -> CoreSubject:
    names = {"query": "q", "key": "k", "value": "v", "mask": "mask", "causal": "causal"}
    space = Space(contract="core", features=frozenset({"mask", "cross"}), causal="flag")
    declared = Declaration(contract="core", arguments=names, mask="attend", causal="flag")
    return CoreSubject(namespace["flash"], declared, {}, space, name="flash")


def _layer(namespace: dict[str, Any]) -> LayerSubject:
    weights = {f"{k}_{n}": f"w{n}.{'weight' if k == 'W' else 'bias'}" for n in "qkvo" for k in "Wb"}
    names = {"query": "x", "key": "memory", "value": "values", "mask": "mask", "causal": "causal"}
    declared = Declaration(
        contract="layer",
        new="Attention(d_model, heads, kv_heads)",
        arguments=names,
        weights=weights,
        mask="attend",
        causal="flag",
    )
    features = frozenset({"mask", "grouped", "cross", "parameters"})
    space = Space(
        contract="layer",
        features=features,
        causal="flag",
        sources=("self", "memory", "separate"),
        biases=(True,),
    )
    return LayerSubject(declared, namespace, space, name="layer")


def _fused(namespace: dict[str, Any]) -> LayerSubject:
    weights = {
        "W_qkv": "qkv.weight : 3*heads*d_k d_model", "b_qkv": "qkv.bias : "
        "3*heads*d_k", "W_o": "proj.weight", "b_o": "proj.bias",
    }  # fmt: skip
    declared = Declaration(
        contract="layer",
        new="Fused(d_model, heads)",
        arguments={"query": "x", "mask": "mask", "causal": "causal"},
        weights=weights,
        mask="attend",
        causal="flag",
    )
    space = Space(contract="layer", features=frozenset({"mask", "parameters"}), causal="flag", biases=(True,))
    return LayerSubject(declared, namespace, space, name="fused")


_SUBJECTS = {"core": _core, "flash": _flash, "layer": _layer, "fused": _fused}

M, C, MC = {"mask": "random"}, {"causal": True}, {"mask": "random", "causal": True}
W, G = {"window": (2, 1)}, {"heads": 4, "kv_heads": 2}
DEAD = {"mask": "dead"}


def _w(
    expected: str, text: str, old: str, new: str, case: dict[str, Any] | None = None, *more: tuple[str, str]
) -> Wrong:
    return Wrong(tuple(expected.split()), text, ((old, new), *more), case or {})


_FILL = 'att = att.masked_fill(~ok, float("-inf"))'
_DEADROW = "w = w.masked_fill(~ok.any(-1, keepdim=True), 0)"
_OKMASK = "ok = ok & mask"
_SM = "w = att.softmax(dim=-1)"
_SCALE = "scale = 1 / math.sqrt(D)"
_AV = 'y = torch.einsum("bhts,bhsd->bhtd", w, v)'
_LEFT, _RIGHT = "(gap >= -window[0])", "(gap <= window[1])"
_REPK, _REPV = "k = k.repeat_interleave(H // G, dim=1)", "v = v.repeat_interleave(H // G, dim=1)"
_TANH = "softcap * torch.tanh(att / softcap)"
_Q = "q.view(b, t, self.h, self.d).transpose(1, 2)"
_K = "k.view(b, s, self.g, self.d).transpose(1, 2)"
_V = "v.view(b, s, self.g, self.d).transpose(1, 2)"
_MERGE = "o.transpose(1, 2).reshape(b, t, c)"
_KEEPM = "keep = keep & mask"
_TRIL = "ok = ok.tril(shift)"
_TAIL = "p = torch.exp(s - safe)"

WRONG: tuple[Wrong, ...] = (
    # masks
    _w("mask.inverted", "core", _OKMASK, "ok = ok & ~mask", M),
    _w("mask.inverted", "core", _OKMASK, "ok = ok & (mask == 0)", MC),
    _w("mask.inverted", "layer", _KEEPM, "keep = keep.masked_fill(mask, False)", M),
    _w("mask.inverted", "fused", "keep = mask if keep is None", "keep = ~mask if keep is None", M),
    _w("mask.ignored", "core", _OKMASK, "ok & mask", M),
    _w("mask.ignored_with_causal", "core", "if mask is not None:", "if mask is not None and not causal:", MC),
    _w(
        "mask.ignored_with_causal",
        "fused",
        "keep = mask if keep is None else keep & mask",
        "keep = mask if keep is None else keep",
        MC,
    ),
    _w(
        "mask.or_causal",
        "layer",
        _KEEPM,
        "keep = keep & mask if not causal else keep",
        MC,
        (
            "keep = keep & torch.tril(torch.ones(t, s, dtype=torch.bool), s - t)",
            "low = torch.ones(t, s).tril(s - t) > 0; keep = keep & low if mask is None else mask | low",
        ),
    ),
    _w("mask.added", "core", _OKMASK, "att = att + mask", M),
    _w("mask.multiplied", "core", _OKMASK, "att = att * mask", M),
    _w("mask.after_softmax", "core", _AV, "y = (w if mask is None else w * mask) @ v", M, (_OKMASK, "pass")),
    _w(
        "mask.after_softmax",
        "core",
        _AV,
        "y = (w if mask is None else w.masked_fill(~mask, 0)) @ v",
        MC,
        (_OKMASK, "pass"),
    ),
    _w("mask.transposed", "core", _OKMASK, "ok = ok & mask.transpose(-1, -2)", M),
    _w(
        "mask.query_axis",
        "core",
        _OKMASK,
        "ok = ok & (mask.transpose(-1, -2) if mask.shape[-2] == 1 else mask)",
        {**M, "mask_axes": "bk"},
    ),
    _w(
        "mask.query_axis",
        "core",
        _OKMASK,
        "ok = ok & (mask.transpose(-1, -2) if mask.shape[-2] == 1 else mask)",
        {**M, "mask_axes": "bk"},
        (_FILL, "att = att.masked_fill(~ok, -1e9)"),
        (_DEADROW, "pass"),
    ),
    _w(
        "mask.other_sample",
        "core",
        _OKMASK,
        "ok = ok & mask.expand(B, 1, T, S).squeeze(1).repeat(H, 1, 1).reshape(B, H, T, S)",
        {**M, "mask_axes": "bqk"},
    ),
    _w("mask.first_sample", "core", _OKMASK, "ok = ok & mask[0]", {**M, "mask_axes": "bk"}),
    _w("mask.first_head", "core", _OKMASK, "ok = ok & mask[:, 0].unsqueeze(1)", {**M, "mask_axes": "bhqk"}),
    _w(
        "mask.first_row",
        "core",
        _OKMASK,
        "ok = ok & mask[..., 0, :].unsqueeze(-2)",
        {**M, "mask_axes": "bqk"},
    ),
    # rows that see nothing
    _w("dead_row.finite_fill", "core", _FILL, "att = att.masked_fill(~ok, -1e9)", DEAD, (_DEADROW, "pass")),
    _w(
        "dead_row.finite_fill",
        "core",
        _FILL,
        "att = torch.where(ok, att, torch.finfo(att.dtype).min)",
        DEAD,
        (_DEADROW, "pass"),
    ),
    _w("dead_row.small_fill", "core", _FILL, "att = att + (~ok) * -1e4", DEAD, (_DEADROW, "pass")),
    _w(
        "dead_row.finite_fill",
        "layer",
        "a = a.masked_fill(~keep, -torch.inf)",
        "a = a + (1.0 - keep.to(a.dtype)) * -1e9",
        DEAD,
        (
            "torch.where(keep.any(-1, keepdim=True), torch.softmax(a, -1), torch.zeros_like(a))",
            "torch.softmax(a, -1)",
        ),
    ),
    _w("dead_row.nan", "core", _DEADROW, "pass", DEAD),
    _w(
        "dead_row.nan",
        "layer",
        "torch.where(keep.any(-1, keepdim=True), torch.softmax(a, -1), torch.zeros_like(a))",
        "F.softmax(a, dim=-1)",
        DEAD,
    ),
    # causality and windows
    _w("causal.ignored", "core", _TRIL, "ok.tril(shift)", C),
    _w("causal.ignored_with_mask", "core", "if causal:", "if causal and mask is None:", MC),
    _w(
        "causal.ignored_with_mask", "fused", "keep = mask if keep is None else keep & mask", "keep = mask", MC
    ),
    _w("causal.ignored_without_mask", "layer", "if causal:", "if causal and mask is not None:", C),
    _w("causal.sees_ahead", "core", _TRIL, "ok = ok.tril(shift + 1)", C),
    _w("causal.not_itself", "core", _TRIL, "ok = ok.tril(shift - 1)", C),
    _w(
        "causal.not_itself",
        "layer",
        "torch.tril(torch.ones(t, s, dtype=torch.bool), s - t)",
        "~torch.triu(torch.ones(t, s, dtype=torch.bool), s - t)",
        C,
    ),
    _w("causal.anti", "core", _TRIL, "ok = ok.triu(shift)", C),
    _w(
        "causal.inverted",
        "fused",
        "torch.ones(T, T, dtype=torch.bool).tril()",
        "torch.ones(T, T, dtype=torch.bool).triu(1)",
        C,
    ),
    _w("causal.upper_left", "core", _TRIL, "ok = ok.tril()", {**C, "q_len": 4, "kv_len": 7}),
    _w("causal.upper_left", "layer", ", s - t)", ")", {**C, "q_len": 4, "kv_len": 7, "sources": "memory"}),
    _w("causal.after_softmax", "core", _AV, "y = (w.tril(shift) if causal else w) @ v", C, (_TRIL, "pass")),
    _w("causal.multiplied", "core", _TRIL, "att = att.tril(shift)", C),
    _w("causal.always", "core", "if causal:", "if True:"),
    _w("window.ignored", "core", "if window is not None:", "if False:", W),
    _w("window.left_short", "core", _LEFT, "(gap > -window[0])", W),
    _w("window.left_long", "core", _LEFT, "(gap >= -window[0] - 1)", W),
    _w("window.right_short", "core", _RIGHT, "(gap < window[1])", {"window": (1, 2)}),
    _w("window.right_long", "core", _RIGHT, "(gap <= window[1] + 1)", W),
    _w(
        "window.both_short",
        "core",
        _LEFT,
        "(gap > -window[0])",
        {"window": (2, 2)},
        (_RIGHT, "(gap < window[1])"),
    ),
    _w("window.swapped", "core", _LEFT, "(gap >= -window[1])", W, (_RIGHT, "(gap <= window[0])")),
    _w("window.symmetric", "core", _RIGHT, "(gap <= window[0])", W),
    _w("window.right_ignored", "core", _RIGHT, "(gap <= S)", W),
    # scale, softcap, bias
    _w("scale.missing", "core", " * scale", ""),
    _w("scale.missing", "layer", " / self.d**0.5", ""),
    _w("scale.default_missing", "core", _SCALE, "scale = 1.0"),
    _w("scale.d_model", "core", _SCALE, "scale = (H * D) ** -0.5"),
    _w("scale.d_model", "layer", "self.d**0.5", "c**0.5"),
    _w("scale.heads", "core", _SCALE, "scale = H ** -0.5"),
    _w("scale.d_k", "core", _SCALE, "scale = 1 / D"),
    _w("scale.twice scale.d_k", "core", "att = torch", "q = q * scale\n    att = torch"),
    _w("scale.d_k", "layer", "self.d**0.5", "self.d"),
    _w("scale.multiplied", "core", _SCALE, "scale = math.sqrt(D)"),
    _w("scale.kv_len", "core", _SCALE, "scale = S ** -0.5"),
    _w("scale.d_v", "core", _SCALE, "scale = v.shape[-1] ** -0.5", {"d_k": 4, "d_v": 7}),
    _w("scale.explicit_ignored", "core", "if scale is None:", "if True:", {"scale": 0.3}),
    _w("scale.zero_as_default", "core", "if scale is None:", "if not scale:", {"scale": 0.0}),
    _w(
        "scale.on_top",
        "core",
        "* scale",
        "/ math.sqrt(D) * (scale if scale0 else 1.0)",
        {"scale": 0.3},
        ("if scale is None:", "scale0 = scale is not None\n    if scale is None:"),
    ),
    _w("scale.bias_too", "core", "att = att + bias", "att = (att / scale + bias) * scale", {"bias": "bhqk"}),
    _w("bias.ignored", "core", "att = att + bias", "att + bias", {"bias": "hqk"}),
    _w("bias.subtracted", "core", "att + bias", "att - bias", {"bias": "bhqk"}),
    _w("softcap.missing", "core", _TANH, "att", {"softcap": 1.5}),
    _w("softcap.formula", "core", _TANH, "att * torch.tanh(att / softcap)", {"softcap": 1.5}),
    _w("softcap.unscaled", "core", _TANH, "torch.tanh(att / softcap)", {"softcap": 1.5}),
    _w(
        "softcap.after_mask",
        "core",
        _FILL,
        _FILL + "\n    att = att if softcap is None else softcap * torch.tanh(att / softcap)",
        {"softcap": 1.5, **M},
        (f"att = {_TANH}\n", "pass\n"),
    ),
    # softmax and blocks
    _w("softmax.queries", "core", _SM, "w = att.softmax(dim=-2)"),
    _w("softmax.queries", "layer", "torch.softmax(a, -1)", "torch.softmax(a, 2)"),
    _w("softmax.heads", "core", _SM, "w = att.softmax(dim=1)"),
    _w("softmax.batch", "layer", "torch.softmax(a, -1)", "torch.softmax(a, 0)"),
    _w(
        "softmax.heads_and_keys",
        "core",
        _SM,
        "w = att.permute(0, 2, 1, 3).reshape(B, T, -1).softmax(-1).view(B, T, H, S).transpose(1, 2)",
    ),
    _w(
        "softmax.overflow softmax.overflow_divided_last",
        "core",
        _SM,
        "e = att.exp()\n    w = e / e.sum(-1, keepdim=True)",
        {"values": "scaled"},
    ),
    _w(
        "softmax.overflow softmax.overflow_divided_last",
        "core",
        _SM,
        "w = att.exp()",
        {"values": "scaled"},
        (_AV, "y = torch.matmul(w, v) / w.sum(dim=3, keepdim=True)"),
    ),
    _w("softmax.sigmoid", "core", _SM, "w = att.sigmoid()"),
    _w(
        "softmax.not_normalised",
        "flash",
        "return out / total.masked_fill(total == 0, 1)",
        "return out",
        {"q_len": 9, "kv_len": 33},
    ),
    _w(
        "softmax.normalised_twice",
        "flash",
        "return out / total.masked_fill(total == 0, 1)",
        "return out / total.masked_fill(total == 0, 1) / total",
        {"q_len": 9, "kv_len": 33},
    ),
    _w(
        "tail.last_key",
        "core",
        _FILL,
        _FILL + "\n    att[..., -1] = float('-inf')",
        {"q_len": 5, "kv_len": 7},
    ),
    _w(
        "tail.dropped_16",
        "flash",
        "range(0, S, N)",
        "range(0, max(S // N, 1) * N, N)",
        {"q_len": 9, "kv_len": 33},
    ),
    _w(
        "tail.dropped_32",
        "flash",
        "range(0, S, N)",
        "range(0, max(S // N, 1) * N, N)",
        {"q_len": 9, "kv_len": 65},
        ("N = k.shape[2], 16", "N = k.shape[2], 32"),
    ),
    _w(
        "tail.padded_16",
        "flash",
        _TAIL,
        "p = F.pad(torch.exp(s - safe), (0, N - s.shape[-1]))\n       "
        " z = torch.exp(-safe) * (N - s.shape[-1])",
        {"q_len": 9, "kv_len": 33},
        ("p.sum(-1, keepdim=True)", "p.sum(-1, keepdim=True) + z"),
        ("p @ v", "p[..., : s.shape[-1]] @ v"),
    ),
    _w("online.unscaled_16", "flash", "out = out * old", "out = out", {"q_len": 9, "kv_len": 33}),
    _w("online.unscaled_sum_16", "flash", "total = total * old", "total = total", {"q_len": 9, "kv_len": 33}),
    # heads and operands
    _w(
        "grouped.tiled",
        "core",
        _REPK,
        "k = k.repeat(1, H // G, 1, 1)",
        G,
        (_REPV, "v = v.repeat(1, H // G, 1, 1)"),
    ),
    _w(
        "grouped.tiled",
        "layer",
        "k = k.repeat_interleave(self.h // self.g, 1)",
        "k = torch.cat([k] * (self.h // self.g), 1)",
        G,
        ("v = v.repeat_interleave(self.h // self.g, 1)", "v = torch.cat([v] * (self.h // self.g), 1)"),
    ),
    _w(
        "grouped.first",
        "core",
        _REPK,
        "k = k[:, :1]",
        G,
        (_REPV, "v = v[:, :1]"),
        ('"bhtd,bhsd->bhts", q, k', '"bhtd,bhsd->bhts", q, k.expand(B, H, S, D)'),
        ('"bhts,bhsd->bhtd", w, v', '"bhts,bhsd->bhtd", w, v.expand(B, H, S, -1)'),
    ),
    _w(
        "grouped.mean",
        "core",
        _REPK,
        "k = k.mean(1, keepdim=True).expand(B, H, S, D)",
        G,
        (_REPV, "v = v.mean(1, keepdim=True).expand(B, H, S, v.shape[-1])"),
    ),
    _w(
        "operands.scores_transposed", "core", 'torch.einsum("bhtd,bhsd->bhts", q, k)', "k @ q.transpose(2, 3)"
    ),
    _w("operands.key_as_value", "core", _AV, "y = w @ k"),
    _w("operands.key_as_value", "layer", "v = self.wv(val)", "v = self.wk(src)"),
    _w("operands.query_as_value", "core", _AV, "y = w @ q"),
    _w(
        "axes.heads_as_positions",
        "core",
        "B, H, T, D = q.shape",
        "q, k, v = (x.transpose(1, 2) for x in (q, k, v))\n    B, H, T, D = q.shape",
        {},
        ("return y", "return y.transpose(1, 2)"),
    ),
    _w("axes.key_viewed", "core", 'torch.einsum("bhtd,bhsd->bhts", q, k)', "q @ k.reshape(B, H, D, S)"),
    # layers
    _w(
        "split.viewed",
        "layer",
        _Q,
        "q.view(b, self.h, t, self.d)",
        {},
        (_K, "k.view(b, self.g, s, self.d)"),
        (_V, "v.view(b, self.g, s, self.d)"),
    ),
    _w(
        "split.viewed_and_merged_viewed",
        "layer",
        _Q,
        "q.view(b, self.h, t, self.d)",
        {},
        (_K, "k.view(b, self.g, s, self.d)"),
        (_V, "v.view(b, self.g, s, self.d)"),
        (_MERGE, "o.reshape(b, t, c)"),
    ),
    _w("split.value_viewed", "layer", _V, "v.view(b, self.g, s, self.d)"),
    _w("merge.viewed", "layer", _MERGE, "o.reshape(b, t, c)"),
    _w(
        "split.d_major",
        "layer",
        _Q,
        "q.view(b, t, self.d, self.h).permute(0, 3, 1, 2)",
        {},
        (_K, "k.view(b, s, self.d, self.g).permute(0, 3, 1, 2)"),
        (_V, "v.view(b, s, self.d, self.g).permute(0, 3, 1, 2)"),
    ),
    _w("merge.d_major", "layer", _MERGE, "o.permute(0, 2, 3, 1).reshape(b, t, c)"),
    _w(
        "axes.output_batch_heads merge.heads_batch",
        "layer",
        _MERGE,
        "o.permute(1, 0, 2, 3).reshape(b, self.h, t, self.d).transpose(1, 2).reshape(b, t, c)",
    ),
    _w("output.unprojected", "layer", "return self.wo(o)", "return o"),
    _w("weights.o_transposed", "layer", "return self.wo(o)", "return o @ self.wo.weight + self.wo.bias"),
    _w("weights.q_transposed", "layer", "self.wq(x)", "x @ self.wq.weight + self.wq.bias"),
    _w("bias.q_dropped", "layer", "self.wq(x)", "x @ self.wq.weight.T"),
    _w("bias.v_dropped", "layer", "self.wv(val)", "F.linear(val, self.wv.weight)"),
    _w("bias.o_dropped", "layer", "return self.wo(o)", "return o @ self.wo.weight.t()"),
    _w("output.residual", "layer", "return self.wo(o)", "return x + self.wo(o)"),
    _w(
        "weights.stacked_as_interleaved",
        "fused",
        "reshape(B, T, 3, self.h, C // self.h).permute(2, 0, 3, 1, 4)",
        "reshape(B, T, self.h, 3 * (C // self.h)).transpose(1, 2).chunk(3, dim=-1)",
    ),
    _w("weights.rotated_back weights.rotated", "fused", "q, k, v = self.qkv", "k, v, q = self.qkv"),
    _w("operands.key_value_swapped", "fused", "q, k, v = self.qkv", "q, v, k = self.qkv"),
    _w(
        "axes.batch_as_positions axes.sequence_first",
        "fused",
        "B, T, C = x.shape",
        "x = x.transpose(0, 1)\n        B, T, C = x.shape",
        {},
        (
            "return self.proj(y.transpose(1, 2).reshape(B, T, C))",
            "return self.proj(y.transpose(1, 2).reshape(B, T, C)).transpose(0, 1)",
        ),
    ),
    _w(
        "sources.value_from_query",
        "layer",
        "val = src if values is None else values",
        "val = x if values is None else values",
        {"sources": "memory"},
    ),
    _w(
        "sources.memory_ignored",
        "layer",
        "src = x if memory is None else memory",
        "src = x",
        {"sources": "memory"},
    ),
    _w(
        "sources.value_from_key",
        "layer",
        "val = src if values is None else values",
        "val = src",
        {"sources": "separate"},
    ),
    _w("heads.not_split_scaled", "fused", "self.h, C // self.h)", "1, C)"),
    _w("output.random", "layer", "o = a @ v", "o = F.dropout(a, 0.1) @ v"),
    # no fingerprint: they must not get a wrong name
    _w("", "core", _SCALE, "scale = 1 / math.sqrt(D + 1)"),
    _w("", "core", _AV, "y = (w * w).softmax(-1) @ v"),
    _w("", "core", _FILL, _FILL + "\n    att = att + 0.1 * torch.arange(S)"),
    _w("", "layer", "return self.wo(o)", "return self.wo(o * 0.9)"),
    _w("", "layer", "q = self.wq(x)", "q = torch.tanh(self.wq(x))"),
    _w(
        "",
        "fused",
        "self.proj(y.transpose(1, 2).reshape(B, T, C))",
        "self.proj(F.layer_norm(y.transpose(1, 2).reshape(B, T, C), (C,)))",
    ),
    _w("", "core", _OKMASK, "ok = ok & mask & mask.flip(-1)", M),
    _w("", "core", _TRIL, "ok = ok.tril(shift + 3)", C),
)
