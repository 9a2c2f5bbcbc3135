"""Score files: every format holds the same rows."""

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from PIL import Image

from secondlook.arrays import Array
from secondlook.classifiers import Classifier
from secondlook.errors import DecisionError
from secondlook.scoring import SCORE_FORMATS, ScoreFormat, score
from secondlook.scoring.formats import check_output_path, find_format
from secondlook.selective import Policy, Rule
from secondlook.tables import unescape_formula

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


def test_texts_are_not_formulas_in_csv_files(
    classifier: Classifier, bright_or_dark: tuple[Array, Array], tmp_path: Path
) -> None:
    names = ("=cmd|' /C calc'!A1", "@SUM(1+1)")
    ids = ["=1+1.png", "-5.png", "+a\rb.png", "\t@x.png", "'=quoted.png", "plain.png", "'plain.png", "a\r=1.png"]
    (tmp_path / "new").mkdir()
    for name, image in zip(ids, bright_or_dark[0], strict=False):
        Image.fromarray(image).save(tmp_path / "new" / name)
    # Logarithms are negative: numbers are written as they are.
    policy = Policy.from_rule(Rule(9.0, "entropy"), classifier=classifier, views=("identity",), class_names=names)
    options: dict[str, Any] = {"classifier": classifier, "rejected": tmp_path / "rejected"}
    score(policy, f"folder:{tmp_path / 'new'}", tmp_path / "scores.csv", **options)
    score(policy, f"folder:{tmp_path / 'new'}", tmp_path / "scores.jsonl", classifier=classifier)
    score(policy, f"folder:{tmp_path / 'new'}", tmp_path / "scores.parquet", classifier=classifier)
    rows = pq.read_table(tmp_path / "scores.parquet").to_pylist()
    assert sorted(row["id"] for row in rows) == sorted(ids)
    assert [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()] == rows
    for path in (tmp_path / "scores.csv", tmp_path / "rejected" / "rejected.csv"):
        with path.open(newline="", encoding="utf-8") as file:
            cells = list(csv.DictReader(file))
        assert len(cells) == len(rows)
        by_id = {unescape_formula(cell["id"]): cell for cell in cells}
        for row in rows:
            cell = by_id[row["id"]]
            assert not cell["id"].startswith(tuple("=+-@\t\r"))
            assert not cell["class"].startswith(tuple("=+-@\t\r"))
            assert unescape_formula(cell["class"]) == row["class"] in names
            assert float(cell["confidence"]) == row["confidence"] < 0


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
