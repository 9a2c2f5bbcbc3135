"""Everything that a report shows, computed once: the page, the tables and the plots are drawn from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from secondlook.arrays import Float64Array
from secondlook.errors import ReportError
from secondlook.evaluation import DEFAULT_METRICS, Evaluation, evaluate
from secondlook.metrics import ReliabilityCurve
from secondlook.report.class_risks import ClassRisk, class_risks
from secondlook.report.curves import DrawnCurve, Histogram, drawn_curves, histogram_of, reliability_by
from secondlook.report.galleries import Gallery, galleries_of
from secondlook.report.headline import Headline, coverage_metric, headline
from secondlook.report.operating_points import Guarantees, guarantees_of, risks_to_choose_from, telling_risk
from secondlook.report.study import Study
from secondlook.report.view_contributions import ViewContribution, view_contributions


@dataclass(frozen=True, eq=False)
class Findings:
    """What was found about the predictions of a study."""

    study: Study
    evaluation: Evaluation
    headline: Headline
    risk: float
    """The tolerated risk that the result is told at."""
    delta: float
    risks: Float64Array
    """The tolerated risks to choose from. float64 [R]"""
    guarantees: Mapping[str, Guarantees | str]
    curves: Mapping[str, DrawnCurve]
    histograms: Mapping[str, Histogram]
    reliability: Mapping[str, ReliabilityCurve]
    """For the methods that can be read as probabilities."""
    classes: list[ClassRisk]
    views: list[ViewContribution]
    galleries: list[Gallery]


def found(
    study: Study,
    evaluation: Evaluation | None,
    risk: float | None,
    delta: float,
    *,
    metrics: Sequence[str] = DEFAULT_METRICS,
    level: float = 0.95,
    resamples: int = 500,
) -> Findings:
    """Compute all of it; an evaluation that was made before is taken over as it is."""
    if not 0 < delta < 1:
        raise ReportError(f"delta is {delta}, expected a number between 0 and 1, such as 0.001 for 99.9 % certainty.")
    told = telling_risk(study.error_rate) if risk is None else risk
    risks = risks_to_choose_from(study.error_rate, told)
    if evaluation is None:
        asked = dict.fromkeys([*metrics, coverage_metric(told)])
        evaluation = _evaluated(study, tuple(asked), level, resamples)
    _check_same_images(study, evaluation)
    curves = {name: reliability_by(study, name) for name in study.confidences}
    return Findings(
        study=study,
        evaluation=evaluation,
        headline=headline(study, _numbers_to_tell(study, evaluation), told),
        risk=told,
        delta=delta,
        risks=risks,
        guarantees={name: guarantees_of(study, name, risks, delta) for name in study.confidences},
        curves=drawn_curves(study, evaluation.level),
        histograms={name: histogram_of(study, name) for name in study.confidences},
        reliability={name: curve for name, curve in curves.items() if curve is not None},
        classes=class_risks(study, told),
        views=view_contributions(study, evaluation.level),
        galleries=galleries_of(study, told),
    )


def _evaluated(study: Study, metrics: tuple[str, ...], level: float, resamples: int) -> Evaluation:
    return evaluate(
        study.preds,
        study.confidences,
        metrics,
        predict_from=study.predict_from,
        top_k=study.top_k,
        baseline=study.baseline,
        level=level,
        resamples=resamples,
        seed=study.seed,
        progress=study.progress,
    )


def _numbers_to_tell(study: Study, evaluation: Evaluation) -> Evaluation:
    """Return the evaluation where it holds what the sentence says, or another one that does."""
    held = {(row.method, row.metric) for row in evaluation.rows if row.part == evaluation.parts[0]}
    methods = [name for name in (study.baseline, study.second_look) if name]
    complete = all((method, "auroc") in held for method in methods)
    same = evaluation.baseline == study.baseline and evaluation.rows[0].images == study.n_images
    return evaluation if complete and same else _evaluated(study, ("auroc",), evaluation.level, evaluation.resamples)


def _check_same_images(study: Study, evaluation: Evaluation) -> None:
    if (evaluation.predict_from, evaluation.top_k) != (study.predict_from, study.top_k):
        raise ReportError(
            f"the evaluation is about predict_from={evaluation.predict_from!r}, top_k={evaluation.top_k} and the report about predict_from={study.predict_from!r}, "
            f"top_k={study.top_k}; give both the same."
        )
    if (study.n_images, study.n_errors) not in {(row.images, row.errors) for row in evaluation.rows}:
        raise ReportError(
            f"the evaluation has no part with the {study.n_images} images and {study.n_errors} errors of these "
            "predictions; make it from the same predictions."
        )
