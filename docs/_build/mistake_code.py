"""The files of the gallery: which line is wrong, what stands there instead, and the mended file.

A wrong line ends in `# wrong`; the lines after it that begin with `# right:` replace it.
"""

import re
from dataclasses import dataclass
from pathlib import Path

WRONG = re.compile(r"^(?P<indent> *)(?P<code>.*?)  # wrong$")
RIGHT = re.compile(r"^ *# right: ?(?P<code>.*)$")


@dataclass(frozen=True)
class Gallery:
    """One file of the gallery.

    Attributes:
        shown: The file without its marks, as it is checked.
        wrong: Numbers of the wrong lines in it, from 1.
        mended: The file with the right lines.
        right: Numbers of the right lines in that.
        object: Name of the class or function under test.
    """

    shown: str
    wrong: tuple[int, ...]
    mended: str
    right: tuple[int, ...]
    object: str


def read(path: Path) -> Gallery:
    """Read a file of the gallery.

    Raises:
        ValueError: If no line is marked, or a wrong line has no right one.
    """
    shown: list[str] = []
    mended: list[str] = []
    wrong: list[int] = []
    right: list[int] = []
    lines = path.read_text(encoding="utf-8").splitlines()
    at = 0
    while at < len(lines):
        found = WRONG.match(lines[at])
        at += 1
        if found is None:
            shown.append(lines[at - 1])
            mended.append(lines[at - 1])
            continue
        shown.append(found["indent"] + found["code"])
        wrong.append(len(shown))
        before = len(mended)
        while at < len(lines) and (better := RIGHT.match(lines[at])):
            mended.append(found["indent"] + better["code"])
            at += 1
        if len(mended) == before:
            raise ValueError(f"{path.name}: a wrong line has no right one: {found['code']}")
        right += range(before + 1, len(mended) + 1)
    if not wrong:
        raise ValueError(f"{path.name}: no line is marked as wrong")
    name = "Attention" if re.search(r"^class Attention\b", "\n".join(lines), re.MULTILINE) else "attention"
    return Gallery(_file(shown), tuple(wrong), _file(mended), tuple(right), name)


def _file(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


def excerpt(text: str, marked: tuple[int, ...], around: int = 1) -> tuple[str, tuple[int, ...]]:
    """Return the lines around the marked ones, and where the marked ones stand in them."""
    lines = text.splitlines()
    first = max(1, min(marked) - around)
    last = min(len(lines), max(marked) + around)
    depth = min(_indent(lines[n - 1]) for n in marked)
    # What stands before is shown from where it is no deeper: never the inside of a branch without its `if`.
    while first > 1 and lines[first - 1].strip() and _indent(lines[first - 1]) > depth:
        first -= 1
    chosen = lines[first - 1 : last]
    while chosen and not chosen[0].strip():
        chosen, first = chosen[1:], first + 1
    while chosen and not chosen[-1].strip():
        chosen.pop()
    indent = min(_indent(line) for line in chosen if line.strip())
    return "\n".join(line[indent:] for line in chosen), tuple(n - first + 1 for n in marked)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
