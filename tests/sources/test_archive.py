"""NumPy archives."""

import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from secondlook.errors import SourceError
from secondlook.sources import ArraySource, open_source

IMAGES = np.random.default_rng(0).integers(0, 256, (5, 7, 6, 3), dtype=np.uint8)
LABELS = np.array([0, 1, 1, 0, 1], dtype=np.uint8)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("compressed", [False, True])
def test_stored_and_compressed_archives_are_the_same(tmp_path: Path, order: str, compressed: bool) -> None:
    save = np.savez_compressed if compressed else np.savez
    images = np.asarray(IMAGES, order="F" if order == "F" else "C")
    save(tmp_path / "a.npz", labels=LABELS, class_names=np.array(["cat", "dog"]), images=images)
    source = open_source(f"npz:{tmp_path}/a.npz")
    assert source.class_names == ("cat", "dog")
    np.testing.assert_array_equal(np.stack([source.read(i) for i in range(5)]), IMAGES)
    assert source.digest == open_source(IMAGES, labels=LABELS, class_names=["cat", "dog"]).digest
    assert isinstance(source, ArraySource)
    assert isinstance(source.images, np.memmap) is not compressed


def test_an_uncompressed_archive_takes_no_memory(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros((64, 64, 64, 3), dtype=np.uint8))
    tracemalloc.start()
    source = open_source(f"npz:{tmp_path}/a.npz")
    for _batch in source.batches(8):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * 64 * 64 * 3 / 2


def test_arrays_of_other_names_and_ids(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "a.npz", x=IMAGES, y=LABELS[:, None], names=np.array(["cat", "dog"]), ids=np.array(list("abcde"))
    )
    source = open_source(f"npz:{tmp_path}/a.npz?images=x&labels=y&class_names=names")
    assert source.ids == tuple("abcde")
    assert source.labels is not None
    assert source.labels.tolist() == LABELS.tolist()


def test_missing_labels_are_unknown(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=IMAGES)
    source = open_source(f"npz:{tmp_path}/a.npz")
    assert source.labels is None
    assert source.class_names is None


def test_bad_archives_are_told(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"there is no file '.*a.npz'"):
        open_source(f"npz:{tmp_path}/a.npz")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(SourceError, match=r"cannot be read as a NumPy archive: File is not a zip file"):
        open_source(f"npz:{tmp_path}/text.npz")
    np.savez(tmp_path / "other.npz", image=IMAGES, labels=LABELS)
    with pytest.raises(SourceError, match=r"has no array 'images'; it has: image, labels. Did you mean 'image'\?"):
        open_source(f"npz:{tmp_path}/other.npz")
    with pytest.raises(SourceError, match=r"has no array 'lables'.*Did you mean 'labels'\?"):
        open_source(f"npz:{tmp_path}/other.npz?images=image&labels=lables")
    np.savez(tmp_path / "short.npz", images=IMAGES, labels=LABELS[:3])
    with pytest.raises(SourceError, match=r"labels of 'npz:.*short.npz' have shape \[3\]; \[5\] was expected"):
        open_source(f"npz:{tmp_path}/short.npz")
    np.savez(tmp_path / "none.npz", images=IMAGES[:0])
    with pytest.raises(SourceError, match=r"shape \[0, 7, 6, 3\]"):
        open_source(f"npz:{tmp_path}/none.npz")


@pytest.mark.parametrize("compressed", [False, True])
def test_pickled_arrays_are_refused(tmp_path: Path, compressed: bool) -> None:
    save = np.savez_compressed if compressed else np.savez
    save(tmp_path / "a.npz", images=IMAGES, class_names=np.array(["cat", "dog"], dtype=object))
    with pytest.raises(SourceError, match=r"array 'class_names' of .* holds pickled Python objects, which are never"):
        open_source(f"npz:{tmp_path}/a.npz")


@pytest.mark.parametrize("compressed", [False, True])
def test_a_cut_archive_is_told(tmp_path: Path, compressed: bool) -> None:
    save = np.savez_compressed if compressed else np.savez
    save(tmp_path / "a.npz", images=IMAGES)
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[60:90] = bytes(30)
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(SourceError, match="cannot be read as a NumPy archive"):
        open_source(f"npz:{tmp_path}/a.npz")


def test_strange_archives_are_told_or_read(tmp_path: Path) -> None:
    images = np.zeros((2, 4, 4, 3), dtype=np.uint8)
    np.savez(tmp_path / "bytes.npz", images=images, labels=[0, 1], class_names=np.array([b"cat", "é".encode()]))
    assert open_source(f"npz:{tmp_path / 'bytes.npz'}").class_names == ("cat", "é")
    np.savez(tmp_path / "one.npz", images=images, labels=[0, 0], class_names=np.array("cat"))
    assert open_source(f"npz:{tmp_path / 'one.npz'}").class_names == ("cat",)
    with zipfile.ZipFile(tmp_path / "bytes.npz", "a") as archive:
        archive.writestr("notes.txt", "x")
    with pytest.raises(SourceError, match=r"has no array 'notes\.txt'; it has: images, labels, class_names"):
        open_source(f"npz:{tmp_path / 'bytes.npz'}?images=notes.txt")
