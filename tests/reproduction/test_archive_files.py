"""The restricted unpickler, and damaged, large and irregular files of archives."""

import os
import pickle
import re
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from reproduction import archive_files
from reproduction.archive_files import read_pickle
from secondlook.errors import SourceError
from secondlook.sources import open_source
from tests.reproduction.conftest import write_cifar10, write_svhn
from tests.sources.test_hostile_files import check_only_source_errors, every_kind, save

ROWS = np.zeros((2, 3072), dtype=np.uint8)
ARRAY = np.arange(6, dtype=np.uint8).reshape(2, 3)
FORGED = pickle.dumps({b"data": ARRAY}, protocol=3).replace(b"K\x02K\x03\x86", b"K\x09K\x03\x86")


class Attack:
    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.system, ("echo attacked > attacked",)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_arrays_and_containers_are_read(tmp_path: Path, protocol: int) -> None:
    floats, more = np.asfortranarray(ARRAY.astype(">f8")), [1, 2.5, None, True, (b"x", "y")]
    (tmp_path / "a").write_bytes(pickle.dumps({b"data": ARRAY, "more": more, b"float": floats}, protocol=protocol))
    content = read_pickle(tmp_path / "a")
    np.testing.assert_array_equal(content["data"], ARRAY)
    np.testing.assert_array_equal(content["float"], ARRAY.astype(float))
    assert content["more"] == more


@pytest.mark.parametrize(
    ("value", "requested"),
    [
        (Attack(), r"(posix|nt)\.system"),
        ([1, {b"deep": Attack()}], r"(posix|nt)\.system"),
        (os.getcwd, r"(posix|nt)\.getcwd"),
        (eval, r"(__builtin__|builtins)\.eval"),
        (OrderedDict(), r"collections\.OrderedDict"),
        ({b"a": np.array([Attack()], dtype=object)}, r"an array of dtype 'O8'"),
        ({b"a": np.array([1, None], dtype=object)}, r"an array of dtype 'O8'"),
        ({b"a": np.float64(1)}, r"numpy\._?core\.multiarray\.scalar"),
        ({b"a": np.zeros(2, dtype="f8,i4")}, r"an array of dtype 'V12'"),
        ({b"a": np.array(["x"])}, r"an array of dtype 'U1'"),
    ],
)
def test_others_are_told_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: object, requested: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_bytes(pickle.dumps(value, protocol=2))
    with pytest.raises(SourceError, match=rf"/a' .* {requested}"):
        read_pickle(tmp_path / "a")
    assert not (tmp_path / "attacked").exists()


@pytest.mark.parametrize(
    ("content", "found"),
    [
        # Allowed names with other arguments.
        (b"\x80\x02c_codecs\nencode\n(X\x02\x00\x00\x00hiX\x03\x00\x00\x00bz2tR.", ""),
        (b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n(cnumpy\ndtype\n(K\x00tX\x01\x00\x00\x00btR.", ""),
        (b"", ""),
        (b"hello", ""),
        (pickle.dumps({b"a": ARRAY}, protocol=2)[:-20], ""),
        (b"\x80\x02}q\x00h\x07.", ""),
        (FORGED, ".*cannot reshape array of size 6"),
        (pickle.dumps([1, 2]), ".*list"),
    ],
)
def test_damaged_or_forged_pickle_is_rejected(tmp_path: Path, content: bytes, found: str) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(SourceError, match=re.escape(repr(str(tmp_path / "a"))) + found):
        read_pickle(tmp_path / "a")


@pytest.mark.posix
@pytest.mark.parametrize(("scheme", "file"), [("cifar10", "test_batch"), ("svhn", "test_32x32.mat")])
def test_files_are_limited_to_four_gib(tmp_path: Path, samples: Callable[[str], str], scheme: str, file: str) -> None:
    spec = samples(scheme)
    os.truncate(tmp_path / file, 2**32 + 1)  # a hole, which takes no space
    with pytest.raises(SourceError, match=rf"{file}'.*above the limit of 4294967296"):
        open_source(spec)


@pytest.mark.parametrize(
    ("limit", "value", "found"),
    [
        ("MAT_READER_SECONDS", 0.01, "took more than 0 seconds"),
        pytest.param("MAT_READER_BYTES", 2**20 - archive_files.MAX_FILE_BYTES, "", marks=pytest.mark.posix),
    ],
)
def test_time_and_memory_for_reading_a_mat_file_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: float, found: str
) -> None:
    write_svhn(tmp_path, np.zeros((3, 32, 32, 3), dtype=np.uint8), [10, 1, 9])
    monkeypatch.setattr(archive_files, limit, value)
    with pytest.raises(SourceError, match=rf"test_32x32\.mat'.*{found}"):
        open_source(f"svhn:{tmp_path}")


@pytest.mark.posix
@every_kind
@pytest.mark.parametrize(
    ("scheme", "file"),
    [
        *(("cifar10", "batches.meta"), ("cifar10", "test_batch"), ("cifar100", "test"), ("svhn", "test_32x32.mat")),
        *(("stl10", name) for name in ("test_X.bin", "test_y.bin", "class_names.txt")),
        ("imagenet", "ILSVRC2012_devkit_t12/data/meta.mat"),
        ("imagenet", "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt"),
    ],
)
def test_file_of_an_archive_must_be_regular(
    tmp_path: Path, samples: Callable[[str], str], place: Callable[[Path], None], scheme: str, file: str
) -> None:
    spec = samples(scheme)
    (tmp_path / file).unlink()
    place(tmp_path / file)
    with pytest.raises(SourceError, match=file.partition("/")[0]):
        open_source(spec)


def test_mutated_pickles_and_mat_files(tmp_path: Path) -> None:
    write_cifar10(tmp_path, np.zeros((2, 32, 32, 3), dtype=np.uint8), [0, 1])
    samples = [pickle.dumps({b"data": ROWS, b"labels": [0, 1]}, protocol=number) for number in (0, 2, 3)]
    check_only_source_errors(samples, 500, (tmp_path / "test_batch").write_bytes, f"cifar10:{tmp_path}")
    content = {"X": np.zeros((32, 32, 3, 2), dtype=np.uint8), "y": np.array([[10], [1]], dtype=np.uint8)}
    samples = [save(savemat, content), save(savemat, content, do_compression=True)]
    check_only_source_errors(samples, 4, (tmp_path / "test_32x32.mat").write_bytes, f"svhn:{tmp_path}")


@pytest.mark.parametrize(("position", "value"), [(144, 5), (185, 255)])
def test_mat_file_that_crashes_scipy_is_rejected(tmp_path: Path, position: int, value: int) -> None:
    # Byte 144 makes X a sparse array, byte 185 changes the type of its values; scipy then reads beyond its buffers.
    pixels = np.random.default_rng(13).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8).transpose(1, 2, 3, 0)
    mat = bytearray(save(savemat, {"X": pixels, "y": np.array([[10], [1], [2]], dtype=np.uint8)}))
    mat[position] = value
    (tmp_path / "test_32x32.mat").write_bytes(mat)
    with pytest.raises(SourceError, match=r"test_32x32\.mat'"):
        open_source(f"svhn:{tmp_path}")
