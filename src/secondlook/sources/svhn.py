"""`svhn:ROOT`: the cropped digits of SVHN as MATLAB files."""

from pathlib import Path

import numpy as np

from secondlook.arrays import Array, IntArray
from secondlook.errors import SourceError
from secondlook.sources.in_memory import ArraySource
from secondlook.sources.mat_files import read_mat
from secondlook.sources.roots import folder_holding
from secondlook.sources.schemes import source_scheme
from secondlook.sources.source import ReadOptions
from secondlook.sources.spec import Spec

DIGITS = tuple("0123456789")


@source_scheme(
    "svhn",
    form="svhn:ROOT",
    summary="the official cropped digits of SVHN (test_32x32.mat)",
    options={"split": "'test' (the default), 'train' or 'extra'"},
)
def open_svhn(spec: Spec, rules: ReadOptions) -> ArraySource:
    """Open SVHN; the file's label 10 is the digit 0."""
    split = spec.one_of("split", ("test", "train", "extra"), "test")
    name = f"{split}_32x32.mat"
    path = folder_holding(spec.path, name, ("svhn", "SVHN"), "get the cropped digits (format 2) of SVHN there") / name
    content = read_mat(path, ("X", "y"))
    images, labels = _images(content["X"], path), _labels(content["y"], path)
    return ArraySource(images, spec=str(spec), labels=labels, class_names=DIGITS, on_error=rules.on_error)


def _images(pixels: Array, path: Path) -> Array:
    """Put the images first. uint8 [32, 32, 3, N] -> uint8 [N, 32, 32, 3], a view"""
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[:3] != (32, 32, 3):
        raise SourceError(
            f"X in {str(path)!r} is {pixels.dtype} {list(pixels.shape)}; uint8 [32, 32, 3, N] was expected."
        )
    return pixels.transpose(3, 0, 1, 2)


def _labels(written: Array, path: Path) -> IntArray:
    """Turn labels 1 to 10 into digits 0 to 9. [N, 1] -> int64 [N]"""
    labels = written.astype(np.int64).ravel()
    if labels.size and not (labels.min() >= 1 and labels.max() <= 10):
        raise SourceError(
            f"y in {str(path)!r} runs from {labels.min()} to {labels.max()}; 1 to 10 was expected, where 10 is the"
            " digit 0: get the official file again."
        )
    return labels % 10
