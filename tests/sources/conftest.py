"""Tiny data sets, one per scheme."""

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from pyarrow.fs import copy_files

from secondlook.arrays import Array
from secondlook.sources import Source

# These tests must not access the network.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"


def random_images(count: int, height: int = 8, width: int = 6, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


def png_bytes(pixels: Array) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def labels_of(source: Source) -> list[int] | None:
    return None if source.labels is None else [int(label) for label in source.labels]


def write_png(path: Path, pixels: Array) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png_bytes(pixels))


def write_hub_folder(root: Path, images: Array) -> None:
    for number, image in enumerate(images):
        write_png(root / "pictures" / "test" / ("cat", "dog")[number % 2] / f"{number}.png", image)


def write_parquet(path: Path, images: list[bytes | None], row_group_size: int = 2, **columns: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"image": pa.array(images, pa.binary()), **columns})
    pq.write_table(table, path, row_group_size=row_group_size)


def tar_bytes(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return content.getvalue()


def write_shards(root: Path, images: Array, labels: list[int]) -> None:
    """Write tar files of at most three samples."""
    root.mkdir(parents=True, exist_ok=True)
    for first in range(0, len(images), 3):
        files: dict[str, bytes] = {}
        for number in range(first, min(first + 3, len(images))):
            files |= {f"{number:04}.png": png_bytes(images[number]), f"{number:04}.cls": str(labels[number]).encode()}
        (root / f"shard-{first // 3:04}.tar").write_bytes(tar_bytes(files))


@pytest.fixture
def samples(
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Callable[[str], str]:
    """Write a data set of seven images for a scheme, such as 'folder' or 'folder in a bucket', and return its spec."""
    small = random_images(7)
    labels = [0, 1, 2, 2, 1, 0, 1]

    def write_folder() -> None:
        for number, image in enumerate(small):
            write_png(tmp_path / "cat" / f"{number}.png", image)

    def write_csv() -> None:
        for number, image in enumerate(small):
            write_png(tmp_path / f"{number}.png", image)
        rows = "".join(f"{number}.png,{label}\n" for number, label in enumerate(labels))
        (tmp_path / "list.csv").write_text("path,label\n" + rows)

    writers: dict[str, tuple[str, Callable[[], Any]]] = {
        "npz": ("/a.npz", lambda: np.savez(tmp_path / "a.npz", images=small, labels=labels)),
        "folder": ("", write_folder),
        "csv": ("/list.csv", write_csv),
        "hf": (f"/pictures?cache={tmp_path}/cache", lambda: write_hub_folder(tmp_path, small)),
        "parquet": (
            "/a.parquet",
            lambda: write_parquet(tmp_path / "a.parquet", [png_bytes(image) for image in small], label=labels),
        ),
        "webdataset": ("/shards", lambda: write_shards(tmp_path / "shards", small, labels)),
    }

    def sample(kind: str) -> str:
        scheme, _, bucket = kind.partition(" in ")
        location, write = writers[scheme]
        write()
        if not bucket:
            return f"{scheme}:{tmp_path}{location}"
        system = request.getfixturevalue("s3")("samples")
        copy_files(str(tmp_path), "samples/a folder", destination_filesystem=system)
        return f"{scheme}:s3://samples/a folder{location}"

    return sample


@pytest.fixture
def picture_folder(tmp_path: Path) -> Path:
    """Two classes of two images."""
    root = tmp_path / "pictures"
    for number, image in enumerate(random_images(4)):
        write_png(root / ("cat", "dog")[number // 2] / f"{number}.png", image)
    return root
