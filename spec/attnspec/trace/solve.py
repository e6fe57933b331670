"""Solve each axis of a traced shape for the contract's names: the same expression must hold in every run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations_with_replacement
from math import prod

from attnspec._axes import AXES

UNKNOWN = "?"
_FACTORS = (2, 3, 4, 8)
_FEATURES = ("heads", "kv_heads", "group", "d_k", "d_v", "d_model")
# Positions that are the same axis, and counts that are the same number, go by the first name.
_SYNONYMS = (("seq", "q_len"), ("seq", "kv_len"), ("heads", "kv_heads"), ("d_k", "d_v"))

Values = tuple[int, ...]


class Solver:
    """Expressions for the sizes of several runs.

    Which expression is taken where several hold: the hint if there is one (what the contract's row or
    the operation's input calls the axis), then a single name, a product of names, a name with a number,
    a sum, a plain number. Where `d_model` is `heads*d_k` in all runs, `heads*d_k` is taken: `d_model` is
    what the inputs, the weights and the output projection are hinted with.
    """

    def __init__(self, sizes: Sequence[Mapping[str, int]]) -> None:
        if not sizes:
            raise ValueError("Solver: needs the sizes of at least one run")
        shared = set.intersection(*(set(s) for s in sizes))
        values: dict[str, Values] = {
            a.name: tuple(int(s[a.name]) for s in sizes) for a in AXES if a.name in shared
        }  # fmt: skip
        if values.get("q_len") is not None and values.get("q_len") == values.get("kv_len"):
            values.setdefault("seq", values["q_len"])
        self._alias = {
            other: name for name, other in _SYNONYMS if name in values and values[name] == values.get(other)
        }  # fmt: skip
        if set(values.get("group", ())) == {1}:
            self._alias["group"] = "1"
        self.values = {name: v for name, v in values.items() if name not in self._alias}
        if "seq" in self.values and "q_len" in self.values:  # they differ somewhere: `seq` says nothing more
            del self.values["seq"]
        self.runs = len(sizes)
        self._known: dict[Values, str] = {}
        self._later = self._compound()

    def name(self, axis: str) -> str:
        """Return the one name that stands for an axis where several names mean the same size."""
        return self._alias.get(axis, axis)

    def evaluate(self, expression: str) -> Values | None:
        """Return an expression's value in each run; None where a name is not known."""
        parts = [
            self.values.get(p, (int(p),) * self.runs if p.isdigit() else None) for p in expression.split("*")
        ]
        if any(p is None for p in parts):
            return None
        return tuple(prod(run) for run in zip(*(p for p in parts if p is not None), strict=True))

    def hint(self, names: Sequence[str]) -> str:
        """Return the product of axis names as it is printed."""
        kept = [n for n in map(self.name, names) if n != "1"]
        return "*".join(kept) if kept else "1"

    def axis(self, values: Values, hints: Sequence[str] = ()) -> str:
        """Return the expression for an axis that has these sizes in the runs.

        Args:
            values: The size in each run.
            hints: Products that are taken first if they hold.
        """
        for hint in hints:
            if self.evaluate(hint) == values:
                return hint
        if len(set(values)) == 1 and (values[0] == 1 or self.runs > 1):
            return next((n for n, v in self.values.items() if v == values and values[0] > 1), str(values[0]))
        while values not in self._known:
            found = next(self._later, None)
            if found is None:
                return UNKNOWN
            self._known.setdefault(found[1], found[0])
        return self._known[values]

    def varying(self, least: Values, most: Values) -> str:
        """Return the expression for an axis that takes several sizes within one run."""
        return f"{self.axis(least)}..{self.axis(most)}"

    def shape(
        self, shapes: Sequence[Sequence[int]], hints: Mapping[int, Sequence[str]] | None = None
    ) -> tuple[str, ...]:
        """Return a tensor's symbolic shape from its shape in each run; `("?",)` where ranks differ."""
        if len({len(s) for s in shapes}) != 1:
            return (UNKNOWN,)
        return tuple(
            self.axis(tuple(values), (hints or {}).get(i, ()))
            for i, values in enumerate(zip(*shapes, strict=True))
        )

    def _compound(self) -> Iterator[tuple[str, Values]]:
        names = list(self.values)
        plain = [n for n in names if n != "d_model"]

        def each(function: Callable[[int], int]) -> Values:
            return tuple(function(run) for run in range(self.runs))

        def product(chosen: Sequence[str]) -> Values:
            return each(lambda run: prod(self.values[n][run] for n in chosen))

        def products(pool: list[str], length: int) -> Iterator[tuple[str, Values]]:
            for chosen in combinations_with_replacement(pool, length):
                yield "*".join(chosen), product(chosen)

        yield from ((n, self.values[n]) for n in plain)
        if {"heads", "d_k"} <= set(names):
            yield "heads*d_k", product(("heads", "d_k"))
        if "d_model" in names:
            yield "d_model", self.values["d_model"]
        if {"heads", "d_k"} <= set(names):  # fused projections, ahead of what one run cannot tell from them
            for factor in (2, 3):
                yield f"{factor}*heads*d_k", tuple(factor * x for x in product(("heads", "d_k")))
        yield from products(plain, 2)
        features = [n for n in names if n in _FEATURES]
        bases = [(n, self.values[n]) for n in plain] + list(
            products([n for n in features if n != "d_model"], 2)
        )
        bases += [("d_model", self.values["d_model"])] if "d_model" in names else []
        for factor in _FACTORS:
            yield from ((f"{factor}*{text}", tuple(factor * x for x in v)) for text, v in bases)
        for text, v in bases:
            for divisor in (2, 4):
                if all(x % divisor == 0 for x in v):
                    yield f"{text}/{divisor}", tuple(x // divisor for x in v)
        yield from products(plain, 3)
        for step in (1, 2):
            yield from ((f"{n}-{step}", tuple(x - step for x in self.values[n])) for n in plain)
            yield from ((f"{n}+{step}", tuple(x + step for x in self.values[n])) for n in plain)
        yield from ((f"2*{n}-1", tuple(2 * x - 1 for x in self.values[n])) for n in plain)
        for first, second in combinations_with_replacement(bases, 2):
            if first[0] != second[0]:
                yield (
                    f"{first[0]}+{second[0]}",
                    tuple(a + b for a, b in zip(first[1], second[1], strict=True)),
                )
        if {"heads", "kv_heads", "d_k"} <= set(names):
            named = self.values
            yield (
                "(heads+2*kv_heads)*d_k",
                each(lambda r: (named["heads"][r] + 2 * named["kv_heads"][r]) * named["d_k"][r]),
            )
        yield from products(plain, 4)
        for factor in _FACTORS:
            yield from ((f"{factor}*{text}", tuple(factor * x for x in v)) for text, v in products(plain, 3))


def bytes_of(shape: Sequence[str], width: int) -> str:
    """Return a tensor's bytes as a formula over its symbolic shape."""
    wrapped = [f"({s})" if set("+-/.") & set(s) and not s.startswith("(") else s for s in shape if s != "1"]
    numbers = [int(s) for s in wrapped if s.isdigit()]
    return "*".join([str(width * prod(numbers)), *(s for s in wrapped if not s.isdigit())])


def prime_sizes(*, grouped: bool = False, cross: bool = False, runs: int = 3) -> list[dict[str, int]]:
    """Return sizes that tell every axis from every other: primes, `d_model` a product; three runs at most.

    Args:
        grouped: Whether heads share keys and values; `heads` is then `kv_heads * group`.
        cross: Whether query and key positions differ.
        runs: How many.
    """
    # Never three heads first: beside the three of a fused projection they would look alike.
    table = ((2, 11, 13, 5, 3, 7), (3, 5, 19, 7, 2, 11), (5, 17, 13, 2, 7, 3))
    found = []
    for batch, q_len, other, heads, group, d_k in table[:runs]:
        kv_heads, kv_len = heads, other if cross else q_len
        heads = kv_heads * group if grouped else heads
        found.append({
            "batch": batch, "q_len": q_len, "kv_len": kv_len, "heads": heads, "kv_heads": kv_heads,
            "group": heads // kv_heads, "d_k": d_k, "d_v": d_k, "d_model": heads * d_k,
        } | ({} if cross else {"seq": q_len}))  # fmt: skip
    return found
