"""What monitoring knows about a stream: alarms, estimates and audits, in numbers and in a sentence."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from secondlook.monitoring.audit import AuditVerdict
from secondlook.monitoring.estimates import AccuracyEstimate
from secondlook.policies import Guarantee
from secondlook.tables import format_html

ESTIMATE = "estimate, not guarantee"
"""Follows every number that was estimated without labels."""


@dataclass(frozen=True)
class ShiftStatus:
    """Evidence that the images of a stream differ from the calibration images."""

    raised_at: int | None
    """Number of images after which the evidence reached the limit for the first time; None if it never did."""
    log10_evidence: float
    """Evidence after the last image, as a power of ten."""
    log10_limit: float
    """Evidence at which the alarm is raised; images like those of the calibration rarely ever reach it."""
    alpha: float
    """Probability of a false alarm, over a stream of any length, at most."""
    statistic: str | None = None
    """What gives most of the evidence: the confidence, the first look or the disagreement."""

    @property
    def raised(self) -> bool:
        """Whether the alarm was raised."""
        return self.raised_at is not None


@dataclass(frozen=True)
class MonitorStatus:
    """What is known about a stream of scored images; `str` puts it in words."""

    images: int
    """Images that could be read, accepted or not."""
    accepted: int
    skipped: int
    """Images that could not be read."""
    calibration_coverage: float | None
    """Share of the calibration images that were accepted, for comparison."""
    guarantee: Guarantee | None
    """What the policy guarantees about accepted images."""
    shift: ShiftStatus
    estimate: AccuracyEstimate | None
    """Accuracy and risk of the whole stream, without labels: an estimate, not a guarantee."""
    recent: AccuracyEstimate | None
    """The same of the latest images."""
    recent_images: int
    audit: AuditVerdict | None
    """What reviewed audits tell about the risk; None if nothing was audited, or nothing is guaranteed."""
    audited: int
    """Accepted images that were marked for review."""
    auditable: int
    """Accepted images that could have been marked: those scored with audits."""
    burn_in: int

    @property
    def coverage(self) -> float:
        """Share of the images that were accepted."""
        return self.accepted / self.images if self.images else 0.0

    @property
    def alarm(self) -> bool:
        """Whether something is wrong: the images have changed, or the guarantee is broken."""
        return self.shift.raised or (self.audit is not None and self.audit.verdict == "broken")

    @property
    def in_burn_in(self) -> bool:
        """Whether there are too few images to say that nothing is wrong."""
        return self.images < self.burn_in and not self.alarm

    @property
    def verdict(self) -> str:
        """Whether the guarantee still holds, in a sentence."""
        return _describe_verdict(self)

    @property
    def next_step(self) -> str:
        """What to do next, in a sentence."""
        return _describe_next_step(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the status as JSON values."""
        audit = None if self.audit is None else _describe_audit(self.audit)
        return {
            "alarm": self.alarm,
            "verdict": self.verdict,
            "next_step": self.next_step,
            "images": self.images,
            "accepted": self.accepted,
            "skipped": self.skipped,
            "coverage": self.coverage,
            "calibration_coverage": self.calibration_coverage,
            "guarantee": None if self.guarantee is None else asdict(self.guarantee),
            "shift": {"raised": self.shift.raised, **asdict(self.shift)},
            "estimate": None if self.estimate is None else {**asdict(self.estimate), "meaning": ESTIMATE},
            "recent": (
                None
                if self.recent is None
                else {"images": self.recent_images, **asdict(self.recent), "meaning": ESTIMATE}
            ),
            "audit": audit,
            "audited": self.audited,
            "auditable": self.auditable,
        }

    def __str__(self) -> str:
        return "\n".join([self.verdict, self.next_step, "", *self._list_numbers()])

    def _repr_html_(self) -> str:
        return format_html([self.verdict, self.next_step, "\n".join(self._list_numbers())])

    def _list_numbers(self) -> list[str]:
        calibrated = self.calibration_coverage
        beside = "" if calibrated is None else f" (calibration: {format_rate(calibrated)})"
        skipped = f", {self.skipped:,} skipped" if self.skipped else ""
        lines = [
            f"images: {self.images:,}, {self.accepted:,} accepted{skipped}",
            f"coverage: {format_rate(self.coverage)}{beside}",
            f"shift alarm: {describe_shift(self.shift)}",
        ]
        if self.recent is not None:
            scope = "" if self.recent.includes_shifts else "; the interval is of sampling only"
            lines += [
                f"{what} of the latest {self.recent_images:,} images: {text} ({ESTIMATE}{scope})"
                for what, text in (
                    ("accuracy", _format_interval(self.recent, "accuracy")),
                    ("error rate among accepted", _format_interval(self.recent, "risk")),
                )
                if text
            ]
        return [*lines, f"audits: {describe_audits(self)}"]


def describe_shift(shift: ShiftStatus) -> str:
    """Return the state of the shift alarm in words."""
    limit = f"limit {format_evidence(shift.log10_limit)}"
    if shift.raised_at is None:
        return f"not raised (evidence {format_evidence(shift.log10_evidence)}, {limit})"
    driver = f", mostly from the {shift.statistic.replace('_', ' ')}" if shift.statistic else ""
    return (
        f"raised after {shift.raised_at:,} images{driver} (evidence now {format_evidence(shift.log10_evidence)}, "
        f"{limit})"
    )


def describe_audits(status: MonitorStatus) -> str:
    """Return the state of the audits in words."""
    audit = status.audit
    if status.auditable == 0:
        return "none; score with audits to check the guarantee with few labels"
    if audit is None:
        return f"{status.audited:,} marked for review, but nothing is guaranteed that they could confirm"
    more = "" if audit.more_labels is None else f", about {audit.more_labels:,} more labels"
    return (
        f"{audit.verdict}{more}; error rate among accepted {format_rate(audit.low)} to {format_rate(audit.high)}; "
        f"{audit.labels:,} reviewed, {audit.pending:,} to review"
    )


def format_rate(share: float) -> str:
    """Return a share in percent with three significant digits: '2 %', '0.512 %'."""
    return f"{100 * share:.3g} %"


def _format_interval(estimate: AccuracyEstimate, name: str) -> str:
    """Return an estimate and its interval, such as '91.2 %, 90.1 % to 92.4 %'; '' if there is none."""
    value, low, high = (getattr(estimate, f"{name}{end}") for end in ("", "_low", "_high"))
    if value is None:
        return ""
    return format_rate(value) + ("" if low is None else f", {format_rate(low)} to {format_rate(high)}")


def format_evidence(log10: float) -> str:
    """Return evidence as a number, or as a power of ten if it is large or small: '20', '0.31', '1e+12'."""
    return f"{10**log10:.3g}" if -2 <= log10 < 5 else f"1e{math.floor(log10):+d}"


def _describe_verdict(status: MonitorStatus) -> str:
    guaranteed = "" if status.guarantee is None else f"at most {format_rate(status.guarantee.risk)}"
    audit, shift = status.audit, status.shift
    if audit is not None and audit.verdict == "broken":
        rate = "" if audit.estimate is None else f" (about {format_rate(audit.estimate)} so far)"
        return (
            f"The guarantee is broken: reviewed audits show more errors among accepted images{rate} than guaranteed "
            f"({guaranteed})."
        )
    changed = (
        "The images have changed: they do not look like the calibration images any more (alarm after "
        f"{shift.raised_at or 0:,} images)"
    )
    if shift.raised and audit is not None and audit.verdict == "holds":
        return f"{changed}, but audits show that the guarantee still holds ({guaranteed} errors among accepted images)."
    if shift.raised:
        risk = None if status.recent is None else status.recent.risk
        known = "" if risk is None else f" ({format_rate(risk)} errors among accepted, {ESTIMATE})"
        return f"{changed}, so {'the guarantee may not hold' if guaranteed else 'decisions may be worse'}{known}."
    if status.in_burn_in:
        return f"Too few images: {status.images:,} of the {status.burn_in:,} of the burn-in."
    if audit is not None and audit.verdict == "holds":
        return (
            f"The guarantee holds: reviewed audits show {guaranteed} errors among accepted images, and the images look "
            "like the calibration images."
        )
    if status.guarantee is None:
        return "No sign of a change: the images look like the calibration images. The policy guarantees nothing."
    return (
        f"No sign of a change: the images look like the calibration images, for which {guaranteed} errors among "
        "accepted were guaranteed."
    )


def _describe_next_step(status: MonitorStatus) -> str:
    audit, shift = status.audit, status.shift
    if audit is not None and audit.verdict == "broken":
        return "Do not rely on accepted predictions; calibrate again with the reviewed images."
    if audit is not None and audit.verdict == "holds":
        again = "Calibrate again with the reviewed images soon" if shift.raised else "Nothing to do"
        return f"{again}; keep reviewing audits, so that a later change is noticed."
    if audit is not None and (audit.pending or audit.more_labels):
        purpose = "learn whether the guarantee still holds" if shift.raised else "confirm the guarantee"
        otherwise = ", or calibrate again with reviewed images" if shift.raised else ""
        return f"Review {_describe_missing(audit)} to {purpose}{otherwise}."
    if shift.raised:
        return "Review some accepted images, and calibrate again with the reviewed ones."
    if status.in_burn_in:
        return f"Wait for {status.burn_in - status.images:,} more images."
    if status.auditable == 0 and status.guarantee is not None:
        return "Nothing to do; score with audits to confirm the guarantee with few labels."
    return "Nothing to do."


def _describe_missing(audit: AuditVerdict) -> str:
    """Return how many audits to review, in words."""
    if audit.more_labels is None:
        return f"the {audit.pending:,} waiting audits"
    return f"about {audit.more_labels:,} more audits ({audit.pending:,} waiting)"


def _describe_audit(audit: AuditVerdict) -> dict[str, Any]:
    return audit.model_dump(mode="json", exclude={"path"})
