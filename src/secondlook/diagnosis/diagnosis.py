"""Effects of views on a classifier: agreement with the image itself, accuracy, and harmful views."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np

from secondlook.arrays import Array, BoolArray, Float64Array
from secondlook.errors import DiagnosisError
from secondlook.estimators import iter_view_statistics
from secondlook.metrics import auroc
from secondlook.predictions import Predictions
from secondlook.tables import TextTable, format_html
from secondlook.views import View, ViewSet

MAX_CHANGED = 0.1
"""Fraction of the confident predictions that a view may change; see docs/background/design-notes.md."""
FALSE_ALARM = 0.01
"""A view is only harmful if its number of changes is less probable than this at `MAX_CHANGED`; prevents false alarms on
a handful of images."""
MAX_GROWTH = 0.4
"""Growth of the doubt, or of the errors, above which a view is harmful, relative to that of the image itself."""
MAX_ACCURACY_DROP = 0.25
"""Relative drop of the accuracy above which a view is harmful; the errors of a poor classifier cannot grow by much."""
CLEAR = 2.0
"""Number of standard errors for a significant difference of means."""
MIN_IMAGES = 30
"""With fewer images, standard errors are unreliable, and only changed predictions count."""

Status = Literal["usable", "weak", "harmful"]


@dataclass(frozen=True, eq=False)
class Pool:
    """Views x images; the first view is the identity."""

    views: ViewSet
    class_mass: Float64Array
    """Probability mass of the classes predicted from the image itself. float64 [V, N]"""
    top_mass: Float64Array
    """Largest probability of each view, for k > 1 the sum of the k largest. float64 [V, N]"""
    agrees: BoolArray
    """Whether the view and the image itself have the same predicted class. bool [V, N]"""
    view_correct: BoolArray | None
    """Whether the label is among the top k classes of the view; None without labels. bool [V, N]"""
    label_mass: Float64Array | None
    """Probability of the label; None without labels. float64 [V, N]"""

    @property
    def correct(self) -> BoolArray:
        """Whether the prediction from the image itself is correct; needs labels. bool [N]"""
        assert self.view_correct is not None, "there are labels"
        correct: BoolArray = self.view_correct[0]
        return correct


def read_pool(preds: Predictions, top_k: int = 1) -> Pool:
    """Read predictions once; for an ensemble, the mean over its members."""
    if not isinstance(preds, Predictions):
        raise DiagnosisError(f"expected the Predictions that collect() returns, got {type(preds).__name__}.")
    shape = preds.n_views, preds.n_images
    mass, top_mass, label_mass = np.empty(shape), np.empty(shape), np.empty(shape)
    agrees, view_correct = np.empty(shape, dtype=np.bool_), np.empty(shape, dtype=np.bool_)
    classes = preds.predicted("image", top_k).reshape(-1, top_k)
    for rows, outputs, own_mass, largest, top in iter_view_statistics(preds, "image", top_k):
        mass[:, rows], top_mass[:, rows] = own_mass.T, largest.T
        agrees[:, rows] = (top[:, :, 0] == classes[rows, :1]).T
        if preds.has_labels:
            labels = preds.labels[rows, None, None]
            view_correct[:, rows] = (top == labels).any(axis=2).T
            label_mass[:, rows] = np.take_along_axis(outputs, labels, axis=2)[:, :, 0].T
    labeled = (view_correct, label_mass) if preds.has_labels else (None, None)
    return Pool(preds.views, mass, top_mass, agrees, *labeled)


@dataclass(frozen=True)
class Agreement:
    """Agreement of predictions from a view with predictions from the image itself; needs no labels."""

    overall: float
    """Fraction of the images with the same predicted class."""
    confident: float
    """Agreement among the half of the images with the most confident predictions."""
    confidence_drop: float
    """Mean of the largest probability on the image itself, minus that on the view."""
    n_confident: int
    """Number of images in the confident half."""
    doubt_growth: float
    """Growth of the doubt (1 - mean largest probability), relative to that on the image itself, at least one image."""


@dataclass(frozen=True)
class ViewDiagnosis:
    """Diagnosis of one view; values that need labels are None without labels."""

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
        return ViewSet.with_names([row.view for row in self.rows if row.status == "usable"])

    @property
    def weak(self) -> dict[str, str]:
        """Views that measurably lower the probability of the label, with the reason."""
        return {row.view: row.reason or "" for row in self.rows if row.status == "weak"}

    @property
    def harmful(self) -> dict[str, str]:
        """Views that break the classifier, with the reason; they are never chosen."""
        return {row.view: row.reason or "" for row in self.rows if row.status == "harmful"}

    def describe_harmful(self) -> str | None:
        """Return a sentence about the harmful views, the worst first, or None if there are none."""
        harmful = [row for row in self.rows if row.status == "harmful"]
        if not harmful:
            return None
        harmful.sort(key=lambda row: (row.agreement.confident, -row.agreement.doubt_growth))
        worst, views = harmful[0], list_first([row.view for row in harmful])
        verb, which = ("is", "") if len(harmful) == 1 else ("are", f"{worst.view!r}: ")
        start = f"{count_views(len(harmful))} {verb} likely to make the confidence worse"
        return f"{start}: {views} ({which}{worst.reason}); the views 'auto' leave out harmful ones."

    def __iter__(self) -> Iterator[ViewDiagnosis]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, view: View | str) -> ViewDiagnosis:
        """Return the diagnosis of one view."""
        by_view = {row.view: row for row in self.rows}
        text = str(ViewSet.with_names(list(by_view)).resolve(view))
        if text not in by_view:
            raise DiagnosisError(f"view {text!r} is not in the diagnosis; expected one of: {', '.join(by_view)}.")
        return by_view[text]

    def to_dict(self) -> dict[str, object]:
        """Return the diagnosis as plain values for JSON."""
        return {"rows": [asdict(row) for row in self.rows]}

    def _blocks(self) -> list[object]:
        labeled = ["accuracy", "AUROC alone", "with image"] if self.rows[0].accuracy is not None else []
        header = ["view", "agreement", "confident", "doubt", *labeled, "status"]
        harmful = (f"- {view} is harmful: {reason}." for view, reason in self.harmful.items())
        return [TextTable([header, *map(_format_row, self.rows)], numbers=True), *harmful]

    def __str__(self) -> str:
        return "\n".join(map(str, self._blocks()))

    def _repr_html_(self) -> str:
        return format_html(self._blocks())


def diagnose_views(preds: Predictions, *, top_k: int = 1, max_images: int | None = None) -> Diagnosis:
    """Diagnose the effect of each view on the classifier.

    A view is harmful if it changes more than a tenth of the confident predictions, or if the doubt (1 - mean largest
    probability) grows by more than 40 %. With labels, the errors count instead of the doubt. A view is weak if the
    probability of the label drops. All effects must be statistically significant. `max_images` limits the memory: from
    more images, an evenly spaced subset is read.
    """
    if max_images is not None and preds.n_images > max_images:
        preds = preds.select(images=np.arange(0, preds.n_images, -(-preds.n_images // max_images)))
    pool = read_pool(preds, top_k)
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


def count_views(number: int) -> str:
    """Return a number of views: '1 view', '2 views'."""
    return f"{number} view{'s' * (number != 1)}"


def list_first(texts: Sequence[str], limit: int = 3) -> str:
    """List the first texts, in quotes, since views contain commas, and the number of the others."""
    listed, more = ", ".join(map(repr, texts[:limit])), len(texts) - limit
    return f"{listed} and {more} more" if more > 0 else listed


def assess_view(pool: Pool, position: int) -> tuple[Status, str | None, float]:
    """Return the status of a view, the reason, and the drop of the label's probability in standard errors."""
    reason = _describe_disagreement(pool, position)
    if reason is None and (doubt := _describe_doubt(pool, position, MAX_GROWTH)):
        reason = f"{doubt}, by more than {100 * MAX_GROWTH:g} %"
    if pool.view_correct is None or pool.label_mass is None:
        return "harmful" if reason else "usable", reason, 0.0
    before, after = pool.label_mass[0], pool.label_mass[position]
    difference, deviation = before - after, float((before - after).std())
    drop = 0.0 if deviation == 0 else float(difference.mean()) / deviation * len(difference) ** 0.5
    growth = _compare_errors(pool, position)
    if growth > 0:  # overrules the label-free rule
        reason = f"the errors grow {_format_change(~pool.correct, ~pool.view_correct[position])} of the images"
    elif growth < 0:
        reason = None
    if reason:
        return "harmful", reason, drop
    # The probability of the label is more sensitive than the accuracy: it drops before the prediction flips.
    if drop > CLEAR:
        return "weak", f"the mean probability of the label drops from {before.mean():.3f} to {after.mean():.3f}", drop
    return "usable", None, drop


def find_strain(pool: Pool, position: int, limit: float) -> str | None:
    """Describe the growth of the doubt for a view that is probably harmful, although not proven so, or return None.

    `limit` is a fraction of the doubt on the image itself. One standard error is enough, since it costs little to omit
    a view if others replace it. Labels that prove the view harmless take precedence.
    """
    reason = _describe_doubt(pool, position, limit, standard_errors=1)
    return None if reason and _compare_errors(pool, position) < 0 else reason


def compute_agreement(pool: Pool, position: int) -> Agreement:
    """Compare one view of the pool with the identity."""
    doubt = 1 - pool.top_mass[[0, position]].mean(axis=1)
    confident: BoolArray = pool.top_mass[0] >= np.median(pool.top_mass[0])
    return Agreement(
        overall=float(pool.agrees[position].mean()),
        confident=float(pool.agrees[position, confident].mean()),
        confidence_drop=float(pool.top_mass[0].mean() - pool.top_mass[position].mean()),
        n_confident=int(confident.sum()),
        doubt_growth=float((doubt[1] - doubt[0]) / max(doubt[0], 1 / pool.top_mass.shape[1])),
    )


def _describe_disagreement(pool: Pool, position: int) -> str | None:
    """Describe how many confident predictions a view changes, or return None for a usual number."""
    from scipy.special import betainc

    agreement = compute_agreement(pool, position)
    n_changed = round((1 - agreement.confident) * agreement.n_confident)
    if not n_changed or betainc(n_changed, agreement.n_confident - n_changed + 1, MAX_CHANGED) >= FALSE_ALARM:
        return None  # the binomial probability of at least this number of changes
    changed = f"it changes {100 * n_changed / agreement.n_confident:.1f} % of the confident predictions"
    return f"{changed}, more than {100 * MAX_CHANGED:g} %"


def _describe_doubt(pool: Pool, position: int, limit: float, standard_errors: float = CLEAR) -> str | None:
    """Describe the growth of the doubt, or return None up to a fraction of the doubt on the image itself."""
    before, after = 1 - pool.top_mass[0], 1 - pool.top_mass[position]
    largest = limit * max(before.mean(), 1 / len(before))
    if _compare_mean(after - before, largest, standard_errors) <= 0:
        return None
    return f"the doubt grows {_format_change(before, after)}"


def _compare_errors(pool: Pool, position: int) -> int:
    """Compare the growth of the errors with its limit, see `_compare_mean`; 0 without labels."""
    if pool.view_correct is None:
        return 0
    errors, images = int((~pool.correct).sum()), len(pool.correct)
    limit = min(MAX_GROWTH * max(errors, 1), MAX_ACCURACY_DROP * (images - errors)) / images
    return _compare_mean(pool.correct.astype(np.float64) - pool.view_correct[position], limit)


def _compare_mean(differences: Float64Array, limit: float, standard_errors: float = CLEAR) -> int:
    """Return 1 if the mean of paired differences is clearly above a limit, -1 if below, else 0. float64 [N]"""
    if len(differences) < MIN_IMAGES:
        return 0
    mean, margin = differences.mean(), standard_errors * differences.std() / len(differences) ** 0.5
    return int(mean - margin > limit) - int(mean + margin < limit)


def _format_change(before: Array, after: Array) -> str:
    return f"from {100 * before.mean():.1f} % to {100 * after.mean():.1f} %"


def _format_row(row: ViewDiagnosis) -> list[str]:
    agreement = row.agreement
    cells = [f"{100 * value:.1f} %" for value in (agreement.overall, agreement.confident)]
    growth = f"{100 * agreement.doubt_growth:+.0f} %"
    cells.append("same" if growth[1:] == "0 %" else growth)
    if row.accuracy is not None:
        aurocs = ("-" if value is None else f"{100 * value:.2f}" for value in (row.auroc_alone, row.auroc_with_image))
        cells += [f"{100 * row.accuracy:.1f} %", *aurocs]
    return [row.view, *cells, row.status]
