"""Mutated files of every format: an image or an error of ours, never another exception. Mutations have a fixed seed."""

import io
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
from secondlook.sources import UnreadableImageError, open_source
from secondlook.sources.image_files import decode_image

PIXELS = np.random.default_rng(0).integers(0, 256, (12, 10, 3), dtype=np.uint8)
IMAGES = np.random.default_rng(1).integers(0, 256, (3, 4, 5, 3), dtype=np.uint8)


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


def encode(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def image_samples() -> list[bytes]:
    image, exif = Image.fromarray(PIXELS), Image.Exif()
    exif[0x0112] = 6
    return [
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


@pytest.mark.parametrize("action", ["ignore", "error"])
def test_mutated_images_are_decoded_or_unreadable(action: "warnings._ActionKind") -> None:
    rng, samples = np.random.default_rng(13), image_samples()
    decoded = 0
    for _ in range(300):
        content = mutate(samples[int(rng.integers(len(samples)))], samples, rng)
        with warnings.catch_warnings():
            warnings.simplefilter(action)
            try:
                image = decode_image(content, "x", 1_000_000)
            except UnreadableImageError:
                continue
        assert image.dtype == np.uint8
        assert image.shape[2:] == (3,)
        decoded += 1
    assert 0 < decoded < 300


def save(write: Callable[..., object], *arguments: object, **arrays: object) -> bytes:
    file = io.BytesIO()
    write(file, *arguments, **arrays)
    return file.getvalue()


def npz_samples() -> list[bytes]:
    arrays = {"images": IMAGES, "labels": [0, 1, 0], "class_names": np.array(["a", "b"]), "ids": np.array(list("xyz"))}
    return [
        save(np.savez, **arrays),
        save(np.savez_compressed, **arrays),
        save(np.savez, images=np.asfortranarray(IMAGES)),
        save(np.savez, images=np.float32(IMAGES / 255)),
    ]


def check_only_source_errors(
    samples: Sequence[bytes], count: int, write: Callable[[bytes], object], spec: str
) -> list[SourceError]:
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
    return errors


def test_mutated_archives(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    check_only_source_errors(npz_samples(), 500, path.write_bytes, f"npz:{path}")


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
    def write_tar(file: io.BytesIO, form: int, name: str) -> None:
        with tarfile.open(fileobj=file, mode="w", format=form) as archive:
            for number in range(2):
                for suffix, content in (("png", encode(Image.fromarray(PIXELS), "PNG")), ("cls", b"3")):
                    member = tarfile.TarInfo(f"{name}{number}.{suffix}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))

    samples = [save(write_tar, tarfile.USTAR_FORMAT, "x"), save(write_tar, tarfile.PAX_FORMAT, "é" * 60)]
    check_only_source_errors(samples, 300, (tmp_path / "a.tar").write_bytes, f"webdataset:{tmp_path}/a.tar")


def write_parquet_table(file: io.BytesIO, table: Any, **options: Any) -> None:
    pq.write_table(table, file, row_group_size=2, **options)


def test_mutated_parquet_files(tmp_path: Path) -> None:
    png = encode(Image.fromarray(PIXELS), "PNG")
    table = pa.table({"image": [{"bytes": png, "path": "x"}] * 3, "label": ["a", "b", "a"]})
    options: list[dict[str, Any]] = [{}, {"compression": "zstd"}, {"compression": "none", "use_dictionary": False}]
    samples = [save(write_parquet_table, part, **one) for one in options for part in (table, table.select(["image"]))]
    check_only_source_errors(samples, 500, (tmp_path / "a.parquet").write_bytes, f"parquet:{tmp_path}/a.parquet")


def test_no_flipped_bit_of_a_parquet_file_is_another_error(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"image": [b"a", b"b", b"c"]})
    content = save(write_parquet_table, table, store_schema=False, compression="none", use_dictionary=False)
    rejected = 0
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


@pytest.mark.parametrize("compressed", [False, True])
def test_no_flipped_bit_of_an_archive_gives_other_images(tmp_path: Path, compressed: bool) -> None:
    path = tmp_path / "a.npz"
    (np.savez_compressed if compressed else np.savez)(path, images=IMAGES[:, :2, :2], labels=[0, 1, 1])
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


def test_flipped_bits_of_pixels_are_found_when_an_archive_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, images=np.zeros((50, 40, 40, 3), dtype=np.uint8), labels=[0] * 50)
    content = path.read_bytes()
    for position in (500, 10_000, 100_000, 240_000):
        changed = bytearray(content)
        changed[position] ^= 1
        path.write_bytes(changed)
        with pytest.raises(SourceError, match="CRC-32"):
            open_source(f"npz:{path}")
