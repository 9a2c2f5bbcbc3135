"""The one kind of registry: named records that the command line, the docs and the tests read."""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeVar

from secondlook.errors import SecondLookError


class Listed(Protocol):
    """What every registered record has."""

    @property
    def name(self) -> str:
        """The key of the record."""

    @property
    def form(self) -> str:
        """How it is written, with placeholders for its parameters, such as 'risk_at:COVERAGE'."""

    @property
    def summary(self) -> str:
        """One line for tables."""


@dataclass(frozen=True)
class NamedRecord:
    """Base of records that are written by their name alone."""

    name: str
    summary: str

    @property
    def form(self) -> str:
        """How it is written: the name."""
        return self.name


Record = TypeVar("Record", bound=Listed)


class Registry(Mapping[str, Record]):
    """Records by name, in the order of registration.

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
        if name not in self._records:
            known = ", ".join(record.form for record in self._records.values())
            raise self._error(f"unknown {self.kind} {name!r}{where}; known: {known}.{did_you_mean(name, self)}")
        return self._records[name]

    def __getitem__(self, name: str) -> Record:
        return self._records[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        return f"Registry({self.kind!r}: {', '.join(self)})"

    def to_rows(self) -> list[dict[str, Any]]:
        """Return the plain fields of every record, with its form, for tables and JSON."""
        return [
            {"name": record.name, "form": record.form, "summary": record.summary, **_plain_fields(record)}
            for record in self.values()
        ]


def _plain_fields(record: Any) -> dict[str, Any]:
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    return {name: value for name, value in values.items() if _is_plain(value)}


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(_is_plain(one) for one in value)
    return value is None or isinstance(value, str | bool | int | float)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean ...?" for the closest known name, or "" where none is close or the name is right."""
    closest = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean {closest[0]!r}?" if closest and closest[0] != name else ""
