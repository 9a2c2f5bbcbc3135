"""Score files: every format holds the same rows, and no other file is replaced by accident."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from secondlook.arrays import Array
from secondlook.classifiers import Classifier
from secondlook.decisions import SCORE_FORMATS
from secondlook.errors import DecisionError
from secondlook.policies import Policy
from secondlook.tables import unescape_formula
from tests.decisions.conftest import make_policy, read_rows
from tests.policy_maker import score


@pytest.fixture(scope="module")
def policy(classifier: Classifier) -> Policy:
    return make_policy(classifier, "identity hflip")


@pytest.mark.parametrize(("method", "top_k", "per_view"), [("mean", 1, False), ("msr", 2, True)])
def test_every_format_holds_the_same_rows(
    classifier: Classifier, images: Array, tmp_path: Path, method: str, top_k: int, per_view: bool
) -> None:
    policy = make_policy(classifier, method=method, top_k=top_k)
    found = {}
    for suffix in (".parquet", ".csv", ".JSONL"):
        assert suffix.lower() in SCORE_FORMATS
        out = tmp_path / f"scores{suffix}"
        score(policy, images, out, classifier=classifier, per_view=per_view)
        found[suffix] = read_rows(out.rename(out.with_suffix(suffix.lower())))
    rows, texts = found[".parquet"], {"id", "class", "reason"}
    assert found[".JSONL"] == rows
    for row, cell in zip(rows, found[".csv"], strict=True):
        assert {name: (text or None) if name in texts else json.loads(text) for name, text in cell.items()} == row
        assert ("labels" in row) == (top_k > 1)
        assert top_k == 1 or (row["labels"][0] == row["label"] and sorted(row["labels"]) == [0, 1])


def test_texts_are_not_formulas_in_csv_files(classifier: Classifier, images: Array, tmp_path: Path) -> None:
    names = ("=cmd|' /C calc'!A1", "@SUM(1+1)")
    ids = ["=1+1.png", "-5.png", "+a\rb.png", "\t@x.png", "'=quoted.png", "plain.png", "'plain.png", "a\r=1.png"]
    (tmp_path / "new").mkdir()
    for name, image in zip(ids, images, strict=False):
        Image.fromarray(image).save(tmp_path / "new" / name)
    # Logarithms are negative: numbers are written as they are.
    policy = make_policy(classifier, "identity", threshold=9.0, method="entropy", class_names=names)
    for suffix in SCORE_FORMATS:
        options: dict[str, Any] = {"rejected": tmp_path / "rejected"} if suffix == ".csv" else {}
        score(policy, f"folder:{tmp_path / 'new'}", tmp_path / f"scores{suffix}", classifier=classifier, **options)
    rows = read_rows(tmp_path / "scores.parquet")
    assert sorted(row["id"] for row in rows) == sorted(ids)
    assert read_rows(tmp_path / "scores.jsonl") == rows
    for path in (tmp_path / "scores.csv", tmp_path / "rejected" / "rejected.csv"):
        cells = read_rows(path)
        assert len(cells) == len(rows)
        by_id = {unescape_formula(cell["id"]): cell for cell in cells}
        for row in rows:
            cell = by_id[row["id"]]
            assert not cell["id"].startswith(tuple("=+-@\t\r"))
            assert not cell["class"].startswith(tuple("=+-@\t\r"))
            assert unescape_formula(cell["class"]) == row["class"] in names
            assert float(cell["confidence"]) == row["confidence"] < 0


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
    out, other = tmp_path / "scores.csv", policy.model_copy(update={"threshold": 0.7})
    score(policy, images, out, classifier=classifier)
    options: dict[str, Any] = {"classifier": classifier}
    with pytest.raises(DecisionError, match="overwrite=True"):
        score(other, images, out, **options)
    options["on_first_predictions"] = lambda _: pytest.fail("computed again")
    score(other, images, out, overwrite=True, **options)
