"""Real runs for the pages: made by the build, kept by content, so that a second build is fast.

A kept run is used only while the specification, the implementations, the file under test, Python, torch and
the request are the same. `.cache/docs/` may be deleted at any time.
"""

import contextlib
import hashlib
import importlib.util
import json
import multiprocessing
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .site import ROOT

CACHE = ROOT / ".cache" / "docs"
WIDTH = "118"
# Raise it when the runs are made in another way, so that none of the older ones is used.
RECIPE = 1


@dataclass(frozen=True)
class Request:
    """One run.

    Attributes:
        kind: `command` runs the command line as a user would; `check` and `trace` call what is behind it.
        target: What is checked or traced; a file is named by itself, without its folder.
        file: The file that the target is in, or None for a registered implementation.
        clause: Clauses or chapters; none is all.
        declare: What a user would declare about it.
        arguments: The whole command line of a `command`.
    """

    kind: str
    target: str = ""
    file: Path | None = None
    clause: tuple[str, ...] = ()
    declare: dict[str, Any] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()

    def key(self) -> str:
        """Return the name under which the run is kept."""
        parts = [
            sources(), self.kind, self.target,
            repr(self.clause), repr(sorted(self.declare.items())), repr(self.arguments),
            self.file.read_text(encoding="utf-8") if self.file else "",
        ]  # fmt: skip
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@cache
def sources() -> str:
    """Return a hash of everything that a run's result depends on beside its target."""
    sums = hashlib.sha256(f"{RECIPE} {platform.python_version()} {version('torch')} {WIDTH}".encode())
    for package in ("attnspec", "attnspec_impls"):
        found = importlib.util.find_spec(package)
        assert found is not None
        assert found.submodule_search_locations is not None
        folder = Path(next(iter(found.submodule_search_locations)))
        for path in sorted(p for p in folder.rglob("*") if p.suffix in (".py", ".toml")):
            sums.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return sums.hexdigest()


def run_all(requests: list[Request]) -> list[dict[str, Any]]:
    """Return the result of each request, in order; those that are not kept are run in two processes."""
    CACHE.mkdir(parents=True, exist_ok=True)
    places = [CACHE / f"{request.key()}.json" for request in requests]
    todo = {place: request for place, request in zip(places, requests, strict=True) if not place.exists()}
    if todo:
        workers = min(2, len(todo), os.cpu_count() or 1)
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, mp_context=context, initializer=_alone) as pool:
            list(pool.map(_keep, todo, todo.values()))
    return [json.loads(place.read_text(encoding="utf-8")) for place in places]


def _alone() -> None:
    """Keep a worker to one thread: the workers share the cores."""
    import torch

    torch.set_num_threads(1)


@contextlib.contextmanager
def _folder(request: Request) -> Iterator[None]:
    """Stand in an empty folder beside a copy of the file, so that paths in the output are short."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as place:
        if request.file is not None:
            shutil.copy(request.file, place)
        os.chdir(place)
        try:
            yield
        finally:
            os.chdir(before)


def _keep(place: Path, request: Request) -> None:
    """Run a request and keep its result."""
    kept = json.dumps(_run(request), default=str)
    place.write_text(kept, encoding="utf-8")


def _run(request: Request) -> dict[str, Any]:
    with _folder(request):
        try:
            return {"command": _command, "check": _check, "trace": _trace}[request.kind](request)
        except Exception as error:
            # Some exceptions cannot travel between processes.
            raise RuntimeError(f"{request.kind} {request.target}: {type(error).__name__}: {error}") from None


def _command(request: Request) -> dict[str, Any]:
    """Run the command line in a process of its own and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "attnspec", *request.arguments], capture_output=True, text=True, check=False,
        env={**os.environ, "COLUMNS": WIDTH, "NO_COLOR": "1"},
    )  # fmt: skip
    if done.returncode not in (0, 1):
        raise RuntimeError(f"attnspec {' '.join(request.arguments)}: {done.stdout}{done.stderr}")
    return {"text": done.stdout.rstrip(), "status": done.returncode}


def _check(request: Request) -> dict[str, Any]:
    """Check in this process and return the report with the lines that the command line prints for it."""
    from attnspec import check_implementation
    from attnspec._terminal import failures, verdict

    declared = request.declare
    report = check_implementation(
        request.target, declaration=declared, profile="quick", clause=request.clause or None,
        isolation="none", scripts=".attnspec",
    )  # fmt: skip
    shown = [_plain(item) for item in failures(report)]
    return {
        **report.as_dict(),
        "ok": report.ok,
        "chapters": report.chapters(),
        "failures": shown,
        "verdict": _plain(verdict(report)),
    }


def _trace(request: Request) -> dict[str, Any]:
    """Trace in this process and return the two tables as Markdown."""
    from attnspec import TargetError, trace
    from attnspec.declaration import Declaration
    from attnspec.trace.target import trace_target

    try:
        found = trace_target(request.target, Declaration.from_mapping(request.declare))
    except TargetError as error:
        return {"unavailable": str(error)}
    return {"markdown": trace.to_markdown(found)}


def _plain(item: Any) -> str:
    """Return what a terminal shows, without colours and without folding lines."""
    from rich.console import Console

    out = Console(width=400, color_system=None, highlight=False, soft_wrap=True)
    with out.capture() as captured:
        out.print(item)
    return captured.get().rstrip()
