"""What can go wrong when other people's code is called, as results rather than crashes."""

import linecache
import os
import sysconfig
import traceback
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

from torch import Tensor

from .._errors import UnsupportedFeatureError

# Frames of these are machinery; the user's own line lies outside them.
_MACHINERY = ("torch", "attnspec", "jaxtyping", "beartype", "einops", "hypothesis")


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the user's code."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}  {self.text}"


@cache
def machinery() -> tuple[str, ...]:
    """Return the folders whose files are never the user's own: the libraries between, and Python's."""
    folders = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
    for name in _MACHINERY:
        found = find_spec(name)
        folders += list(found.submodule_search_locations or ()) if found is not None else []
    return tuple(dict.fromkeys(f"{Path(folder).absolute()}{os.sep}" for folder in folders))


@cache
def is_machinery(filename: str) -> bool:
    """Return whether a file belongs to torch, to attnspec or to a library between them and the user."""
    if filename.startswith("<"):
        return True
    path = str(Path(filename).absolute())
    for folder in machinery():
        inside = path.removeprefix(folder)
        # Packages are installed below the folder of the standard library.
        if inside != path and Path(inside).parts[0] not in ("site-packages", "dist-packages"):
            return True
    return False


def user_place(trace: TracebackType | None) -> Place | None:
    """Return the innermost frame of a traceback that is the user's own."""
    place = None
    for frame, line in traceback.walk_tb(trace):
        file = frame.f_code.co_filename
        if not is_machinery(file):
            place = (file, line, frame.f_globals)
    if place is None:
        return None
    file, line, names = place
    linecache.checkcache(file)
    return Place(file, line, linecache.getline(file, line, names).strip())


class SubjectError(Exception):
    """The code under test raised, or returned what cannot be an attention output.

    Attributes:
        kind: Class name of what was raised, or `returned`.
        refusal: Whether it said on purpose that it does not support this.
        place: The user's line, where there is one.
    """

    def __init__(self, kind: str, message: str, *, place: Place | None = None, refusal: bool = False) -> None:
        super().__init__(f"{kind}: {message}" if message else kind)
        self.kind, self.message, self.place, self.refusal = kind, message, place, refusal

    @classmethod
    def of(cls, error: BaseException) -> "SubjectError":
        """Wrap what the user's code raised."""
        first = f"exit({error.code})" if isinstance(error, SystemExit) else str(error).strip().split("\n")[0]
        if type(error).__name__ == "TypeCheckError":
            # jaxtyping says what it got and what it expected on lines of their own.
            said = [line for line in str(error).splitlines() if line.startswith(("Actual", "Expected"))]
            first = " ".join([first, *said])
        refusal = isinstance(error, NotImplementedError | UnsupportedFeatureError)
        return cls(type(error).__name__, first[:400], place=user_place(error.__traceback__), refusal=refusal)


class Violation(Exception):
    """A clause that does not hold, with the numbers that show it.

    Attributes:
        what: One sentence.
        got: The worst element, or a short description.
        expected: What should have been there.
        allowed: How far off a right implementation could be; None where there is no number.
        index: Of the worst element.
        ratio: Error over allowed error.
        wrong: The whole wrong tensor, for naming the mistake; never reported.
        inputs: What it was computed from, where that is one call; never reported.
    """

    def __init__(
        self, what: str, *, got: object = None, expected: object = None, allowed: float | None = None,
        index: tuple[int, ...] | None = None, ratio: float | None = None, wrong: Tensor | None = None,
    ) -> None:  # fmt: skip
        super().__init__(what)
        self.what, self.got, self.expected, self.allowed = what, got, expected, allowed
        self.index, self.ratio, self.wrong = index, ratio, wrong
        self.inputs: object = None


class NotApplicable(Exception):
    """The clause cannot be asked of this subject on this case; the reason is shown."""
