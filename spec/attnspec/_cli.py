"""The command line: it reads words, calls functions that anyone can call, and prints what they return."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ._errors import AttnspecError

Command = Callable[[argparse.Namespace], int]
OK, BROKEN, USAGE = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 all hold, 1 a MUST failed, 2 usage or nothing decided."""
    parsed = parser().parse_args(arguments)
    if parsed.run is None:
        parser().print_help()
        return USAGE
    run: Command = parsed.run
    try:
        return run(parsed)
    except AttnspecError as error:
        print(f"attnspec: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("attnspec: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return OK


def parser() -> argparse.ArgumentParser:
    """Return the whole command line as one parser."""
    from . import __version__

    top = argparse.ArgumentParser(
        prog="attnspec", description="Is it multi-head attention? Clause by clause."
    )
    top.add_argument("--version", action="version", version=f"attnspec {__version__}")
    top.set_defaults(run=None)
    commands = top.add_subparsers(title="commands", metavar="COMMAND")
    for add in (
        _add_check,
        _add_show,
        _add_list,
        _add_new,
        _add_declare,
        _add_trace,
        _add_compare,
        _add_convert,
        _add_bench,
        _add_plot,
    ):
        add(commands)
    return top


def _command(commands: Any, name: str, summary: str, run: Command, **kwargs: Any) -> argparse.ArgumentParser:
    found: argparse.ArgumentParser = commands.add_parser(name, help=summary, description=summary, **kwargs)
    found.set_defaults(run=run)
    return found


def _add_target(command: argparse.ArgumentParser, *, many: bool = True) -> None:
    text = "file.py:Object, package.module:Object, or a registered name"
    command.add_argument(
        "target",
        nargs="*" if many else None,
        help=text + ("; none is all that are registered" if many else ""),
    )
    command.add_argument(
        "--declare",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="what cannot be found out by itself, e.g. mask=blocked",
    )
    command.add_argument(
        "--new",
        metavar="EXPR",
        help="how to construct a layer, e.g. 'MyAttention(Config(n_embd=d_model, n_head=heads))'",
    )
    command.add_argument("--call", metavar="EXPR", help="how to call it, e.g. 'f(query, mask=mask)[0]'")
    command.add_argument(
        "--weights",
        action="append",
        default=[],
        metavar="NAME=PLACE",
        help="where a canonical tensor is, e.g. W_q=attn.q.weight",
    )
    command.add_argument(
        "--mask",
        choices=("attend", "blocked", "additive"),
        help="what True means in its mask; short for --declare mask=...",
    )


def _add_check(commands: Any) -> None:
    c = _command(commands, "check", "check an implementation against the contract, clause by clause", _check)
    _add_target(c)
    c.add_argument("--profile", default="default", help="quick, default or thorough")
    c.add_argument(
        "--clause", action="append", metavar="NAME", help="only this clause or chapter; may be given again"
    )
    c.add_argument("--device", default="cpu", help="cpu, cuda, ...")
    c.add_argument("--seed", type=int, default=1, help="of all cases; equal seeds give equal runs")
    c.add_argument(
        "--jobs",
        type=int,
        default=None,
        help="processes that share the clauses; as many as cores by default, at most 4",
    )
    c.add_argument(
        "--limit", type=float, default=30.0, metavar="SECONDS", help="after so long a call counts as a hang"
    )
    c.add_argument("--json", metavar="FILE", type=Path, help="write the report as JSON; - is standard output")
    c.add_argument("--junit", metavar="FILE", type=Path, help="write the report as JUnit XML")
    c.add_argument(
        "--scripts", metavar="FOLDER", default=".attnspec", help="where scripts that reproduce failures go"
    )
    c.add_argument(
        "--inside", action="store_true", help="the target is a model: check each kind of attention inside it"
    )
    c.add_argument(
        "-q", "--quiet", action="store_true", help="only the failing clauses' names and the verdict"
    )


def _check(words: argparse.Namespace) -> int:
    from ._run import run_check

    return run_check(words)


def _add_show(commands: Any) -> None:
    c = _command(
        commands, "show", "look up a clause, a chapter, the stages, the axes, or an implementation", _show
    )
    c.add_argument("what", help="mask.dead_row.zero, mask, stages, axes, or the name of an implementation")


def _show(words: argparse.Namespace) -> int:
    from ._show import show

    show(words.what)
    return OK


def _add_list(commands: Any) -> None:
    c = _command(commands, "list", "list the registered implementations, or all clauses", _list)
    c.add_argument(
        "what", nargs="?", default="implementations", choices=("implementations", "clauses", "stages", "axes")
    )


def _list(words: argparse.Namespace) -> int:
    from ._show import show_list

    show_list(words.what)
    return OK


def _add_new(commands: Any) -> None:
    c = _command(commands, "new", "write a skeleton that runs and can be checked at once", _new)
    c.add_argument("name", help="a Python name, for example my_attention")
    c.add_argument("--kind", choices=("layer", "core"), default="layer")
    c.add_argument("--folder", type=Path, default=Path(), help="where to write it")


def _new(words: argparse.Namespace) -> int:
    from ._new import write_skeleton

    path, target = write_skeleton(words.name, kind=words.kind, folder=words.folder)
    print(f"wrote {path}\ncheck it:     attnspec check {target}\nregister it:  see the end of the file")
    return OK


def _add_declare(commands: Any) -> None:
    c = _command(
        commands,
        "declare",
        "write what was recognised to attnspec.toml, to be corrected and committed",
        _declare,
    )
    _add_target(c, many=False)
    c.add_argument("--print", action="store_true", help="print it instead of writing")


def _declare(words: argparse.Namespace) -> int:
    from ._run import run_declare

    return run_declare(words)


def _add_trace(commands: Any) -> None:
    c = _command(
        commands, "trace", "print the named shape table of a real run, next to the contract's", _trace
    )
    _add_target(c, many=False)
    c.add_argument(
        "--input",
        metavar="EXPR",
        help="trace any model on these inputs, e.g. 'torch.randn(batch, seq, d_model)'",
    )
    c.add_argument("--json", action="store_true")
    c.add_argument("--markdown", action="store_true")
    c.add_argument("--html", type=Path, metavar="FILE", help="write one self-contained page")


def _trace(words: argparse.Namespace) -> int:
    from ._run import run_trace

    return run_trace(words)


def _add_compare(commands: Any) -> None:
    c = _command(commands, "compare", "put two traces side by side", _compare)
    c.add_argument("first")
    c.add_argument("second")


def _compare(words: argparse.Namespace) -> int:
    from ._run import run_compare

    return run_compare(words)


def _add_convert(commands: Any) -> None:
    c = _command(commands, "convert", "move weights between layouts, in safetensors files", _convert)
    c.add_argument("source", type=Path, nargs="?", help="a .safetensors file")
    c.add_argument("destination", type=Path, nargs="?", help="the .safetensors file to write")
    c.add_argument(
        "--from",
        dest="source_layout",
        default="canonical",
        metavar="LAYOUT",
        help="layout of the source; default canonical",
    )
    c.add_argument(
        "--to",
        dest="target_layout",
        default="canonical",
        metavar="LAYOUT",
        help="layout to write; default canonical",
    )
    c.add_argument("--heads", type=int, help="query heads; no tensor tells them")
    c.add_argument(
        "--kv-heads", type=int, default=None, help="key and value heads in the source, where they are fewer"
    )
    c.add_argument(
        "--prefix", default="", help="of the names in the source; 'h.*.attn.' takes every layer that is there"
    )
    c.add_argument(
        "--to-prefix", default=None, metavar="PREFIX", help="of the names to write; the same by default"
    )
    c.add_argument(
        "--group",
        type=int,
        default=None,
        metavar="KV_HEADS",
        help="average key and value heads down to so many",
    )
    c.add_argument(
        "--list", action="store_true", help="list the layouts; with a source, those whose names are in it"
    )


def _convert(words: argparse.Namespace) -> int:
    from ._run import run_convert

    return run_convert(words)


def _add_bench(commands: Any) -> None:
    c = _command(
        commands,
        "bench",
        "time implementations that pass, as ratios within one run",
        _bench,
        add_help=False,
        prefix_chars="\0",
    )
    c.add_argument("rest", nargs="*")  # options too: the benchmark has a parser of its own


def _bench(words: argparse.Namespace) -> int:
    from ._run import run_bench

    return run_bench(words.rest)


def _add_plot(commands: Any) -> None:
    c = _command(commands, "plot", "draw attention weights, one map a head", _plot)
    c.add_argument(
        "weights", type=Path, help="a .safetensors file with a tensor 'weights' of batch heads q_len kv_len"
    )
    c.add_argument("output", type=Path, help="a .png or .svg file")
    c.add_argument("--sample", type=int, default=0)


def _plot(words: argparse.Namespace) -> int:
    from ._run import run_plot

    return run_plot(words)
