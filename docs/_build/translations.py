"""Hold translated pages to the structure of their originals: the build fails where one has fallen behind.

Compared are, in order, the level and the anchor of every heading, the parts that are included, the fenced
blocks and the raw HTML. A heading of a translated page therefore names its anchor.
"""

import re
from pathlib import Path

from .site import DOCS

TRANSLATED = ("zh",)


def structure(text: str) -> list[str]:
    """Return what a page is made of, without its words."""
    found: list[str] = []
    fence = ""
    body = text.split("---\n", 2)[2] if text.startswith("---\n") else text
    for line in body.splitlines():
        if fence:
            if line.strip() == fence:
                fence = ""
            else:
                found.append(f"code {line.strip()}")
        elif opened := re.match(r"^(```+)(.*)$", line):
            fence = opened[1]
            found.append(f"block {opened[2].strip()}")
        elif heading := re.match(r"^(#+) .*?(\{ *#([\w.-]+) *\})?$", line):
            found.append(f"heading {len(heading[1])} {heading[3] or ''}")
        elif included := re.match(r'^--8<-- "(.*)"$', line):
            found.append("part " + re.sub(r"^(en|zh)/", "LANGUAGE/", included[1]))
        elif tag := re.match(r"^<(\w+)", line):
            found.append(f"html {tag[1]}")
        elif line.startswith("- "):
            found.append("item")
    return found


def pairs() -> list[tuple[Path, Path]]:
    """Return each translated page with its original."""
    return [
        (DOCS / page.name, page) for language in TRANSLATED for page in sorted((DOCS / language).glob("*.md"))
    ]


def differences() -> list[str]:
    """Return where a translated page differs from its original, in words."""
    problems = []
    for original, page in pairs():
        wanted = structure(original.read_text(encoding="utf-8"))
        here = structure(page.read_text(encoding="utf-8"))
        name = page.relative_to(DOCS)
        for number, (a, b) in enumerate(zip(wanted, here, strict=False)):
            if a != b:
                problems.append(
                    f"{name}: element {number + 1} is {b!r}; the original {original.name} has {a!r}"
                )
                break
        else:
            if len(wanted) != len(here):
                longer, words = (wanted, "lacks") if len(wanted) > len(here) else (here, "has more:")
                problems.append(f"{name}: {words} {longer[min(len(wanted), len(here))]!r} of {original.name}")
    return problems


def check() -> None:
    """Stop the build where a translated page has fallen behind.

    Raises:
        SystemExit: With every difference.
    """
    problems = differences()
    if problems:
        raise SystemExit("docs: a translation has fallen behind\n" + "\n".join(problems))
