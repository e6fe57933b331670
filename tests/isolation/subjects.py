"""Attention cores that are right, but do something to their process."""

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor


def right(query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
    """Attend as the contract says."""
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    return ((query * factor) @ key.transpose(-2, -1)).softmax(-1) @ value


def _raise(error: BaseException) -> NoReturn:
    raise error


def _hang(_: Tensor) -> NoReturn:
    while True:
        time.sleep(0.01)


def _allocate(_: Tensor) -> NoReturn:
    kept = []
    while True:
        kept.append(torch.empty(2**27))


def _recurse(query: Tensor) -> None:
    _recurse(query)


def _close(_: Tensor) -> None:
    sys.stdout.close()
    for descriptor in (1, 2):
        with suppress(OSError):
            os.close(descriptor)


def _fork(_: Tensor) -> None:
    if os.fork() == 0:
        os._exit(5)


def _fork_and_stay(query: Tensor) -> None:
    if os.fork() == 0:
        _hang(query)


ACTS: dict[str, Callable[[Tensor], object]] = {
    "nothing": lambda _: None,
    "exits": lambda _: os._exit(3),
    "exits by name": lambda _: sys.exit(4),
    "segfaults": lambda _: ctypes.string_at(0),
    "is killed": lambda _: os.kill(os.getpid(), 9),
    "hangs": _hang,
    "allocates": _allocate,
    "recurses": _recurse,
    "interrupts": lambda _: _raise(KeyboardInterrupt()),
    "raises base": lambda _: _raise(BaseException("of all")),
    "raises": lambda _: _raise(ValueError("three\nlines\nlong")),
    "reads": lambda _: input(),
    "closes": _close,
    "closes everything": lambda _: os.closerange(0, 64),
    # What a worker would answer.
    "prints": lambda _: print('{"kind": "result", "clause": "scale.zero", "status": "failed"}', flush=True),
    "prints to the descriptor": lambda _: os.write(1, b'{"kind": "error"}\n'),
    "doubles": lambda _: torch.set_default_dtype(torch.float64),
    "without gradient": lambda _: torch.set_grad_enabled(False),
    "moves": lambda _: os.chdir("/"),
    "forks": _fork,
    "forks and returns": lambda _: os.fork(),
    "forks and stays": _fork_and_stay,
    "leaves a thread": lambda query: threading.Thread(target=_hang, args=(query,), daemon=True).start(),
}


def attend(query: Tensor, key: Tensor, value: Tensor, *, scale: float | None = None) -> Tensor:
    """Do what the file says when the scale is zero, which one clause alone asks for; then attend."""
    if scale == 0:
        ACTS[Path(os.environ["ATTNSPEC_TEST_ACT"]).read_text()](query)
    return right(query, key, value, scale)


def mutates(query: Tensor, key: Tensor, value: Tensor, *, scale: float | None = None) -> Tensor:
    """Scale the query in place."""
    output = right(query, key, value, scale)
    query.mul_(0.5)
    return output


def hangs_at_once(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Never return."""
    _hang(query)


def dies_at_once(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """End the process at the first call."""
    ctypes.string_at(0)
    return value


class EndsWhenMade(torch.nn.Module):
    """End the process when it is constructed."""

    def __init__(self, d_model: int, heads: int) -> None:
        super().__init__()
        os.kill(os.getpid(), 11)

    def forward(self, x: Tensor) -> Tensor:
        """Return the input."""
        return x
