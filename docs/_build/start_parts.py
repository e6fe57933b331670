"""What the start page and the tutorial show: example files, and the real output of commands run on them."""

import difflib
import tempfile
from pathlib import Path

from attnspec._new import write_skeleton

from .runs import Request, run_all
from .site import DOCS, Output, fence

EXAMPLE = DOCS / "examples" / "my_attention.py"
MENDED = DOCS / "examples" / "mended_attention.py"
OWN = DOCS / "examples" / "einsum_attention.py"
CLASSES = {EXAMPLE: "MultiHeadAttention", MENDED: "MultiHeadAttention", OWN: "EinsumAttention"}


def _command(file: Path, *arguments: str) -> tuple[str, tuple[str, ...]]:
    words = (arguments[0], f"{file.name}:{CLASSES[file]}", *arguments[1:])
    return "$ attnspec " + " ".join(words), words


def requests() -> dict[str, tuple[str, Request]]:
    """Return for each part of the page the command as people type it, and the run."""
    made = {
        "run-mask": (EXAMPLE, ("check", "--profile", "quick", "--clause", "mask")),
        "run-fixed": (MENDED, ("check", "--profile", "quick", "--mask", "blocked")),
        "run-own": (OWN, ("check", "--profile", "quick")),
        "run-trace": (EXAMPLE, ("trace", "--markdown")),
    }
    found = {}
    for name, (file, arguments) in made.items():
        shown, words = _command(file, *arguments)
        found[name] = (shown, Request("command", file=file, arguments=words))
    return found


def write(out: Output) -> None:
    """Write the parts."""
    code, mended = EXAMPLE.read_text(encoding="utf-8"), MENDED.read_text(encoding="utf-8")
    out.part("example-code.md", fence(code, "python", f'title="{EXAMPLE.name}"'))
    changed = list(
        difflib.unified_diff(
            code.splitlines(), mended.splitlines(), EXAMPLE.name, MENDED.name, lineterm="", n=1
        )
    )
    out.part("example-fixed-code.md", fence("\n".join(changed), "diff"))
    out.part("own-code.md", fence(OWN.read_text(encoding="utf-8"), "python", f'title="{OWN.name}"'))
    out.part("skeleton.md", f'??? note "The skeleton"\n\n{indented(fence(skeleton(), "python"))}')
    wanted = requests()
    for (name, (command, _)), result in zip(
        wanted.items(), run_all([r for _, r in wanted.values()]), strict=True
    ):
        if name == "run-trace":
            out.part(
                f"{name}.md",
                fence(command.replace(" --markdown", ""), "console") + "\n" + tables_only(result["text"]),
            )
        else:
            out.part(f"{name}.md", fence(f"{command}\n{result['text']}", "text"))


def tables_only(markdown: str) -> str:
    """Return a trace without its heading, which the page has already."""
    return "\n".join(line for line in markdown.splitlines() if not line.startswith("## ")).strip() + "\n"


def skeleton() -> str:
    """Return what `attnspec new my_attention` writes."""
    with tempfile.TemporaryDirectory() as place:
        path, _ = write_skeleton("my_attention", kind="layer", folder=Path(place))
        return path.read_text(encoding="utf-8").replace(f"{place}/", "")


def indented(text: str) -> str:
    """Return text as the inside of an admonition."""
    return "".join(f"    {line}" if line.strip() else line for line in text.splitlines(keepends=True))
