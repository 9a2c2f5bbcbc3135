"""NumPy archives."""

import re
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from secondlook.errors import SourceError
from secondlook.sources import ArraySource, open_source

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
    assert isinstance(source.images, np.memmap) is not compressed


def test_uncompressed_archive_is_not_loaded_into_memory(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros((64, 64, 64, 3), dtype=np.uint8))
    tracemalloc.start()
    source = open_source(f"npz:{tmp_path}/a.npz")
    for _batch in source.batches(8):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * 64 * 64 * 3 / 2


def test_names_of_arrays_can_be_given(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "a.npz", x=IMAGES, y=LABELS[:, None], names=np.array(["cat", "dog"]), ids=np.array(list("abcde"))
    )
    source = open_source(f"npz:{tmp_path}/a.npz?images=x&labels=y&class_names=names")
    assert source.ids == tuple("abcde")
    assert source.labels is not None
    assert source.labels.tolist() == LABELS.tolist()


def test_labels_are_optional(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=IMAGES)
    source = open_source(f"npz:{tmp_path}/a.npz")
    assert source.labels is None
    assert source.class_names is None


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
