"""Run-time shape checks, on in the suite and absent in production.

`checked(stage)` is the stage with jaxtyping and beartype around it; the stage itself stays bare, so
calling it costs what its body costs, and `torch.compile` never meets a checker.
"""

from collections.abc import Callable
from functools import cache
from typing import ParamSpec, TypeVar

from beartype import BeartypeConf, beartype
from jaxtyping import jaxtyped

# As type checkers read it, an int is welcome where a float is.
typechecker = beartype(conf=BeartypeConf(is_pep484_tower=True))
P = ParamSpec("P")
R = TypeVar("R")


@cache
def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function` with its jaxtyping signature enforced at every call."""
    wrapped: Callable[P, R] = jaxtyped(function, typechecker=typechecker)
    return wrapped
