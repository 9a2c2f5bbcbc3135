"""What each view does to a classifier: agreement with the image itself, accuracy, and whether the view is harmful."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from secondlook.arrays import BoolArray, Float64Array, IntArray
from secondlook.diagnosis.pool import Pool, read_pool
from secondlook.errors import DiagnosisError
from secondlook.metrics import auroc
from secondlook.predictions import Predictions
from secondlook.tables import TextTable, format_difference, format_html
from secondlook.views import View, ViewSet, as_view_set_with_names

MAX_CHANGED = 0.015
"""Fraction of the confident predictions that a view may change; docs/diagnosis.md shows real views on both sides."""
FALSE_ALARM = 0.01
"""A view is harmful only if so many changes would be less probable than this at `MAX_CHANGED`: no false alarms on a
handful of images."""
MAX_ACCURACY_DROP = 0.25
"""Relative drop of the accuracy above which a view is harmful."""
CLEAR_DROP = 2.0
"""Standard errors by which a mean must drop to count as lower."""
MAX_IMAGES_FOR_WARNINGS = 10_000
"""More images would not make a warning more certain; this bounds the memory."""

Status = Literal["usable", "weak", "harmful"]


@dataclass(frozen=True)
class Agreement:
    """Agreement of the predictions from a view with those from the image itself; needs no labels."""

    overall: float
    """Fraction of the images with the same predicted class."""
    confident: float
    """The same among the half of the images with the most confident predictions."""
    confidence_drop: float
    """Mean of the largest probability on the image itself, minus that on the view."""
    n_confident: int
    """Number of images in the confident half."""


@dataclass(frozen=True)
class ViewDiagnosis:
    """Diagnosis of one view; numbers that need labels are None without them."""

    view: str
    agreement: Agreement
    accuracy: float | None
    """Accuracy of the predictions from the view alone."""
    auroc_alone: float | None
    """AUROC of the largest probability on the view, for errors made on the image itself (Table 1 of the paper)."""
    auroc_with_image: float | None
    """AUROC of the mean over the image itself and the view."""
    status: Status
    """'harmful' if the view breaks the classifier, 'weak' if it measurably lowers the probability of the label."""
    reason: str | None
    """Why the view is harmful or weak."""
    label_mass_drop: float
    """Drop of the mean probability of the label, in standard errors of the difference; 0 without labels."""


@dataclass(frozen=True)
class Diagnosis:
    """Diagnosis of every view of a pool, the identity first; `print` shows a table and the harmful views."""

    rows: tuple[ViewDiagnosis, ...]

    @property
    def usable(self) -> ViewSet:
        """Views that are neither harmful nor weak, including the identity."""
        return as_view_set_with_names([row.view for row in self.rows if row.status == "usable"])

    @property
    def weak(self) -> dict[str, str]:
        """Views that measurably lower the probability of the label, with the reason; they are chosen last."""
        return self._reasons("weak")

    @property
    def harmful(self) -> dict[str, str]:
        """Views that break the classifier, with the reason; they are never chosen."""
        return self._reasons("harmful")

    def _reasons(self, status: Status) -> dict[str, str]:
        return {row.view: row.reason or "" for row in self.rows if row.status == status}

    def __iter__(self) -> Iterator[ViewDiagnosis]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, view: View | str) -> ViewDiagnosis:
        """Return the diagnosis of one view."""
        text = str(as_view_set_with_names([row.view for row in self.rows]).resolve(view))
        for row in self.rows:
            if row.view == text:
                return row
        known = ", ".join(row.view for row in self.rows)
        raise DiagnosisError(f"view {text!r} is not in the diagnosis; expected one of: {known}.")

    def to_dict(self) -> dict[str, object]:
        """Return the diagnosis as plain values for JSON."""
        return {"rows": [asdict(row) for row in self.rows]}

    def _blocks(self) -> list[object]:
        labeled = ["accuracy", "AUROC alone", "with image"] if self.rows[0].accuracy is not None else []
        header = ["view", "agreement", "confident", "conf. drop", *labeled, "status"]
        return [TextTable([header, *map(_format_row, self.rows)], numbers=True), *self.describe_harmful()]

    def __str__(self) -> str:
        return "\n".join(map(str, self._blocks()))

    def _repr_html_(self) -> str:
        return format_html(self._blocks())

    def describe_harmful(self, limit: int | None = None) -> list[str]:
        """Return a line for each harmful view; beyond `limit` views, the last line counts the others."""
        lines = [f"- {view} is harmful: {reason}." for view, reason in self.harmful.items()]
        if limit is None or len(lines) <= limit:
            return lines
        return [*lines[:limit], f"- {len(lines) - limit} more views are harmful; the diagnosis lists them."]


def diagnose_views(preds: Predictions, *, top_k: int = 1) -> Diagnosis:
    """Diagnose what each view of the predictions does to the classifier.

    Agreement needs no labels; accuracy, AUROC and weak views do. A view is harmful if it changes predictions that the
    classifier is confident in, or if the accuracy collapses; it is weak if the probability of the label drops by more
    than chance explains.
    """
    return diagnose_pool(read_pool(preds, top_k))


def diagnose_pool(pool: Pool) -> Diagnosis:
    """Diagnose the views of a pool."""
    return Diagnosis(tuple(_diagnose_view(pool, position) for position in range(len(pool.views))))


def _diagnose_view(pool: Pool, position: int) -> ViewDiagnosis:
    accuracy = alone = with_image = None
    if pool.view_correct is not None:
        accuracy = float(pool.view_correct[position].mean())
        if pool.correct.any() and not pool.correct.all():
            alone = auroc(pool.correct, pool.top_mass[position])
            with_image = auroc(pool.correct, pool.class_mass[[0, position]].mean(axis=0))
    text, agreement = pool.views.texts[position], compute_agreement(pool, position)
    return ViewDiagnosis(text, agreement, accuracy, alone, with_image, *assess_view(pool, position))


def harmful_view_warnings(preds: Predictions) -> list[str]:
    """Return a sentence for each view that is likely to make the confidence worse; needs no labels."""
    step = -(-preds.n_images // MAX_IMAGES_FOR_WARNINGS)
    pool = read_pool(preds if step == 1 else preds.select(images=np.arange(0, preds.n_images, step)))
    reasons = {view: _describe_disagreement(pool, position) for position, view in enumerate(pool.views.texts)}
    return [
        f"view {view!r} is likely to make the confidence worse: {reason}; remove it from the views."
        for view, reason in reasons.items()
        if reason is not None
    ]


def find_choosable(pool: Pool, n_views: int) -> IntArray:
    """Return the positions of the usable views, and of the least weak ones where those are too few. -> int64 [n]

    Positions are ascending, so the identity comes first.
    """
    assessed = [assess_view(pool, position) for position in range(len(pool.views))]
    usable = [position for position, (status, _, _) in enumerate(assessed) if status == "usable"]
    weak = [position for position, (status, _, _) in enumerate(assessed) if status == "weak"]
    least_weak = sorted(weak, key=lambda position: assessed[position][2])[: max(0, n_views - len(usable))]
    return np.array(sorted([*usable, *least_weak]))


def assess_view(pool: Pool, position: int) -> tuple[Status, str | None, float]:
    """Return the status of a view, the reason, and the drop of the label's probability in standard errors."""
    reason = _describe_disagreement(pool, position)
    if pool.view_correct is None or pool.label_mass is None:
        return "harmful" if reason else "usable", reason, 0.0
    before, after = pool.label_mass[0], pool.label_mass[position]
    drop = _drop_in_standard_errors(before, after)
    reason = reason or _describe_accuracy_drop(pool.view_correct[0], pool.view_correct[position])
    if reason:
        return "harmful", reason, drop
    # The probability of the label shows a weak view sooner than the accuracy: it drops before the prediction flips.
    if drop > CLEAR_DROP:
        return "weak", f"the mean probability of the label drops from {before.mean():.3f} to {after.mean():.3f}", drop
    return "usable", None, drop


def compute_agreement(pool: Pool, position: int) -> Agreement:
    """Compare one view of the pool with the identity."""
    confident: BoolArray = pool.top_mass[0] >= np.median(pool.top_mass[0])
    return Agreement(
        overall=float(pool.agrees[position].mean()),
        confident=float(pool.agrees[position, confident].mean()),
        confidence_drop=float(pool.top_mass[0].mean() - pool.top_mass[position].mean()),
        n_confident=int(confident.sum()),
    )


def _describe_disagreement(pool: Pool, position: int) -> str | None:
    """Return how a view changes confident predictions, or None where it changes no more than is usual."""
    agreement = compute_agreement(pool, position)
    n_changed = round((1 - agreement.confident) * agreement.n_confident)
    if _binomial_tail(n_changed, agreement.n_confident, MAX_CHANGED) >= FALSE_ALARM:
        return None
    return (
        f"it changes {100 * n_changed / agreement.n_confident:.1f} % of the confident predictions "
        f"(expected at most {100 * MAX_CHANGED:g} %)"
    )


def _describe_accuracy_drop(image_correct: BoolArray, view_correct: BoolArray) -> str | None:
    before, after = float(image_correct.mean()), float(view_correct.mean())
    drop = _drop_in_standard_errors(image_correct.astype(np.float64), view_correct.astype(np.float64))
    if before - after <= MAX_ACCURACY_DROP * before or drop <= CLEAR_DROP:
        return None
    return f"the accuracy drops from {100 * before:.1f} % to {100 * after:.1f} %"


def _binomial_tail(successes: int, trials: int, probability: float) -> float:
    """Return the probability of at least that many successes."""
    from scipy.special import betainc

    return 1.0 if successes == 0 else float(betainc(successes, trials - successes + 1, probability))


def _drop_in_standard_errors(before: Float64Array, after: Float64Array) -> float:
    """Return how far the mean over the same images drops, in standard errors of the difference. [N], [N]"""
    difference = before - after
    deviation = float(difference.std())
    return 0.0 if deviation == 0 else float(difference.mean()) / deviation * len(difference) ** 0.5


def _format_row(row: ViewDiagnosis) -> list[str]:
    agreement = row.agreement
    cells = [f"{100 * value:.1f} %" for value in (agreement.overall, agreement.confident)]
    cells.append(format_difference(agreement.confidence_drop, 3))
    if row.accuracy is not None:
        aurocs = ("-" if value is None else f"{100 * value:.2f}" for value in (row.auroc_alone, row.auroc_with_image))
        cells += [f"{100 * row.accuracy:.1f} %", *aurocs]
    return [row.view, *cells, row.status]
