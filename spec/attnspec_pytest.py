"""The pytest plugin: one test an implementation and clause.

It stands beside the package, not inside it, so that pytest loads it without importing attnspec: import
hooks and coverage still see the package's first import.

    pytest --attnspec my_package.attention:MyAttention
    pytest --attnspec sdpa --attnspec-profile quick -k "mask"
"""

from collections.abc import Generator, Iterator, Mapping
from functools import cache
from typing import Any

import pytest

_SESSIONS = pytest.StashKey[dict[str, Any]]()
_DECORATED: list[Any] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the plugin's options."""
    group = parser.getgroup("attnspec", "conformance of attention implementations")
    group.addoption(
        "--attnspec",
        action="append",
        default=[],
        metavar="TARGET",
        help="file.py:Object, package.module:Object or a registered name; may be given again",
    )
    group.addoption("--attnspec-profile", default="quick", metavar="NAME", help="quick, default or thorough")
    group.addoption(
        "--attnspec-declare",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="what cannot be found out by itself",
    )
    group.addoption("--attnspec-seed", type=int, default=1, help="of all cases")
    group.addoption("--attnspec-device", default="cpu", help="where tensors live")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker and make room for the worker processes."""
    config.addinivalue_line(
        "markers", "attnspec(target, clause): one clause of the attention contract on one implementation"
    )
    config.stash[_SESSIONS] = {}


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the worker processes."""
    for session in [*config.stash.get(_SESSIONS, {}).values(), *_DECORATED]:
        session.close()
    _DECORATED.clear()


class ClauseItem(pytest.Item):
    """One clause of the contract on one implementation."""

    def __init__(self, *, target: str, clause: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.target, self.clause = target, clause
        self.add_marker(pytest.mark.attnspec(target, clause))

    def runtest(self) -> None:
        """Run the clause and turn its result into an outcome."""
        judge_result(self.clause, session_for(self.config, self.target).run(self.clause))

    def reportinfo(self) -> tuple[str, int | None, str]:
        """Name the test."""
        return self.target.partition(":")[0], None, f"{self.target} [{self.clause}]"


class TargetCollector(pytest.Collector):
    """All clauses of one implementation."""

    def __init__(self, *, target: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.target = target

    def collect(self) -> Iterator[ClauseItem]:
        """Yield one item a clause that holds for the implementation's contract."""
        from attnspec import clauses

        found = session_for(self.config, self.target).recognised
        for clause in clauses().values():
            if clause.holds_for(found["contract"]):
                yield ClauseItem.from_parent(self, name=clause.name, target=self.target, clause=clause.name)


class TargetsPlugin:
    """Adds the targets of the command line to what pytest collects by itself."""

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Generator[None, Any, Any]:
        """Collect the targets behind everything else, in time for -k, -m and xdist to see each clause.

        Raises:
            UsageError: If a target cannot be used.
        """
        report = yield
        if isinstance(collector, pytest.Session) and report.outcome == "passed":
            report.result = [*report.result, *self._collectors(collector)]
        return report

    def _collectors(self, session: pytest.Session) -> Iterator[TargetCollector]:
        from attnspec import AttnspecError as KnownError

        for target in session.config.getoption("--attnspec"):
            try:
                session_for(session.config, target)
            except KnownError as error:
                raise pytest.UsageError(f"attnspec: {error}") from error
            yield TargetCollector.from_parent(session, name=f"attnspec[{target}]", target=target)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Take part in collection where targets are given."""
    if session.config.getoption("--attnspec"):
        session.config.pluginmanager.register(TargetsPlugin(), "attnspec-targets")


def session_for(config: pytest.Config, target: str) -> Any:
    """Return the worker for a target, started on its first use and recognised."""
    sessions = config.stash[_SESSIONS]
    if target not in sessions:
        from attnspec import Declaration
        from attnspec.conformance.session import ProcessSession

        session = ProcessSession(
            target,
            Declaration.from_pairs(config.getoption("--attnspec-declare")),
            profile_name=config.getoption("--attnspec-profile"),
            seed=config.getoption("--attnspec-seed"),
            device=config.getoption("--attnspec-device"),
            scripts=".attnspec",
        )
        try:
            session.recognise()
        except BaseException:
            session.close()
            raise
        sessions[target] = session
    return sessions[target]


def judge_result(name: str, result: Any) -> None:
    """Turn the result of a clause into a pass, a skip, a warning or a failure."""
    from attnspec import clauses
    from attnspec.report import failure_text

    clause = clauses()[name]
    if result.status == "not applicable":
        pytest.skip(f"not applicable: {result.reason}")
    if result.status == "deviation":
        pytest.skip(f"declared deviation: {result.reason}")
    if result.status != "passed":
        text = failure_text(clause, result)
        if clause.level == "SHOULD" and result.status != "error":
            pytest.xfail(text)
        # Without a traceback, for none of it would be the user's.
        pytest.fail(text, pytrace=False)


def parametrize_with_clauses(
    target: Any, *, profile: str = "quick", declaration: Mapping[str, Any] | None = None, clause: Any = None
) -> Any:
    """Return a decorator that gives a test one parameter `check_clause` for each clause of the contract.

        @attnspec_pytest.parametrize_with_clauses(MyAttention)
        def test_conforms(check_clause):
            check_clause()

    Args:
        target: A function or class, or text that names one.
        profile: How hard to try.
        declaration: What cannot be found out by itself.
        clause: Only these clauses or chapters.
    """
    from attnspec import AttnspecError as KnownError
    from attnspec import clauses
    from attnspec._check import as_target, locate, select
    from attnspec.conformance.local import LocalSession
    from attnspec.conformance.session import ProcessSession
    from attnspec.declaration import Declaration

    text = target if isinstance(target, str) else locate(target)
    declared = Declaration.from_mapping(declaration or {})

    @cache
    def session() -> tuple[Any, str, str]:
        """Return the session, its contract, and why it cannot be used, if it cannot."""
        worker: Any
        if text is None:
            worker = LocalSession(as_target(target), declared, profile_name=profile)
        else:
            worker = ProcessSession(text, declared, profile_name=profile)
            _DECORATED.append(worker)
        try:
            return worker, worker.recognise()["contract"], ""
        except KnownError as error:
            return worker, "", str(error)

    def bind(name: str) -> Any:
        def check_clause() -> None:
            worker, contract, trouble = session()
            if trouble:
                pytest.fail(f"attnspec: {trouble}", pytrace=False)
            if not clauses()[name].holds_for(contract):
                pytest.skip(f"not about a {contract}")
            judge_result(name, worker.run(name))

        return check_clause

    chosen = select(clause)
    return pytest.mark.parametrize("check_clause", [pytest.param(bind(c.name), id=c.name) for c in chosen])
