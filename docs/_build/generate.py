"""Generate every page and part that is read from the code and from runs; then `mkdocs build` makes the site.

    python docs/_build/generate.py

Nothing that it writes is committed. Runs are kept in `.cache/docs`; a second call takes seconds.
"""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _build import (
    clause_pages,
    conformance_parts,
    heads_parts,
    implementation_pages,
    mistake_parts,
    nav,
    pictures,
    reference_pages,
    stage_parts,
    start_parts,
    translations,
)
from _build.site import Output


def main() -> None:
    """Generate everything.

    Raises:
        SystemExit: If a translated page has fallen behind, or a page needs something that is not there.
    """
    began = time.perf_counter()
    out = Output()

    def step(name: str) -> None:
        print(f"docs: {name:<16} {time.perf_counter() - began:6.1f} s", flush=True)

    translations.check()
    stage_parts.write(out)
    pictures.write(out)
    heads_parts.write(out)
    reference_pages.write(out)
    step("stages")
    start_parts.write(out)
    step("start")
    clause_pages.write(out, mistake_parts.write(out))
    step("mistakes")
    found = implementation_pages.runs()
    implementation_pages.write(out, found)
    conformance_parts.write(out, found)
    step("implementations")
    nav.write(out)
    out.sweep()
    step("navigation")


if __name__ == "__main__":
    main()
