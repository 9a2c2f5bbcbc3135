"""The folder beside the scores in which a scoring keeps what is done, until all of it is one file."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from secondlook.errors import DecisionError
from secondlook.files import TEMPORARY_SUFFIX, exclusive_lock, remove_temporary_files, write_atomically
from secondlook.predictions import Chunking
from secondlook.scoring.score_files import written

if TYPE_CHECKING:
    import pyarrow as pa

JOB = "job.json"
LOCK = "lock"
HANDED_OVER = "handed-over.txt"
"""Names the folder into which rejected images were begun to be put."""

SKIPPED = b"secondlook.skipped"


class ScoringJob(BaseModel):
    """What a scoring is about: parts of another one must not be taken for its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["secondlook scoring"] = "secondlook scoring"
    version: Literal[1] = 1
    policy: str
    classifier: str
    output: str
    preprocessing: dict[str, object]
    data: str
    images: int
    rows: int
    level: float
    seed: int
    answers: bool
    class_names: tuple[str, ...] | None


class ScoredPart(NamedTuple):
    """The rows of some images, and the id and reason of each that could not be read."""

    rows: "pa.Table"
    skipped: list[tuple[str, str]]


class ScoreParts:
    """The parts of one scoring; each is there whole or not at all."""

    def __init__(self, folder: Path, job: ScoringJob) -> None:
        self.folder = folder
        self.division = Chunking(job.images, job.rows)

    @classmethod
    @contextmanager
    def held(cls, out: Path, job: ScoringJob) -> Iterator["ScoreParts"]:
        """Hold the parts of the scores `out` alone: those of a job that was killed, or none yet."""
        folder = out.with_name(f"{out.name}.parts")
        with ExitStack() as stack:
            with written("the parts of the scores", folder):
                stack.enter_context(_held(folder))
                _check_job(folder, job)
                remove_temporary_files(folder)
                _write_text(folder / JOB, job.model_dump_json(indent=2) + "\n")
            parts = cls(folder, job)
            try:
                yield parts
            except BaseException:
                # What has done nothing yet leaves nothing behind.
                if parts.images_missing == job.images and not (folder / HANDED_OVER).exists():
                    parts.remove()
                raise

    def path_of(self, number: int) -> Path:
        """Return the file of a part."""
        return self.folder / f"part-{number:06d}.parquet"

    def has(self, number: int) -> bool:
        """Whether a part is there."""
        return self.path_of(number).is_file()

    @property
    def images_missing(self) -> int:
        """How many images are still to be looked at."""
        return sum(len(self.division.indices_of(number)) for number in self.division.numbers if not self.has(number))

    def write(self, number: int, part: ScoredPart) -> None:
        """Keep a part."""
        import pyarrow.parquet as pq

        path = self.path_of(number)
        table = part.rows.replace_schema_metadata({SKIPPED: json.dumps(part.skipped)})
        with written("a part of the scores", path):
            write_atomically(path, lambda file: pq.write_table(table, file, write_page_checksum=True))

    def read(self, columns: list[str] | None = None) -> Iterator[ScoredPart]:
        """Read all parts in order, one at a time, or only some of their columns."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        for number in self.division.numbers:
            path = self.path_of(number)
            try:
                table = pq.read_table(path, columns=columns, partitioning=None, page_checksum_verification=True)
                skipped = [(name, reason) for name, reason in json.loads((table.schema.metadata or {})[SKIPPED])]
            except (OSError, pa.ArrowException, KeyError, ValueError) as error:
                raise DecisionError(
                    f"the part {str(path)!r} of the scores is damaged ({error}); remove it and start again: "
                    "only this part is computed anew."
                ) from None
            yield ScoredPart(table.replace_schema_metadata(None), skipped)

    def began_to_fill(self, rejected: Path) -> bool:
        """Whether this very job put rejected images into that folder before it was killed."""
        mark = self.folder / HANDED_OVER
        return mark.is_file() and mark.read_text(encoding="utf-8") == str(rejected.absolute())

    def mark_begun_to_fill(self, rejected: Path) -> None:
        """Remember the folder before the first rejected image is put there."""
        _write_text(self.folder / HANDED_OVER, str(rejected.absolute()))

    def remove(self) -> None:
        """Remove everything, the job after its parts: what a kill leaves is then never taken for another job."""
        for number in self.division.numbers:
            self.path_of(number).unlink(missing_ok=True)
        (self.folder / JOB).unlink()
        # Windows does not remove the lock while it is held; an empty folder stays there.
        shutil.rmtree(self.folder, ignore_errors=os.name == "nt")


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    while True:
        folder.mkdir(exist_ok=True)
        with exclusive_lock(folder / LOCK) as held:
            # Whoever held it before has removed it together with the folder: then it is to be made again.
            if _is_same_file(held, folder / LOCK):
                yield
                return


def _is_same_file(file: BinaryIO, path: Path) -> bool:
    """Whether an open file is the one that a path leads to now, and not one that was removed."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _check_job(folder: Path, job: ScoringJob) -> None:
    repair = "remove it to start anew, or choose another --out"
    if not (folder / JOB).is_file():
        # This is all that a job leaves that was killed before it wrote what it is about, or while it was removed.
        if any(path.name not in (LOCK, HANDED_OVER) and path.suffix != TEMPORARY_SUFFIX for path in folder.iterdir()):
            raise DecisionError(f"the folder {str(folder)!r} is in the way and holds no scoring; {repair}.")
        return
    try:
        found = ScoringJob.model_validate_json((folder / JOB).read_bytes())
    except ValidationError:
        raise DecisionError(f"the folder {str(folder)!r} holds a scoring that cannot be read; {repair}.") from None
    theirs = found.model_dump(mode="json")  # as files hold it: there a tuple is a list
    other = [name for name, value in job.model_dump(mode="json").items() if theirs[name] != value]
    if other:
        raise DecisionError(
            f"the folder {str(folder)!r} holds an unfinished scoring of another kind (other {', '.join(other)}); "
            f"{repair}."
        )


def _write_text(path: Path, text: str) -> None:
    write_atomically(path, lambda file: file.write(text.encode()))
