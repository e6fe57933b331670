"""Layers in float32 under autocast: general numbers go in, and are rounded on the way."""

import torch
from comparing import (
    DTYPES,
    Records,
    compare,
    difference,
    gradients,
    in_range,
    leaves,
    scores_in_range,
    upstream_for,
)
from drawn import layer as draw

import right
from attnspec.conformance.bound_gradient import layer_gradient_bounds
from attnspec.conformance.bound_layer import layer_bound
from attnspec.oracle import vectorised
from attnspec.precision import PRECISIONS

HALVES = ("bfloat16", "float16")
LAYERS = ("linear_naive", "linear_sdpa_math", "linear_blocks_16", "bias_apart", "fused", "head_by_head")


def run(count: int, first: int, records: Records) -> None:
    """Compare outputs and gradients of layers that autocast rounds."""
    for seed in range(first, first + count):
        for name in HALVES:
            inputs, roundoffs = draw(seed).to(torch.float32), PRECISIONS["stored"].at(DTYPES[name])
            wide = leaves(inputs.to(torch.float64))
            exact = vectorised.layer(wide)
            upstream = upstream_for(exact.output, seed, DTYPES[name])
            expected = gradients(wide, exact.output, upstream.double())
            allowed = layer_bound(inputs, exact, roundoffs, autocast=True)
            bounds = layer_gradient_bounds(inputs, exact, upstream, roundoffs, autocast=True)
            sizes = [expected[n].abs() + bounds[n] for n in bounds]
            if not scores_in_range(name, exact.core_inputs) or not in_range(name, *sizes):
                continue
            for which in LAYERS:
                given = leaves(inputs)
                with torch.autocast("cpu", dtype=DTYPES[name]):
                    got = right.LAYERS[which](given)
                if got is None:
                    continue
                called, case = f"autocast_{which}", f"layer {seed}"
                records["layer", name, called].add(difference(got, exact.output.detach()), allowed, case)
                found = gradients(given, got, upstream.to(got.dtype))
                compare("layer gradient", name, called, found, expected, bounds, case, records)
