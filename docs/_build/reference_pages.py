"""The reference: which public name stands on which page; the rest is mkdocstrings' work."""

import importlib
import inspect

import attnspec

from .site import ROOT, Output, table

# Every public name, by page. A name of `attnspec.__all__` that is missing here is a build failure.
PAGES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "checking": ("Checking", "Hold an implementation to the contract and read the verdict.",
                 ("check_implementation", "Report", "Declaration")),
    "contract": ("Contract", "The clauses as data, and the registry of implementations.",
                 ("CONTRACT_VERSION", "Clause", "clauses", "Implementation", "registry")),
    "stages": ("Stages", "The typed stages of attention, one function a row of the shape table.", ("stages",)),
    "oracle": ("Oracle", "The exact result: the composition of the stages.", ("oracle",)),
    "inputs": ("Inputs and weights", "The tensors of one call, and canonical weights.",
               ("CoreInputs", "LayerInputs", "LayerWeights", "strategies")),
    "conventions": ("Conventions", "Converters between the contract's conventions and other libraries'.", ("conventions",)),
    "errors": ("Errors", "Every exception class of attnspec.",
               ("AttnspecError", "DeclarationError", "DtypeError", "NameClashError", "ReportError", "ShapeError",
                "TargetError", "UnknownNameError", "UnsupportedFeatureError")),
}  # fmt: skip


def write(out: Output) -> None:
    """Write the pages.

    Raises:
        SystemExit: If a public name is on no page.
    """
    listed = {name for _, _, names in PAGES.values() for name in names}
    public = set(attnspec.__all__)
    if public != listed:
        raise SystemExit(
            f"reference_pages.py: not on a page: {sorted(public - listed)}; not public: {sorted(listed - public)}"
        )
    for page, (title, description, names) in PAGES.items():
        text = f"{description}\n\n" + "\n".join(entry(name) for name in names)
        out.page(f"reference/{page}.md", title, description, text)
    rows = [(f"[`{n}`]({page}.md)", first_line(n)) for page, (_, _, names) in PAGES.items() for n in names]
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
    """Return the directive for a name; the functions of a module follow it."""
    module = inspect.ismodule(getattr(attnspec, name))
    options = ["show_root_toc_entry: true"] + (
        ["show_if_no_docstring: true"] if not module else ["members: true"]
    )
    lines = [f"::: {place(name)}", "    options:", *(f"      {option}" for option in options)]
    return "\n".join(lines) + "\n"


def first_line(name: str) -> str:
    """Return the first line of a public name's documentation."""
    found = getattr(attnspec, name)
    if isinstance(found, str):
        return f"the version of the contract: `{found}`"
    return (inspect.getdoc(found) or "").split("\n", 1)[0].replace("|", "\\|")
