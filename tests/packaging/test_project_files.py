"""The files beside the code say the same thing as each other."""

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PIN = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9.!]+)")


def pin_lines() -> list[str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def pinned() -> dict[str, str]:
    matches = [PIN.fullmatch(line) for line in pin_lines()]
    return {canonicalize_name(match["name"]): match["version"] for match in matches if match}


def named_requirements() -> list[str]:
    """Every requirement of pyproject.toml, of the build, the project, its extras and its groups."""
    project = PROJECT["project"]
    groups = [*project["optional-dependencies"].values(), *PROJECT["dependency-groups"].values()]
    lists = [PROJECT["build-system"]["requires"], project["dependencies"], *groups]
    return sorted({entry for entries in lists for entry in entries if isinstance(entry, str)})


def session_functions() -> list[ast.FunctionDef]:
    tree = ast.parse((ROOT / "noxfile.py").read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [node for node in functions if any("nox.session" in ast.unparse(d) for d in node.decorator_list)]


def commands(text: str) -> set[str]:
    """The nox calls of a text, without what follows on their line."""
    return {found.strip() for found in re.findall(r"python -m nox\b(?: -[st] \w+)?", text)}


def test_constraints_are_exact_pins_only() -> None:
    assert [line for line in pin_lines() if not PIN.fullmatch(line)] == []


def test_constraints_name_each_package_once_in_order() -> None:
    names = [line.partition("==")[0].lower() for line in pin_lines()]
    assert names == sorted(set(names))


@pytest.mark.parametrize("entry", named_requirements())
def test_constraints_pin_within_the_declared_range(entry: str) -> None:
    requirement = Requirement(entry)
    assert requirement.specifier, "a range is wanted"
    assert requirement.specifier.contains(pinned()[canonicalize_name(requirement.name)])


def test_nox_sessions_have_a_docstring_of_one_line() -> None:
    docstrings = {node.name: ast.get_docstring(node) or "" for node in session_functions()}
    assert len(docstrings) > 1
    assert [name for name, text in docstrings.items() if not re.fullmatch(r"[A-Z].*\.", text)] == []


def test_nox_installs_only_with_the_constraints() -> None:
    source = (ROOT / "noxfile.py").read_text()
    assert source.count("session.install(") == 1
    assert all('"-c", str(CONSTRAINTS)' in line for line in source.splitlines() if '"pip"' in line)


def test_readme_commands_run_in_ci() -> None:
    readme, ci = ((ROOT / name).read_text() for name in ("README.md", ".ci/run"))
    assert {"python -m nox", "python -m nox -s tests"} <= commands(readme)
    assert {"python -m nox", "python -m nox -s tests"} <= commands(ci)


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", ".ci/run"])
def test_named_sessions_exist(name: str) -> None:
    sessions = {node.name for node in session_functions()}
    assert set(re.findall(r"nox -s (\w+)", (ROOT / name).read_text())) <= sessions


def test_citation_has_the_version_and_licence_of_the_project() -> None:
    citation = (ROOT / "CITATION.cff").read_text().splitlines()
    assert f"version: {PROJECT['project']['version']}" in citation
    assert f"license: {PROJECT['project']['license']}" in citation


def test_changelog_begins_with_unreleased_and_has_the_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert re.findall(r"^## \[(.+?)\]", text, re.MULTILINE)[0] == "Unreleased"
    assert PROJECT["project"]["version"] in text


@pytest.mark.parametrize("name", ["spec", "impls"])
def test_source_roots_are_not_packages(name: str) -> None:
    assert not (ROOT / name / "__init__.py").exists()
