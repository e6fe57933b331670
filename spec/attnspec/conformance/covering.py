"""Pairwise covering rows: every pair of options of any two features meets in some row, as early as possible.

Real bugs hide where two flags meet; trying each flag alone, or a few at random, misses them.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

Row = dict[str, Any]


def _pairs(row: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    for a, b in combinations(range(len(row)), 2):
        yield a, row[a], b, row[b]


def covering_rows(
    options: Mapping[str, Sequence[Any]], *, seed: int, limit: int, tries: int = 12
) -> list[Row]:
    """Return at most `limit` rows that cover pairs of options greedily.

    Args:
        options: For each feature the values it may take.
        seed: Equal seeds give equal rows.
        limit: The most rows to return; fewer if every pair is covered before.
        tries: Candidates drawn for each row; the one with most new pairs is kept.

    Returns:
        Rows in order of what they add, so that the first few already cover most.
    """
    rng = random.Random(seed)
    names = list(options)
    counts = [len(options[name]) for name in names]
    missing = {
        (a, i, b, j)
        for a, b in combinations(range(len(names)), 2)
        for i in range(counts[a])
        for j in range(counts[b])
    }
    # Each option also gets its turn evenly: a shuffled cycle per feature seeds the candidates.
    cycles = [rng.sample(range(n), n) for n in counts]
    rows: list[Row] = []
    while len(rows) < limit and (missing or not rows):
        best: list[int] = []
        best_gain = -1
        for attempt in range(tries):
            candidate = [
                cycle[len(rows) % len(cycle)]
                if rng.random() < 0.5 or attempt == 0
                else rng.randrange(len(cycle))
                for cycle in cycles
            ]
            gain = sum(pair in missing for pair in _pairs(candidate))
            if gain > best_gain:
                best, best_gain = candidate, gain
        if best_gain == 0 and rows:
            a, i, b, j = min(missing)
            best[a], best[b] = i, j
        missing.difference_update(_pairs(best))
        rows.append({name: options[name][index] for name, index in zip(names, best, strict=True)})
    return rows
