"""The command line of `attnspec bench`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from .._errors import UnknownNameError
from .grid import CLOCKS, GATE, MODES, PASSES, PROFILES, Grid, Shape

OK, BROKEN = 0, 1
DESCRIPTION = f"""\
Time attention layers as ratios to a floor in the same run, and measure their peak memory.

Nothing is timed that does not first pass the clauses of {" and ".join(GATE)}: a wrong layer has no speed.
In every cell of the grid three peers run beside the implementations, in the same rounds: the floor
(scaled_dot_product_attention between two bare matrix products), torch.nn.MultiheadAttention, and the
textbook form. The ratio is the median over the rounds of time by the floor's time; the quartiles beside it
say how far to trust it. Load on the machine moves times, and hardly the ratios.
"""
EXAMPLES = """\
examples:
  attnspec bench                                   all registered layers, four shapes, float32
  attnspec bench sdpa blockwise --shape 1x4096x512x8 --causal
  attnspec bench my_attention.py:MyAttention --mode eager --mode compiled --json mine.json
  attnspec bench --compare before.json after.json
"""


def parser() -> argparse.ArgumentParser:
    """Return the options as one parser."""
    p = argparse.ArgumentParser(
        prog="attnspec bench",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument(
        "target",
        nargs="*",
        help="registered names, file.py:Object or package.module:Object; none is every registered layer",
    )
    p.add_argument(
        "--profile", default="default", choices=PROFILES, help="how many shapes and rounds; default: default"
    )
    p.add_argument(
        "--shape",
        action="append",
        metavar="BxLxDxH",
        help="batch, length, d_model, heads; may be given again",
    )
    p.add_argument("--dtype", action="append", metavar="NAME", help="float32 by default; may be given again")
    p.add_argument("--pass", dest="passes", action="append", choices=PASSES, help="both by default")
    p.add_argument(
        "--mode", action="append", choices=MODES, help="eager by default; compiling takes its time"
    )
    p.add_argument("--causal", action="store_true", help="hide the future in every call")
    p.add_argument("--device", default="cpu", help="cpu, cuda, ...")
    p.add_argument("--threads", type=int, help="torch threads; torch's own number by default")
    p.add_argument(
        "--clock",
        choices=CLOCKS,
        default="wall",
        help="cpu: this process's own time, where others load the machine",
    )
    p.add_argument(
        "--rounds", type=int, help="how often everything is timed in turn; the profile's by default"
    )
    p.add_argument("--no-memory", action="store_true", help="do not measure peak memory")
    p.add_argument("--json", type=Path, metavar="FILE", help="write everything that was found")
    p.add_argument("--plot", type=Path, metavar="FILE", help="draw it (.png, .svg, .pdf); needs matplotlib")
    p.add_argument(
        "--compare",
        type=Path,
        nargs=2,
        metavar=("BEFORE", "AFTER"),
        help="measure nothing; put two results side by side",
    )
    return p


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    words = parser().parse_args(arguments)
    from .._terminal import console

    out = console()
    if words.compare is not None:
        from .results import Results, compare

        out.print(compare(*map(Results.read, words.compare)))
        return OK
    import torch

    from .results import tables
    from .run import measure

    grid = grid_of(words)
    if words.threads is not None:
        torch.set_num_threads(words.threads)
    results = measure(words.target or layers(), grid, say=_say, memory=not words.no_memory)
    if words.json is not None:
        results.write(words.json)
    out.print(tables(results))
    for entry in results.gate:
        if not entry["ok"]:
            out.print(
                f"NOT TIMED {entry['name']}: it does not pass {', '.join(entry['broken']) or 'any clause'}"
            )
    if words.plot is not None:
        from .plot import plot_results

        plot_results(results, words.plot)
    return OK if all(entry["ok"] for entry in results.gate) else BROKEN


def grid_of(words: argparse.Namespace) -> Grid:
    """Return what the options ask to measure."""
    profile = PROFILES[words.profile]
    shapes = tuple(map(Shape.parse, words.shape or profile.shapes))
    return Grid(
        shapes=shapes, dtypes=tuple(words.dtype or ("float32",)),
        passes=tuple(words.passes or PASSES), modes=tuple(words.mode or ("eager",)), causal=words.causal,
        device=words.device, rounds=words.rounds or profile.rounds, seconds=profile.seconds,
        clock=words.clock,
    )  # fmt: skip


def layers() -> list[str]:
    """Return every registered layer."""
    from .._registry import registry

    known = registry()
    names = [name for name in known if known.get(name).contract == "layer"]
    if not names:
        raise UnknownNameError("layer", "", ())
    return names


def _say(what: str) -> None:
    print(f"attnspec bench: {what}", file=sys.stderr, flush=True)
