"""Cores that go through queries or keys piece by piece."""

import torch

from .bank import right
from .shared import INF, factor, repeated, safe_scores, visible, zeroed


def blockwise(size):
    """Return a core with an online softmax over blocks of `size` keys."""

    def core(query, key, value, mask=None, causal=False, scale=None):
        key, value = repeated(query, key, value)
        wide = torch.promote_types(query.dtype, torch.float32)
        seen = visible(query, key, mask, causal)
        top = torch.full((*query.shape[:3], 1), -INF, dtype=wide)
        total, mixed = torch.zeros_like(top), torch.zeros(*query.shape[:3], value.shape[-1], dtype=wide)
        for start in range(0, key.shape[2], size):
            part = slice(start, start + size)
            scores = (query.to(wide) @ key[:, :, part].to(wide).mT) * factor(query, scale)
            scores = scores.masked_fill(~seen[..., part], -INF)
            new = torch.maximum(top, scores.detach().amax(-1, keepdim=True))
            finite = new.masked_fill(new == -INF, 0.0)
            keep, powers = torch.exp(top - finite), torch.exp(scores - finite)
            mixed = mixed * keep + powers @ value[:, :, part].to(wide)
            total, top = total * keep + powers.sum(-1, keepdim=True), new
        return (mixed / total.masked_fill(total == 0, 1.0)).to(query.dtype)

    core.__doc__ = f"Online softmax over blocks of {size} keys."
    return core


for _size in (1, 3, 16, 64):
    right(name=f"blockwise_{_size}")(blockwise(_size))


def _partial(query, key, value, seen, scale):
    """Return the output over some keys, and the log-sum-exp of their scores."""
    scores = ((query @ key.mT) * factor(query, scale)).masked_fill(~seen, -INF)
    total = scores.logsumexp(-1, keepdim=True)
    weights = torch.exp(scores - total.masked_fill(total == -INF, 0.0))
    return weights @ value, total


@right()
def split_keys(query, key, value, mask=None, causal=False, scale=None):
    """Keys in two parts of unequal length, merged by their log-sum-exps."""
    key, value = repeated(query, key, value)
    wide = torch.promote_types(query.dtype, torch.float32)
    query_wide, key, value = query.to(wide), key.to(wide), value.to(wide)
    seen = visible(query, key, mask, causal)
    cut = key.shape[2] // 3
    parts = [slice(None, cut), slice(cut, None)] if cut else [slice(None)]
    if key.shape[2] == 0:
        return query.new_zeros(*query.shape[:3], value.shape[-1])
    done = [_partial(query_wide, key[:, :, p], value[:, :, p], seen[..., p], scale) for p in parts]
    whole = torch.stack([total for _, total in done]).logsumexp(0)
    whole = whole.masked_fill(whole == -INF, 0.0)
    return sum(output * torch.exp(total - whole) for output, total in done).to(query.dtype)


@right()
def row_by_row(query, key, value, mask=None, causal=False, scale=None):
    """A Python loop over queries: each row takes only the keys that it sees."""
    key, value = repeated(query, key, value)
    seen = visible(query, key, mask, causal)
    rows = []
    for b, h, i in (
        torch.cartesian_prod(*(torch.arange(n) for n in query.shape[:3])).tolist() if query.numel() else ()
    ):
        chosen = seen[b, h, i].nonzero()[:, 0]
        scores = (key[b, h, chosen] @ query[b, h, i]) * factor(query, scale)
        rows.append(scores.softmax(0) @ value[b, h, chosen])
    flat = torch.stack(rows) if rows else query.new_zeros(0, value.shape[-1])
    return flat.view(*query.shape[:3], value.shape[-1])


@right()
def query_chunks(query, key, value, mask=None, causal=False, scale=None):
    """Five queries at a time."""
    key, value = repeated(query, key, value)
    seen = visible(query, key, mask, causal)
    outputs = []
    for start in range(0, max(query.shape[2], 1), 5):
        part = slice(start, start + 5)
        scores = safe_scores(query[:, :, part] @ key.mT * factor(query, scale), seen[:, :, part])
        outputs.append(zeroed(scores.softmax(-1), seen[:, :, part]) @ value)
    return torch.cat(outputs, 2)


@right()
def head_by_head(query, key, value, mask=None, causal=False, scale=None):
    """Each head by itself, in a list."""
    group = query.shape[1] // key.shape[1]
    if query.shape[1] % key.shape[1]:
        raise ValueError(f"{query.shape[1]} heads for {key.shape[1]} key heads")
    seen = visible(query, key, mask, causal)
    heads = []
    for h in range(query.shape[1]):
        q, k, v = query[:, h], key[:, h // group], value[:, h // group]
        scores = safe_scores(
            torch.baddbmm(q.new_zeros(()), q, k.mT, beta=0, alpha=factor(query, scale)), seen[:, h]
        )
        heads.append(zeroed(scores.softmax(-1), seen[:, h]) @ v)
    return torch.stack(heads, 1)
