"""`cifar10:`, `cifar100:`, `svhn:` and `stl10:`: the official files of these data sets."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.lib import format as npy

from secondlook.arrays import Array, IntArray
from secondlook.errors import SourceError
from secondlook.sources import mat_reader
from secondlook.sources.folder import check_folder
from secondlook.sources.labels import read_class_names
from secondlook.sources.regular_files import MAX_LOADED_BYTES, MAX_TEXT_BYTES, open_regular_file, reject_damaged
from secondlook.sources.source import ArraySource, ReadOptions, source_scheme
from secondlook.sources.stored_images import StoredImages
from secondlook.sources.unpickling import parse_names, read_pickled_arrays
from secondlook.specs import Spec

CIFAR_SIDE = 32
CIFAR10_BATCHES = {"test": ("test_batch",), "train": tuple(f"data_batch_{number}" for number in range(1, 6))}
CIFAR_SPLITS = "'test' (the default) or 'train'"
SVHN_CLASSES = tuple("0123456789")
STL10_SIDE = 96
STL10_BYTES_PER_IMAGE = 3 * STL10_SIDE * STL10_SIDE

MAT_READER_SECONDS = 60.0
MAT_READER_BYTES_PER_SECOND = 5_000_000
MAT_READER_BYTES = 2 * 2**30
"""Time and address space of the process that reads a MATLAB file, in addition to those for its content."""


@source_scheme(
    "cifar10",
    form="cifar10:ROOT",
    summary="the official CIFAR-10 python files (cifar-10-batches-py)",
    options={"split": CIFAR_SPLITS},
)
def open_cifar10(spec: Spec, read_options: ReadOptions) -> ArraySource:
    """Open CIFAR-10; ROOT is `cifar-10-batches-py` or its parent folder."""
    split = spec.choice("split", tuple(CIFAR10_BATCHES), "test", SourceError)
    repair = "unpack the official cifar-10-python.tar.gz there"
    root = _find_folder(spec.path, "batches.meta", ("cifar-10-batches-py",), repair)
    paths = [root / name for name in CIFAR10_BATCHES[split]]
    return _open_cifar(spec, read_options, paths, "labels", root / "batches.meta", "label_names")


@source_scheme(
    "cifar100",
    form="cifar100:ROOT",
    summary="the official CIFAR-100 python files (cifar-100-python)",
    options={"split": CIFAR_SPLITS, "labels": "'fine' (100 classes, the default) or 'coarse' (20 classes)"},
)
def open_cifar100(spec: Spec, read_options: ReadOptions) -> ArraySource:
    """Open CIFAR-100; ROOT is `cifar-100-python` or its parent folder."""
    split = spec.choice("split", ("test", "train"), "test", SourceError)
    kind = spec.choice("labels", ("fine", "coarse"), "fine", SourceError)
    repair = "unpack the official cifar-100-python.tar.gz there"
    root = _find_folder(spec.path, "meta", ("cifar-100-python",), repair)
    return _open_cifar(spec, read_options, [root / split], f"{kind}_labels", root / "meta", f"{kind}_label_names")


def _open_cifar(
    spec: Spec, read_options: ReadOptions, paths: Sequence[Path], labels_key: str, meta: Path, names_key: str
) -> ArraySource:
    batches = [(path, read_pickled_arrays(path)) for path in paths]
    images = np.concatenate([_reshape_cifar(_get_entry(batch, "data", path), path) for path, batch in batches])
    labels = [label for path, batch in batches for label in _get_cifar_labels(batch, labels_key, path)]
    names = _get_entry(read_pickled_arrays(meta), names_key, meta)
    class_names = parse_names(names, f"{names_key!r} in {str(meta)!r}")
    return ArraySource(images, spec=str(spec), labels=labels, class_names=class_names, on_error=read_options.on_error)


def _get_entry(content: dict[str, Any], key: str, path: Path) -> Any:
    if key not in content:
        raise SourceError(
            f"no entry {key!r} in {str(path)!r}; its entries: {', '.join(content)}; download the official file again."
        )
    return content[key]


def _reshape_cifar(data: object, path: Path) -> Array:
    """Return a view of rows of red, green and blue planes as images. uint8 [N, 3072] -> uint8 [N, 32, 32, 3]"""
    n_values = 3 * CIFAR_SIDE * CIFAR_SIDE
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (n_values,):
        found = f"{data.dtype} {list(data.shape)}" if isinstance(data, np.ndarray) else type(data).__name__
        raise SourceError(f"'data' in {str(path)!r} is {found}; expected uint8 [N, {n_values}].")
    return data.reshape(-1, 3, CIFAR_SIDE, CIFAR_SIDE).transpose(0, 2, 3, 1)


def _get_cifar_labels(batch: dict[str, Any], key: str, path: Path) -> list[int]:
    labels = _get_entry(batch, key, path)
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise SourceError(f"{key!r} in {str(path)!r} is not a list of integers; download the official file again.")
    return labels


@source_scheme(
    "svhn",
    form="svhn:ROOT",
    summary="the official cropped digits of SVHN (test_32x32.mat)",
    options={"split": "'test' (the default), 'train' or 'extra'"},
)
def open_svhn(spec: Spec, read_options: ReadOptions) -> ArraySource:
    """Open SVHN; label 10 in the file is the digit 0."""
    name = f"{spec.choice('split', ('test', 'train', 'extra'), 'test', SourceError)}_32x32.mat"
    repair = "download the cropped digits (format 2) of SVHN there"
    path = _find_folder(spec.path, name, ("svhn", "SVHN"), repair) / name
    pixels, y = read_mat_file(path, ("X", "y"))
    images, labels = _reshape_svhn(pixels, path), _convert_svhn_labels(y, path)
    return ArraySource(images, spec=str(spec), labels=labels, class_names=SVHN_CLASSES, on_error=read_options.on_error)


def _reshape_svhn(pixels: Array, path: Path) -> Array:
    """Return a view with the image axis first. uint8 [32, 32, 3, N] -> uint8 [N, 32, 32, 3]"""
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[:3] != (32, 32, 3):
        raise SourceError(f"X in {str(path)!r} is {pixels.dtype} {list(pixels.shape)}; expected uint8 [32, 32, 3, N].")
    return pixels.transpose(3, 0, 1, 2)


def _convert_svhn_labels(y: Array, path: Path) -> IntArray:
    """Convert labels 1 to 10 to digits 0 to 9. [N, 1] -> int64 [N]"""
    if y.dtype.kind not in "iuf":
        raise SourceError(f"y in {str(path)!r} is {y.dtype}; expected integers; download the official file again.")
    _check_one_to_ten(y, f"the labels y in {str(path)!r}")
    return y.astype(np.int64).ravel() % 10


@source_scheme(
    "stl10",
    form="stl10:ROOT",
    summary="the official binary files of STL-10 (stl10_binary)",
    options={"split": "'test' (the default), 'train' or 'unlabeled'"},
)
def open_stl10(spec: Spec, read_options: ReadOptions) -> ArraySource:
    """Open STL-10; images are read one at a time; ROOT is `stl10_binary` or its parent folder."""
    split = spec.choice("split", ("test", "train", "unlabeled"), "test", SourceError)
    repair = "unpack the official stl10_binary.tar.gz there"
    root = _find_folder(spec.path, f"{split}_X.bin", ("stl10_binary",), repair)
    images = _open_stl10_images(root / f"{split}_X.bin")
    labels = None if split == "unlabeled" else _read_stl10_labels(root / f"{split}_y.bin")
    class_names = read_class_names(root / "class_names.txt", str(spec))
    return ArraySource(images, spec=str(spec), labels=labels, class_names=class_names, on_error=read_options.on_error)


def _open_stl10_images(path: Path) -> StoredImages:
    """Open the images; the file stores each channel column by column. -> uint8 [N, 96, 96, 3]"""
    size = path.stat().st_size
    if size == 0 or size % STL10_BYTES_PER_IMAGE:
        raise SourceError(
            f"{str(path)!r} has {size} bytes; expected a multiple of {STL10_BYTES_PER_IMAGE} (3 x 96 x 96); the file is"
            " truncated, download it again."
        )
    shape = (size // STL10_BYTES_PER_IMAGE, 3, STL10_SIDE, STL10_SIDE)
    return StoredImages(path, np.dtype(np.uint8), shape, axes=(2, 1, 0))


def _read_stl10_labels(path: Path) -> IntArray:
    """Convert labels 1 to 10 to 0 to 9. -> int64 [N]"""
    with (
        reject_damaged(f"{str(path)!r} cannot be read", "unpack the official stl10_binary.tar.gz again"),
        open_regular_file(path, MAX_TEXT_BYTES) as file,
    ):
        labels = np.frombuffer(file.read(), np.uint8).astype(np.int64)
    _check_one_to_ten(labels, f"the labels in {str(path)!r}")
    return labels - 1


def _check_one_to_ten(labels: Array, where: str) -> None:
    if labels.size and not (labels.min() >= 1 and labels.max() <= 10):
        raise SourceError(
            f"{where} range from {labels.min()} to {labels.max()}; expected 1 to 10; download the official file again."
        )


def _find_folder(root: Path, file: str, subfolders: Sequence[str], repair: str) -> Path:
    """Return the folder that contains the file: the root or one of the subfolders."""
    check_folder(root, "this data set")
    for folder in (root, *(root / name for name in subfolders)):
        if (folder / file).is_file():
            return folder
    folders = " or ".join(repr(str(root / name)) for name in ("", *subfolders))
    raise SourceError(f"no file {file!r} in {folders}; {repair}.")


def read_mat_file(path: Path, names: Sequence[str]) -> list[Array]:
    """Read arrays of a MATLAB file (up to version 7), each named VARIABLE or STRUCTURE.FIELD.

    A process of its own reads them, because scipy crashes on some damaged files.
    """
    with (
        reject_damaged(f"{str(path)!r} cannot be read as a MATLAB file", "download the official file again"),
        open_regular_file(path, MAX_LOADED_BYTES) as file,
        tempfile.TemporaryFile() as output,
    ):
        _run_mat_reader(file, names, output)
        output.seek(0)
        return [npy.read_array(output, allow_pickle=False) for _ in names]


def _run_mat_reader(file: BinaryIO, names: Sequence[str], output: IO[bytes]) -> None:
    seconds = MAT_READER_SECONDS + os.fstat(file.fileno()).st_size / MAT_READER_BYTES_PER_SECOND
    # -P: the modules beside the program must not hide others.
    command = [sys.executable, "-P", mat_reader.__file__, str(MAX_LOADED_BYTES + MAT_READER_BYTES), *names]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, stdin=file, stdout=output, stderr=subprocess.PIPE, env=environment, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"reading it took more than {seconds:.0f} seconds") from error
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise ValueError(lines[-1] if lines else f"its reader crashed (exit code {done.returncode})")
