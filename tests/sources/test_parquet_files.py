"""Parquet files with images in a column."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, Features, Image

from secondlook.errors import SourceError
from secondlook.sources import UnreadableImageError, open_source, sharded_files
from secondlook.sources.sharded_files import ParquetSource
from tests.sources.conftest import labels_of, png_bytes

IMAGES = np.random.default_rng(3).integers(0, 256, (7, 5, 4, 3), dtype=np.uint8)
PNGS = [png_bytes(image) for image in IMAGES]


def write(path: Path, row_group_size: int = 3, **columns: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=row_group_size)
    return f"parquet:{path}"


def open_parquet(spec: str, **options: Any) -> ParquetSource:
    source = open_source(spec, **options)
    assert isinstance(source, ParquetSource)
    return source


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()])
def test_column_of_bytes(tmp_path: Path, kind: Any) -> None:
    spec = write(tmp_path / "a.parquet", picture=pa.array(PNGS, kind), size=list(range(7)))
    source = open_parquet(spec)
    assert source.ids == tuple(f"a.parquet#{row}" for row in range(7))
    assert source.labels is None
    np.testing.assert_array_equal([source.read(index) for index in range(7)], IMAGES)


def test_files_of_hugging_face_have_class_names(tmp_path: Path) -> None:
    features = Features({"image": Image(), "thumbnail": Image(), "label": ClassLabel(names=["dog", "bird", "cat"])})
    cells = [{"bytes": png, "path": f"{number}.png"} for number, png in enumerate(PNGS)]
    data = Dataset.from_dict({"image": cells, "thumbnail": cells, "label": [2, 0, 0, 2, 2, 0, 2]}, features=features)
    data.to_parquet(tmp_path / "a.parquet")
    with pytest.raises(SourceError, match="image, thumbnail"):
        open_source(f"parquet:{tmp_path}/a.parquet")
    source = open_source(f"parquet:{tmp_path}/a.parquet?image=image")
    by_datasets = open_source(f"hf:{tmp_path}/a.parquet?image=image&cache={tmp_path}/cache")
    assert source.class_names == by_datasets.class_names == ("dog", "bird", "cat")
    np.testing.assert_array_equal(source.labels, by_datasets.labels)
    for index in range(7):
        np.testing.assert_array_equal(source.read(index), by_datasets.read(index))


def test_folder_of_files_with_ids_and_names_of_classes(tmp_path: Path) -> None:
    write(tmp_path / "b" / "2.parquet", image=PNGS[4:], name=["x", "y", "z"], species=["cat", "dog", "cat"])
    write(tmp_path / "1.parquet", image=PNGS[:4], name=list("abcd"), species=["dog", "dog", "cat", "ant"])
    (tmp_path / "README.md").write_text("about")
    source = open_source(f"parquet:{tmp_path}?id=name&label=species")
    assert source.ids == tuple("abcdxyz")
    assert source.class_names == ("ant", "cat", "dog")
    assert labels_of(source) == [2, 2, 1, 0, 1, 2, 1]
    np.testing.assert_array_equal([source.read(index) for index in range(7)], IMAGES)
    assert open_source(f"parquet:{tmp_path}").ids[3:5] == ("1.parquet#3", "b/2.parquet#0")
    (tmp_path / "classes.txt").write_text("dog\ncat\nant\n")
    named = open_source(f"parquet:{tmp_path}?label=species&classes={tmp_path}/classes.txt")
    assert labels_of(named) == [0, 0, 1, 2, 1, 0, 1]


def test_labels_of_minus_one_are_none(tmp_path: Path) -> None:
    assert open_source(write(tmp_path / "a.parquet", image=PNGS, label=[-1] * 7)).labels is None


def test_dictionaries_are_class_names(tmp_path: Path) -> None:
    names = pa.array(["b", "a", "b", "b", "a", "a", "b"]).dictionary_encode()
    source = open_source(write(tmp_path / "a.parquet", image=PNGS, labels=names))
    assert source.class_names == ("a", "b")


@pytest.mark.parametrize(
    ("columns", "options", "found"),
    [
        ({}, "?image=picture", "picture"),
        ({}, "?label=lable", "lable"),
        ({}, "?id=name", "name"),
        ({"label": [0, 1, None, 0, 0, 0, 0]}, "", "row 2 of 'a.parquet'"),
        ({"label": [0.5] * 7}, "", "double"),
        ({"label": [0] * 7}, "?image=label", "int64"),
        ({"label": [0, 0, 0, -1, 0, 0, 0]}, "", "label -1 of image 3"),
        ({"name": ["a", "b", "a", "c", "d", "e", "f"]}, "?id=name", "duplicate id 'a'"),
        ({"other": [b"x"] * 7}, "", "image, other"),
    ],
)
def test_wrong_columns(tmp_path: Path, columns: dict[str, Any], options: str, found: str) -> None:
    spec = write(tmp_path / "a.parquet", image=PNGS, **columns)
    with pytest.raises(SourceError, match=found):
        open_source(spec + options)


def test_files_that_do_not_fit_together(tmp_path: Path) -> None:
    write(tmp_path / "1.parquet", image=PNGS, label=[0] * 7)
    write(tmp_path / "2.parquet", image=PNGS)
    with pytest.raises(SourceError, match=r"2\.parquet.*'label'"):
        open_source(f"parquet:{tmp_path}")
    write(tmp_path / "2.parquet", image=PNGS, label=["a"] * 7)
    with pytest.raises(SourceError, match="integers in some"):
        open_source(f"parquet:{tmp_path}")


def test_no_images(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no images"):
        open_source(write(tmp_path / "a.parquet", image=pa.array([], pa.binary())))
    with pytest.raises(SourceError, match="does not exist"):
        open_source(f"parquet:{tmp_path}/none.parquet")
    (tmp_path / "b.parquet").write_bytes(b"PAR1 but not really PAR1")
    with pytest.raises(SourceError, match=r"b\.parquet"):
        open_source(f"parquet:{tmp_path}/b.parquet")


def test_empty_and_damaged_cells_are_unreadable(tmp_path: Path) -> None:
    spec = write(tmp_path / "a.parquet", image=[PNGS[0], None, b"no image", PNGS[3]])
    source = open_source(spec, on_error="skip")
    part = pickle.loads(pickle.dumps(source.extract(range(1, 3))))
    for whole, n_images in ((source, 2), (part, 0)):
        assert sum(len(batch.images) for batch in whole.batches(4)) == n_images
        assert [skipped.id for skipped in whole.skipped] == ["a.parquet#1", "a.parquet#2"]
    assert part.skipped == source.skipped
    struct = pa.array([{"bytes": PNGS[0], "path": "x"}, {"bytes": None, "path": "y"}, None])
    source = open_source(write(tmp_path / "b.parquet", image=struct))
    np.testing.assert_array_equal(source.read(0), IMAGES[0])
    for index in (1, 2):
        with pytest.raises(UnreadableImageError, match="empty"):
            source.read(index)


@pytest.mark.parametrize("is_kept", [True, False])
def test_row_groups_are_read_when_needed_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_kept: bool
) -> None:
    if not is_kept:
        monkeypatch.setattr(sharded_files, "MAX_CACHED_BYTES", 0)
        monkeypatch.setattr(sharded_files, "MIN_ROW_GROUPS", 1)
    read: list[int] = []
    real = ParquetSource._read_row_group

    def spy(self: ParquetSource, shard: Any, group: int) -> Any:
        read.append(group)
        return real(self, shard, group)

    monkeypatch.setattr(ParquetSource, "_read_row_group", spy)
    source = open_parquet(write(tmp_path / "a.parquet", image=PNGS))
    assert read == []
    for index in (1, 0, 2, 6, 5, 1):
        source.read(index)
    assert read == ([0, 2, 1] if is_kept else [0, 2, 1, 0])
    source = open_parquet(write(tmp_path / "b.parquet", image=PNGS * 20, row_group_size=7))
    read.clear()
    source.threads = 8
    assert sum(len(batch.images) for batch in source.batches(50)) == 140
    if is_kept:
        assert sorted(read) == list(range(20))


def test_digest_covers_bytes_of_small_local_files_and_otherwise_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = write(tmp_path / "a.parquet", image=PNGS)
    first = open_source(spec).digest
    assert open_source(write(tmp_path / "a.parquet", image=PNGS, row_group_size=2)).digest == first
    assert open_source(write(tmp_path / "a.parquet", image=[*PNGS[:6], PNGS[0]])).digest != first
    monkeypatch.setattr("secondlook.sources.encoded_sources.MAX_HASHED_BYTES", 100)
    monkeypatch.setattr(ParquetSource, "_read_encoded", None)
    large = open_source(spec).digest
    assert open_source(spec).digest == large != first
    write(tmp_path / "a.parquet", image=PNGS, row_group_size=2)
    assert open_source(spec).digest != large


def test_file_that_changes_or_disappears(tmp_path: Path) -> None:
    spec = write(tmp_path / "a.parquet", image=PNGS)
    content = pickle.dumps(open_source(spec, on_error="skip").extract(range(3)))
    write(tmp_path / "a.parquet", image=PNGS[:4])
    with pytest.raises(SourceError, match="changed"):
        list(pickle.loads(content).batches(3))
    (tmp_path / "a.parquet").unlink()
    with pytest.raises(SourceError, match="not there on this machine") as caught:
        list(pickle.loads(content).batches(3))
    assert not isinstance(caught.value, UnreadableImageError)


def test_row_group_above_the_limit_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(write(tmp_path / "a.parquet", image=PNGS))
    monkeypatch.setattr(sharded_files, "MAX_LOADED_BYTES", 100)
    with pytest.raises(SourceError, match=r"row group 0 .*100"):
        source.read(0)
    monkeypatch.setattr(sharded_files, "MAX_LOADED_ROWS", 6)
    with pytest.raises(SourceError, match="7 rows"):
        open_source(f"parquet:{tmp_path}/a.parquet")
