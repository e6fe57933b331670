"""Which kernel `scaled_dot_product_attention` chose, and why the others could not have been."""

import warnings
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.profiler import ProfilerActivity, profile

from .grid import Shape
from .memory import without_chatter

CANDIDATES = ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH")
CUDA_ONLY = ("EFFICIENT_ATTENTION", "CUDNN_ATTENTION")
PREFIX = "aten::_scaled_dot_product_"
# What a refusal begins with says nothing about why.
HOLLOW = (
    "No available kernel",
    "Memory efficient kernel not used because",
    "Flash attention kernel not used because",
    "cuDNN attention kernel not used because",
    "Flash attention has been runtime disabled",
    "Memory Efficient attention has been runtime disabled",
    "CuDNN attention has been runtime disabled",
)


def explain_backend(
    shape: Shape, dtype: torch.dtype, *, device: str, causal: bool, backward: bool
) -> dict[str, Any]:
    """Run torch's attention once and say which kernel ran, and what each other one says against it.

    Args:
        shape: Of the call.
        dtype: Of its tensors.
        device: Where they live.
        causal: Whether the future is hidden.
        backward: Whether a gradient is wanted; some kernels have none.

    Returns:
        `ran`: the operator's own name; `able`: the backends that can run; `refused`: for each of the others
        its reasons.
    """
    size = (shape.batch, shape.heads, shape.length, shape.d_model // shape.heads)
    q, k, v = (torch.randn(size, dtype=dtype, device=device, requires_grad=backward) for _ in range(3))

    def call() -> Any:
        return scaled_dot_product_attention(q, k, v, is_causal=causal)

    with without_chatter(), profile(activities=[ProfilerActivity.CPU]) as recorded:
        call()
    names = [e.name for e in recorded.events() if e.name.startswith(PREFIX)]
    ran = names[0].removeprefix(PREFIX) if names else "none that torch names"
    refused: dict[str, str] = {}
    able: list[str] = []
    for name in CANDIDATES:
        if name in CUDA_ONLY and torch.device(device).type != "cuda":
            refused[name] = f"it is a CUDA kernel; these tensors are on {device}"
            continue
        reason = _reason_against(getattr(SDPBackend, name), call)
        if reason is None:
            able.append(name)
        else:
            refused[name] = reason
    return {"ran": ran, "able": able, "refused": refused}


def _reason_against(backend: Any, call: Any) -> str | None:
    """Return why a backend cannot run a call, or None if it can."""
    with warnings.catch_warnings(record=True) as said, sdpa_kernel(backend):
        warnings.simplefilter("always")
        try:
            call()
        except RuntimeError as error:
            lines = [str(w.message).split(" (Triggered internally")[0].strip() for w in said]
            reasons = [line for line in lines if line and not line.startswith(HOLLOW)]
            return "; ".join(dict.fromkeys(reasons)) or f"no reason given ({str(error).splitlines()[0]})"
    return None
