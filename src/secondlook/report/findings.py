"""The results of a report: all numbers of the page, tables and plots, and the headline."""

import itertools
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from secondlook.arrays import Array, BoolArray, Float64Array, IntArray
from secondlook.diagnosis import SetupWarning
from secondlook.estimators import iter_view_statistics
from secondlook.evaluation import Comparison, Evaluation, evaluate
from secondlook.metrics import Interval, Ranking, auroc, resample_metrics
from secondlook.policies import Guarantee
from secondlook.predictions import Execution
from secondlook.progress import progress_bar
from secondlook.report.operating_points import (
    AdaptiveLooking,
    OperatingPoint,
    certify_methods,
    choose_headline_risk,
    format_pair,
    format_percent,
    point_at_risk,
    slider_risks,
    study_adaptive_looking,
)
from secondlook.report.study import Study, name_method
from secondlook.report.unknown import UnknownFindings, study_unknown_images

CURVE_POINTS = 1000
BAND_POINTS = 100
RESAMPLES = 200
"""Resamples of the images for curve bands and changes per view."""
MAX_CELL_BYTES = 2_000_000
"""Size limit for the ranked cells of all methods on a page: 500,000 images by 4 methods with up to 256 cells."""
MAX_IMAGES = 200
"""Maximum number of example images on a page."""


@dataclass(frozen=True)
class Headline:
    """The result in one sentence, and whether the second look is better than the baseline."""

    sentence: str
    verdict: Literal["better", "worse", "unclear", "none"]


@dataclass(frozen=True, eq=False)
class RiskBand:
    """Risk among the n most confident images for some n, with resampling intervals."""

    accepted: IntArray
    risk: Float64Array
    band_coverage: Float64Array
    low: Float64Array
    high: Float64Array


class ClassRisk(NamedTuple):
    """Counts over all images and over the accepted images of one true class."""

    name: str
    images: int
    errors: int
    error_rate: float
    accepted: int
    coverage: float
    errors_accepted: int
    risk: float | None
    """Error rate among the accepted predictions; None if none is accepted."""
    auroc: float | None
    """AUROC of the confidence within the class; None if all of its predictions are correct or all are wrong."""


@dataclass(frozen=True)
class ViewContribution:
    """The contribution of one view.

    AUROC is None if all predictions are correct or all are wrong; changes also need a second view.
    """

    text: str
    accuracy: float
    """Accuracy of the class predicted from this view alone."""
    auroc_alone: float | None = None
    """AUROC of the highest probability of this view alone."""
    auroc_without: float | None = None
    """AUROC of the mean over all other views."""
    change: float | None = None
    """`auroc_without` minus the AUROC of the mean over all views: negative if the view helps."""
    change_interval: Interval | None = None


@dataclass(frozen=True, eq=False)
class ConfusionCells:
    """The P cells of the confusion matrix that have images, and the cell of each image.

    With `top_k` above 1 the predicted class is the most probable one, and a prediction can be correct although the two
    classes differ: those images have separate cells.
    """

    labels: IntArray
    """int64 [P]"""
    predicted: IntArray
    """int64 [P]"""
    correct: BoolArray
    """bool [P]"""
    of_image: IntArray
    """The cell of each image. int64 [N]"""

    @property
    def images(self) -> IntArray:
        """Number of images of each cell. int64 [P]"""
        return np.bincount(self.of_image, minlength=len(self.labels))

    def count(self, chosen: BoolArray) -> IntArray:
        """Count the selected images of each cell. bool [N] -> int64 [P]"""
        return np.bincount(self.of_image[chosen], minlength=len(self.labels))


@dataclass(frozen=True, eq=False)
class Findings:
    """The results for the predictions of a study."""

    study: Study
    evaluation: Evaluation
    headline: Headline
    method: str
    """The initially selected method of the page, and the method of its tables."""
    risk: float
    """The initially selected tolerated risk of the page."""
    point: OperatingPoint
    """The operating point of the method at this risk; after a calibration, that of the policy."""
    accepted: BoolArray
    """Whether each image is accepted at this point. bool [N]"""
    delta: float
    """Failure probability of the guarantees, shared by all methods with a guarantee."""
    risks: Float64Array
    """The tolerated risks of the slider. float64 [R]"""
    certified: Mapping[str, list[OperatingPoint] | str]
    """By method: the certified point for each tolerated risk, or the reason why there is none."""
    adaptive: AdaptiveLooking | str
    """The result of adaptive looking at this risk and delta, or the reason why there is none."""
    curves: Mapping[str, RiskBand]
    cells: ConfusionCells
    classes: list[ClassRisk]
    views: list[ViewContribution]
    images: IntArray
    """The images of the galleries, as indices of the judged images."""
    unknown: UnknownFindings | None
    """The results for unknown images; None if there are none."""

    @property
    def sharing(self) -> tuple[str, ...]:
        """The methods with a guarantee, which share delta."""
        return tuple(name for name, points in self.certified.items() if not isinstance(points, str))


def compute_findings(study: Study, *, risk: float | None = None, delta: float) -> Findings:
    """Compute the results of a study; by default, `risk` follows from the error rate.

    For a study with a policy, pass `risk` and `delta` of its guarantee, if any.
    """
    Guarantee.check("delta", delta)
    headline_risk = choose_headline_risk(study.error_rate) if risk is None else risk
    risks = slider_risks(study.error_rate, headline_risk)
    metrics = study.settings.metrics
    evaluation = _evaluate(study, tuple(dict.fromkeys([*metrics, f"coverage_at:{headline_risk:.12g}"])))
    certified, place = certify_methods(study, risks, delta), int(risks.searchsorted(headline_risk))
    points = {name: one[place] for name, one in certified.items() if not isinstance(one, str)}
    method = study.calibrated or study.second_look or study.baseline  # must not depend on the results
    point = point_at_risk(study.rankings[method], headline_risk)
    accepted = study.confidences[method] >= point.threshold
    if study.policy is not None:
        accepted = study.policy.accept(study.preds)
        wrong = ~study.correct
        if study.policy.schedule is not None:  # the class may be predicted from fewer views
            predicted = study.policy.look(study.preds).predicted.reshape(study.n_images, -1)
            wrong = (predicted != study.preds.labels[:, None]).all(axis=1)
        point = OperatingPoint(study.policy.threshold, int(accepted.sum()), int((accepted & wrong).sum()))
    adaptive = study_adaptive_looking(study, method, headline_risk, delta)
    compared = evaluation if "auroc" in metrics else _evaluate(study, ("auroc",))
    return Findings(
        study=study,
        evaluation=evaluation,
        headline=write_headline(study, compared, headline_risk),
        method=method,
        risk=headline_risk,
        point=point,
        accepted=accepted,
        delta=delta,
        risks=risks,
        certified=certified,
        adaptive=adaptive,
        curves=risk_bands(study),
        cells=find_cells(study),
        classes=class_risks(study, method, accepted),
        views=view_contributions(study),
        images=choose_images(study, method, None if isinstance(adaptive, str) else adaptive.ranked),
        unknown=study_unknown_images(study, method, points),
    )


def risk_bands(study: Study) -> dict[str, RiskBand]:
    """Return the risk-coverage curve of each method, with its band."""
    accepted = spread_counts(study.n_images, CURVE_POINTS)
    coverage = spread_counts(study.n_images, BAND_POINTS) / study.n_images
    drawn, level = coverage * study.n_images, study.settings.level
    entries = {name: (study.correct, values) for name, values in study.confidences.items()}
    with progress_bar("bands", RESAMPLES, "resamples", enabled=study.progress) as advance:
        resampled = resample_metrics(
            entries, lambda _, ranking: interpolate_risk(ranking, drawn), RESAMPLES, study.settings.seed, advance
        )
    bands = {name: np.quantile(one, ((1 - level) / 2, (1 + level) / 2), axis=0) for name, one in resampled.items()}
    return {
        name: RiskBand(accepted, interpolate_risk(ranking, accepted), coverage, *bands[name])
        for name, ranking in study.rankings.items()
    }


def spread_counts(n_images: int, max_counts: int) -> IntArray:
    """Return at most `max_counts` numbers from 1 to N, half of them evenly spaced, half geometrically."""
    if n_images <= max_counts:
        return np.arange(1, n_images + 1)
    even, geometric = np.linspace(1, n_images, max_counts // 2), np.geomspace(1, n_images, max_counts // 2)
    return np.unique(np.rint(np.concatenate([even, geometric])).astype(np.int64))


def interpolate_risk(ranking: Ranking, accepted: IntArray | Float64Array) -> Float64Array:
    """Return the expected error rate among the n most confident images, ties in random order. [P] -> [P]"""
    errors = np.interp(accepted, np.append(0, ranking.accepted), np.append(0, ranking.errors))
    risk: Float64Array = errors / accepted
    return risk


def class_risks(study: Study, method: str, accept: BoolArray) -> list[ClassRisk]:
    """Return the results of each class with images; `accept` are the decisions, bool [N]."""
    aurocs = class_aurocs(study, method)
    rows = []
    for index, members in _class_members(study).items():
        wrong = members[~study.correct[members]]
        images, errors = len(members), len(wrong)
        accepted, missed = int(accept[members].sum()), int(accept[wrong].sum())
        shares = (images, errors, errors / images, accepted, accepted / images)
        risk = missed / accepted if accepted else None
        rows.append(ClassRisk(study.class_names[index], *shares, missed, risk, aurocs.get(index)))
    return rows


def class_aurocs(study: Study, method: str) -> dict[int, float]:
    """Return the AUROC of a confidence within each class with correct and wrong predictions."""
    return {
        index: auroc(study.correct[members], study.confidences[method][members])
        for index, members in _class_members(study).items()
        if 0 < study.correct[members].sum() < len(members)
    }


def view_contributions(study: Study) -> list[ViewContribution]:
    """Compute the contribution of every view, in order, in one pass over the predictions."""
    highest, masses, correct = _read_views(study)
    rows = list(zip(study.preds.views.texts, correct.mean(axis=0).tolist(), highest.T, strict=True))
    if not study.has_correct_and_wrong:
        return [ViewContribution(text, accuracy) for text, accuracy, _ in rows]
    alone = [ViewContribution(text, accuracy, auroc(study.correct, values)) for text, accuracy, values in rows]
    if len(alone) == 1:
        return alone
    means = {"all views": masses.mean(axis=1)}
    means |= {str(view): np.delete(masses, view, axis=1).mean(axis=1) for view in range(len(alone))}
    compared = Comparison.from_confidences(
        {name: (study.correct, values) for name, values in means.items()},
        ["auroc"],
        level=study.settings.level,
        resamples=RESAMPLES,
        seed=study.settings.seed,
        execution=Execution(progress=study.progress),
    )
    return [
        replace(one, auroc_without=row.value, change=row.difference, change_interval=row.difference_interval)
        for one, row in zip(alone, compared.rows[1:], strict=True)
    ]


def _class_members(study: Study) -> dict[int, IntArray]:
    """Return the image positions of each class with images."""
    order = np.argsort(study.preds.labels, kind="stable")
    classes, starts = np.unique(study.preds.labels[order], return_index=True)
    return dict(zip(classes.tolist(), np.split(order, starts[1:]), strict=True))


def _read_views(study: Study) -> tuple[Float64Array, Float64Array, BoolArray]:
    """Return for each view the highest probability, the mass on the predicted classes and the correctness. [N, V]"""
    preds, top_k = study.preds, study.settings.top_k
    shape = preds.n_images, preds.n_views
    highest, masses, correct = np.empty(shape), np.empty(shape), np.empty(shape, dtype=np.bool_)
    with preds.show_progress("views", 1, enabled=study.progress) as table:
        for rows, _, mass, top_mass, top in iter_view_statistics(table, study.settings.predict_from, top_k):
            masses[rows], highest[rows] = mass, top_mass
            correct[rows] = (top == preds.labels[rows, None, None]).any(axis=2)
    return highest, masses, correct


def find_cells(study: Study) -> ConfusionCells:
    """Return the cells of the confusion matrix with images, sorted by true class, then by predicted class."""
    triples = np.stack([study.preds.labels, study.leading, study.correct], axis=1).astype(np.int64)
    cells, of_image = np.unique(triples, axis=0, return_inverse=True)
    return ConfusionCells(cells[:, 0], cells[:, 1], cells[:, 2].astype(np.bool_), of_image.reshape(-1))


def rank_cells(study: Study, cells: ConfusionCells, first: str) -> Mapping[str, Array]:
    """Return the cell of each image, most confident first, for `first` and further methods up to the size limit.

    A threshold that accepts n images accepts the first n cells, so a page can count any operating point from them.
    uint8, uint16 or uint32 [N] each
    """
    kind = np.min_scalar_type(max(len(cells.labels) - 1, 0))
    n_methods = MAX_CELL_BYTES // (kind.itemsize * study.n_images)
    names = sorted(study.confidences, key=lambda name: name != first)[:n_methods]
    orders = {name: np.argsort(-study.confidences[name], kind="stable") for name in names}
    return {name: cells.of_image[order].astype(kind) for name, order in orders.items()}


def choose_images(study: Study, method: str, most_looks: IntArray | None = None) -> IntArray:
    """Choose the images of the galleries, the most interesting first; ties keep the image order.

    Four of seven are errors, from both ends of the ranking, since both are of interest at any threshold. The others are
    the least confident correct predictions, the largest rank changes by the second look, and the images with the most
    looks, if known.
    """
    rising, falling = (np.argsort(sign * study.confidences[method], kind="stable") for sign in (1, -1))
    changed = np.argsort(-np.abs(rank_changes(study)), kind="stable") if study.second_look else rising[:0]
    surest, least_sure = falling[~study.correct[falling]], rising[~study.correct[rising]]
    others = (rising[study.correct[rising]], changed, rising[:0] if most_looks is None else most_looks)
    lists = [iter(one.tolist()) for one in (surest, least_sure)]
    interleaved = _interleave([*lists, *lists, *(iter(one.tolist()) for one in others)])
    return np.array(list(itertools.islice(interleaved, MAX_IMAGES)), dtype=np.int64)


def rank_changes(study: Study) -> IntArray:
    """Return the number of ranks that each image gains by the second look (negative: loses). int64 [N]"""
    from scipy.stats import rankdata

    # Rank 1 is the most confident; ties get their mean rank.
    before, after = (rankdata(-study.confidences[name]) for name in (study.baseline, study.second_look or ""))
    return np.rint(before - after).astype(np.int64)


def _interleave(lists: list[Iterator[int]]) -> Iterator[int]:
    """Yield one new number of each list in turn until all are exhausted."""
    seen: set[int] = set()
    while lists:
        for one in list(lists):
            number = next((number for number in one if number not in seen), None)
            if number is None:
                lists.remove(one)
            else:
                seen.add(number)
                yield number


def write_headline(study: Study, evaluation: Evaluation, risk: float) -> Headline:
    """Say in one sentence whether the second look detects the errors of this classifier better.

    `evaluation` must include 'auroc' for the baseline and the second look.
    """
    if not study.has_correct_and_wrong:
        outcome = "wrong" if study.n_errors else "correct"
        missing = "correct predictions to distinguish from errors" if study.n_errors else "errors to detect"
        images = _pluralize(study.n_images, "image")
        return Headline(f"The classifier is {outcome} on all {images}: there are no {missing}.", "none")
    auroc, before = (evaluation[name, "auroc"] for name in (study.second_look or study.baseline, study.baseline))
    at_risk = f"at {format_percent(risk, 4)} risk"
    coverages = {name: point_at_risk(one, risk).accepted / study.n_images for name, one in study.rankings.items()}
    coverage = coverages[study.baseline]
    if study.second_look is None:
        detects = f"Without a second look, the {name_method(study.baseline)} detects errors with AUROC"
        sentence = f"{detects} {100 * (auroc.value or 0.0):.1f}"
        end = f"; {at_risk} it accepts {format_percent(coverage, 1)} of the images"
        return Headline(f"{sentence}{'' if study.policy else end}.", "none")
    pair = format_pair(auroc.value or 0.0, before.value or 0.0, 1)
    detects = f"it detects errors with AUROC {pair}"
    gained = coverages[study.second_look] - coverage
    end = f"{at_risk} it accepts {format_pair(coverages[study.second_look], coverage, 0, ' %')} of the images."
    if not gained:
        end = f"{at_risk} both accept {format_percent(coverage, 1)} of the images."
    elif gained * (auroc.difference or 0.0) < 0:
        end = f"but {end}"
    end = f"; {end}" if study.policy is None else "."  # a coverage with one threshold is not that of the policy
    match auroc.verdict:
        case "better":
            return Headline(f"A second look detects errors with AUROC {pair}{end}", "better")
        case "worse":
            return Headline(f"A second look does not help here: {detects}{end}", "worse")
        case "unclear":
            ends = auroc.difference_interval or Interval(0.0, 0.0)
            difference = (
                f"difference {100 * (auroc.difference or 0.0):+.2f}, {format_percent(evaluation.level)} interval "
                f"{100 * ends.low:+.2f} to {100 * ends.high:+.2f}"
            )
            return Headline(f"A second look makes no clear difference here: {detects} ({difference}){end}", "unclear")
        case None:
            n_correct = study.n_images - study.n_errors
            rarer = min((study.n_errors, "error"), (n_correct, "correct prediction"), key=lambda one: one[0])
            chance = f"which may be chance with only {_pluralize(*rarer)}"
            return Headline(f"A second look needs more images for a verdict: {detects}, {chance}{end}", "unclear")


def _evaluate(study: Study, metrics: tuple[str, ...]) -> Evaluation:
    options = {**vars(study.settings), "methods": study.confidences, "metrics": metrics}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SetupWarning)  # already given by the evaluation of the run
        return evaluate(study.preds, execution=Execution(progress=study.progress), **options)


def _pluralize(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
