"""Experiments on a layer, in the order in which one needs what the other found."""

from collections.abc import Mapping
from typing import Any

from ..conformance.space import Space
from ..declaration import Declaration
from ..loading import Target
from .experiments import Probe
from .layer_behaviour import (
    decide_alignment,
    decide_axes,
    decide_causality,
    find_apart,
    find_length,
    find_refused,
    keep_dtypes,
    name_cache,
    note_biases,
)
from .layer_call import construct_layer, plain_call, read_call, read_features
from .layer_runner import BASE, Runner
from .masks import decide_masks
from .names import NEW_NAMES, match_names, parameters_of
from .needed_mask import find_needed_mask, settle_needed_mask
from .surroundings import decide_dropout, decide_weights
from .window import decide_window


def probe_layer(
    target: Target,
    declaration: Declaration,
    namespace: Mapping[str, Any],
    stated: Declaration,
    fixed: Mapping[str, int],
) -> Probe:
    """Find out how a layer is used, where its weights are, and what it supports."""
    space = Space(
        contract="layer", sources=("self",), fixed={k: v for k, v in fixed.items() if k != "d_model"}
    )
    probe = Probe(target, namespace, declaration, space, stated=stated, heads=fixed.get("heads", BASE.heads))
    new_names = match_names(parameters_of(target.object), NEW_NAMES)
    module = construct_layer(probe)
    read_call(probe, module)
    read_features(probe, new_names)
    if "kv_heads" in (declaration.new or "") or "group" in new_names:
        probe.add("grouped")
    run = Runner(probe)
    find_needed_mask(probe, module.forward, run.positions_meet)
    alive = plain_call(probe, run)
    if alive:
        decide_axes(probe, run)
        decide_causality(probe, run)
        decide_window(probe, run)
    decide_weights(probe, run)
    note_biases(probe)
    keep_dtypes(probe, run)
    if alive:
        name_cache(probe, module)
        decide_dropout(probe, run)
        find_refused(probe, run)
        decide_alignment(probe, run)
        find_length(probe, run)
        decide_masks(probe, run.see, sizes=(BASE.batch, BASE.q_len, BASE.kv_len))
        settle_needed_mask(probe)
        if "mask" in probe.declaration.arguments or "padding" in probe.declaration.arguments:
            find_apart(probe, run)
    return probe
