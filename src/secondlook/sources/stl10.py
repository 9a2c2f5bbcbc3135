"""`stl10:ROOT`: the official binary files of STL-10."""

from pathlib import Path

import numpy as np

from secondlook.arrays import Array, IntArray
from secondlook.errors import SourceError
from secondlook.sources.in_memory import ArraySource
from secondlook.sources.labels import read_class_names
from secondlook.sources.roots import folder_holding
from secondlook.sources.schemes import source_scheme
from secondlook.sources.source import ReadOptions
from secondlook.sources.spec import Spec

SIDE = 96
BYTES_OF_AN_IMAGE = 3 * SIDE * SIDE


@source_scheme(
    "stl10",
    form="stl10:ROOT",
    summary="the official binary files of STL-10 (stl10_binary)",
    options={"split": "'test' (the default), 'train' or 'unlabeled'"},
)
def open_stl10(spec: Spec, rules: ReadOptions) -> ArraySource:
    """Open STL-10; ROOT is `stl10_binary` or the folder that holds it. The images are mapped from the file."""
    split = spec.one_of("split", ("test", "train", "unlabeled"), "test")
    origin = "unpack the official stl10_binary.tar.gz there"
    root = folder_holding(spec.path, f"{split}_X.bin", ("stl10_binary",), origin)
    images = _images(root / f"{split}_X.bin")
    labels = None if split == "unlabeled" else _labels(root / f"{split}_y.bin")
    class_names = read_class_names(root / "class_names.txt", str(spec))
    return ArraySource(images, spec=str(spec), labels=labels, class_names=class_names, on_error=rules.on_error)


def _images(path: Path) -> Array:
    """Map the images; each channel is written column by column. -> uint8 [N, 96, 96, 3], a view"""
    size = path.stat().st_size
    if size == 0 or size % BYTES_OF_AN_IMAGE:
        raise SourceError(
            f"{str(path)!r} has {size} bytes; a multiple of {BYTES_OF_AN_IMAGE} (3 x 96 x 96) was expected: the file"
            " is cut short, get it again."
        )
    return np.memmap(path, np.uint8, "r").reshape(-1, 3, SIDE, SIDE).transpose(0, 3, 2, 1)


def _labels(path: Path) -> IntArray:
    """Turn labels 1 to 10 into 0 to 9. -> int64 [N]"""
    if not path.is_file():
        raise SourceError(
            f"there is no {str(path)!r} beside the images; unpack the official stl10_binary.tar.gz again."
        )
    labels = np.fromfile(path, np.uint8).astype(np.int64)
    if labels.size and not (labels.min() >= 1 and labels.max() <= 10):
        raise SourceError(
            f"the labels in {str(path)!r} run from {labels.min()} to {labels.max()}; 1 to 10 was expected: get it"
            " again."
        )
    return labels - 1
