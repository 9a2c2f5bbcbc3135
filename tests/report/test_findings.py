"""The sections of a report against slow, obvious versions of themselves."""

from dataclasses import replace

import numpy as np
import pytest

from secondlook.errors import ReportError
from secondlook.estimators import confidence
from secondlook.evaluation import evaluate
from secondlook.metrics import auroc, risk_coverage
from secondlook.predictions import Predictions
from secondlook.report.class_risks import class_risks
from secondlook.report.curves import drawn_curves, histogram_of, reliability_by, spread_counts
from secondlook.report.findings import found
from secondlook.report.galleries import MOST_IMAGES, galleries_of
from secondlook.report.operating_points import point_at_risk
from secondlook.report.study import Study, studied
from secondlook.report.view_contributions import view_contributions


@pytest.fixture
def study(preds: Predictions) -> Study:
    return studied(preds, ["msr", "mean", "bootstrap"], predict_from="image", top_k=1, seed=0, class_names=None)


def test_the_curve_is_that_of_the_metrics(study: Study) -> None:
    for name, curve in drawn_curves(study, 0.95).items():
        whole = risk_coverage(study.correct, study.confidences[name])
        np.testing.assert_allclose(curve.risk, whole.risk[curve.accepted - 1], atol=1e-12)
        assert (curve.low <= curve.high).all()
        middle = np.interp(curve.band_coverage, whole.coverage, whole.risk)
        assert ((curve.low <= middle) & (middle <= curve.high)).mean() > 0.9


@pytest.mark.parametrize(("n_images", "most"), [(1, 10), (10, 10), (1000, 100), (50_000, 1000)])
def test_drawn_points_run_from_one_image_to_all(n_images: int, most: int) -> None:
    counts = spread_counts(n_images, most)
    assert counts[0] == 1
    assert counts[-1] == n_images
    assert len(counts) <= most
    assert (np.diff(counts) > 0).all()


def test_histograms_hold_every_image_once(study: Study) -> None:
    for name in study.confidences:
        one = histogram_of(study, name)
        assert one.right.sum() == study.correct.sum()
        assert one.wrong.sum() == study.n_errors
        assert (one.edges[0], one.edges[-1]) == (0, 1)


def test_a_histogram_of_what_is_no_share(preds: Predictions) -> None:
    study = studied(preds, ["entropy"], predict_from="image", top_k=1, seed=0, class_names=None)
    one = histogram_of(study, "entropy")
    assert one.right.sum() + one.wrong.sum() == preds.n_images
    flat = replace(study, confidences={"entropy": np.full(preds.n_images, -2.0)})
    assert histogram_of(flat, "entropy").right.sum() == study.correct.sum()


def test_only_probabilities_have_a_reliability(study: Study) -> None:
    curve = reliability_by(study, "mean")
    assert curve is not None
    assert curve.images.sum() == study.n_images
    assert reliability_by(study, "bootstrap") is None


def test_classes_by_hand(study: Study) -> None:
    sure = study.confidences["mean"]
    accepted = sure >= point_at_risk(study.rankings["mean"], 0.1).threshold
    rows = class_risks(study, 0.1)
    assert [row.name for row in rows] == ["cat", "dog"], "classes without an image are left out"
    for label, row in enumerate(rows):
        here = study.preds.labels == label
        assert row.images == here.sum()
        assert row.errors == (here & ~study.correct).sum()
        assert row.accepted == (here & accepted).sum()
        assert row.errors_accepted == (here & accepted & ~study.correct).sum()
    assert rows[0].auroc is None, "every cat is right, so there is nothing to tell apart"


def test_views_alone_and_left_out(preds: Predictions, study: Study) -> None:
    rows = view_contributions(study, 0.95)
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


def test_a_single_view_cannot_be_left_out(preds: Predictions) -> None:
    study = studied(preds.select(views="identity"), None, predict_from="image", top_k=1, seed=0, class_names=None)
    (row,) = view_contributions(study, 0.95)
    assert row.auroc_alone is not None
    assert (row.auroc_without, row.change, row.change_interval) == (None, None, None)


def test_equally_sure_images_come_in_their_own_order(study: Study) -> None:
    sure = {name: np.full(study.n_images, 0.5) for name in study.confidences}
    errors, right, *_ = galleries_of(replace(study, confidences=sure), 0.1)
    assert errors.images.tolist() == np.flatnonzero(~study.correct)[:MOST_IMAGES].tolist()
    assert right.images.tolist() == np.flatnonzero(study.correct)[:MOST_IMAGES].tolist()


def test_galleries_show_what_they_say(study: Study) -> None:
    errors, right, changed = galleries_of(study, 0.1)
    sure = study.confidences["mean"]
    assert not study.correct[errors.images].any()
    assert sorted(sure[errors.images], reverse=True) == sure[errors.images].tolist()
    assert sure[errors.images].min() >= np.delete(sure, errors.images)[~np.delete(study.correct, errors.images)].max()
    assert study.correct[right.images].all()
    assert sure[right.images].max() <= np.delete(sure, right.images)[np.delete(study.correct, right.images)].min()
    assert changed.rank_changes is not None
    assert changed.now_accepted is not None
    before, after = (
        study.confidences[name] >= point_at_risk(study.rankings[name], 0.1).threshold for name in ("msr", "mean")
    )
    assert (before[changed.images] != after[changed.images]).all()
    assert (after[changed.images] == changed.now_accepted).all()
    for index, rise in zip(changed.images, changed.rank_changes, strict=True):
        place_before, place_after = (
            (study.confidences[name] > study.confidences[name][index]).sum() for name in ("msr", "mean")
        )
        assert rise == place_before - place_after
    assert (np.diff(np.abs(changed.rank_changes)) <= 0).all()
    assert all(len(gallery.images) <= MOST_IMAGES for gallery in (errors, right, changed))


def test_an_evaluation_is_taken_over(preds: Predictions, study: Study) -> None:
    given = evaluate(preds, ["msr", "mean"], ["aurc"], resamples=20)
    findings = found(study, given, 0.1, 0.05)
    assert findings.evaluation is given
    assert findings.headline.verdict == "better", "what the sentence needs beyond it is computed"


def test_an_evaluation_of_something_else_is_refused(preds: Predictions, study: Study) -> None:
    with pytest.raises(ReportError, match="by='D', k=1 and the report about by='x'"):
        found(study, evaluate(preds, ["msr"], ["aurc"], predict_from="views", resamples=5), None, 0.05)
    few = preds.select(images=np.arange(50))
    with pytest.raises(ReportError, match="no part with the 600 images"):
        found(study, evaluate(few, ["msr"], ["aurc"], resamples=5), None, 0.05)


def test_what_stands_for_the_second_look(preds: Predictions) -> None:
    def chosen(*methods: str) -> tuple[str, str | None]:
        study = studied(preds, methods, predict_from="image", top_k=1, seed=0, class_names=None)
        return study.baseline, study.second_look

    assert chosen("mean", "msr") == ("msr", "mean")
    assert chosen("msr", "entropy", "bootstrap") == ("msr", "bootstrap")
    assert chosen("mean", "entropy") == ("mean", "entropy")
    assert chosen("msr") == ("msr", None)


def test_the_seed_reaches_the_bootstrap(preds: Predictions) -> None:
    study = studied(preds, ["bootstrap"], predict_from="image", top_k=1, seed=5, class_names=None)
    np.testing.assert_array_equal(study.confidences["bootstrap"], confidence(preds, "bootstrap", seed=5))
