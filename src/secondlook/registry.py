"""Registries: named records for the command line, the docs and the tests.

Other packages add records through entry points of the group `secondlook`. Each entry point is a module that registers
records on import. They are loaded when a registry is listed, or when a name is not found.
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
    """A plugin cannot be loaded."""


def load_plugins() -> None:
    """Import the entry points of installed packages, once per process; warn about failures."""
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
            except Exception as error:  # noqa: BLE001  # a broken plugin must not stop the program
                fault = f"the plugin {point.name!r} of the package {point.dist.name if point.dist else ''!r}"
                failures.append(f"{fault} cannot be loaded: {type(error).__name__}: {str(error).rstrip('.')}")
    for failure in failures:
        warnings.warn(PluginWarning(failure, repair="update or uninstall the package"), stacklevel=3)


class _Listed(Protocol):
    """A record: its name, its form with placeholders ('risk_at:COVERAGE'), and a one-line summary."""

    @property
    def name(self) -> str: ...
    @property
    def form(self) -> str: ...
    @property
    def summary(self) -> str: ...


@dataclass(frozen=True)
class NamedRecord:
    """Base of records without parameters."""

    name: str
    summary: str

    @property
    def form(self) -> str:
        """The name, since there are no parameters."""
        return self.name


Record = TypeVar("Record", bound=_Listed)


class Registry(Mapping[str, Record]):
    """Records by name, in the order of registration; records of plugins come last.

    `kind` is the word for a record in messages ("metric"); `error` is the class of the errors raised here.
    """

    def __init__(self, kind: str, error: type[SecondLookError]) -> None:
        self.kind = kind
        self._error = error
        self._records: dict[str, Record] = {}

    def add(self, record: Record) -> Record:
        """Register a record; a duplicate name is an error."""
        if record.name in self._records:
            raise self._error(f"{self.kind} {record.name!r} is already registered; choose another name.")
        self._records[record.name] = record
        return record

    def find(self, name: str, where: str = "") -> Record:
        """Return the record of a name from user input; `where` is its context for the message (" in 'onx:m.onnx'")."""
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
    """Return " Did you mean ...?" for the closest known name, or "" if none is close or the name is known."""
    closest = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean {closest[0]!r}?" if closest and closest[0] != name else ""
