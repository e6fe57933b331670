"""Finding the target: each way in which it cannot be found has one message, complete in its first line."""

from collections.abc import Callable
from pathlib import Path

import pytest

from attnspec._errors import TargetError, UnknownNameError
from attnspec.loading import load_target

MINE = """
import math

HALF = 0.5

def attend(query, key, value):
    return value

def _hidden():
    pass

class MyAttention:
    class Inner:
        pass
"""
pytestmark = pytest.mark.usefixtures("kept_process")


def message_of(text: str) -> list[str]:
    """Return the lines of what loading says."""
    with pytest.raises((TargetError, UnknownNameError)) as caught:
        load_target(text)
    return str(caught.value).split("\n")


@pytest.fixture
def mine(write_module: Callable[[str, str], Path]) -> Path:
    """Write a file that imports."""
    return write_module("mine_to_load.py", MINE)


def test_function_in_a_file_is_found(mine: Path) -> None:
    target = load_target(f"{mine}:attend")
    assert target.object(1, 2, 3) == 3
    assert target.name == f"{mine}:attend"
    assert target.file == str(mine)
    assert target.namespace["HALF"] == 0.5
    assert target.implementation is None


def test_nested_object_is_found(mine: Path) -> None:
    assert load_target(f"{mine}:MyAttention.Inner").object.__qualname__ == "MyAttention.Inner"


def test_file_imports_its_neighbours(mine: Path, write_module: Callable[[str, str], Path]) -> None:
    other = write_module("other_to_load.py", "from mine_to_load import attend\n")
    assert load_target(f"{other}:attend").object(1, 2, 3) == 3


def test_files_of_one_name_are_told_apart(mine: Path, tmp_path: Path) -> None:
    second = tmp_path / "second"
    second.mkdir()
    (second / mine.name).write_text("def attend():\n    return 'second'\n")
    assert load_target(f"{mine}:attend").object(1, 2, 3) == 3
    assert load_target(f"{second / mine.name}:attend").object() == "second"


def test_file_may_have_the_name_of_a_loaded_module(write_module: Callable[[str, str], Path]) -> None:
    path = write_module("json.py", "def attend():\n    return 'mine'\n")
    assert load_target(f"{path}:attend").object() == "mine"
    import json

    assert json.loads("[5]") == [5]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Write a package in a package, whose files import each other."""
    inner = tmp_path / "outer_to_load" / "inner"
    inner.mkdir(parents=True)
    (inner.parent / "__init__.py").write_text("")
    (inner / "__init__.py").write_text("from .attention import attend\n")
    (inner.parent / "parts.py").write_text("def share():\n    return 'shared'\n")
    (inner / "attention.py").write_text("from ..parts import share\n\ndef attend():\n    return share()\n")
    return inner


@pytest.mark.parametrize(("file", "name"), [("attention.py", ".attention"), ("__init__.py", "")])
def test_file_of_a_package_is_loaded_as_its_member(package: Path, file: str, name: str) -> None:
    found = load_target(f"{package / file}:attend")
    assert found.object() == "shared"
    assert found.namespace["__name__"] == f"outer_to_load.inner{name}"
    assert found.file == str(package / file)


def test_file_runs_alone_where_its_package_does_not(package: Path) -> None:
    (package / "__init__.py").write_text("import no_such_package\n")
    (package / "lonely.py").write_text("def attend():\n    return 'alone'\n")
    assert load_target(f"{package / 'lonely.py'}:attend").object() == "alone"
    assert message_of(f"{package / 'attention.py'}:attend")[0] == (
        f"{package / 'attention.py'}: it does not import: ModuleNotFoundError: "
        "No module named 'no_such_package'"
    )


def test_file_of_a_package_with_a_name_that_is_taken_runs_alone(tmp_path: Path) -> None:
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "__init__.py").write_text("")
    (tmp_path / "json" / "mine.py").write_text("def attend():\n    return 'mine'\n")
    assert load_target(f"{tmp_path / 'json' / 'mine.py'}:attend").object() == "mine"


def test_dataclass_in_a_file_is_usable(write_module: Callable[[str, str], Path]) -> None:
    """It looks its module up in `sys.modules` while it is made."""
    path = write_module(
        "with_data.py", "from dataclasses import dataclass\n@dataclass\nclass Mine:\n    a: 'int'\n"
    )
    assert load_target(f"{path}:Mine").object(7).a == 7


def test_object_in_a_module_is_found() -> None:
    target = load_target("attnspec_impls.math_core:IMPLEMENTATION")
    assert target.object.name == "math_core"


def test_module_of_the_working_folder_is_found(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(mine.parent)
    assert load_target("mine_to_load:attend").object(1, 2, 3) == 3


def test_registered_name_is_found() -> None:
    target = load_target("math_core")
    assert target.implementation.name == "math_core"
    assert target.object is target.implementation.target


def test_file_that_is_not_there() -> None:
    first = message_of("nowhere_at_all.py:Mine")[0]
    assert first == f"nowhere_at_all.py: there is no such file (looked in {Path.cwd()})"


def test_file_that_is_not_python(write_module: Callable[[str, str], Path]) -> None:
    path = write_module("notes.txt", "no code")
    assert message_of(f"{path}:Mine") == [f"{path}: not a Python file"]


def test_file_without_an_object(mine: Path) -> None:
    first, second = message_of(str(mine))
    assert first == f"{mine}: say which object in it, for example {mine}:MyAttention"
    assert second == "  it defines attend, MyAttention"


def test_object_that_is_not_there(mine: Path) -> None:
    first, second = message_of(f"{mine}:MyAtention")
    assert first == f"{mine}: no object is called 'MyAtention'; did you mean MyAttention?"
    assert second == "  it defines attend, MyAttention"


def test_object_that_is_like_nothing(mine: Path) -> None:
    assert message_of(f"{mine}:zzz")[0] == f"{mine}: no object is called 'zzz'"


def test_file_that_does_not_import_names_the_line(write_module: Callable[[str, str], Path]) -> None:
    path = write_module("broken_to_load.py", "half = 1 / 2\nnone = 1 / 0\n")
    assert message_of(f"{path}:Mine") == [
        f"{path}: it does not import: ZeroDivisionError: division by zero",
        "  broken_to_load.py:2  none = 1 / 0",
    ]


def test_file_that_lacks_a_package_names_it(write_module: Callable[[str, str], Path]) -> None:
    path = write_module("lacking_to_load.py", "import no_such_package_anywhere\n")
    assert message_of(f"{path}:Mine")[0] == (
        f"{path}: it does not import: ModuleNotFoundError: No module named 'no_such_package_anywhere'"
    )


def test_file_with_a_syntax_error_names_the_line(write_module: Callable[[str, str], Path]) -> None:
    path = write_module("unreadable_to_load.py", "x = 5\ndef attend(:\n    pass\n")
    first, second = message_of(f"{path}:attend")
    assert first.startswith(f"{path}: it does not import: SyntaxError: invalid syntax")
    assert second == f"  {path}:2  def attend(:"


def test_file_that_exits_is_one_message(write_module: Callable[[str, str], Path]) -> None:
    path = write_module("exiting_to_load.py", "import sys\nsys.exit(7)\n")
    assert message_of(f"{path}:Mine") == [
        f"{path}: it does not import: SystemExit: 7",
        "  exiting_to_load.py:2  sys.exit(7)",
    ]


def test_file_that_does_not_import_leaves_no_module(write_module: Callable[[str, str], Path]) -> None:
    path = write_module("half_to_load.py", "raise RuntimeError\n")
    message_of(f"{path}:Mine")
    path.write_text("def attend():\n    return 'mended'\n")
    assert load_target(f"{path}:attend").object() == "mended"


def test_module_that_is_not_there() -> None:
    (said,) = message_of("no_such_package_anywhere.attention:Mine")
    assert said == (
        "no_such_package_anywhere.attention: there is no such module; for a file write its path, "
        "for example ./no_such_package_anywhere/attention.py:Object"
    )


def test_module_whose_import_fails_inside(
    mine: Path, write_module: Callable[[str, str], Path], monkeypatch
) -> None:
    write_module("failing_to_load.py", "import no_such_package_anywhere\n")
    monkeypatch.syspath_prepend(mine.parent)
    first, second = message_of("failing_to_load:Mine")
    assert first.startswith("failing_to_load: it does not import: ModuleNotFoundError: No module named")
    assert second == "  failing_to_load.py:1  import no_such_package_anywhere"


def test_name_that_is_not_registered_suggests_the_nearest() -> None:
    lines = message_of("spda")
    assert lines[0] == "no implementation is called 'spda'; did you mean 'sdpa'?"
    assert lines[-1] == "  or point at your own code: my_attention.py:MyAttention, package.module:function"
