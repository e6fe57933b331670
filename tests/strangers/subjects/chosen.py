"""What other code takes in a call, chosen once in the constructor: causality, a mask, a window."""

import torch
from construction import heads_of, merged
from torch import nn


class Chosen(nn.Module):
    """Attention over whatever `visible` says; nothing hidden here."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q_proj, self.k_proj = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.v_proj, self.o_proj = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def visible(self, length):
        return torch.ones(length, length, dtype=torch.bool)

    def forward(self, x):
        q, k, v = (heads_of(p(x), self.n_heads) for p in (self.q_proj, self.k_proj, self.v_proj))
        hidden = ~self.visible(x.shape[1])
        scores = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).masked_fill(hidden, float("-inf"))
        weights = scores.softmax(-1).masked_fill(hidden.all(-1, keepdim=True), 0.0)
        return self.o_proj(merged(weights @ v))


class Causal(Chosen):
    """`causal=False` by default."""

    def __init__(self, d_model, n_heads, causal=False):
        super().__init__(d_model, n_heads)
        self.causal = causal

    def visible(self, length):
        return super().visible(length).tril() if self.causal else super().visible(length)


class CausalLate(Causal):
    """The mistake: with the switch on, a query sees the next position too."""

    def visible(self, length):
        return Chosen.visible(self, length).tril(1) if self.causal else Chosen.visible(self, length)


class CausalForgotten(Causal):
    """The mistake: the switch is taken and nothing is done with it."""

    def visible(self, length):
        return Chosen.visible(self, length)


class Masked(Chosen):
    """A mask given at construction; True may attend."""

    def __init__(self, d_model, n_heads, mask):
        super().__init__(d_model, n_heads)
        self.mask = mask

    def visible(self, length):
        return super().visible(length) if self.mask is None else self.mask[:length, :length]


class MaskedInverted(Masked):
    """The mistake: what may attend is hidden."""

    def visible(self, length):
        return Chosen.visible(self, length) if self.mask is None else ~self.mask[:length, :length]


class Window(Chosen):
    """`window_size` counts keys, its own position among them; nothing later is seen."""

    before = 1

    def __init__(self, d_model, n_heads, window_size=4):
        super().__init__(d_model, n_heads)
        self.reach = window_size - self.before

    def visible(self, length):
        return super().visible(length).tril().triu(-self.reach)


class WindowBefore(Window):
    """The other way to count: keys before its own position."""

    before = 0


class WindowTwoSided(Window):
    """A window to both sides: how it counts is not found out, so it is left open, and said."""

    def visible(self, length):
        return Chosen.visible(self, length).tril(self.reach).triu(-self.reach)


class WindowUnscaled(Window):
    """The mistake beside a window: queries are doubled."""

    def forward(self, x):
        self.q_proj.weight.data.mul_(2)
        try:
            return super().forward(x)
        finally:
            self.q_proj.weight.data.div_(2)


class MaskedAlways(Masked):
    """A mask that must be there."""

    def __init__(self, d_model, n_heads, mask):
        super().__init__(d_model, n_heads, mask.bool())
