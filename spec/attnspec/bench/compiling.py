"""`torch.compile` of one subject, saying where it fell back or failed instead of timing something else."""

import warnings
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .subjects import Subject
from .timing import step


@dataclass(frozen=True)
class Compiled:
    """What came of compiling.

    Attributes:
        subject: The compiled subject; None if it cannot be compiled.
        note: Empty where the whole call is one graph; otherwise what happened, in a line.
    """

    subject: Subject | None
    note: str


def compile_subject(subject: Subject, inputs: Tensor, which: str) -> Compiled:
    """Compile a subject in one graph, or with breaks where that cannot be.

    Args:
        subject: To compile.
        inputs: For the first call, at which it is compiled.
        which: The pass that is to be timed.
    """
    first = ""
    for whole in (True, False):
        torch._dynamo.reset()
        compiled = replace(subject, call=torch.compile(subject.call, fullgraph=whole, dynamic=False))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                step(compiled, inputs, which)()
        except Exception as error:
            lines = str(error).strip().splitlines()
            first = first or f"{type(error).__name__}: {lines[0] if lines else ''}"[:160]
        else:
            return Compiled(compiled, "" if whole else f"fell back to several graphs: {first}")
    return Compiled(None, f"could not be compiled: {first}")
