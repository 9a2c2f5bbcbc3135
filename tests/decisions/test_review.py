"""The folder of rejected images, and the names of its files."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from secondlook.arrays import Array
from secondlook.classifiers import Classifier
from secondlook.decisions import Review
from secondlook.decisions.review import make_file_name, name_class_folders
from secondlook.errors import DecisionError
from secondlook.policies import Policy
from tests.policy_maker import attach, score

IMAGES = 30

ScoreImages = Callable[..., list[dict[str, Any]]]


def read_list(folder: Path) -> list[dict[str, str]]:
    with (folder / Review.LIST).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("link", [False, True])
def test_files_are_copied_or_linked_by_class(
    score_images: ScoreImages, image_files: str, tmp_path: Path, link: bool
) -> None:
    rows = score_images(image_files, rejected=tmp_path / "rejected", link=link)
    table = read_list(tmp_path / "rejected")
    assert list(table[0]) == ["file", "id", "label", "class", "confidence"]
    assert [line["id"] for line in table] == [row["id"] for row in rows]
    for line, row in zip(table, rows, strict=True):
        path = tmp_path / "rejected" / line["file"]
        assert path.read_bytes() == (tmp_path / "new" / row["id"]).read_bytes()
        assert path.is_symlink() == link
        assert path.parent.name == make_file_name(row["class"], row["class"])
        assert float(line["confidence"]) == row["confidence"]
    files = list((tmp_path / "rejected").rglob("*.png"))
    assert len(files) == len(rows) == len({line["file"].lower() for line in table})


def test_images_that_are_not_files_are_saved_as_png(score_images: ScoreImages, images: Array, tmp_path: Path) -> None:
    rows = score_images(images, rejected=tmp_path / "rejected")
    for line, row in zip(read_list(tmp_path / "rejected"), rows, strict=True):
        assert line["file"] == f"{row['label']}/{row['id']}.png"
        with Image.open(tmp_path / "rejected" / line["file"]) as saved:
            assert np.array_equal(np.asarray(saved), images[int(row["id"])])


@pytest.mark.parametrize("kind", ["gray", "float"])
def test_gray_and_float_images_are_saved_as_png(
    review_policy: Policy, images: Array, tmp_path: Path, kind: str
) -> None:
    pixels = images[..., :1] if kind == "gray" else images.astype(np.float32) / np.float32(255)

    def brightness(batch: Any) -> Any:
        bright = batch.mean(axis=(1, 2, 3)) / (1 if kind == "float" else 255)
        return np.stack([1 - bright, bright], axis=1)

    options: dict[str, Any] = {"classifier": brightness, "allow_mismatch": True, "rejected": tmp_path / "rejected"}
    score(review_policy, pixels, tmp_path / "scores.csv", **options)
    first = read_list(tmp_path / "rejected")[0]
    with Image.open(tmp_path / "rejected" / first["file"]) as saved:
        expected = images[int(first["id"])]
        assert np.array_equal(np.asarray(saved), expected[..., 0] if kind == "gray" else expected)


def test_folder_must_be_empty_and_outside_the_data(score_images: ScoreImages, image_files: str, tmp_path: Path) -> None:
    score_images(image_files, rejected=tmp_path / "rejected")
    for rejected in (tmp_path / "rejected", tmp_path / "scores.jsonl", tmp_path / "new" / "rejected"):
        with pytest.raises(DecisionError, match=f"'{rejected}'"):
            score_images(image_files, rejected=rejected)
    assert not (tmp_path / "scores.jsonl.parts").exists()


def test_nothing_rejected_is_an_empty_list(classifier: Classifier, images: Array, tmp_path: Path) -> None:
    policy = attach(Policy(threshold=0.0, method="mean"), classifier=classifier, views=("identity", "hflip"))
    exports = [f"label-studio:{tmp_path / 'tasks.json'}", f"fiftyone:{tmp_path / 'labels.json'}"]
    rejected = tmp_path / "rejected"
    score(policy, images, tmp_path / "s.csv", classifier=classifier, review=Review(exports=exports, rejected=rejected))
    assert json.loads((tmp_path / "tasks.json").read_text()) == []
    assert json.loads((tmp_path / "labels.json").read_text()) == {"classes": ["0", "1"], "labels": {}}
    assert read_list(rejected) == []


@settings(deadline=None, max_examples=200)
@given(st.sets(st.text(st.sampled_from("aAbB1._-/ ä:\\\n"), min_size=1, max_size=6), min_size=2, max_size=20))
def test_file_names_are_valid_and_unique(identities: set[str]) -> None:
    names = [make_file_name(identity, identity) for identity in identities]
    assert len({name.lower() for name in names}) == len(identities)
    for name in names:
        assert not set(name) & set('/\\:*?"<>|\n ')
        assert not name.startswith((".", "-"))
        assert not name.endswith(".")
        assert 0 < len(name.encode()) < 250


NAMES = [
    *(
        "rejected.csv",
        "Rejected.CSV",
        ".",
        "..",
        "",
        " ",
        "con",
        "CON",
        "nul.png",
        "com1",
        "a/b",
        "a\\b",
        "/",
        "~",
        "-x",
    ),
    *("x" * 300, "字" * 300, "dark", "Dark", "dark ", "bright-ones", "a\0b", "a\nb", "_", "crane", "crane", "crane"),
]


def test_classes_never_share_a_folder() -> None:
    # The last names are those of the folders of the others.
    for names in (NAMES, [*NAMES, *name_class_folders(NAMES)], [*name_class_folders(NAMES), *NAMES]):
        folders = name_class_folders(names)
        assert len({folder.lower() for folder in (Review.LIST, *folders)}) == len(names) + 1
        for folder in folders:
            assert Path(folder).name == folder, "one folder below the folder of rejected images"
            assert folder.partition(".")[0].lower() not in ("con", "nul", "com1")
            assert len(folder.encode()) < 250
    assert name_class_folders(("dark", "bright-ones", "crane", "7")) == ("dark", "bright-ones", "crane", "7")


@pytest.mark.parametrize("class_names", [("rejected.csv", ".."), ("con", "a/b"), ("crane", "crane"), ("x" * 300, "")])
def test_any_class_name_has_a_folder(
    review_policy: Policy, classifier: Classifier, images: Array, tmp_path: Path, class_names: tuple[str, str]
) -> None:
    policy = review_policy.model_copy(update={"class_names": class_names})
    out, rejected = tmp_path / "scores.jsonl", tmp_path / "rejected"
    summary = score(policy, images, out, classifier=classifier, review=Review(rejected=rejected))
    table = read_list(rejected)
    assert len(table) == summary.rejected == len(list(rejected.glob("*/*.png")))
    label_of = {line["file"].partition("/")[0]: line["label"] for line in table}
    assert sorted(label_of.values()) == ["0", "1"]
    assert all(label_of[line["file"].partition("/")[0]] == line["label"] for line in table)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rejected", "scores.jsonl"]


def test_image_named_like_the_file_of_another_does_not_replace_it(
    review_policy: Policy, classifier: Classifier, images: Array, tmp_path: Path
) -> None:
    policy = review_policy.model_copy(update={"threshold": 2.0})
    (tmp_path / "new").mkdir()
    for name in ("a b.png", f"{make_file_name('a b', 'a b.png')}.png"):
        Image.fromarray(images[0]).save(tmp_path / "new" / name)
    data, rejected = f"folder:{tmp_path / 'new'}", tmp_path / "rejected"
    score(policy, data, tmp_path / "scores.csv", classifier=classifier, review=Review(rejected=rejected))
    assert len(list(rejected.glob("*/*.png"))) == 2


def test_long_file_names_are_shortened() -> None:
    assert len(make_file_name("字" * 500, "字" * 500).encode()) < 250
    assert make_file_name("x" * 300, "x" * 300) != make_file_name("x" * 301, "x" * 301)
