"""What the commands do with a target: check, trace, compare, declare."""

import argparse
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import _terminal as terminal
from ._errors import AttnspecError, ReportError, TargetError
from .declaration import Declaration, read_declarations
from .report import Report

OK, BROKEN, USAGE = 0, 1, 2


def declared(words: argparse.Namespace, target: str) -> Declaration:
    """Return what the command line and the files beside the code declare about a target."""
    pairs = list(words.declare) + [f"weights.{pair}" for pair in words.weights]
    for name in ("new", "call", "mask"):
        if getattr(words, name, None) is not None:
            pairs.append(f"{name}={getattr(words, name)}")
    said = Declaration.from_pairs(pairs)
    place, _, name = target.rpartition(":")
    folders = [Path.cwd()]
    if place.endswith(".py"):
        folders.append(Path(place).resolve().parent)
    for folder in dict.fromkeys(folders):
        kept = read_declarations(folder)
        for key in (target, f"{Path(place).name}:{name}"):
            if key in kept:
                return said.over(kept[key])
    return said


def run_check(words: argparse.Namespace) -> int:
    """Check each target and print the verdicts; the worst decides the exit status."""
    from ._registry import registry

    if words.inside:
        return _check_inside(words)
    targets = list(words.target) or list(registry())
    reports: list[Report] = []
    failed_to_start = False
    for target in targets:
        try:
            reports.append(_check_one(words, target, many=len(targets) > 1))
        except TargetError as error:
            if len(targets) == 1:
                raise
            failed_to_start = True
            print(f"attnspec: {error}", file=sys.stderr)
    out = terminal.console()
    if len(targets) > 1:
        out.print(terminal.matrix(reports))
        conforming = sum(r.ok for r in reports)
        out.print(f"{conforming} of {len(targets)} implementations conform")
    _write_reports(words, reports)
    if failed_to_start or not reports:
        return USAGE
    return max(r.status for r in reports)


def _check_one(words: argparse.Namespace, target: str, *, many: bool) -> Report:
    from ._check import check_implementation

    out = terminal.console(stderr=words.json is not None and str(words.json) == "-")
    progress = terminal.progress(terminal.console(stderr=True))
    with progress:
        task = progress.add_task(target, total=None)

        def started(found: Mapping[str, Any]) -> None:
            if not words.quiet and not many:
                out.print(terminal.heading(found, device=words.device))

        report = check_implementation(
            target,
            declaration=declared(words, target),
            profile=words.profile,
            clause=_named(words.clause),
            device=words.device,
            seed=words.seed,
            jobs=words.jobs or min(4, os.cpu_count() or 1),
            scripts=words.scripts,
            limit=words.limit,
            recognised=started,
            progress=lambda result, done, total: progress.update(task, completed=done, total=total),
        )
    _print_report(report, out, quiet=words.quiet, many=many)
    return report


def _named(clauses: list[str] | None) -> list[str] | None:
    """Return the names of clauses and chapters, which may also be given in one word, with commas."""
    return None if clauses is None else [name for word in clauses for name in word.replace(",", " ").split()]


def _print_report(report: Report, out: Any, *, quiet: bool, many: bool) -> None:
    if many and report.ok and not report.advised:
        out.print(
            f"{report.target:<24} conforms  ran {report.ran} of {len(report.results)}  {report.seconds:.1f} s"
        )
        return
    if many:
        out.print(
            f"{report.target:<24} {terminal.outcome(report)}"
            f"  ran {report.ran} of {len(report.results)}  {report.seconds:.1f} s"
        )
    if not quiet and not many:
        out.print(terminal.chapters(report))
        out.print(terminal.tally(report))
        out.print()
    for item in terminal.failures(report, brief=quiet or (many and report.ok)):
        out.print(item)
        if not quiet and not many:
            out.print()
    if not many:
        out.print(terminal.verdict(report))


def _write_reports(words: argparse.Namespace, reports: list[Report]) -> None:
    """Write what was asked for; the verdict has been shown already.

    Raises:
        ReportError: If one cannot be written; the others have been.
    """
    from .report import _write, json_text, junit_text

    text = json_text(reports[0].as_dict() if len(reports) == 1 else [r.as_dict() for r in reports])
    wanted: list[tuple[Path, str]] = []
    if words.json is not None and str(words.json) == "-":
        sys.stdout.write(text)
    elif words.json is not None:
        wanted.append((words.json, text))
    if words.junit is not None:
        wanted.append((words.junit, junit_text(reports)))
    failed: list[str] = []
    for path, content in wanted:
        try:
            _write(path, content)
        except ReportError as error:
            failed.append(str(error))
    if failed:
        raise ReportError("\n".join(failed))


def _check_inside(words: argparse.Namespace) -> int:
    """Find the attention modules of a model and check each kind once."""
    from ._inside import check_inside

    if len(words.target) != 1:
        raise AttnspecError("--inside takes one target: the model")
    result: int = check_inside(words.target[0], declared(words, words.target[0]), words)
    return result


def run_declare(words: argparse.Namespace) -> int:
    """Write what was recognised to attnspec.toml beside the code."""
    from .conformance.session import ProcessSession

    session = ProcessSession(words.target, declared(words, words.target), profile_name="quick")
    try:
        session.recognise()
        text = session.call("declaration")
    finally:
        session.close()
    if words.print:
        print(text)
        return OK
    path = Path("attnspec.toml")
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    if f'[declare."{words.target}"]' in before:
        raise AttnspecError(
            f"{path} has a declaration of {words.target} already; edit that one, or use --print"
        )
    path.write_text(before + ("\n" if before else "") + text, encoding="utf-8")
    print(f"wrote {path}: correct what is wrong and commit it")
    return OK


def run_trace(words: argparse.Namespace) -> int:
    """Print the shape table of a run."""
    from . import trace
    from .trace.target import trace_input, trace_target

    said = declared(words, words.target)
    found = (
        trace_target(words.target, said)
        if words.input is None
        else trace_input(words.target, said, words.input)
    )
    if words.json:
        print(json.dumps(trace.to_json(found), indent=1, default=str))
    elif words.markdown:
        print(trace.to_markdown(found))
    elif words.html is not None:
        from .report import _write

        _write(words.html, trace.to_html(found))
        print(f"wrote {words.html}")
    else:
        out = terminal.console()
        out.print(trace.render_table(found, width=out.width))
    return OK


def run_compare(words: argparse.Namespace) -> int:
    """Print two traces side by side."""
    from . import trace
    from .trace.target import trace_target

    first, second = (trace_target(t, Declaration()) for t in (words.first, words.second))
    terminal.console().print(trace.compare(first, second))
    return OK


def run_convert(words: argparse.Namespace) -> int:
    """Convert weights between layouts, or list the layouts."""
    from .checkpoints import convert_file
    from .checkpoints.files import layout_lines

    if words.list:
        print(
            "\n".join(layout_lines(words.source, words.prefix))
            or f"{words.source}: no layout's names are in it under {words.prefix!r}"
        )
        return OK
    if words.source is None or words.destination is None or words.heads is None:
        raise AttnspecError(
            "convert needs a source, a destination and --heads; 'attnspec convert --list' shows the layouts"
        )
    left = convert_file(
        words.source,
        words.destination,
        source_layout=words.source_layout,
        target_layout=words.target_layout,
        heads=words.heads,
        kv_heads=words.kv_heads,
        prefix=words.prefix,
        target_prefix=words.to_prefix,
        group=words.group,
    )
    print(f"wrote {words.destination}")
    if left:
        print(
            f"left out {len(left)} tensors that are no part of a converted layer: "
            f"{', '.join(left[:6])}{', ...' if len(left) > 6 else ''}"
        )
    return OK


def run_bench(arguments: list[str]) -> int:
    """Hand over to the benchmark's own command line."""
    from .bench import main

    result: int = main(arguments)
    return result


def run_plot(words: argparse.Namespace) -> int:
    """Draw attention weights."""
    from .plot import plot_file

    plot_file(words.weights, words.output, sample=words.sample)
    print(f"wrote {words.output}")
    return OK
