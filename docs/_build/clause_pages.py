"""One page for each chapter, with an entry for each clause at a stable address."""

import json
from typing import Any

from attnspec import clauses
from attnspec._clauses import CONTRACT_VERSION, Chapter, Clause, Level
from attnspec._table import STAGES

from . import links
from .site import ROOT, Output, fence, formula, prose, table

KILL_TABLE = ROOT / "tests" / "defects" / "kill_table.json"
LEVELS = {
    Level.MUST: "decides whether an implementation conforms",
    Level.SHOULD: "is reported as advice",
    Level.ALTERNATIVE: "an implementation declares which of several it does, and is held to that",
}


def kill_table() -> dict[str, Any]:
    """Return the seeded defects and what catches them; empty where the table has not been made."""
    if not KILL_TABLE.exists():
        return {"summary": {}, "defects": {}}
    found: dict[str, Any] = json.loads(KILL_TABLE.read_text(encoding="utf-8"))
    return found


def write(out: Output, mistakes: dict[str, list[tuple[str, str, str]]]) -> None:
    """Write the index and the chapters.

    Args:
        out: Where to.
        mistakes: For each clause the mistakes of the gallery that break it: id, title, what attnspec says.
    """
    defects = kill_table()["defects"]
    catches: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for name, defect in defects.items():
        for clause, found in defect["kills"].items():
            if found["status"] in ("failed", "question"):
                catches.setdefault(clause, []).append((name, {**defect, "named": found.get("named", False)}))
    for chapter in clauses().chapters:
        body = [f"{prose(chapter.about)}\n", overview(chapter)]
        body += [entry(c, catches.get(c.name, []), mistakes.get(c.name, [])) for c in chapter.clauses]
        about = f"Clauses of the contract about {chapter.title.lower()}: {chapter.about}"
        out.page(f"clauses/{chapter.name}.md", chapter.title, about, "\n".join(body))
    out.page(
        "clauses/index.md",
        "Clauses",
        f"Every rule of multi-head attention, contract {CONTRACT_VERSION}, by chapter.",
        index(),
    )


def overview(chapter: Chapter) -> str:
    """Return the chapter's clauses in a table."""
    rows = [(f"[`{c.name}`](#{c.name})", str(c.level), prose(c.statement)) for c in chapter.clauses]
    return table(("clause", "level", "statement"), rows)


def index() -> str:
    """Return the page of all chapters."""
    book = clauses()
    rows = [
        (
            f"[{c.title}]({c.name}.md)",
            prose(c.about),
            str(len(c.clauses)),
            str(sum(e.level == Level.MUST for e in c.clauses)),
        )
        for c in book.chapters
    ]
    levels = "\n".join(f"- **{level}** {words}." for level, words in LEVELS.items())
    intro = (
        f"The contract {CONTRACT_VERSION} has {len(book)} clauses in {len(book.chapters)} chapters. Each"
        " has a name that does not change, one sentence that is true of a right implementation, a check,"
        " and the bug that made it necessary."
    )
    outro = (
        "On the command line `attnspec show NAME` says the same; `attnspec check TARGET --clause NAME`"
        " runs one clause, or one chapter."
    )
    return "\n\n".join((intro, levels, table(("chapter", "about", "clauses", "MUST"), rows), outro))


def entry(
    clause: Clause, defects: list[tuple[str, dict[str, Any]]], mistakes: list[tuple[str, str, str]]
) -> str:
    """Return everything about one clause."""
    lines = [
        f"## `{clause.name}` {{ #{clause.name} data-toc-label='{clause.name}' }}\n",
        f"**{clause.level}** · {prose(clause.statement)}\n",
    ]
    lines.append(formula(clause.formula))
    lines.append(f"Holds for: {', '.join(clause.contracts)}")
    if clause.needs:
        lines[-1] += f" · needs: {', '.join(clause.needs)}"
    used = [s for s in STAGES.values() if clause.name in s.clauses]
    if used:
        lines[-1] += " · stage: " + ", ".join(f"[{s.name}](../stages.md#{s.function.__name__})" for s in used)
    lines[-1] += "\n"
    if clause.hint:
        lines.append(f"What to do: {prose(clause.hint)}\n")
    if clause.reason:
        lines.append("Why: " + ", ".join(links.reason(r) for r in clause.reason) + "\n")
    for identity, title, said in mistakes[:1]:
        lines.append(f"Broken by [{title}](../mistakes.md#{identity}):\n\n{fence(said)}")
    if len(mistakes) > 1:
        lines.append(
            "Also: " + ", ".join(f"[{title}](../mistakes.md#{i})" for i, title, _ in mistakes[1:]) + "\n"
        )
    if defects:
        lines.append(caught(defects))
    return "\n".join(line for line in lines if line)


def caught(defects: list[tuple[str, dict[str, Any]]]) -> str:
    """Return the seeded defects that a clause catches; those that name its kind first."""
    ordered = sorted(defects, key=lambda d: not d[1]["named"])
    lines = [f'??? note "Catches {len(defects)} seeded defect{"s" if len(defects) != 1 else ""}"\n']
    for name, defect in ordered:
        lines.append(f"    - `{name}`: {prose(defect['what'])} ({links.issues(defect['stands_for'])})")
    return "\n".join(lines) + "\n"
