"""The rules as data. Each chapter is one TOML file under `clauses/`; the checks live elsewhere.

A clause has a stable name, a level, a statement, the contracts it applies to, the features it
needs, and the reason it exists: a real bug where there is one.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files

from ._errors import UnknownNameError

CONTRACT_VERSION = "2026.12"
SITE = "clauses"


class Level(StrEnum):
    """How binding a clause is."""

    MUST = "MUST"
    SHOULD = "SHOULD"
    ALTERNATIVE = "ALTERNATIVE"


@dataclass(frozen=True, slots=True)
class Clause:
    """One rule of the contract.

    Attributes:
        name: Stable and dotted; the first word is its chapter.
        level: MUST decides the exit status; SHOULD is reported; ALTERNATIVE is elected by a declaration.
        statement: One sentence that is true of a right implementation.
        contracts: Which of `core`, `layer`, `cached` it holds for.
        needs: Features without which it does not apply.
        reason: Why it exists: `repository#issue` of real bugs, or words.
        formula: LaTeX, where a formula says it best.
        hint: What to do about a failure.
    """

    name: str
    level: Level
    statement: str
    contracts: tuple[str, ...]
    needs: tuple[str, ...] = ()
    reason: tuple[str, ...] = ()
    formula: str = ""
    hint: str = ""

    def holds_for(self, contract: str) -> bool:
        """Return whether the clause is about a contract; a cached layer is a layer too."""
        return contract in self.contracts or (contract == "cached" and "layer" in self.contracts)

    @property
    def chapter(self) -> str:
        """The chapter that it belongs to."""
        return self.name.split(".", 1)[0]

    @property
    def address(self) -> str:
        """Where it stands on the documentation site."""
        return f"/{SITE}/{self.chapter}/#{self.name}"


@dataclass(frozen=True, slots=True)
class Chapter:
    """A group of clauses about one matter."""

    name: str
    title: str
    about: str
    order: int
    clauses: tuple[Clause, ...]


class ClauseBook(Mapping[str, Clause]):
    """All clauses by name, in the order of their chapters."""

    def __init__(self, chapters: tuple[Chapter, ...]) -> None:
        self.chapters = chapters
        self._clauses = {c.name: c for chapter in chapters for c in chapter.clauses}

    def __getitem__(self, name: str) -> Clause:
        """Return a clause.

        Raises:
            UnknownNameError: If there is none; the message suggests the nearest.
        """
        if name not in self._clauses:
            raise UnknownNameError("clause", name, self._clauses)
        return self._clauses[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._clauses)

    def __len__(self) -> int:
        return len(self._clauses)

    def __contains__(self, name: object) -> bool:
        return name in self._clauses

    def select(self, pattern: str) -> tuple[Clause, ...]:
        """Return the clauses whose name is `pattern`, or begins with it up to a dot.

        Raises:
            UnknownNameError: If nothing matches.
        """
        found = tuple(
            c for n, c in self._clauses.items() if n == pattern or n.startswith(pattern.rstrip(".*") + ".")
        )
        if not found:
            chapters = [c.name for c in self.chapters]
            first = str(UnknownNameError("clause or chapter", pattern, [*self._clauses, *chapters])).split(
                "\n", 1
            )[0]
            raise UnknownNameError.worded(
                f"{first}\n  chapters: {', '.join(chapters)}; each clause: attnspec list clauses"
            )
        return found


def _as_tuple(value: object) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)  # type: ignore[arg-type]


def _read_chapter(name: str, text: str) -> Chapter:
    table = tomllib.loads(text)
    clauses = tuple(
        Clause(
            name=clause,
            level=Level(entry.get("level", "MUST")),
            statement=entry["statement"],
            contracts=_as_tuple(entry.get("contracts", ("core", "layer"))),
            needs=_as_tuple(entry.get("needs", ())),
            reason=_as_tuple(entry.get("reason", ())),
            formula=entry.get("formula", ""),
            hint=entry.get("hint", ""),
        )
        for clause, entry in table["clause"].items()
    )
    return Chapter(name, table["title"], table["about"], table["order"], clauses)


@cache
def clauses() -> ClauseBook:
    """Return every clause of the contract."""
    found = [
        _read_chapter(entry.name.removesuffix(".toml"), entry.read_text(encoding="utf-8"))
        for entry in files("attnspec").joinpath("clauses").iterdir()
        if entry.name.endswith(".toml")
    ]
    return ClauseBook(tuple(sorted(found, key=lambda chapter: chapter.order)))
