"""Decisions as Python values, Arrow tables and data frames."""

import numpy as np
import pyarrow as pa
import pytest

from secondlook.decisions import Decisions
from secondlook.decisions.decision import RowOptions
from secondlook.errors import DecisionError
from secondlook.policies import Policy


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
