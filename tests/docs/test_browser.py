"""The site in a real browser."""

from typing import Any

import pytest

PAGES = (
    "", "stages/", "clauses/", "clauses/mask/", "implementations/", "implementations/sdpa/",
    "implementations/kill-table/", "conformance/", "mistakes/", "conventions/", "heads/", "design/",
    "add-your-own/", "reference/", "reference/stages/", "reference/changelog/",
    "zh/", "zh/stages/", "zh/mistakes/",
)  # fmt: skip
INPUTS = (
    {"batch": 2, "q_len": 512, "kv_len": 512, "heads": 8, "kv_heads": 8, "d_model": 512},
    {"batch": 3, "q_len": 7, "kv_len": 11, "heads": 6, "kv_heads": 2, "d_model": 30},
    {"batch": 1, "q_len": 1, "kv_len": 131072, "heads": 64, "kv_heads": 8, "d_model": 8192},
    {"batch": 0, "q_len": 5, "kv_len": 0, "heads": 1, "kv_heads": 1, "d_model": 1},
    {"batch": 4096, "q_len": 1048576, "kv_len": 1048576, "heads": 128, "kv_heads": 1, "d_model": 16384},
)  # fmt: skip


def fill(page: Any, fields: dict[str, Any]) -> None:
    """Type into the explorer's fields."""
    for name, value in fields.items():
        page.fill(f"#explorer-{name}", str(value))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path or "start")
def test_page_on_a_phone_scrolls_only_inside_its_tables(open_page: Any, path: str) -> None:
    page = open_page(path, width=360, height=740)
    page.wait_for_timeout(150)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.evaluate("document.body.scrollWidth") <= 360
    assert page.locator(".katex-error").count() == 0


@pytest.mark.parametrize("path", ["stages/", "zh/stages/"])
@pytest.mark.parametrize("fields", INPUTS, ids=lambda f: "x".join(map(str, f.values())))
def test_explorer_numbers_are_those_of_the_python_formulas(
    open_page: Any, path: str, fields: dict[str, int]
) -> None:
    from _build import costs

    from attnspec._table import STAGES

    page = open_page(path)
    fill(page, fields)
    page.select_option("#explorer-dtype", "bfloat16")
    rows = page.eval_on_selector_all(".explorer tbody tr", "rows => rows.map(r => ({...r.dataset}))")
    wanted = []
    for call in costs.CALLS:
        if call.grouped and fields["heads"] == fields["kv_heads"]:
            continue
        shape = costs.shape(STAGES[call.stage].result, call, fields)
        elements = costs._product(shape)
        wanted.append({
            "stage": call.stage, "role": call.role, "shape": ",".join(map(str, shape)),
            "elements": str(elements),
            "bytes": str(0 if call.view else 2 * elements), "flops": str(costs.flops(call, fields)),
        })  # fmt: skip
    assert rows == wanted
    counted = costs.parameters(fields)
    shown = page.inner_text("#fact-parameters").replace("\u202f", "")
    assert shown.split()[0] == str(counted["weight"])
    assert shown.split("+")[1].split()[0] == str(counted["bias"])
    assert page.get_attribute("#fact-cache", "data-bytes") == str(2 * costs.cache_elements(fields))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("heads", "7", "d_model must be a multiple of heads; got 512 and 7"),
        ("kv_heads", "3", "heads must be a multiple of kv_heads; got 8 and 3"),
        ("heads", "0", "heads must be a whole number of at least 1"),
        ("batch", "-1", "batch must be a whole number of at least 0"),
        ("q_len", "many", "q_len must be a whole number of at least 0"),
        ("d_model", "", "d_model must be a whole number of at least 1"),
        ("kv_len", "1e3", "kv_len must be a whole number of at least 0"),
    ],
)
def test_explorer_says_what_is_wrong(open_page: Any, field: str, value: str, message: str) -> None:
    page = open_page("stages/")
    fill(page, {field: value})
    assert message in page.inner_text("#explorer-message")
    assert page.get_attribute(f"#explorer-{field}", "aria-invalid") == "true"
    assert not page.is_visible(".explorer table")
    fill(page, {field: INPUTS[0][field]})
    assert page.is_visible(".explorer table")


@pytest.mark.parametrize("name", ["mask.dead_row.zero", "grouped.order", "dead_row"])
def test_search_finds_a_clause_by_name(open_page: Any, name: str) -> None:
    page = open_page("")
    page.keyboard.press("/")
    page.keyboard.type(name)
    page.wait_for_selector(".md-search-result__item", timeout=15000)
    links = page.eval_on_selector_all(
        ".md-search-result__link", "found => found.map(f => f.getAttribute('href'))"
    )
    assert any("clauses/" in link and name in link for link in links), links


def test_dark_scheme_follows_the_system(open_page: Any) -> None:
    for scheme, named in (("light", "default"), ("dark", "slate")):
        page = open_page("stages/", scheme=scheme)
        assert page.get_attribute("body", "data-md-color-scheme") == named
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        lightness = sum(int(part) for part in colour.strip("rgba()").split(",")[:3]) / 3
        assert (lightness > 200) == (scheme == "light"), colour


def test_language_switch_stays_on_the_page(open_page: Any) -> None:
    page = open_page("stages/")
    assert page.locator("a[hreflang=zh]").first.get_attribute("href") == "../zh/stages/"
    page = open_page("zh/stages/")
    assert page.locator("a[hreflang=en]").first.get_attribute("href") == "../../stages/"
    assert page.get_attribute(".md-content__inner [lang], [lang=zh-Hans]", "lang") == "zh-Hans"


def test_formulas_render_without_a_network(open_page: Any) -> None:
    page = open_page("stages/")
    page.wait_for_selector(".katex-display")
    assert page.locator(".arithmatex").count() == page.locator(".arithmatex .katex").count()
    assert page.evaluate("document.fonts.check('16px KaTeX_Main')")


def test_explorer_is_reached_by_keyboard(open_page: Any) -> None:
    page = open_page("stages/")
    page.focus("#explorer-batch")
    for name in ("q_len", "kv_len", "heads", "kv_heads", "d_model", "dtype"):
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == f"explorer-{name}"


def test_wide_table_scrolls_inside_itself_and_takes_the_focus(open_page: Any) -> None:
    page = open_page("conformance/", width=360)
    page.wait_for_timeout(700)
    boxes = page.eval_on_selector_all(
        ".md-typeset__scrollwrap", "found => found.map(b => [b.scrollWidth > b.clientWidth, b.tabIndex])"
    )
    assert any(wide for wide, _ in boxes)
    assert all(index == 0 for wide, index in boxes if wide)


def test_anchor_of_a_clause_opens_at_its_heading(open_page: Any) -> None:
    from attnspec import clauses

    page = open_page(clauses()["mask.dead_row.zero"].address.lstrip("/"))
    page.wait_for_timeout(300)
    top = page.evaluate("document.getElementById('mask.dead_row.zero').getBoundingClientRect().top")
    assert 0 <= top < 300
