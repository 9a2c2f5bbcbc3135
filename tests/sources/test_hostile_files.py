"""Hostile files: mutated, irregular or huge ones are read or an error of ours, never another exception or a hang."""

import io
import os
import tarfile
import warnings
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from secondlook.errors import SourceError
from secondlook.sources import UnreadableImageError, open_source, read_image
from tests.sources.conftest import encode, png_bytes, random_images, write_tar

PIXELS = random_images(1, 12, 10)[0]
IMAGES = random_images(3, 4, 5, seed=1)


def mutate(content: bytes, others: Sequence[bytes], rng: np.random.Generator) -> bytes:
    """Cut, flip bits, overwrite bytes near the start, splice with another file, or replace a part by noise."""
    changed = bytearray(content)
    kind = int(rng.integers(5))
    if kind == 0:
        return content[: rng.integers(len(content))]
    if kind == 1:
        for position in rng.integers(len(changed), size=rng.integers(1, 9)):
            changed[position] ^= 1 << int(rng.integers(8))
    elif kind == 2:
        for position in rng.integers(min(80, len(changed)), size=rng.integers(1, 5)):
            changed[position] = int(rng.choice([0, 1, 40, 57, 127, 128, 255]))
    elif kind == 3:
        other = others[int(rng.integers(len(others)))]
        changed[rng.integers(len(changed)) :] = other[rng.integers(len(other)) :]
    else:
        start = int(rng.integers(len(changed)))
        changed[start : start + int(rng.integers(40))] = rng.bytes(int(rng.integers(40)))
    return bytes(changed)


@pytest.mark.parametrize("action", ["ignore", "error"])
def test_mutated_images_are_decoded_or_unreadable(action: "warnings._ActionKind") -> None:
    image, exif = Image.fromarray(PIXELS), Image.Exif()
    exif[0x0112] = 6
    samples = [
        encode(image, "JPEG", exif=exif),
        encode(image, "JPEG", progressive=True),
        encode(image, "PNG", exif=exif),
        encode(image.quantize(16), "PNG", transparency=0),
        encode(image, "WEBP"),
        encode(image, "WEBP", lossless=True, exif=exif),
        encode(image, "BMP"),
        encode(image, "TIFF", exif=exif),
        encode(image, "TIFF", compression="tiff_lzw"),
        encode(image, "TIFF", compression="jpeg"),
    ]
    rng, decoded = np.random.default_rng(13), 0
    for _ in range(300):
        content = mutate(samples[int(rng.integers(len(samples)))], samples, rng)
        with warnings.catch_warnings():
            warnings.simplefilter(action)
            try:
                pixels = read_image(content, "x", max_pixels=1_000_000)
            except UnreadableImageError:
                continue
        assert pixels.dtype == np.uint8
        assert pixels.shape[2:] == (3,)
        decoded += 1
    assert 0 < decoded < 300


def save(write: Callable[..., object], *arguments: object, **arrays: object) -> bytes:
    file = io.BytesIO()
    write(file, *arguments, **arrays)
    return file.getvalue()


def check_only_source_errors(samples: Sequence[bytes], count: int, write: Callable[[bytes], object], spec: str) -> None:
    rng = np.random.default_rng(14)
    errors = []
    for _ in range(count):
        write(mutate(samples[int(rng.integers(len(samples)))], samples, rng))
        try:
            assert open_source(spec).digest
        except SourceError as error:
            errors.append(error)
    assert errors
    assert max(len(str(error)) for error in errors) < 1000


def test_mutated_archives(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    arrays = {"images": IMAGES, "labels": [0, 1, 0], "class_names": np.array(["a", "b"]), "ids": np.array(list("xyz"))}
    samples = [save(np.savez, **arrays), save(np.savez_compressed, **arrays)]
    samples += [save(np.savez, images=images) for images in (np.asfortranarray(IMAGES), np.float32(IMAGES / 255))]
    check_only_source_errors(samples, 500, path.write_bytes, f"npz:{path}")


def test_mutated_arrays_in_a_valid_archive(tmp_path: Path) -> None:
    # The checksums of the archive are right, so these reach the parser of array headers.
    def write(array: bytes) -> None:
        with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
            archive.writestr("images.npy", save(np.save, IMAGES))
            archive.writestr("ids.npy", array)

    samples = [save(np.save, values)[:140] for values in (IMAGES, np.array(list("xyz")), np.array([1.0, 2.0, 3.0]))]
    check_only_source_errors(samples, 500, write, f"npz:{tmp_path}/a.npz")


def test_mutated_tables(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    samples = [
        b"path,label\na.png,0\nb.png,1\n",
        b'path,label\n"a,x.png",cat\nb.png,dog\n',
        "path,label\né.png,3.0\nb.png,1e2\n".encode("utf-8-sig"),
    ]
    check_only_source_errors(samples, 500, path.write_bytes, f"csv:{path}")


def test_mutated_tar_files(tmp_path: Path) -> None:
    path, samples = tmp_path / "a.tar", []
    for form, name in ((tarfile.USTAR_FORMAT, "x"), (tarfile.PAX_FORMAT, "é" * 60)):
        contents = {"0.png": png_bytes(PIXELS), "0.cls": b"3", "1.png": png_bytes(PIXELS), "1.cls": b"3"}
        write_tar(path, *((f"{name}{end}", content) for end, content in contents.items()), form=form)
        samples.append(path.read_bytes())
    check_only_source_errors(samples, 300, path.write_bytes, f"webdataset:{path}")


def write_parquet_table(file: io.BytesIO, table: Any, **options: Any) -> None:
    pq.write_table(table, file, row_group_size=2, **options)


def test_mutated_parquet_files(tmp_path: Path) -> None:
    table = pa.table({"image": [{"bytes": png_bytes(PIXELS), "path": "x"}] * 3, "label": ["a", "b", "a"]})
    options: list[dict[str, Any]] = [{}, {"compression": "zstd"}, {"compression": "none", "use_dictionary": False}]
    samples = [save(write_parquet_table, part, **one) for one in options for part in (table, table.select(["image"]))]
    check_only_source_errors(samples, 500, (tmp_path / "a.parquet").write_bytes, f"parquet:{tmp_path}/a.parquet")


def test_no_flipped_bit_of_a_parquet_file_is_another_error(tmp_path: Path) -> None:
    path, rejected = tmp_path / "a.parquet", 0
    table = pa.table({"image": [b"a", b"b", b"c"]})
    content = save(write_parquet_table, table, store_schema=False, compression="none", use_dictionary=False)
    for position in range(len(content)):
        path.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
        try:
            assert open_source(f"parquet:{path}").digest
        except SourceError:
            rejected += 1
    assert rejected > 10


@pytest.mark.parametrize("suffix", ["npy", "txt"])
def test_mutated_indices(tmp_path: Path, suffix: str) -> None:
    np.savez(tmp_path / "a.npz", images=IMAGES)
    samples = [save(np.save, np.array([0, 2])), save(np.save, np.array([1], np.uint8))]
    path = tmp_path / f"i.{suffix}"
    spec = f"npz:{tmp_path}/a.npz?indices={path}"
    check_only_source_errors(samples if suffix == "npy" else [b"0 1\n2\n"], 250, path.write_bytes, spec)


@pytest.mark.parametrize("save_arrays", [np.savez, np.savez_compressed])
def test_no_flipped_bit_of_an_archive_gives_other_images(tmp_path: Path, save_arrays: Callable[..., None]) -> None:
    path = tmp_path / "a.npz"
    save_arrays(path, images=IMAGES[:, :2, :2], labels=[0, 1, 1])
    content, digest = path.read_bytes(), open_source(f"npz:{path}").digest
    step = 5  # every fifth bit, so that every bit of a byte is hit somewhere
    rejected = 0
    for bit in range(0, 8 * len(content), step):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        try:
            assert open_source(f"npz:{path}").digest == digest, f"bit {bit}"
        except SourceError:
            rejected += 1
    assert rejected > len(content) // 2


@pytest.mark.parametrize("position", [500, 10_000, 100_000, 240_000])
def test_flipped_bits_of_pixels_are_found_when_an_archive_is_opened(tmp_path: Path, position: int) -> None:
    path = tmp_path / "a.npz"
    content = bytearray(save(np.savez, images=np.zeros((50, 40, 40, 3), dtype=np.uint8), labels=[0] * 50))
    content[position] ^= 1
    path.write_bytes(content)
    with pytest.raises(SourceError, match="CRC-32"):
        open_source(f"npz:{path}")


every_kind = pytest.mark.parametrize(
    "place", [lambda path: os.mkfifo(path), lambda path: path.symlink_to("/dev/zero"), Path.mkdir]
)


@pytest.mark.posix
@every_kind
@pytest.mark.parametrize(
    ("spec", "file"),
    [
        ("npz:a.npz", "a.npz"),
        ("csv:list.csv", "list.csv"),
        ("csv:list.csv?indices=i.npy", "i.npy"),
        ("csv:list.csv?indices=i.txt", "i.txt"),
        ("csv:list.csv?classes=c.txt", "c.txt"),
    ],
)
def test_file_must_be_regular(
    tmp_path: Path,
    samples: Callable[[str], str],
    place: Callable[[Path], None],
    spec: str,
    file: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pipe or a device is an error, not a hang."""
    monkeypatch.chdir(tmp_path)
    samples(spec[:3])
    Path(file).unlink(missing_ok=True)
    place(Path(file))
    with pytest.raises(SourceError, match=file):
        open_source(spec)


@pytest.mark.posix
@every_kind
def test_image_must_be_a_regular_file(
    tmp_path: Path, samples: Callable[[str], str], place: Callable[[Path], None]
) -> None:
    spec = samples("csv")
    (tmp_path / "3.png").unlink()
    place(tmp_path / "3.png")
    with pytest.raises(UnreadableImageError, match=r"3\.png.*cannot be opened"):
        read_image(tmp_path / "3.png")
    source = open_source(spec, on_error="skip")
    assert [len(batch.images) for batch in source.batches(7)] == [6]
    assert [skipped.id for skipped in source.skipped] == ["3.png"]
    assert len(source.digest) == 64
    assert len(open_source(f"folder:{tmp_path}?labels=none")) == 6, "a folder lists regular files only"


@pytest.mark.posix
@pytest.mark.parametrize("option", ["", "?classes=c.txt", "?indices=i.txt", "?indices=i.npy"])
def test_size_of_text_files_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {"list.csv": "path,label\na.png,cat\n", "c.txt": "cat\n", "i.txt": "0"}.items():
        Path(name).write_text(text)
    np.save("i.npy", np.array([0]))
    assert len(open_source(f"csv:list.csv{option}")) == 1
    os.truncate(option.partition("=")[2] or "list.csv", 10**9 + 1)  # a hole, which takes no space
    with pytest.raises(SourceError, match="1000000001 bytes, above the limit of "):
        open_source(f"csv:list.csv{option}")


def test_path_that_no_file_can_have_is_unreadable_and_the_limit_of_a_file_exact(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"path\na\0b.png\n{'c' * 5000}.png\n")
    source = open_source(f"csv:{tmp_path}/a.csv", on_error="skip")
    assert list(source.batches(2)) == []
    assert len(source.skipped) == 2
    assert len(source.digest) == 64
    (tmp_path / "a.png").write_bytes(bytes(10))
    for limit, found in ((10, "content"), (9, "10 bytes, above the limit of 9")):
        with pytest.raises(UnreadableImageError, match=found):
            read_image(tmp_path / "a.png", max_bytes=limit)
