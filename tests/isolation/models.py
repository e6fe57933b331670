"""Models whose attention does something to its process."""

import ctypes
import os
import time

import torch
from torch import Tensor, nn


class Attention(nn.Module):
    """Attend over one input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.num_heads, self.head_dim = heads, width // heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Attend as the contract says."""
        q, k, v = (
            p(x).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        weights = (q @ k.transpose(-2, -1) * self.head_dim**-0.5).softmax(-1)
        return self.out_proj((weights @ v).transpose(1, 2).flatten(2))


class ExitsAttention(Attention):
    """Exit in training."""

    def forward(self, x: Tensor) -> Tensor:
        """Attend, or exit."""
        if self.training:
            os._exit(3)
        return super().forward(x)


class CrashesAttention(Attention):
    """Crash in training."""

    def forward(self, x: Tensor) -> Tensor:
        """Attend, or crash."""
        if self.training:
            ctypes.string_at(0)
        return super().forward(x)


class HangsAttention(Attention):
    """Hang in training."""

    def forward(self, x: Tensor) -> Tensor:
        """Attend, or never return."""
        while self.training:
            time.sleep(0.01)
        return super().forward(x)


class DoublesAttention(Attention):
    """Change the default dtype."""

    def forward(self, x: Tensor) -> Tensor:
        """Attend, and leave another default dtype behind."""
        torch.set_default_dtype(torch.float64)
        return super().forward(x)


class Model(nn.Module):
    """One module of the given kind, and one that is right."""

    kind: type[Attention] = Attention

    def __init__(self) -> None:
        super().__init__()
        self.other, self.plain = self.kind(12, 3), Attention(16, 4)


class Exits(Model):
    """See the kind."""

    kind = ExitsAttention


class Crashes(Model):
    """See the kind."""

    kind = CrashesAttention


class Hangs(Model):
    """See the kind."""

    kind = HangsAttention


class Doubles(Model):
    """See the kind."""

    kind = DoublesAttention


class ExitsWhenMade(Model):
    """Exit in the constructor."""

    def __init__(self) -> None:
        super().__init__()
        os._exit(0)


class CrashesWhenMade(Model):
    """Crash in the constructor."""

    def __init__(self) -> None:
        super().__init__()
        ctypes.string_at(0)


class HangsWhenMade(Model):
    """Never finish the constructor."""

    def __init__(self) -> None:
        super().__init__()
        while True:
            time.sleep(0.01)
