"""`monitor_scores`: monitor the images of score files; a folder remembers which files were read."""

import glob
import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from secondlook.errors import MonitoringError
from secondlook.file_systems import is_url, open_location
from secondlook.files import exclusive_lock, write_bytes_atomically
from secondlook.monitoring.labels import find_class, read_labels
from secondlook.monitoring.monitor import Monitor
from secondlook.monitoring.score_rows import COLUMNS
from secondlook.monitoring.state import ReadFile
from secondlook.monitoring.status import MonitorStatus
from secondlook.policies import Policy
from secondlook.progress import progress_bar
from secondlook.tables import format_csv_row

if TYPE_CHECKING:
    import pyarrow as pa

STATE = "state.json"
RESULT = "monitor.json"
QUEUE = "to_review.csv"
LOCK = "_lock"
SUFFIX = ".parquet"
READ_COLUMNS = (*COLUMNS, "labels", "reason", "audit", "audit_probability")
START_AGAIN = "or start again with another folder out="


@dataclass(frozen=True)
class FoundFile:
    """A file of scores that is there now."""

    name: str
    """Its path or URL."""
    read: Callable[[], bytes]


@dataclass(frozen=True)
class MonitoredScores:
    """Result of `monitor_scores`: the monitor after all files, and what was new."""

    monitor: Monitor
    status: MonitorStatus
    folder: Path
    new_files: int
    new_labels: int
    ignored_labels: int
    """Reviewed labels of images that were not audited, which say nothing about the accepted images as a whole."""
    queue: Path | None
    """CSV file of the audits that nobody reviewed yet, to be filled in; None if there are none."""

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values: the content of `monitor.json`, and what was new."""
        news = {"new_files": self.new_files, "new_labels": self.new_labels, "ignored_labels": self.ignored_labels}
        return {**describe_monitor(self.monitor, self.status), **news}


def monitor_scores(
    policy: Policy | str | Path,
    scores: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    reviewed: str | Path | None = None,
    alpha: float | None = None,
    window: int | None = None,
    burn_in: int | None = None,
    seed: int | None = None,
    shuffle: bool = False,
    progress: bool = True,
) -> MonitoredScores:
    """Monitor the images of score files that were not read before, and write the result to `monitor.json`.

    Audits that nobody reviewed yet are listed in `to_review.csv`; filled in, it can be passed as `reviewed`. The state
    of the monitor is kept in `state.json`, after each file: an interrupted call, called again, resumes and ends with
    the same bytes. Files are read in sorted order; those that appear later are read after all others.

    Parameters
    ----------
    policy
        The policy that the images were scored with, or the path of its file.
    scores
        Parquet files of scores: paths, patterns such as 'scores/*.parquet', folders or URLs of parts. Files that were
        read before may be gone, but must not have changed.
    out
        The folder of the state and of the result, which need not exist.
    reviewed
        A CSV file with the columns id and label, with what people found when they reviewed audits.
    alpha, window, burn_in, seed
        Options of `Monitor`, by default its own, or those that the folder was started with.
    shuffle
        Whether the images of each file have no order of time, so that they are read in random order: those of a
        folder that is sorted by class would look like a stream that changes all the time.
    progress
        Whether to show a progress bar.
    """
    loaded = policy if isinstance(policy, Policy) else Policy.load(policy)
    patterns = [scores] if isinstance(scores, str | Path) else list(scores)
    found = list_score_files([str(pattern) for pattern in patterns])
    labels = {} if reviewed is None else read_labels(reviewed)
    folder = Path(out)
    if reviewed is not None and Path(reviewed).absolute() == (folder / QUEUE).absolute():
        raise MonitoringError(
            f"reviewed labels {str(reviewed)!r} would be replaced, since this file lists what is left to review; save "
            "them under another name, such as labels.csv."
        )
    with _open_folder(folder):
        monitor = _open_monitor(folder, loaded, alpha=alpha, window=window, burn_in=burn_in, seed=seed)
        new_files = _read_new_files(monitor, found, folder, shuffle=shuffle, progress=progress)
        new_labels, ignored = _add_labels(monitor, labels, found)
        monitor.save(folder / STATE)
        status = monitor.status()
        _write_result(folder, monitor, status)
    queue = folder / QUEUE if status.audit is not None and status.audit.pending else None
    return MonitoredScores(monitor, status, folder, new_files, new_labels, ignored, queue)


def list_score_files(patterns: Sequence[str]) -> list[FoundFile]:
    """Return the files that paths, patterns, folders and URLs name, each once, sorted within each of them."""
    found: dict[str, FoundFile] = {}
    for pattern in patterns:
        files = list(_find_at_url(pattern) if is_url(pattern) else _find_locally(pattern))
        if not files:
            raise MonitoringError(
                f"there are no score files {pattern!r}; expected Parquet files, a pattern such as 'scores/*.parquet', "
                "or a folder or URL of parts."
            )
        found |= {file.name: file for file in files if file.name not in found}
    return list(found.values())


def read_score_tables(patterns: Sequence[str], *, progress: bool = True) -> list["pa.Table"]:
    """Return the rows of all files that paths, patterns, folders and URLs name."""
    files = list_score_files(patterns)
    tables = []
    with progress_bar("scores", len(files), "files", enabled=progress) as advance:
        for file in files:
            tables.append(_parse(_read_bytes(file), READ_COLUMNS))
            advance(1)
    return tables


def _find_locally(pattern: str) -> Iterator[FoundFile]:
    path = Path(pattern).expanduser()
    # A file may have brackets in its name.
    matches = [path] if path.exists() else sorted(map(Path, glob.glob(str(path))))  # noqa: PTH207 - it may be absolute
    for match in matches:
        inside = sorted(match.iterdir()) if match.is_dir() else [match]
        for file in inside:
            if file.name.startswith(("_", ".")) or file.is_dir():
                continue
            if file.suffix.lower() != SUFFIX:
                raise MonitoringError(
                    f"{str(file)!r} is not a Parquet file; expected scores that were written as .parquet, or as a "
                    "folder of parts."
                )
            yield FoundFile(str(file), file.read_bytes)


def _find_at_url(url: str) -> Iterator[FoundFile]:
    location = open_location(url, MonitoringError)
    names = [location.name] if location.name.endswith(SUFFIX) else location.list_names()
    folder = location.parent if location.name.endswith(SUFFIX) else location
    for name in names:
        if name.endswith(SUFFIX) and not name.rpartition("/")[2].startswith("_"):
            yield FoundFile(folder.locate(name), partial(folder.read_bytes, name))


@contextmanager
def _open_folder(folder: Path) -> Iterator[None]:
    """Create the folder if it does not exist, and hold its lock."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MonitoringError(
            f"cannot write to the folder {str(folder)!r}: {error.strerror}; choose another path."
        ) from None
    with exclusive_lock(folder / LOCK):
        yield


def _open_monitor(
    folder: Path, policy: Policy, *, alpha: float | None, window: int | None, burn_in: int | None, seed: int | None
) -> Monitor:
    """Return the monitor of a folder, or a new one; options that are None are as before, or the default."""
    given: dict[str, Any] = {"alpha": alpha, "window": window, "burn_in": burn_in, "seed": seed}
    if not (folder / STATE).exists():
        return Monitor(policy, **{name: value for name, value in given.items() if value is not None})
    monitor = Monitor.load(folder / STATE, policy)
    monitor.check_options(alpha=alpha, window=window, seed=seed)
    monitor.burn_in = monitor.burn_in if burn_in is None else burn_in
    return monitor


def _read_new_files(
    monitor: Monitor, found: Sequence[FoundFile], folder: Path, *, shuffle: bool, progress: bool
) -> int:
    """Read the files that were not read before, save the state after each, and return how many there were."""
    present: dict[str, FoundFile] = {}
    for file in found:
        other = present.setdefault(_digest(_read_bytes(file)), file)
        if other is not file:
            raise MonitoringError(
                f"the score files {other.name!r} and {file.name!r} are the same; pass every image once."
            )
    _check_unchanged([file for file in monitor.files if file.digest not in present], {file.name for file in found})
    known = {file.digest for file in monitor.files}
    new = [file for digest, file in present.items() if digest not in known]
    with progress_bar("scores", len(new), "files", enabled=progress) as advance:
        for file in new:
            _read_file(monitor, file, shuffle=shuffle)
            monitor.save(folder / STATE)
            advance(1)
    return len(new)


def _check_unchanged(missing: Sequence[ReadFile], names: Collection[str]) -> None:
    """Raise for a file that was read before and has other content now; one that is not there any more is no harm."""
    for file in missing:
        if file.name in names:
            raise MonitoringError(
                f"the score file {file.name!r} has changed since it was read ({file.images:,} images); restore it, "
                f"{START_AGAIN}, since what was read cannot be taken back."
            )


def _read_file(monitor: Monitor, file: FoundFile, *, shuffle: bool) -> None:
    """Add the images of a file to the stream."""
    content, before = _read_bytes(file), monitor.images
    try:
        rows = _parse(content, READ_COLUMNS)
        if shuffle:
            rows = rows.take(np.random.default_rng([monitor.seed, len(monitor.files)]).permutation(len(rows)))
        monitor.update(rows)
    except MonitoringError as error:
        raise MonitoringError(f"in the score file {file.name!r}, {error}") from None
    images = monitor.images - before
    record = ReadFile(name=file.name, size=len(content), digest=_digest(content), images=images)
    monitor.files = (*monitor.files, record)


def _read_bytes(file: FoundFile) -> bytes:
    try:
        return file.read()
    except OSError as error:
        raise MonitoringError(f"cannot read the score file {file.name!r}: {error.strerror}; check it.") from None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _parse(content: bytes, columns: Sequence[str]) -> "pa.Table":
    """Return the rows of a Parquet file, with as many of the given columns as it has."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(pa.BufferReader(content)) as file:
            present = [name for name in columns if name in file.schema_arrow.names]
            # A thread of Arrow could release the content while Python shuts down, which aborts the process.
            return file.read(columns=present, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise MonitoringError(f"the content is not Parquet ({error}); score again, or remove the file.") from None


def _add_labels(monitor: Monitor, labels: Mapping[str, str], found: Sequence[FoundFile]) -> tuple[int, int]:
    """Add reviewed labels of audits; return how many are new, and how many are of other images.

    The labels of images that were rejected, or accepted but not marked, are ignored: people choose which of these they
    look at, and no weights make up for it.
    """
    audited = {audit.id for audit in monitor.audited}
    others = {id_: label for id_, label in labels.items() if id_ not in audited}
    for id_, label in others.items():
        find_class(label, monitor.policy.class_names, id_)
    unknown = dict.fromkeys(others)
    for file in found if unknown else ():
        for id_ in _parse(_read_bytes(file), ["id"])["id"].to_pylist():
            unknown.pop(id_, None)
    if unknown:
        first, *more = unknown
        many = f" and {len(more):,} others" if more else ""
        raise MonitoringError(
            f"there are labels for image {first!r}{many}, which the scores do not have; pass the score files with "
            "these images, or correct the ids."
        )
    new = monitor.add_labels({id_: label for id_, label in labels.items() if id_ in audited})
    return new, len(others)


def describe_monitor(monitor: Monitor, status: MonitorStatus) -> dict[str, Any]:
    """Return all that a monitor knows as JSON values: the status, the windows, the worst images and the files."""
    return {
        "format": "secondlook monitor result",
        "version": 1,
        "policy": monitor.policy.checksum,
        "options": {name: getattr(monitor, name) for name in ("alpha", "window", "burn_in", "seed")},
        **status.to_dict(),
        "windows": [window.to_dict() for window in monitor.timeline()],
        "worst_images": [image.to_dict() for image in monitor.worst_images()],
        "files": [file.model_dump() for file in monitor.files],
    }


def _write_result(folder: Path, monitor: Monitor, status: MonitorStatus) -> None:
    text = json.dumps(describe_monitor(monitor, status), indent=2, ensure_ascii=False, allow_nan=False)
    pending = (format_csv_row([audit.id, ""]) for audit in monitor.audited if audit.label is None)
    contents = {RESULT: f"{text}\n", QUEUE: "".join([format_csv_row(["id", "label"]), *pending])}
    for name, content in contents.items():
        try:
            write_bytes_atomically(folder / name, content.encode())
        except OSError as error:
            raise MonitoringError(
                f"cannot write {str(folder / name)!r}: {error.strerror}; choose another path."
            ) from None
