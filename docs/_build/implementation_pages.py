"""A page for each implementation of the catalogue, on one skeleton, and their index."""

import inspect
from pathlib import Path
from typing import Any

import torch

from attnspec import clauses
from attnspec._registry import Implementation, registry
from attnspec.precision import precision

from . import costs, links
from .runs import Request, run_all
from .site import Output, code, fence, number, table

# What is kept beside inputs, projections and output while attention is computed. An implementation that is
# not listed says nothing here; everything else on its page is read from it.
MEMORY = {
    "per_head_loop": "one head's scores at a time, `batch q_len kv_len`; all of them for gradients",
    "local_window": "a band of scores: `batch heads q_len (block + left + right)`",
    "blockwise": "one block of scores: `batch heads q_len block`, in the backward pass too",
    "blockwise_core": "one block of scores: `batch heads q_len block`, in the backward pass too",
    "sdpa": "whatever torch's kernel keeps: no scores on the fused paths, all of them on the plain one",
    "sdpa_core": "whatever torch's kernel keeps: no scores on the fused paths, all of them on the plain one",
    "flex": "no scores when compiled on a GPU; all of them, `batch heads q_len kv_len`, otherwise",
}
ALL_SCORES = "all scores: `batch heads q_len kv_len`"
FULL = (
    "batched",
    "fused_qkv",
    "fused_qkv_interleaved",
    "grouped_query",
    "mixed_precision",
    "math_core",
    "cached",
)
PROJECTIONS = {
    "separate": "one matrix each for queries, keys, values and the output",
    "per head": "small matrices for each head",
    "stacked": "one matrix `3 heads d_k`: all queries, then all keys, then all values",
    "interleaved": "one matrix `heads 3 d_k`: each head's query, key and value together",
}


def runs() -> dict[str, dict[str, Any]]:
    """Return for each implementation its check and its trace."""
    names = list(registry())
    wanted = [Request(kind, target=name) for name in names for kind in ("check", "trace")]
    results = iter(run_all(wanted))
    return {name: {"check": next(results), "trace": next(results)} for name in names}


def write(out: Output, found: dict[str, dict[str, Any]]) -> None:
    """Write the pages."""
    known = registry()
    for name in known:
        record = known.get(name)
        text = page(record, found[name])
        out.page(f"implementations/{name}.md", name, f"{name}: {record.summary}.", text)
    rows = [
        (f"[{n}]({n}.md)", known.get(n).contract, known.get(n).summary, verdict(found[n]["check"]))
        for n in known
    ]
    text = (
        "Each implementation is one file, held to the contract like anybody's; every page has the same parts."
        " [Add your own](../add-your-own.md) in one file and one line.\n\n"
        + table(("implementation", "contract", "summary", "verdict"), rows)
    )  # fmt: skip
    out.page(
        "implementations/index.md",
        "Implementations",
        "The built-in implementations of multi-head attention, side by side.",
        text,
    )


def verdict(check: dict[str, Any]) -> str:
    """Return the verdict in a few words."""
    broken = sum(
        r["status"] in ("failed", "error", "question") and r["level"] != "SHOULD" for r in check["results"]
    )
    advised = sum(r["status"] == "failed" and r["level"] == "SHOULD" for r in check["results"])
    words = "conforms" if check["ok"] else f"{broken} broken"
    return words + (f", {advised} advised" if advised else "")


def page(record: Implementation, found: dict[str, Any]) -> str:
    """Return one implementation's page."""
    parts = [f"{record.summary[0].upper()}{record.summary[1:]}.\n"]
    parts += ["## Idea, and when to use it { #idea }\n", f"{record.idea}\n"]
    parts += ["## Weights { #weights }\n", weights(record)]
    parts += ["## Conformance { #conformance }\n", conformance(record, found["check"])]
    parts += ["## Precision { #precision }\n", precision_words(record)]
    parts += ["## Cost { #cost }\n", cost(record)]
    parts += ["## Deviations { #deviations }\n", deviations(record)]
    parts += ["## Shapes of a real run { #shapes }\n", shapes(found["trace"])]
    file = Path(inspect.getsourcefile(record.target) or "")
    parts += [
        "## Source { #source }\n",
        fence(file.read_text(encoding="utf-8"), "python", f'title="{file.name}"'),
    ]
    return "\n".join(parts)


def instance(record: Implementation) -> tuple[torch.nn.Module, str]:
    """Return a layer, with fewer key/value heads where it can have them, and how it was made."""
    sizes = {name: costs.FIELDS[name] for name in ("d_model", "heads")}
    if "kv_heads" in inspect.signature(record.target).parameters:
        sizes["kv_heads"] = 2
    return record.target(**sizes, **record.extra), ", ".join(f"{name}={size}" for name, size in sizes.items())


def weights(record: Implementation) -> str:
    """Return the layout of the weights, with the parameters of an instance."""
    if record.contract == "core":
        return "None: a core takes queries, keys and values that are projected already.\n"
    layer, call = instance(record)
    rows = [(code(n), code(str(tuple(p.shape)))) for n, p in layer.named_parameters()]
    shown = rows if len(rows) <= 10 else [*rows[:6], ("…", f"{len(rows) - 6} more, alike")]
    said = f"{record.projection.capitalize()}: {PROJECTIONS[record.projection]}. With {code(call)}:"
    return f"{said}\n\n" + table(("parameter", "shape"), shown)


def conformance(record: Implementation, check: dict[str, Any]) -> str:
    """Return the row of the matrix, and whatever does not hold."""
    book = {c.name: c for c in clauses().chapters}
    rows = [
        (f"[{book[n].title}](../clauses/{n}.md)", str(held), str(ran))
        for n, (held, ran) in check["chapters"].items()
    ]
    command = code(f"attnspec check {record.name} --profile {check['profile']}")
    said = f"**{verdict(check)}**; {check['ran']} of {check['of']} clauses ran."
    lines = [f"{command}, run when this site was built: {said}\n", table(("chapter", "hold", "ran"), rows)]
    lines += [fence(text) for text in check["failures"]]
    skipped = sorted({r["reason"] for r in check["results"] if r["status"] == "not applicable"})
    if skipped:
        lines.append("Not applicable: " + "; ".join(skipped) + ".\n")
    return "\n".join(lines)


def precision_words(record: Implementation) -> str:
    """Return the declared precision class and its roundoffs."""
    found = precision(record.precision)
    rows = []
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        u = found.at(dtype)
        values = (u.accumulation, u.scores, u.probabilities, u.output)
        rows.append((str(dtype).removeprefix("torch."), *(f"{v:.1e}" for v in values)))
    return (
        f"Declared: **{found.name}**, {found.meaning}. Its unit roundoffs, which make the tolerance:\n\n"
        + table(("dtype", "sums", "scores", "probabilities", "output"), rows)
    )


def cost(record: Implementation) -> str:
    """Return parameters, operations and memory as formulas."""
    memory = MEMORY.get(record.name, ALL_SCORES if record.name in FULL else "not stated")
    core = [c for c in costs.CALLS if not c.stage.startswith("project_")]
    chosen = core if record.contract == "core" else costs.CALLS
    terms = dict.fromkeys(code(c.flops.replace("*", "·")) for c in chosen if c.flops != "0")
    rows = [("operations", " + ".join(terms)), ("memory kept", memory)]
    if record.contract != "core":
        formula = "`d_model·d_k·(2·heads + 2·kv_heads)` weights, `d_k·(heads + 2·kv_heads) + d_model` biases"
        layer, call = instance(record)
        counted = number(sum(p.numel() for p in layer.parameters()))
        rows.insert(0, ("parameters", f"{formula}; counted with {code(call)}: {counted}"))
    return table(("", ""), rows) + "\nOther sizes: the [shape explorer](../stages.md#explorer).\n"


def deviations(record: Implementation) -> str:
    """Return the declared deviations."""
    if not record.deviations:
        return "None.\n"
    return table(
        ("clause", "reason"),
        [(links.clause(n, up="../"), links.issues(r)) for n, r in record.deviations.items()],
    )


def shapes(trace: dict[str, Any]) -> str:
    """Return the traced table."""
    if "markdown" not in trace:
        return f"{trace['unavailable']}\n"
    return (
        "\n".join(line for line in trace["markdown"].splitlines() if not line.startswith("## ")).strip()
        + "\n"
    )
