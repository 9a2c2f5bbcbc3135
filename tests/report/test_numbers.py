"""The numbers of a report against counting by hand, the metrics, `evaluate` and `certify`."""

import math
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook.arrays import BoolArray, Float64Array
from secondlook.estimators import confidence
from secondlook.evaluation import evaluate
from secondlook.metrics import auroc, coverage_at, rank
from secondlook.policies import certify, threshold_for
from secondlook.predictions import Predictions
from secondlook.report.operating_points import OperatingPoint, describe_decisions, point_at_risk
from secondlook.report.study import name_method
from tests.report.conftest import Report, Write, make_predictions, read_image
from tests.report.references import point_at_coverage

images = st.lists(
    st.tuples(st.booleans(), st.sampled_from([0.1, 0.2, 0.25, 0.5, 0.75, 0.9, 1.0])), min_size=1, max_size=40
)


def parse(text: str) -> float | None:
    return float(text) if text else None


def try_every_threshold(correct: BoolArray, sure: Float64Array, risk: float) -> tuple[float, int, int]:
    """Return the threshold with the highest coverage at a risk, and its numbers of accepted images and errors."""
    best = (math.inf, 0, 0)
    for threshold in sorted(set(sure.tolist()), reverse=True):
        accepted = sure >= threshold
        errors = int((accepted & ~correct).sum())
        if errors <= risk * accepted.sum() + 1e-9:
            best = (threshold, int(accepted.sum()), errors)
    return best


@settings(max_examples=60)
@given(images, st.sampled_from([0.0, 0.1, 0.25, 1 / 3, 0.5, 1.0]))
def test_point_at_risk_has_the_highest_coverage_and_is_described(listed: list[tuple[bool, float]], risk: float) -> None:
    correct, sure = np.array([one[0] for one in listed]), np.array([one[1] for one in listed])
    point = point_at_risk(rank(correct, sure), risk)
    assert (point.threshold, point.accepted, point.errors) == try_every_threshold(correct, sure, risk)
    accept = sure >= point.threshold
    numbers = [len(correct), accept.sum(), (accept & ~correct).sum(), (~accept).sum()]
    numbers += [(~accept & ~correct).sum(), (~correct).sum()] if not correct.all() else []
    sentence = describe_decisions(len(correct), int((~correct).sum()), point)
    assert [int(text) for text in re.findall(r"\d+", sentence)] == numbers


def test_sentence_about_decisions() -> None:
    for n_images, n_errors, point, told in (
        (1000, 112, (775, 15), "Of 1,000 images, 775 can be accepted automatically; 15 of those were wrong. "),
        (1000, 112, (775, 15), "225 go to review, with 97 of the 112 errors among them."),
        (3, 1, (2, 1), "1 of those was wrong. 1 goes to review, with 0 of the 1 error among them."),
        (2, 0, (2, 0), "0 go to review."),
    ):
        assert told in describe_decisions(n_images, n_errors, OperatingPoint(0.8, *point))


@pytest.mark.parametrize("coverage", [0.001, 0.333, 0.5, 0.999, 1.0])
def test_point_at_coverage_equals_threshold_for(preds: Predictions, coverage: float) -> None:
    rule = threshold_for(preds, "mean", coverage=coverage)
    point = point_at_coverage(rank(preds.correct(), confidence(preds, "mean")), coverage)
    assert rule.calibration is not None
    counts = (rule.calibration.accepted, rule.calibration.errors)
    assert (point.threshold, point.accepted, point.errors) == (rule.threshold, *counts)


def test_page_and_tables_hold_the_rankings(preds: Predictions, report: Report) -> None:
    data, correct = report.data, preds.correct()
    assert [method["name"] for method in data["methods"]] == ["msr", "mean", "bootstrap", "blend"]
    assert (data["images"], data["errors"]) == (600, (~correct).sum())
    assert (data["risk"], data["delta"], data["method"]) == (0.1, 0.05, "blend")
    for method in data["methods"]:
        sure = confidence(preds, method["name"])
        ranking, curve = rank(correct, sure), rank(correct, sure).risk_coverage()
        assert method["complete"]
        np.testing.assert_array_equal(method["thresholds"], ranking.confidences)
        np.testing.assert_array_equal(np.cumsum(method["sizes"], dtype=np.int64), ranking.accepted)
        np.testing.assert_array_equal(np.cumsum(method["wrong"], dtype=np.int64), ranking.errors)
        for row in report.rows("operating-points", method=method["name"]):
            threshold, accepted, errors = try_every_threshold(correct, sure, float(row["tolerated_risk"]))
            assert (float(row["threshold"]), int(row["accepted"])) == (threshold, accepted)
            assert (int(row["errors_accepted"]), int(row["rejected"])) == (errors, 600 - accepted)
        rows = report.rows("risk-coverage", method=method["name"])
        accepted_counts = np.array([int(row["accepted"]) for row in rows])
        risks = [float(row["risk"]) for row in rows]
        np.testing.assert_allclose(risks, curve.risk[accepted_counts - 1], atol=1e-12)
        bands = np.array([list(row.values())[1:] for row in report.rows("risk-coverage-bands", method=method["name"])])
        coverage, low, high = bands.astype(np.float64).T
        assert (low <= high).all()
        middle = np.interp(coverage, curve.coverage, curve.risk)
        assert ((low <= middle) & (middle <= high)).mean() > 0.9
    assert {row["method"] for row in report.rows("reliability")} == {"msr", "mean"}, "the others are no probabilities"
    assert [(row["class"], row["auroc"]) for row in report.rows("classes")] == [("cat", ""), ("dog", "")], "no errors"
    blend = rank(correct, confidence(preds, "blend"))
    sentence = describe_decisions(600, int((~correct).sum()), point_at_risk(blend, 0.1))
    assert report.element("lead") == sentence
    assert report.text.index('id="lead"') < report.text.index("AUROC"), "the lead comes before AUROC"


@pytest.mark.parametrize("limit", [6, 20, 200])
def test_large_data_sets_keep_some_thresholds_with_exact_counts(
    write: Write, mixed: Predictions, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secondlook.report.page.MAX_THRESHOLDS", limit)
    for method in write(mixed).data["methods"]:
        sure, correct = confidence(mixed, method["name"]), mixed.correct()
        assert len(method["thresholds"]) <= limit // 2
        assert not method["complete"]
        kept = zip(method["thresholds"], np.cumsum(method["sizes"]), np.cumsum(method["wrong"]), strict=True)
        for threshold, accepted, errors in kept:
            assert accepted == (sure >= threshold).sum()
            assert errors == ((sure >= threshold) & ~correct).sum()
        assert method["sizes"].sum() == 300


@pytest.mark.parametrize(
    ("errors", "n_images", "risk"),
    [
        *((661, 10_000, 0.01), (3, 10, 0.05), (24, 100, 0.05), (12, 100, 0.02), (4, 1000, 0.001), (0, 50, 0.01)),
        *((1, 9000, 2e-5), (1, 2, 0.1), (999, 1000, 0.2), (20, 20, 0.2)),
    ],
)
def test_risks_are_round_and_run_to_the_error_rate(write: Write, errors: int, n_images: int, risk: float) -> None:
    values = np.linspace(0.5, 0.9, n_images)
    preds = make_predictions(values, values, np.arange(n_images) < errors)
    report = write(preds.select(views="identity"), methods=["msr"], artifacts=True)
    data = report.data
    risks, counts = data["risks"], [int(row["accepted"]) for row in report.rows("risk-coverage")]
    assert data["risk"] == risk
    assert risks[0] == 0
    assert errors / n_images <= risks[-1] <= 1
    assert risk in risks
    assert 5 < len(risks) <= 103
    assert (np.diff(risks) > 0).all()
    assert (counts[0], counts[-1]) == (1, n_images)
    assert len(counts) <= 1000
    assert (np.diff(counts) > 0).all()


@pytest.mark.parametrize("methods", [["mean"], ["msr", "mean", "bootstrap", "zero"]])
def test_certified_points_equal_certify_with_shared_delta(write: Write, preds: Predictions, methods: list[str]) -> None:
    report = write(preds, methods=methods, risk=0.15, delta=0.1, artifacts=True)
    able = [name for name in methods if name != "bootstrap"]
    certified = 0
    for name in able:
        for row in report.rows("operating-points", method=name):
            risk, told = float(row["tolerated_risk"]), [parse(one) for one in list(row.values())[-3:]]
            if risk in (0.02, 0.1, 0.15, 0.2):
                rule = certify(preds, name, risk=risk, delta=0.1 / len(able))
                assert rule.calibration is not None
                point = [rule.threshold, rule.calibration.accepted, rule.calibration.errors]
                assert told == (point if rule.certified else [None] * 3)
                certified += rule.certified
            elif risk in (0, 1):
                assert told == [None] * 3
    assert certified > 0
    data = report.data
    assert data["sharing"] == [name_method(name) for name in able]
    place = data["risks"].tolist().index(0.15)
    rule = certify(preds, able, risk=0.15, delta=0.1)
    assert rule.calibration is not None
    best = max(one["certified"]["accepted"][place] for one in data["methods"] if one["certified"])
    assert best == rule.calibration.accepted
    if len(able) > 1:
        assert certify(preds, rule.method, risk=0.15, delta=0.1).coverage > rule.coverage, "it has the whole delta"
        assert "'bootstrap'" in data["methods"][2]["no_guarantee"]
        assert data["methods"][2]["certified"] is None


def test_copies_of_images_count_only_if_wrong(write: Write, preds: Predictions) -> None:
    few = Predictions(probabilities=preds.probabilities[:200], views=preds.views, labels=preds.labels[:200])
    tripled = np.repeat(np.arange(200), 3)
    ids = [f"{index}-{copy}" for index in range(200) for copy in range(3)]
    copied = Predictions(
        probabilities=few.probabilities[tripled], views=preds.views, labels=few.labels[tripled], ids=ids
    )
    options: dict[str, Any] = {"methods": ["mean"], "risk": 0.2, "delta": 0.1}
    copies = [id_ for id_ in ids if not id_.endswith("-0")]
    points = []
    for duplicates in (copies, []):
        data = write(copied, duplicates=duplicates, **options).data
        points.append({name: one[data["risks"] == 0.2][0] for name, one in data["methods"][0]["certified"].items()})
    rule, values = certify(copied, "mean", risk=0.2, delta=0.1, duplicates=copies), confidence(few, "mean")
    assert points[0]["thresholds"] == rule.threshold
    assert points[0]["accepted"] == 3 * np.sum(values >= rule.threshold), "all images are counted as accepted"
    assert points[1]["accepted"] > points[0]["accepted"]


@pytest.mark.parametrize("top_k", [1, 2])
def test_cells_and_classes_count_every_image(write: Write, mixed: Predictions, top_k: int) -> None:
    """The first n cells of a method are those of the n images that a threshold accepts."""
    report = write(mixed, top_k=top_k, risk=0.1, artifacts=True)
    data, correct = report.data, mixed.correct(top_k=top_k)
    leading = mixed.probabilities[:, 0].argmax(axis=1)
    of_image = list(zip(mixed.labels.tolist(), leading.tolist(), correct.tolist(), strict=True))
    keys = list(zip(*(data["cells"][name].tolist() for name in ("labels", "predicted", "correct")), strict=True))
    assert dict(zip(keys, data["cells"]["images"], strict=True)) == Counter(of_image)
    assert keys == sorted(keys)
    mixed_up = [key for key in keys if (key[0] == key[1]) != key[2]]
    assert bool(mixed_up) == (top_k > 1), "with top 2, the label may be the second class"
    for method in data["methods"]:
        sure = confidence(mixed, method["name"], top_k=top_k)
        assert method["cells"].dtype == np.uint8
        for threshold, accepted in zip(method["thresholds"], np.cumsum(method["sizes"]), strict=True):
            counts = Counter(one for one, value in zip(of_image, sure, strict=True) if value >= threshold)
            assert Counter(keys[cell] for cell in method["cells"][:accepted]) == counts
    sure = confidence(mixed, "mean", top_k=top_k)
    threshold, _, _ = try_every_threshold(correct, sure, 0.1)
    accept = sure >= threshold
    rows, classes = report.rows("confusions"), report.rows("classes")
    accepted_cells = Counter(one for one, kept in zip(of_image, accept, strict=True) if kept)
    assert [int(row["accepted"]) for row in rows] == [accepted_cells[key] for key in keys]
    assert [row["class"] for row in classes] == [f"class {label}" for label in (0, 1, 3, 4)], "only those with images"
    for label, row in zip((0, 1, 3, 4), classes, strict=True):
        members = mixed.labels == label
        chosen = [members, members & ~correct, members & accept, members & accept & ~correct]
        assert [int(row[name]) for name in ("images", "errors", "accepted", "errors_accepted")] == [*map(sum, chosen)]
        assert float(row["auroc"]) == auroc(correct[members], sure[members])


def test_pages_of_many_cells(write: Write, mixed: Predictions, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    many = Predictions(logits=rng.normal(size=(300, 2, 40)), views="identity hflip", labels=rng.integers(0, 40, 300))
    data = write(many).data
    assert len(data["cells"]["labels"]) > 256
    assert data["methods"][1]["cells"].dtype == np.uint16
    for limit, kept in ((500, [False, True]), (299, [False, False])):
        monkeypatch.setattr("secondlook.report.findings.MAX_CELL_BYTES", limit)
        assert [one["cells"] is not None for one in write(mixed).data["methods"]] == kept, "the first method has room"


def test_view_contributions_equal_those_of_selected_views(write: Write, preds: Predictions) -> None:
    rows, correct = write(preds, artifacts=True).rows("views"), preds.correct()
    texts = preds.views.texts
    assert tuple(row["view"] for row in rows) == texts
    assert float(rows[0]["accuracy"]) == correct.mean()
    everything = auroc(correct, confidence(preds, "mean"))
    for row in rows:
        assert float(row["auroc_alone"]) == auroc(correct, confidence(preds, f"view:{row['view']}"))
        change, low, high = (float(row[name]) for name in ("change", "change_low", "change_high"))
        assert low <= change <= high
        others = [text for text in texts[1:] if text != row["view"]]
        if len(others) < 2:
            without = auroc(correct, confidence(preds, "mean", views=["identity", *others]))
            assert float(row["auroc_without"]) == pytest.approx(without, abs=1e-12)
            assert change == pytest.approx(without - everything, abs=1e-12)
    (row,) = write(preds.select(views="identity"), artifacts=True).rows("views")
    assert row["auroc_alone"]
    assert {row[name] for name in ("auroc_without", "change", "change_low", "change_high")} == {""}


@pytest.mark.parametrize(
    ("methods", "compared"),
    [
        (["mean", "msr"], ["msr", "mean"]),
        (["msr", "zero", "bootstrap"], ["msr", "bootstrap"]),
        (["mean", "zero"], ["mean", "zero"]),
        (["msr", "mean", "blend"], ["msr", "blend"]),
        (["msr"], ["msr"]),
    ],
)
def test_compared_methods_are_fixed(write: Write, preds: Predictions, methods: list[str], compared: list[str]) -> None:
    assert write(preds, methods=methods, seed=5).data["compared"] == compared


@pytest.mark.parametrize(
    "options", [{}, {"predict_from": "views", "top_k": 2, "level": 0.9}, {"methods": ["bootstrap"], "seed": 5}]
)
def test_evaluation_and_confidences_equal_library(write: Write, preds: Predictions, options: dict[str, Any]) -> None:
    options = {"methods": ["msr", "mean"], "resamples": 20, **options}
    report = write(preds, metrics=["auroc", "aurc"], risk=0.1, image=read_image, artifacts=True, **options)
    predicted: dict[str, Any] = {"predict_from": options.get("predict_from", "image"), "top_k": options.get("top_k", 1)}
    seeded: dict[str, Any] = {"seed": 5} if "seed" in options else {}
    sure = {name: confidence(preds, name, **predicted, **seeded) for name in options["methods"]}
    options["methods"] = sure if seeded else options["methods"]
    evaluation = evaluate(preds, metrics=["auroc", "aurc", "coverage_at:0.1"], **options)
    for row, one in zip(report.rows("methods"), evaluation.rows, strict=True):
        assert (row["method"], row["metric"], row["verdict"]) == (one.method, one.metric, one.verdict or "")
        assert (parse(row["value"]), parse(row["difference"])) == (one.value, one.difference)
        ends = [one.interval, one.difference_interval]
        for names, end in zip((("low", "high"), ("difference_low", "difference_high")), ends, strict=True):
            assert [parse(row[name]) for name in names] == ([None] * 2 if end is None else [end.low, end.high])
    for picture in report.data["pictures"]:
        index = preds.ids.index(picture["id"])
        assert picture["confidences"] == [one[index] for one in sure.values()]


def rank_predictions(msr: str, mean: str) -> Predictions:
    """Make predictions with a given order by each confidence: counts of correct ('+') and wrong ('-') images."""
    outcomes, values = [], []
    for text, low, high in ((msr, 0.65, 0.75), (mean, 0.68, 0.72)):
        runs = [(int(count), kind) for count, kind in re.findall(r"(\d+)([-+])", text)]
        outcome = np.concatenate([np.full(count, kind == "+") for count, kind in runs])
        order = np.argsort(~outcome, kind="stable")  # all correct images, then all wrong ones
        value = np.linspace(high, low, len(outcome))[order]
        outcomes.append(outcome[order])
        values.append(value)
    assert (outcomes[0] == outcomes[1]).all()
    return make_predictions(values[0], (3 * values[1] - values[0]) / 2, ~outcomes[0])


def noisy_predictions(gain: float) -> Predictions:
    """Make other views more confident of correct predictions, and less of wrong ones, by `gain`."""
    rng = np.random.default_rng(3)
    wrong = rng.random(800) < 0.3
    first = np.clip(rng.normal(0.75, 0.1, 800) - 0.12 * wrong, 0.4, 0.99)
    others = np.clip(first + np.where(wrong, -gain, gain) + rng.normal(0, 0.01, 800), 0.26, 0.999)
    return make_predictions(first, others, wrong)


def headline(report: Report) -> tuple[str, str]:
    """Return the verdict and the sentence."""
    return re.findall(r'class="headline (\w+)" id="headline"', report.text)[0], report.element("headline")


@pytest.mark.parametrize(("gain", "verdict"), [(0.1, "better"), (-0.1, "worse"), (0.0, "unclear")])
@pytest.mark.parametrize("metrics", [["auroc"], ["aurc"]], ids=["auroc", "no auroc"])
def test_headline_states_whether_a_second_look_helps(
    write: Write, gain: float, verdict: str, metrics: list[str]
) -> None:
    preds = noisy_predictions(gain)
    report = write(preds, metrics=metrics, risk=0.2, resamples=100, artifacts=True)
    assert {row["metric"] for row in report.rows("methods")} == {*metrics, "coverage_at:0.2"}
    correct, sure = preds.correct(), {name: confidence(preds, name) for name in ("msr", "mean")}
    after, before = (100 * auroc(correct, sure[name]) for name in ("mean", "msr"))
    more, fewer = (try_every_threshold(correct, sure[name], 0.2)[1] / 8 for name in ("mean", "msr"))
    found, sentence = headline(report)
    assert found == verdict
    if gain > 0:
        assert sentence == (
            f"A second look detects errors with AUROC {after:.1f} instead of {before:.1f}; "
            f"at 20 % risk it accepts {more:.0f} % instead of {fewer:.0f} % of the images."
        )
        assert after > before
    elif gain < 0:
        assert f"AUROC {after:.1f} instead of {before:.1f}" in sentence
        assert after < before
    else:
        ends = evaluate(preds, ["msr", "mean"], ["auroc"], resamples=100)["mean", "auroc"].difference_interval
        assert ends is not None
        assert ends.low <= 0 <= ends.high
        assert f"{100 * ends.low:+.2f} to {100 * ends.high:+.2f}" in sentence


@pytest.mark.parametrize(
    ("msr", "mean", "told"),
    [
        ("250+ 240- 310+", "3- 11+ " * 50 + "10+ 90-", "; but at 20 % risk it accepts"),
        ("386+ 1- 14+ 399-", "394+ 1- 6+ 399-", "AUROC 99.996 instead of 99.991"),
        ("5+", "5+", "correct on all 5 images"),
        ("5-", "5-", "wrong on all 5 images"),
        ("7+ 1- 42+", "40+ 1- 9+", "only 1 error;"),
    ],
)
def test_headline_of_other_results(write: Write, msr: str, mean: str, told: str) -> None:
    verdict, sentence = headline(write(rank_predictions(msr, mean), risk=0.2, resamples=100))
    assert told in sentence
    if "all 5" in told:
        assert verdict == "none"
    if "only 1" in told:
        assert verdict == "unclear"


def test_headline_of_ties_and_of_a_single_view(write: Write, preds: Predictions) -> None:
    # One half of the images has a higher confidence than the other; within each half all are equal.
    sure = np.where(np.arange(1000) < 500, 0.99, 0.9)
    tied = make_predictions(sure, sure, np.isin(np.arange(1000), np.arange(500, 550)))
    assert "both accept 50 % of the images" in headline(write(tied, risk=0.01))[1]
    assert coverage_at(tied.correct(), confidence(tied, "mean"), 0.01) > 0.55, "the metric splits ties"
    verdict, sentence = headline(write(preds.select(views="identity"), methods=["msr"], risk=0.2))
    correct, msr = preds.correct(), confidence(preds, "msr")
    coverage = f"{try_every_threshold(correct, msr, 0.2)[1] / 6:.1f}".removesuffix(".0")
    assert verdict == "none"
    assert f"{name_method('msr')} detects errors with AUROC {100 * auroc(correct, msr):.1f}; at 20 % risk" in sentence
    assert f"accepts {coverage} % of the images" in sentence
