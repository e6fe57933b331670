"""Wrong scales, caps, biases, softmaxes and blocks."""

from .edits import AV, FILL, SCALE, SM, TAIL, TANH, M, Wrong, wrong

NUMBERS: tuple[Wrong, ...] = (
    # scale, softcap, bias
    wrong("scale.missing", "core", " * scale", ""),
    wrong("scale.missing", "layer", " / self.d**0.5", ""),
    wrong("scale.default_missing", "core", SCALE, "scale = 1.0"),
    wrong("scale.d_model", "core", SCALE, "scale = (H * D) ** -0.5"),
    wrong("scale.d_model", "layer", "self.d**0.5", "c**0.5"),
    wrong("scale.heads", "core", SCALE, "scale = H ** -0.5"),
    wrong("scale.d_k", "core", SCALE, "scale = 1 / D"),
    wrong("scale.twice scale.d_k", "core", "att = torch", "q = q * scale\n    att = torch"),
    wrong("scale.d_k", "layer", "self.d**0.5", "self.d"),
    wrong("scale.multiplied", "core", SCALE, "scale = math.sqrt(D)"),
    wrong("scale.kv_len", "core", SCALE, "scale = S ** -0.5"),
    wrong("scale.d_v", "core", SCALE, "scale = v.shape[-1] ** -0.5", {"d_k": 4, "d_v": 7}),
    wrong("scale.explicit_ignored", "core", "if scale is None:", "if True:", {"scale": 0.3}),
    wrong("scale.zero_as_default", "core", "if scale is None:", "if not scale:", {"scale": 0.0}),
    wrong(
        "scale.on_top",
        "core",
        "* scale",
        "/ math.sqrt(D) * (scale if scale0 else 1.0)",
        {"scale": 0.3},
        ("if scale is None:", "scale0 = scale is not None\n    if scale is None:"),
    ),
    wrong(
        "scale.bias_too", "core", "att = att + bias", "att = (att / scale + bias) * scale", {"bias": "bhqk"}
    ),
    wrong("bias.ignored", "core", "att = att + bias", "att + bias", {"bias": "hqk"}),
    wrong("bias.subtracted", "core", "att + bias", "att - bias", {"bias": "bhqk"}),
    wrong("softcap.missing", "core", TANH, "att", {"softcap": 1.5}),
    wrong("softcap.formula", "core", TANH, "att * torch.tanh(att / softcap)", {"softcap": 1.5}),
    wrong("softcap.unscaled", "core", TANH, "torch.tanh(att / softcap)", {"softcap": 1.5}),
    wrong(
        "softcap.after_mask",
        "core",
        FILL,
        FILL + "\n    att = att if softcap is None else softcap * torch.tanh(att / softcap)",
        {"softcap": 1.5, **M},
        (f"att = {TANH}\n", "pass\n"),
    ),
    # softmax and blocks
    wrong("softmax.queries", "core", SM, "w = att.softmax(dim=-2)"),
    wrong("softmax.queries", "layer", "torch.softmax(a, -1)", "torch.softmax(a, 2)"),
    wrong("softmax.heads", "core", SM, "w = att.softmax(dim=1)"),
    wrong("softmax.batch", "layer", "torch.softmax(a, -1)", "torch.softmax(a, 0)"),
    wrong(
        "softmax.heads_and_keys",
        "core",
        SM,
        "w = att.permute(0, 2, 1, 3).reshape(B, T, -1).softmax(-1).view(B, T, H, S).transpose(1, 2)",
    ),
    wrong(
        "softmax.overflow softmax.overflow_divided_last",
        "core",
        SM,
        "e = att.exp()\n    w = e / e.sum(-1, keepdim=True)",
        {"values": "scaled"},
    ),
    wrong(
        "softmax.overflow softmax.overflow_divided_last",
        "core",
        SM,
        "w = att.exp()",
        {"values": "scaled"},
        (AV, "y = torch.matmul(w, v) / w.sum(dim=3, keepdim=True)"),
    ),
    wrong("softmax.sigmoid", "core", SM, "w = att.sigmoid()"),
    wrong(
        "softmax.not_normalised",
        "flash",
        "return out / total.masked_fill(total == 0, 1)",
        "return out",
        {"q_len": 9, "kv_len": 33},
    ),
    wrong(
        "softmax.normalised_twice",
        "flash",
        "return out / total.masked_fill(total == 0, 1)",
        "return out / total.masked_fill(total == 0, 1) / total",
        {"q_len": 9, "kv_len": 33},
    ),
    wrong(
        "tail.last_key",
        "core",
        FILL,
        FILL + "\n    att[..., -1] = float('-inf')",
        {"q_len": 5, "kv_len": 7},
    ),
    wrong(
        "tail.dropped_16",
        "flash",
        "range(0, S, N)",
        "range(0, max(S // N, 1) * N, N)",
        {"q_len": 9, "kv_len": 33},
    ),
    wrong(
        "tail.dropped_32",
        "flash",
        "range(0, S, N)",
        "range(0, max(S // N, 1) * N, N)",
        {"q_len": 9, "kv_len": 65},
        ("N = k.shape[2], 16", "N = k.shape[2], 32"),
    ),
    wrong(
        "tail.padded_16",
        "flash",
        TAIL,
        "p = F.pad(torch.exp(s - safe), (0, N - s.shape[-1]))\n       "
        " z = torch.exp(-safe) * (N - s.shape[-1])",
        {"q_len": 9, "kv_len": 33},
        ("p.sum(-1, keepdim=True)", "p.sum(-1, keepdim=True) + z"),
        ("p @ v", "p[..., : s.shape[-1]] @ v"),
    ),
    wrong("online.unscaled_16", "flash", "out = out * old", "out = out", {"q_len": 9, "kv_len": 33}),
    wrong(
        "online.unscaled_sum_16", "flash", "total = total * old", "total = total", {"q_len": 9, "kv_len": 33}
    ),
)
