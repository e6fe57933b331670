"""The claims that arithmetic decides: memory of grouped heads, and the size of every tensor."""

from math import prod
from typing import Any

from attnspec import stages  # noqa: F401 - entering the stages
from attnspec._table import STAGES
from attnspec.checkpoints import grouped_savings

# LLaMA-2-7B as published (arXiv:2307.09288 and its configuration file); it has no grouped heads itself.
LLAMA = {"d_model": 4096, "heads": 32, "layers": 32, "hidden": 11008, "vocabulary": 32000}
GROUP, HALF = 4, 2
WORKLOADS = ((1, 2048), (1, 4096), (8, 2048), (8, 4096), (16, 4096), (32, 4096))


def llama_parameters() -> int:
    """Return the parameters of LLaMA-2-7B with all its heads: 6 738 415 616."""
    d, hidden = LLAMA["d_model"], LLAMA["hidden"]
    layer = 4 * d * d + 3 * d * hidden + 2 * d
    return LLAMA["layers"] * layer + 2 * LLAMA["vocabulary"] * d + d


def grouped_memory() -> dict[str, Any]:
    """Count weights and cache of a 7-billion-parameter model, with all heads and with groups of four."""
    whole = llama_parameters()

    def at(batch: int, length: int) -> dict[str, Any]:
        saved = grouped_savings(
            d_model=LLAMA["d_model"], heads=LLAMA["heads"], kv_heads=LLAMA["heads"] // GROUP,
            layers=LLAMA["layers"], batch=batch, length=length, bytes_per_number=HALF,
        )  # fmt: skip
        weights = (whole, whole - saved.parameters_before + saved.parameters_after)
        before = weights[0] * HALF + saved.cache_bytes_before
        after = weights[1] * HALF + saved.cache_bytes_after
        return {
            "batch": batch,
            "length": length,
            "weights_before": weights[0] * HALF,
            "weights_after": weights[1] * HALF,
            "cache_before": saved.cache_bytes_before,
            "cache_after": saved.cache_bytes_after,
            "saved": 1 - after / before,
        }

    rows = [at(batch, length) for batch, length in WORKLOADS]
    token = at(1, 1)
    gained = token["weights_before"] - token["weights_after"]
    each_before, each_after = token["cache_before"], token["cache_after"]
    # 0.4 (W + n b) = (W - W') + n (b - a), solved for the number of cached tokens n.
    tokens = (0.4 * token["weights_before"] - gained) / (each_before - each_after - 0.4 * each_before)
    return {
        "parameters": whole,
        "weights_saved": gained / token["weights_before"],
        "cache_saved": 1 - each_after / each_before,
        "cache_bytes_per_token": each_before,
        "tokens_for_40_percent": round(tokens),
        "rows": rows,
    }


def tensor_sizes(batch: int = 32, length: int = 100, d_model: int = 512, heads: int = 8) -> dict[str, Any]:
    """Return the sizes of every tensor, each evaluated from its stage's signature."""
    width = d_model // heads
    sizes = {
        "batch": batch, "seq": length, "q_len": length, "kv_len": length, "d_model": d_model, "heads": heads,
        "kv_heads": heads, "d_k": width, "d_v": width, "width": d_model,
    }  # fmt: skip
    rows = []
    for stage in STAGES.values():
        if stage.path != "common":
            continue
        shape = [int(eval(_expression(dim), {}, sizes)) for dim in stage.result.dims]
        rows.append(
            {
                "stage": stage.name,
                "axes": list(stage.result.dims),
                "shape": shape,
                "float32_bytes": 4 * prod(shape),
            }
        )
    return {"batch": batch, "length": length, "d_model": d_model, "heads": heads, "rows": rows}


def _expression(dim: str) -> str:
    """Return a dimension as the signature has it, as arithmetic on the axes' names."""
    return dim.strip("#").replace("{", "").replace("}", "")
