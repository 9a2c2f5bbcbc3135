"""`evaluate` and its result: text, JSON, tables, and the arguments it rejects."""

import json
import re

import numpy as np
import pytest

from secondlook import metrics
from secondlook.errors import MetricError
from secondlook.estimators import confidence
from secondlook.evaluation import Evaluation, evaluate
from secondlook.predictions import Predictions

COLUMNS = [
    "group",
    "method",
    "metric",
    "better",
    "value",
    "low",
    "high",
    "difference",
    "difference_low",
    "difference_high",
    "verdict",
    "images",
    "errors",
    "reason",
]


def test_same_seed_gives_the_same_bytes(preds: Predictions) -> None:
    first, again, other = (
        json.dumps(evaluate(preds, ["mean"], ["aurc"], resamples=20, seed=seed).to_dict()) for seed in (1, 1, 2)
    )
    assert first == again != other


def test_table_fits_into_80_columns(preds: Predictions) -> None:
    text = str(evaluate(preds, resamples=200))
    assert "all images: 600 images" in text
    assert "4 views, class predicted from the image; 95 % intervals (200 resamples)" in text
    assert "auroc ↑" in text
    assert "aurc ↓" in text
    assert "Δ vs msr" in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_class_from_views_and_top_k(preds: Predictions) -> None:
    result = evaluate(preds, ["mean"], ["accuracy"], predict_from="views", top_k=2, resamples=5)
    assert result["mean", "accuracy"].value == pytest.approx(preds.correct(predict_from="views", top_k=2).mean())
    assert "top-2 classes predicted from the views" in str(result)


def test_single_name_is_not_split_into_letters(preds: Predictions) -> None:
    assert evaluate(preds, "mean", "auroc", resamples=2).methods == ("mean",)


def test_from_dict_inverts_to_dict(preds: Predictions, ood: Predictions) -> None:
    result = evaluate(preds, ["msr", "mean"], ["auroc", "nll"], ood=ood, groups="class", resamples=20)
    stored = json.loads(json.dumps({**result.to_dict(), "skipped": [], "warnings": ["..."]}))
    stored["rows"][0]["comment"] = "unknown keys are ignored"
    assert Evaluation.from_dict(stored) == result


def test_from_dict_rejects_missing_keys(preds: Predictions) -> None:
    stored = evaluate(preds, "mean", "auroc", resamples=2).to_dict()
    with pytest.raises(MetricError, match="level"):
        Evaluation.from_dict({name: value for name, value in stored.items() if name != "level"})
    with pytest.raises(MetricError, match=r"rows\.0\.group"):
        Evaluation.from_dict({**stored, "rows": [{"interval": None, "difference_interval": None}]})


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
        ("level", "high"),
        ("level", 1.5),
        ("resamples", 10**30),
        ("top_k", 0),
        ("predict_from", "x"),
        ("baseline", None),
        ("views", [3]),
    ],
)
def test_from_dict_rejects_invalid_values(preds: Predictions, name: str, value: object) -> None:
    stored = evaluate(preds, "mean", "auroc", resamples=2).to_dict()
    with pytest.raises(MetricError, match=name):
        Evaluation.from_dict({**stored, name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("images", 0),
        ("images", 10**30),
        ("errors", -1),
        ("better", "more"),
        ("value", "a"),
        ("interval", {"low": 0.1}),
        ("interval", [0.1, 0.2, 0.3]),
        ("method", 3),
    ],
)
def test_from_dict_rejects_invalid_estimates(preds: Predictions, name: str, value: object) -> None:
    result = evaluate(preds, "mean", "auroc", resamples=2)
    row = {**result.rows[0].to_dict(), name: value}
    with pytest.raises(MetricError, match=rf"rows\.0\.{name}"):
        Evaluation.from_dict({**result.to_dict(), "rows": [row]})


def test_from_dict_rejects_more_errors_than_images(preds: Predictions) -> None:
    result = evaluate(preds, "mean", "auroc", resamples=2)
    row = {**result.rows[0].to_dict(), "errors": preds.n_images + 1}
    with pytest.raises(MetricError, match=rf"rows\.0.*{preds.n_images + 1} errors"):
        Evaluation.from_dict({**result.to_dict(), "rows": [row]})


def test_invalid_resamples_and_empty_metrics_are_rejected(preds: Predictions) -> None:
    with pytest.raises(MetricError, match=str(10**30)):
        evaluate(preds, resamples=10**30)
    with pytest.raises(MetricError, match="metrics"):
        evaluate(preds, metrics=[])


def test_arrow_table_has_a_row_per_estimate(preds: Predictions) -> None:
    result = evaluate(preds, ["msr", "bootstrap"], ["auroc", "ece"], resamples=20)
    table = result.to_arrow()
    assert table.column_names == COLUMNS
    for row, one in zip(table.to_pylist(), result.rows, strict=True):
        assert (row["group"], row["method"], row["metric"]) == (one.group, one.method, one.metric)
        assert (row["value"], row["difference"], row["verdict"]) == (one.value, one.difference, one.verdict)
        assert (row["low"], row["high"]) == ((one.interval.low, one.interval.high) if one.interval else (None, None))
        paired = one.difference_interval
        assert (row["difference_low"], row["difference_high"]) == (
            (paired.low, paired.high) if paired else (None, None)
        )
        assert (row["images"], row["errors"], row["reason"]) == (one.images, one.errors, one.reason)


def test_column_types_do_not_depend_on_the_values(preds: Predictions) -> None:
    with_differences = evaluate(preds, ["msr", "mean"], "auroc", resamples=2).to_arrow()
    assert evaluate(preds, ["msr"], "auroc", resamples=2).to_arrow().schema == with_differences.schema


def test_pandas_frame_has_the_same_columns(preds: Predictions) -> None:
    pytest.importorskip("pandas")
    result = evaluate(preds, ["msr", "mean"], ["auroc"], resamples=20)
    frame = result.to_frame()
    assert list(frame.columns) == COLUMNS
    assert frame["value"].tolist() == [one.value for one in result.rows]
    assert frame["difference"].isna().tolist() == [True, False], "the baseline has no difference"


def test_default_table_has_the_accuracies_and_the_coverage_at_a_risk(preds: Predictions) -> None:
    result = evaluate(preds, resamples=20)
    by_hand = [
        float((outputs.argmax(axis=1) == preds.labels).mean())
        for outputs in (preds.probabilities[:, 0], preds.probabilities.mean(axis=1))
    ]
    assert [result.accuracy_from_image, result.accuracy_from_views] == by_hand
    header = str(result).partition("auroc")[0]
    assert f"accuracy: {100 * by_hand[0]:.1f} % from the image, {100 * by_hand[1]:.1f} % from the views" in header
    expected = metrics.coverage_at(preds.correct(), confidence(preds, "mean"), 0.01)
    assert result["mean", "coverage_at:0.01"].value == expected
    assert "coverage_at:0.01 ↑" in str(result)


def test_stored_evaluation_without_accuracies_can_be_read(preds: Predictions) -> None:
    stored = evaluate(preds, "mean", "auroc", resamples=2).to_dict()
    del stored["accuracy_from_image"], stored["accuracy_from_views"], stored["image_or_views"]
    read = Evaluation.from_dict(stored)
    assert read.accuracy_from_image is None
    assert "accuracy" not in str(read)


def test_labels_are_required(ood: Predictions) -> None:
    with pytest.raises(MetricError, match="labels="):
        evaluate(ood)


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
    ],
)
def test_invalid_arguments_are_rejected(preds: Predictions, options: dict[str, object], offending: str) -> None:
    with pytest.raises(MetricError, match=re.escape(offending)):
        evaluate(preds, **{"methods": "mean", **options})  # type: ignore[arg-type]


def test_unknown_estimate_is_rejected(preds: Predictions) -> None:
    with pytest.raises(MetricError, match="'mean, auc, all images'"):
        evaluate(preds, ["mean"], ["auroc"], resamples=2)["mean", "auc"]
