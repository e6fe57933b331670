"""The result of one clause, as plain data that crosses process borders."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Status = Literal["passed", "failed", "question", "deviation", "not applicable", "not run", "error"]


@dataclass(frozen=True)
class Failure:
    """Why a clause does not hold, on the smallest case that was found.

    Attributes:
        what: One sentence.
        case: The smallest case, in words.
        structure: The same case as data.
        got: The worst element.
        expected: What should have been there.
        allowed: How far off a right implementation could be.
        index: Of the worst element.
        ratio: Error over allowed error.
        raised: What the code raised, where it did.
        where: The user's line, where it is known.
        looks_like: The known mistake that it equals, in one sentence.
        fix: What to change.
        script: Path of a script that reproduces it.
        kin: The clauses of the stage at which the code departs: those that name this kind of mistake.
    """

    what: str
    case: str
    structure: dict[str, Any] = field(default_factory=dict)
    got: Any = None
    expected: Any = None
    allowed: float | None = None
    index: tuple[int, ...] | None = None
    ratio: float | None = None
    raised: str | None = None
    where: str | None = None
    looks_like: str | None = None
    fix: str | None = None
    script: str | None = None
    kin: tuple[str, ...] = ()


@dataclass(frozen=True)
class ClauseResult:
    """What came of one clause for one implementation.

    Attributes:
        clause: Its name.
        status: What came of it.
        reason: Why it does not apply, was not run, or is declared to deviate; or the question.
        examples: Cases that were run.
        seconds: How long it took.
        worst: The largest error over allowed error that passed or failed.
        failure: Of a clause that does not hold.
        answer: What to declare if the answer to a question is yes.
    """

    clause: str
    status: Status
    reason: str = ""
    examples: int = 0
    seconds: float = 0.0
    worst: float = 0.0
    failure: Failure | None = None
    answer: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "ClauseResult":
        """Build a result from plain data."""
        failure = data.get("failure")
        if failure is not None:
            index = tuple(failure["index"]) if failure.get("index") is not None else None
            failure = Failure(**{**failure, "index": index, "kin": tuple(failure.get("kin", ()))})
        return cls(**{**data, "failure": failure})
