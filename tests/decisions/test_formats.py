"""Score files: every format holds the same rows."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from PIL import Image

from secondlook.arrays import Array
from secondlook.classifiers import Classifier
from secondlook.decisions import SCORE_FORMATS
from secondlook.decisions.formats import find_format
from secondlook.errors import DecisionError
from secondlook.policies import Policy
from secondlook.tables import unescape_formula
from tests.policy_maker import attach, score

IMAGES = 40


@pytest.mark.parametrize(("top_k", "per_view"), [(1, False), (2, True)])
def test_every_format_holds_the_same_rows(
    classifier: Classifier, bright_or_dark: tuple[Array, Array], tmp_path: Path, top_k: int, per_view: bool
) -> None:
    rule = Policy(threshold=0.9, method="mean" if top_k == 1 else "msr", top_k=top_k)
    policy = attach(rule, classifier=classifier, views=("identity", "hflip", "shift:1,0"))
    for suffix in SCORE_FORMATS:
        out = tmp_path / f"scores{suffix}"
        score(policy, bright_or_dark[0][:IMAGES], out, classifier=classifier, per_view=per_view)
    rows = pq.read_table(tmp_path / "scores.parquet").to_pylist()
    lines = (tmp_path / "scores.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == rows
    with (tmp_path / "scores.csv").open(newline="") as file:
        cells = list(csv.DictReader(file))
    assert len(cells) == IMAGES
    texts = {"id", "class", "reason"}
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
    policy = attach(
        Policy(threshold=9.0, method="entropy"), classifier=classifier, views=("identity",), class_names=names
    )
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


@pytest.fixture
def policy(classifier: Classifier) -> Policy:
    return attach(
        Policy(threshold=0.9, method="mean"), classifier=classifier, views=("identity", "hflip"), made="2026-01-01"
    )


@pytest.mark.parametrize("suffix", SCORE_FORMATS)
def test_other_scores_are_replaced_only_if_asked(
    classifier: Classifier, policy: Policy, images: Array, tmp_path: Path, suffix: str
) -> None:
    out = tmp_path / f"scores{suffix}"
    score(policy, images, out, classifier=classifier)
    first = out.read_bytes()
    score(policy, images, out, classifier=classifier)
    assert out.read_bytes() == first, "the same scores may be written again"
    other = policy.model_copy(update={"threshold": 0.7})
    for given, data in ((other, images), (policy, images[:20]), (policy, images[::-1])):
        with pytest.raises(DecisionError, match=r"overwrite=True.*another name") as refused:
            score(given, data, out, classifier=classifier)
        assert repr(str(out)) in str(refused.value)
        assert out.read_bytes() == first
        score(given, data, out, classifier=classifier, overwrite=True)
        assert out.read_bytes() != first
        score(policy, images, out, classifier=classifier, overwrite=True)
        assert out.read_bytes() == first
    assert not list(tmp_path.glob("scores*.parts"))


@pytest.mark.parametrize("suffix", SCORE_FORMATS)
@pytest.mark.parametrize("content", [b"file,person\na.png,Ann\n", b'{"id": 1}\n', b"[1, 2]\n", b"\xff\xfe\x00", b"\n"])
def test_file_that_is_not_of_scores_is_noticed_before_the_work(
    classifier: Classifier, policy: Policy, images: Array, tmp_path: Path, suffix: str, content: bytes
) -> None:
    out = tmp_path / f"labels{suffix}"
    out.write_bytes(content)
    with pytest.raises(DecisionError, match="overwrite=True"):
        score(policy, images, out, classifier=classifier, on_first_predictions=lambda _: pytest.fail("too late"))
    assert out.read_bytes() == content
    assert not Path(f"{out}.parts").exists()


@pytest.mark.parametrize("suffix", SCORE_FORMATS)
def test_scores_of_other_images_are_noticed_before_the_work(
    classifier: Classifier, policy: Policy, image_files: str, tmp_path: Path, suffix: str
) -> None:
    out = tmp_path / f"scores{suffix}"
    score(policy, image_files, out, classifier=classifier)
    first = min(path for path in (tmp_path / "new").rglob("*") if path.is_file())
    first.rename(first.with_name(f"renamed{first.suffix}"))
    with pytest.raises(DecisionError, match=re.escape(first.name)):
        score(policy, image_files, out, classifier=classifier, on_first_predictions=lambda _: pytest.fail("too late"))


def test_empty_file_is_filled(classifier: Classifier, policy: Policy, images: Array, tmp_path: Path) -> None:
    """As `mktemp` makes one."""
    (tmp_path / "scores.csv").touch()
    assert score(policy, images, tmp_path / "scores.csv", classifier=classifier).images == len(images)


def test_refused_scores_are_not_computed_again(
    classifier: Classifier, policy: Policy, images: Array, tmp_path: Path
) -> None:
    out = tmp_path / "scores.csv"
    score(policy, images, out, classifier=classifier)
    other = policy.model_copy(update={"threshold": 0.7})
    with pytest.raises(DecisionError, match="overwrite=True"):
        score(other, images, out, classifier=classifier)
    score(
        other,
        images,
        out,
        classifier=classifier,
        overwrite=True,
        on_first_predictions=lambda _: pytest.fail("computed again"),
    )
