"""What recognition found out, and what it has to ask."""

from dataclasses import dataclass, field
from typing import Any, Literal

from ..conformance.space import Space
from ..declaration import Declaration

How = Literal["declared", "by name", "probed", "documented", "assumed"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found out about the code.

    Attributes:
        topic: What it is about, for example `weights`, `mask`, `causal`.
        value: What was found, in a few words.
        how: Whether it was declared, read from a name, probed, documented or assumed.
        override: The `--declare` words that say otherwise, where something can be said.
    """

    topic: str
    value: str
    how: How
    override: str = ""

    def __str__(self) -> str:
        return f"{self.topic}: {self.value}"


@dataclass(frozen=True, slots=True)
class Question:
    """Two readings fit; only the user knows which is meant.

    Attributes:
        clause: The clause that stays open until it is answered.
        text: The question, with both consequences.
        declare: The words that answer it one way.
    """

    clause: str
    text: str
    declare: str


@dataclass(frozen=True)
class Recognition:
    """Everything that a check needs to know about its target.

    Attributes:
        name: As the user wrote it.
        declaration: Complete: declared, recognised and assumed together.
        space: What can be asked of it.
        findings: One line each.
        questions: What only the user can say.
        absent: For each feature that is not there, why.
        subject: The code behind the common interface.
    """

    name: str
    declaration: Declaration
    space: Space
    findings: tuple[Finding, ...]
    questions: tuple[Question, ...]
    absent: dict[str, str]
    subject: Any = field(repr=False)
