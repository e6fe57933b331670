"""Other cases like a failing one: with its features, but with sizes and values that hide nothing."""

from collections.abc import Callable, Iterator
from typing import Any

from ..conformance.cases import Case
from ..conformance.space import Space
from ..conformance.tensors import ALIVE

Plan = Callable[[Case], list[Case]]

# No two sizes of a row coincide; the lengths are those of equal, fewer and more queries than keys.
_SIZES: tuple[dict[str, Any], ...] = (
    {"batch": 2, "heads": 3, "grouped": (4, 2), "single": 3, "width": 5, "lengths": ((8, 8), (7, 9), (9, 7))},
    {
        "batch": 3,
        "heads": 2,
        "grouped": (6, 3),
        "single": 2,
        "width": 8,
        "lengths": ((5, 5), (5, 11), (11, 5)),
    },
    {
        "batch": 2,
        "heads": 4,
        "grouped": (6, 2),
        "single": 4,
        "width": 6,
        "lengths": ((9, 9), (4, 10), (10, 4)),
    },
)


def _heads(case: Case, row: dict[str, Any]) -> tuple[int, int]:
    if case.heads == case.kv_heads:
        return row["heads"], row["heads"]
    found: tuple[int, int] = (row["single"], 1) if case.kv_heads == 1 and case.heads > 2 else row["grouped"]
    return found


def _lengths(case: Case, row: dict[str, Any]) -> tuple[int, int]:
    found: tuple[int, int] = row["lengths"][(case.q_len < case.kv_len) + 2 * (case.q_len > case.kv_len)]
    return found


def _mask(case: Case) -> str | None:
    """Return a family of masks that tells more than the failing one does."""
    if case.mask is None:
        return None
    return "random" if case.mask in ALIVE else "dead"


def _generic(case: Case) -> list[Case]:
    """Vary sizes and seeds; values are normal."""
    found = []
    for number in range(6):
        row = _SIZES[number % 3]
        heads, kv_heads = _heads(case, row)
        q_len, kv_len = _lengths(case, row)
        d_v = row["width"] + (3 if case.d_v != case.d_k else 0)
        found.append(
            case.replace(
                batch=row["batch"],
                heads=heads,
                kv_heads=kv_heads,
                q_len=q_len,
                kv_len=kv_len,
                d_k=row["width"],
                d_v=d_v,
                mask=_mask(case),
                values="normal",
                layout="contiguous",
                seed=101 + number,
            )
        )
    return [_all_seen(v) for v in found]


def _all_seen(case: Case) -> Case:
    """Take a seed with which every key is seen by some query: right code may drop the values of others."""
    if case.mask is None or "q" not in case.mask_axes:
        return case
    for attempt in range(20):
        seeded = case.replace(seed=case.seed + 10 * attempt)
        mask = seeded.core_inputs().mask
        if mask is not None and bool(mask.any(-2).all()):
            return seeded
    return case


def plans(case: Case, space: Space) -> Iterator[Plan]:
    """Yield ways to vary a case, from the most telling to the closest."""
    dtype = "float32" if space.has("float32") else space.dtypes[0]

    def varied(**changes: Any) -> Plan:
        return lambda c: [v.replace(**{"dtype": dtype, **changes}) for v in _generic(c)]

    def lengths(c: Case) -> list[Case]:
        longer = zip(varied()(c), (0, 4, 10, 1, 15, 2), strict=True)
        equal = c.q_len == c.kv_len
        return [
            v.replace(q_len=c.q_len + more if equal else max(c.q_len, v.q_len), kv_len=c.kv_len + more)
            for v, more in longer
        ]

    def coincident(c: Case) -> list[Case]:
        return [v.replace(batch=v.heads, q_len=v.kv_len, dtype=dtype) for v in _generic(c)]

    def exact(**changes: Any) -> Plan:
        return lambda c: [c.replace(seed=c.seed + 7 * n, **changes) for n in range(6)]

    yield varied()
    if max(case.q_len, case.kv_len) > 8:
        yield lengths
    yield varied(values="scaled")
    if case.values not in ("normal", "scaled"):
        yield varied(values=case.values)
    yield coincident
    if case.batch == 1:
        yield varied(batch=1)
    if case.dtype != dtype and case.dtype in space.dtypes:
        yield varied(dtype=case.dtype)
    yield exact(values="normal", dtype=dtype)
    yield exact()


def richer(case: Case, space: Space) -> Iterator[Case]:
    """Yield the case with one feature more: a clause may bring one that its case does not mention."""
    found: list[dict[str, Any]] = []
    if case.mask is None:
        found += [{"mask": "random", "mask_axes": axes, "mask_rank": 4} for axes in ("bhqk", "bk")]
        found.append({"mask": "dead", "mask_axes": "bhqk", "mask_rank": 4})
    elif case.mask in ALIVE:
        found.append({"mask": "dead"})
    if not case.causal:
        found.append({"causal": True})
    if case.kv_heads == case.heads and space.has("grouped"):
        found.append({"heads": 4, "kv_heads": 2})
    extra = {"window": (2, 1), "bias": "bhqk", "softcap": 1.5, "scale": 0.3}
    found += [{name: value} for name, value in extra.items() if getattr(case, name) is None]
    if case.mask is None and not case.causal:
        found.append({"mask": "random", "mask_axes": "bhqk", "mask_rank": 4, "causal": True})
    for change in found:
        fitted = space.fit(case.replace(**change))
        if fitted is not None and all(
            getattr(fitted, name) == change[name] for name in change if name == "causal"
        ):
            yield fitted


def without_one(case: Case, space: Space) -> Iterator[Case]:
    """Yield the case with one feature less."""
    for name in ("bias", "softcap", "window", "scale", "mask"):
        if getattr(case, name) is not None:
            yield case.replace(**{name: None})
    if case.causal and space.causal == "flag":
        yield case.replace(causal=False)
    if case.kv_heads != case.heads:
        yield case.replace(kv_heads=case.heads)
    if case.sources == "separate" and "memory" in space.sources:
        yield case.replace(sources="memory")
    if case.sources != "self" and "self" in space.sources:
        yield case.replace(sources="self")


def telling(case: Case, space: Space) -> Iterator[Case]:
    """Yield cases with one feature more, less or changed: those that tell two mistakes apart."""
    heads = ((3, 3), (4, 2), (6, 2), (3, 1), (6, 3))
    lengths = ((6, 6), (4, 7), (7, 4), (5, 9), (17, 17), (9, 33), (33, 65), (65, 9), (9, 129), (129, 31))
    changes: list[dict[str, Any]] = [
        {},
        *({"scale": s} for s in (0.7, -0.4, None)),
        *(
            {"mask": m, "mask_axes": a, "mask_rank": 4}
            for m in ("random", "dead")
            for a in ("bhqk", "bk", "bqk")
        ),
        {"mask": "random", "mask_axes": "qk", "mask_rank": 4},
        {"mask": None},
        *({"causal": c} for c in (True, False)),
        *({"causal": True, "mask": m, "mask_axes": "bhqk", "mask_rank": 4} for m in ("random", "dead")),
        {"causal": False, "mask": "random", "mask_axes": "bhqk", "mask_rank": 4},
        *({"sources": s} for s in ("separate", "memory", "self")),
        *({"heads": h, "kv_heads": kv} for h, kv in heads),
        *({"q_len": q, "kv_len": kv} for q, kv in lengths),
        *({"window": w} for w in ((2, 1), (1, 3), (3, 0), (0, 2), None)),
        *({"bias": b} for b in ("bhqk", None)),
        *({"softcap": c} for c in (1.5, None)),
        {"d_v": case.d_k + 3},
        {"values": "offset"},
        {"values": "scaled"},
        {"batch": 1},
        {"batch": 5},
        {"projection_bias": not case.projection_bias},
    ]
    for number, change in enumerate(changes):
        if (
            "self" in (change.get("sources"), case.sources if "sources" not in change else None)
            and "q_len" in change
        ):
            change = {**change, "sources": space.sources[-1]}
        if "mask_rank" in change and case.sources == "self" and space.contract == "layer":
            change = {**change, "q_len": case.kv_len}
        yield case.replace(seed=211 + number, **change)
