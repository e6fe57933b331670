"""Looking things up: clauses, chapters, stages, axes, implementations."""

from rich.table import Table

from . import _terminal as terminal
from ._axes import AXES
from ._clauses import clauses
from ._errors import TargetError, UnknownNameError
from ._registry import registry


def show(what: str) -> None:
    """Print what is known about a name.

    Raises:
        UnknownNameError: If nothing has it; the message suggests the nearest.
    """
    out, book = terminal.console(), clauses()
    if what in ("stages", "axes", "clauses", "implementations"):
        show_list(what)
    elif what in book:
        out.print(terminal.clause_page(book[what]))
    elif any(c.name == what for c in book.chapters):
        chapter = next(c for c in book.chapters if c.name == what)
        out.print(terminal.title(chapter.title, chapter.about))
        out.print(terminal.clause_list(chapter.clauses))
    elif what in registry():
        record = registry().get(what)
        out.print(
            terminal.title(
                record.name, f"{record.contract}\n{record.summary}\n{record.idea}\n{record.location}"
            )
        )
    else:
        everything = [*book, *(c.name for c in book.chapters), *registry(), "stages", "axes"]
        first = str(UnknownNameError("clause, chapter, implementation or table", what, everything)).split(
            "\n", 1
        )[0]
        raise UnknownNameError.worded(first + "\n  all of them: attnspec list clauses, attnspec list")


def show_list(what: str) -> None:
    """Print a whole list."""
    out = terminal.console()
    if what == "clauses":
        for chapter in clauses().chapters:
            out.print()
            out.print(terminal.title(chapter.title, chapter.about))
            out.print(terminal.clause_list(chapter.clauses))
    elif what == "stages":
        from .stages import STAGES

        out.print(terminal.stage_table(STAGES.values()))
    elif what == "axes":
        table = Table(box=None, pad_edge=False)
        for title in ("axis", "meaning", "also written"):
            table.add_column(title)
        for axis in AXES:
            table.add_row(axis.name, axis.meaning, ", ".join(axis.also))
        out.print(table)
    else:
        known = registry()
        for name in known:
            try:
                record = known.get(name)
            except TargetError as error:
                out.print(f"{name:<24} {'-':<7} {error}")
            else:
                out.print(f"{name:<24} {record.contract:<7} {record.summary}")
