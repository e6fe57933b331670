"""What attention costs: time as ratios within one run, peak memory, and which kernel ran.

Nothing is timed that does not compute the right thing: each implementation first passes the clauses of shape
and value. Times are ratios to a floor that is timed in the same rounds: torch's fused attention between two
bare matrix products, without a bias, a mask or a check. A ratio survives a noisy machine; a time does not.
"""

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `attnspec bench` and return its exit status: 0 done, 1 something failed its check."""
    from .command import run

    return run(arguments)
