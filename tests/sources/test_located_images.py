"""Folders in buckets, and images whose folder, bucket or file is gone."""

import pickle
import platform
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from datasets import Dataset, Features, Image
from pyarrow.fs import copy_files

from secondlook.errors import SourceError
from secondlook.file_systems import Location
from secondlook.sources import ArraySource, Source, UnreadableImageError, open_source
from tests.sources.conftest import labels_of, png_bytes, read_all

S3 = Callable[[str], Any]


@pytest.fixture
def bucket(picture_folder: Path, s3: S3) -> Any:
    """A copy of the folder of pictures in the bucket 'pictures'; returns the file system."""
    system = s3("pictures")
    copy_files(str(picture_folder), "pictures/val", destination_filesystem=system)
    return system


def put(system: Any, path: str, content: bytes = b"") -> None:
    with system.open_output_stream(path) as file:
        file.write(content)


@pytest.mark.parametrize("options", ["", "?labels=none"])
def test_folder_in_a_bucket_is_the_local_folder(picture_folder: Path, s3: S3, options: str) -> None:
    shown = ("cat/b/x.png", "cat/a.png", "cat/z.png", "dog/c/d/e.png")
    for name in (*shown, "cat/.hidden.png", ".git/x.png", "ant/a.txt"):
        target = picture_folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(picture_folder / "cat" / "0.png", target)
    copy_files(str(picture_folder), "pictures/val", destination_filesystem=s3("pictures"))
    local = open_source(f"folder:{picture_folder}{options}")
    for location in ("s3://pictures/val/", picture_folder.as_uri()):
        other = open_source(f"folder:{location}{options}")
        assert (other.ids, other.class_names) == (local.ids, local.class_names)
        np.testing.assert_array_equal(other.labels, local.labels)
        np.testing.assert_array_equal(read_all(other), read_all(local))
    assert local.ids[:3] == ("cat/0.png", "cat/1.png", "cat/a.png")
    assert local.ids.index("cat/z.png") < local.ids.index("cat/b/x.png")


def test_class_names_and_subsets_apply_to_a_bucket(bucket: Any, tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("dog\nbird\ncat\n")
    source = open_source(f"folder:s3://pictures/val?classes={tmp_path}/classes.txt&limit=3")
    assert (labels_of(source), source.class_names) == ([2, 0, 0], ("dog", "bird", "cat"))
    flat = open_source("folder:s3://pictures/val/dog")
    assert (flat.ids, flat.labels) == (("2.png", "3.png"), None)
    put(bucket, "pictures/val/cat/a.gif")
    for location, class_names in (("pictures/val", ("cat", "dog")), ("pictures", ("val",))):
        with pytest.warns(UserWarning, match="1 .gif"):
            source = open_source(f"folder:s3://{location}")
        assert (len(source), source.class_names) == (4, class_names)


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        ("folder:s3://no-such-bucket/val", "no-such-bucket"),
        ("folder:s3://pictures/none", "no images"),
        ("folder:s3://pictures/val?endpoint=http://127.0.0.1:1", "endpoint="),
        ("folder:s3://pictures/val?labels=all", "labels"),
        ("folder:s3://pictures/val?regoin=eu", "Did you mean 'region'"),
        ("s3://pictures/val", "folder:s3://pictures/val"),
        ("s3://pictures/val.tar", "webdataset:s3://pictures/val.tar"),
        ("s3://pictures/val.parquet", "parquet:s3://pictures/val.parquet"),
        ("parquet:s3://pictures/val", r"\.parquet"),
        ("webdataset:s3://pictures/none", "does not exist"),
        ("folder:s3://key:hunter2@pictures/val", "credentials"),
        ("folder:s3://pictures/val?secret_key=hunter2", "credentials"),
        ("s3://k:hunter2@p/v", "credentials"),
    ],
)
@pytest.mark.usefixtures("bucket")
def test_spec_that_opens_nothing(spec: str, found: str) -> None:
    with pytest.raises(SourceError, match=found) as caught:
        open_source(spec)
    assert "hunter2" not in str(caught.value)


def test_missing_and_damaged_files_of_a_bucket_are_unreadable(bucket: Any) -> None:
    failing, source = (open_source(f"folder:s3://pictures/val?on_error={each}") for each in ("fail", "skip"))
    digest = source.digest
    bucket.delete_file("pictures/val/cat/0.png")
    put(bucket, "pictures/val/cat/1.png", b"no image")
    with pytest.raises(UnreadableImageError, match=r"s3://pictures/val/cat/0\.png.*No such file"):
        list(failing.batches(4))
    (batch,) = source.batches(4)
    assert batch.indices.tolist() == [2, 3]
    reasons = {skipped.id: skipped.reason for skipped in source.skipped}
    assert "No such file" in reasons["cat/0.png"]
    assert set(reasons) == {"cat/0.png", "cat/1.png"}
    assert failing.digest == digest, "it covers sizes and times of what was listed, without reading images"
    assert open_source("folder:s3://pictures/val").digest != digest


def test_files_of_a_bucket_are_not_read_if_too_large_and_sent_once(bucket: Any) -> None:
    source = open_source("folder:s3://pictures/val?max_bytes=300")  # two of its images at once
    with patch.object(Location, "read_bytes", autospec=True, side_effect=Location.read_bytes) as sent:
        assert [len(batch.images) for batch in source.batches(4)] == [2, 2]
    assert sorted(call.args[1] for call in sent.call_args_list) == list(source.ids)
    put(bucket, "pictures/val/cat/0.png", bytes(151))
    source = open_source("folder:s3://pictures/val?max_bytes=150")
    bucket.delete_file("pictures/val/cat/0.png")  # which is not noticed
    with pytest.raises(UnreadableImageError, match="151"):
        source.read(0)


@pytest.mark.parametrize("gone", ["prefix", "server"])
def test_prefix_or_server_that_is_gone_is_an_error_of_the_source(
    bucket: Any, gone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_source("folder:s3://pictures/val?on_error=skip")
    found = r"s3://pictures/val.*" + platform.node()
    if gone == "prefix":
        bucket.delete_dir("pictures/val")
    else:
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        source, found = pickle.loads(pickle.dumps(source.extract(range(2)))), r"127\.0\.0\.1:1"
    with pytest.raises(SourceError, match=found) as caught:
        list(source.batches(4))
    assert not isinstance(caught.value, UnreadableImageError)


def is_root_error(source: Source) -> bool:
    """Whether reading fails because the root is gone, rather than the image."""
    with pytest.raises(SourceError) as caught:
        source.read(0)
    return not isinstance(caught.value, UnreadableImageError)


@pytest.mark.parametrize("relative", [False, True])
def test_local_folder_that_is_gone(picture_folder: Path, relative: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(picture_folder.parent)
    source = open_source(f"folder:{picture_folder.name if relative else picture_folder}")
    part, image = pickle.loads(pickle.dumps(source.extract(range(1)))), source.read(0)
    monkeypatch.chdir("/")
    np.testing.assert_array_equal(part.read(0), image)
    (picture_folder / "cat" / "0.png").unlink()
    assert not is_root_error(part)
    shutil.rmtree(picture_folder / "cat")
    assert not is_root_error(part)
    shutil.rmtree(picture_folder)
    assert is_root_error(part)
    if not relative:
        assert is_root_error(source)


@pytest.mark.parametrize("kind", ["csv", "list"])
def test_paths_below_a_folder_that_is_gone(picture_folder: Path, kind: str) -> None:
    names = ("cat/0.png", "missing/1.png")
    (picture_folder / "a.csv").write_text("path\ncat/0.png\nmissing/1.png\n")
    source = open_source(f"csv:{picture_folder}/a.csv" if kind == "csv" else [picture_folder / name for name in names])
    whole, missing = source.extract(range(2)), source.extract(range(1, 2))
    assert whole is not None
    assert missing is not None
    with pytest.raises(UnreadableImageError):
        whole.read(1)
    assert not is_root_error(missing), "a folder that was never there is no root"
    shutil.rmtree(picture_folder)
    assert not is_root_error(source)
    assert is_root_error(whole)


def test_file_of_images_that_is_gone_or_has_changed(samples: Callable[[str], str], tmp_path: Path) -> None:
    source = open_source(samples("npz"))
    path = tmp_path / "a.npz"
    content = pickle.dumps(source.extract(np.array([2, 5])))
    again = pickle.loads(content)
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(SourceError, match="changed"):
        again.read(0)
    path.unlink()
    assert is_root_error(pickle.loads(content))
    path.mkdir()
    assert is_root_error(pickle.loads(content))


def test_sources_of_users_are_not_extracted_and_urls_in_lists_rejected(
    samples: Callable[[str], str], tmp_path: Path
) -> None:
    class Pixels(ArraySource):
        """Reads something else than its array."""

    pixels = open_source(samples("npz"))
    assert isinstance(pixels, ArraySource)
    assert Pixels(pixels.images).extract(range(2)) is None
    assert open_source(np.zeros((3, 4, 4, 3), np.uint8)).extract(range(2)) is None
    (tmp_path / "a.csv").write_text("path\na.png\ns3://bucket/a.png\n")
    for data in ([tmp_path / "a.png", "s3://bucket/a.png"], f"csv:{tmp_path}/a.csv"):
        with pytest.raises(SourceError, match=r"s3://bucket/a\.png"):
            open_source(data)


def test_rows_of_a_data_set_are_sent_with_their_bytes() -> None:
    cells = [{"bytes": png_bytes(np.full((3, 4, 3), value, np.uint8)), "path": None} for value in range(2)]
    data = Dataset.from_dict({"image": [*cells, None]}, features=Features({"image": Image()}))
    source = open_source(data, on_error="skip")
    received = pickle.loads(pickle.dumps(source.extract(range(1, 3))))
    np.testing.assert_array_equal(received.read(0), source.read(1))
    assert [len(batch.images) for whole in (source, received) for batch in whole.batches(3)] == [2, 1]
    assert received.skipped == source.skipped
    assert len(source.skipped) == 1
