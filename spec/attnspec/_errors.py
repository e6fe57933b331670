"""Every exception class of attnspec. Each subclasses what a caller would catch anyway."""

from collections.abc import Iterable
from difflib import get_close_matches


class AttnspecError(Exception):
    """Base of everything that attnspec raises on purpose."""


class ShapeError(AttnspecError, ValueError):
    """A size or a rank that the contract does not allow."""


class DtypeError(AttnspecError, TypeError):
    """A dtype, or a mix of dtypes, that the contract does not allow."""


class UnsupportedFeatureError(AttnspecError, NotImplementedError):
    """An argument that an implementation does not honour; raised instead of ignoring it."""


class UnknownNameError(AttnspecError, LookupError):
    """A name that is not there; the message lists the valid ones and suggests the nearest."""

    def __init__(self, kind: str, name: str, valid: Iterable[str]) -> None:
        names = sorted(valid)
        near = get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        listed = ", ".join(names) if names else "none"
        super().__init__(f"no {kind} is called {name!r}{hint}\n  valid: {listed}")

    @classmethod
    def worded(cls, message: str) -> "UnknownNameError":
        """Return the error with a message of its own, for a list that is too long to show."""
        error = cls("name", "", ())
        error.args = (message,)
        return error


class NameClashError(AttnspecError, ValueError):
    """Two registrations under one name; the message shows both."""


class TargetError(AttnspecError):
    """What the user pointed at cannot be found, imported, constructed or called."""


class DeclarationError(AttnspecError, ValueError):
    """A declaration that contradicts itself or names something that does not exist."""


class ReportError(AttnspecError, OSError):
    """A report that could not be written; the verdict was already shown."""


class SelfTestError(AttnspecError, AssertionError):
    """The two oracles disagree: the suite is at fault, not the implementation under test."""
