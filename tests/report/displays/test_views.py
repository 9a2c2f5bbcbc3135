"""The display of a diagnosis draws its numbers, one row per view."""

import numpy as np
import pytest

from secondlook.diagnosis import diagnose_views
from secondlook.errors import DiagnosisError
from secondlook.predictions import Predictions
from secondlook.report import ViewsDisplay


def test_rows_are_the_numbers_of_the_diagnosis(preds: Predictions) -> None:
    display = ViewsDisplay.from_predictions(preds, quantity="accuracy")
    drawn = {
        int(row): (float(value), status)
        for status, points in display.points_.items()
        for value, row in np.asarray(points.get_offsets())
    }
    expected = {
        place: (float((preds.probabilities[:, place].argmax(axis=1) == preds.labels).mean()), status)
        for place, status in enumerate(row.status for row in display.diagnosis)
    }
    assert drawn == expected
    assert {status for _, status in drawn.values()} >= {"usable", "harmful"}
    assert [text.get_text() for text in display.ax_.get_yticklabels()] == list(preds.views.texts)
    display.figure_.canvas.draw()


def test_default_quantity_depends_on_labels(preds: Predictions) -> None:
    unlabeled = Predictions(logits=preds.logits, views=preds.views)
    assert "AUROC" in ViewsDisplay.from_predictions(preds).ax_.get_xlabel()
    assert "same prediction" in ViewsDisplay.from_predictions(unlabeled).ax_.get_xlabel()
    display = ViewsDisplay(diagnose_views(preds))
    assert display.plot(quantity="agreement") is display
    with pytest.raises(DiagnosisError, match="'accuracy' needs labels"):
        ViewsDisplay.from_predictions(unlabeled, quantity="accuracy")
    with pytest.raises(DiagnosisError, match=r"'agrement'.*'agreement'"):
        ViewsDisplay.from_predictions(preds, quantity="agrement")
