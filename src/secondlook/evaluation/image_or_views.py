"""Whether to predict the class from the image itself or from the mean over its views: both, and a recommendation."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, get_args

from pydantic import Field

from secondlook.arrays import BoolArray, Float64Array
from secondlook.evaluation.comparison import compare_confidences
from secondlook.evaluation.estimates import Estimate
from secondlook.predictions import PredictFrom
from secondlook.tables import format_image_share, format_value

METHOD = "mean"
"""The confidence whose AURC is compared: that of the paper, which exists for every set of views."""


@dataclass(frozen=True)
class PredictFromComparison:
    """Accuracy and AURC of the class predicted from the image itself, and of that from the mean over views."""

    rows: Annotated[tuple[Estimate, ...], Field(min_length=4, max_length=4)]
    """'accuracy' and 'aurc' of 'image', then of 'views' with the paired differences to 'image'."""
    method: str = METHOD
    """The confidence that the AURC is about."""

    def __post_init__(self) -> None:
        expected = [(one, metric) for one in get_args(PredictFrom) for metric in ("accuracy", "aurc")]
        if [(one.method, one.metric) for one in self.rows] != expected:
            raise ValueError(f"rows other than {expected}")

    @property
    def recommended(self) -> PredictFrom | None:
        """What to predict from; None if it makes no clear difference, or cannot be judged.

        Views are recommended only if the accuracy is measurably higher, and the AURC not measurably worse.
        """
        accuracy, aurc = (one.verdict for one in self.rows[2:])
        if "worse" in (accuracy, aurc):
            return "image"
        return "views" if accuracy == "better" else None

    def describe(self, predict_from: PredictFrom, top_k: int = 1) -> str | None:
        """Return one sentence that recommends what to predict from; None if there are too few errors to judge."""
        _, _, accuracy, aurc = self.rows
        if accuracy.verdict is None or aurc.verdict is None:
            return None
        name = "accuracy" if top_k == 1 else f"top-{top_k} accuracy"
        numbers = f"{name} {self._format_accuracies()}, AURC ({self.method}) {self._format_aurcs()}"
        if self.recommended is None:
            return f"Predicting from the views makes no clear difference: {numbers}."
        if self.recommended == predict_from:
            advice, repair = f"Keep predicting from the {predict_from}", ""
        else:
            advice, repair = f"Predict from the {self.recommended}", f"; pass predict_from={self.recommended!r}"
        link = "" if self.recommended == "views" else "from the views, "
        return f"{advice}: {link}{numbers}{repair}."

    def to_dict(self) -> dict[str, object]:
        """Return the comparison as plain values for JSON."""
        return {"method": self.method, "rows": [one.to_dict() for one in self.rows]}

    def _format_accuracies(self) -> str:
        """Return such as '93.2 % instead of 91.7 % (+1.4 [+1.1, +1.8] points)'."""
        before, _, after, _ = self.rows
        image, views = (format_image_share(one.value or 0.0, one.images) for one in (before, after))
        ends = after.difference_interval
        assert ends is not None, "there is a verdict"
        points, low, high = (
            format_image_share(one, after.images, sign="+", unit="")
            for one in (after.difference or 0.0, ends.low, ends.high)
        )
        return f"{views} instead of {image} ({points} [{low}, {high}] points)"

    def _format_aurcs(self) -> str:
        before, after = (format_value(self.rows[index].value or 0.0) for index in (1, 3))
        return f"{after} instead of {before}"


def compare_image_and_views(
    correct: Mapping[PredictFrom, BoolArray],
    means: Mapping[PredictFrom, Float64Array],
    *,
    level: float,
    resamples: int,
    seed: int,
    progress: bool,
) -> PredictFromComparison | None:
    """Compare both predictions of N labeled images; None if there is only one view, so that they are the same.

    `correct` and `means` say for each whether it is correct, bool [N], and its confidence `METHOD`, float64 [N]; with
    one view there are no means.
    """
    if not means:
        return None
    entries = {one: (correct[one], means[one]) for one in get_args(PredictFrom)}
    compared = compare_confidences(
        entries, ["accuracy", "aurc"], level=level, resamples=resamples, seed=seed, progress=progress
    )
    return PredictFromComparison(compared.rows)
