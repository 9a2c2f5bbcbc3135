"""Decisions as Python values, Arrow tables and data frames, and with all that reviewers want to see."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secondlook.decisions import Decisions, RowOptions
from secondlook.decisions.job import MAX_LIKELY, rank_classes
from secondlook.errors import DecisionError
from secondlook.policies import Guarantee, Policy
from secondlook.predictions import Predictions
from secondlook.views import ViewSet

VIEWS = ViewSet(["identity", "hflip", "shift:1,0"])
NAMES = tuple("abcdefghijkl")


def make_decisions(*, top_k: int = 1, interval: bool = True) -> Decisions:
    labels = np.array([2, 0, 1]) if top_k == 1 else np.array([[2, 0], [0, 1], [1, 2]])
    confidence = np.array([0.9, 0.4, 0.7])
    ends = (confidence - 0.1, confidence + 0.05) if interval else None
    looks, first_look, disagreement = np.array([2, 13, 1]), confidence - 0.2, np.array([0.1, 0.3, np.nan])
    accept = confidence >= 0.5
    return Decisions(("a", "b", "c"), labels, confidence, accept, looks, first_look, disagreement, ends)


def test_decisions_are_a_sequence() -> None:
    decisions = make_decisions()
    assert len(decisions) == 3
    assert [decision.id for decision in decisions] == ["a", "b", "c"]
    assert (decisions[1].id, decisions[1].label, decisions[1].confidence) == ("b", 0, 0.4)
    assert decisions[1].interval == pytest.approx((0.3, 0.45))
    assert not decisions[1].accept
    assert decisions[1].looks == 13
    assert decisions[1].first_look == pytest.approx(0.2)
    assert (decisions[1].disagreement, decisions[2].disagreement) == (0.3, None)
    assert (make_decisions(top_k=2)[0].label, make_decisions(top_k=2)[0].labels) == (2, (2, 0))
    assert make_decisions(interval=False)[0].interval is None


def test_arrow_table_has_one_row_per_image() -> None:
    table = make_decisions().to_arrow()
    assert table.column_names == [
        *("id", "label", "confidence", "low", "high", "accept", "looks", "first_look", "disagreement")
    ]
    numbers = [pa.float64()] * 3
    assert table.schema.types == [pa.string(), pa.int64(), *numbers, pa.bool_(), pa.int64(), *numbers[:2]]
    assert table.to_pylist()[1] == {
        "id": "b",
        "label": 0,
        "confidence": 0.4,
        "low": pytest.approx(0.3),
        "high": pytest.approx(0.45),
        "accept": False,
        "looks": 13,
        "first_look": pytest.approx(0.2),
        "disagreement": 0.3,
    }
    assert table["disagreement"].to_pylist()[2] is None


def test_arrow_table_lists_top_k_classes() -> None:
    table = make_decisions(top_k=2).to_arrow()
    assert table["label"].to_pylist() == [2, 0, 1]
    assert table["labels"].to_pylist() == [[2, 0], [0, 1], [1, 2]]


def test_missing_interval_is_null() -> None:
    table = make_decisions(interval=False).to_arrow()
    assert table["low"].to_pylist() == table["high"].to_pylist() == [None] * 3
    assert table.schema.field("low").type == pa.float64()


def test_data_frame_has_the_same_columns() -> None:
    pytest.importorskip("pandas")
    decisions = make_decisions()
    frame = decisions.to_frame()
    assert list(frame.columns) == decisions.to_arrow().column_names
    assert frame["confidence"].tolist() == [0.9, 0.4, 0.7]


@pytest.mark.parametrize(("options", "invalid"), [({"level": 1.5}, "level=1.5"), ({"seed": -1}, "seed=-1")])
def test_invalid_options_are_rejected(options: dict[str, float], invalid: str) -> None:
    with pytest.raises(DecisionError, match=invalid):
        RowOptions(Policy(threshold=0.5, method="mean"), **options)  # type: ignore[arg-type]


def make_predictions(n_images: int = 30) -> Predictions:
    logits = np.random.default_rng(3).normal(size=(n_images, 3, 12)).astype(np.float32) * 2
    ids = [f"image {number}" for number in range(n_images)]
    return Predictions(logits=logits, views=VIEWS, ids=ids, class_names=NAMES)


@pytest.mark.parametrize("settings", [{}, {"audit": 0.5}, {"predict_from": "views"}, {"top_k": 2}])
def test_detailed_decisions_are_the_rows_of_scores(settings: dict[str, Any]) -> None:
    preds = make_predictions()
    audit = settings.pop("audit", None)
    rule = Policy(threshold=0.4, method="mean", guarantee=Guarantee(risk=0.1, delta=0.1), **settings)
    options = RowOptions(rule, seed=5, per_view=True, audit=audit)
    rows = options.compute_rows(preds).to_pylist()
    detailed = options.detail(preds, audit_seed=5)
    for row, one in zip(rows, detailed, strict=True):
        assert (one.id, one.label, one.class_name) == (row["id"], row["label"], row["class"])
        assert (one.confidence, one.accept, one.looks) == (row["confidence"], row["accept"], row["looks"])
        assert one.interval == (row["low"], row["high"])
        assert (one.first_look, one.disagreement) == (row["first_look"], row["disagreement"])
        assert one.labels == (tuple(row["labels"]) if "labels" in row else None)
        assert (one.audit, one.audit_probability) == (row.get("audit", False), row.get("audit_probability"))
        assert [look.view for look in one.views] == [str(view) for view in VIEWS]
        assert [look.label for look in one.views] == row["view_labels"]
        assert [look.probability for look in one.views] == row["view_probabilities"]
    assert any(one.accept for one in detailed)
    assert not all(one.accept for one in detailed)


def test_audits_depend_on_their_own_seed_only() -> None:
    options = RowOptions(Policy(threshold=0.0, method="mean"), seed=1, audit=0.5)
    preds = make_predictions()
    drawn = [[one.audit for one in options.detail(preds, audit_seed=seed)] for seed in (1, 2, 2)]
    assert drawn[0] != drawn[1]
    assert drawn[1] == drawn[2]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.data())
def test_likely_classes_are_the_predicted_one_and_then_the_likeliest(means: list[float], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(means) - 1))
    ranked = rank_classes(np.array(means), first)
    assert ranked[0].label == first
    assert len({one.label for one in ranked}) == len(ranked) == min(len(means), MAX_LIKELY)
    assert all(one.probability == means[one.label] for one in ranked)
    others = [one.probability for one in ranked[1:]]
    assert others == sorted(others, reverse=True)
    left_out = [mean for place, mean in enumerate(means) if place not in {one.label for one in ranked}]
    assert not left_out or max(left_out) <= min(others)
