"""Registries of built-in components and of components that installed packages add through entry points.

There is a registry for algorithms, one for reward signals, one for environment schemes, and so on. Each entry of a
registry is called a row.

A package adds a row through its ``pyproject.toml``, for instance a reward signal::

    [project.entry-points."trajtrainer.reward_signals"]
    novelty = "my_package.novelty:ROW"

A package is not imported until one of its rows is requested.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, cached_property
from pathlib import Path
from pkgutil import resolve_name
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from trajtrainer.core.errors import PluginError, TrajtrainerError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

logger = logging.getLogger(__name__)

Row = TypeVar("Row")
Reference = Callable[..., Any] | str
"""A callable, or its import path (``my_package.novelty:Novelty``), which ``resolve`` imports on demand."""


def resolve(reference: Reference) -> Callable[..., Any]:
    """Return the callable that a reference points to."""
    found: Callable[..., Any] = resolve_name(reference) if isinstance(reference, str) else reference
    return found


@cache
def installed() -> EntryPoints | None:
    """Return the entry points of all installed packages, or None if none of them extends trajtrainer."""
    with suppress(OSError):  # for files that cannot be read: importlib.metadata skips them
        files = (file for folder in sys.path for file in Path(folder).glob("*-info/entry_points.txt"))
        if not any(b"[trajtrainer." in file.read_bytes() for file in files):
            return None
    from importlib.metadata import entry_points  # lazy import: takes half of the time of ``trajtrainer --help``

    return cast("EntryPoints", entry_points())  # Python 3.11 returns another class with the same method ``select``


class Registry(Generic[Row]):
    """A mapping from names to rows, which are built in or come from packages.

    A package cannot replace a built-in row, and a broken package affects only runs that use it.

    Args:
        kind: what a row describes, for use in messages ("reward signal").
        group: the group of the entry points.
        row_type: the required type of the objects that entry points refer to.
        builtin: name -> row, or the import path of a row in the notation of entry points.
    """

    def __init__(self, kind: str, group: str, row_type: type[Row], builtin: Mapping[str, Row | str]) -> None:
        self.kind = kind
        self.group = group
        self._builtin = dict(builtin)  # import paths are replaced by their rows on first access
        self._row_type = row_type
        self._loaded: dict[str, Row | PluginError] = {}

    @property
    def builtin(self) -> dict[str, Row]:
        """All built-in rows. Accessing this property imports their modules."""
        for name in self._builtin:
            self._built_in(name)
        return cast(dict[str, Row], self._builtin)

    def __iter__(self) -> Iterator[str]:
        yield from self._builtin
        yield from self._declared

    def __contains__(self, name: object) -> bool:
        return name in self._builtin or name in self._declared

    def __getitem__(self, name: str) -> Row:
        """Load and return the row with this name.

        Raises:
            KeyError: there is no such row.
            PluginError: the package that should provide it is broken, or several packages claim the name.
        """
        # Access this even for built-in rows, because it logs a warning about packages that use a built-in name.
        declared = self._declared
        if name in self._builtin:
            return self._built_in(name)
        if name not in self._loaded:
            try:
                self._loaded[name] = self._load(name, declared[name])
            except PluginError as error:
                self._loaded[name] = error  # the next access raises the same error without another import
        row = self._loaded[name]
        if isinstance(row, PluginError):
            raise row
        return row

    def get(self, name: str) -> Row | None:
        """Return the row with this name, or None if there is no such row or its package is broken."""
        try:
            return self[name]
        except (KeyError, PluginError):
            return None

    @contextmanager
    def blaming(self, name: str) -> Iterator[None]:
        """Convert exceptions raised by a row's code to errors that name the package.

        Raises:
            PluginError: the code of a package's row raised an exception that is not a ``TrajtrainerError``.
        """
        try:
            yield
        except (TrajtrainerError, MemoryError):
            raise
        except Exception as error:
            if name in self._builtin:
                raise
            raise PluginError(f"{self._origin(name)} failed: {_described(error)}.") from error

    def package(self, name: str) -> str | None:
        """Return the name and version of the package that adds a row; None for built-in rows. Imports nothing."""
        return None if name in self._builtin else _package(self._declared[name][0])

    def origins(self, module: str) -> Iterator[tuple[bool, str]]:
        """Yield the loaded rows of the package that contains ``module``.

        Yields pairs: whether the row is defined in another module of the package, and a description of the row.
        """
        package = module.partition(".")[0]
        for name in self._loaded:
            home = self._declared[name][0].module
            if home.partition(".")[0] == package:
                yield home != module, self._origin(name)

    @cached_property
    def _declared(self) -> dict[str, list[EntryPoint]]:
        declared: dict[str, list[EntryPoint]] = {}
        found = installed()
        for entry in () if found is None else found.select(group=self.group):
            if entry.name in self._builtin:
                message = "%s is ignored, because trajtrainer has a %s with that name; the package must rename it."
                logger.warning(message, _place(entry, self.group), self.kind)
            else:
                declared.setdefault(entry.name, []).append(entry)
        return declared

    def _built_in(self, name: str) -> Row:
        row = self._builtin[name]
        if isinstance(row, str):
            row = self._builtin[name] = cast(Row, resolve_name(row))
        return row

    def _load(self, name: str, entries: list[EntryPoint]) -> Row:
        if len(entries) > 1:
            packages = " and ".join(_package(entry) for entry in entries)
            raise PluginError(f"The {self.kind} {name!r} is claimed by the packages {packages}; uninstall all but one.")
        try:
            row = entries[0].load()
            if not isinstance(row, self._row_type):
                raise TypeError(f"it points to {row!r}, expected a {self._row_type.__name__}")
        except Exception as error:
            logger.debug("The entry point %r could not be loaded.", name, exc_info=True)
            raise PluginError(
                f"{self._origin(name)} cannot be loaded: {_described(error)}. Fix, update or uninstall the package."
            ) from error
        return row

    def _origin(self, name: str) -> str:
        return f"The {self.kind} {name!r} of {_place(self._declared[name][0], self.group)}"


@contextmanager
def blaming_packages(*registries: Registry[Any]) -> Iterator[None]:
    """Convert exceptions raised by code of any installed package to errors that name the package.

    Raises:
        PluginError: an exception that is not a ``TrajtrainerError`` passed through a module of a package with a loaded
            row. The traceback is logged at debug level.
    """
    try:
        yield
    except (TrajtrainerError, MemoryError):
        raise
    except Exception as error:
        modules = [str(frame.f_globals.get("__name__")) for frame, _ in walk_tb(error.__traceback__)]
        for module in reversed(modules):
            origins = [origin for registry in registries for origin in registry.origins(module)]
            if origins:
                logger.debug("The cause:", exc_info=True)
                message = f"{min(origins)[1]} failed: {_described(error)}. With --debug, the log shows where."
                raise PluginError(message) from error
        raise


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(".")


def _package(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else entry.module


def _place(entry: EntryPoint, group: str) -> str:
    return f"package {_package(entry)} (entry point {entry.name!r} = {entry.value!r} of group {group!r})"
