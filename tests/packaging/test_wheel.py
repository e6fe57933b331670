"""The wheel: what is in it, what it declares, and that it works by itself in a fresh interpreter."""

import os
import subprocess
import sys
import zipfile
from email import message_from_string
from importlib.metadata import EntryPoint, PathDistribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's files, as an installer would lay them out."""
    built = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = built.glob("*.whl")
    target = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


@pytest.fixture(scope="module")
def distribution(unpacked: Path) -> PathDistribution:
    (information,) = unpacked.glob("*.dist-info")
    return PathDistribution(information)


def run_fresh(code: str, unpacked: Path, folder: Path) -> str:
    """Run code in a new interpreter that finds the wheel before the checkout."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(unpacked)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_wheel_top_level_is_two_packages_and_the_plugin(unpacked: Path) -> None:
    names = {path.name for path in unpacked.iterdir() if path.suffix != ".dist-info"}
    assert names == {"attnspec", "attnspec_impls", "attnspec_pytest.py"}


@pytest.mark.parametrize(
    ("source", "package"), [("spec", "attnspec"), ("impls", "attnspec_impls")], ids=["spec", "impls"]
)
def test_wheel_has_every_file_of_the_package(unpacked: Path, source: str, package: str) -> None:
    def files(root: Path) -> set[str]:
        return {
            path.relative_to(root).as_posix()
            for path in (root / package).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }

    expected = files(ROOT / source)
    assert f"{package}/py.typed" in expected
    assert files(unpacked) == expected


def test_wheel_declares_the_command_and_the_plugin(distribution: PathDistribution) -> None:
    assert set(distribution.entry_points) == {
        EntryPoint("attnspec", "attnspec._cli:main", "console_scripts"),
        EntryPoint("attnspec", "attnspec_pytest", "pytest11"),
    }


def test_wheel_metadata_names_licence_and_python(distribution: PathDistribution) -> None:
    metadata = message_from_string(distribution.read_text("METADATA") or "")
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert distribution.read_text("licenses/LICENSE") == (ROOT / "LICENSE").read_text()


@pytest.mark.parametrize("module", ["attnspec", "attnspec_impls", "attnspec_pytest"])
def test_wheel_module_imports_without_the_checkout(unpacked: Path, tmp_path: Path, module: str) -> None:
    found = run_fresh(f"import {module}; print({module}.__file__)", unpacked, tmp_path)
    assert Path(found).is_relative_to(unpacked)


@pytest.mark.parametrize("module", ["attnspec", "attnspec_pytest"])
def test_wheel_module_imports_without_torch(unpacked: Path, tmp_path: Path, module: str) -> None:
    code = f"import sys, {module}; print('torch' in sys.modules)"
    assert run_fresh(code, unpacked, tmp_path) == "False"


def test_plugin_does_not_import_the_package(unpacked: Path, tmp_path: Path) -> None:
    # pytest loads it at start-up: jaxtyping's import hook and coverage must come before attnspec.
    code = "import sys, attnspec_pytest; print('attnspec' in sys.modules)"
    assert run_fresh(code, unpacked, tmp_path) == "False"


def test_wheel_command_entry_point_loads(unpacked: Path, tmp_path: Path) -> None:
    code = "from attnspec._cli import main; print(callable(main))"
    assert run_fresh(code, unpacked, tmp_path) == "True"
