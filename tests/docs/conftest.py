"""What the tests of the site share: the built site behind a small server, and a browser."""

import functools
import http.server
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "site"
sys.path.insert(0, str(ROOT / "docs"))


@pytest.fixture(scope="session")
def site() -> Path:
    """Return the built site; `nox -s docs` builds it and then runs these tests."""
    if not (SITE / "search" / "search_index.json").exists():
        pytest.skip("the site is not built: nox -s docs builds it and runs these tests")
    return SITE


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A handler that prints nothing."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class calls it so
        """Say nothing."""


@pytest.fixture(scope="session")
def address(site: Path) -> Iterator[str]:
    """Serve the site and return where."""
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Start the system's Chromium; nothing is downloaded."""
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: nox -s docs installs it"
    )
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("chromium is not installed")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    flags += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, headless=True, args=flags)
        yield started
        started.close()


@pytest.fixture
def open_page(browser: Any, address: str) -> Iterator[Any]:
    """Return a function that opens a page of the site and watches it.

    Whatever the page logs as an error, and every request that leaves the site, fails the test at its end.
    """
    contexts, problems = [], []

    def opened(path: str, *, width: int = 1280, height: int = 900, scheme: str = "light") -> Any:
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on(
            "console",
            lambda m: problems.append(f"{path}: {m.text}") if m.type in ("error", "warning") else None,
        )
        page.on("pageerror", lambda error: problems.append(f"{path}: {error}"))
        page.on(
            "request",
            lambda r: (
                None
                if r.url.startswith((address, "data:", "blob:"))
                else problems.append(f"{path}: asks for {r.url}")
            ),
        )
        page.on(
            "response",
            lambda r: problems.append(f"{path}: {r.status} for {r.url}") if r.status >= 400 else None,
        )
        page.goto(f"{address}/{path}", wait_until="load")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not problems, "\n".join(problems)
