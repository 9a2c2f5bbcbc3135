"""Score files: every format holds the same rows."""

import csv
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from secondlook.arrays import Array
from secondlook.classifiers import Classifier
from secondlook.errors import DecisionError
from secondlook.scoring import SCORE_FORMATS, ScoreFormat, score
from secondlook.scoring.formats import check_output_path, find_format
from secondlook.selective import Policy, Rule

IMAGES = 40


@pytest.mark.parametrize(("top_k", "per_view"), [(1, False), (2, True)])
def test_every_format_holds_the_same_rows(
    classifier: Classifier, bright_or_dark: tuple[Array, Array], tmp_path: Path, top_k: int, per_view: bool
) -> None:
    rule = Rule(0.9, "mean" if top_k == 1 else "msr", top_k=top_k)
    policy = Policy.from_rule(rule, classifier=classifier, views=("identity", "hflip", "shift:1,0"))
    for suffix in SCORE_FORMATS:
        out = tmp_path / f"scores{suffix}"
        score(policy, bright_or_dark[0][:IMAGES], out, classifier=classifier, per_view=per_view)
    rows = pq.read_table(tmp_path / "scores.parquet").to_pylist()
    lines = (tmp_path / "scores.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == rows
    with (tmp_path / "scores.csv").open(newline="") as file:
        cells = list(csv.DictReader(file))
    assert len(cells) == IMAGES
    texts = {"id", "class"}
    for row, cell in zip(rows, cells, strict=True):
        parsed = {name: (text or None) if name in texts else json.loads(text) for name, text in cell.items()}
        assert parsed == row
    assert ("labels" in rows[0]) == (top_k > 1)
    if top_k > 1:
        assert all(row["labels"][0] == row["label"] and sorted(row["labels"]) == [0, 1] for row in rows)


def test_formats_are_found_by_suffix() -> None:
    assert list(SCORE_FORMATS) == [".parquet", ".csv", ".jsonl"]
    assert find_format(Path("Scores.CSV")) is SCORE_FORMATS[".csv"]
    with pytest.raises(DecisionError, match=r"'\.xlsx'.*scores\.xlsx"):
        find_format(Path("scores.xlsx"))


def test_suffix_is_registered_once() -> None:
    with pytest.raises(DecisionError, match=r"'\.csv'"):
        SCORE_FORMATS.add(ScoreFormat(".csv", "again", write=lambda file, schema, tables: None))


def test_paths_that_cannot_be_written_are_rejected(tmp_path: Path) -> None:
    check_output_path(tmp_path / "scores.csv", "scores")
    with pytest.raises(DecisionError, match=tmp_path.name):
        check_output_path(tmp_path, "scores")
    with pytest.raises(DecisionError, match="absent"):
        check_output_path(tmp_path / "absent" / "scores.csv", "scores")
