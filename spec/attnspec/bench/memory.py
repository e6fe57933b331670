"""Peak memory of one call, beyond what was there before it.

On CUDA the allocator keeps the peak itself. On the CPU nothing does, and watching tensors from Python misses
what a kernel allocates inside. So the profiler records every allocation and release of torch's allocator,
and the peak is the largest sum of them. Scratch space that the matrix library takes for itself, on the
stack or by its own means, is in neither.
"""

import gc
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

MEMORY = "[memory]"


def peak_extra_bytes(run: Callable[[], Any], *, device: str = "cpu") -> int:
    """Return the most bytes that one call holds at once, beyond those that were there before.

    Args:
        run: The call. Its result counts as long as it lives in the call.
        device: Where its tensors live.
    """
    run()
    gc.collect()
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with without_chatter(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        result = run()
        del result
    held = peak = 0
    for _, size in allocations(recorded):
        held += size
        peak = max(peak, held)
    return peak


def allocations(recorded: profile) -> list[tuple[int, int]]:
    """Return when the CPU allocator gave out (positive) or took back (negative) how many bytes."""
    results: Any = recorded.profiler
    events = results.kineto_results.events()
    found = [
        (e.start_ns(), e.nbytes()) for e in events if e.name() == MEMORY and e.device_type().name == "CPU"
    ]
    return sorted(found, key=lambda pair: pair[0])


@contextmanager
def without_chatter() -> Iterator[None]:
    """Keep lines that the profiler's library writes past Python's streams off the terminal."""
    try:
        kept = os.dup(2)
    except OSError:
        yield
        return
    with tempfile.TemporaryFile() as aside:
        os.dup2(aside.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
