"""What is measured: shapes, dtypes, passes and modes, and how long."""

from dataclasses import dataclass, field
from typing import Self

import torch

from .._errors import DeclarationError, UnknownNameError

PASSES = ("forward", "forward+backward")
MODES = ("eager", "compiled")
DTYPES = ("float64", "float32", "bfloat16", "float16")
GATE = ("shape", "value")
CLOCKS = ("wall", "cpu")


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of one self-attention call."""

    batch: int
    length: int
    d_model: int
    heads: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Build a shape from `batch x length x d_model x heads`, for example `4x512x512x8`.

        Raises:
            DeclarationError: If it is not four positive numbers, or `heads` does not divide `d_model`.
        """
        parts = text.split("x")
        if len(parts) != 4 or not all(part.isdigit() and int(part) > 0 for part in parts):
            raise DeclarationError(
                f"a shape is BATCHxLENGTHxD_MODELxHEADS, for example 4x512x512x8; got {text!r}"
            )
        shape = cls(*map(int, parts))
        if shape.d_model % shape.heads:
            raise DeclarationError(
                f"shape {text}: heads must divide d_model; got {shape.heads}, {shape.d_model}"
            )
        return shape

    def __str__(self) -> str:
        return f"{self.batch}x{self.length}x{self.d_model}x{self.heads}"


@dataclass(frozen=True, slots=True)
class Profile:
    """How much is measured.

    Attributes:
        shapes: Of the calls.
        rounds: In each round everything is timed once, one after the other; the ratio is the rounds' median.
        seconds: One implementation's share of a round, at least; a call that takes longer runs once.
    """

    shapes: tuple[str, ...]
    rounds: int
    seconds: float


# The documents' width and heads; a small call; a long one; many short ones.
PROFILES: dict[str, Profile] = {
    "quick": Profile(("4x512x512x8",), 7, 0.02),
    "default": Profile(("4x512x512x8", "1x128x256x4", "2x1024x768x12", "8x64x512x8"), 15, 0.05),
    "thorough": Profile(
        ("4x512x512x8", "1x128x256x4", "2x1024x768x12", "8x64x512x8", "1x2048x1024x16", "32x100x512x8"),
        41,
        0.1,
    ),
}


@dataclass(frozen=True, slots=True)
class Grid:
    """Everything that one run measures.

    Attributes:
        shapes: Of the calls.
        dtypes: Names of torch dtypes.
        passes: `forward`, `forward+backward`.
        modes: `eager`, `compiled`.
        causal: Whether every subject hides the future; those that cannot are left out.
        device: Where tensors live.
        rounds: See `Profile`.
        seconds: See `Profile`.
        clock: `wall`, or `cpu` for the time that this process computed.
    """

    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...] = ("float32",)
    passes: tuple[str, ...] = PASSES
    modes: tuple[str, ...] = ("eager",)
    causal: bool = False
    device: str = "cpu"
    rounds: int = 15
    seconds: float = 0.05
    clock: str = "wall"
    cells: tuple[tuple[Shape, str], ...] = field(init=False)

    def __post_init__(self) -> None:
        """Refuse unknown words, and lay out the cells."""
        for kind, given, valid in (
            ("dtype", self.dtypes, DTYPES),
            ("pass", self.passes, PASSES),
            ("mode", self.modes, MODES),
        ):
            for name in given:
                if name not in valid:
                    raise UnknownNameError(kind, name, valid)
        object.__setattr__(
            self, "cells", tuple((shape, dtype) for shape in self.shapes for dtype in self.dtypes)
        )


def dtype_of(name: str) -> torch.dtype:
    """Return the dtype called `name`."""
    found: torch.dtype = getattr(torch, name)
    return found
