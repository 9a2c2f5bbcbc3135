"""Data sets of the Hugging Face library. The hub is replaced: `load_dataset` returns local data."""

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secondlook.errors import MissingExtraError, SourceError
from secondlook.sources import open_source
from tests.sources.conftest import labels_of, png_bytes, put_on_hub, random_images, read_all, write_png

datasets = pytest.importorskip("datasets")

IMAGES = random_images(4, 6, 5)
CELLS = [{"bytes": png_bytes(image), "path": None} for image in IMAGES]
SPLITS = ("train", "test")
PETS = datasets.Features({"img": datasets.Image(), "kind": datasets.ClassLabel(names=["cat", "dog"])})


def test_split_with_class_names(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = put_on_hub(monkeypatch, SPLITS, PETS, img=CELLS, kind=[0, 1, 1, 0])
    source = open_source("hf:org/pets?split=test&config=small&revision=v2&cache=here")
    assert requests == [(("org/pets", "small"), {"revision": "v2", "cache_dir": "here"})]
    assert (labels_of(source), source.class_names) == ([0, 1, 1, 0], ("cat", "dog"))
    np.testing.assert_array_equal(read_all(source), IMAGES)
    for options, found in (("?split=tset", r"'tset'.*train, test.*'test'\?"), ("", r"several splits.*train, test")):
        with pytest.raises(SourceError, match=found):
            open_source(f"hf:org/pets{options}")


def test_columns_are_chosen_by_options(monkeypatch: pytest.MonkeyPatch) -> None:
    put_on_hub(monkeypatch, SPLITS, image=CELLS, label=[0, 1, 1, 0], n=[3, 3, 3, 3], hidden=[-1] * 4)
    assert labels_of(open_source("hf:pets?split=test&image=image")) == [0, 1, 1, 0]
    assert labels_of(open_source("hf:pets?split=test&image=image&label=n")) == [3, 3, 3, 3]
    assert open_source("hf:pets?split=test&image=image&label=hidden").labels is None
    for options, found in (
        ("", r"0 columns .*image, label, n"),
        ("&image=imag", r"'imag'.*image, label, n.*'image'\?"),
        ("&image=n", "column 'n'"),
    ):
        with pytest.raises(SourceError, match=found):
            open_source(f"hf:pets?split=test{options}")


def test_unreadable_cells_raise_or_are_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    missing = {"bytes": None, "path": str(tmp_path / "x.png")}
    put_on_hub(monkeypatch, SPLITS, image=[CELLS[0], {"bytes": b"nonsense", "path": None}, None, missing])
    spec = f"hf:pets?split=test&image=image&cache={tmp_path}"
    with pytest.raises(SourceError, match=r"image 000001 of hf:"):
        list(open_source(spec).batches(4))
    source = open_source(f"{spec}&on_error=skip")
    assert [batch.indices.tolist() for batch in source.batches(4)] == [[0]]
    reasons = [skipped.reason for skipped in source.skipped]
    assert reasons[1] == "its row is empty"
    assert "No such file" in reasons[2]
    assert len(source.digest) == 64


def test_rows_name_files_in_the_cache_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cache, outside = tmp_path / "cache", tmp_path / "private.png"
    for place in (cache / "blobs" / "0.png", outside):
        write_png(place, IMAGES[0])
    (cache / "linked.png").symlink_to(cache / "blobs" / "0.png")
    (cache / "leaving.png").symlink_to(outside)
    paths = [
        cache / "blobs" / "0.png",
        cache / "linked.png",
        outside,
        cache / ".." / "private.png",
        cache / "leaving.png",
    ]
    put_on_hub(monkeypatch, SPLITS, image=[{"bytes": None, "path": str(path)} for path in paths])
    source = open_source(f"hf:pets?split=test&image=image&cache={cache}&on_error=skip")
    np.testing.assert_array_equal(read_all(source), [IMAGES[0]] * 2)
    assert [skipped.id for skipped in source.skipped] == [source.ids[row] for row in (2, 3, 4)]


@pytest.mark.parametrize("name", ["pets", "a.parquet"])
def test_local_path_is_never_given_to_the_library(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would follow the addresses in a data card."""
    requests = put_on_hub(monkeypatch, SPLITS, PETS, img=CELLS, kind=[0, 1, 1, 0])
    write_png(tmp_path / "pets" / "cat" / "0.png", IMAGES[0])
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(SourceError, match=r"parquet:.*folder:"):
        open_source(f"hf:{tmp_path}/{name}")
    assert requests == []


def test_data_set_that_cannot_be_loaded_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    class DamagedCardError(Exception): ...

    def load_dataset(*_: Any, **__: Any) -> Any:
        raise DamagedCardError("line 3")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(SourceError, match=re.escape("'hf:nobody/nothing'") + ".*line 3"):
        open_source("hf:nobody/nothing")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"'datasets'.*secondlook\[hf\]"):
        open_source("hf:mnist?split=test")
