"""The navigation: the only list of pages, completed from the contract, the catalogue and `docs/` itself."""

import re
from typing import Any

import yaml

from attnspec import clauses
from attnspec._registry import registry

from .reference_pages import PAGES
from .site import DOCS, PARTS, Output

# Where pages stand that need not exist; any other that lies in `docs/` goes to the reference.
PLAIN = {"recognition.md": "Contract", "numerics.md": "Contract", "cost.md": "Implementations"}


def navigation() -> list[dict[str, Any]]:
    """Return the navigation as MkDocs takes it."""
    found: dict[str, Any] = {
        "Start": "index.md",
        "Contract": [
            {"Shape contracts": "stages.md"},
            {"Clauses": ["clauses/index.md", *(f"clauses/{c.name}.md" for c in clauses().chapters)]},
            {"Conventions": "conventions.md"},
        ],
        "Implementations": [
            "implementations/index.md", *(f"implementations/{name}.md" for name in registry()),
            {"Add your own": "add-your-own.md"},
            {"Conformance": "conformance.md"},
            "implementations/kill-table.md",
        ],
        "Learn": [{"Mistakes": "mistakes.md"}, {"Seeing heads": "heads.md"}],
        "Reference": [
            {"API": ["reference/index.md", *(f"reference/{page}.md" for page in PAGES)]},
            {"Design": "design.md"},
            {"Changelog": "reference/changelog.md"},
        ],
        "中文": [{"开始": "zh/index.md"}, {"形状规范": "zh/stages.md"}, {"常见错误": "zh/mistakes.md"}],
    }  # fmt: skip
    for page in others(repr(found)):
        found[PLAIN.get(page, "Reference")].append(page)
    return [{title: pages} for title, pages in found.items()]


def others(listed: str) -> list[str]:
    """Return the pages that lie in `docs/` and are not listed."""
    return [page.name for page in sorted(DOCS.glob("*.md")) if f"'{page.name}'" not in listed]


def descriptions() -> dict[str, str]:
    """Return a description for each page that has none: the first sentences of its first paragraph."""
    found = {}
    for page in DOCS.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        if text.startswith("---\n"):
            continue
        first = next((p for p in text.split("\n\n") if re.match(r"\w|`", p)), page.stem)
        found[page.name] = re.sub(r"[`*$]", "", " ".join(first.split()))[:200]
    return found


def write(out: Output) -> None:
    """Write the navigation where `mkdocs.yml` inherits it from."""
    settings = {"nav": navigation(), "extra": {"descriptions": descriptions()}}
    out.write(PARTS / "nav.yml", yaml.safe_dump(settings, allow_unicode=True, sort_keys=False))
