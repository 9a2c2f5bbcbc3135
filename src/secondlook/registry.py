"""The one kind of registry: named records that the command line, the docs and the tests read.

Other packages add records by entry points of the group `secondlook`, each of which names a module that registers them
when it is imported. They are loaded when a registry is listed, or asked for a name that it does not have.
"""

import difflib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from threading import RLock
from typing import Any, Protocol, TypeVar, cast

from secondlook.errors import SecondLookError, SecondLookWarning

_lock = RLock()
_is_loaded = False


class PluginWarning(SecondLookWarning):
    """A package that adds records cannot be loaded."""


def load_plugins() -> None:
    """Import the entry points of installed packages, once per process; warn of those that fail."""
    from importlib.metadata import entry_points

    global _is_loaded
    failures = []
    with _lock:  # reentrant, since a plugin may read a registry while it is imported
        if _is_loaded:
            return
        _is_loaded = True
        for point in entry_points(group="secondlook"):
            try:
                point.load()
            except Exception as error:  # noqa: BLE001  # whatever a plugin raises, the program goes on without it
                fault = f"the plugin {point.name!r} of the package {point.dist.name if point.dist else ''!r}"
                failures.append(f"{fault} cannot be loaded: {type(error).__name__}: {str(error).rstrip('.')}")
    for failure in failures:
        warnings.warn(PluginWarning(failure, repair="update or uninstall the package"), stacklevel=3)


class _Listed(Protocol):
    """A record: its key, how it is written, with placeholders ('risk_at:COVERAGE'), and one line for tables."""

    @property
    def name(self) -> str: ...
    @property
    def form(self) -> str: ...
    @property
    def summary(self) -> str: ...


@dataclass(frozen=True)
class NamedRecord:
    """Base of records that are written by their name alone."""

    name: str
    summary: str

    @property
    def form(self) -> str:
        """How it is written: the name."""
        return self.name


Record = TypeVar("Record", bound=_Listed)


class Registry(Mapping[str, Record]):
    """Records by name, in the order of registration; those of other packages come last.

    `kind` names one record in messages ("metric"); `error` is the class of the errors raised here.
    """

    def __init__(self, kind: str, error: type[SecondLookError]) -> None:
        self.kind = kind
        self._error = error
        self._records: dict[str, Record] = {}

    def add(self, record: Record) -> Record:
        """Register a record. A name can be registered once only."""
        if record.name in self._records:
            raise self._error(f"{self.kind} {record.name!r} is already registered; choose another name.")
        self._records[record.name] = record
        return record

    def find(self, name: str, where: str = "") -> Record:
        """Return the record of a name that a user gave; `where` tells in what it was given (" in 'onx:m.onnx'")."""
        if name not in self:
            known = ", ".join(record.form for record in self.values())
            raise self._error(f"unknown {self.kind} {name!r}{where}; known: {known}.{did_you_mean(name, self)}")
        return self._records[name]

    def __getitem__(self, name: str) -> Record:
        if name not in self._records:
            load_plugins()
        return self._records[name]

    def __iter__(self) -> Iterator[str]:
        load_plugins()
        return iter(self._records)

    def __len__(self) -> int:
        load_plugins()
        return len(self._records)

    def __repr__(self) -> str:
        return f"Registry({self.kind!r}: {', '.join(self)})"

    def to_rows(self) -> list[dict[str, Any]]:
        """Return the plain fields of every record, with its form, for tables and JSON."""
        rows: list[dict[str, Any]] = []
        for record in self.values():
            names = ("name", "form", "summary", *(field.name for field in fields(cast(Any, record))))
            rows.append({name: value for name in names if _is_plain(value := getattr(record, name))})
        return rows


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(_is_plain(one) for one in value)
    return value is None or isinstance(value, str | bool | int | float)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean ...?" for the closest known name, or "" where none is close or the name is right."""
    closest = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean {closest[0]!r}?" if closest and closest[0] != name else ""
