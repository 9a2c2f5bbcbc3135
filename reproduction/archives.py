"""Registers the sources `cifar10:`, `cifar100:`, `svhn:`, `stl10:` and `imagenet:`, the paper's official archives."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import secondlook as sl
from reproduction.archive_files import open_archive, read_mat_file, read_pickle, to_text
from secondlook.arrays import Array, IntArray
from secondlook.errors import SourceError
from secondlook.sources import ArraySource, ReadOptions, source_scheme
from secondlook.specs import Spec, expand_path

CIFAR_SIDE = 32
CIFAR10_BATCHES = {"test": ("test_batch",), "train": tuple(f"data_batch_{number}" for number in range(1, 6))}
CIFAR_SPLITS = "'test' (the default) or 'train'"
SVHN_CLASSES = tuple("0123456789")
STL10_SIDE = 96
STL10_BYTES_PER_IMAGE = 3 * STL10_SIDE * STL10_SIDE

IMAGENET_CLASSES = 1000
IMAGE_FOLDERS = ("", "val", "ILSVRC2012_img_val", "validation")
DEVKIT_FOLDERS = ("", "ILSVRC2012_devkit_t12", "devkit")
GROUND_TRUTH_FILE = "ILSVRC2012_validation_ground_truth.txt"
SUFFIXES = (".jpeg", ".jpg", ".png")
FLAT_NAME = re.compile(r"ILSVRC2012_val_(\d{8})\.jpe?g", re.IGNORECASE)
SYNSET_NAME = re.compile(r"n\d{8}")


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
    batches = [(path, read_pickle(path)) for path in paths]
    images = np.concatenate([_reshape_cifar(_get_entry(batch, "data", path), path) for path, batch in batches])
    labels = [label for path, batch in batches for label in _get_list(batch, labels_key, path, (int,))]
    names = [to_text(name) for name in _get_list(read_pickle(meta), names_key, meta, (bytes, str))]
    return ArraySource(images, spec=str(spec), labels=labels, class_names=names, on_error=read_options.on_error)


def _get_entry(content: dict[str, Any], key: str, path: Path) -> Any:
    if key not in content:
        raise SourceError(
            f"no entry {key!r} in {str(path)!r}; its entries: {', '.join(content)}; download the official file again."
        )
    return content[key]


def _get_list(content: dict[str, Any], key: str, path: Path, types: tuple[type, ...]) -> list[Any]:
    values = _get_entry(content, key, path)
    if not isinstance(values, list) or not all(type(value) in types for value in values):
        what = "integers" if int in types else "names"
        raise SourceError(f"{key!r} in {str(path)!r} is not a list of {what}; download the official file again.")
    return values


def _reshape_cifar(data: object, path: Path) -> Array:
    """Return a view of rows of red, green and blue planes as images. uint8 [N, 3072] -> uint8 [N, 32, 32, 3]"""
    n_values = 3 * CIFAR_SIDE * CIFAR_SIDE
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (n_values,):
        found = f"{data.dtype} {list(data.shape)}" if isinstance(data, np.ndarray) else type(data).__name__
        raise SourceError(f"'data' in {str(path)!r} is {found}; expected uint8 [N, {n_values}].")
    return data.reshape(-1, 3, CIFAR_SIDE, CIFAR_SIDE).transpose(0, 2, 3, 1)


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
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[:3] != (32, 32, 3):
        raise SourceError(f"X in {str(path)!r} is {pixels.dtype} {list(pixels.shape)}; expected uint8 [32, 32, 3, N].")
    if y.dtype.kind not in "iuf":
        raise SourceError(f"y in {str(path)!r} is {y.dtype}; expected integers; download the official file again.")
    _check_one_to_ten(y, f"the labels y in {str(path)!r}")
    images, labels = pixels.transpose(3, 0, 1, 2), y.astype(np.int64).ravel() % 10
    return ArraySource(images, spec=str(spec), labels=labels, class_names=SVHN_CLASSES, on_error=read_options.on_error)


@source_scheme(
    "stl10",
    form="stl10:ROOT",
    summary="the official binary files of STL-10 (stl10_binary)",
    options={"split": "'test' (the default), 'train' or 'unlabeled'"},
)
def open_stl10(spec: Spec, read_options: ReadOptions) -> ArraySource:
    """Open STL-10; ROOT is `stl10_binary` or its parent folder."""
    split = spec.choice("split", ("test", "train", "unlabeled"), "test", SourceError)
    repair = "unpack the official stl10_binary.tar.gz there"
    root = _find_folder(spec.path, f"{split}_X.bin", ("stl10_binary",), repair)
    images = _read_stl10_images(root / f"{split}_X.bin")
    labels = None if split == "unlabeled" else _read_stl10_labels(root / f"{split}_y.bin")
    with open_archive(root / "class_names.txt") as file:
        class_names = file.read().decode().split()
    return ArraySource(images, spec=str(spec), labels=labels, class_names=class_names, on_error=read_options.on_error)


def _read_stl10_images(path: Path) -> Array:
    """Read the images; the file stores each channel column by column. -> uint8 [N, 96, 96, 3]"""
    with open_archive(path) as file:
        content = np.fromfile(file, np.uint8)
    if content.size == 0 or content.size % STL10_BYTES_PER_IMAGE:
        raise SourceError(
            f"{str(path)!r} has {content.size} bytes; expected a multiple of {STL10_BYTES_PER_IMAGE} (3 x 96 x 96); the"
            " file is truncated, download it again."
        )
    return content.reshape(-1, 3, STL10_SIDE, STL10_SIDE).transpose(0, 3, 2, 1)


def _read_stl10_labels(path: Path) -> IntArray:
    """Convert labels 1 to 10 to 0 to 9. -> int64 [N]"""
    with open_archive(path) as file:
        labels = np.fromfile(file, np.uint8).astype(np.int64)
    _check_one_to_ten(labels, f"the labels in {str(path)!r}")
    return labels - 1


def _check_one_to_ten(labels: Array, where: str) -> None:
    if labels.size and not (labels.min() >= 1 and labels.max() <= 10):
        raise SourceError(
            f"{where} range from {labels.min()} to {labels.max()}; expected 1 to 10; download the official file again."
        )


def _check_folder(path: Path) -> Path:
    if not path.is_dir():
        found = "is not a folder" if path.exists() else "does not exist"
        raise SourceError(f"{str(path)!r} {found}; this data set needs the path of a folder.")
    return path


def _find_folder(root: Path, file: str, subfolders: Sequence[str], repair: str) -> Path:
    """Return the folder that contains the file: the root or one of the subfolders."""
    _check_folder(root)
    for folder in (root, *(root / name for name in subfolders)):
        if (folder / file).is_file():
            return folder
    folders = " or ".join(repr(str(root / name)) for name in ("", *subfolders))
    raise SourceError(f"no file {file!r} in {folders}; {repair}.")


@dataclass(frozen=True)
class Synsets:
    """Class names by class index, and the class index of each synset id (wnid) and of each devkit number."""

    class_names: tuple[str, ...]
    index_of_wnid: Mapping[str, int]
    index_of_number: Mapping[int, int]


@source_scheme(
    "imagenet",
    form="imagenet:ROOT",
    summary="the ILSVRC 2012 validation images, flat with the devkit, or one folder per synset",
    options={"devkit": "folder of the devkit (ILSVRC2012_devkit_t12), in ROOT by default"},
)
def open_imagenet(spec: Spec, read_options: ReadOptions) -> sl.Source:
    """Open ImageNet; a class index is the rank of the synset id among all synset ids, as in every framework."""
    root = _check_folder(spec.path)
    devkit = _find_devkit(spec, root)
    for folder in (root / name for name in IMAGE_FOLDERS):
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        wnids = [name for name in names if SYNSET_NAME.fullmatch(name) and (folder / name).is_dir()]
        if wnids:
            return _open_synset_folders(spec, read_options, folder, wnids, devkit)
        if any(map(FLAT_NAME.fullmatch, names)):
            return _open_flat_folder(spec, read_options, folder, names, devkit)
    raise SourceError(
        f"neither images like ILSVRC2012_val_00000001.JPEG nor folders like n01440764 in {str(root)!r} or its"
        f" subfolders {', '.join(IMAGE_FOLDERS[1:])}; unpack ILSVRC2012_img_val.tar there."
    )


def _find_devkit(spec: Spec, root: Path) -> Path | None:
    """Return the data folder of the devkit, or None."""
    given = spec.options.get("devkit")
    if given is None:
        candidates = tuple(root / name / "data" for name in DEVKIT_FOLDERS)
    else:
        candidates = (_check_folder(expand_path(given)) / "data", expand_path(given))
    devkit = next((folder for folder in candidates if (folder / "meta.mat").is_file()), None)
    if devkit is None and given is not None:
        raise SourceError(f"no file data/meta.mat in {given!r}; expected the folder of the unpacked devkit.")
    return devkit


def _open_synset_folders(
    spec: Spec, read_options: ReadOptions, folder: Path, wnids: list[str], devkit: Path | None
) -> sl.Source:
    synsets = _make_synsets(wnids, folder) if devkit is None else _read_synsets(devkit)
    unknown = [wnid for wnid in wnids if wnid not in synsets.index_of_wnid]
    if unknown:
        raise SourceError(f"folder {unknown[0]!r} in {str(folder)!r} is not a synset of the devkit; remove it.")
    files = (sorted((folder / wnid).glob("[!.]*")) for wnid in wnids)
    ids = [f"{path.parent.name}/{path.name}" for paths in files for path in paths if path.suffix.lower() in SUFFIXES]
    labels = [synsets.index_of_wnid[id_.partition("/")[0]] for id_ in ids]
    return _open_files(spec, read_options, folder, ids, labels, synsets)


def _make_synsets(wnids: list[str], folder: Path) -> Synsets:
    if len(wnids) != IMAGENET_CLASSES:
        raise SourceError(
            f"{str(folder)!r} contains {len(wnids)} synset folders, so the class indices are unknown without the"
            f" devkit; expected {IMAGENET_CLASSES}, or add ?devkit=DIR, or use folder: to number the classes from 0."
        )
    return Synsets(tuple(wnids), {wnid: index for index, wnid in enumerate(wnids)}, {})


def _open_flat_folder(
    spec: Spec, read_options: ReadOptions, folder: Path, names: list[str], devkit: Path | None
) -> sl.Source:
    if devkit is None:
        raise SourceError(
            f"the labels of the images in {str(folder)!r} are in the devkit, which is missing; unpack"
            f" ILSVRC2012_devkit_t12.tar.gz in {spec.location!r}, or add ?devkit=DIR."
        )
    synsets = _read_synsets(devkit)
    with open_archive(devkit / GROUND_TRUTH_FILE) as file:
        ground_truth = [int(line) for line in file.read().split()]
    matches = [match for match in map(FLAT_NAME.fullmatch, names) if match]
    labels = [_find_label(folder / match[0], int(match[1]), ground_truth, synsets) for match in matches]
    return _open_files(spec, read_options, folder, [match[0] for match in matches], labels, synsets)


def _find_label(path: Path, number: int, ground_truth: list[int], synsets: Synsets) -> int:
    """Return the class index of a validation image: its line of the ground truth, mapped through the devkit."""
    if not 1 <= number <= len(ground_truth):
        raise SourceError(
            f"image {str(path)!r} has no label: the ground truth has {len(ground_truth)} lines, expected at least"
            f" {number}; unpack the devkit again."
        )
    if ground_truth[number - 1] not in synsets.index_of_number:
        raise SourceError(
            f"line {number} of the ground truth is {ground_truth[number - 1]}; expected 1 to"
            f" {len(synsets.class_names)}; unpack the devkit again."
        )
    return synsets.index_of_number[ground_truth[number - 1]]


def _open_files(
    spec: Spec, read_options: ReadOptions, folder: Path, ids: list[str], labels: list[int], synsets: Synsets
) -> sl.Source:
    if not ids:
        raise SourceError(f"no images in {str(folder)!r}; unpack ILSVRC2012_img_val.tar there.")
    source = sl.open_source(
        [folder / id_ for id_ in ids],
        labels=labels,
        class_names=synsets.class_names,
        on_error=read_options.on_error,
        max_pixels=read_options.max_pixels,
        max_bytes=read_options.max_bytes,
    )
    source.spec, source.ids = str(spec), tuple(ids)
    return source


def _read_synsets(devkit: Path) -> Synsets:
    """Read the table of synsets. Only leaves are classes, in another order than in the frameworks."""
    path = devkit / "meta.mat"
    fields = ("ILSVRC2012_ID", "WNID", "words", "num_children")
    columns = read_mat_file(path, [f"synsets.{field}" for field in fields])
    try:
        rows = zip(*(column.tolist() for column in columns), strict=True)
        leaves = sorted((str(wnid), str(words), int(number)) for number, wnid, words, children in rows if children == 0)
    except (TypeError, ValueError) as error:
        raise SourceError(f"the synsets in {str(path)!r} cannot be read: {error}; unpack the devkit again.") from error
    return Synsets(
        tuple(f"{wnid} {words.split(',')[0]}" for wnid, words, _ in leaves),
        {wnid: index for index, (wnid, _, _) in enumerate(leaves)},
        {number: index for index, (_, _, number) in enumerate(leaves)},
    )
