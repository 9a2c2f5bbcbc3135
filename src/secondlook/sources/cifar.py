"""`cifar10:ROOT` and `cifar100:ROOT`: the official python files of the CIFAR data sets."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from secondlook.arrays import Array
from secondlook.errors import SourceError
from secondlook.sources.in_memory import ArraySource
from secondlook.sources.roots import folder_holding
from secondlook.sources.schemes import source_scheme
from secondlook.sources.source import ReadOptions
from secondlook.sources.spec import Spec
from secondlook.sources.unpickling import read_arrays_pickle, texts

SIDE = 32
BATCHES_OF_CIFAR10 = {"test": ("test_batch",), "train": tuple(f"data_batch_{number}" for number in range(1, 6))}
SPLIT_HELP = "'test' (the default) or 'train'"


@source_scheme(
    "cifar10",
    form="cifar10:ROOT",
    summary="the official CIFAR-10 python files (cifar-10-batches-py)",
    options={"split": SPLIT_HELP},
)
def open_cifar10(spec: Spec, rules: ReadOptions) -> ArraySource:
    """Open CIFAR-10; ROOT is `cifar-10-batches-py` or the folder that holds it."""
    split = spec.one_of("split", tuple(BATCHES_OF_CIFAR10), "test")
    origin = "unpack the official cifar-10-python.tar.gz there"
    root = folder_holding(spec.path, "batches.meta", ("cifar-10-batches-py",), origin)
    paths = [root / name for name in BATCHES_OF_CIFAR10[split]]
    return _cifar_source(spec, rules, paths, "labels", (root / "batches.meta", "label_names"))


@source_scheme(
    "cifar100",
    form="cifar100:ROOT",
    summary="the official CIFAR-100 python files (cifar-100-python)",
    options={"split": SPLIT_HELP, "labels": "'fine' (100 classes, the default) or 'coarse' (20 classes)"},
)
def open_cifar100(spec: Spec, rules: ReadOptions) -> ArraySource:
    """Open CIFAR-100; ROOT is `cifar-100-python` or the folder that holds it."""
    split = spec.one_of("split", ("test", "train"), "test")
    kind = spec.one_of("labels", ("fine", "coarse"), "fine")
    origin = "unpack the official cifar-100-python.tar.gz there"
    root = folder_holding(spec.path, "meta", ("cifar-100-python",), origin)
    return _cifar_source(spec, rules, [root / split], f"{kind}_labels", (root / "meta", f"{kind}_label_names"))


def _cifar_source(
    spec: Spec, rules: ReadOptions, paths: Sequence[Path], labels_key: str, names_at: tuple[Path, str]
) -> ArraySource:
    batches = [(path, read_arrays_pickle(path)) for path in paths]
    images = np.concatenate([_images(_entry(batch, "data", path), path) for path, batch in batches])
    labels = [label for path, batch in batches for label in _labels(_entry(batch, labels_key, path), labels_key, path)]
    names_path, names_key = names_at
    class_names = texts(_entry(read_arrays_pickle(names_path), names_key, names_path), f"{names_key} in {names_path}")
    return ArraySource(images, spec=str(spec), labels=labels, class_names=class_names, on_error=rules.on_error)


def _entry(content: dict[str, Any], key: str, path: Path) -> Any:
    if key not in content:
        raise SourceError(
            f"{str(path)!r} has no entry {key!r}; it has: {', '.join(content)}; get the official file again."
        )
    return content[key]


def _images(data: object, path: Path) -> Array:
    """Turn rows of a red, a green and a blue plane into images. uint8 [N, 3072] -> uint8 [N, 32, 32, 3], a view"""
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (3 * SIDE * SIDE,):
        found = f"{data.dtype} {list(data.shape)}" if isinstance(data, np.ndarray) else type(data).__name__
        raise SourceError(f"the data in {str(path)!r} is {found}; uint8 [N, {3 * SIDE * SIDE}] was expected.")
    return data.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)


def _labels(values: object, key: str, path: Path) -> list[int]:
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise SourceError(f"{key!r} in {str(path)!r} is not a list of whole numbers; get the official file again.")
    return values
