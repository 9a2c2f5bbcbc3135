"""Score files: every format holds the same rows, and no other file is replaced by accident."""

import json
import re
from pathlib import Path

import pytest
from PIL import Image

from secondlook.arrays import Array
from secondlook.classifiers import Classifier
from secondlook.decisions import SCORE_FORMATS
from secondlook.errors import DecisionError
from secondlook.policies import Policy
from secondlook.tables import unescape_formula
from tests.decisions.conftest import Score, make_policy, read_rows

FORMATS = pytest.mark.parametrize("suffix", SCORE_FORMATS)


@pytest.fixture(scope="module")
def policy(classifier: Classifier) -> Policy:
    return make_policy(classifier, "identity hflip")


@pytest.mark.parametrize(("method", "top_k"), [("mean", 1), ("msr", 2)])
def test_formats_hold_the_same_rows(score_into: Score, classifier: Classifier, method: str, top_k: int) -> None:
    assert set(SCORE_FORMATS) == {".parquet", ".csv", ".jsonl"}
    policy, texts = make_policy(classifier, method=method, top_k=top_k), {"id", "class", "reason"}
    names = ("scores.parquet", "scores.csv", "scores.JSONL")
    rows, cells, lines = (score_into(name, policy=policy, per_view=top_k > 1)[1] for name in names)
    assert lines == rows
    for row, cell in zip(rows, cells, strict=True):
        assert {name: (text or None) if name in texts else json.loads(text) for name, text in cell.items()} == row
        assert ("labels" in row) == (top_k > 1)
        assert top_k == 1 or (row["labels"][0] == row["label"] and sorted(row["labels"]) == [0, 1])


def test_texts_in_csv_are_not_formulas(
    score_into: Score, classifier: Classifier, images: Array, tmp_path: Path, negative: str
) -> None:
    names = ("=cmd|' /C calc'!A1", "@SUM(1+1)")
    ids = ["=1+1.png", "-5.png", "+a\rb.png", "\t@x.png", "'=quoted.png", "plain.png", "'plain.png", "a\r=1.png"]
    (tmp_path / "new").mkdir()
    for name, image in zip(ids, images, strict=False):
        Image.fromarray(image).save(tmp_path / "new" / name)
    # Numbers are written as they are, with their signs.
    policy = make_policy(classifier, "identity", threshold=9.0, method=negative, class_names=names)
    data, rejected = f"folder:{tmp_path / 'new'}", tmp_path / "rejected"
    rows, lines = (score_into(name, data, policy)[1] for name in ("scores.parquet", "scores.jsonl"))
    assert sorted(row["id"] for row in rows) == sorted(ids)
    assert lines == rows
    for cells in (score_into("scores.csv", data, policy, rejected=rejected)[1], read_rows(rejected / "rejected.csv")):
        assert len(cells) == len(rows)
        by_id = {unescape_formula(cell["id"]): cell for cell in cells}
        for row in rows:
            cell = by_id[row["id"]]
            assert not cell["id"].startswith(tuple("=+-@\t\r"))
            assert not cell["class"].startswith(tuple("=+-@\t\r"))
            assert unescape_formula(cell["class"]) == row["class"] in names
            assert float(cell["confidence"]) == row["confidence"] < 0


@FORMATS
def test_other_scores_need_overwrite(
    score_into: Score, policy: Policy, images: Array, tmp_path: Path, suffix: str
) -> None:
    name, out = f"scores{suffix}", tmp_path / f"scores{suffix}"
    out.touch()  # as `mktemp` makes one
    summary, _ = score_into(name)
    assert (summary.images, "guarantee: none" in str(summary)) == (len(images), True)
    first = out.read_bytes()
    score_into(name)
    assert out.read_bytes() == first, "the same scores may be written again"
    other = policy.model_copy(update={"threshold": 0.7})
    for given, data in ((other, images), (policy, images[:20]), (policy, images[::-1])):
        with pytest.raises(DecisionError, match=r"overwrite=True.*another name") as refused:
            score_into(name, data, given)
        assert repr(str(out)) in str(refused.value)
        assert out.read_bytes() == first
        score_into(name, data, given, overwrite=True)
        assert out.read_bytes() != first
        score_into(name, overwrite=True)
        assert out.read_bytes() == first
    assert not list(tmp_path.glob("scores*.parts"))


@FORMATS
def test_other_files_are_noticed_before_the_work(
    score_into: Score, image_files: str, tmp_path: Path, suffix: str
) -> None:
    out = tmp_path / f"labels{suffix}"
    for content in (b"file,person\na.png,Ann\n", b'{"id": 1}\n', b"[1, 2]\n", b"[" * 100_000, b"\xff\xfe\x00", b"\n"):
        out.write_bytes(content)
        with pytest.raises(DecisionError, match="overwrite=True"):
            score_into(out.name, on_first_predictions=lambda _: pytest.fail("too late"))
        assert out.read_bytes() == content
        assert not Path(f"{out}.parts").exists()
    score_into(f"scores{suffix}", image_files)
    first = min(path for path in (tmp_path / "new").rglob("*") if path.is_file())
    first.rename(first.with_name(f"renamed{first.suffix}"))
    with pytest.raises(DecisionError, match=re.escape(first.name)):
        score_into(f"scores{suffix}", image_files, on_first_predictions=lambda _: pytest.fail("too late"))


def test_refused_scores_are_not_computed_again(score_into: Score, policy: Policy) -> None:
    score_into("scores.csv")
    other = policy.model_copy(update={"threshold": 0.7})
    with pytest.raises(DecisionError, match="overwrite=True"):
        score_into("scores.csv", policy=other)
    score_into("scores.csv", policy=other, overwrite=True, on_first_predictions=lambda _: pytest.fail("computed again"))
