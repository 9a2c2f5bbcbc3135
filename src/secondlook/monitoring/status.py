"""Status of a monitored stream: alarms, estimates and audits, as numbers and as text."""

from dataclasses import asdict, dataclass
from typing import Any

from secondlook.monitoring.audit import AuditVerdict
from secondlook.monitoring.estimates import AccuracyEstimate
from secondlook.monitoring.unknown import UnknownShare
from secondlook.policies import Guarantee
from secondlook.tables import format_html, format_power_of_ten, format_rate


@dataclass(frozen=True)
class ShiftStatus:
    """Evidence that the images of a stream differ from the calibration images; `str` is a summary."""

    raised_at: int | None
    """Number of images after which the evidence reached the limit for the first time; None if it never did."""
    log10_evidence: float
    """Evidence after the last image, as a power of ten."""
    log10_limit: float
    """Evidence at which the alarm is raised, as a power of ten."""
    alpha: float
    """Maximum probability of a false alarm over a stream of any length."""
    statistic: str | None = None
    """Statistic with the most evidence, such as `confidence`; None without an alarm."""

    @property
    def raised(self) -> bool:
        """Whether the alarm was raised."""
        return self.raised_at is not None

    def __str__(self) -> str:
        evidence, limit = format_power_of_ten(self.log10_evidence), format_power_of_ten(self.log10_limit)
        if self.raised_at is None:
            return f"not raised (evidence {evidence}, limit {limit})"
        driver = f", mostly from the {self.statistic.replace('_', ' ')}" if self.statistic else ""
        return f"raised after {self.raised_at:,} images{driver} (evidence now {evidence}, limit {limit})"


@dataclass(frozen=True)
class TimelineWindow:
    """A window of the stream: counts, means and estimates."""

    start: int
    """Number of images before it."""
    images: int
    accepted: int
    confidence: float
    """Mean over the images."""
    disagreement: float | None
    """Mean over the images with more than one look; None if there are none."""
    estimate: AccuracyEstimate | None
    log10_evidence: float
    """Evidence of a shift after its last image, as a power of ten."""
    audit_low: float | None
    audit_high: float | None
    """Bounds of the risk from the audits up to its end; None without any."""
    reviewed: int
    """Reviewed images: rejected ones and audits."""
    none_of_these: int
    """Images of none of the classes among these."""

    @property
    def coverage(self) -> float:
        """Share of the images that were accepted."""
        return self.accepted / self.images

    def to_dict(self) -> dict[str, Any]:
        """Return the window as JSON values."""
        names = ("start", "images", "accepted", "coverage", "confidence", "disagreement", "log10_evidence")
        ends = [f"{name}{end}" for name in ("accuracy", "risk") for end in ("", "_low", "_high")]
        return {
            **{name: getattr(self, name) for name in names},
            **{f"estimated_{end}": None if self.estimate is None else getattr(self.estimate, end) for end in ends},
            "audited_risk_low": self.audit_low,
            "audited_risk_high": self.audit_high,
            "reviewed": self.reviewed,
            "none_of_these": self.none_of_these,
        }


@dataclass(frozen=True)
class MonitorStatus:
    """Status of a stream of scored images; `str` is a summary."""

    images: int
    """Images that could be read, accepted or not."""
    accepted: int
    skipped: int
    """Images that could not be read."""
    calibration_coverage: float | None
    """Share of the calibration images that were accepted, for comparison."""
    guarantee: Guarantee | None
    """Guarantee of the policy."""
    shift: ShiftStatus
    estimate: AccuracyEstimate | None
    """Accuracy and risk of the whole stream, without labels: an estimate, not a guarantee."""
    recent: AccuracyEstimate | None
    """The same for the latest images."""
    recent_images: int
    audit: AuditVerdict | None
    """Verdict of the audits on the risk; None without audits or without a guarantee."""
    audited: int
    """Accepted images that were marked for review."""
    auditable: int
    """Accepted images that could have been marked: those scored with audits."""
    unknown: UnknownShare | None
    """Share of unknown images among the reviewed ones; None without any label."""
    burn_in: int

    @property
    def coverage(self) -> float:
        """Share of the images that were accepted."""
        return self.accepted / self.images if self.images else 0.0

    @property
    def alarm(self) -> bool:
        """Whether something is wrong: images have changed, more are unknown, or the guarantee is broken."""
        return self.shift.raised or self._is_broken or self._growth != ""

    @property
    def _is_broken(self) -> bool:
        return self.audit is not None and self.audit.verdict == "broken"

    @property
    def _growth(self) -> str:
        return "" if self.unknown is None else self.unknown.growth

    @property
    def in_burn_in(self) -> bool:
        """Whether the stream is shorter than the burn-in and has no alarm."""
        return self.images < self.burn_in and not self.alarm

    @property
    def verdict(self) -> str:
        """Whether the guarantee still holds, and whether unknown images became more frequent, in a sentence or two."""
        if not self._growth:
            return self._judgement
        # Without another alarm, the judgement says that nothing has changed.
        return f"{self._judgement} {self._growth}" if self.shift.raised or self._is_broken else self._growth

    @property
    def _judgement(self) -> str:
        guaranteed = "" if self.guarantee is None else f"at most {format_rate(self.guarantee.risk)}"
        audited = None if self.audit is None else self.audit.verdict
        if self.audit is not None and audited == "broken":
            rate = "" if self.audit.estimate is None else f" (about {format_rate(self.audit.estimate)} so far)"
            excess = f"more errors among accepted images{rate} than guaranteed ({guaranteed})"
            return f"The guarantee is broken: reviewed audits show {excess}."
        if self.shift.raised_at is not None:
            since = f"(alarm after {self.shift.raised_at:,} images)"
            changed = f"The images have changed: they no longer look like the calibration images {since}"
            if audited == "holds":
                held = f"the guarantee still holds ({guaranteed} errors among accepted images)"
                return f"{changed}, but audits show that {held}."
            risk = None if self.recent is None else self.recent.risk
            known = "" if risk is None else f" ({format_rate(risk)} errors among accepted, {AccuracyEstimate.MEANING})"
            return f"{changed}, so {'the guarantee may not hold' if guaranteed else 'decisions may be worse'}{known}."
        if self.in_burn_in:
            return f"Too few images: {self.images:,} of the {self.burn_in:,} of the burn-in."
        if audited == "holds":
            held = f"reviewed audits show {guaranteed} errors among accepted images"
            return f"The guarantee holds: {held}, and the images look like the calibration images."
        unchanged = "No sign of a change: the images look like the calibration images"
        if not guaranteed:
            return f"{unchanged}. The policy has no guarantee."
        return f"{unchanged}, for which {guaranteed} errors among accepted were guaranteed."

    @property
    def next_step(self) -> str:
        """Recommended next step, in a sentence or two."""
        if not self._growth:
            return self._action
        look = "Inspect the images of none of the classes: add a class, or calibrate with them as unknown images."
        return f"{self._action} {look}" if self.shift.raised or self._is_broken else look

    @property
    def _action(self) -> str:
        raised, audit = self.shift.raised, self.audit
        if audit is not None and audit.verdict == "broken":
            return "Do not rely on accepted predictions; calibrate again with the reviewed images."
        if audit is not None and audit.verdict == "holds":
            again = "Calibrate again with the reviewed images soon" if raised else "Nothing to do"
            return f"{again}; keep reviewing audits to notice later changes."
        if audit is not None and (audit.pending or audit.more_labels):
            missing = f"the {audit.pending:,} pending audits"
            if audit.more_labels is not None:
                missing = f"about {audit.more_labels:,} more audits ({audit.pending:,} pending)"
            purpose = "check whether the guarantee still holds" if raised else "confirm the guarantee"
            return f"Review {missing} to {purpose}{', or calibrate again with reviewed images' if raised else ''}."
        if raised:
            return "Review some accepted images, and calibrate again with the reviewed ones."
        if self.in_burn_in:
            return f"Wait for {self.burn_in - self.images:,} more images."
        if self.auditable == 0 and self.guarantee is not None:
            return "Nothing to do; score with audits to confirm the guarantee with few labels."
        return "Nothing to do."

    def to_dict(self) -> dict[str, Any]:
        """Return the status as JSON values."""
        names = ("alarm", "verdict", "next_step", "images", "accepted", "skipped", "coverage", "calibration_coverage")
        return {
            **{name: getattr(self, name) for name in names},
            "guarantee": None if self.guarantee is None else self.guarantee.model_dump(),
            "shift": {"raised": self.shift.raised, **asdict(self.shift)},
            "estimate": None if self.estimate is None else self.estimate.to_dict(),
            "recent": None if self.recent is None else {"images": self.recent_images, **self.recent.to_dict()},
            "audit": None if self.audit is None else self.audit.model_dump(mode="json", exclude={"path"}),
            "audited": self.audited,
            "auditable": self.auditable,
            "unknown": None if self.unknown is None else self.unknown.to_dict(),
        }

    def __str__(self) -> str:
        return "\n".join([self.verdict, self.next_step, "", *self._list_numbers()])

    def _repr_html_(self) -> str:
        return format_html([self.verdict, self.next_step, "\n".join(self._list_numbers())])

    def _list_numbers(self) -> list[str]:
        calibrated = self.calibration_coverage
        comparison = "" if calibrated is None else f" (calibration: {format_rate(calibrated)})"
        skipped = f", {self.skipped:,} skipped" if self.skipped else ""
        lines = [
            f"images: {self.images:,}, {self.accepted:,} accepted{skipped}",
            f"coverage: {format_rate(self.coverage)}{comparison}",
            f"shift alarm: {self.shift}",
        ]
        if self.recent is not None:
            scope = "" if self.recent.includes_shifts else "; the interval covers sampling only"
            for what, name in (("accuracy", "accuracy"), ("error rate among accepted", "risk")):
                if getattr(self.recent, name) is not None:
                    rates = [format_rate(getattr(self.recent, f"{name}{end}")) for end in ("", "_low", "_high")]
                    found = f"{rates[0]}, {rates[1]} to {rates[2]} ({AccuracyEstimate.MEANING}{scope})"
                    lines.append(f"{what} of the latest {self.recent_images:,} images: {found}")
        lines.append(f"audits: {self._describe_audits()}")
        return lines if self.unknown is None else [*lines, f"none of the classes: {self.unknown}"]

    def _describe_audits(self) -> str:
        audit = self.audit
        if self.auditable == 0:
            return "none; score with audits to check the guarantee with few labels"
        if audit is None:
            return f"{self.audited:,} marked for review, but the policy has no guarantee to confirm"
        unclear = f", {audit.cannot_tell:,} 'cannot tell'" if audit.cannot_tell else ""
        valid = f"; valid for reviewer errors up to {format_rate(audit.reviewer_error)}" if audit.reviewer_error else ""
        more = "" if audit.more_labels is None else f", about {audit.more_labels:,} more labels"
        return (
            f"{audit.verdict}{more}; error rate among accepted {format_rate(audit.low)} to "
            f"{format_rate(audit.high)}; {audit.labels:,} reviewed, {audit.pending:,} to review{unclear}{valid}"
        )
