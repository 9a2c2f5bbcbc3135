"""What each view does to a classifier: agreement with the image itself, accuracy, and whether the view is harmful."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple

import numpy as np

from secondlook.arrays import Array, BoolArray, Float64Array, IntArray
from secondlook.diagnosis.pool import Pool, read_pool
from secondlook.errors import DiagnosisError
from secondlook.metrics import auroc
from secondlook.predictions import Predictions
from secondlook.tables import TextTable, format_html
from secondlook.views import View, ViewSet, as_view_set_with_names

MAX_CHANGED = 0.1
"""Fraction of the confident predictions that a view may change; docs/diagnosis.md shows real views on both sides."""
FALSE_ALARM = 0.01
"""A view is harmful only if so many changes would be less probable than this at `MAX_CHANGED`: no false alarms on a
handful of images."""
MAX_GROWTH = 0.4
"""Growth of the doubt, or of the errors, above which a view is harmful: a fraction of those of the image itself, so
that the limit follows how often the classifier errs."""
MAX_ACCURACY_DROP = 0.25
"""Relative drop of the accuracy above which a view is harmful: the errors of a poor classifier cannot grow by much."""
CLEAR = 2.0
"""Standard errors beyond which a difference of means counts."""
MIN_IMAGES = 30
"""With fewer images a standard error says little, and only changed predictions count."""
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
    doubt_growth: float
    """Growth of the doubt (1 - mean largest probability), as a fraction of the doubt on the image itself; the latter
    counts as at least one image."""


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
        header = ["view", "agreement", "confident", "doubt", *labeled, "status"]
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
        more = len(lines) - limit
        return [*lines[:limit], f"- {count_views(more, 'more ')} {_be(more)} harmful; the diagnosis lists them."]


def diagnose_views(preds: Predictions, *, top_k: int = 1) -> Diagnosis:
    """Diagnose what each view of the predictions does to the classifier.

    A view is harmful if it changes more than a tenth of the confident predictions, or if the doubt (1 - mean largest
    probability) grows by more than 40 %; with labels, if the errors do, whatever the doubt says. It is weak if the
    probability of the label drops. All of it must be more than chance explains.
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


def describe_harmful_views(preds: Predictions, *, top_k: int = 1) -> str | None:
    """Return one sentence about the views that are harmful, or None where there are none; uses labels if there are any.

    At most 10,000 images are read, which bounds the memory.
    """
    step = -(-preds.n_images // MAX_IMAGES_FOR_WARNINGS)
    pool = read_pool(preds if step == 1 else preds.select(images=np.arange(0, preds.n_images, step)), top_k)
    harmful = [row for row in diagnose_pool(pool) if row.status == "harmful"]
    if not harmful:
        return None
    harmful.sort(key=lambda row: (row.agreement.confident, -row.agreement.doubt_growth))
    worst, views = harmful[0], list_first([row.view for row in harmful])
    count = f"{count_views(len(harmful))} {_be(len(harmful))}"
    which = "" if len(harmful) == 1 else f"{worst.view!r}: "
    return (
        f"{count} likely to make the confidence worse: {views} ({which}{worst.reason}); pass views='auto' to leave "
        "out harmful views."
    )


def count_views(number: int, kind: str = "") -> str:
    """Return a number of views: '1 view', '2 views', or with a kind such as 'usable ', '2 usable views'."""
    return f"{number} {kind}view{'s' * (number != 1)}"


def _be(number: int) -> str:
    return "is" if number == 1 else "are"


def list_first(texts: Sequence[str], limit: int = 3) -> str:
    """Return the first of the texts in quotes, since views have commas of their own, and how many more there are."""
    listed, more = ", ".join(map(repr, texts[:limit])), len(texts) - limit
    return f"{listed} and {more} more" if more > 0 else listed


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
    reason = _describe_disagreement(pool, position) or _describe_doubt(pool, position)
    if pool.view_correct is None or pool.label_mass is None:
        return "harmful" if reason else "usable", reason, 0.0
    before, after = pool.label_mass[0], pool.label_mass[position]
    drop = _drop_in_standard_errors(before, after)
    growth = _measure_error_growth(pool.view_correct[0], pool.view_correct[position])
    if growth.exceeds:  # whatever the label-free rule says
        reason = f"the errors grow {_format_change(~pool.view_correct[0], ~pool.view_correct[position])} of the images"
    elif growth.is_below:
        reason = None
    if reason:
        return "harmful", reason, drop
    # The probability of the label shows a weak view sooner than the accuracy: it drops before the prediction flips.
    if drop > CLEAR:
        return "weak", f"the mean probability of the label drops from {before.mean():.3f} to {after.mean():.3f}", drop
    return "usable", None, drop


def find_strain(pool: Pool, position: int, limit: float) -> str | None:
    """Return why a view that is not shown to be harmful is likely to be, or None: a growth of the doubt.

    `limit` is a fraction of the doubt on the image itself.
    One standard error is enough, since a view that is not chosen costs little where others take its place. Labels that
    show the view to be harmless overrule it.
    """
    before, after = 1 - pool.top_mass[0], 1 - pool.top_mass[position]
    margin = float((after - before).std()) / len(before) ** 0.5
    largest = limit * max(before.mean(), 1 / len(before))
    if len(before) < MIN_IMAGES or float((after - before).mean()) - margin <= largest:
        return None
    correct = pool.view_correct
    if correct is not None and _measure_error_growth(correct[0], correct[position]).is_below:
        return None
    return f"the doubt grows {_format_change(before, after)}"


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
    """Return how a view changes confident predictions, or None where it changes no more than is usual."""
    agreement = compute_agreement(pool, position)
    n_changed = round((1 - agreement.confident) * agreement.n_confident)
    if _binomial_tail(n_changed, agreement.n_confident, MAX_CHANGED) >= FALSE_ALARM:
        return None
    return (
        f"it changes {100 * n_changed / agreement.n_confident:.1f} % of the confident predictions, more than "
        f"{100 * MAX_CHANGED:g} %"
    )


class _Growth(NamedTuple):
    """Growth of a mean over the same images, compared with a limit."""

    exceeds: bool
    """Whether it is above the limit by more than `CLEAR` standard errors."""
    is_below: bool
    """Whether it is below the limit by more than `CLEAR` standard errors."""


def _measure_growth(difference: Float64Array, limit: float) -> _Growth:
    """Compare the mean of paired differences with a limit. float64 [N]"""
    if len(difference) < MIN_IMAGES:
        return _Growth(exceeds=False, is_below=False)
    growth, margin = difference.mean(), CLEAR * difference.std() / len(difference) ** 0.5
    return _Growth(exceeds=bool(growth - margin > limit), is_below=bool(growth + margin < limit))


def _describe_doubt(pool: Pool, position: int) -> str | None:
    """Return how much the doubt grows, or None where it grows no more than is usual."""
    before, after = 1 - pool.top_mass[0], 1 - pool.top_mass[position]
    limit = MAX_GROWTH * max(before.mean(), 1 / len(before))
    if not _measure_growth(after - before, limit).exceeds:
        return None
    return f"the doubt grows {_format_change(before, after)}, by more than {100 * MAX_GROWTH:g} %"


def _measure_error_growth(image_correct: BoolArray, view_correct: BoolArray) -> _Growth:
    """Compare the errors from a view with those from the image itself. bool [N], bool [N]"""
    errors, images = int((~image_correct).sum()), len(image_correct)
    limit = min(MAX_GROWTH * max(errors, 1), MAX_ACCURACY_DROP * (images - errors)) / images
    return _measure_growth(image_correct.astype(np.float64) - view_correct, limit)


def _format_change(before: Array, after: Array) -> str:
    return f"from {100 * before.mean():.1f} % to {100 * after.mean():.1f} %"


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
    cells.append(_format_growth(agreement.doubt_growth))
    if row.accuracy is not None:
        aurocs = ("-" if value is None else f"{100 * value:.2f}" for value in (row.auroc_alone, row.auroc_with_image))
        cells += [f"{100 * row.accuracy:.1f} %", *aurocs]
    return [row.view, *cells, row.status]


def _format_growth(growth: float) -> str:
    rounded = f"{100 * growth:+.0f} %"
    return "same" if rounded[1:] == "0 %" else rounded
