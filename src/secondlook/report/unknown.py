"""Unknown images: detection by confidence, and numbers accepted by certified thresholds."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from secondlook.arrays import IntArray, exact_interval
from secondlook.estimators import find_method
from secondlook.evaluation import Comparison
from secondlook.metrics import Interval
from secondlook.predictions import Execution
from secondlook.report.operating_points import (
    OperatingPoint,
    certify_methods,
    choose_headline_risk,
    format_percent,
)
from secondlook.report.study import Study
from secondlook.tables import TextTable

MAX_UNKNOWN_IMAGES = 60
"""Maximum number of unknown images on a page."""


@dataclass(frozen=True)
class AcceptedUnknowns:
    """Number and share of unknown images accepted by a threshold, with an exact (Clopper-Pearson) interval."""

    method: str
    threshold: float
    images: int
    accepted: int
    level: float = 0.95

    @property
    def share(self) -> float:
        """Fraction of accepted unknown images."""
        return self.accepted / self.images

    @property
    def interval(self) -> Interval:
        """The interval of the share."""
        return Interval(*exact_interval(self.accepted, self.images, self.level))

    def __str__(self) -> str:
        return f"accepts {self.accepted:,} of {self.images:,} unknown images ({format_percent(self.share, 1)})"

    def to_dict(self) -> dict[str, object]:
        """Return the numbers as plain values for JSON."""
        return {**asdict(self), "share": self.share, "interval": asdict(self.interval)}


@dataclass(frozen=True, eq=False)
class UnknownFindings:
    """The results of a study for its unknown images."""

    detection: Comparison
    """AUROC and FPR95 of each method, with known images as correct and unknown ones as errors."""
    joint: Comparison
    """AURC over all images, with wrong predictions and unknown images as errors."""
    accepted: Mapping[str, AcceptedUnknowns]
    """Unknown images accepted at the certified threshold of each method that has one."""
    images: IntArray
    """The unknown images of the gallery, the most confident first. int64 [n]"""


def study_unknown_images(study: Study, method: str, certified: Mapping[str, OperatingPoint]) -> UnknownFindings | None:
    """Return the results for the unknown images of a study; None if it has none.

    `certified` are the certified points by method, `method` the one that orders the gallery.
    """
    if study.unknown is None:
        return None
    settings, n_known, n_unknown = study.settings, study.n_images, study.unknown.n_images
    names = sorted(study.together, key=lambda name: name != study.baseline)
    options: dict[str, Any] = {
        "scores": [name for name in names if name not in study.probabilities],
        "level": settings.level,
        "resamples": settings.resamples,
        "seed": settings.seed,
        "execution": Execution(progress=study.progress),
    }
    known, correct = np.arange(n_known + n_unknown) < n_known, np.append(study.correct, np.zeros(n_unknown, np.bool_))
    detection = Comparison.from_confidences(
        {name: (known, study.together[name]) for name in names}, ["auroc", "fpr95"], **options
    )
    joint = Comparison.from_confidences({name: (correct, study.together[name]) for name in names}, ["aurc"], **options)
    order = np.argsort(-study.together[method][n_known:], kind="stable")
    accepted = count_accepted_unknowns(study, certified)
    if study.policy is not None:
        n_accepted = int(study.policy.accept(study.unknown).sum())
        accepted[method] = AcceptedUnknowns(method, study.policy.threshold, n_unknown, n_accepted, settings.level)
    return UnknownFindings(detection, joint, accepted, order[:MAX_UNKNOWN_IMAGES])


def count_accepted_unknowns(study: Study, points: Mapping[str, OperatingPoint]) -> dict[str, AcceptedUnknowns]:
    """Count the unknown images that each method accepts at its operating point.

    Excludes points that accept nothing, and rank methods: their thresholds do not apply to other images.
    """
    counted = {}
    for name, point in points.items():
        if point.accepted and not find_method(name).is_rank:
            values = study.together[name][study.n_images :]
            accepted = int(np.sum(values >= point.threshold))
            counted[name] = AcceptedUnknowns(name, point.threshold, len(values), accepted, study.settings.level)
    return counted


def certify_on_unknowns(study: Study, delta: float) -> dict[str, object]:
    """Count the unknown images accepted by the certified thresholds of all methods, as JSON values.

    The risk is that of a report, and the methods share `delta`. No calibration is recorded.
    """
    risk = choose_headline_risk(study.error_rate)
    certified = certify_methods(study, np.array([risk]), delta)
    points = {name: one[0] for name, one in certified.items() if not isinstance(one, str)}
    accepted = [one.to_dict() for one in count_accepted_unknowns(study, points).values()]
    return {"risk": risk, "delta": delta, "sharing": list(points), "methods": accepted}


def describe_accepted_unknowns(content: Mapping[str, Any]) -> str:
    """Return the result of `certify_on_unknowns` as text."""
    shared = f", shared by {len(content['sharing'])} methods" if len(content["sharing"]) > 1 else ""
    terms = f"for {format_percent(content['risk'], 4)} risk (delta {content['delta']:g}{shared})"
    if not content["methods"]:
        return f"Unknown images accepted: no threshold can be certified {terms}."
    rows = [("", "accepted", "share", f"{100 * content['methods'][0]['level']:g} % interval")]
    for one in content["methods"]:
        low, high = (format_percent(one["interval"][end], 1) for end in ("low", "high"))
        counts = f"{one['accepted']:,} of {one['images']:,}"
        rows.append((f" {one['method']}", counts, format_percent(one["share"], 1), f"[{low}, {high}]"))
    return f"Unknown images accepted at the threshold certified {terms}:\n{TextTable(rows)}"
