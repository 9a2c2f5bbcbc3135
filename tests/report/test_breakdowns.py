"""Results per class and per view against counting by hand."""

import numpy as np
import pytest

from secondlook.estimators import confidence
from secondlook.metrics import auroc
from secondlook.predictions import Predictions
from secondlook.report.findings import class_aurocs, class_risks, view_contributions
from secondlook.report.operating_points import NOTHING_ACCEPTED, point_at_risk
from secondlook.report.study import Study, build_study
from secondlook.views import ViewSet


@pytest.fixture
def study(preds: Predictions) -> Study:
    return build_study(preds, methods=["msr", "mean"])


def test_class_counts_equal_counts_by_hand(study: Study) -> None:
    point = point_at_risk(study.rankings["mean"], 0.1)
    accepted = study.confidences["mean"] >= point.threshold
    rows = class_risks(study, "mean", point)
    assert [row.name for row in rows] == ["cat", "dog"], "classes without images are not listed"
    for label, row in enumerate(rows):
        members = study.preds.labels == label
        assert row.images == members.sum()
        assert row.errors == (members & ~study.correct).sum()
        assert row.accepted == (members & accepted).sum()
        assert row.errors_accepted == (members & accepted & ~study.correct).sum()
    assert rows[0].auroc is None, "every cat is correct, so AUROC is undefined"


def test_auroc_of_a_class_is_that_of_its_images() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 400)
    labels[labels == 2] = 3
    logits = rng.normal(size=(400, 2, 4)) + 2 * np.eye(4)[labels][:, None]
    preds = Predictions(logits=logits.astype(np.float32), views=ViewSet(["identity", "hflip"]), labels=labels)
    study = build_study(preds, methods=["msr", "mean"])
    aurocs = class_aurocs(study, "msr")
    assert list(aurocs) == [0, 1, 3]
    for label, value in aurocs.items():
        members = labels == label
        assert value == auroc(study.correct[members], study.confidences["msr"][members])
    assert [row.auroc for row in class_risks(study, "msr", NOTHING_ACCEPTED)] == list(aurocs.values())


def test_view_contributions_equal_those_of_selected_views(preds: Predictions, study: Study) -> None:
    rows = view_contributions(study)
    texts = preds.views.texts
    assert tuple(row.text for row in rows) == texts
    for row in rows:
        assert row.auroc_alone == auroc(study.correct, confidence(preds, f"view:{row.text}"))
    for row in rows[1:]:
        others = [text for text in texts[1:] if text != row.text]
        without = auroc(study.correct, confidence(preds, "mean", views=["identity", *others]))
        assert row.auroc_without == pytest.approx(without, abs=1e-12)
        assert row.change == pytest.approx(without - auroc(study.correct, study.confidences["mean"]), abs=1e-12)
        assert row.change is not None
        assert row.change_interval is not None
        assert row.change_interval.low <= row.change <= row.change_interval.high
    assert rows[0].accuracy == study.correct.mean()


def test_single_view_has_no_change(preds: Predictions) -> None:
    (row,) = view_contributions(build_study(preds.select(views="identity")))
    assert row.auroc_alone is not None
    assert (row.auroc_without, row.change, row.change_interval) == (None, None, None)
