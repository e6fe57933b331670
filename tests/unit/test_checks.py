"""Every message of the call checks, whole; and that the checks read no element."""

import re
import tomllib
from pathlib import Path

import pytest
import torch

import attnspec
from attnspec import _checks
from attnspec._checks import (
    check_cached_call,
    check_core_call,
    check_layer_call,
    check_layer_sizes,
    check_layer_weights,
    check_local_heads,
    check_positive,
    check_settings,
)
from attnspec._errors import DtypeError, ShapeError
from attnspec.weights import LayerWeights

QUERY, KEY, VALUE = torch.zeros(2, 6, 5, 11), torch.zeros(2, 3, 7, 11), torch.zeros(2, 3, 7, 13)
INPUTS, CONTEXT = torch.zeros(2, 5, 6), torch.zeros(2, 7, 6)
TENSORS = "  query: float32[2, 6, 5, 11]   key: float32[2, 3, 7, 11]   value: float32[2, 3, 7, 13]"


def core(*tensors: torch.Tensor, **options: object) -> None:
    """Check a core call in which some arguments are replaced."""
    query, key, value = tensors or (QUERY, KEY, VALUE)
    check_core_call("attend", query, key, value, **options)


def layer(*tensors: torch.Tensor | None, **options: object) -> None:
    """Check a call of a layer of width 6 with 3 heads."""
    check_layer_call("Layer", *tensors, d_model=6, heads=3, **options)


def cached(**options: object) -> None:
    """Check a step of a cached layer of width 6 with 3 heads."""
    slots = torch.zeros(2, 3, 7, 2)
    check_cached_call("Layer", INPUTS, slots, slots, d_model=6, kv_heads=3, d_k=2, **options)


MESSAGES = {
    "rank": (
        lambda: core(QUERY[0], KEY, VALUE),
        ShapeError,
        (
            "attend: query must have 4 axes (batch heads q_len d_k); got 3, expected 4\n"
            "  query: float32[6, 5, 11]   key: float32[2, 3, 7, 11]   value: float32[2, 3, 7, 13]\n"
            "  clause shape.output; add an axis of size 1 for a single one, as in tensor[None]"
        ),
    ),
    "d_k": (
        lambda: core(QUERY, VALUE, VALUE),
        ShapeError,
        (
            "attend: key must share axis d_k with query; got 13, expected 11\n"
            "  query: float32[2, 6, 5, 11]   key: float32[2, 3, 7, 13]   value: float32[2, 3, 7, 13]\n"
            "  clause refusal.widths; project both to the same width before scoring"
        ),
    ),
    "batch": (
        lambda: core(QUERY[:1], KEY, VALUE),
        ShapeError,
        (
            "attend: key must share axis batch with query; got 2, expected 1\n"
            "  query: float32[1, 6, 5, 11]   key: float32[2, 3, 7, 11]   value: float32[2, 3, 7, 13]\n"
            "  clause shape.output; give every sequence its own keys, or expand the batch axis first"
        ),
    ),
    "kv_len": (
        lambda: core(QUERY, KEY, VALUE[:, :, :5]),
        ShapeError,
        (
            "attend: value must share axis kv_len with key; got 5, expected 7\n"
            "  query: float32[2, 6, 5, 11]   key: float32[2, 3, 7, 11]   value: float32[2, 3, 5, 13]\n"
            "  clause refusal.lengths; keys and values are pairs, so take both from the same positions"
        ),
    ),
    "kv_heads differ": (
        lambda: core(QUERY, KEY, VALUE[:, :1]),
        ShapeError,
        (
            "attend: value must share axis kv_heads with key; got 1, expected 3\n"
            "  query: float32[2, 6, 5, 11]   key: float32[2, 3, 7, 11]   value: float32[2, 1, 7, 13]\n"
            "  clause refusal.kv_heads; keys and values are pairs, so split both into the same heads"
        ),
    ),
    "kv_heads divide": (
        lambda: core(QUERY[:, :5], KEY, VALUE),
        ShapeError,
        (
            "attend: kv_heads must divide heads; got kv_heads=3, heads=5\n"
            "  query: float32[2, 5, 5, 11]   key: float32[2, 3, 7, 11]   value: float32[2, 3, 7, 13]\n"
            "  clause refusal.kv_heads; query head h reads key/value head h // (heads // kv_heads)"
        ),
    ),
    "mixed dtypes": (
        lambda: core(QUERY, KEY.half(), VALUE),
        DtypeError,
        (
            "attend: key must have the dtype of query; got float16, expected float32\n"
            "  query: float32[2, 6, 5, 11]   key: float16[2, 3, 7, 11]   value: float32[2, 3, 7, 13]\n"
            "  clause refusal.mixed_dtypes; convert it with .to(query.dtype), or run under torch.autocast"
        ),
    ),
    "integer query": (
        lambda: core(QUERY.int(), KEY, VALUE),
        DtypeError,
        (
            "attend: query must be floating; got int32, expected a floating dtype\n"
            "  query: int32[2, 6, 5, 11]   key: float32[2, 3, 7, 11]   value: float32[2, 3, 7, 13]\n"
            "  clause dtype.output; convert it with .float()"
        ),
    ),
    "mask of rank 3": (
        lambda: core(mask=torch.ones(2, 5, 7, dtype=torch.bool)),
        ShapeError,
        (
            "attend: mask must have 2 axes (q_len kv_len) or 4 (batch heads q_len kv_len); got 3,"
            f" expected 2 or 4\n{TENSORS}   mask: bool[2, 5, 7]\n"
            "  clause refusal.mask_rank; write mask[:, None] if its first axis is batch,"
            " mask[None] if it is heads"
        ),
    ),
    "mask of floats": (
        lambda: core(mask=torch.zeros(5, 7)),
        DtypeError,
        (
            "attend: mask must be boolean, True where a query may attend; got float32, expected bool\n"
            f"{TENSORS}   mask: float32[5, 7]\n"
            "  clause refusal.mask_dtype; numbers that are added belong in bias;"
            " attnspec.conventions.attend_from_additive takes 0 and -inf"
        ),
    ),
    "mask of integers": (
        lambda: core(mask=torch.zeros(5, 7, dtype=torch.int64)),
        DtypeError,
        (
            "attend: mask must be boolean, True where a query may attend; got int64, expected bool\n"
            f"{TENSORS}   mask: int64[5, 7]\n"
            "  clause refusal.mask_dtype; write mask != 0,"
            " or attnspec.conventions.attend_from_blocked(mask != 0) if 1 means blocked"
        ),
    ),
    "mask of another length": (
        lambda: core(mask=torch.ones(1, 1, 5, 3, dtype=torch.bool)),
        ShapeError,
        (
            "attend: mask must broadcast to the scores at kv_len; got 3, expected 1 or 7\n"
            f"{TENSORS}   mask: bool[1, 1, 5, 3]\n"
            "  clause refusal.mask_shape; its axes are batch heads q_len kv_len"
        ),
    ),
    "bias of the key heads": (
        lambda: core(bias=torch.zeros(1, 3, 5, 7)),
        ShapeError,
        (
            "attend: bias must broadcast to the scores at heads; got 3, expected 1 or 6\n"
            f"{TENSORS}   bias: float32[1, 3, 5, 7]\n"
            "  clause bias.value; its axes are batch heads q_len kv_len"
        ),
    ),
    "bias of another dtype": (
        lambda: core(bias=torch.zeros(5, 7).double()),
        DtypeError,
        (
            "attend: bias must have the dtype of query; got float64, expected float32\n"
            f"{TENSORS}   bias: float64[5, 7]\n"
            "  clause refusal.mixed_dtypes; convert it with .to(query.dtype), or run under torch.autocast"
        ),
    ),
    "scale": (
        lambda: core(scale=float("nan")),
        ShapeError,
        (
            "attend: scale must be a finite number; got nan\n"
            "  clause scale.explicit; leave it out for d_k ** -0.5"
        ),
    ),
    "softcap": (
        lambda: core(softcap=0.0),
        ShapeError,
        (
            "attend: softcap must be positive and finite; got 0.0\n"
            "  clause softcap.value; leave it out for no cap"
        ),
    ),
    "window": (
        lambda: core(window=(3, -2)),
        ShapeError,
        (
            "attend: window must be two distances (left, right) of at least -1; got (3, -2)\n"
            "  clause window.value; write -1 for an unbounded side"
        ),
    ),
    "dropout": (
        lambda: core(dropout=1.0),
        ShapeError,
        (
            "attend: dropout must be at least 0 and below 1; got 1.0\n"
            "  clause dropout.rate_refused; it is a probability"
        ),
    ),
    "width of a layer": (
        lambda: layer(torch.zeros(2, 5, 7)),
        ShapeError,
        (
            "Layer: query must share axis d_model with the layer; got 7, expected 6\n"
            "  query: float32[2, 5, 7]\n"
            "  clause refusal.widths; project the input to the width of the layer first"
        ),
    ),
    "values without keys": (
        lambda: layer(INPUTS, None, CONTEXT),
        ShapeError,
        (
            "Layer: value must share axis kv_len with query; got 7, expected 5\n"
            "  query: float32[2, 5, 6]   value: float32[2, 7, 6]\n"
            "  clause refusal.lengths; keys and values are pairs, so take both from the same positions"
        ),
    ),
    "mask of a layer": (
        lambda: layer(INPUTS, CONTEXT, mask=torch.ones(5, 5, dtype=torch.bool)),
        ShapeError,
        (
            "Layer: mask must broadcast to the scores at kv_len; got 5, expected 1 or 7\n"
            "  query: float32[2, 5, 6]   key: float32[2, 7, 6]   mask: bool[5, 5]\n"
            "  clause refusal.mask_shape; its axes are q_len kv_len"
        ),
    ),
    "forgetful cache": (
        lambda: cached(window=(4, 0), reach=3),
        ShapeError,
        (
            "Layer: window must not look back further than the cache goes; got left=4, expected 0 to 3\n"
            "  query: float32[2, 5, 6]   key: float32[2, 3, 7, 2]   value: float32[2, 3, 7, 2]\n"
            "  clause window.value; an earlier window let the cache forget what is older;"
            " start anew to look further"
        ),
    ),
    "lengths": (
        lambda: cached(lengths=torch.tensor([5, 3, 1])),
        ShapeError,
        (
            "Layer: lengths must have 1 axis (batch); got [3], expected [2]\n"
            "  query: float32[2, 5, 6]   key: float32[2, 3, 7, 2]   value: float32[2, 3, 7, 2]\n"
            "  clause shape.output; count the real positions of each sequence"
        ),
    ),
    "heads of a layer": (
        lambda: check_layer_sizes("Layer", 6, 4),
        ShapeError,
        (
            "Layer: heads must divide d_model; got heads=4, d_model=6\n"
            "  clause refusal.sizes; choose heads among 1, 2, 3, 6"
        ),
    ),
    "no heads": (
        lambda: check_positive("Layer", heads=0),
        ShapeError,
        "Layer: heads must be at least 1; got 0\n  clause refusal.sizes; choose a positive size",
    ),
    "local heads": (
        lambda: check_local_heads("Layer", 3, heads=8, group=2),
        ShapeError,
        (
            "Layer: local_heads must be a multiple of 2 between 0 and 8; got 3\n"
            "  clause refusal.sizes; heads that share a key/value head share the pattern"
        ),
    ),
    "weights of other heads": (
        lambda: check_layer_weights(
            "Layer", LayerWeights.random(6, 3, bias=False), d_model=6, heads=2, kv_heads=2, d_k=3, bias=True
        ),
        ShapeError,
        (
            "Layer: weights must share axis heads with the layer; got 3, expected 2\n"
            "  W_q: float64[6, 6]   W_k: float64[6, 6]   W_v: float64[6, 6]   W_o: float64[6, 6]\n"
            "  clause params.round_trip; construct the layer with the sizes of the weights"
        ),
    ),
    "weights with biases": (
        lambda: check_layer_weights(
            "Layer", LayerWeights.random(6, 3), d_model=6, heads=3, kv_heads=3, d_k=2, bias=False
        ),
        ShapeError,
        (
            "Layer: weights must have no biases, because the layer has none;"
            " got b_q, b_k, b_v, b_o, expected none\n"
            "  clause params.round_trip; construct the layer with bias=True"
        ),
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_refusal_message_is_whole(name: str) -> None:
    call, error, message = MESSAGES[name]
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message


def test_messages_cite_clauses_that_exist() -> None:
    files = Path(attnspec.__file__).parent.joinpath("clauses").glob("*.toml")
    known = {name for file in files for name in tomllib.loads(file.read_text())["clause"]}
    source = Path(_checks.__file__).read_text()
    cited = set(re.findall(r'"([a-z_]+\.[a-z_]+(?:\.[a-z_]+)*)"', source))
    assert cited
    assert cited <= known


@pytest.mark.parametrize(
    "options",
    [
        {"mask": torch.ones(5, 7, dtype=torch.bool)},
        {"mask": torch.ones(2, 1, 1, 7, dtype=torch.bool), "bias": torch.zeros(1, 6, 5, 1)},
        {"scale": 0.0, "window": (-1, 3), "softcap": 0.5, "dropout": 0.0},
        {"scale": -2},
    ],
)
def test_legal_core_call_passes(options: dict[str, object]) -> None:
    core(QUERY, KEY, VALUE, **options)


@pytest.mark.parametrize(
    "tensors", [(INPUTS,), (INPUTS, CONTEXT), (INPUTS, CONTEXT, CONTEXT), (INPUTS, None, INPUTS)]
)
def test_legal_layer_call_passes(tensors: tuple[torch.Tensor | None, ...]) -> None:
    layer(*tensors)


def test_empty_axes_pass() -> None:
    core(QUERY[:0], KEY[:0], VALUE[:0])
    core(QUERY[:, :, :0], KEY, VALUE)
    core(QUERY, KEY[:, :, :0], VALUE[:, :, :0])
    layer(INPUTS[:, :0], CONTEXT[:, :0])


def test_mixed_dtypes_pass_under_autocast() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        core(QUERY, KEY.bfloat16(), VALUE.bfloat16())


def test_checks_read_no_element() -> None:
    query, key, value = (tensor.to("meta") for tensor in (QUERY, KEY, VALUE))
    check_core_call("attend", query, key, value, mask=torch.ones(5, 7, dtype=torch.bool, device="meta"))


def test_settings_accept_the_edges() -> None:
    check_settings("attend", scale=0.0, window=(-1, -1), softcap=1e-6, dropout=0.0)
