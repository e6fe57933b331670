"""A whole model, with attention of two kinds and something that is called so and is not."""

from construction import EmbedDim
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(width), EmbedDim(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        x = x + self.attn(self.norm(x))
        return x + self.mlp(x)


class PoolAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.score = nn.Linear(width, 1)

    def forward(self, x):
        return (self.score(x).softmax(1) * x).sum(1)


class Model(nn.Module):
    def __init__(self, width=24, heads=4, depth=3):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.cross = nn.MultiheadAttention(width, 2)
        self.pool = PoolAttention(width)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        x = x.transpose(0, 1)
        return self.pool(self.cross(x, x, x)[0].transpose(0, 1))


class NeedsWidth(Model):
    def __init__(self, width):
        super().__init__(width)


class Nothing(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(3, 3)
