"""Where the errors are: each true class with its error rate, and what is left of it among the accepted."""

from dataclasses import dataclass

import numpy as np

from secondlook.arrays import BoolArray
from secondlook.errors import MetricError
from secondlook.metrics import auroc
from secondlook.report.operating_points import point_at_risk
from secondlook.report.study import Study


@dataclass(frozen=True)
class ClassRisk:
    """One true class, all of its images and those accepted at the told risk."""

    name: str
    images: int
    errors: int
    accepted: int
    errors_accepted: int
    auroc: float | None
    """How well the confidence tells right from wrong within the class; None where there is only one of them."""

    @property
    def error_rate(self) -> float:
        """Share of wrong answers."""
        return self.errors / self.images

    @property
    def coverage(self) -> float:
        """Share of accepted answers."""
        return self.accepted / self.images

    @property
    def risk(self) -> float | None:
        """Share of wrong answers among the accepted; None where none is accepted."""
        return self.errors_accepted / self.accepted if self.accepted else None


def class_risks(study: Study, risk: float) -> list[ClassRisk]:
    """Return each class that has images, at the threshold that keeps `risk` over all classes."""
    sure = study.confidences[study.shown]
    accept = sure >= point_at_risk(study.rankings[study.shown], risk).threshold
    labels = study.preds.labels
    return [_class_risk(study, name, labels == index, accept) for index, name in _present(study)]


def _present(study: Study) -> list[tuple[int, str]]:
    return [(int(index), study.class_names[index]) for index in np.unique(study.preds.labels)]


def _class_risk(study: Study, name: str, members: BoolArray, accept: BoolArray) -> ClassRisk:
    wrong = ~study.correct & members
    return ClassRisk(
        name,
        int(members.sum()),
        int(wrong.sum()),
        int((accept & members).sum()),
        int((accept & wrong).sum()),
        _auroc_or_none(study.correct[members], study.confidences[study.shown][members]),
    )


def _auroc_or_none(correct: BoolArray, sure: np.typing.NDArray[np.float64]) -> float | None:
    try:
        return auroc(correct, sure)
    except MetricError:  # all right or all wrong
        return None
