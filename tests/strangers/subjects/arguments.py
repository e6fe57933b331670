"""Arguments that stand for something else than they usually do, for nothing known, or for several at once."""

from enum import Enum

import torch
from construction import attend, heads_of, merged
from torch import nn


class Four(nn.Module):
    """Four projections of one width, and attention over what is given."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(width, width) for _ in range(4))

    def attend(self, x, y, mask=None, values=None):
        pairs = ((self.wq, x), (self.wk, y), (self.wv, y if values is None else values))
        q, k, v = (heads_of(p(t), self.heads) for p, t in pairs)
        return self.wo(merged(attend(q, k, v, mask)))


class OtherNames(Four):
    """Sizes and inputs as speech and translation toolkits call them."""

    def __init__(self, head_count, n_feat):
        super().__init__(n_feat, head_count)

    def forward(self, x, xa=None):
        return self.attend(x, x if xa is None else xa)


class OtherNamesForgotten(OtherNames):
    """The mistake: the second input is not looked at."""

    def forward(self, x, xa=None):
        return self.attend(x, x)


class OnlySource(Four):
    """Its one input is called as the second one of others is."""

    def __init__(self, encoder_embed_dim, encoder_attention_heads):
        super().__init__(encoder_embed_dim, encoder_attention_heads)

    def forward(self, source, mask=None):
        return self.attend(source, source, mask)


class HeadWidth(nn.Module):
    """The width of a head beside their number; the model's width is that of the output."""

    def __init__(self, num_heads, key_dim, output_shape):
        super().__init__()
        self.num_heads, self.key_dim = num_heads, key_dim
        self.query, self.key, self.value = (nn.Linear(output_shape, num_heads * key_dim) for _ in range(3))
        self.output = nn.Linear(num_heads * key_dim, output_shape)

    def forward(self, query, value, key=None):
        inputs = query, value if key is None else key, value
        q, k, v = (
            p(t).unflatten(-1, (self.num_heads, self.key_dim)).transpose(1, 2)
            for p, t in zip((self.query, self.key, self.value), inputs, strict=True)
        )
        return self.output(merged(attend(q, k, v)))


keras_instance = HeadWidth(3, 4, 12)


class NeedsLengths(Four):
    """Lengths that must be given, and may be None."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)

    def forward(self, queries, keys, values, valid_lens):
        if valid_lens is not None:
            raise NotImplementedError
        return self.attend(queries, keys, values=values)


class MayHaveLengths(Four):
    """Lengths that may be given."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)

    def forward(self, x, lengths=None, layer_past=None):
        mask = None if lengths is None else torch.arange(x.shape[1]) < lengths[:, None, None, None]
        return self.attend(x, x, mask)


class Kind(Enum):
    """Which attention."""

    FULL = "full"
    LOCAL = "local"


class NeedsKind(Four):
    """One of several kinds must be named."""

    def __init__(self, d_model, num_heads, kind: Kind):
        super().__init__(d_model, num_heads)
        self.kind = kind


class NeedsParts(Four):
    """Projections are handed over."""

    def __init__(self, d_model, num_heads, q_proj: nn.Module):
        super().__init__(d_model, num_heads)


class NestedConfig(Four):
    """A config in a config."""

    def __init__(self, cfg):
        super().__init__(cfg.model.width, cfg.model.heads)


class PlainLayer:
    """No module: weights that nobody can set."""

    def __init__(self, d_model, num_heads):
        self.w = torch.randn(4, d_model, d_model)

    def __call__(self, x):
        return x


class PlainCore:
    """No module, and no weights."""

    def __call__(self, query, key, value):
        return attend(query, key, value)


def needs_lengths(q, k, v, seq_lens):
    """Lengths that must be given, and may be None."""
    assert seq_lens is None
    return attend(q, k, v)


def may_have_lengths(q, k, v, mask=None, *, kv_lens=None):
    """Lengths that may be given."""
    return attend(q, k, v, mask)


def packed(qkv):
    """qkv: batch seq 3 heads d."""
    q, k, v = (t.transpose(1, 2) for t in qkv.unbind(2))
    return attend(q, k, v).transpose(1, 2)


def half_packed(q, kv):
    """kv: batch seq 2 heads d."""
    q, k, v = (t.transpose(1, 2) for t in (q, *kv.unbind(2)))
    return attend(q, k, v).transpose(1, 2)


def over_matrices(x, Wq, Wk, Wv, Wo, num_heads):
    """Its weights are handed over one by one."""
    q, k, v = (heads_of(x @ w, num_heads) for w in (Wq, Wk, Wv))
    return merged(attend(q, k, v)) @ Wo


def make(how_wide, how_many, kind):
    """Construct a layer."""
    return OtherNames(how_many, how_wide)


def of_one(x):
    """Say nothing."""
    return x


A_NUMBER = 3
