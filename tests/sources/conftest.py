"""Tiny data sets, one per scheme."""

import io
import os
import tarfile
from collections.abc import Callable, Sequence
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


def encode(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def png_bytes(pixels: Array) -> bytes:
    return encode(Image.fromarray(pixels), "PNG")


def labels_of(source: Source) -> list[int] | None:
    return None if source.labels is None else [int(label) for label in source.labels]


def write_png(path: Path, pixels: Array) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png_bytes(pixels))


def put_on_hub(
    monkeypatch: pytest.MonkeyPatch, splits: Sequence[str], features: Any = None, **columns: Any
) -> list[Any]:
    """Let the hub have a data set, whose last split has the rows; returns the requests to come."""
    import datasets

    data, requests = datasets.Dataset.from_dict(columns, features=features), []
    found = datasets.DatasetDict({**dict.fromkeys(splits, data.select([])), splits[-1]: data})

    def load_dataset(*arguments: Any, **options: Any) -> Any:
        requests.append((arguments, options))
        return found

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return requests


def write_parquet(path: Path, row_group_size: int = 3, **columns: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=row_group_size)
    return f"parquet:{path}"


def write_tar(path: Path, *members: tuple[str, bytes] | tarfile.TarInfo, form: int = tarfile.GNU_FORMAT) -> str:
    """Write files by name and content, and members of other kinds; returns the spec."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=form) as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            info.size = len(member[1])
            archive.addfile(info, io.BytesIO(member[1]))
    return f"webdataset:{path}"


def write_shards(root: Path, images: Array, labels: list[int]) -> None:
    """Write tar files of at most three samples."""
    names = [f"{number:04}" for number in range(len(images))]
    files: list[tuple[str, bytes]] = []
    for name, image, label in zip(names, images, labels, strict=True):
        files += [(f"{name}.png", png_bytes(image)), (f"{name}.cls", str(label).encode())]
    for first in range(0, len(files), 6):
        write_tar(root / f"shard-{first // 6:04}.tar", *files[first : first + 6])


def read_all(source: Source) -> Array:
    return np.stack([image for batch in source.batches(4) for image in batch.images])


@pytest.fixture
def samples(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str], str]:
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

    def put_small_on_hub() -> None:
        cells = [{"bytes": png_bytes(image), "path": None} for image in small]
        put_on_hub(request.getfixturevalue("monkeypatch"), ["test"], image=cells, label=labels)

    writers: dict[str, tuple[str, Callable[[], Any]]] = {
        "npz": ("/a.npz", lambda: np.savez(tmp_path / "a.npz", images=small, labels=labels)),
        "folder": ("", write_folder),
        "csv": ("/list.csv", write_csv),
        "hf": ("/pets?image=image", put_small_on_hub),
        "parquet": (
            "/a.parquet",
            lambda: write_parquet(tmp_path / "a.parquet", 2, image=[png_bytes(image) for image in small], label=labels),
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
