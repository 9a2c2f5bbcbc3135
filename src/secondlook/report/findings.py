"""The results of a report: all numbers that the page, the tables and the plots show, and the headline about them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from secondlook.arrays import Float64Array, IntArray
from secondlook.errors import ReportError
from secondlook.evaluation import Estimate, Evaluation, evaluate
from secondlook.metrics import Interval
from secondlook.predictions import Execution
from secondlook.report.breakdowns import (
    ClassRisk,
    ConfusionCells,
    RiskBand,
    ViewContribution,
    class_risks,
    find_cells,
    risk_bands,
    view_contributions,
)
from secondlook.report.galleries import choose_images
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
from secondlook.report.study import Study


@dataclass(frozen=True)
class Headline:
    """The result in one sentence, and whether the second look is better than the baseline."""

    sentence: str
    verdict: Literal["better", "worse", "unclear", "none"]


@dataclass(frozen=True, eq=False)
class Findings:
    """The results for the predictions of a study."""

    study: Study
    evaluation: Evaluation
    headline: Headline
    method: str
    """The method that the page selects at first and that its tables are about."""
    risk: float
    """The tolerated risk that the page selects at first."""
    point: OperatingPoint
    """The operating point of the method at this risk: the certified one after a calibration, where there is one."""
    guaranteed: bool
    """Whether that point is certified."""
    delta: float
    """Failure probability of the guarantees, shared by all methods that have one."""
    risks: Float64Array
    """The tolerated risks of the slider. float64 [R]"""
    certified: Mapping[str, list[OperatingPoint] | str]
    """By method: the certified point for each tolerated risk, or the reason why there is none."""
    adaptive: AdaptiveLooking | str
    """What adaptive looking certifies at this risk and delta, or the reason why that cannot be told."""
    curves: Mapping[str, RiskBand]
    cells: ConfusionCells
    classes: list[ClassRisk]
    views: list[ViewContribution]
    images: IntArray
    """The images of the galleries, by index among the judged images."""

    @property
    def sharing(self) -> tuple[str, ...]:
        """The methods that have a guarantee and share delta."""
        return tuple(name for name, points in self.certified.items() if not isinstance(points, str))


def compute_findings(study: Study, *, risk: float | None = None, delta: float) -> Findings:
    """Compute the results of a study; `risk` is chosen from the error rate by default.

    If methods of the study were calibrated, `risk` and `delta` are those of their calibration.
    """
    if not 0 < delta < 1:
        raise ReportError(
            "is no failure probability between 0 and 1, such as 0.001 for 99.9 % confidence",
            argument="delta",
            value=delta,
        )
    headline_risk = choose_headline_risk(study.error_rate) if risk is None else risk
    risks = slider_risks(study.error_rate, headline_risk)
    metrics = study.settings.metrics
    evaluation = _evaluate(study, tuple(dict.fromkeys([*metrics, coverage_metric(headline_risk)])))
    certified = certify_methods(study, risks, delta)
    certified_points: dict[str, OperatingPoint] = {}
    if study.calibrated:
        place = int(risks.searchsorted(headline_risk))
        points = {name: one[place] for name, one in certified.items() if not isinstance(one, str)}
        certified_points = {name: point for name, point in points.items() if point.accepted}
    method = _choose_method(study, certified_points)
    point = certified_points.get(method) or point_at_risk(study.rankings[method], headline_risk)
    adaptive = study_adaptive_looking(study, method, headline_risk, delta)
    return Findings(
        study=study,
        evaluation=evaluation,
        headline=write_headline(
            study, evaluation if "auroc" in metrics else _evaluate(study, ("auroc",)), headline_risk
        ),
        method=method,
        risk=headline_risk,
        point=point,
        guaranteed=method in certified_points,
        delta=delta,
        risks=risks,
        certified=certified,
        adaptive=adaptive,
        curves=risk_bands(study),
        cells=find_cells(study),
        classes=class_risks(study, method, point),
        views=view_contributions(study),
        images=choose_images(study, method, None if isinstance(adaptive, str) else adaptive.ranked),
    )


def coverage_metric(risk: float) -> str:
    """Return the name of the metric for the coverage at this risk."""
    return f"coverage_at:{risk:.12g}"


def write_headline(study: Study, evaluation: Evaluation, risk: float) -> Headline:
    """Describe in one sentence whether the second look detects the errors of this classifier better.

    `evaluation` must include 'auroc' for the baseline and the second look.
    """
    if not study.has_correct_and_wrong:
        images = _pluralize(study.n_images, "image")
        if study.n_errors:
            missing = f"wrong on all {images}: there are no correct predictions to tell from errors."
        else:
            missing = f"correct on all {images}: there are no errors to detect."
        return Headline(f"The classifier is {missing}", "none")
    auroc, before = (evaluation[name, "auroc"] for name in (study.second_look or study.baseline, study.baseline))
    at_risk = f"at {format_percent(risk, 4)} risk"
    coverage = _coverage(study, study.baseline, risk)
    if study.second_look is None:
        sentence = (
            f"Without a second look, {study.baseline} detects errors with AUROC {100 * (auroc.value or 0.0):.1f}; "
            f"{at_risk} it accepts {format_percent(coverage, 1)} of the images."
        )
        return Headline(sentence, "none")
    pair = format_pair(auroc.value or 0.0, before.value or 0.0, 1)
    detects = f"it detects errors with AUROC {pair}"
    end = f"{_describe_coverage(_coverage(study, study.second_look, risk), coverage, at_risk, auroc)}."
    match auroc.verdict:
        case "better":
            return Headline(f"A second look detects errors with AUROC {pair}; {end}", "better")
        case "worse":
            return Headline(f"A second look does not help here: {detects}; {end}", "worse")
        case "unclear":
            difference = _format_difference(auroc, evaluation.level)
            return Headline(f"A second look makes no clear difference here: {detects} ({difference}); {end}", "unclear")
        case None:
            n_correct = study.n_images - study.n_errors
            is_error_rarer = study.n_errors <= n_correct
            rarer = (study.n_errors, "error") if is_error_rarer else (n_correct, "correct prediction")
            chance = f"which may be chance with only {_pluralize(*rarer)}"
            return Headline(f"A second look cannot be judged on so few images: {detects}, {chance}; {end}", "unclear")


def _choose_method(study: Study, certified: Mapping[str, OperatingPoint]) -> str:
    """Return the calibrated method that `certify` chooses; without a calibration, never depending on the results."""
    if certified:
        return max(certified, key=lambda name: certified[name].accepted)
    return study.calibrated[0] if study.calibrated else study.second_look or study.baseline


def _evaluate(study: Study, metrics: tuple[str, ...]) -> Evaluation:
    options = {**vars(study.settings), "methods": study.confidences, "metrics": metrics}
    return evaluate(study.preds, execution=Execution(progress=study.progress), **options)


def _describe_coverage(after: float, before: float, at_risk: str, auroc: Estimate) -> str:
    """Describe the coverage at a risk, with 'but' if it changes in the other direction than the AUROC."""
    if after == before:
        return f"{at_risk} both accept {format_percent(after, 1)} of the images"
    opposed = (auroc.difference or 0.0) * (after - before) < 0
    accepts = f"{at_risk} it accepts {format_pair(after, before, 0, ' %')} of the images"
    return f"but {accepts}" if opposed else accepts


def _coverage(study: Study, method: str, risk: float) -> float:
    """Return the coverage of a threshold at the risk, which accepts or rejects equal confidences together."""
    return point_at_risk(study.rankings[method], risk).accepted / study.n_images


def _pluralize(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _format_difference(estimate: Estimate, level: float) -> str:
    ends = estimate.difference_interval or Interval(0.0, 0.0)
    return (
        f"difference {100 * (estimate.difference or 0.0):+.2f}, {format_percent(level)} interval "
        f"{100 * ends.low:+.2f} to {100 * ends.high:+.2f}"
    )
