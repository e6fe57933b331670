"""Finding what the user points at: a file, a module, or a registered name."""

import importlib
import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ._errors import TargetError, UnknownNameError


@dataclass(frozen=True)
class Target:
    """What was found.

    Attributes:
        name: As the user wrote it.
        object: The function, class or instance.
        namespace: Names of the module it lives in, for evaluating declarations.
        file: The source file, where there is one.
        implementation: The registered record, for a registered name.
    """

    name: str
    object: Any
    namespace: dict[str, Any]
    file: str | None
    implementation: Any = None


def load_target(text: str) -> Target:
    """Import the object that `text` names.

    Args:
        text: `path/to/file.py:Object`, `package.module:Object`, or the name of a registered implementation.

    Raises:
        TargetError: If the file or module is not there or does not import, or the object is not in it.
        UnknownNameError: If it is neither, listing the registered names.
    """
    place, colon, name = text.rpartition(":")
    if not colon or (os.name == "nt" and len(place) == 1):
        return _registered(text)
    module = (
        _from_file(Path(place))
        if place.endswith(".py") or "/" in place or os.sep in place
        else _from_module(place)
    )
    return Target(text, _find(module, name, place), vars(module), getattr(module, "__file__", None))


def _registered(text: str) -> Target:
    if text.endswith(".py"):
        raise TargetError(f"{text}: say which object in it, for example {text}:MyAttention{_listed(text)}")
    from ._registry import registry

    try:
        record = registry().get(text)
    except UnknownNameError as error:
        raise TargetError(
            f"{error}\n  or point at your own code: my_attention.py:MyAttention, package.module:function"
        ) from None
    namespace = dict(vars(sys.modules[record.target.__module__]))
    namespace["_extra"] = dict(record.extra)
    return Target(
        text,
        record.target,
        namespace,
        getattr(sys.modules[record.target.__module__], "__file__", None),
        record,
    )


def _listed(path: str) -> str:
    """Name what a file defines, without running it."""
    import ast

    try:
        tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return ""
    kinds = (ast.FunctionDef, ast.ClassDef)
    names = [node.name for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")]
    return f"\n  it defines {', '.join(names)}" if names else ""


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise TargetError(f"{path}: there is no such file (looked in {path.resolve().parent})")
    member = member_name(path.resolve())
    if member is None:
        return _alone(path)
    try:
        return _as_member(path.resolve(), *member)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # A file that needs nothing of its package runs where the package as a whole does not.
        try:
            return _alone(path)
        except TargetError:
            raise _import_failed(str(path), error) from error


def member_name(path: Path) -> tuple[str, str] | None:
    """Return the folder that a file's package stands in, and the file's dotted name; None without package."""
    parts = [] if path.stem == "__init__" else [path.stem]
    folder = path.parent
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        parts.insert(0, folder.name)
        folder = folder.parent
    inside = folder != path.parent and all(part.isidentifier() for part in parts)
    return (str(folder), ".".join(parts)) if inside else None


def _as_member(path: Path, folder: str, name: str) -> ModuleType:
    added = folder not in sys.path
    if added:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(name)
        if Path(module.__file__ or "").resolve() != path:
            raise ImportError(f"another module is called {name}: {module.__file__}")
    except BaseException:
        if added and folder in sys.path:
            sys.path.remove(folder)
        raise
    return module


def _alone(path: Path) -> ModuleType:
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = (
        path.stem
        if path.stem.isidentifier() and path.stem not in sys.modules
        else f"_attnspec_target_{abs(hash(str(path.resolve())))}"
    )
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        sys.modules.pop(name, None)
        raise _import_failed(str(path), error) from error
    return module


def _from_module(name: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path and "" not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise TargetError(
                f"{name}: there is no such module; for a file write its path,"
                f" for example ./{name.replace('.', '/')}.py:Object"
            ) from None
        raise _import_failed(name, error) from error
    except BaseException as error:
        raise _import_failed(name, error) from error


def _import_failed(what: str, error: BaseException) -> TargetError:
    from .conformance.failures import user_place

    if isinstance(error, KeyboardInterrupt):
        raise error
    place = user_place(error.__traceback__)
    if isinstance(error, SyntaxError) and error.lineno:
        where = f"\n  {what}:{error.lineno}  {(error.text or '').strip()}"
    else:
        where = f"\n  {place}" if place else ""
    first = str(error).strip().split("\n")[0]
    return TargetError(f"{what}: it does not import: {type(error).__name__}: {first}{where}")


def _find(module: ModuleType, name: str, place: str) -> Any:
    here: Any = module
    for part in name.split("."):
        if not hasattr(here, part):
            from difflib import get_close_matches

            names = [n for n, v in vars(module).items() if not n.startswith("_") and callable(v)]
            own = [n for n in names if getattr(vars(module)[n], "__module__", None) == module.__name__]
            near = get_close_matches(part, own or names, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            listed = f"\n  it defines {', '.join(own)}" if own else ""
            raise TargetError(f"{place}: no object is called {name!r}{hint}{listed}")
        here = getattr(here, part)
    return here
