"""Where in the user's code an operation was called: frames, lines and the exact expression."""

import linecache
import sys
import sysconfig
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType, TracebackType

import beartype
import jaxtyping
import torch

_PACKAGE = str(Path(__file__).resolve().parent.parent)
_ROOTS = (
    _PACKAGE + "/",
    *(str(Path(m.__file__ or "").resolve().parent) + "/" for m in (torch, jaxtyping, beartype)),
)
_STDLIB = str(Path(sysconfig.get_paths()["stdlib"]).resolve()) + "/"


@dataclass(frozen=True, slots=True)
class Place:
    """The call that made an operation.

    Attributes:
        file: Path as Python knows it.
        line: Line of the call.
        source: That line, stripped.
        code: The calling expression alone, on one line; the line where Python does not know it.
        site: What tells this call from every other one, loops aside: the whole stack above it.
        depth: Where in `site` the user's frame stands.
        callers: Lines of the same file that led there, nearest first, where the call is in a helper.
        api: The einops function that made the call, if one did.
        origin: `user`; `adaptor` if only attnspec's own code is in the stack; `library` if only torch is.
        owner: The nearest `torch.nn.MultiheadAttention` call around it, as its frame's id.
    """

    file: str
    line: int
    source: str
    code: str
    site: tuple[tuple[str, str, int], ...]
    depth: int
    callers: tuple[int, ...]
    api: str | None
    origin: str
    owner: int | None


@lru_cache(maxsize=4096)
def kind_of(filename: str) -> str:
    """Say whose code a file holds: `user`, `torch`, `einops`, `attnspec` or `library`."""
    if filename.startswith(("<frozen", "<@beartype", "<__array")):
        return "library"
    path = str(Path(filename).resolve()) if not filename.startswith("<") else filename
    if path.startswith(_ROOTS[0]):
        return "attnspec"
    if path.startswith(_ROOTS[1]):
        return "torch"
    if path.startswith(_ROOTS[2:]):
        return "library"
    if "/site-packages/einops/" in path:
        return "einops"
    if path.startswith(_STDLIB) and "/site-packages/" not in path:
        return "library"
    return "user"


@lru_cache(maxsize=4096)
def _positions(code: CodeType) -> tuple[tuple[int | None, int | None, int | None, int | None], ...]:
    return tuple(code.co_positions())


def expression(code: CodeType, instruction: int, line: int) -> str:
    """Return the source of the expression that an instruction belongs to, on one line."""
    positions = _positions(code)
    here = positions[instruction // 2] if instruction // 2 < len(positions) else (None, None, None, None)
    first, last, start, end = here
    if first is None or last is None or start is None or end is None:
        return linecache.getline(code.co_filename, line).strip()
    lines = [linecache.getline(code.co_filename, number) for number in range(first, last + 1)]
    encoded = [text.encode() for text in lines]
    if not encoded or not encoded[0]:
        return ""
    encoded[-1] = encoded[-1][:end]
    encoded[0] = encoded[0][start:]
    return " ".join(b"".join(encoded).decode(errors="replace").split())


def place_of(frame: FrameType | None, stop: CodeType) -> Place:
    """Return the place of the operation whose caller is `frame`; the stack is read up to `stop`."""
    stack: list[tuple[FrameType, str]] = []
    while frame is not None and frame.f_code is not stop:
        stack.append((frame, kind_of(frame.f_code.co_filename)))
        frame = frame.f_back
    site = tuple((f.f_code.co_filename, f.f_code.co_qualname, f.f_lasti) for f, _ in stack)
    owner = next((id(f) for f, _ in stack if f.f_code is _MHA_FORWARD), None)
    users = [i for i, (_, kind) in enumerate(stack) if kind == "user"]
    chosen = users[0] if users else next((i for i, (_, k) in enumerate(stack) if k == "torch"), 0)
    apis = [f.f_code.co_name for f, kind in stack[:chosen] if kind == "einops"]
    origin = "user" if users else "library" if stack and stack[0][1] == "torch" else "adaptor"
    if not stack:
        return Place("", 0, "", "", site, 0, (), None, origin, owner)
    at = stack[chosen][0]
    source = linecache.getline(at.f_code.co_filename, at.f_lineno).strip()
    around = [
        stack[i][0] for i in users if i > chosen and stack[i][0].f_code.co_filename == at.f_code.co_filename
    ]
    callers = tuple(f.f_lineno for f in around)
    code = expression(at.f_code, at.f_lasti, at.f_lineno)
    return Place(
        at.f_code.co_filename, at.f_lineno, source, code or source, site, chosen, callers,
        apis[-1] if apis else None, origin, owner,
    )  # fmt: skip


def place_of_error(error: BaseException) -> tuple[str, int, str]:
    """Return file, line and source of the innermost user line that an exception passed through."""
    found: tuple[str, int, str] = ("", 0, "")
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if kind_of(name) == "user" or not found[0]:
            found = (name, trace.tb_lineno, linecache.getline(name, trace.tb_lineno).strip())
        trace = trace.tb_next
    return found


def caller(depth: int = 1) -> FrameType:
    """Return the frame `depth` above whoever asks."""
    return sys._getframe(depth + 1)


def frame_of(identity: int | None) -> FrameType | None:
    """Return the running frame with that id, if it is in the stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and id(frame) != identity:
        frame = frame.f_back
    return frame


_MHA_FORWARD = torch.nn.MultiheadAttention.forward.__code__
