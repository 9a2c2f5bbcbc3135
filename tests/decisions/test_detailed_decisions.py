"""Detailed decisions are the rows of scores, with the likely classes and what each look predicted."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secondlook.decisions import RowOptions, detail_decisions
from secondlook.decisions.decision import MAX_LIKELY, compute_rows, rank_classes
from secondlook.policies import Guarantee, Policy
from secondlook.predictions import Predictions
from secondlook.views import ViewSet

VIEWS = ViewSet(["identity", "hflip", "shift:1,0"])
NAMES = tuple("abcdefghijkl")


def make_predictions(n_images: int = 30) -> Predictions:
    logits = np.random.default_rng(3).normal(size=(n_images, 3, 12)).astype(np.float32) * 2
    ids = [f"image {number}" for number in range(n_images)]
    return Predictions(logits=logits, views=VIEWS, ids=ids, class_names=NAMES)


@pytest.mark.parametrize("settings", [{}, {"audit": 0.5}, {"predict_from": "views"}, {"top_k": 2}])
def test_they_are_the_rows_of_scores(settings: dict[str, Any]) -> None:
    preds = make_predictions()
    audit = settings.pop("audit", None)
    rule = Policy(threshold=0.4, method="mean", guarantee=Guarantee(risk=0.1, delta=0.1), **settings)
    options = RowOptions(rule, seed=5, per_view=True, audit=audit)
    rows = compute_rows(options, preds).to_pylist()
    detailed = detail_decisions(options, preds, audit_seed=5)
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
    drawn = [[one.audit for one in detail_decisions(options, preds, audit_seed=seed)] for seed in (1, 2, 2)]
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
