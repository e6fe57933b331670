"""Ways to mean and to shape a mask."""

import torch
from construction import heads_of, merged
from torch import nn


class Base(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.W_q, self.W_k = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.W_v, self.W_o = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def attend(self, x, fill):
        q, k, v = (heads_of(w(x), self.num_heads) for w in (self.W_q, self.W_k, self.W_v))
        return self.W_o(merged(fill(q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1) @ v))


class RankThree(Base):
    """A mask over `batch q k`, 1 where a query may look."""

    def forward(self, x, mask=None):
        return self.attend(x, lambda s: s if mask is None else s.masked_fill(mask.unsqueeze(1) == 0, -1e9))


class RankThreeUnlifted(Base):
    """The mistake: a documented mask over `batch q k` meets the head axis."""

    def forward(self, x, mask=None):
        """Attend; mask: (batch, seq_len, seq_len)."""
        return self.attend(x, lambda s: s if mask is None else s.masked_fill(mask == 0, -1e9))


class KeysOnly(Base):
    """A mask over `batch k`, True for real tokens."""

    def forward(self, x, mask=None):
        return self.attend(x, lambda s: s if mask is None else s.masked_fill(~mask[:, None, None, :], -1e9))


class KeysOnlyOnQueries(Base):
    """The mistake: the mask over keys is laid on the queries."""

    def forward(self, x, mask=None):
        return self.attend(x, lambda s: s if mask is None else s.masked_fill(~mask[:, None, :, None], -1e9))


class Additive(Base):
    """A float that is added to the scores."""

    def forward(self, x, mask=None):
        return self.attend(x, lambda s: s if mask is None else s + mask)


class AdditiveDocumentedBool(Base):
    """The mistake: a boolean mask is added as a number."""

    def forward(self, x, mask=None):
        """Attend; mask: True means that a position may attend."""
        return self.attend(x, lambda s: s if mask is None else s + mask)


class FloatZeroOne(Base):
    """1.0 where a query may look, 0.0 elsewhere."""

    def forward(self, x, mask=None):
        return self.attend(x, lambda s: s if mask is None else s + (1.0 - mask) * torch.finfo(s.dtype).min)


class FloatZeroOneWrong(Base):
    """The mistake: the mask is multiplied into the scores, so a hidden key scores 0."""

    def forward(self, x, mask=None):
        return self.attend(x, lambda s: s if mask is None else s * mask)


class Blocked(Base):
    """True marks positions to be ignored."""

    def forward(self, x, attn_mask=None):
        """Attend; attn_mask: True means that the position is blocked."""
        return self.attend(x, lambda s: s if attn_mask is None else s.masked_fill(attn_mask, -1e9))


class BlockedSilently(Base):
    """The same behaviour, and not a word about it: a convention or a bug."""

    def forward(self, x, attn_mask=None):
        return self.attend(x, lambda s: s if attn_mask is None else s.masked_fill(attn_mask, -1e9))


class BlockedAgainstWords(Base):
    """The mistake: True is documented as taking part, and is blocked."""

    def forward(self, x, attn_mask=None):
        """Attend; attn_mask: True means that the position takes part in attention."""
        return self.attend(x, lambda s: s if attn_mask is None else s.masked_fill(attn_mask, -1e9))


class Ignored(Base):
    """The mistake: the mask is taken and never used."""

    def forward(self, x, mask=None):
        return self.attend(x, lambda s: s)


class AfterSoftmax(nn.Module):
    """The mistake: the mask is applied after the softmax."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.W_q, self.W_k = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.W_v, self.W_o = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):
        q, k, v = (heads_of(w(x), self.num_heads) for w in (self.W_q, self.W_k, self.W_v))
        weights = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1)
        if mask is not None:
            weights = weights * mask
        return self.W_o(merged(weights @ v))


class TwoMasks(nn.Module):
    """attn_mask over `q k` (True = blocked) and key_padding_mask over `batch k`; sequence first."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.in_proj, self.out_proj = nn.Linear(embed_dim, 3 * embed_dim), nn.Linear(embed_dim, embed_dim)

    def forward(self, x, attn_mask=None, key_padding_mask=None):
        """Attend along axis 0.

        x: (seq_len, batch, embed_dim)
        attn_mask: positions with True are not allowed to attend
        """
        q, k, v = (heads_of(t.transpose(0, 1), self.num_heads) for t in self.in_proj(x).chunk(3, dim=-1))
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        if attn_mask is not None:
            scores = scores.masked_fill(attn_mask, float("-inf"))
        if key_padding_mask is not None:
            scores = scores.masked_fill(key_padding_mask[:, None, None], float("-inf"))
        return self.out_proj(merged(scores.softmax(-1) @ v).transpose(0, 1))


class TwoMasksOneLost(TwoMasks):
    """The mistake: with both masks, the second takes the place of the first."""

    def forward(self, x, attn_mask=None, key_padding_mask=None):
        """Attend along axis 0.

        x: (seq_len, batch, embed_dim)
        attn_mask: positions with True are not allowed to attend
        """
        if key_padding_mask is not None and attn_mask is not None:
            attn_mask = None
        return super().forward(x, attn_mask, key_padding_mask)


class OddAxes(nn.Module):
    """The mistake, or a convention: it attends along axis 0, and says nothing about it."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.W_q, self.W_k = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.W_v, self.W_o = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def forward(self, x):
        q, k, v = (heads_of(w(x).transpose(0, 1), self.num_heads) for w in (self.W_q, self.W_k, self.W_v))
        mixed = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1) @ v
        return self.W_o(merged(mixed).transpose(0, 1))


class SequenceFirst(OddAxes):
    """Documented: it takes (seq_len, batch, d_model)."""

    def forward(self, x):
        seq_len, batch, width = x.shape  # noqa: RUF059
        return super().forward(x)


class SequenceFirstUnscaled(OddAxes):
    """The mistake in it: scores are not scaled."""

    def forward(self, x):
        seq_len, batch, width = x.shape  # noqa: RUF059
        q, k, v = (heads_of(w(x).transpose(0, 1), self.num_heads) for w in (self.W_q, self.W_k, self.W_v))
        return self.W_o(merged((q @ k.transpose(-2, -1)).softmax(-1) @ v).transpose(0, 1))


class MustBeGiven(Base):
    """Its mask has no default, and None is no mask: what hides nothing must be handed over."""

    def forward(self, x, mask):
        return self.attend(x, lambda scores: scores.masked_fill(mask == 0, float("-inf")))


class MustBeGivenBlocked(Base):
    """The same, and True hides: a question, whatever hides nothing in it."""

    def forward(self, x, mask):
        return self.attend(x, lambda scores: scores.masked_fill(mask, float("-inf")))


class AddedBesidePadding(nn.Module):
    """Two masks of two kinds, described side by side."""

    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.in_proj, self.out_proj = nn.Linear(embed_dim, 3 * embed_dim), nn.Linear(embed_dim, embed_dim)

    def forward(self, x, key_padding_mask=None, attn_mask=None):
        """key_padding_mask: batch x keys, True for padding. attn_mask: added, queries x keys."""
        q, k, v = (heads_of(t, self.num_heads) for t in self.in_proj(x).chunk(3, dim=-1))
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        if attn_mask is not None:
            scores = scores + attn_mask
        if key_padding_mask is not None:
            scores = scores.masked_fill(key_padding_mask[:, None, None], float("-inf"))
        return self.out_proj(merged(scores.softmax(-1) @ v))


class Cut(Base):
    """A mask of rank 2, one for all samples, that the code cuts to the length."""

    def forward(self, x, mask=None):
        n = x.shape[1]
        return self.attend(x, lambda s: s if mask is None else s + mask[:n, :n])
