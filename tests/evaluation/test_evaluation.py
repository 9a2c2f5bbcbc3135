"""`evaluate` and its result: text, JSON, tables, groups of images, and the arguments it rejects."""

import itertools
import json
import re
from typing import Any

import numpy as np
import pytest

from secondlook import metrics
from secondlook.errors import MetricError
from secondlook.estimators import confidence
from secondlook.evaluation import Evaluation, evaluate
from secondlook.predictions import Predictions

COLUMNS = [
    *("group", "method", "metric", "better", "value", "low", "high"),
    *("difference", "difference_low", "difference_high", "verdict", "images", "errors", "reason"),
]


@pytest.fixture(scope="module")
def stored(preds: Predictions) -> dict[str, Any]:
    return evaluate(preds, "mean", "auroc", resamples=2).to_dict()


def test_same_seed_gives_the_same_bytes(preds: Predictions) -> None:
    first, again, other = (
        json.dumps(evaluate(preds, ["mean"], ["aurc"], resamples=20, seed=seed).to_dict()) for seed in (1, 1, 2)
    )
    assert first == again != other


def test_table_fits_into_80_columns(preds: Predictions) -> None:
    result = evaluate(preds, resamples=200)
    assert max(map(len, str(result).splitlines())) <= 80
    text = result.details()
    assert "all images: 600 images" in text
    assert "4 views, class predicted from the image; 95 % intervals (200 resamples)" in text
    assert "auroc ↑" in text
    assert "aurc ↓" in text
    assert "Δ vs msr" in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_print_begins_with_a_verdict_and_has_one_table_of_the_main_metrics(preds: Predictions) -> None:
    thrice = Predictions(logits=np.tile(preds.logits, (3, 1, 1)), views=preds.views, labels=np.tile(preds.labels, 3))
    result = evaluate(thrice, resamples=100)
    first, views, advice, *_, table = re.split(r"\n(?=Views|Advice|  +auroc)", str(result))
    errors, area = int((~thrice.correct()).sum()), result["msr", "auroc"].value
    assert area is not None
    assert f"{errors} of 1,800 images are wrong" in " ".join(first.split())
    assert f"{100 * area:.1f} % of pairs" in " ".join(first.split())
    assert result.second_look == "blend"
    assert f"{result['blend', 'auroc'].value:.4f} with blend" in " ".join(views.split())
    assert result["blend", "auroc"].verdict == "better"
    assert "they help" in views
    assert "threshold with blend" in advice
    header, *rows = table.splitlines()
    assert header.split() == ["auroc", "↑", "aurc", "↓", "coverage_at:0.01", "↑"]
    main = ("auroc", "aurc", "coverage_at:0.01")
    shown = {row.split()[0]: row.split()[1:] for row in rows if row.startswith(result.methods)}
    assert shown == {method: [result[method, metric].format_value() for metric in main] for method in result.methods}
    below = {row.partition(" ")[0]: following for row, following in itertools.pairwise(rows)}
    for method in result.methods[1:]:
        assert all(result[method, metric].format_difference_interval() in below[method] for metric in main)
    assert "augrc" not in str(result)
    assert "augrc ↓" in result.details()


@pytest.mark.parametrize(
    ("methods", "expected"), [(("msr", "mean"), "they help"), (("mean", "msr"), "msr"), (("gen", "zero"), "gen")]
)
def test_verdict_compares_a_second_look_with_the_baseline(
    preds: Predictions, methods: tuple[str, ...], expected: str
) -> None:
    thrice = Predictions(logits=np.tile(preds.logits, (3, 1, 1)), views=preds.views, labels=np.tile(preds.labels, 3))
    result = evaluate(thrice, methods, ["aurc"], resamples=100)
    assert ("Views" in result.verdict) == ("mean" in methods)
    assert expected in " ".join(result.verdict.values())
    alone = evaluate(thrice.select(views="identity"), ["msr"], ["auroc"], resamples=2)
    assert list(alone.verdict) == ["Confidence", "Advice"]


def test_verdict_on_few_errors_asks_for_more_images(preds: Predictions) -> None:
    few = evaluate(preds.select(images=np.arange(60)), ["msr", "mean"], ["auroc"], resamples=20)
    assert "too few" in few.verdict["Views"]
    assert "at least 100 are wrong" in few.verdict["Advice"]


def test_class_from_views_and_top_k(preds: Predictions) -> None:
    result = evaluate(preds, ["mean"], ["accuracy"], predict_from="views", top_k=2, resamples=5)
    assert result["mean", "accuracy"].value == pytest.approx(preds.correct(predict_from="views", top_k=2).mean())
    assert "top-2 classes predicted from the views" in str(result)


def test_from_dict_inverts_to_dict(preds: Predictions, unknown: Predictions) -> None:
    result = evaluate(preds, ["msr", "mean"], ["auroc", "nll"], unknown=unknown, groups="class", resamples=20)
    stored = json.loads(json.dumps({**result.to_dict(), "skipped": [], "warnings": ["..."]}))
    stored["rows"][0]["comment"] = "unknown keys are ignored"
    assert Evaluation.from_dict(stored) == result


def test_repr_is_two_lines_that_a_person_reads(preds: Predictions) -> None:
    result = evaluate(preds, ["msr", "mean"], ["auroc", "aurc"], groups="class", resamples=5)
    first, second = repr(result).splitlines()
    assert first == "Evaluation: 2 methods x 2 metrics on 600 images"
    value = result["mean", "auroc"].value
    assert second.startswith("auroc")
    assert second.endswith(f"mean {value:.4f}")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rows", []),
        ("rows", None),
        ("rows", ["a"]),
        ("rows.0.group", [{"interval": None, "difference_interval": None}]),
        ("level", "high"),
        ("level", 1.5),
        ("level", ...),
        ("resamples", 10**30),
        ("top_k", 0),
        ("predict_from", "x"),
        ("baseline", None),
        ("views", [3]),
        ("rows.0.images", 0),
        ("rows.0.images", 10**30),
        ("rows.0.errors", -1),
        ("rows.0", {"errors": 601}),
        ("rows.0.better", "more"),
        ("rows.0.value", "a"),
        ("rows.0.interval", {"low": 0.1}),
        ("rows.0.interval", [0.1, 0.2, 0.3]),
        ("rows.0.method", 3),
    ],
)
def test_from_dict_rejects_missing_and_invalid_values(stored: dict[str, Any], name: str, value: Any) -> None:
    key, _, field = name.partition(".0")
    if name != "rows.0.group" and "." in name:
        value = [{**stored["rows"][0], **(value if name == "rows.0" else {field[1:]: value})}]
    changed = {**stored, key: value}
    with pytest.raises(MetricError, match=re.escape(name)) as raised:
        Evaluation.from_dict({key: one for key, one in changed.items() if one is not ...})
    assert name != "rows.0" or "601 errors" in str(raised.value)


@pytest.mark.parametrize(("field", "other"), [("method", "other"), ("metric", "other"), ("group", "all of them")])
def test_from_dict_rejects_incomplete_tables(preds: Predictions, field: str, other: str) -> None:
    stored = evaluate(preds, ["msr", "mean"], ["auroc", "aurc"], resamples=5).to_dict()
    assert isinstance(stored["rows"], list)
    rows = [{**stored["rows"][0], field: other}, *stored["rows"][1:]]
    with pytest.raises(MetricError, match=r"all images|all of them"):
        Evaluation.from_dict({**stored, "rows": rows})
    with pytest.raises(MetricError, match="'other'"):
        Evaluation.from_dict({**stored, "baseline": "other"})


def test_tables_have_a_row_per_estimate_and_types_that_no_value_changes(preds: Predictions) -> None:
    result = evaluate(preds, ["msr", "bootstrap"], ["auroc", "ece"], resamples=20)
    table = result.to_arrow()
    assert table.column_names == COLUMNS
    for row, one in zip(table.to_pylist(), result.rows, strict=True):
        for name in ("group", "method", "metric", "value", "difference", "verdict", "images", "errors", "reason"):
            assert row[name] == getattr(one, name)
        for prefix, interval in (("", one.interval), ("difference_", one.difference_interval)):
            found = (row[f"{prefix}low"], row[f"{prefix}high"])
            assert found == ((interval.low, interval.high) if interval else (None, None))
    assert evaluate(preds, ["msr"], "auroc", resamples=2).to_arrow().schema == table.schema, "without differences"
    pytest.importorskip("pandas")
    frame = result.to_frame()
    assert list(frame.columns) == COLUMNS
    assert frame["value"].isna().tolist() == [one.value is None for one in result.rows]
    assert frame["difference"].isna().tolist() == [one.difference is None for one in result.rows]
    assert frame["value"].dropna().tolist() == [one.value for one in result.rows if one.value is not None]


def test_default_table_has_the_accuracies_and_the_coverage_at_a_risk(preds: Predictions) -> None:
    result = evaluate(preds, resamples=20)
    by_hand = [
        float((outputs.argmax(axis=1) == preds.labels).mean())
        for outputs in (preds.probabilities[:, 0], preds.probabilities.mean(axis=1))
    ]
    assert [result.accuracy_from_image, result.accuracy_from_views] == by_hand
    header = result.details().partition("auroc")[0]
    assert f"accuracy: {100 * by_hand[0]:.1f} % from the image, {100 * by_hand[1]:.1f} % from the views" in header
    expected = metrics.coverage_at(preds.correct(), confidence(preds, "mean"), 0.01)
    assert result["mean", "coverage_at:0.01"].value == expected
    assert "coverage_at:0.01 ↑" in str(result)


def test_stored_evaluation_without_accuracies_can_be_read(stored: dict[str, Any]) -> None:
    later = ("accuracy_from_image", "accuracy_from_views", "image_or_views")
    read = Evaluation.from_dict({name: value for name, value in stored.items() if name not in later})
    assert read.accuracy_from_image is None
    assert "accuracy" not in str(read)


@pytest.mark.parametrize(
    ("options", "offending"),
    [
        ({"methods": {"own": [1.0, 2.0, 3.0]}}, "3 values for 600 images"),
        ({"methods": {"own": np.full(600, np.nan)}}, "NaN"),
        ({"methods": []}, "methods"),
        ({"metrics": ["aurok"]}, "'aurok'"),
        ({"metrics": "risk_at:2"}, "2.0"),
        ({"level": 2}, "level=2"),
        ({"level": "0.9"}, "level='0.9'"),
        ({"seed": None}, "seed=None"),
        ({"resamples": 2.5}, "resamples=2.5"),
        ({"resamples": 0}, "resamples=0"),
        ({"seed": -1}, "seed=-1"),
        ({"resamples": 10**30}, str(10**30)),
        ({"metrics": []}, "metrics"),
        ({"groups": ["a", "b"]}, "(2,)"),
        ({"groups": "kind"}, "'kind'"),
        ({"groups": {"a": ["b c"] * 600, "a b": ["c"] * 600}}, "'a b c'"),
    ],
)
def test_invalid_arguments_are_rejected(preds: Predictions, options: dict[str, object], offending: str) -> None:
    with pytest.raises(MetricError, match=re.escape(offending)):
        evaluate(preds, **{"methods": "mean", **options})  # type: ignore[arg-type]


def test_unlabeled_images_other_views_and_unknown_estimates_are_rejected(
    preds: Predictions, unknown: Predictions
) -> None:
    with pytest.raises(MetricError, match="labels="):
        evaluate(unknown)
    with pytest.raises(MetricError, match="unknown="):
        evaluate(preds, unknown=unknown.select(views="identity hflip"))
    with pytest.raises(MetricError, match=r"'site'.* 3;"):
        evaluate(preds, groups={"site": [1.0, 1.0, 1.0, np.nan, *[2.0] * 596]})
    result = evaluate(preds, "mean", "auroc", resamples=2)
    assert result.methods == ("mean",), "a name is not split into letters"
    with pytest.raises(MetricError, match="'mean, auc, all images'"):
        result["mean", "auc"]


def test_unknown_images_count_as_errors_and_form_groups(preds: Predictions, unknown: Predictions) -> None:
    result = evaluate(preds, metrics=["auroc", "accuracy"], unknown=unknown, resamples=20)
    assert result.groups == ("all images", "known images", "unknown detection")
    both = np.concatenate([confidence(preds, "mean"), confidence(unknown, "mean")])
    correct = np.concatenate([preds.correct(), np.zeros(200, dtype=bool)])
    assert result["mean", "auroc"].value == pytest.approx(metrics.auroc(correct, both), abs=1e-12)
    alone = evaluate(preds, ["msr"], ["auroc"], resamples=20)
    assert result["msr", "auroc", "known images"].value == alone["msr", "auroc"].value
    own = np.arange(800) < 600
    assert result["mean", "auroc", "unknown detection"].value == pytest.approx(metrics.auroc(own, both), abs=1e-12)
    assert metrics.fpr95(own, both) == result["mean", "fpr95", "unknown detection"].value
    detection = result["mean", "auroc", "unknown detection"]
    assert (detection.images, detection.errors) == (800, 200)
    assert detection.interval is not None
    assert detection.difference_interval is not None, "paired with the baseline"
    assert {one.metric for one in result.rows if one.group == "unknown detection"} == {"auroc", "fpr95"}
    assert "200 of them unknown" in str(result)


def test_joint_aurc_counts_each_wrong_or_unknown_image_once(preds: Predictions, unknown: Predictions) -> None:
    """The risk-coverage curve over all images, point by point."""
    result = evaluate(preds, ["mean"], ["aurc"], unknown=unknown, resamples=5)
    both = np.concatenate([confidence(preds, "mean"), confidence(unknown, "mean")])
    is_error = np.append(~preds.correct(), np.ones(200, dtype=bool))[np.argsort(-both)]
    risks = [is_error[:accepted].mean() for accepted in range(1, 801)]
    assert result["mean", "aurc"].value == pytest.approx(np.mean(risks), abs=1e-12)


def test_unknown_images_are_ranked_together_with_the_others(preds: Predictions, unknown: Predictions) -> None:
    together = Predictions(
        logits=np.concatenate([preds.logits, unknown.logits]), views=preds.views, labels=np.zeros(800, dtype=int)
    )
    result = evaluate(preds, ["bootstrap"], ["auroc"], unknown=unknown, resamples=5)
    correct = np.concatenate([preds.correct(), np.zeros(200, dtype=bool)])
    assert result["bootstrap", "auroc"].value == metrics.auroc(correct, confidence(together, "bootstrap"))


def test_given_groups_are_evaluated_separately(preds: Predictions) -> None:
    light = np.where(np.arange(600) < 200, "day", "night")
    result = evaluate(preds, ["mean"], ["auroc"], groups={"light": light, "half": np.arange(600) % 2}, resamples=20)
    assert result.groups == ("all images", "light day", "light night", "half 0", "half 1")
    day = light == "day"
    expected = metrics.auroc(preds.correct()[day], confidence(preds, "mean")[day])
    assert result["mean", "auroc", "light day"].value == expected


def test_classes_are_evaluated_separately(preds: Predictions) -> None:
    result = evaluate(preds, ["mean"], ["accuracy"], groups="class", resamples=5)
    assert result.groups[1:] == ("class ant", "class bee", "class cow", "class dog", "class elk")
    bees = preds.labels == 1
    assert result["mean", "accuracy", "class bee"].value == pytest.approx(preds.correct()[bees].mean())


def test_many_groups_share_a_table_of_the_worst() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(40), 50)
    correct = rng.random(2000) < 1 - labels / 80
    logits = rng.normal(size=(2000, 2, 40)) + 9 * np.eye(40)[np.where(correct, labels, (labels + 1) % 40)][:, None]
    names = [f"{number:02} {'a long name ' * 9}" for number in range(40)]
    preds = Predictions(logits=logits, views="identity hflip", labels=labels, class_names=names)
    result = evaluate(preds, ["msr", "mean"], ["accuracy", "auroc"], groups="class", resamples=3)
    errors = {row.group: row.errors for row in result.rows if row.group != "all images"}
    worst = sorted(errors, key=lambda group: -errors[group])[:20]
    *_, table = str(result).partition("40 groups; auroc")
    rows = table.splitlines()[2:22]
    assert [int(row.split()[-5]) for row in rows] == [errors[group] for group in worst]
    assert [row[:8] for row in rows] == [group[:8] for group in worst]
    assert max(map(len, table.splitlines())) < 100
    assert Evaluation.from_dict(result.to_dict()) == result, "all groups are in the result"
    for row in result.rows:
        assert (row.interval is None) == (row.n_rarer < 5), row


def test_classes_with_the_same_name_stay_separate() -> None:
    probabilities = np.random.default_rng(0).dirichlet(np.ones(3), size=(60, 1))
    preds = Predictions(
        probabilities=probabilities, views="identity", labels=np.arange(60) % 3, class_names=["crane", "dog", "crane"]
    )
    result = evaluate(preds, "msr", "accuracy", groups="class", resamples=2)
    assert result.groups == ("all images", "class crane (0)", "class dog", "class crane (2)")
    assert [result["msr", "accuracy", group].images for group in result.groups] == [60, 20, 20, 20]
