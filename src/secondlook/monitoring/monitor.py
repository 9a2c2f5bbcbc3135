"""`Monitor`: whether the guarantee of a policy still holds on a stream of scored images, with few labels or none."""

import bisect
import itertools
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import ValidationError

from secondlook.arrays import is_number, is_whole_number
from secondlook.errors import MonitoringError
from secondlook.files import describe_invalid, write_bytes_atomically
from secondlook.monitoring.alarm import ShiftAlarm, StatisticState
from secondlook.monitoring.audit import AuditedImage, AuditVerdict, judge_audits
from secondlook.monitoring.estimates import AccuracyEstimate, AccuracyEstimator
from secondlook.monitoring.labels import Labels, collect_labels, find_class
from secondlook.monitoring.score_rows import ScoreRows
from secondlook.monitoring.state import AuditRecord, DoubtfulImage, MonitorState, ReadFile, StreamImage
from secondlook.monitoring.status import MonitorStatus, ShiftStatus
from secondlook.monitoring.timeline import Timeline, TimelineWindow, WindowRows, WindowSums, add_up
from secondlook.policies import Policy

MAX_DOUBTFUL = 24
"""Number of accepted images with the largest doubt that are remembered."""
MAX_WRONG = 12
"""Number of audits found wrong that are among the worst images."""
LOG_10 = math.log(10)


class Monitor:
    """Watches a stream of scored images: alarms without labels, and audits with few.

    What it tells does not depend on how the stream is cut into updates, and a monitor that was saved and loaded goes on
    as if it had never stopped.

    Parameters
    ----------
    policy
        The policy that the images are scored with. It needs a reference, which policies of earlier versions lack.
    alpha
        Probability of a false alarm over a stream of any length, at most: of the shift alarm, and of the audits.
    window
        Images per window of the timeline. Windows are merged in pairs when there are more than 400.
    burn_in
        Number of images below which `status` does not say that all is well.
    seed
        Random seed of the shift alarm, which breaks ties at random.
    """

    def __init__(
        self, policy: Policy, *, alpha: float = 0.05, window: int = 500, burn_in: int = 100, seed: int = 0
    ) -> None:
        if policy.reference is None:
            raise MonitoringError(
                "the policy does not tell how its calibration images looked, as those of earlier versions do not; "
                "calibrate again."
            )
        _check_options(alpha, window, burn_in, seed)
        self.policy = policy
        self.alpha, self.window, self.burn_in, self.seed = alpha, window, burn_in, seed
        self.skipped = 0
        self.files: tuple[ReadFile, ...] = ()
        """Files of scores that were read, if the stream comes from files."""
        self._shift = ShiftAlarm(policy.reference, is_adaptive=policy.schedule is not None, alpha=alpha, seed=seed)
        self._estimator = AccuracyEstimator(policy)
        self._timeline = Timeline(window)
        self._smallest_probability: float | None = None
        self._audited: dict[str, AuditRecord] = {}
        self._doubtful: list[DoubtfulImage] = []

    @property
    def images(self) -> int:
        """Number of images that could be read, accepted or not."""
        return sum(window.images for window in self._timeline.windows)

    @property
    def audited(self) -> tuple[AuditRecord, ...]:
        """The accepted images that were marked for review, in the order of the stream."""
        return tuple(self._audited.values())

    def update(self, rows: object) -> MonitorStatus:
        """Add scored images, in the order of the stream, and return the status; nothing changes if they are invalid.

        Parameters
        ----------
        rows
            An Arrow table, a pandas data frame, `Decisions`, or a list of dictionaries with the columns of scores.
        """
        scored = ScoreRows.read(rows, self.policy)
        for id_ in itertools.compress(scored.ids, scored.audit):
            if id_ in self._audited:
                raise MonitoringError(
                    f"an image {id_!r} was already in the stream; pass every image once, and score different images "
                    "under different ids."
                )
        self.skipped += scored.skipped
        if scored.smallest_probability is not None:
            self._smallest_probability = min(scored.smallest_probability, self._smallest_probability or 1.0)
        if len(scored):
            self._add(scored)
        return self.describe()

    def add_labels(self, labels: Labels) -> int:
        """Add what people found when they reviewed audits, and return how many labels are new.

        Parameters
        ----------
        labels
            The class of each image by its id: an index or a name. Labels may be given again.
        """
        found = {id_: find_class(label, self.policy.class_names, id_) for id_, label in collect_labels(labels).items()}
        reviewed = {id_: self._review(id_, label) for id_, label in found.items()}
        new = sum(self._audited[id_].label is None for id_ in reviewed)
        self._audited |= reviewed
        return new

    def remove_labels(self, ids: Iterable[str]) -> int:
        """Take labels of audits back, as if they had never been added, and return how many there were."""
        wanted = list(ids)
        for id_ in wanted:
            self._find_audit(id_)
        known = [id_ for id_ in dict.fromkeys(wanted) if self._audited[id_].label is not None]
        self._audited |= {id_: self._audited[id_].model_copy(update={"label": None}) for id_ in known}
        return len(known)

    def status(self) -> MonitorStatus:
        """Return what is known; raise an error if the stream is shorter than the burn-in and there is no alarm."""
        status = self.describe()
        if status.in_burn_in:
            raise MonitoringError(
                f"the stream has {status.images:,} images, fewer than burn_in={self.burn_in}: too few to say that all "
                "is well; add more images, or pass a smaller burn_in=."
            )
        return status

    def describe(self) -> MonitorStatus:
        """Return what is known, also within the burn-in."""
        windows, calibration = self._timeline.windows, self.policy.calibration
        # The last window may have few images, so the one before counts as well.
        recent = windows[-1:] if windows and windows[-1].images == self._timeline.size else windows[-2:]
        return MonitorStatus(
            images=self.images,
            accepted=self._count("accepted"),
            skipped=self.skipped,
            calibration_coverage=None if calibration is None else calibration.accepted / calibration.images,
            guarantee=self.policy.rule.guarantee,
            shift=self._describe_shift(),
            estimate=self._estimate(windows),
            recent=self._estimate(recent),
            recent_images=sum(window.images for window in recent),
            audit=self._judge(),
            audited=len(self._audited),
            auditable=self._count("auditable"),
            burn_in=self.burn_in,
        )

    def timeline(self) -> tuple[TimelineWindow, ...]:
        """Return the windows of the stream, oldest first."""
        bounds = self.audit_path()
        ends = [image for image, _, _ in bounds]
        windows, start = [], 0
        for sums in self._timeline.windows:
            known = bisect.bisect_right(ends, start + sums.images)
            _, low, high = bounds[known - 1] if known else (None, None, None)
            windows.append(
                TimelineWindow(
                    start=start,
                    images=sums.images,
                    accepted=sums.accepted,
                    confidence=sums.confidence / sums.images,
                    disagreement=sums.disagreement / sums.compared if sums.compared else None,
                    estimate=self._estimate([sums]),
                    log10_evidence=sums.evidence / LOG_10,
                    audit_low=low,
                    audit_high=high,
                )
            )
            start += sums.images
        return tuple(windows)

    def audit_path(self) -> list[tuple[float, float, float]]:
        """Return the bounds of the audited risk along the stream: number of images, lower and upper bound.

        Where an accepted image is in the stream is known to within its window.
        """
        verdict = self._judge()
        if verdict is None:
            return []
        windows = self._timeline.windows
        accepted, images = (
            np.cumsum([0, *(getattr(window, name) for window in windows)]) for name in ("auditable", "images")
        )
        moments = np.interp([moment[0] for moment in verdict.path], accepted, images).tolist()
        return [(image, low, high) for image, (_, low, high) in zip(moments, verdict.path, strict=True)]

    def worst_images(self) -> tuple[StreamImage, ...]:
        """Return the audits that were found wrong, latest first, then the accepted images with the largest doubt."""
        wrong = [audit for audit in reversed(self._audited.values()) if audit.wrong][:MAX_WRONG]
        shown = {audit.id for audit in wrong}
        return (*wrong, *(image for image in self._doubtful if image.id not in shown))

    def save(self, path: str | Path) -> None:
        """Write the state of the monitor as a JSON file, atomically; `load` goes on from there."""
        state = MonitorState(
            policy=self.policy.checksum,
            alpha=self.alpha,
            window=self.window,
            burn_in=self.burn_in,
            seed=self.seed,
            skipped=self.skipped,
            smallest_probability=self._smallest_probability,
            shift=self._shift.state,
            window_size=self._timeline.size,
            windows=tuple(self._timeline.windows),
            audited=self.audited,
            doubtful=tuple(self._doubtful),
            files=self.files,
        )
        try:
            write_bytes_atomically(Path(path), state.model_dump_json().encode() + b"\n")
        except OSError as error:
            raise MonitoringError(
                f"cannot write the state of the monitor to {str(path)!r}: {error.strerror}; choose another path."
            ) from None

    @classmethod
    def load(cls, path: str | Path, policy: Policy) -> Self:
        """Return the monitor that was saved in a file; `policy` must be the one that it was made with."""
        try:
            state = MonitorState.model_validate_json(Path(path).read_bytes())
        except OSError as error:
            raise MonitoringError(
                f"cannot read the state of the monitor {str(path)!r}: {error.strerror}; check the path."
            ) from None
        except ValidationError as error:
            raise MonitoringError(
                f"invalid state of a monitor {str(path)!r}, {describe_invalid(error)}; restore the file, or start a "
                "new monitor."
            ) from None
        if state.policy != policy.checksum:
            raise MonitoringError(
                f"the state {str(path)!r} belongs to another policy (checksum {state.policy[:8]}, got "
                f"{policy.checksum[:8]}); pass the policy that it was made with, or start a new monitor."
            )
        monitor = cls(policy, alpha=state.alpha, window=state.window, burn_in=state.burn_in, seed=state.seed)
        assert policy.reference is not None, "checked when the monitor was made"
        monitor.skipped, monitor.files = state.skipped, state.files
        monitor._shift = ShiftAlarm.resume(
            policy.reference,
            state.shift,
            is_adaptive=policy.schedule is not None,
            alpha=state.alpha,
            seed=state.seed,
        )
        monitor._smallest_probability = state.smallest_probability
        monitor._timeline = Timeline(state.window_size, state.windows)
        monitor._audited = {audit.id: audit for audit in state.audited}
        monitor._doubtful = list(state.doubtful)
        return monitor

    def check_options(self, **options: float | None) -> None:
        """Raise an error if an option that is given, not None, is not that of this monitor."""
        for name, value in options.items():
            if value is not None and value != getattr(self, name):
                raise MonitoringError(
                    f"the monitor was started with {name}={getattr(self, name):g}, got {name}={value:g}; omit it, or "
                    "start a new monitor in another folder."
                )

    def _add(self, rows: ScoreRows) -> None:
        images, auditable = self.images, self._count("auditable")
        evidence = self._shift.update(rows.confidence, rows.first_look, rows.disagreement)
        is_auditable = np.isfinite(rows.audit_probability)
        self._timeline.add(
            WindowRows(
                confidence=rows.confidence,
                disagreement=rows.disagreement,
                accept=rows.accept,
                auditable=is_auditable,
                features=self._estimator.features(rows.confidence, rows.predicted),
                evidence=evidence,
            )
        )
        positions = auditable + np.cumsum(is_auditable)
        for place in np.flatnonzero(rows.audit).tolist():
            audit = AuditRecord(
                **_describe_image(rows, place, images),
                accepted=int(positions[place]),
                probability=float(rows.audit_probability[place]),
            )
            self._audited[audit.id] = audit
        self._remember_doubtful(rows, images)

    def _remember_doubtful(self, rows: ScoreRows, images: int) -> None:
        doubt = np.nan_to_num(rows.disagreement, nan=0.0)
        order = np.lexsort((np.arange(len(rows)), rows.confidence, -doubt))
        worst = order[rows.accept[order]][:MAX_DOUBTFUL]
        found = [DoubtfulImage(**_describe_image(rows, place, images)) for place in worst.tolist()]
        self._doubtful = sorted([*self._doubtful, *found], key=lambda image: image.rank)[:MAX_DOUBTFUL]

    def _find_audit(self, id_: str) -> AuditRecord:
        audit = self._audited.get(id_)
        if audit is None:
            raise MonitoringError(
                f"there is no audited image {id_!r} in the stream; pass labels of images that were marked for review, "
                "after the rows with these images."
            )
        return audit

    def _review(self, id_: str, label: int) -> AuditRecord:
        audit = self._find_audit(id_)
        if audit.label not in (None, label):
            raise MonitoringError(
                f"image {id_!r} has two labels, {self._name(audit.label or 0)} before and {self._name(label)} now; "
                "correct the new one, or start a new monitor if the first was wrong."
            )
        return audit.model_copy(update={"label": label})

    def _name(self, label: int) -> str:
        names = self.policy.class_names
        return str(label) if names is None else repr(names[label])

    def _count(self, name: str) -> int:
        return sum(getattr(window, name) for window in self._timeline.windows)

    def _judge(self) -> AuditVerdict | None:
        """Return what the audits tell about the guaranteed risk; None without audits, or without a guarantee."""
        auditable, guarantee = self._count("auditable"), self.policy.rule.guarantee
        if not auditable or guarantee is None:
            return None
        audited = [AuditedImage(one.accepted, one.probability, one.wrong) for one in self._audited.values()]
        return judge_audits(
            auditable, audited, risk=guarantee.risk, alpha=self.alpha, smallest=self._smallest_probability
        )

    def _estimate(self, windows: Sequence[WindowSums]) -> AccuracyEstimate | None:
        if not windows:
            return None
        sums, accepted_sums = _sum_features(windows)
        counts = sum(one.images for one in windows), sum(one.accepted for one in windows)
        return self._estimator.estimate(counts[0], sums, counts[1], accepted_sums)

    def _describe_shift(self) -> ShiftStatus:
        return ShiftStatus(
            raised_at=self._shift.raised_at,
            log10_evidence=self._shift.evidence / LOG_10,
            log10_limit=self._shift.limit / LOG_10,
            alpha=self.alpha,
            statistic=self._find_leading_statistic() if self._shift.raised_at else None,
        )

    def _find_leading_statistic(self) -> str:
        """Return the statistic whose bets have won most."""

        def log_largest(state: StatisticState) -> float:
            bets = zip(state.capital, state.scale, strict=True)
            return max((math.log2(capital) + scale for capital, scale in bets if capital), default=-math.inf)

        statistics = self._shift.state.statistics
        return max(statistics, key=lambda name: log_largest(statistics[name]))


def _check_options(alpha: object, window: object, burn_in: object, seed: object) -> None:
    if not is_number(alpha) or not 0 < alpha < 1:
        raise MonitoringError(f"alpha={alpha!r} is out of range; expected a number between 0 and 1, such as 0.05.")
    for name, value, least in (("window", window, 1), ("burn_in", burn_in, 0), ("seed", seed, 0)):
        if not is_whole_number(value) or value < least:
            raise MonitoringError(f"{name}={value!r} is out of range; expected a whole number from {least} up.")


def _describe_image(rows: ScoreRows, place: int, images: int) -> dict[str, Any]:
    disagreement = float(rows.disagreement[place])
    return {
        "id": rows.ids[place],
        "image": images + place + 1,
        "predicted": tuple(rows.predicted[place].tolist()),
        "confidence": float(rows.confidence[place]),
        "disagreement": None if math.isnan(disagreement) else disagreement,
    }


def _sum_features(windows: Iterable[WindowSums]) -> tuple[Any, Any]:
    """Return the sums of all features over windows, of all images and of the accepted ones. float64 [F] each"""
    totals: list[tuple[float, ...]] = []
    for name in ("features", "accepted_features"):
        vectors = [getattr(window, name) for window in windows]
        total = vectors[0]
        for vector in vectors[1:]:
            total = add_up(total, vector)
        totals.append(total)
    return np.array(totals[0]), np.array(totals[1])
