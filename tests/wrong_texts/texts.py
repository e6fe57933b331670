"""Right cores and layers as people write them, as texts, and what is built from an edited one.

Nothing here shares code with the bank of fingerprints; everything computes in the dtype it is given.
"""

import math
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
