"""Hold right implementations against the bound, and measure which mistakes it shows.

    python tests/numerics/validate_bound.py            seven minutes; writes results.json beside this file
    python tests/numerics/validate_bound.py --quick    a few seconds; writes nothing

Every case is drawn from its number. Exit status 1 if a right implementation leaves the bound.
"""

import argparse
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import drawn
import precise
import torch
import under_autocast
import wrong
from comparing import (
    DTYPES,
    Record,
    Records,
    compare,
    difference,
    gradients,
    in_range,
    is_layer,
    leaves,
    scores_in_range,
    seen_by,
    upstream_for,
)
from torch import Tensor

import right
from attnspec._inputs import CoreInputs
from attnspec.conformance.bound import core_bound, weights_bound
from attnspec.conformance.bound_gradient import core_gradient_bounds, layer_gradient_bounds
from attnspec.conformance.bound_layer import layer_bound
from attnspec.oracle import vectorised
from attnspec.precision import PRECISIONS, Roundoffs

RESULTS = Path(__file__).with_name("results.json")
SIZES = {
    "full": {
        "core": 1600,
        "core_gradient": 700,
        "layer": 500,
        "autocast": 200,
        "precise": 120,
        "sensitivity": 150,
    },
    "quick": {"core": 20, "core_gradient": 10, "layer": 8, "autocast": 5, "precise": 4, "sensitivity": 6},
}


def run_cores(count: int, first: int, records: Records) -> None:
    """Compare outputs and weights of cores."""
    for seed in range(first, first + count):
        for name in ("float32", "bfloat16", "float16"):
            inputs = drawn.core(seed).to(DTYPES[name])
            if not scores_in_range(name, inputs):
                continue
            exact, roundoffs = vectorised.core(inputs), PRECISIONS["stored"].at(DTYPES[name])
            sharp = core_bound(inputs, exact, roundoffs, sharp=True)
            assert bool((core_bound(inputs, exact, roundoffs, sharp=False) >= sharp * (1 - 1e-6)).all())
            for which, core in right.CORES.items():
                got = core(inputs)
                if got is not None:
                    records["core", name, which].add(difference(got, exact.output), sharp, f"core {seed}")
            allowed = weights_bound(inputs, exact, roundoffs)
            got = naive_weights(inputs)
            records["weights", name, "naive_post"].add(
                difference(got, exact.weights), allowed, f"core {seed}"
            )


def naive_weights(inputs: CoreInputs) -> Tensor:
    """Return weights, all in the input's dtype."""
    scores, alive = right.finish(inputs, (inputs.query @ right.shared(inputs)[0].mT) * inputs.factor)
    return scores.softmax(-1).masked_fill(~alive, 0.0)


def run_core_gradients(count: int, first: int, records: Records) -> None:
    """Compare gradients of cores."""
    for seed in range(first, first + count):
        for name in ("float32", "bfloat16", "float16"):
            dtype = DTYPES[name]
            inputs = drawn.core(seed).to(dtype)
            wide = leaves(inputs.to(torch.float64))
            exact = vectorised.core(wide)
            upstream = upstream_for(exact.output, seed, dtype)
            expected = gradients(wide, exact.output, upstream.double())
            bounds = core_gradient_bounds(inputs, exact, upstream, PRECISIONS["stored"].at(dtype))
            sizes = [expected[n].abs() + bounds[n] for n in bounds]
            steep = upstream.double().abs() @ right.shared(inputs.to(torch.float64))[1].abs().mT
            steep = steep * max(1.0, inputs.softcap or 1.0)
            if not scores_in_range(name, inputs) or not in_range(name, steep, *sizes):
                continue
            for which, core in right.CORES.items():
                given = leaves(inputs)
                if which == "sdpa_flash" and given.bias is not None:
                    given = given.replace(bias=given.bias.detach())
                got = core(given)
                if got is not None:
                    found = gradients(given, got, upstream)
                    compare("core gradient", name, which, found, expected, bounds, f"core {seed}", records)
            found = right.recompute(inputs, upstream)
            compare("core gradient", name, "recompute", found, expected, bounds, f"core {seed}", records)


def run_layers(count: int, first: int, records: Records) -> None:
    """Compare outputs and gradients of layers."""
    for seed in range(first, first + count):
        for name in ("float32", "bfloat16", "float16"):
            dtype, roundoffs = DTYPES[name], PRECISIONS["stored"].at(DTYPES[name])
            inputs = drawn.layer(seed).to(dtype)
            wide = leaves(inputs.to(torch.float64))
            exact = vectorised.layer(wide)
            upstream = upstream_for(exact.output, seed, dtype)
            expected = gradients(wide, exact.output, upstream.double())
            allowed = layer_bound(inputs, exact, roundoffs)
            bounds = layer_gradient_bounds(inputs, exact, upstream, roundoffs)
            sizes = [expected[n].abs() + bounds[n] for n in bounds]
            if not scores_in_range(name, exact.core_inputs) or not in_range(name, *sizes):
                continue
            for which, layer in right.LAYERS.items():
                given = leaves(inputs)
                got = layer(given)
                if got is None:
                    continue
                records["layer", name, which].add(
                    difference(got, exact.output.detach()), allowed, f"layer {seed}"
                )
                found = gradients(given, got, upstream.to(got.dtype))
                compare("layer gradient", name, which, found, expected, bounds, f"layer {seed}", records)


def _precisely(exact: Any, like: Tensor, got: Tensor) -> Tensor:
    high, low = precise.nearest(exact, like)
    return ((got.detach() - high) - low).abs().nan_to_num(torch.inf, torch.inf)


def run_precise(count: int, first: int, records: Records) -> None:
    """Hold float64, oracle and implementations, against 40 digits; the oracle gets half of the bound."""
    dtype, roundoffs = torch.float64, PRECISIONS["stored"].at(torch.float64)
    for seed in range(first, first + count):
        for draw, oracle, reference, subjects in (
            (drawn.core, vectorised.core, precise.core, right.CORES),
            (drawn.layer, vectorised.layer, precise.layer, right.LAYERS),
        ):
            inputs = draw(seed, small=True)
            wide = leaves(inputs)
            exact = oracle(wide)
            upstream = upstream_for(exact.output, seed, dtype)
            inner = exact.core_inputs if is_layer(inputs) else inputs
            truth = reference(inputs, seen_by(inner), upstream)
            bounds = _float64_bounds(inputs, exact, upstream, roundoffs)
            kind = "layer" if is_layer(inputs) else "core"
            for which, subject in {"oracle": lambda _, e=exact: e.output, **subjects}.items():
                given = wide if which == "oracle" else leaves(inputs)
                if which == "sdpa_flash" and given.bias is not None:
                    given = given.replace(bias=given.bias.detach())
                got = subject(given)
                if got is None:
                    continue
                both = {"output": got, **gradients(given, got, upstream)}
                share = 0.5 if which == "oracle" else 1.0
                for tensor in bounds.keys() & both.keys():
                    quantity = kind if tensor == "output" else f"{kind} gradient {tensor}"
                    error = _precisely(truth[tensor], both[tensor], both[tensor])
                    records[quantity, "float64", which].add(
                        error, share * bounds[tensor], f"precise {kind} {seed}"
                    )


def _float64_bounds(inputs: Any, exact: Any, upstream: Tensor, roundoffs: Roundoffs) -> dict[str, Tensor]:
    if is_layer(inputs):
        return {
            "output": layer_bound(inputs, exact, roundoffs),
            **layer_gradient_bounds(inputs, exact, upstream, roundoffs),
        }
    return {
        "output": core_bound(inputs, exact, roundoffs),
        **core_gradient_bounds(inputs, exact, upstream, roundoffs),
    }


def sensitivity_inputs(seed: int) -> CoreInputs:
    """Return an ordinary call: normal values, up to 128 keys, a mask that leaves one query nothing."""
    g = torch.Generator().manual_seed(seed)
    q_len, kv_len, width = (7, 33, 65)[seed % 3], (9, 33, 64, 128)[seed % 4], (16, 64)[seed % 2]
    query, key, value = (
        torch.randn(2, 2, n, width, generator=g, dtype=torch.float64) for n in (q_len, kv_len, kv_len)
    )
    mask = torch.rand(2, 1, q_len, kv_len, generator=g) < 0.8
    mask[0, :, 0] = False
    return CoreInputs(query=query, key=key, value=value, mask=mask)


def run_sensitivity(count: int, first: int) -> list[dict[str, Any]]:
    """Return the share of inputs on which each defect leaves the bound, by dtype and precision class."""
    caught: dict[tuple[str, str, str], list[bool]] = defaultdict(list)
    for seed in range(first, first + count):
        for name in ("float32", "bfloat16", "float16"):
            inputs = sensitivity_inputs(seed).to(DTYPES[name])
            exact = vectorised.core(leaves(inputs.to(torch.float64)))
            outputs = {n: f(_unmasked(n, inputs)) for n, f in wrong.FORWARD.items()}
            plain = vectorised.core(_unmasked("", inputs))
            for kind, precision in PRECISIONS.items():
                roundoffs = precision.at(DTYPES[name])
                allowed = (
                    core_bound(inputs, exact, roundoffs),
                    core_bound(_unmasked("", inputs), plain, roundoffs),
                )
                for defect, got in outputs.items():
                    masked = defect == "mean_in_dead_rows"
                    bound, expected = (allowed[0], exact.output) if masked else (allowed[1], plain.output)
                    caught[defect, name, kind].append(
                        bool((difference(got, expected.detach()) > bound).any())
                    )
            _backward_defects(seed, name, inputs, caught)
    return [
        {
            "defect": defect,
            "dtype": name,
            "precision": kind,
            "inputs": len(seen),
            "caught": round(sum(seen) / len(seen), 4),
        }
        for (defect, name, kind), seen in sorted(caught.items())
    ]


def _unmasked(defect: str, inputs: CoreInputs) -> CoreInputs:
    return inputs if defect == "mean_in_dead_rows" else inputs.replace(mask=None)


def _backward_defects(
    seed: int, name: str, inputs: CoreInputs, caught: dict[tuple[str, str, str], list[bool]]
) -> None:
    inputs, dtype = inputs.replace(mask=None), DTYPES[name]
    wide = leaves(inputs.to(torch.float64))
    exact = vectorised.core(wide)
    upstream = drawn.values("normal", tuple(exact.output.shape), torch.Generator().manual_seed(seed)).to(
        dtype
    )
    expected = gradients(wide, exact.output, upstream.double())
    bounds = core_gradient_bounds(inputs, exact, upstream, PRECISIONS["stored"].at(dtype))
    for defect, function in wrong.BACKWARD.items():
        given = leaves(inputs)
        found = gradients(given, function(given), upstream)
        caught[defect, name, "stored"].append(
            any(bool((difference(found[n], expected[n]) > b).any()) for n, b in bounds.items())
        )


def summary(records: Records) -> dict[str, Any]:
    """Return every row, and the totals by dtype."""
    rows = [
        {"quantity": q, "dtype": d, "implementation": i, **r.summary()}
        for (q, d, i), r in sorted(records.items())
        if r.ratios
    ]
    totals = [_total(name, [r for r in rows if r["dtype"] == name], records) for name in DTYPES]
    return {"totals": [t for t in totals if t["comparisons"]], "rows": rows}


def _total(name: str, rows: Iterable[dict[str, Any]], records: Records) -> dict[str, Any]:
    rows = list(rows)
    ratios = [ratio for (_, dtype, _), record in records.items() if dtype == name for ratio in record.ratios]
    return {
        "dtype": name, "comparisons": len(ratios), "elements": sum(r["elements"] for r in rows),
        "violations": sum(r["violations"] for r in rows),
        "largest": max((r["largest"] for r in rows), default=0.0),
        "median": round(statistics.median(ratios), 4) if ratios else 0.0,
    }  # fmt: skip


def run(size: str, first: int) -> dict[str, Any]:
    """Run everything and return the results."""
    start, counts, records = time.perf_counter(), SIZES[size], defaultdict(Record)
    run_cores(counts["core"], first, records)
    run_core_gradients(counts["core_gradient"], first, records)
    run_layers(counts["layer"], first, records)
    under_autocast.run(counts["autocast"], first, records)
    run_precise(counts["precise"], first, records)
    defects = run_sensitivity(counts["sensitivity"], first)
    head = {"size": size, "first_seed": first, "cases": counts, "torch": torch.__version__}
    return (
        head | {"seconds": round(time.perf_counter() - start)} | summary(records) | {"sensitivity": defects}
    )


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few seconds, writes nothing")
    parser.add_argument("--first-seed", type=int, default=0)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    results = run("quick" if chosen.quick else "full", chosen.first_seed)
    for total in results["totals"]:
        print(json.dumps(total))
    failed = [row for row in results["rows"] if row["violations"]]
    for row in failed:
        print(json.dumps(row))
    if not chosen.quick:
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
