"""NumPy archives."""

import io
import os
import re
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from secondlook.errors import SourceError
from secondlook.sources import ArraySource, array_source, open_source
from secondlook.sources.array_source import StoredImages
from tests.sources.conftest import labels_of

SHARED = Path(__file__).resolve().parents[3] / "shared"
IMAGES = np.random.default_rng(0).integers(0, 256, (5, 7, 6, 3), dtype=np.uint8)
LABELS = np.array([0, 1, 1, 0, 1], dtype=np.uint8)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("compressed", [False, True])
def test_stored_and_compressed_archives_are_equal(tmp_path: Path, order: str, compressed: bool) -> None:
    save = np.savez_compressed if compressed else np.savez
    images = np.asarray(IMAGES, order="F" if order == "F" else "C")
    save(tmp_path / "a.npz", labels=LABELS, class_names=np.array(["cat", "dog"]), images=images)
    source = open_source(f"npz:{tmp_path}/a.npz")
    assert source.class_names == ("cat", "dog")
    np.testing.assert_array_equal(np.stack([source.read(i) for i in range(5)]), IMAGES)
    assert source.digest == open_source(IMAGES, labels=LABELS, class_names=["cat", "dog"]).digest
    assert isinstance(source, ArraySource)
    assert isinstance(source.images, StoredImages) is (order == "C" and not compressed)


def test_uncompressed_archive_is_not_loaded_into_memory(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros((64, 64, 64, 3), dtype=np.uint8))
    tracemalloc.start()
    source = open_source(f"npz:{tmp_path}/a.npz")
    for _batch in source.batches(8):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * 64 * 64 * 3 / 2


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_loaded_into_memory_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save: Callable[..., None]
) -> None:
    save(tmp_path / "a.npz", images=IMAGES, labels=LABELS)
    spec = f"npz:{tmp_path}/a.npz"
    total = 128 + LABELS.nbytes + (0 if save is np.savez else 128 + IMAGES.nbytes)
    monkeypatch.setattr(array_source, "MAX_LOADED_BYTES", total)
    assert len(open_source(spec)) == 5
    monkeypatch.setattr(array_source, "MAX_LOADED_BYTES", total - 1)
    with pytest.raises(SourceError, match=f"{total} bytes .*limit of {total - 1}"):
        open_source(spec)


def test_array_that_inflates_beyond_the_limit_is_not_inflated(tmp_path: Path) -> None:
    shape = (5_000, 1_000, 1_000, 1)
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
        archive.writestr("images.npy", header.getvalue())
    write_declared_size(tmp_path / "a.npz", len(header.getvalue()) + 5 * 10**9)
    with pytest.raises(SourceError, match=r"50000001[0-9]{2} bytes"):
        open_source(f"npz:{tmp_path}/a.npz")


def write_declared_size(path: Path, size: int) -> None:
    """Change the size of the only member in the directory of an archive, as a Zip64 extra field."""
    content = path.read_bytes()
    start = content.index(b"PK\x01\x02")
    end = content.index(b"PK\x05\x06")
    entry = bytearray(content[start:end])
    entry[24:28] = b"\xff" * 4
    entry[30:32] = struct.pack("<H", 12)
    entry += struct.pack("<HHQ", 1, 8, size)
    final = bytearray(content[end:])
    final[12:16] = struct.pack("<I", len(entry))
    path.write_bytes(content[:start] + entry + final)


@pytest.mark.parametrize("declared", [1, 100, 10**9])
def test_declared_size_that_differs_from_the_array_is_rejected(tmp_path: Path, declared: int) -> None:
    np.savez_compressed(tmp_path / "a.npz", images=np.zeros((50, 100, 100, 1), dtype=np.uint8))
    write_declared_size(tmp_path / "a.npz", declared)
    with pytest.raises(SourceError, match=r"a\.npz'"):
        open_source(f"npz:{tmp_path}/a.npz")


@pytest.mark.parametrize("shape", [(10**9,), (3, 10**8), (-2, -3), (10**30,)])
def test_array_without_values_cannot_announce_many(tmp_path: Path, shape: tuple[int, ...]) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<U0", "fortran_order": False, "shape": shape})
    np.savez(tmp_path / "a.npz", images=IMAGES)
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr("ids.npy", header.getvalue())
    with pytest.raises(SourceError, match="'ids'"):
        open_source(f"npz:{tmp_path}/a.npz")


def test_length_of_loaded_arrays_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "a.npz", images=IMAGES)
    monkeypatch.setattr(array_source, "MAX_LOADED_ROWS", 4)
    with pytest.raises(SourceError, match=r"'images'.*length 5.*limit of 4"):
        open_source(f"npz:{tmp_path}/a.npz")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compression_methods_are_rejected(tmp_path: Path, method: int) -> None:
    array = io.BytesIO()
    np.save(array, IMAGES)
    with zipfile.ZipFile(tmp_path / "a.npz", "w", method) as archive:
        archive.writestr("images.npy", array.getvalue())
    with pytest.raises(SourceError, match=f"'images'.*method {method}"):
        open_source(f"npz:{tmp_path}/a.npz")


@pytest.mark.parametrize("change", ["truncate", "overwrite", "rewrite"])
def test_file_that_changes_while_in_use_is_an_error(tmp_path: Path, change: str) -> None:
    path = tmp_path / "a.npz"
    images = np.random.default_rng(1).integers(0, 256, (20, 100, 100, 3), dtype=np.uint8)
    np.savez(path, images=images)
    source = open_source(f"npz:{path}")
    np.testing.assert_array_equal(source.read(19), images[19])
    if change == "truncate":
        os.truncate(path, 1000)
    elif change == "overwrite":
        with path.open("r+b") as file:
            file.seek(1000)
            file.write(b"other pixels")
        os.utime(path, ns=(0, 0))
    else:
        np.savez(path, images=255 - images)
        os.utime(path, ns=(0, 0))
    with pytest.raises(SourceError, match=r"a\.npz' has changed"):
        source.read(19)
    with pytest.raises(SourceError, match=r"a\.npz' has changed"):
        list(open_source(source, on_error="skip").batches(4))


@pytest.mark.posix
def test_file_that_is_replaced_while_in_use_is_an_error(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=IMAGES)
    np.savez(tmp_path / "b.npz", images=255 - IMAGES)
    os.utime(tmp_path / "b.npz", (1, 1))
    source = open_source(f"npz:{tmp_path}/a.npz")
    (tmp_path / "b.npz").replace(tmp_path / "a.npz")
    with pytest.raises(SourceError, match="changed"):
        source.read(2)


@pytest.mark.parametrize(("value", "is_valid"), [(1.0, True), (1.5, False), (np.nan, False), (-0.25, False)])
def test_range_of_stored_float_images_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float, is_valid: bool
) -> None:
    monkeypatch.setattr("secondlook.sources.array_source.BYTES_PER_BLOCK", 1000)
    images = np.zeros((9, 8, 8, 3), dtype=np.float32)
    images[4, 3, 2, 1] = value
    np.savez(tmp_path / "a.npz", images=images)
    if is_valid:
        np.testing.assert_array_equal(open_source(f"npz:{tmp_path}/a.npz").read(4), images[4])
        return
    with pytest.raises(SourceError, match=r"a\.npz' are float32"):
        open_source(f"npz:{tmp_path}/a.npz")


def test_names_of_arrays_can_be_given(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "a.npz", x=IMAGES, y=LABELS[:, None], names=np.array(["cat", "dog"]), ids=np.array(list("abcde"))
    )
    source = open_source(f"npz:{tmp_path}/a.npz?images=x&labels=y&class_names=names")
    assert source.ids == tuple("abcde")
    assert labels_of(source) == LABELS.tolist()


def test_missing_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=re.escape(repr(f"{tmp_path}/a.npz"))):
        open_source(f"npz:{tmp_path}/a.npz")


def test_file_that_is_no_archive_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(SourceError, match=r"text\.npz'.*File is not a zip file"):
        open_source(f"npz:{tmp_path}/text.npz")


@pytest.mark.parametrize(
    ("options", "name", "closest"), [("", "images", "image"), ("?images=image&labels=lables", "lables", "labels")]
)
def test_missing_array_is_rejected_with_a_suggestion(tmp_path: Path, options: str, name: str, closest: str) -> None:
    np.savez(tmp_path / "a.npz", image=IMAGES, labels=LABELS)
    with pytest.raises(SourceError, match=rf"'{name}'.*image, labels.*'{closest}'\?"):
        open_source(f"npz:{tmp_path}/a.npz{options}")


@pytest.mark.parametrize(
    ("arrays", "shape"),
    [({"images": IMAGES, "labels": LABELS[:3]}, "[3]"), ({"images": IMAGES[:0]}, "[0, 7, 6, 3]")],
)
def test_array_of_wrong_shape_is_rejected(tmp_path: Path, arrays: dict[str, np.ndarray], shape: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(SourceError, match=re.escape(shape)):
        open_source(f"npz:{tmp_path}/a.npz")


@pytest.mark.parametrize("compressed", [False, True])
def test_pickled_array_is_rejected(tmp_path: Path, compressed: bool) -> None:
    save = np.savez_compressed if compressed else np.savez
    save(tmp_path / "a.npz", images=IMAGES, class_names=np.array(["cat", "dog"], dtype=object))
    with pytest.raises(SourceError, match=r"'class_names' of '.*a\.npz'.*pickled"):
        open_source(f"npz:{tmp_path}/a.npz")


@pytest.mark.parametrize("compressed", [False, True])
def test_damaged_archive_is_rejected(tmp_path: Path, compressed: bool) -> None:
    save = np.savez_compressed if compressed else np.savez
    save(tmp_path / "a.npz", images=IMAGES)
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[60:90] = bytes(30)
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(SourceError, match=re.escape(repr(f"{tmp_path}/a.npz"))):
        open_source(f"npz:{tmp_path}/a.npz")


def test_class_names_may_be_bytes_or_a_scalar(tmp_path: Path) -> None:
    images = np.zeros((2, 4, 4, 3), dtype=np.uint8)
    np.savez(tmp_path / "bytes.npz", images=images, labels=[0, 1], class_names=np.array([b"cat", "é".encode()]))
    assert open_source(f"npz:{tmp_path / 'bytes.npz'}").class_names == ("cat", "é")
    np.savez(tmp_path / "one.npz", images=images, labels=[0, 0], class_names=np.array("cat"))
    assert open_source(f"npz:{tmp_path / 'one.npz'}").class_names == ("cat",)


def test_member_that_is_no_array_is_rejected(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=IMAGES)
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr("notes.txt", "x")
    with pytest.raises(SourceError, match=r"'notes\.txt'.*images"):
        open_source(f"npz:{tmp_path / 'a.npz'}?images=notes.txt")


@pytest.mark.skipif(not (SHARED / "cifar10").is_dir(), reason="needs the shared CIFAR-10 data")
def test_cifar10_archive_and_its_subsets() -> None:
    source = open_source(f"npz:{SHARED}/cifar10/test.npz")
    assert len(source) == 10_000
    assert source.labels is not None
    assert np.bincount(source.labels).tolist() == [1_000] * 10
    experimental = open_source(source, subset="experimental")
    evaluation = open_source(source, subset="evaluation")
    assert (len(experimental), len(evaluation)) == (1_000, 9_000)
    assert len({source.digest, experimental.digest, evaluation.digest}) == 3
