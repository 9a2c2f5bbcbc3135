"""`monitor_scores`: monitor the images of score files; a folder keeps the state."""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from secondlook.errors import ANY, MonitoringError, Repair
from secondlook.files import lock_folder
from secondlook.monitoring.monitor import Monitor, write_text
from secondlook.monitoring.scores import ScoreFile, collect_labels, find_class, list_score_files
from secondlook.monitoring.status import MonitorStatus
from secondlook.policies import Policy, read_policy
from secondlook.predictions import DEFAULT_EXECUTION, Execution
from secondlook.progress import progress_bar
from secondlook.tables import format_csv_row

STATE, QUEUE = "state.json", "to_review.csv"


@dataclass(frozen=True)
class MonitoredScores:
    """Result of `monitor_scores`: the monitor after all files, and the new files and labels; `str` is a summary."""

    monitor: Monitor
    status: MonitorStatus
    new_files: int
    new_labels: int
    ignored_labels: int
    """Labels of accepted images outside the audits, which are not a random sample."""
    queue: Path | None
    """CSV file of the audits to review; None if there are none."""

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values: the content of `monitor.json`, and the new files and labels."""
        news = {"new_files": self.new_files, "new_labels": self.new_labels, "ignored_labels": self.ignored_labels}
        return {**_describe(self.monitor, self.status), **news}

    def __str__(self) -> str:
        lines = [str(self.status), "", f"New score files: {self.new_files:,}"]
        if self.new_labels or self.ignored_labels:
            ignored = f" ({self.ignored_labels:,} of accepted images that were not audited are not used)"
            lines.append(f"New labels: {self.new_labels:,}{ignored if self.ignored_labels else ''}")
        if self.queue is not None:
            lines.append(f"To review: {self.queue}")
        return "\n".join(lines)


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
    reviewer_error: float | None = None,
    shuffle: bool = False,
    execution: Execution = DEFAULT_EXECUTION,
) -> MonitoredScores:
    """Monitor the images of new score files, and write the result to `monitor.json`.

    `to_review.csv` lists the audits to review; fill in a copy of it and pass it as `reviewed`. The state is saved in
    `state.json` after each file: repeat an interrupted call to resume, with the same result. Files are read in sorted
    order; files that appear later are read after all others.

    Parameters
    ----------
    policy
        The policy that the images were scored with, or the path of its file.
    scores
        Score files: paths, patterns such as 'scores/*.parquet', folders or URLs of parts. Files that were
        read before may be missing, but must not have changed.
    out
        The folder of the state and of the result. Created if needed.
    reviewed
        A CSV file with the columns id and label, for reviewed audits and rejected images. A label is a class, 'none of
        these', 'bad image' or 'cannot tell'.
    alpha, window, burn_in, seed, reviewer_error
        Options of `Monitor`; by default those of the folder, or the defaults of `Monitor`.
    shuffle
        Whether to read each file in random order. Use it for images without a time order, such as a folder sorted by
        class: in sorted order, they look like a stream that changes all the time.
    execution
        Whether to show a progress bar.
    """
    loaded = policy if isinstance(policy, Policy) else read_policy(policy)
    found = list_score_files([scores] if isinstance(scores, str | Path) else scores)
    labels = {} if reviewed is None else collect_labels(reviewed)
    folder = Path(out)
    if reviewed is not None and Path(reviewed).absolute() == (folder / QUEUE).absolute():
        fault = f"reviewed labels {str(reviewed)!r} would be overwritten by the new list of audits to review"
        raise MonitoringError(fault, repair="save them under another name, such as labels.csv")
    with ExitStack() as stack:
        try:
            stack.enter_context(lock_folder(folder))
        except OSError as error:
            raise MonitoringError(f"cannot write to {str(folder)!r}: {error.strerror}; choose another path.") from None
        options = {"alpha": alpha, "window": window, "burn_in": burn_in, "seed": seed, "reviewer_error": reviewer_error}
        monitor = _open_monitor(folder, loaded, options)
        new_files = _read_new_files(monitor, found, folder, shuffle, execution.progress)
        new_labels, ignored = _add_labels(monitor, labels, found)
        monitor.save(folder / STATE)
        status = monitor.status()
        text = json.dumps(_describe(monitor, status), indent=2, ensure_ascii=False, allow_nan=False)
        write_text(folder / "monitor.json", f"{text}\n")
        pending = (format_csv_row([audit.id, ""]) for audit in monitor.audited if audit.label is None)
        write_text(folder / QUEUE, "".join([format_csv_row(["id", "label"]), *pending]))
    queue = folder / QUEUE if status.audit is not None and status.audit.pending else None
    return MonitoredScores(monitor, status, new_files, new_labels, ignored, queue)


def _open_monitor(folder: Path, policy: Policy, options: Mapping[str, Any]) -> Monitor:
    """Return the monitor of a folder, or a new one; options that are None keep their value or the default."""
    given = {name: value for name, value in options.items() if value is not None}
    if not (folder / STATE).exists():
        return Monitor(policy, **given)
    monitor = Monitor.load(folder / STATE, policy)
    monitor.burn_in = given.pop("burn_in", monitor.burn_in)
    for name, started in monitor.options.items():
        if given.get(name, started) != started:
            repair = Repair(f"pass {{{name}}} or omit it, or start a new monitor in another folder", **{name: started})
            fault = "differs from the existing monitor"
            raise MonitoringError(fault, argument=name, value=given[name], repair=repair)
    return monitor


def _read_new_files(monitor: Monitor, found: Sequence[ScoreFile], folder: Path, shuffle: bool, progress: bool) -> int:
    """Read the new files, save the state now and then, and return how many there were."""
    present: dict[str, ScoreFile] = {}
    for file in found:
        other = present.setdefault(hashlib.sha256(file.read()).hexdigest(), file)
        if other is not file:
            raise MonitoringError(f"the score files {other.name!r} and {file.name!r} are identical; pass one of them.")
    names = {file.name for file in found}
    for read in monitor.files:  # missing files are fine
        if read.digest not in present and read.name in names:
            repair = Repair("restore it, or start again with another folder {out}", out=ANY)
            raise MonitoringError(f"the score file {read.name!r} has changed since it was read", repair=repair)
    known = {read.digest for read in monitor.files}
    new = [file for digest, file in present.items() if digest not in known]
    due = 0.0
    with progress_bar("scores", len(new), "files", enabled=progress) as advance:
        for file in new:
            content, before = file.read(), monitor.images
            try:
                rows = file.parse(content)
                if shuffle:
                    rows = rows.take(np.random.default_rng([monitor.seed, len(monitor.files)]).permutation(len(rows)))
                monitor.add_images(rows)
            except MonitoringError as error:
                monitor.save(folder / STATE)  # of the files before
                raise MonitoringError.from_error(error, f"in the score file {file.name!r}, ") from None
            digest = hashlib.sha256(content).hexdigest()  # of the bytes read, even if the file has changed since
            monitor.record_file(file.name, size=len(content), digest=digest, images=monitor.images - before)
            due = _save_state(monitor, folder / STATE) if time.monotonic() >= due else due
            advance(1)
    return len(new)


def _save_state(monitor: Monitor, path: Path) -> float:
    """Save the state, and return when it is due again: the state grows, but takes at most a tenth of the time."""
    start = time.monotonic()
    monitor.save(path)
    return time.monotonic() + 10 * (time.monotonic() - start)


def _add_labels(monitor: Monitor, labels: Mapping[str, int | str], found: Sequence[ScoreFile]) -> tuple[int, int]:
    """Add labels of audits and of rejected images; return the number of new labels and of labels of other images.

    Labels of other images are ignored: they are not a random sample, and weights cannot correct for that.
    """
    due = monitor.labels
    others = [id_ for id_ in labels if id_ not in due]
    for id_ in others:
        find_class(labels[id_], monitor.policy.class_names, id_)
    unknown = dict.fromkeys(others)
    for file in found if unknown else ():
        for id_ in file.parse(file.read(), ["id"])["id"].to_pylist():
            unknown.pop(id_, None)
    if unknown:
        first, *more = unknown
        many = f" and {len(more):,} others" if more else ""
        fault = f"the scores do not contain the labeled image {first!r}{many}"
        raise MonitoringError(fault, repair="pass the score files with these images, or correct the ids")
    new = monitor.add_labels({id_: label for id_, label in labels.items() if id_ in due})
    return new, len(others)


def _describe(monitor: Monitor, status: MonitorStatus) -> dict[str, Any]:
    """Return the content of `monitor.json`: the status, the windows, the worst images and the files."""
    return {
        "format": "secondlook monitor result",
        "version": 1,
        "policy": monitor.policy.checksum,
        "options": monitor.options,
        **status.to_dict(),
        "windows": [window.to_dict() for window in monitor.timeline()],
        "worst_images": [image.to_dict() for image in monitor.worst_images()],
        "files": [file.model_dump() for file in monitor.files],
    }
