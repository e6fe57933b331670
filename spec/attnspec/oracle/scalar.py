"""The scalar oracle: attention as nested loops over plain Python numbers.

It shares no code with the stages. It is slow on purpose, and used on small cases alone.
"""

import math

from torch import Tensor, float64, tensor

from .._inputs import CoreInputs, LayerInputs

Vector = list[float]


def attend_row(
    query: Vector,
    keys: list[Vector],
    values: list[Vector],
    *,
    scale: float,
    softcap: float | None,
    bias: Vector,
    allowed: list[bool],
    width: int,
) -> Vector:
    """Return one query's output: the weighted mean of the values that it may see, or zeros."""
    logits = []
    for key, extra, ok in zip(keys, bias, allowed, strict=True):
        score = scale * math.fsum(a * b for a, b in zip(query, key, strict=True))
        if softcap is not None:
            score = softcap * math.tanh(score / softcap)
        logits.append(score + extra if ok else -math.inf)
    top = max(logits, default=-math.inf)
    if top == -math.inf:
        return [0.0] * width
    powers = [math.exp(logit - top) for logit in logits]
    total = math.fsum(powers)
    return [
        math.fsum(p / total * value[d] for p, value in zip(powers, values, strict=True)) for d in range(width)
    ]


def _at(tensor_: Tensor | None, where: tuple[int, int, int, int], default: float | bool) -> float | bool:
    """Read one element of a mask or a bias that may be broadcast."""
    if tensor_ is None:
        return default
    missing = len(where) - tensor_.dim()
    index = tuple(0 if size == 1 else i for i, size in zip(where[missing:], tensor_.shape, strict=True))
    return tensor_[index].item()


def core(inputs: CoreInputs) -> Tensor:
    """Return the output `batch heads q_len d_v` in float64, computed element by element."""
    n = inputs.sizes
    query, key, value = (t.double().tolist() for t in (inputs.query, inputs.key, inputs.value))
    left, right = inputs.window if inputs.window is not None else (-1, -1)
    offset = n["kv_len"] - n["q_len"] if inputs.alignment == "lower_right" else 0
    scale = 1 / math.sqrt(n["d_k"]) if inputs.scale is None else inputs.scale

    def may_see(b: int, h: int, i: int, j: int) -> bool:
        here = i + offset
        if inputs.causal and j > here:
            return False
        if (left >= 0 and j < here - left) or (right >= 0 and j > here + right):
            return False
        return bool(_at(inputs.mask, (b, h, i, j), True))

    out = [
        [
            [
                attend_row(
                    query[b][h][i], key[b][h // n["group"]], value[b][h // n["group"]],
                    scale=scale, softcap=inputs.softcap, width=n["d_v"],
                    bias=[float(_at(inputs.bias, (b, h, i, j), 0.0)) for j in range(n["kv_len"])],
                    allowed=[may_see(b, h, i, j) for j in range(n["kv_len"])],
                )
                for i in range(n["q_len"])
            ]
            for h in range(n["heads"])
        ]
        for b in range(n["batch"])
    ]  # fmt: skip
    return tensor(out, dtype=float64).reshape(n["batch"], n["heads"], n["q_len"], n["d_v"])


def linear(rows: list[Vector], weight: list[Vector], bias: Vector | None) -> list[Vector]:
    """Apply one projection, row by row."""
    shifts = [0.0] * len(weight) if bias is None else bias
    return [
        [
            math.fsum([*(a * b for a, b in zip(row, w, strict=True)), s])
            for w, s in zip(weight, shifts, strict=True)
        ]
        for row in rows
    ]


def layer(inputs: LayerInputs) -> Tensor:
    """Return a layer's output `batch q_len d_model` in float64, computed element by element."""
    w = inputs.weights

    def heads_of(rows: Tensor, name: str, count: int) -> Tensor:
        bias = getattr(w, f"b_{name}")
        matrix = getattr(w, f"W_{name}").double().tolist()
        shifts = None if bias is None else bias.double().tolist()
        width = len(matrix) // count
        flat = [linear(sample, matrix, shifts) for sample in rows.double().tolist()]
        split = [
            [[row[h * width : (h + 1) * width] for row in sample] for h in range(count)] for sample in flat
        ]
        return tensor(split, dtype=float64).reshape(rows.shape[0], count, rows.shape[1], width)

    mixed = core(
        CoreInputs(
            query=heads_of(inputs.query, "q", w.heads),
            key=heads_of(inputs.key_input, "k", w.kv_heads),
            value=heads_of(inputs.value_input, "v", w.kv_heads),
            **inputs.options(),
        )
    ).tolist()
    shifts = None if w.b_o is None else w.b_o.double().tolist()
    out = [
        linear(
            [[x for head in sample for x in head[i]] for i in range(inputs.query.shape[1])],
            w.W_o.double().tolist(),
            shifts,
        )
        for sample in mixed
    ]
    return tensor(out, dtype=float64).reshape(inputs.query.shape[0], inputs.query.shape[1], w.W_o.shape[0])
