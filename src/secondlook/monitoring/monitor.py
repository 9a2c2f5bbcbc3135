"""`Monitor`: checks with few or no labels whether the guarantee of a policy still holds on a stream of images."""

import bisect
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, ValidationError

from secondlook.arrays import Float64Array, is_number, is_whole_number
from secondlook.decisions import Answer
from secondlook.errors import ANY, MonitoringError, Repair
from secondlook.files import (
    Count,
    FrozenRecord,
    PositiveCount,
    SealedRecord,
    describe_invalid,
    read_regular_file,
    write_bytes_atomically,
)
from secondlook.monitoring.alarm import AlarmState, ShiftAlarm
from secondlook.monitoring.audit import AuditedImage, AuditVerdict, LabelErrors, judge_audits
from secondlook.monitoring.estimates import AccuracyEstimate, AccuracyEstimator, get_reference
from secondlook.monitoring.scores import Labels, ScoreRows, collect_labels, find_class, name_label
from secondlook.monitoring.status import MonitorStatus, ShiftStatus, TimelineWindow
from secondlook.monitoring.unknown import Label, RejectedImage, UnknownShare, find_cuts, judge_unknown
from secondlook.policies import Policy

MAX_STATE_BYTES = 2**31
"""Maximum size of a state: about 100 bytes per rejected image."""
MAX_DOUBTFUL = 24
"""Number of most doubtful accepted images to keep."""
MAX_WRONG = 12
"""Number of wrong audits among the worst images."""
LOG_10 = math.log(10)
MAX_WINDOWS = 400
"""Above this number, windows are merged in pairs."""
SUMS = ("images", "accepted", "auditable", "compared", "confidence", "disagreement")
"""Counts and sums of a window, before those of the features."""


# ---- State


class StreamImage(FrozenRecord):
    """An accepted image that the state keeps."""

    id: str
    image: PositiveCount
    """Position in the stream, counted from 1."""
    predicted: tuple[Count, ...]
    confidence: float
    disagreement: float | None

    @property
    def wrong(self) -> bool | None:
        """Whether the prediction is wrong; None if unknown."""
        return None

    def to_dict(self, class_names: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the image as JSON values, with class names instead of indices if given."""
        content = {"wrong": self.wrong, **self.model_dump(mode="json")}
        if class_names is not None:
            content["predicted"] = [class_names[one] for one in content["predicted"]]
        label = content.get("label")
        if label is not None and (label < 0 or class_names is not None):
            content["label"] = name_label(label, class_names)
        return content


class AuditRecord(StreamImage):
    """An accepted image that was marked for review."""

    accepted: PositiveCount
    """Position among the auditable images, counted from 1."""
    probability: float = Field(gt=0, le=1)
    label: Label | None = None
    """Label of the reviewer; None until the image is reviewed."""

    @property
    def wrong(self) -> bool | None:
        """Whether none of the predicted classes is the label; None without a review, or for 'cannot tell'."""
        return None if self.label in (None, Answer.CANNOT_TELL) else self.label not in self.predicted


class ReadFile(FrozenRecord):
    """A score file that was read."""

    name: str
    size: Count
    digest: str
    images: Count


class WindowSums(FrozenRecord):
    """Counts of the images of a window, and sums over them."""

    images: PositiveCount
    accepted: Count
    auditable: Count
    """Accepted images that could have been audited."""
    compared: Count
    """Images with a disagreement: those with more than one look."""
    confidence: float
    disagreement: float
    features: tuple[float, ...]
    accepted_features: tuple[float, ...]
    evidence: float
    """Logarithm of the evidence of a shift after the last image."""

    @classmethod
    def add_up(cls, parts: Sequence[list[float]] | Float64Array, evidence: float) -> "WindowSums":
        """Return a window from the sums of its parts, or the values of its images, in the order of `sums`. [n, S]

        Adds them in order; the order of `np.sum` depends on their number.
        """
        sums = np.add.accumulate(np.asarray(parts, dtype=np.float64))[-1].tolist()
        counts: dict[str, Any] = dict(zip(SUMS, sums, strict=False))
        features, accepted_features = np.reshape(sums[len(SUMS) :], (2, -1)).tolist()
        return cls(**counts, features=features, accepted_features=accepted_features, evidence=evidence)

    @classmethod
    def join(cls, windows: Sequence["WindowSums"]) -> "WindowSums":
        """Merge consecutive windows into one."""
        return cls.add_up([window.sums for window in windows], windows[-1].evidence)

    @property
    def sums(self) -> list[float]:
        """All counts and sums, in the order of `SUMS` and of the features."""
        return [*(getattr(self, name) for name in SUMS), *self.features, *self.accepted_features]


class MonitorState(SealedRecord):
    """State of a monitor, as stored in a file."""

    format: Literal["secondlook monitor"] = "secondlook monitor"
    version: Literal[3] = 3
    policy: str
    """Checksum of the policy."""
    alpha: float = Field(gt=0, lt=1)
    window: PositiveCount
    burn_in: Count
    seed: Count
    reviewer_error: float
    agreeing: PositiveCount
    skipped: Count
    smallest_probability: float | None = Field(gt=0, le=1)
    """Smallest probability of an audit; None without audits."""
    shift: AlarmState
    window_size: PositiveCount
    """Present number of images per window; it doubles when windows are merged."""
    windows: tuple[WindowSums, ...]
    audited: tuple[AuditRecord, ...]
    rejected: tuple[RejectedImage, ...]
    doubtful: tuple[StreamImage, ...]
    files: tuple[ReadFile, ...] = ()
    """Score files that were read, if the stream comes from files."""
    resets: tuple[Count, ...] = ()
    """Images after which the shift alarm was reset."""


# ---- The monitor


class Monitor:
    """Monitors a stream of scored images: alarms without labels, and audits with few labels.

    Results do not depend on how the stream is split into updates, nor on saving and loading in between.

    Parameters
    ----------
    policy
        The policy that the images are scored with. It needs a reference.
    alpha
        Maximum probability of a false alarm over a stream of any length. It applies separately to the shift alarm, the
        audits, and the alarm for more unknown images.
    window
        Images per window of the timeline. Windows are merged in pairs when there are more than 400.
    burn_in, seed
        Minimum number of images for a `status` without an alarm, and random seed of the shift alarm.
    reviewer_error
        Largest probability that a reviewer gives a wrong label; audits are valid up to it. With 0, labels are taken as
        the truth.
    agreeing
        Number of reviewers, 1 to 3, who gave the same label wherever the label of an audit contradicts the prediction.
        The more, the fewer labels audits need despite reviewer errors.
    """

    OPTIONS = ("alpha", "window", "burn_in", "seed", "reviewer_error", "agreeing")

    def __init__(
        self,
        policy: Policy,
        *,
        alpha: float = 0.05,
        window: int = 500,
        burn_in: int = 100,
        seed: int = 0,
        reviewer_error: float = 0.0,
        agreeing: int = 1,
    ) -> None:
        self._reference = get_reference(policy)
        if not is_number(alpha) or not 0 < alpha < 1:
            raise MonitoringError("is out of range; expected a number in (0, 1)", argument="alpha", value=alpha)
        for name, value, least in (("window", window, 1), ("burn_in", burn_in, 0), ("seed", seed, 0)):
            if not is_whole_number(value) or value < least:
                fault = f"is invalid; expected a whole number of at least {least}"
                raise MonitoringError(fault, argument=name, value=value)
        self._errors = LabelErrors.bound(reviewer_error, agreeing)
        self.policy, self.skipped = policy, 0
        self.alpha, self.window, self.burn_in, self.seed = alpha, window, burn_in, seed
        self.reviewer_error, self.agreeing = reviewer_error, agreeing
        self.files: tuple[ReadFile, ...] = ()
        """Score files that were read, if the stream comes from files."""
        self.resets: tuple[int, ...] = ()
        """Images after which the shift alarm was reset."""
        self._shift = self._make_shift_alarm()
        self._estimator = AccuracyEstimator(policy)
        self._window_size = window
        self._windows: list[WindowSums] = []
        self._smallest_probability: float | None = None
        self._audited: dict[str, AuditRecord] = {}
        self._cuts = find_cuts(self._reference, policy.threshold)
        self._rejected: dict[str, RejectedImage] = {}
        self._doubtful: list[StreamImage] = []

    @property
    def options(self) -> dict[str, Any]:
        """The options of the monitor by name."""
        return {name: getattr(self, name) for name in self.OPTIONS}

    @property
    def images(self) -> int:
        """Number of images that could be read, accepted or not."""
        return self._count("images")

    @property
    def audited(self) -> tuple[AuditRecord, ...]:
        """The accepted images that were marked for review, in the order of the stream."""
        return tuple(self._audited.values())

    @property
    def labels(self) -> dict[str, int | None]:
        """The label of each audit and each rejected image by id; None until it is reviewed."""
        return {image.id: image.label for image in self._iter_due()}

    def _iter_due(self) -> Iterator[AuditRecord | RejectedImage]:
        """Yield the images to review."""
        yield from self._audited.values()
        yield from self._rejected.values()

    # ---- Input

    def update(self, rows: object) -> MonitorStatus:
        """Add scored images, in the order of the stream, and return the status; nothing changes if they are invalid.

        Rows are an Arrow table, a pandas data frame, `Decisions`, or a list of dictionaries with the columns of scores.
        """
        self.add_images(rows)
        return self.describe()

    def add_images(self, rows: object) -> None:
        """Add scored images like `update`, without the status, which takes time for long streams."""
        scored = ScoreRows.read(rows, self.policy)
        for id_ in itertools.compress(scored.ids, scored.audit | ~scored.accept):
            if id_ in self._audited or id_ in self._rejected:
                raise MonitoringError(f"an image {id_!r} was already in the stream; pass every image once.")
        self.skipped += scored.skipped
        if scored.smallest_probability is not None:
            self._smallest_probability = min(scored.smallest_probability, self._smallest_probability or 1.0)
        if len(scored):
            self._remember(scored)
            evidence = self._shift.update(scored.confidence, scored.first_look, scored.disagreement, scored.familiarity)
            self._add_to_windows(scored, evidence)

    def _count(self, name: str) -> int:
        """Return a count, such as `images`, summed over all windows."""
        return sum(getattr(window, name) for window in self._windows)

    def _add_to_windows(self, rows: ScoreRows, evidence: Float64Array) -> None:
        """Add images, with the log of the evidence of a shift after each, to the last window and to new ones."""
        is_compared = np.isfinite(rows.disagreement)
        features = self._estimator.features(rows.confidence, rows.predicted)
        counts = [np.ones(len(rows)), rows.accept, rows.is_auditable, is_compared]
        sums = [rows.confidence, np.where(is_compared, rows.disagreement, 0.0)]
        values = np.column_stack([*counts, *sums, features, np.where(rows.accept[:, None], features, 0.0)])
        start = 0
        while start < len(rows):
            is_open = bool(self._windows) and self._windows[-1].images < self._window_size
            if not is_open and len(self._windows) == MAX_WINDOWS:
                pairs = zip(self._windows[::2], self._windows[1::2], strict=True)
                self._windows, self._window_size = [WindowSums.join(pair) for pair in pairs], 2 * self._window_size
            last = self._windows.pop() if is_open else None
            stop = min(start + self._window_size - (last.images if last else 0), len(rows))
            parts = np.vstack([last.sums, values[start:stop]]) if last else values[start:stop]
            self._windows.append(WindowSums.add_up(parts, float(evidence[stop - 1])))
            start = stop

    def _remember(self, rows: ScoreRows) -> None:
        """Keep the images to review and the most doubtful ones. Must be called before `_add_to_windows`."""
        images = self.images

        def describe(place: int) -> dict[str, Any]:
            disagreement = float(rows.disagreement[place])
            return {
                "id": rows.ids[place],
                "image": images + place + 1,
                "predicted": tuple(rows.predicted[place].tolist()),
                "confidence": float(rows.confidence[place]),
                "disagreement": None if math.isnan(disagreement) else disagreement,
            }

        positions = self._count("auditable") + np.cumsum(rows.is_auditable)
        for place in np.flatnonzero(rows.audit).tolist():
            probability, accepted = float(rows.audit_probability[place]), int(positions[place])
            self._audited[rows.ids[place]] = AuditRecord(**describe(place), accepted=accepted, probability=probability)
        parts = np.searchsorted(self._cuts, rows.confidence, side="right")
        for place in np.flatnonzero(~rows.accept).tolist():
            id_ = rows.ids[place]
            self._rejected[id_] = RejectedImage(id_, images + place + 1, int(parts[place]))
        order = np.lexsort((rows.confidence, -np.nan_to_num(rows.disagreement, nan=0.0)))
        found = [StreamImage(**describe(place)) for place in order[rows.accept[order]][:MAX_DOUBTFUL].tolist()]
        both = [*self._doubtful, *found]
        both.sort(key=lambda one: (-(one.disagreement or 0.0), one.confidence, one.image))
        self._doubtful = both[:MAX_DOUBTFUL]

    def record_file(self, name: str, *, size: int, digest: str, images: int) -> None:
        """Record a score file after its images were added."""
        self.files = (*self.files, ReadFile(name=name, size=size, digest=digest, images=images))

    def add_labels(self, labels: Labels) -> int:
        """Add reviewed labels of audits and rejected images, and return the number of new labels. Idempotent.

        Labels map the id of an image to a class index or name, 'none of these', 'bad image' or 'cannot tell'; or are
        the path of a CSV file with the columns id and label.
        """
        names, new = self.policy.class_names, {}
        for id_, given in collect_labels(labels).items():
            label, known = int(find_class(given, names, id_)), self._find_label(id_)
            if known not in (None, label):
                before, now = (name_label(one, names) for one in (known, label))
                fault = f"image {id_!r} has two labels, {before!r} before and {now!r} now"
                raise MonitoringError(fault, repair="correct the new one, or start a new monitor")
            if known is None:
                new[id_] = label
        self._set_labels(new)
        return len(new)

    def remove_labels(self, ids: Iterable[str]) -> int:
        """Remove labels, and return how many there were."""
        known = [id_ for id_ in dict.fromkeys(ids) if self._find_label(id_) is not None]
        self._set_labels(dict.fromkeys(known))
        return len(known)

    def _find_label(self, id_: str) -> int | None:
        image = self._audited.get(id_) or self._rejected.get(id_)
        if image is None:
            fault = f"image {id_!r} is not among the images to review"
            raise MonitoringError(fault, repair="pass labels of audits and of rejected images only")
        return image.label

    def _set_labels(self, labels: Mapping[str, int | None]) -> None:
        for id_, label in labels.items():
            if id_ in self._audited:
                self._audited[id_] = self._audited[id_].model_copy(update={"label": label})
            else:
                self._rejected[id_] = self._rejected[id_]._replace(label=label)

    def reset_shift(self) -> None:
        """Start the shift alarm anew from the next image, with its own `alpha`; audits and estimates stay."""
        self.resets = (*self.resets, self.images)
        self._shift = self._make_shift_alarm()

    def _make_shift_alarm(self) -> ShiftAlarm:
        # Other random numbers than before a reset, which depends on those.
        seed, is_adaptive = self.seed + len(self.resets), self.policy.schedule is not None
        return ShiftAlarm(self._reference, is_adaptive=is_adaptive, alpha=self.alpha, seed=seed)

    # ---- Output

    def status(self) -> MonitorStatus:
        """Return the status; raise an error if the stream is shorter than the burn-in and there is no alarm."""
        status = self.describe()
        if status.in_burn_in:
            fault = f"is more than the {status.images:,} images of the stream"
            repair = Repair("add more images, or pass a smaller {burn_in}", burn_in=ANY)
            raise MonitoringError(fault, argument="burn_in", value=self.burn_in, repair=repair)
        return status

    def describe(self) -> MonitorStatus:
        """Return the status, also within the burn-in."""
        windows, calibration = self._windows, self.policy.calibration
        # The last window may have few images, so the one before counts as well.
        recent = windows[-1:] if windows and windows[-1].images == self._window_size else windows[-2:]
        alarm = self._shift.state
        return MonitorStatus(
            images=self.images,
            accepted=self._count("accepted"),
            skipped=self.skipped,
            calibration_coverage=None if calibration is None else calibration.accepted / calibration.images,
            guarantee=self.policy.guarantee,
            shift=ShiftStatus(
                raised_at=None if alarm.raised_at is None else sum(self.resets[-1:]) + alarm.raised_at,
                log10_evidence=alarm.evidence / LOG_10,
                log10_limit=self._shift.limit / LOG_10,
                alpha=self.alpha,
                statistic=None if alarm.raised_at is None else self._shift.leading_statistic,
            ),
            estimate=self._estimate(windows),
            recent=self._estimate(recent),
            recent_images=sum(window.images for window in recent),
            audit=self._judge(),
            audited=len(self._audited),
            auditable=self._count("auditable"),
            unknown=self._judge_unknown(),
            burn_in=self.burn_in,
        )

    def _judge(self) -> AuditVerdict | None:
        """Return the verdict of the audits on the guaranteed risk; None without audits or without a guarantee."""
        auditable, guarantee = self._count("auditable"), self.policy.guarantee
        smallest = self._smallest_probability
        if not auditable or guarantee is None or smallest is None:
            return None
        audited = [AuditedImage(one.accepted, one.probability, one.wrong) for one in self._audited.values()]
        limits: dict[str, Any] = {"risk": guarantee.risk, "alpha": self.alpha, "smallest": smallest}
        verdict = judge_audits(auditable, audited, **limits, errors=self._errors)
        cannot_tell = sum(one.label == Answer.CANNOT_TELL for one in self._audited.values())
        pending = verdict.pending - cannot_tell
        changes = {"cannot_tell": cannot_tell, "pending": pending, "reviewer_error": self.reviewer_error}
        return verdict.model_copy(update=changes)

    def _judge_unknown(self) -> UnknownShare | None:
        """Return the share of unknown images among the reviewed ones; None without any label."""
        if all(image.label is None for image in self._iter_due()):
            return None
        audited = (audit.label for audit in self._audited.values())
        return judge_unknown(tuple(self._rejected.values()), audited, alpha=self.alpha)

    def _estimate(self, windows: Sequence[WindowSums]) -> AccuracyEstimate | None:
        if not windows:
            return None
        total = WindowSums.join(windows)
        return self._estimator.estimate(total.images, total.features, total.accepted, total.accepted_features)

    def timeline(self) -> tuple[TimelineWindow, ...]:
        """Return the windows of the stream, oldest first."""
        bounds = self.audit_path()
        ends = [image for image, _, _ in bounds]
        windows, start = [], 0
        stops = np.cumsum([sums.images for sums in self._windows])
        counts = np.zeros((len(stops), 2), dtype=np.int64)  # reviewed images, and those of none of the classes
        for image in self._iter_due():
            if image.label not in (None, Answer.CANNOT_TELL):
                counts[np.searchsorted(stops, image.image)] += (1, image.label == Answer.NONE_OF_THESE)
        for sums, (reviewed, unknown) in zip(self._windows, counts.tolist(), strict=True):
            known = bisect.bisect_right(ends, start + sums.images)
            _, low, high = bounds[known - 1] if known else (None, None, None)
            window = TimelineWindow(
                start=start,
                images=sums.images,
                accepted=sums.accepted,
                confidence=sums.confidence / sums.images,
                disagreement=sums.disagreement / sums.compared if sums.compared else None,
                estimate=self._estimate([sums]),
                log10_evidence=sums.evidence / LOG_10,
                audit_low=low,
                audit_high=high,
                reviewed=reviewed,
                none_of_these=unknown,
            )
            windows.append(window)
            start += sums.images
        return tuple(windows)

    def audit_path(self) -> list[tuple[float, float, float]]:
        """Return the bounds of the audited risk along the stream: number of images, lower and upper bound.

        Positions of accepted images in the stream are exact to one window.
        """
        verdict = self._judge()
        if verdict is None:
            return []
        counts = [(0, 0), *((window.auditable, window.images) for window in self._windows)]
        accepted, images = np.cumsum(counts, axis=0).T
        moments = np.interp([moment for moment, _, _ in verdict.path], accepted, images).tolist()
        return [(image, low, high) for image, (_, low, high) in zip(moments, verdict.path, strict=True)]

    def worst_images(self) -> tuple[StreamImage, ...]:
        """Return the wrong audits, latest first, then the most doubtful accepted images."""
        wrong = [audit for audit in reversed(self._audited.values()) if audit.wrong][:MAX_WRONG]
        shown = {audit.id for audit in wrong}
        return (*wrong, *(image for image in self._doubtful if image.id not in shown))

    # ---- Files

    def save(self, path: str | Path) -> None:
        """Write the state of the monitor as a JSON file, atomically; `load` resumes from it."""
        state = MonitorState(
            policy=self.policy.checksum,
            **self.options,
            skipped=self.skipped,
            smallest_probability=self._smallest_probability,
            shift=self._shift.state,
            window_size=self._window_size,
            windows=tuple(self._windows),
            audited=self.audited,
            rejected=tuple(self._rejected.values()),
            doubtful=tuple(self._doubtful),
            files=self.files,
            resets=self.resets,
        )
        write_text(path, f"{state.model_dump_json()}\n")

    @classmethod
    def load(cls, path: str | Path, policy: Policy) -> Self:
        """Load a monitor from a file; `policy` must be the one it was created with."""
        try:
            state = MonitorState.model_validate_json(read_regular_file(path, MAX_STATE_BYTES))
            if state.policy != policy.checksum:
                fault = f"the state {str(path)!r} belongs to another policy (checksum {state.policy[:8]})"
                raise MonitoringError(fault, repair="pass the policy it was created with, or start a new monitor")
            monitor = cls(policy, **{name: getattr(state, name) for name in cls.OPTIONS})
            monitor.resets = state.resets
            monitor._shift = monitor._make_shift_alarm()
            monitor._shift.resume(state.shift)
        except OSError as error:
            raise MonitoringError(f"cannot read the state {str(path)!r}: {error.strerror}; check the path.") from None
        except (ValueError, KeyError) as error:  # not JSON, not a state, or one with other bins than the policy
            reason = describe_invalid(error) if isinstance(error, ValidationError) else repr(error)
            fault = f"invalid monitor state {str(path)!r}, {reason}"
            raise MonitoringError(fault, repair="restore the file, or start a new monitor") from None
        monitor.skipped, monitor.files = state.skipped, state.files
        monitor._smallest_probability = state.smallest_probability
        monitor._window_size, monitor._windows = state.window_size, list(state.windows)
        monitor._audited = {audit.id: audit for audit in state.audited}
        monitor._rejected = {image.id: image for image in state.rejected}
        monitor._doubtful = list(state.doubtful)
        return monitor


def write_text(path: str | Path, text: str) -> None:
    """Write a text file atomically."""
    try:
        write_bytes_atomically(Path(path), text.encode())
    except OSError as error:
        raise MonitoringError(f"cannot write {str(path)!r}: {error.strerror}; choose another path.") from None
