"""The claims about numbers: the variance of scores, the gradient of softmax, and what -1e9 does."""

from typing import Any

import torch
from torch import Tensor

FILL = -1e9
ROWS, KEYS = 4096, 128


def scaling() -> dict[str, Any]:
    """Draw queries and keys of variance 1, and look at scores and softmax with and without the scale."""
    generator = torch.Generator().manual_seed(1)
    rows = []
    for d_k in (16, 64, 128, 512):
        query = torch.randn(ROWS, 1, d_k, generator=generator, dtype=torch.float64)
        key = torch.randn(ROWS, KEYS, d_k, generator=generator, dtype=torch.float64)
        scores = (query @ key.transpose(-2, -1)).squeeze(1)
        rows.append(
            {"d_k": d_k, "scaled": _softmax_facts(scores * d_k**-0.5), "unscaled": _softmax_facts(scores)}
        )
    return {"keys": KEYS, "rows": rows, "initialised": _initialised()}


def _softmax_facts(scores: Tensor) -> dict[str, float]:
    """Return the variance of scores, and how far softmax is from one-hot.

    The Jacobian of softmax is `diag(p) - p p^T`; its trace, `1 - sum p^2`, is 0 where a row is one-hot, and
    then no gradient passes.
    """
    weights = scores.softmax(-1)
    trace = 1 - weights.square().sum(-1)
    return {
        "variance": float(scores.var()),
        "largest_weight": float(weights.amax(-1).mean()),
        "jacobian_trace": float(trace.mean()),
        "rows_saturated": float((trace < 0.01).double().mean()),
    }


def _initialised() -> dict[str, float]:
    """Return the variance of scaled scores behind freshly initialised `torch.nn.Linear` projections."""
    torch.manual_seed(1)
    inputs = torch.randn(4096, 512)
    with torch.no_grad():
        query, key = (
            torch.nn.Linear(512, 512)(inputs).unflatten(-1, (8, 64)).transpose(0, 1) for _ in range(2)
        )
        scores = query[:, :512] @ key[:, 512:1024].transpose(-2, -1) * 64**-0.5
    return {
        "input_variance": float(inputs.var()),
        "query_variance": float(query.var()),
        "score_variance": float(scores.var()),
    }


def fill_value() -> dict[str, Any]:
    """Mask with -1e9 in each dtype: a row with one key left, and a row with none."""
    return {
        "fill": FILL,
        "rows": [_fill_in(dtype) for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16)],
    }


def _fill_in(dtype: torch.dtype) -> dict[str, Any]:
    scores = torch.tensor([[1.0, 2.0, 4.0]], dtype=dtype)
    some, every = torch.tensor([[False, True, True]]), torch.ones(1, 3, dtype=torch.bool)
    found: dict[str, Any] = {
        "dtype": str(dtype).removeprefix("torch."),
        "stored": float(torch.tensor(FILL).to(dtype)),
    }
    try:
        found["visible_weight"] = float(scores.masked_fill(some, FILL).softmax(-1)[0, 0])
        found["masked_weight"] = float(scores.masked_fill(some, FILL).softmax(-1)[0, 1])
        found["dead_row"] = scores.masked_fill(every, FILL).softmax(-1)[0].tolist()
        found["raises"] = ""
    except RuntimeError as error:
        found["raises"] = str(error).splitlines()[0]
    # The other way to write it: adding.
    added = scores + torch.tensor(FILL).to(dtype) * every
    found["dead_row_by_adding"] = added.softmax(-1)[0].tolist()
    return found
