"""Who implements the contract: the record of one implementation, and the registry of all."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from ._errors import NameClashError, TargetError, UnknownNameError

ContractName = Literal["core", "layer", "cached"]
ENTRY_POINT_GROUP = "attnspec.implementations"
BUILT_IN = "attnspec_impls"


@dataclass(frozen=True, kw_only=True)
class Implementation:
    """One registered implementation.

    What it supports is read from its signature: a contract argument that it takes is a feature.

    Attributes:
        name: What people type.
        contract: `core`, `layer` or `cached`.
        target: The function, or the class of the layer.
        summary: One line for lists.
        idea: A paragraph for its page: how it computes, and when to use it.
        precision: Name of its precision class.
        alignment: Its causal alignment when lengths differ.
        projection: How a layer keeps its projections: `separate`, `per head`, `stacked`, `interleaved`.
        extra: Further constructor arguments with which it is checked.
        deviations: Clauses that it breaks on purpose, each with a reason and a link.
        origin: Where the registration came from; filled in by the registry.
    """

    name: str
    contract: ContractName
    target: Callable[..., Any]
    summary: str
    idea: str = ""
    precision: str = "stored"
    alignment: Literal["lower_right", "upper_left"] = "lower_right"
    projection: Literal["separate", "per head", "stacked", "interleaved"] = "separate"
    extra: Mapping[str, Any] = field(default_factory=dict)
    deviations: Mapping[str, str] = field(default_factory=dict)
    origin: str = ""

    @property
    def location(self) -> str:
        """Return `module:qualified_name` of the target."""
        return f"{self.target.__module__}:{self.target.__qualname__}"


class Registry:
    """All implementations by name; each module is imported when its name is asked for.

    Args:
        sources: For each name a function that returns its record, and where it comes from.
    """

    def __init__(self) -> None:
        self._sources: dict[str, tuple[str, Callable[[], Implementation]]] = {}

    def add(self, name: str, origin: str, load: Callable[[], Implementation]) -> None:
        """Enter a name.

        Raises:
            NameClashError: If another origin holds the name; the message shows both.
        """
        if name in self._sources:
            raise NameClashError(
                f"two implementations are called {name!r}: {self._sources[name][0]} and {origin}\n"
                "  rename one of them, or uninstall the package that you do not need"
            )
        self._sources[name] = (origin, load)

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)

    def __contains__(self, name: object) -> bool:
        return name in self._sources

    def origin(self, name: str) -> str:
        """Return where the name was registered."""
        return self._find(name)[0]

    def get(self, name: str) -> Implementation:
        """Return the record called `name`, importing its module.

        Raises:
            UnknownNameError: If there is none; the message lists the names and suggests the nearest.
        """
        return self._find(name)[1]()

    def _find(self, name: str) -> tuple[str, Callable[[], Implementation]]:
        if name not in self._sources:
            raise UnknownNameError("implementation", name, self._sources)
        return self._sources[name]


def built_in(name: str) -> Implementation:
    """Import one built-in implementation."""
    record: Implementation = import_module(f"{BUILT_IN}.{name}").IMPLEMENTATION
    return record


def from_entry_point(point: EntryPoint) -> Implementation:
    """Load what another package registers.

    Raises:
        TargetError: If it does not import, or is not an `Implementation` record.
    """
    where = f"implementation {point.name!r}, entry point {point.value}"
    try:
        record = point.load()
    except Exception as error:
        first = str(error).strip().split("\n")[0]
        raise TargetError(f"{where}: it does not import: {type(error).__name__}: {first}") from error
    if not isinstance(record, Implementation):
        kind = type(record).__name__
        raise TargetError(f"{where}: it must be an attnspec.Implementation record; got {kind}")
    return record


def registry() -> Registry:
    """Return the built-in catalogue together with every installed package's entry points.

    Raises:
        NameClashError: If two of them use one name.
    """
    found = Registry()
    for name in import_module(BUILT_IN).CATALOGUE:
        found.add(name, f"{BUILT_IN}.{name}", partial(built_in, name))
    for point in entry_points(group=ENTRY_POINT_GROUP):
        distribution = point.dist.name if point.dist is not None else "an unnamed distribution"
        found.add(point.name, f"{point.value} ({distribution})", partial(from_entry_point, point))
    return found
