"""The reference: which public name stands on which page; the rest is mkdocstrings' work."""

import importlib
import inspect
from types import ModuleType
from typing import Any

import attnspec

from .site import ROOT, Output, table

# Every public name, by page. A name of `attnspec.__all__` that is missing here is a build failure.
PAGES: dict[str, tuple[str, str, str]] = {
    "checking": (
        "Checking",
        "Hold an implementation to the contract and read the verdict.",
        "check_implementation Report Declaration",
    ),
    "contract": (
        "Contract",
        "The clauses as data, and the registry of implementations.",
        "CONTRACT_VERSION Clause clauses Implementation registry",
    ),
    "stages": ("Stages", "The typed stages of attention, one function a row of the shape table.", "stages"),
    "oracle": ("Oracle", "The exact result: the composition of the stages.", "oracle"),
    "inputs": (
        "Inputs and weights",
        "The tensors of one call, and canonical weights.",
        "CoreInputs LayerInputs LayerWeights strategies",
    ),
    "conventions": (
        "Converters",
        "Converters between the contract's conventions and those of other libraries.",
        "conventions",
    ),
    "errors": (
        "Errors",
        "Every exception class of attnspec.",
        """AttnspecError DeclarationError DtypeError NameClashError ReportError ShapeError TargetError
        UnknownNameError UnsupportedFeatureError""",
    ),
}


def names_on(page: str) -> tuple[str, ...]:
    """Return the public names that stand on a page."""
    return tuple(PAGES[page][2].split())


def write(out: Output) -> None:
    """Write the pages.

    Raises:
        SystemExit: If a public name is on no page.
    """
    listed = {name for page in PAGES for name in names_on(page)}
    public = set(attnspec.__all__)
    if public != listed:
        wanting, gone = sorted(public - listed), sorted(listed - public)
        raise SystemExit(f"reference_pages.py: on no page: {wanting}; on a page and not public: {gone}")
    for page, (title, description, _) in PAGES.items():
        text = f"{description}\n\n" + "\n".join(entry(name) for name in names_on(page))
        out.page(f"reference/{page}.md", title, description, text)
    rows = [(f"[`{n}`]({page}.md)", first_line(n)) for page in PAGES for n in names_on(page)]
    out.page(
        "reference/index.md", "API reference", "The public names of attnspec.",
        "Everything public is imported from `attnspec` itself.\n\n" + table(("name", "what it is"), rows),
    )  # fmt: skip
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").removeprefix("# Changelog").strip()
    out.page("reference/changelog.md", "Changelog", "What changed for those who use attnspec.", changes)


def place(name: str) -> str:
    """Return the path under which mkdocstrings finds a public name."""
    found = getattr(attnspec, name)
    if inspect.ismodule(found):
        return found.__name__
    if isinstance(found, str):
        return f"{importlib.import_module('attnspec._clauses').__name__}.{name}"
    return f"{found.__module__}.{found.__qualname__}"


def entry(name: str) -> str:
    """Return the directive for a name; of a module, the functions and classes that it defines follow."""
    found = getattr(attnspec, name)
    lines = [f"::: {place(name)}", "    options:", "      show_root_toc_entry: true"]
    if inspect.ismodule(found):
        own = [n for n, member in vars(found).items() if not n.startswith("_") and defined_in(member, found)]
        lines += ["      members:", *(f"        - {n}" for n in own)]
    return "\n".join(lines) + "\n"


def defined_in(member: Any, module: ModuleType) -> bool:
    """Return whether a function or class belongs to a module, or to a private one of the same package."""
    if not (inspect.isfunction(member) or inspect.isclass(member)):
        return False
    return member.__module__ == module.__name__ or member.__module__.startswith(f"{module.__name__}.")


def first_line(name: str) -> str:
    """Return the first line of a public name's documentation."""
    found = getattr(attnspec, name)
    if isinstance(found, str):
        return f"the version of the contract: `{found}`"
    return (inspect.getdoc(found) or "").split("\n", 1)[0].replace("|", "\\|")
