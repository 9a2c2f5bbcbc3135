"""The plot of a diagnosis draws its numbers, one row per view."""

import numpy as np
import pytest

from secondlook.diagnosis import diagnose_views
from secondlook.errors import DiagnosisError
from secondlook.predictions import Predictions
from secondlook.report import plots


def test_rows_are_the_numbers_of_the_diagnosis(preds: Predictions) -> None:
    axes, diagnosis = plots.draw_views(preds, quantity="accuracy"), diagnose_views(preds)
    drawn = {
        int(row): (float(value), points.get_label())
        for points in axes.collections
        for value, row in np.asarray(points.get_offsets())
    }
    expected = {
        place: (float((preds.probabilities[:, place].argmax(axis=1) == preds.labels).mean()), status)
        for place, status in enumerate(row.status for row in diagnosis)
    }
    assert drawn == expected
    assert {status for _, status in drawn.values()} >= {"usable", "harmful"}
    assert [text.get_text() for text in axes.get_yticklabels()] == list(preds.views.texts)
    axes.figure.canvas.draw()


def test_default_quantity_depends_on_labels(preds: Predictions) -> None:
    unlabeled = Predictions(logits=preds.logits, views=preds.views)
    assert "AUROC" in plots.draw_views(preds).get_xlabel()
    assert "same prediction" in plots.draw_views(unlabeled).get_xlabel()
    assert "same prediction" in plots.draw_views(diagnose_views(preds), quantity="agreement").get_xlabel()
    with pytest.raises(DiagnosisError, match="'accuracy' needs labels"):
        plots.draw_views(unlabeled, quantity="accuracy")
    with pytest.raises(DiagnosisError, match=r"'agrement'.*'agreement'"):
        plots.draw_views(preds, quantity="agrement")  # type: ignore[arg-type]
