"""Data sets of the Hugging Face library, from local files only."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from secondlook.errors import MissingExtraError, SourceError
from secondlook.sources import Source, open_source
from tests.sources.conftest import labels_of, png_bytes, random_images, read_all, write_parquet, write_png

datasets = pytest.importorskip("datasets")

IMAGES = random_images(4, 6, 5)
CELLS = [{"bytes": png_bytes(image), "path": None} for image in IMAGES]


@pytest.fixture
def open_local(tmp_path: Path) -> Callable[[str], Source]:
    def open_with_cache(text: str) -> Source:
        return open_source(f"hf:{tmp_path}/{text}{'&' if '?' in text else '?'}cache={tmp_path}/cache")

    return open_with_cache


def test_local_image_folder(tmp_path: Path, open_local: Callable[[str], Source]) -> None:
    for number, image in enumerate(IMAGES):
        place = tmp_path / "pets" / ("train", "test")[number % 2] / ("cat", "dog")[number // 2]
        write_png(place / f"{number}.png", image)
    source = open_local("pets?split=test")
    assert (labels_of(source), source.class_names) == ([0, 1], ("cat", "dog"))
    np.testing.assert_array_equal(source.read(1), IMAGES[3])
    for options, found in (("?split=tset", r"'tset'.*train, test.*'test'\?"), ("", r"several splits.*train, test")):
        with pytest.raises(SourceError, match=found):
            open_local(f"pets{options}")


def test_parquet_file_written_by_datasets(tmp_path: Path, open_local: Callable[[str], Source]) -> None:
    features = datasets.Features({"img": datasets.Image(), "kind": datasets.ClassLabel(names=["cat", "dog"])})
    data = datasets.Dataset.from_dict({"img": CELLS, "kind": [0, 1, 1, 0]}, features=features)
    data.to_parquet(tmp_path / "a.parquet")
    source = open_local("a.parquet")
    assert (labels_of(source), source.class_names) == ([0, 1, 1, 0], ("cat", "dog"))
    np.testing.assert_array_equal(read_all(source), IMAGES)


def test_parquet_file_written_by_pyarrow(tmp_path: Path, open_local: Callable[[str], Source]) -> None:
    write_parquet(tmp_path / "a.parquet", image=CELLS, label=[0, 1, 1, 0], n=[3, 3, 3, 3], hidden=[-1] * 4)
    assert labels_of(open_local("a.parquet?image=image")) == [0, 1, 1, 0]
    assert labels_of(open_local("a.parquet?image=image&label=n")) == [3, 3, 3, 3]
    assert open_local("a.parquet?image=image&label=hidden").labels is None
    for options, found in (
        ("", r"0 columns .*image, label, n"),
        ("?image=imag", r"'imag'.*image, label, n.*'image'\?"),
        ("?image=n", "column 'n'"),
    ):
        with pytest.raises(SourceError, match=found):
            open_local(f"a.parquet{options}")


def test_unreadable_cells_raise_or_are_skipped(tmp_path: Path, open_local: Callable[[str], Source]) -> None:
    bad = [CELLS[0], {"bytes": b"nonsense", "path": None}, None, {"bytes": None, "path": "/nowhere/x.png"}]
    write_parquet(tmp_path / "a.parquet", image=bad)
    with pytest.raises(SourceError, match=r"image 000001 of hf:"):
        list(open_local("a.parquet?image=image").batches(4))
    source = open_local("a.parquet?image=image&on_error=skip")
    assert [batch.indices.tolist() for batch in source.batches(4)] == [[0]]
    reasons = [skipped.reason for skipped in source.skipped]
    assert reasons[1] == "its row is empty"
    assert "No such file" in reasons[2]
    assert len(source.digest) == 64


def test_data_set_that_cannot_be_loaded_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SourceError, match=re.escape("'hf:nobody/nothing'")):
        open_source("hf:nobody/nothing")
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(SourceError, match=r"'\.txt'"):
        open_source(f"hf:{tmp_path}/a.txt")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"'datasets'.*secondlook\[hf\]"):
        open_source("hf:mnist?split=test")
