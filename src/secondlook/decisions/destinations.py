"""Where scores go: one file, or a folder of Parquet parts, local or at a URL."""

import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from secondlook.decisions.chunks import RECORD, JobRecord, ScoreChunks
from secondlook.decisions.formats import (
    SCORE_FORMATS,
    check_output_folder,
    check_output_path,
    check_replaceable,
    find_format,
    write_scores,
)
from secondlook.errors import DecisionError
from secondlook.file_systems import Location, is_url, open_location

if TYPE_CHECKING:
    import pyarrow as pa


class Destination(ABC):
    """Where scores go; its text is the path or the URL."""

    @abstractmethod
    def find_path(self) -> Path | None:
        """Return the local path; None at a URL."""

    @abstractmethod
    def has_scores(self) -> bool:
        """Whether anything is there."""

    @abstractmethod
    def check_replaceable(self, metadata: Mapping[str, str], ids: Collection[str]) -> None:
        """Raise an error, before hours of work, if something is there that is clearly not what would be written."""

    @abstractmethod
    def open_chunks(
        self, record: JobRecord, metadata: Mapping[str, str], *, overwrite: bool
    ) -> AbstractContextManager[ScoreChunks]:
        """Open the chunks of the job: those of an interrupted one, or none yet."""

    @abstractmethod
    def write(self, chunks: ScoreChunks, schema: "pa.Schema", *, overwrite: bool) -> None:
        """Write the scores when all chunks are finished."""

    @abstractmethod
    def close(self, chunks: ScoreChunks) -> None:
        """Remove what only an unfinished job needs."""


@dataclass(frozen=True)
class ScoreFile(Destination):
    """One file; its chunks are in a folder beside it until the job is finished."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def find_path(self) -> Path:
        """Return the path of the file."""
        return self.path

    def has_scores(self) -> bool:
        """Whether the file exists."""
        return self.path.exists()

    def check_replaceable(self, metadata: Mapping[str, str], ids: Collection[str]) -> None:
        """Raise an error if the file holds other scores."""
        check_replaceable(self.path, metadata, ids)

    def open_chunks(
        self, record: JobRecord, metadata: Mapping[str, str], *, overwrite: bool
    ) -> AbstractContextManager[ScoreChunks]:
        """Open the folder beside the file; chunks of another job are never replaced."""
        return ScoreChunks.open(self.path.with_name(f"{self.path.name}.parts"), record, metadata)

    def write(self, chunks: ScoreChunks, schema: "pa.Schema", *, overwrite: bool) -> None:
        """Write the rows of all chunks as one file."""
        schema = schema.with_metadata(dict(chunks.metadata))
        write_scores(self.path, schema, (rows.cast(schema) for rows in chunks.read()), overwrite=overwrite)

    def close(self, chunks: ScoreChunks) -> None:
        """Remove the folder of chunks."""
        chunks.remove()


@dataclass(frozen=True)
class ScoreFolder(Destination):
    """A folder that keeps the chunks as Parquet parts."""

    place: Path | Location

    def __str__(self) -> str:
        return str(self.place)

    def find_path(self) -> Path | None:
        """Return the local folder; None at a URL."""
        return self.place if isinstance(self.place, Path) else None

    def has_scores(self) -> bool:
        """Whether there is a job in the folder."""
        if isinstance(self.place, Path):
            return (self.place / RECORD).exists()
        return RECORD in self.place.list_names()

    def check_replaceable(self, metadata: Mapping[str, str], ids: Collection[str]) -> None:
        """Do nothing: opening the chunks tells whether they are those of another job."""

    def open_chunks(
        self, record: JobRecord, metadata: Mapping[str, str], *, overwrite: bool
    ) -> AbstractContextManager[ScoreChunks]:
        """Open the folder itself."""
        return ScoreChunks.open(self.place, record, metadata, overwrite=overwrite)

    def write(self, chunks: ScoreChunks, schema: "pa.Schema", *, overwrite: bool) -> None:
        """Do nothing: the chunks are the scores."""

    def close(self, chunks: ScoreChunks) -> None:
        """Keep the chunks."""
        chunks.finish()


def parse_destination(out: str | Path) -> Destination:
    """Return where scores go: a file by its suffix, a folder if there is none; raise if it cannot be written."""
    text = os.fspath(out)
    if is_url(text):
        _check_no_suffix(text)
        return ScoreFolder(open_location(text, DecisionError))
    path = Path(out)
    if path.suffix.lower() in SCORE_FORMATS or (path.suffix and not path.is_dir()):
        find_format(path)
        check_output_path(path, "scores")
        return ScoreFile(path)
    check_output_folder(path, "scores")
    return ScoreFolder(path)


def _check_no_suffix(url: str) -> None:
    suffix = os.path.splitext(url.rstrip("/"))[1].lower()  # noqa: PTH122 - a URL
    if suffix in SCORE_FORMATS:
        raise DecisionError(
            f"scores cannot be written to {url!r}: at a URL they are a folder of Parquet parts; pass the URL of a "
            f"folder, such as {url.rstrip('/')[: -len(suffix)]!r}."
        )
