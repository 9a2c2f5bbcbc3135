"""`imagenet:ROOT`: the ILSVRC 2012 validation images, flat with the devkit, or one folder per synset."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from secondlook.errors import SourceError
from secondlook.sources.folder import check_folder, list_images, make_relative_ids, walk_images
from secondlook.sources.image_files import FileSource
from secondlook.sources.official_files import read_mat_file
from secondlook.sources.regular_files import read_text_file, reject_damaged
from secondlook.sources.source import ReadOptions, source_scheme
from secondlook.specs import Spec

N_SYNSETS = 1000
IMAGE_FOLDERS = ("", "val", "ILSVRC2012_img_val", "validation")
DEVKIT_FOLDERS = ("", "ILSVRC2012_devkit_t12", "devkit")
GROUND_TRUTH_FILE = "ILSVRC2012_validation_ground_truth.txt"
FLAT_NAME = re.compile(r"ILSVRC2012_val_(\d{8})\.jpe?g", re.IGNORECASE)
SYNSET_NAME = re.compile(r"n\d{8}")


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
def open_imagenet(spec: Spec, read_options: ReadOptions) -> FileSource:
    """Open ImageNet; a class index is the rank of the synset id among all synset ids, as in every framework."""
    root = check_folder(spec.path, "imagenet:")
    devkit = _find_devkit(spec, root)
    for folder in (root / name for name in IMAGE_FOLDERS):
        if not folder.is_dir():
            continue
        if any(SYNSET_NAME.fullmatch(path.name) for path in folder.iterdir()):
            return _open_synset_folders(spec, read_options, folder, devkit)
        if any(FLAT_NAME.fullmatch(path.name) for path in list_images(folder)):
            return _open_flat_folder(spec, read_options, folder, devkit)
    raise SourceError(
        f"neither images such as ILSVRC2012_val_00000001.JPEG nor folders such as n01440764 in {str(root)!r} or its"
        f" subfolders {', '.join(IMAGE_FOLDERS[1:])}; unpack ILSVRC2012_img_val.tar there."
    )


def _find_devkit(spec: Spec, root: Path) -> Path | None:
    """Return the data folder of the devkit, or None where there is none."""
    if "devkit" in spec.options:
        given = check_folder(Path(spec.options["devkit"]).expanduser(), "devkit=")
        candidates: tuple[Path, ...] = (given / "data", given)
    else:
        candidates = tuple(root / name / "data" for name in DEVKIT_FOLDERS)
    devkit = next((folder for folder in candidates if (folder / "meta.mat").is_file()), None)
    if devkit is None and "devkit" in spec.options:
        raise SourceError(
            f"no file data/meta.mat in {spec.options['devkit']!r}; expected the folder of the unpacked devkit."
        )
    return devkit


def _open_synset_folders(spec: Spec, read_options: ReadOptions, folder: Path, devkit: Path | None) -> FileSource:
    wnids = sorted(path.name for path in folder.iterdir() if SYNSET_NAME.fullmatch(path.name))
    synsets = _make_synsets(wnids, folder) if devkit is None else _read_synsets(devkit)
    unknown = [wnid for wnid in wnids if wnid not in synsets.index_of_wnid]
    if unknown:
        raise SourceError(f"folder {unknown[0]!r} in {str(folder)!r} is not a synset of the devkit; remove it.")
    paths = [path for wnid in wnids for path in walk_images(folder / wnid)]
    labels = [synsets.index_of_wnid[path.relative_to(folder).parts[0]] for path in paths]
    ids = make_relative_ids(paths, folder)
    return FileSource(str(spec), paths, ids, read_options, labels=labels or None, class_names=synsets.class_names)


def _make_synsets(wnids: list[str], folder: Path) -> Synsets:
    if len(wnids) != N_SYNSETS:
        raise SourceError(
            f"{str(folder)!r} contains {len(wnids)} synset folders, so the class indices are unknown without the"
            f" devkit; expected {N_SYNSETS}, or add ?devkit=DIR, or use folder: to number the classes from 0."
        )
    return Synsets(tuple(wnids), {wnid: index for index, wnid in enumerate(wnids)}, {})


def _open_flat_folder(spec: Spec, read_options: ReadOptions, folder: Path, devkit: Path | None) -> FileSource:
    if devkit is None:
        raise SourceError(
            f"the labels of the images in {str(folder)!r} are in the devkit, which is missing; unpack"
            f" ILSVRC2012_devkit_t12.tar.gz in {spec.location!r}, or add ?devkit=DIR."
        )
    synsets, ground_truth = _read_synsets(devkit), _read_ground_truth(devkit / GROUND_TRUTH_FILE)
    matches = [(path, FLAT_NAME.fullmatch(path.name)) for path in list_images(folder)]
    numbered = [(path, int(match[1])) for path, match in matches if match]
    labels = [_find_label(path, number, ground_truth, synsets) for path, number in numbered]
    paths = [path for path, _ in numbered]
    ids = make_relative_ids(paths, folder)
    return FileSource(str(spec), paths, ids, read_options, labels=labels, class_names=synsets.class_names)


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


def _read_ground_truth(path: Path) -> list[int]:
    with reject_damaged(f"{str(path)!r} cannot be read", "unpack the devkit again"):
        return [int(line) for line in read_text_file(path, "ascii").split()]


def _read_synsets(devkit: Path) -> Synsets:
    """Read the table of synsets; only its leaves are classes, and they are not in the order of the frameworks."""
    path = devkit / "meta.mat"
    fields = ("ILSVRC2012_ID", "WNID", "words", "num_children")
    columns = read_mat_file(path, [f"synsets.{field}" for field in fields])
    with reject_damaged(f"the synsets in {str(path)!r} cannot be read", "unpack the devkit again"):
        rows = zip(*(column.tolist() for column in columns), strict=True)
        leaves = sorted((str(wnid), str(words), int(number)) for number, wnid, words, children in rows if children == 0)
    return Synsets(
        tuple(f"{wnid} {words.split(',')[0]}" for wnid, words, _ in leaves),
        {wnid: index for index, (wnid, _, _) in enumerate(leaves)},
        {number: index for index, (_, _, number) in enumerate(leaves)},
    )
