"""Where pages go, and the little Markdown that all of them share."""

import html
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PARTS = DOCS / "_generated"
# Folders whose every file is generated; all of them are ignored by git.
GENERATED = (
    PARTS,
    DOCS / "clauses",
    DOCS / "implementations",
    DOCS / "reference",
    DOCS / "assets" / "generated",
)


class Output:
    """The generated files: written when they change, and deleted when no longer written."""

    def __init__(self) -> None:
        self._written: set[Path] = set()

    def part(self, name: str, text: str) -> None:
        """Write a part that a page includes with a snippet line."""
        self.write(PARTS / name, text)

    def page(self, name: str, title: str, description: str, text: str) -> None:
        """Write a whole page with its title and description."""
        head = f"---\ntitle: {quoted(title)}\ndescription: {quoted(description)}\n---\n\n"
        self.write(DOCS / name, f"{head}# {title}\n\n{text.strip()}\n")

    def write(self, path: Path, text: str) -> None:
        """Write a file, leaving it alone where it is the same, so that a server does not build again."""
        self._written.add(path)
        if path.exists() and path.read_text(encoding="utf-8") == text:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def keep(self, path: Path) -> None:
        """Keep a file that something else wrote."""
        self._written.add(path)

    def sweep(self) -> None:
        """Delete what an earlier build generated and this one did not."""
        for folder in GENERATED:
            for path in folder.rglob("*"):
                if path.is_file() and path not in self._written:
                    path.unlink()


def quoted(text: str) -> str:
    """Return text as a YAML string."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(cell(c) for c in line) + " |" for line in lines) + "\n"


def cell(text: str) -> str:
    """Return text that may stand in a table's cell."""
    return text.replace("\n", " ").replace("|", "\\|")


def code(text: str) -> str:
    """Return inline code; nothing for nothing."""
    return f"`{text}`" if text else ""


def fence(text: str, language: str = "text", options: str = "") -> str:
    """Return a fenced block; the fence is longer than any inside."""
    ticks = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    head = f"{language} {options}".strip() if not options else f"{{ .{language} {options} }}"
    return f"{ticks}{head}\n{text.rstrip()}\n{ticks}\n"


def formula(text: str) -> str:
    """Return displayed LaTeX; nothing for nothing."""
    return f"$$\n{text}\n$$\n" if text else ""


def prose(text: str) -> str:
    """Return a sentence of the contract as Markdown: what looks like code or markup is kept as it is."""
    return html.escape(text, quote=False).replace("*", "\\*").replace("_", "\\_") if "`" not in text else text


def number(value: float) -> str:
    """Return a number with thin groups of three digits."""
    return f"{value:,}".replace(",", " ")
