"""The one call: check an implementation and return its report."""

import inspect
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import PathFinder
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Literal

from ._clauses import Clause, clauses
from ._errors import UnknownNameError
from .conformance.local import LocalSession
from .conformance.results import ClauseResult
from .conformance.session import CALL_LIMIT, ProcessSession
from .declaration import Declaration
from .loading import Target
from .report import Report

Progress = Callable[[ClauseResult, int, int], None]


def check_implementation(
    target: Any,
    *,
    declaration: Declaration | Mapping[str, Any] | None = None,
    profile: str = "default",
    clause: str | Iterable[str] | None = None,
    device: str = "cpu",
    seed: int = 1,
    isolation: Literal["process", "none"] = "process",
    jobs: int = 1,
    scripts: str | Path | None = None,
    limit: float = CALL_LIMIT,
    progress: Progress | None = None,
    recognised: Callable[[Mapping[str, Any]], None] | None = None,
) -> Report:
    """Hold an implementation to the contract, clause by clause.

    Args:
        target: `file.py:Object`, `package.module:Object`, a registered name, or the function or class itself.
        declaration: What cannot be found out by itself; a mapping has the fields of `Declaration`.
        profile: `quick`, `default` or `thorough`.
        clause: Names, or beginnings of names up to a dot, of the clauses to run; None is all.
        device: Where tensors live: `cpu`, `cuda`, ...
        seed: Of all cases; equal seeds give equal runs.
        isolation: `process` runs the code under test in a process of its own, so that a crash or a hang is
            its result; `none` runs it here, which an object without an importable name needs.
        jobs: How many processes share the clauses.
        scripts: Folder for scripts that reproduce failures; None writes none.
        limit: Seconds that one call of the code under test may take before it counts as a hang.
        progress: Called after each clause with its result, how many are done, and of how many.
        recognised: Called once with what recognition found.

    Returns:
        The report; `report.status` is the exit status that the command line gives.

    Raises:
        TargetError: If the target cannot be found, imported, constructed or called at all.
        UnknownNameError: If a clause, a profile or a registered name does not exist.
        DeclarationError: If the declaration contradicts itself.
    """
    from .conformance.profiles import profile as find_profile

    find_profile(profile)
    declared = (
        declaration if isinstance(declaration, Declaration) else Declaration.from_mapping(declaration or {})
    )
    for deviation in declared.deviations:
        clauses()[deviation]
    chosen = select(clause)
    began = time.perf_counter()
    text = target if isinstance(target, str) else locate(target)
    folder = None if scripts is None else str(scripts)
    sessions: list[Any]
    if isolation == "process" and text is not None:
        settings: dict[str, Any] = {
            "profile_name": profile,
            "seed": seed,
            "device": device,
            "scripts": folder,
            "limit": limit,
        }
        sessions = [ProcessSession(text, declared, **settings) for _ in range(max(1, jobs))]
    else:
        here = target if isinstance(target, str) else as_target(target)
        sessions = [
            LocalSession(here, declared, profile_name=profile, seed=seed, device=device, scripts=folder)
        ]
    try:
        found, results = run_sessions(sessions, chosen, progress, recognised)
        if isolation == "process" and text is None:
            said = {
                "topic": "isolation",
                "value": "none: the object has no name that another process could import",
                "how": "assumed",
                "override": "",
            }
            found = {**found, "findings": [*found["findings"], said]}
    finally:
        for session in sessions:
            if isinstance(session, ProcessSession):
                session.close()
    name = text or str(getattr(target, "__qualname__", type(target).__name__))
    return Report(
        target=name, recognised=found, results=results, profile=profile, seed=seed, device=device,
        seconds=time.perf_counter() - began,
    )  # fmt: skip


def select(clause: str | Iterable[str] | None) -> tuple[Clause, ...]:
    """Return the clauses that the patterns name, each once and in the order of the contract."""
    book = clauses()
    if clause is None:
        return tuple(book.values())
    patterns = [clause] if isinstance(clause, str) else list(clause)
    wanted = {c.name for pattern in patterns for c in book.select(pattern)}
    return tuple(c for c in book.values() if c.name in wanted)


def run_sessions(
    sessions: list[Any],
    chosen: tuple[Clause, ...],
    progress: Progress | None = None,
    recognised: Callable[[Mapping[str, Any]], None] | None = None,
) -> tuple[Mapping[str, Any], tuple[ClauseResult, ...]]:
    """Recognise in each session, then let the sessions take clauses from one queue."""
    with ThreadPoolExecutor(max_workers=len(sessions)) as pool:
        found = next(iter(list(pool.map(lambda session: session.recognise(), sessions))))
        if recognised is not None:
            recognised(found)
        applying = [c for c in chosen if c.holds_for(found["contract"])]
        waiting: SimpleQueue[Clause] = SimpleQueue()
        for entry in applying:
            waiting.put(entry)
        results: dict[str, ClauseResult] = {}

        def work(session: Any) -> None:
            while True:
                try:
                    entry = waiting.get_nowait()
                except Empty:
                    return
                result = session.run(entry.name)
                results[entry.name] = result
                if progress is not None:
                    progress(result, len(results), len(applying))

        list(pool.map(work, sessions))
    return found, tuple(results[c.name] for c in applying)


def locate(target: Any) -> str | None:
    """Return `module:qualified_name` if another process can import the very same object, else None."""
    name, module = getattr(target, "__qualname__", None), getattr(target, "__module__", None)
    if not name or not module or "<locals>" in name or module == "__main__" or module not in sys.modules:
        return None
    here: Any = sys.modules[module]
    for part in name.split("."):
        here = getattr(here, part, None)
    if here is not target or getattr(sys.modules[module], "__spec__", None) is None:
        return None
    if found_by_name(module):
        return f"{module}:{name}"
    # A test module that pytest imported from its file, for example.
    file = getattr(sys.modules[module], "__file__", None) or ""
    return f"{file}:{name}" if file.endswith(".py") and Path(file).is_file() else None


def found_by_name(module: str) -> bool:
    """Return whether another process with the same path finds a loaded module under its name."""
    path, found = None, None
    parts = module.split(".")
    for number in range(1, len(parts) + 1):
        found = PathFinder.find_spec(".".join(parts[:number]), path)
        if found is None:
            return module in sys.builtin_module_names
        path = found.submodule_search_locations
    return found is not None and found.origin == getattr(sys.modules[module], "__file__", None)


def as_target(target: Any) -> Target:
    """Wrap an object that has no importable name."""
    if not callable(target):
        raise UnknownNameError(
            "target", repr(target), ["a function", "a class", "file.py:Object", "a registered name"]
        )
    name = getattr(target, "__qualname__", type(target).__name__)
    try:
        file = inspect.getsourcefile(target)
    except TypeError:
        file = None
    namespace = dict(
        getattr(inspect.unwrap(target), "__globals__", None)
        or vars(sys.modules.get(getattr(target, "__module__", ""), sys))
    )
    return Target(name, target, namespace, file)
