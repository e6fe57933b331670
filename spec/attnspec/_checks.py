"""What implementations check when they are called, and the only place that builds shape messages.

The axes are read from the stages' signatures. A check compares Python integers and dtypes and touches no
element; a message is built only when it is raised. So `torch.compile` traces straight through. The module is
long because all messages are here: they are to read alike.
"""

from collections.abc import Iterable, Mapping
from math import isfinite

import torch
from torch import Tensor

from . import stages
from ._errors import DtypeError, ShapeError
from ._table import STAGES
from .weights import BIASES, LayerWeights

Dims = tuple[str, ...]
Sizes = dict[str, tuple[int, str]]  # axis -> its size, and the argument that set it


def _dims(stage: object, argument: str, **renamed: str) -> Dims:
    """Return the axes of one argument of a stage, some of them under another name."""
    arguments = STAGES[stage.__name__].arguments  # type: ignore[attr-defined]
    (dims,) = (a.dims for a in arguments if a.name == argument)
    return tuple(renamed.get(dim, dim) for dim in dims)


CORE: Mapping[str, Dims] = {
    "query": _dims(stages.scores, "query"),
    "key": _dims(stages.scores, "key", heads="kv_heads"),
    "value": _dims(stages.aggregate_values, "value", heads="kv_heads"),
}
LAYER: Mapping[str, Dims] = {
    "query": _dims(stages.project_queries, "query_input"),
    "key": _dims(stages.project_keys, "key_input"),
    "value": _dims(stages.project_values, "value_input"),
}
SCORES: Dims = STAGES[stages.scores.__name__].result.dims
MATRIX_RANKS = (2, len(SCORES))


def check_core_call(
    function: str, query: Tensor, key: Tensor, value: Tensor, *,
    mask: Tensor | None = None, bias: Tensor | None = None, scale: float | None = None,
    window: tuple[int, int] | None = None, softcap: float | None = None, dropout: float = 0.0,
) -> None:  # fmt: skip
    """Refuse a call of a core that the contract does not allow.

    Args:
        function: Who is called; the first word of every message.
        query: Projected queries, heads in front of positions; `key` and `value` likewise.
        key: See `query`; its heads divide the query's.
        value: See `key`.
        mask: True where a query may attend.
        bias: Added to the scaled scores.
        scale: Factor on the scores; None is the default.
        window: Inclusive distances; -1 is unbounded.
        softcap: Bound of the scores; None is no cap.
        dropout: Probability of dropping a weight.

    Raises:
        ShapeError: If a rank, a size or a setting is not allowed.
        DtypeError: If a dtype, or a mix of dtypes, is not allowed.
    """
    tensors = {"query": query, "key": key, "value": value}
    _check_dtypes(function, tensors)
    sizes: Sizes = {}
    _bind(function, tensors, CORE, sizes)
    _check_grouping(function, sizes["heads"][0], sizes["kv_heads"][0], tensors)
    _check_mask_and_bias(function, tensors, sizes, mask, bias)
    check_settings(function, scale=scale, window=window, softcap=softcap, dropout=dropout)


def check_layer_call(
    function: str, query: Tensor, key: Tensor | None = None, value: Tensor | None = None, *,
    d_model: int, heads: int,
    mask: Tensor | None = None, bias: Tensor | None = None, scale: float | None = None,
    window: tuple[int, int] | None = None, softcap: float | None = None,
) -> None:  # fmt: skip
    """Refuse a call of a layer that the contract does not allow; see `check_core_call`.

    Args:
        function: Who is called; the first word of every message.
        query: Inputs that ask.
        key: Inputs that are looked at; None means `query`.
        value: Inputs that are mixed; None means where keys come from.
        d_model: The width that the layer was made for.
        heads: Its query heads.
        mask: See `check_core_call`; so are all that follow.
        bias: Likewise.
        scale: Likewise.
        window: Likewise.
        softcap: Likewise.

    Raises:
        ShapeError: If a rank, a size or a setting is not allowed.
        DtypeError: If a dtype, or a mix of dtypes, is not allowed.
    """
    given = {"query": query, "key": key, "value": value}
    tensors = {name: tensor for name, tensor in given.items() if tensor is not None}
    _check_dtypes(function, tensors)
    sizes: Sizes = {"d_model": (d_model, "the layer"), "heads": (heads, "the layer")}
    _bind(function, tensors, LAYER, sizes)
    if "kv_len" not in sizes:
        # Without key inputs the queries' axis is the keys' as well, for a value input too.
        sizes["kv_len"] = (sizes["q_len"][0], "query")
    elif key is None and sizes["kv_len"][0] != sizes["q_len"][0]:
        raise _unequal(function, "value", "kv_len", sizes["kv_len"][0], sizes["q_len"][0], "query", tensors)
    _check_mask_and_bias(function, tensors, sizes, mask, bias)
    check_settings(function, scale=scale, window=window, softcap=softcap)


def check_cached_call(
    function: str, inputs: Tensor, key: Tensor | None, value: Tensor | None, *,
    d_model: int, kv_heads: int, d_k: int, window: tuple[int, int] | None = None, reach: int = -1,
    lengths: Tensor | None = None,
) -> None:  # fmt: skip
    """Refuse a call of a layer with a cache that the contract does not allow.

    Args:
        function: Who is called; the first word of every message.
        inputs: The positions of this step.
        key: Keys of earlier steps; None is no cache.
        value: Their values.
        d_model: The width that the layer was made for.
        kv_heads: Its key and value heads.
        d_k: Their width.
        window: Inclusive distances; -1 is unbounded.
        reach: How many keys back the cache still goes; -1 is all.
        lengths: How many positions of each sequence are real.

    Raises:
        ShapeError: If a rank or a size is not allowed, or the window looks back further than the cache goes.
        DtypeError: If a dtype, or a mix of dtypes, is not allowed.
    """
    tensors = {"query": inputs}
    sizes: Sizes = {"d_model": (d_model, "the layer")}
    _bind(function, tensors, LAYER, sizes)
    if key is not None and value is not None:
        cached = {"key": key, "value": value}
        sizes = {"batch": sizes["batch"], "kv_heads": (kv_heads, "the layer")}
        sizes |= {"d_k": (d_k, "the layer"), "d_v": (d_k, "the layer")}
        _bind(function, cached, CORE, sizes)
        tensors |= cached
    _check_dtypes(function, tensors)
    if lengths is not None and (lengths.dim() != 1 or lengths.shape[0] != inputs.shape[0]):
        problem = f"lengths must have 1 axis (batch); got {list(lengths.shape)}, expected [{inputs.shape[0]}]"
        advice = "count the real positions of each sequence"
        raise ShapeError(_message(function, problem, "shape.output", advice, tensors))
    check_settings(function, window=window)
    left = -1 if window is None else window[0]
    if reach >= 0 and not 0 <= left <= reach:
        problem = (
            f"window must not look back further than the cache goes; got left={left}, expected 0 to {reach}"
        )
        advice = "an earlier window let the cache forget what is older; start anew to look further"
        raise ShapeError(_message(function, problem, "window.value", advice, tensors))


def check_layer_sizes(
    function: str, d_model: int, heads: int, kv_heads: int | None = None, dropout: float = 0.0
) -> None:
    """Refuse sizes that no layer can have.

    Raises:
        ShapeError: Unless `heads` divides `d_model`, `kv_heads` divides `heads`, and `0 <= dropout < 1`.
    """
    kv_heads = heads if kv_heads is None else kv_heads
    check_positive(function, d_model=d_model, heads=heads, kv_heads=kv_heads)
    if d_model % heads:
        problem = f"heads must divide d_model; got heads={heads}, d_model={d_model}"
        near = ", ".join(str(n) for n in range(1, d_model + 1) if d_model % n == 0)
        raise ShapeError(_message(function, problem, "refusal.sizes", f"choose heads among {near}"))
    _check_grouping(function, heads, kv_heads)
    check_settings(function, dropout=dropout)


def check_positive(function: str, **sizes: int) -> None:
    """Refuse a size below 1.

    Raises:
        ShapeError: If one is.
    """
    for name, size in sizes.items():
        if size < 1:
            problem = f"{name} must be at least 1; got {size}"
            raise ShapeError(_message(function, problem, "refusal.sizes", "choose a positive size"))


def check_local_heads(function: str, local_heads: int, *, heads: int, group: int) -> None:
    """Refuse a number of heads with a pattern of their own that splits a group or is too large.

    Raises:
        ShapeError: Unless it is a multiple of `group` between 0 and `heads`.
    """
    if local_heads % group or not 0 <= local_heads <= heads:
        problem = f"local_heads must be a multiple of {group} between 0 and {heads}; got {local_heads}"
        advice = "heads that share a key/value head share the pattern"
        raise ShapeError(_message(function, problem, "refusal.sizes", advice))


def check_layer_weights(
    function: str, weights: LayerWeights, *, d_model: int, heads: int, kv_heads: int, d_k: int, bias: bool
) -> None:
    """Refuse canonical weights that do not fit the layer that is to load them.

    Raises:
        ShapeError: If a size differs, or if there are biases and the layer has none.
    """
    expected = {"d_model": d_model, "heads": heads, "kv_heads": kv_heads, "d_k": d_k, "d_v": d_k}
    for name, size in expected.items():
        got = getattr(weights, name)
        if got != size:
            problem = f"weights must share axis {name} with the layer; got {got}, expected {size}"
            advice = "construct the layer with the sizes of the weights"
            raise ShapeError(_message(function, problem, "params.round_trip", advice, weights.tensors()))
    if weights.has_bias and not bias:
        present = ", ".join(name for name in BIASES if getattr(weights, name) is not None)
        problem = f"weights must have no biases, because the layer has none; got {present}, expected none"
        advice = "construct the layer with bias=True"
        raise ShapeError(_message(function, problem, "params.round_trip", advice))


def check_settings(
    function: str, *, scale: float | None = None, window: tuple[int, int] | None = None,
    softcap: float | None = None, dropout: float = 0.0,
) -> None:  # fmt: skip
    """Refuse numbers out of range: see `check_core_call`.

    Raises:
        ShapeError: If one is.
    """
    if scale is not None and not isfinite(scale):
        problem = f"scale must be a finite number; got {scale}"
        raise ShapeError(_message(function, problem, "scale.explicit", "leave it out for d_k ** -0.5"))
    if softcap is not None and not (softcap > 0 and isfinite(softcap)):
        problem = f"softcap must be positive and finite; got {softcap}"
        raise ShapeError(_message(function, problem, "softcap.value", "leave it out for no cap"))
    if window is not None and (len(tuple(window)) != 2 or min(window) < -1):
        problem = f"window must be two distances (left, right) of at least -1; got {window}"
        raise ShapeError(_message(function, problem, "window.value", "write -1 for an unbounded side"))
    if not 0 <= dropout < 1:
        problem = f"dropout must be at least 0 and below 1; got {dropout}"
        raise ShapeError(_message(function, problem, "dropout.rate_refused", "it is a probability"))


def _check_dtypes(function: str, tensors: Mapping[str, Tensor]) -> None:
    """Refuse query, key and value that are not of one floating dtype."""
    query = tensors["query"]
    if not query.is_floating_point():
        problem = f"query must be floating; got {_dtype(query)}, expected a floating dtype"
        raise DtypeError(_message(function, problem, "dtype.output", "convert it with .float()", tensors))
    for name, tensor in tensors.items():
        _check_same_dtype(function, name, tensor, tensors)


def _check_same_dtype(function: str, name: str, tensor: Tensor, tensors: Mapping[str, Tensor]) -> None:
    """Refuse a dtype other than the query's, except where autocast will bring them together."""
    query = tensors["query"]
    if tensor.dtype != query.dtype and not torch.is_autocast_enabled(query.device.type):
        problem = f"{name} must have the dtype of query; got {_dtype(tensor)}, expected {_dtype(query)}"
        advice = "convert it with .to(query.dtype), or run under torch.autocast"
        raise DtypeError(
            _message(function, problem, "refusal.mixed_dtypes", advice, {**tensors, name: tensor})
        )


def _bind(function: str, tensors: Mapping[str, Tensor], dims_of: Mapping[str, Dims], sizes: Sizes) -> None:
    """Enter the size of every axis into `sizes`, and refuse a tensor that gives an axis another."""
    for name, tensor in tensors.items():
        dims = dims_of[name]
        rank = len(dims)
        if tensor.dim() != rank:
            problem = f"{name} must have {rank} axes ({' '.join(dims)}); got {tensor.dim()}, expected {rank}"
            advice = "add an axis of size 1 for a single one, as in tensor[None]"
            raise ShapeError(_message(function, problem, "shape.output", advice, tensors))
        for dim, size in zip(dims, tensor.shape, strict=True):
            expected, setter = sizes.setdefault(dim, (size, name))
            if size != expected:
                raise _unequal(function, name, dim, size, expected, setter, tensors)


def _unequal(
    function: str, name: str, axis: str, got: int, expected: int, setter: str, tensors: Mapping[str, Tensor]
) -> ShapeError:
    """Build the error for an axis that two arguments should share and do not."""
    problem = f"{name} must share axis {axis} with {setter}; got {got}, expected {expected}"
    clause, advice = {
        "batch": ("shape.output", "give every sequence its own keys, or expand the batch axis first"),
        "kv_len": ("refusal.lengths", "keys and values are pairs, so take both from the same positions"),
        "kv_heads": ("refusal.kv_heads", "keys and values are pairs, so split both into the same heads"),
        "d_k": ("refusal.widths", "project both to the same width before scoring"),
        "d_v": ("refusal.widths", "a cache belongs to the layer that returned it"),
        "d_model": ("refusal.widths", "project the input to the width of the layer first"),
    }[axis]
    return ShapeError(_message(function, problem, clause, advice, tensors))


def _check_grouping(
    function: str, heads: int, kv_heads: int, tensors: Mapping[str, Tensor] | None = None
) -> None:
    """Refuse key/value heads that cannot be shared out evenly."""
    if kv_heads < 1 or heads % kv_heads:
        problem = f"kv_heads must divide heads; got kv_heads={kv_heads}, heads={heads}"
        advice = "query head h reads key/value head h // (heads // kv_heads)"
        raise ShapeError(_message(function, problem, "refusal.kv_heads", advice, tensors))


def _check_mask_and_bias(
    function: str, tensors: Mapping[str, Tensor], sizes: Sizes, mask: Tensor | None, bias: Tensor | None
) -> None:
    """Refuse a mask that is not boolean, a bias of another dtype, and either if it does not fit."""
    if mask is not None:
        if mask.dtype != torch.bool:
            raise _not_boolean(function, mask, tensors)
        _check_fits_scores(function, "mask", mask, sizes, tensors)
    if bias is not None:
        _check_same_dtype(function, "bias", bias, tensors)
        _check_fits_scores(function, "bias", bias, sizes, tensors)


def _not_boolean(function: str, mask: Tensor, tensors: Mapping[str, Tensor]) -> DtypeError:
    """Build the error for a mask of numbers, which could mean either polarity or an addend."""
    problem = f"mask must be boolean, True where a query may attend; got {_dtype(mask)}, expected bool"
    advice = (
        "numbers that are added belong in bias; attnspec.conventions.attend_from_additive takes 0 and -inf"
        if mask.is_floating_point()
        else "write mask != 0, or attnspec.conventions.attend_from_blocked(mask != 0) if 1 means blocked"
    )
    return DtypeError(_message(function, problem, "refusal.mask_dtype", advice, {**tensors, "mask": mask}))


def _check_fits_scores(
    function: str, name: str, tensor: Tensor, sizes: Sizes, tensors: Mapping[str, Tensor]
) -> None:
    """Refuse a mask or bias whose rank is ambiguous or whose sizes do not broadcast to the scores."""
    if tensor.dim() not in MATRIX_RANKS:
        short, full = (" ".join(SCORES[-rank:]) for rank in MATRIX_RANKS)
        problem = f"{name} must have 2 axes ({short}) or 4 ({full}); got {tensor.dim()}, expected 2 or 4"
        advice = f"write {name}[:, None] if its first axis is batch, {name}[None] if it is heads"
        clause = "refusal.mask_rank" if name == "mask" else "bias.value"
        raise ShapeError(_message(function, problem, clause, advice, {**tensors, name: tensor}))
    for axis, got in zip(SCORES[-tensor.dim() :], tensor.shape, strict=True):
        expected = sizes[axis][0]
        if got != 1 and got != expected:  # not "in": a traced size is no constant
            problem = f"{name} must broadcast to the scores at {axis}; got {got}, expected 1 or {expected}"
            advice = f"its axes are {' '.join(SCORES[-tensor.dim() :])}"
            clause = "refusal.mask_shape" if name == "mask" else "bias.value"
            raise ShapeError(_message(function, problem, clause, advice, {**tensors, name: tensor}))


def _dtype(tensor: Tensor) -> str:
    """Return a dtype's name as people say it."""
    return str(tensor.dtype).removeprefix("torch.")


def _message(
    function: str, problem: str, clause: str, advice: str, tensors: Mapping[str, Tensor] | None = None
) -> str:
    """Lay out one message: what is wrong, the tensors, then the clause and what to do next."""
    shown: Iterable[str] = (f"{n}: {_dtype(t)}{list(t.shape)}" for n, t in (tensors or {}).items())
    lines = [f"{function}: {problem}", "  " + "   ".join(shown), f"  clause {clause}; {advice}"]
    return "\n".join(line for line in lines if line.strip())
