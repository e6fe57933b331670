"""Running the code under test so that nothing it raises or changes globally reaches the suite."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from .failures import NotApplicable, SubjectError


class Heartbeat:
    """Tells whoever watches that the code under test is still answering; replaced by the worker.

    Attributes:
        beat: Called before each call of the code under test.
        alone: Whether the process is the code's own, so that an interrupt can only be its doing.
        calls: How many calls of the code under test have not returned.
        returned: When the latest of them did.
    """

    beat: Callable[[], None] = staticmethod(lambda: None)
    alone = False
    calls = 0
    returned = 0.0

    @classmethod
    def is_quiet(cls, seconds: float) -> bool:
        """Whether the suite itself is at work, and no longer than it may take."""
        return cls.calls == 0 and time.monotonic() - cls.returned < seconds


@contextmanager
def under_way() -> Iterator[None]:
    """Count a call of the code under test for as long as the block around it runs."""
    Heartbeat.calls += 1
    try:
        yield
    finally:
        Heartbeat.calls -= 1
        Heartbeat.returned = time.monotonic()


@contextmanager
def kept_settings() -> Any:
    """Put back what user code may have changed globally, so that one clause never spoils the next."""
    dtype, grad, folder = torch.get_default_dtype(), torch.is_grad_enabled(), Path.cwd()
    try:
        yield
    finally:
        if torch.get_default_dtype() != dtype:
            torch.set_default_dtype(dtype)
        if torch.is_grad_enabled() != grad:
            torch.set_grad_enabled(grad)
        if Path.cwd() != folder:
            os.chdir(folder)


def guarded(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call user code; whatever it raises becomes a `SubjectError`.

    Raises:
        SubjectError: If the code raised anything but a keyboard interrupt, a system exit included.
    """
    Heartbeat.beat()
    with under_way(), kept_settings():
        try:
            return function(*args, **kwargs)
        except NotApplicable:
            raise
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and not Heartbeat.alone:
                raise
            trouble = SubjectError.of(error)
    # Raised out here, it does not keep the frames of the code, nor the memory that they hold.
    raise trouble
