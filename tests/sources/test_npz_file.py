"""NumPy archives."""

import io
import os
import re
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from secondlook.errors import SourceError
from secondlook.sources import array_source, open_source
from tests.sources.conftest import labels_of, random_images, read_all

SHARED = Path(__file__).resolve().parents[3] / "shared"
IMAGES = random_images(5, 7, 6)
LABELS = np.array([0, 1, 1, 0, 1], dtype=np.uint8)


every_save = pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
Save = Callable[..., None]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.npz"


@every_save
@pytest.mark.parametrize("order", ["C", "F"])
def test_stored_and_compressed_archives_are_equal(path: Path, order: Literal["C", "F"], save: Save) -> None:
    images = np.asarray(IMAGES, order=order)
    save(path, labels=LABELS, class_names=np.array(["cat", "dog"]), images=images)
    source = open_source(f"npz:{path}")
    assert source.class_names == ("cat", "dog")
    np.testing.assert_array_equal(read_all(source), IMAGES)
    assert source.digest == open_source(IMAGES, labels=LABELS, class_names=["cat", "dog"]).digest
    is_read_when_needed = order == "C" and save is np.savez
    assert (source.extract(range(2)) is not None) == is_read_when_needed


def test_uncompressed_archive_is_not_loaded_into_memory(path: Path) -> None:
    np.savez(path, images=np.zeros((64, 64, 64, 3), dtype=np.uint8))
    tracemalloc.start()
    for _batch in open_source(f"npz:{path}").batches(8):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * 64 * 64 * 3 / 2


@every_save
def test_arrays_loaded_into_memory_are_limited(path: Path, monkeypatch: pytest.MonkeyPatch, save: Save) -> None:
    save(path, images=IMAGES, labels=LABELS)
    total = 128 + LABELS.nbytes + (0 if save is np.savez else 128 + IMAGES.nbytes)
    monkeypatch.setattr(array_source, "MAX_LOADED_BYTES", total)
    assert len(open_source(f"npz:{path}")) == 5
    monkeypatch.setattr(array_source, "MAX_LOADED_BYTES", total - 1)
    with pytest.raises(SourceError, match=f"{total} bytes .*limit of {total - 1}"):
        open_source(f"npz:{path}")
    monkeypatch.undo()
    monkeypatch.setattr(array_source, "MAX_LOADED_ROWS", 4)
    with pytest.raises(SourceError, match=r"'(images|labels)'.*length 5.*limit of 4"):
        open_source(f"npz:{path}")


def make_header(descr: str, shape: tuple[int, ...]) -> bytes:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": shape})
    return header.getvalue()


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
def test_array_of_another_size_or_beyond_the_limit_is_not_inflated(path: Path, declared: int) -> None:
    np.savez_compressed(path, images=np.zeros((50, 100, 100, 1), dtype=np.uint8))
    write_declared_size(path, declared)
    with pytest.raises(SourceError, match=r"a\.npz'"):
        open_source(f"npz:{path}")
    header = make_header("|u1", (5_000, 1_000, 1_000, 1))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("images.npy", header)
    write_declared_size(path, len(header) + 5 * 10**9)
    with pytest.raises(SourceError, match=r"50000001[0-9]{2} bytes"):
        open_source(f"npz:{path}")


@pytest.mark.parametrize("shape", [(10**9,), (3, 10**8), (-2, -3), (10**30,)])
def test_array_without_values_cannot_announce_many(path: Path, shape: tuple[int, ...]) -> None:
    np.savez(path, images=IMAGES)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("ids.npy", make_header("<U0", shape))
    with pytest.raises(SourceError, match="'ids'"):
        open_source(f"npz:{path}")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compression_methods_are_rejected(path: Path, method: int) -> None:
    with zipfile.ZipFile(path, "w", method) as archive, archive.open("images.npy", "w") as file:
        np.lib.format.write_array(file, IMAGES)
    with pytest.raises(SourceError, match=f"'images'.*method {method}"):
        open_source(f"npz:{path}")


@pytest.mark.posix
@pytest.mark.parametrize("change", ["truncate", "overwrite", "rewrite", "replace"])
def test_file_that_changes_while_in_use_is_an_error(path: Path, change: str) -> None:
    images = random_images(20, 100, 100)
    np.savez(path, images=images)
    source = open_source(f"npz:{path}")
    np.testing.assert_array_equal(source.read(19), images[19])
    if change == "truncate":
        os.truncate(path, 1000)
    elif change == "overwrite":
        with path.open("r+b") as file:
            file.seek(1000)
            file.write(b"other pixels")
    else:
        other = path.with_name("b.npz") if change == "replace" else path
        np.savez(other, images=255 - images)
        other.replace(path)
    os.utime(path, ns=(0, 0))
    for read in (lambda: source.read(19), lambda: list(open_source(source, on_error="skip").batches(4))):
        with pytest.raises(SourceError, match=r"a\.npz' has changed"):
            read()


@pytest.mark.parametrize(("value", "is_valid"), [(1.0, True), (1.5, False), (np.nan, False), (-0.25, False)])
def test_range_of_stored_float_images_is_checked(path: Path, value: float, is_valid: bool) -> None:
    """Images of nine megabytes are checked one by one."""
    images = np.zeros((5, 1000, 750, 3), dtype=np.float32)
    images[3, 3, 2, 1] = value
    np.savez(path, images=images)
    if is_valid:
        np.testing.assert_array_equal(open_source(f"npz:{path}").read(3), images[3])
        return
    with pytest.raises(SourceError, match="image 3" if np.isnan(value) else r"a\.npz' are float32"):
        open_source(f"npz:{path}")


def test_names_of_arrays_can_be_given(path: Path) -> None:
    names, ids = np.array([b"cat", "é".encode()]), np.array(list("abcde"))
    np.savez(path, x=IMAGES, y=LABELS[:, None], names=names, ids=ids, zero=[0] * 5, one=np.array("cat"))
    source = open_source(f"npz:{path}?images=x&labels=y&class_names=names")
    assert source.ids == tuple("abcde")
    assert (labels_of(source), source.class_names) == (LABELS.tolist(), ("cat", "é"))
    assert open_source(f"npz:{path}?images=x&labels=zero&class_names=one").class_names == ("cat",)


@every_save
@pytest.mark.parametrize(
    ("arrays", "options", "found"),
    [
        ({"image": IMAGES, "labels": LABELS}, "", r"'images'.*image, labels.*'image'\?"),
        ({"image": IMAGES, "labels": LABELS}, "?images=image&labels=lables", r"'lables'.*image, labels.*'labels'\?"),
        ({"images": IMAGES, "labels": LABELS[:3]}, "", r"\[3\]"),
        ({"images": IMAGES[:0]}, "", r"\[0, 7, 6, 3\]"),
        ({"images": IMAGES, "class_names": np.array(["a", "b"], object)}, "", r"'class_names' of '.*a\.npz'.*pickled"),
        ({"images": IMAGES}, "?images=notes.txt", r"'notes\.txt'.*images"),
    ],
)
def test_wrong_arrays_are_rejected(path: Path, save: Save, arrays: dict[str, Any], options: str, found: str) -> None:
    save(path, **arrays)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("notes.txt", "no array")
    with pytest.raises(SourceError, match=found):
        open_source(f"npz:{path}{options}")


@every_save
def test_missing_damaged_and_other_files_are_rejected(path: Path, save: Save) -> None:
    with pytest.raises(SourceError, match=re.escape(repr(str(path)))):
        open_source(f"npz:{path}")
    save(path, images=IMAGES)
    content = bytearray(path.read_bytes())
    content[60:90] = bytes(30)
    for changed, found in ((content, ""), (b"hello", ".*File is not a zip file")):
        path.write_bytes(changed)
        with pytest.raises(SourceError, match=re.escape(repr(str(path))) + found):
            open_source(f"npz:{path}")


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
