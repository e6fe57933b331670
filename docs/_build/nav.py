"""The navigation: the only list of pages, completed from the contract and the catalogue."""

from typing import Any

import yaml

from attnspec import clauses
from attnspec._registry import registry

from .reference_pages import PAGES
from .site import DOCS, PARTS, Output


def navigation() -> list[dict[str, Any]]:
    """Return the navigation as MkDocs takes it; a page that is written elsewhere is in it where it exists."""
    contract: list[dict[str, Any]] = [
        {"Shape contracts": "stages.md"},
        {"Clauses": ["clauses/index.md", *(f"clauses/{c.name}.md" for c in clauses().chapters)]},
        {"Conventions": "conventions.md"},
    ]
    contract += [{title: page} for title, page in OPTIONAL.items() if (DOCS / page).exists()]
    return [
        {"Start": "index.md"},
        {"Contract": contract},
        {"Implementations": [
            "implementations/index.md", *(f"implementations/{name}.md" for name in registry()),
            {"Add your own": "add-your-own.md"},
            {"Conformance": "conformance.md"},
            "implementations/kill-table.md",
        ]},
        {"Learn": [{"Mistakes": "mistakes.md"}, {"Seeing heads": "heads.md"}]},
        {"Reference": [
            {"API": ["reference/index.md", *(f"reference/{page}.md" for page in PAGES)]},
            {"Design": "design.md"},
            {"Changelog": "reference/changelog.md"},
        ]},
        {"中文": [
            {"开始": "zh/index.md"},
            {"形状规范": "zh/stages.md"},
            {"常见错误": "zh/mistakes.md"},
        ]},
    ]  # fmt: skip


OPTIONAL = {"Recognition": "recognition.md", "Numerics": "numerics.md"}


def write(out: Output) -> None:
    """Write the navigation where `mkdocs.yml` inherits it from."""
    text = yaml.safe_dump({"nav": navigation()}, allow_unicode=True, sort_keys=False)
    out.write(PARTS / "nav.yml", text)
