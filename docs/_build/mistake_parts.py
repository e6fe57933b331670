"""The gallery of mistakes in both languages: words by hand, code from files, what attnspec says from runs."""

import shlex
import tempfile
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from . import links, mistake_code
from .runs import Request, run_all
from .site import DOCS, Output, code, fence
from .words import LANGUAGES, WORDS

FOLDER = DOCS / "mistakes"


@dataclass(frozen=True)
class Mistake:
    """One entry: its place in the gallery, its code, its run."""

    id: str
    group: str
    clause: tuple[str, ...]
    declare: dict[str, str]
    source: str
    code: mistake_code.Gallery


@cache
def gallery() -> tuple[Mistake, ...]:
    """Return all mistakes, in the order of the pages."""
    facts = tomllib.loads((FOLDER / "facts.toml").read_text(encoding="utf-8"))
    return tuple(
        Mistake(
            name, group["id"], tuple(fact["clause"]), fact.get("declare", {}), fact.get("source", ""),
            mistake_code.read(FOLDER / f"{name}.py"),
        )
        for group in facts["group"] for name, fact in group["mistake"].items()
    )  # fmt: skip


@cache
def texts(language: str) -> dict[str, Any]:
    """Return the words of one language."""
    return tomllib.loads((FOLDER / f"{language}.toml").read_text(encoding="utf-8"))


def missing_words() -> list[str]:
    """Return where code, facts and the words of a language do not match."""
    names = [m.id for m in gallery()]
    problems = [f"mistakes/{p.name}: not in facts.toml" for p in FOLDER.glob("*.py") if p.stem not in names]
    for language in LANGUAGES:
        words = texts(language)
        groups = dict.fromkeys(m.group for m in gallery())
        problems += [f"mistakes/{language}.toml: lacks group {g}" for g in groups if g not in words["group"]]
        problems += [
            f"mistakes/{language}.toml: lacks {n}"
            for n in names
            if set(words.get(n, {})) != {"title", "learned"}
        ]
        problems += [
            f"mistakes/{language}.toml: has {n}, which is no mistake"
            for n in words
            if n not in (*names, "group")
        ]
        order = [n for n in words if n != "group"]
        if not problems and order != names:
            problems.append(f"mistakes/{language}.toml: not in the order of facts.toml")
    return problems


def run(mended: bool = False) -> list[dict[str, Any]]:
    """Check every file, or every mended file, against the clauses that are said to catch it."""
    with tempfile.TemporaryDirectory() as place:
        wanted = []
        for m in gallery():
            file = Path(place) / f"{m.id}.py"
            file.write_text(m.code.mended if mended else m.code.shown, encoding="utf-8")
            wanted.append(Request("check", f"{m.id}.py:{m.code.object}", file, m.clause, dict(m.declare)))
        return run_all(wanted)


def write(out: Output) -> dict[str, list[tuple[str, str, str]]]:
    """Write the parts, and return for each clause the mistakes that break it.

    Raises:
        SystemExit: If a text is missing, or a mistake is not caught by the clause that should.
    """
    problems = missing_words()
    results = [] if problems else run()
    for m, result in zip(gallery(), results, strict=bool(results)):
        if not result["failures"]:
            problems.append(f"mistakes/{m.id}.py: not caught by {', '.join(m.clause)}")
    if problems:
        raise SystemExit("\n".join(problems))
    for language in LANGUAGES:
        out.part(f"{language}/mistakes.md", page(language, results))
    found: dict[str, list[tuple[str, str, str]]] = {}
    for m, result in zip(gallery(), results, strict=True):
        for clause in m.clause:
            found.setdefault(clause, []).append((m.id, texts("en")[m.id]["title"], result["failures"][0]))
    return found


def page(language: str, results: list[dict[str, Any]]) -> str:
    """Return all entries in one language."""
    parts: list[str] = []
    group = ""
    for m, result in zip(gallery(), results, strict=True):
        if m.group != group:
            group = m.group
            parts.append(f"## {texts(language)['group'][group]} {{ #{group} }}\n")
        parts.append(entry(m, result, language))
    return "\n".join(parts)


def entry(m: Mistake, result: dict[str, Any], language: str) -> str:
    """Return one mistake: what goes wrong, the wrong line, what attnspec says, the right line, the file."""
    words, said = WORDS[language], texts(language)[m.id]
    up = "" if language == "en" else "../"
    wrong, lines = mistake_code.excerpt(m.code.shown, m.code.wrong)
    right, better = mistake_code.excerpt(m.code.mended, m.code.right)
    parts = [f"### {said['title']} {{ #{m.id} }}\n", f"{said['learned']}\n"]
    parts += [label(words["wrong"], "wrong"), marked(wrong, lines, "wrong")]
    command = f"$ attnspec check {m.id}.py:{m.code.object} --clause {' --clause '.join(m.clause)}"
    command += "".join(f" --declare {shlex.quote(f'{key}={value}')}" for key, value in m.declare.items())
    parts += [label(words["says"], "says"), fence(f"{command}\n\n{result['failures'][0]}")]
    parts += [label(words["right"], "right"), marked(right, better, "right")]
    rule = f"{words['rule']}: {links.clause_list(m.clause, up=up)}"
    parts.append(rule + (f" · {words['see']}: {links.reason(m.source)}" if m.source else "") + "\n")
    whole = fence(m.code.shown, "python", f'title="{m.id}.py"').replace("\n", "\n    ").rstrip()
    parts.append(f'??? note "{words["all"]} {code(m.id + ".py")}"\n\n    {whole}\n')
    return "\n".join(parts)


def label(text: str, kind: str) -> str:
    """Return the small heading over a block."""
    return f"{text}\n{{ .mistake-label .{kind} }}\n"


def marked(text: str, lines: tuple[int, ...], kind: str) -> str:
    """Return code in which some lines are marked as wrong or right."""
    numbers = " ".join(map(str, lines))
    return fence(text, "python", f'.mistake-{kind} hl_lines="{numbers}"')
