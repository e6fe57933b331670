"""Running the code under test so that nothing it raises or changes globally reaches the suite."""

import os
from collections.abc import Callable
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
    """

    beat: Callable[[], None] = staticmethod(lambda: None)
    alone = False
    calls = 0


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
    Heartbeat.calls += 1
    with kept_settings():
        try:
            return function(*args, **kwargs)
        except NotApplicable:
            raise
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and not Heartbeat.alone:
                raise
            trouble = SubjectError.of(error)
        finally:
            Heartbeat.calls -= 1
    # Raised out here, it does not keep the frames of the code, nor the memory that they hold.
    raise trouble
