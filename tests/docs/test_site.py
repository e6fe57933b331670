"""The built site as files."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

LOADS = {
    ("script", "src"),
    ("img", "src"),
    ("link", "href"),
    ("iframe", "src"),
    ("source", "src"),
    ("video", "src"),
}


class Page(HTMLParser):
    """What a page is called, what it loads, and its anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.description = ""
        self.titles: list[str] = []
        self._in_title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what matters."""
        found = dict(attrs)
        self._in_title = tag == "title"
        self.ids |= {found["id"]} if found.get("id") else set()
        if tag == "meta" and found.get("name") == "description":
            self.description = found.get("content") or ""
        if found.get("rel") not in ("canonical", "prev", "next", "alternate"):
            self.loads += [found[a] or "" for t, a in LOADS if t == tag and found.get(a)]

    def handle_data(self, data: str) -> None:
        """Keep the title."""
        if self._in_title and data.strip():
            self.titles.append(data.strip())
        self._in_title = False


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Page]:
    """Return every page, parsed."""
    found = {}
    for path in site.rglob("*.html"):
        page = Page()
        page.feed(path.read_text(encoding="utf-8"))
        found[str(path.relative_to(site))] = page
    return found


def test_every_page_has_a_title_and_a_description_of_its_own(pages: dict[str, Page]) -> None:
    described = {name: page for name, page in pages.items() if name != "404.html"}
    assert all(page.titles for page in described.values())
    lacking = [name for name, page in described.items() if len(page.description) < 20]
    assert lacking == []
    descriptions = [page.description for page in described.values()]
    assert sorted(descriptions) == sorted(set(descriptions))


def test_no_page_loads_anything_from_elsewhere(pages: dict[str, Page]) -> None:
    outside = [
        (name, url) for name, page in pages.items() for url in page.loads if re.match(r"(https?:)?//", url)
    ]
    assert outside == []


def test_no_style_loads_anything_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.css"):
        for url in re.findall(r"url\(([^)]*)\)|@import ['\"]([^'\"]*)", path.read_text(encoding="utf-8")):
            assert not re.match(r"['\"]?(https?:)?//", "".join(url)), path


def test_every_clause_is_at_its_address(pages: dict[str, Page]) -> None:
    from attnspec import clauses

    for clause in clauses().values():
        path, _, anchor = clause.address.strip("/").partition("#")
        assert anchor in pages[f"{path}index.html"].ids, clause.address


def test_every_implementation_has_a_page(pages: dict[str, Page]) -> None:
    from attnspec import registry

    for name in registry():
        assert {
            "idea",
            "weights",
            "conformance",
            "precision",
            "cost",
            "deviations",
            "shapes",
            "source",
        } <= pages[f"implementations/{name}/index.html"].ids


def test_generators_and_their_sources_are_not_published(site: Path) -> None:
    assert not list(site.rglob("*.py"))
    assert not list(site.rglob("*.toml"))
