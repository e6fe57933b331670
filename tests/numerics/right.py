"""Right implementations, each rounding in its own places; the bound must hold all of them.

A core here takes `CoreInputs` and returns the output; None says that it does not support the call.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear, scaled_dot_product_attention

from attnspec._inputs import CoreInputs, LayerInputs

Core = Callable[[CoreInputs], Tensor | None]


def visible(inputs: CoreInputs) -> Tensor:
    """Return where a query may attend, `batch heads q_len kv_len`."""
    batch, heads, q_len = inputs.query.shape[:3]
    kv_len = inputs.key.shape[2]
    distance = torch.arange(kv_len)[None, :] - torch.arange(q_len)[:, None] - inputs.offset
    left, right = inputs.extent
    seen = torch.ones(q_len, kv_len, dtype=torch.bool)
    if left >= 0:
        seen &= distance >= -left
    if right >= 0:
        seen &= distance <= right
    seen = seen.expand(batch, heads, q_len, kv_len)
    return seen if inputs.mask is None else seen & inputs.mask


def shared(inputs: CoreInputs) -> tuple[Tensor, Tensor]:
    """Return keys and values, one for each query head."""
    group = inputs.sizes["group"]
    if group == 1:
        return inputs.key, inputs.value
    return inputs.key.repeat_interleave(group, 1), inputs.value.repeat_interleave(group, 1)


def finish(inputs: CoreInputs, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Cap, bias and mask scaled scores; return them with the rows that see something."""
    if inputs.softcap is not None:
        scores = inputs.softcap * torch.tanh(scores / inputs.softcap)
    if inputs.bias is not None:
        scores = scores + inputs.bias
    seen = visible(inputs)
    if inputs.bias is not None:
        seen = seen & (inputs.bias != -torch.inf)
    alive = seen.any(-1, keepdim=True)
    # A dead row attends everywhere, and is set to zero at the end.
    return scores.masked_fill(~seen & alive, -torch.inf).masked_fill(~alive, 0.0), alive


def _plain(inputs: CoreInputs, scores: Tensor, *, softmax_in: torch.dtype | None = None) -> Tensor:
    scores, alive = finish(inputs, scores)
    weights = torch.softmax(scores, -1, dtype=softmax_in).to(inputs.value.dtype)
    return (weights @ shared(inputs)[1]).masked_fill(~alive, 0.0)


def naive_post(inputs: CoreInputs) -> Tensor:
    """Scale the scores."""
    return _plain(inputs, (inputs.query @ shared(inputs)[0].mT) * inputs.factor)


def naive_divide(inputs: CoreInputs) -> Tensor | None:
    """Divide the scores by a root that is a tensor of the input's dtype."""
    if inputs.scale is not None:
        return None
    root = torch.sqrt(torch.tensor(inputs.query.shape[-1], dtype=inputs.query.dtype))
    return _plain(inputs, (inputs.query @ shared(inputs)[0].mT) / root)


def naive_pre(inputs: CoreInputs) -> Tensor:
    """Scale the queries."""
    return _plain(inputs, (inputs.query * inputs.factor) @ shared(inputs)[0].mT)


def scale_both(inputs: CoreInputs) -> Tensor:
    """Split the scale over queries and keys."""
    root = math.sqrt(abs(inputs.factor))
    sign = -1.0 if inputs.factor < 0 else 1.0
    return _plain(inputs, (inputs.query * (root * sign)) @ (shared(inputs)[0] * root).mT)


def softmax_wide(inputs: CoreInputs) -> Tensor:
    """Scores in the input's dtype, softmax in float32, weights rounded back."""
    wide = torch.promote_types(inputs.query.dtype, torch.float32)
    return _plain(inputs, (inputs.query @ shared(inputs)[0].mT) * inputs.factor, softmax_in=wide)


def _widened(inputs: CoreInputs) -> CoreInputs:
    return inputs.to(torch.promote_types(inputs.query.dtype, torch.float32))


def float32_inside(inputs: CoreInputs) -> Tensor:
    """Everything in float32, the output rounded."""
    return naive_post(_widened(inputs)).to(inputs.query.dtype)


def log_sum_exp(inputs: CoreInputs) -> Tensor:
    """Weights as exp of scores minus their log-sum-exp in float32; nothing renormalises them."""
    wide = _widened(inputs)
    scores, alive = finish(wide, wide.query @ shared(wide)[0].mT * wide.factor)
    weights = torch.exp(scores - scores.logsumexp(-1, keepdim=True))
    return (weights.to(inputs.query.dtype) @ shared(inputs)[1]).masked_fill(~alive, 0.0)


def hand_softmax(inputs: CoreInputs) -> Tensor:
    """Softmax by hand in float32, differentiated through the maximum as well."""
    wide = _widened(inputs)
    scores, alive = finish(wide, wide.query @ shared(wide)[0].mT * wide.factor)
    powers = torch.exp(scores - scores.amax(-1, keepdim=True))
    weights = powers / powers.sum(-1, keepdim=True)
    return (weights.to(inputs.query.dtype) @ shared(inputs)[1]).masked_fill(~alive, 0.0)


def _shifted_by(shift: Callable[[CoreInputs, Tensor, Tensor], Tensor | None]) -> Core:
    """Return a core that takes a shift from every score of a row, and differentiates through it."""

    def attend(inputs: CoreInputs) -> Tensor | None:
        wide = _widened(inputs)
        key, value = shared(wide)
        scores, alive = finish(wide, wide.query @ key.mT * wide.factor)
        seen = visible(wide) if wide.bias is None else visible(wide) & (wide.bias != -torch.inf)
        found = shift(wide, scores, seen)
        if found is None:
            return None
        weights = torch.softmax(scores - found.masked_fill(~alive, 0.0), -1)
        return (weights @ value).masked_fill(~alive, 0.0).to(inputs.query.dtype)

    return attend


def _mean_score(inputs: CoreInputs, scores: Tensor, seen: Tensor) -> Tensor:
    return scores.masked_fill(~seen, 0.0).sum(-1, keepdim=True) / seen.sum(-1, keepdim=True).clamp(min=1)


def _mean_key(inputs: CoreInputs, scores: Tensor, seen: Tensor) -> Tensor | None:
    """Not with a softcap: capped scores may be much smaller than what is taken from them."""
    if inputs.softcap is not None:
        return None
    even = seen.to(scores.dtype) / seen.sum(-1, keepdim=True).clamp(min=1)
    return (inputs.query * (even @ shared(inputs)[0])).sum(-1, keepdim=True)


def _mean_of_query(inputs: CoreInputs, scores: Tensor, seen: Tensor) -> Tensor:
    return inputs.query.mean(-1, keepdim=True).clamp(-1.0, 1.0)


def smooth_keys(inputs: CoreInputs) -> Tensor | None:
    """Take the mean key from every key before the fused attention; only where every query sees every key."""
    wide = _widened(inputs)
    if not visible(wide).all() or inputs.bias is not None or inputs.softcap is not None or not wide.factor:
        return None
    key, value = shared(wide)
    smooth = key - key.mean(-2, keepdim=True)
    return scaled_dot_product_attention(wide.query, smooth, value, scale=wide.factor).to(inputs.query.dtype)


def divide_last(inputs: CoreInputs) -> Tensor:
    """Unnormalised weights rounded to the input's dtype, the sum divided out at the end."""
    wide = _widened(inputs)
    scores, alive = finish(wide, wide.query @ shared(wide)[0].mT * wide.factor)
    powers = torch.exp(scores - scores.amax(-1, keepdim=True).detach())
    mixed = powers.to(inputs.query.dtype).to(powers.dtype) @ shared(wide)[1]
    return (mixed / powers.sum(-1, keepdim=True)).masked_fill(~alive, 0.0).to(inputs.query.dtype)


def blocks(size: int) -> Core:
    """Return the online softmax over blocks of keys."""

    def attend(inputs: CoreInputs) -> Tensor:
        wide = _widened(inputs)
        key, value = shared(wide)
        scores, alive = finish(wide, wide.query @ key.mT * wide.factor)
        top = torch.full_like(scores[..., :1], -torch.inf).detach()
        total, mixed = torch.zeros_like(top), scores.new_zeros((*scores.shape[:-1], value.shape[-1]))
        for start in range(0, scores.shape[-1], size):
            part = scores[..., start : start + size]
            new = torch.maximum(top, part.amax(-1, keepdim=True)).detach()
            safe = new.masked_fill(new == -torch.inf, 0.0)
            keep, powers = torch.exp(top - safe), torch.exp(part - safe)
            total = total * keep + powers.sum(-1, keepdim=True)
            rounded = powers.to(inputs.query.dtype).to(powers.dtype)
            mixed, top = mixed * keep + rounded @ value[..., start : start + size, :], new
        return (mixed / total).masked_fill(~alive, 0.0).to(inputs.query.dtype)

    return attend


def split_keys(inputs: CoreInputs) -> Tensor:
    """Attend to the two halves of the keys apart, then merge by their log-sum-exp."""
    wide = _widened(inputs)
    key, value = shared(wide)
    scores, alive = finish(wide, wide.query @ key.mT * wide.factor)
    half = max(1, scores.shape[-1] // 2)
    parts = []
    for s, v in zip(scores.split(half, -1), value.split(half, -2), strict=True):
        lse = s.logsumexp(-1, keepdim=True)
        lse = lse.masked_fill(lse == -torch.inf, -1e30)
        parts.append((lse, torch.exp(s - lse) @ v))
    whole = torch.stack([lse for lse, _ in parts]).logsumexp(0)
    mixed = sum(torch.exp(lse - whole) * out for lse, out in parts)
    return mixed.masked_fill(~alive, 0.0).to(inputs.query.dtype)  # type: ignore[union-attr]


def sdpa(backend: SDPBackend) -> Core:
    """Return PyTorch's own attention with one of its backends."""

    def attend(inputs: CoreInputs) -> Tensor | None:
        if inputs.softcap is not None or not inputs.factor:
            return None
        flash = backend == SDPBackend.FLASH_ATTENTION
        if flash and (
            inputs.query.shape[-1] != inputs.value.shape[-1] or inputs.query.dtype == torch.float16
        ):
            return None
        key, value = shared(inputs)
        zeros = torch.zeros((), dtype=inputs.query.dtype).expand(*inputs.query.shape[:3], key.shape[2])
        bias, alive = finish(inputs.replace(bias=None), zeros)
        if inputs.bias is not None:
            bias, alive = finish(inputs, zeros)
        if flash and bias.requires_grad:
            return None
        with sdpa_kernel(backend):
            out = scaled_dot_product_attention(inputs.query, key, value, attn_mask=bias, scale=inputs.factor)
        return out.masked_fill(~alive, 0.0)

    return attend


def recompute(inputs: CoreInputs, upstream: Tensor) -> dict[str, Tensor]:
    """Return gradients as a fused kernel finds them: weights from a log-sum-exp, the mean from the output."""
    wide, dtype = _widened(inputs), inputs.query.dtype
    key, value = shared(wide)

    def rounded(t: Tensor) -> Tensor:
        return t.to(dtype).to(wide.query.dtype)

    raw = wide.query @ key.mT * wide.factor
    scores, alive = finish(wide, raw)
    weights = torch.exp(scores - scores.logsumexp(-1, keepdim=True)).masked_fill(~alive, 0.0)
    output, grad = rounded(rounded(weights) @ value), upstream.to(wide.query.dtype)
    mean = (grad * output).sum(-1, keepdim=True)
    logits = weights * (grad @ value.mT - mean)
    capped = logits if inputs.softcap is None else logits * (1 - torch.tanh(raw / inputs.softcap) ** 2)
    group = inputs.sizes["group"]

    def gathered(t: Tensor) -> Tensor:
        return t.unflatten(1, (-1, group)).sum(2).to(dtype)

    found = {
        "query": (rounded(capped) @ key * inputs.factor).to(dtype),
        "key": gathered(rounded(capped).mT @ wide.query * inputs.factor),
        "value": gathered(rounded(weights).mT @ grad),
    }
    if inputs.bias is not None:
        found["bias"] = logits.sum_to_size(inputs.bias.shape).to(dtype)
    return found


CORES: dict[str, Core] = {
    "naive_post": naive_post, "naive_divide": naive_divide, "naive_pre": naive_pre, "scale_both": scale_both,
    "softmax_wide": softmax_wide, "float32_inside": float32_inside, "log_sum_exp": log_sum_exp,
    "hand_softmax": hand_softmax, "divide_last": divide_last, "blocks_16": blocks(16), "blocks_1": blocks(1),
    "less_mean_score": _shifted_by(_mean_score), "less_mean_key": _shifted_by(_mean_key),
    "less_mean_of_query": _shifted_by(_mean_of_query), "smooth_keys": smooth_keys,
    "split_keys": split_keys, "sdpa_math": sdpa(SDPBackend.MATH),
    "sdpa_flash": sdpa(SDPBackend.FLASH_ATTENTION),
}  # fmt: skip


def _attend(inputs: LayerInputs, core: Core, query: Tensor, key: Tensor, value: Tensor) -> Tensor | None:
    w = inputs.weights
    heads = (
        t.unflatten(-1, (n, -1)).transpose(1, 2)
        for t, n in ((query, w.heads), (key, w.kv_heads), (value, w.kv_heads))
    )
    q, k, v = heads
    return core(CoreInputs(query=q, key=k, value=v, **inputs.options()))


def linear_layer(core: Core) -> Callable[[LayerInputs], Tensor | None]:
    """Return a layer with `F.linear` around a core."""

    def run(inputs: LayerInputs) -> Tensor | None:
        w = inputs.weights
        q, k = linear(inputs.query, w.W_q, w.b_q), linear(inputs.key_input, w.W_k, w.b_k)
        mixed = _attend(inputs, core, q, k, linear(inputs.value_input, w.W_v, w.b_v))
        return None if mixed is None else linear(mixed.transpose(1, 2).flatten(2), w.W_o, w.b_o)

    return run


def _project(tensor: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return tensor @ weight.mT if bias is None else tensor @ weight.mT + bias


def bias_apart(inputs: LayerInputs) -> Tensor | None:
    """Add the biases after the products were stored."""
    w = inputs.weights
    q, k = _project(inputs.query, w.W_q, w.b_q), _project(inputs.key_input, w.W_k, w.b_k)
    mixed = _attend(inputs, naive_pre, q, k, _project(inputs.value_input, w.W_v, w.b_v))
    return None if mixed is None else _project(mixed.transpose(1, 2).flatten(2), w.W_o, w.b_o)


def fused(inputs: LayerInputs) -> Tensor | None:
    """Project queries, keys and values in one product."""
    w = inputs.weights
    if inputs.key is not None:
        return None
    bias = None if w.b_q is None or w.b_k is None or w.b_v is None else torch.cat((w.b_q, w.b_k, w.b_v))
    both = linear(inputs.query, torch.cat((w.W_q, w.W_k, w.W_v)), bias)
    q, k, v = both.split((w.W_q.shape[0], w.W_k.shape[0], w.W_v.shape[0]), -1)
    mixed = _attend(inputs, softmax_wide, q, k, v)
    return None if mixed is None else linear(mixed.transpose(1, 2).flatten(2), w.W_o, w.b_o)


def head_by_head(inputs: LayerInputs) -> Tensor | None:
    """Project and attend one head at a time, and sum the heads' shares of the output."""
    w, total = inputs.weights, None

    def rows(name: str, head: int, count: int) -> tuple[Tensor, Tensor | None]:
        matrix, bias = getattr(w, f"W_{name}"), getattr(w, f"b_{name}")
        return matrix.unflatten(0, (count, -1))[head], None if bias is None else bias.unflatten(
            0, (count, -1)
        )[head]

    for head in range(w.heads):
        shared_head = head // (w.heads // w.kv_heads)
        q = linear(inputs.query, *rows("q", head, w.heads)).unsqueeze(1)
        k = linear(inputs.key_input, *rows("k", shared_head, w.kv_heads)).unsqueeze(1)
        v = linear(inputs.value_input, *rows("v", shared_head, w.kv_heads)).unsqueeze(1)
        picked = {
            name: t[:, head : head + 1] if t.dim() == 4 and t.shape[1] != 1 else t
            for name, t in (("mask", inputs.mask), ("bias", inputs.bias)) if t is not None
        }  # fmt: skip
        mixed = naive_post(CoreInputs(query=q, key=k, value=v, **(inputs.options() | picked)))
        share = linear(mixed.squeeze(1), w.W_o.unflatten(1, (w.heads, -1))[:, head])
        total = share if total is None else total + share
    return total if w.b_o is None or total is None else total + w.b_o


def autocast(inputs: LayerInputs) -> Tensor | None:
    """Run the plain layer on float32 tensors under autocast; only numbers of bfloat16 go in."""
    if inputs.query.dtype != torch.bfloat16:
        return None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return linear_layer(naive_post)(inputs.to(torch.float32))


LAYERS: dict[str, Callable[[LayerInputs], Tensor | None]] = {
    "linear_naive": linear_layer(naive_post), "linear_float32_inside": linear_layer(float32_inside),
    "linear_sdpa_math": linear_layer(sdpa(SDPBackend.MATH)), "linear_blocks_16": linear_layer(blocks(16)),
    "bias_apart": bias_apart, "fused": fused, "head_by_head": head_by_head, "autocast": autocast,
}  # fmt: skip
