"""`imagenet:ROOT`: the ILSVRC 2012 validation images, flat with the devkit, or a folder per synset."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from secondlook.errors import SourceError
from secondlook.sources.folder import existing_folder, images_below, images_in, relative_ids
from secondlook.sources.image_files import FileSource
from secondlook.sources.mat_files import read_mat
from secondlook.sources.schemes import source_scheme
from secondlook.sources.source import ReadOptions
from secondlook.sources.spec import Spec

N_SYNSETS = 1000
IMAGE_FOLDERS = ("", "val", "ILSVRC2012_img_val", "validation")
DEVKIT_FOLDERS = ("", "ILSVRC2012_devkit_t12", "devkit")
GROUND_TRUTH = "ILSVRC2012_validation_ground_truth.txt"
FLAT_NAME = re.compile(r"ILSVRC2012_val_(\d{8})\.jpe?g", re.IGNORECASE)
SYNSET_NAME = re.compile(r"n\d{8}")


@dataclass(frozen=True)
class Synsets:
    """The classes in the order of every framework, and the place there of a synset id and of a devkit number."""

    class_names: tuple[str, ...]
    index_of_wnid: Mapping[str, int]
    index_of_number: Mapping[int, int]


@source_scheme(
    "imagenet",
    form="imagenet:ROOT",
    summary="the ILSVRC 2012 validation images, flat beside the devkit or in a folder per synset",
    options={"devkit": "the folder of the devkit (ILSVRC2012_devkit_t12), if it is not in ROOT"},
)
def open_imagenet(spec: Spec, rules: ReadOptions) -> FileSource:
    """Open ImageNet; a label is the rank of the image's synset id among all synset ids, as in every framework."""
    root = existing_folder(spec.path, "imagenet:")
    devkit = _find_devkit(spec, root)
    for folder in (root / name for name in IMAGE_FOLDERS):
        if not folder.is_dir():
            continue
        if any(SYNSET_NAME.fullmatch(path.name) for path in folder.iterdir()):
            return _synset_folders(spec, rules, folder, devkit)
        if any(FLAT_NAME.fullmatch(path.name) for path in images_in(folder)):
            return _flat_folder(spec, rules, folder, devkit)
    raise SourceError(
        f"neither ILSVRC2012_val_00000001.JPEG and so on nor folders such as n01440764 lie in {str(root)!r} or its"
        f" sub-folders {', '.join(IMAGE_FOLDERS[1:])}; unpack ILSVRC2012_img_val.tar there."
    )


def _find_devkit(spec: Spec, root: Path) -> Path | None:
    """Return the data folder of the devkit, or None where there is none."""
    if "devkit" in spec.options:
        given = existing_folder(Path(spec.options["devkit"]).expanduser(), "devkit=")
        candidates: tuple[Path, ...] = (given / "data", given)
    else:
        candidates = tuple(root / name / "data" for name in DEVKIT_FOLDERS)
    found = next((folder for folder in candidates if (folder / "meta.mat").is_file()), None)
    if found is None and "devkit" in spec.options:
        raise SourceError(
            f"there is no data/meta.mat in {spec.options['devkit']!r}; give the unpacked devkit's folder."
        )
    return found


def _synset_folders(spec: Spec, rules: ReadOptions, folder: Path, devkit: Path | None) -> FileSource:
    wnids = sorted(path.name for path in folder.iterdir() if SYNSET_NAME.fullmatch(path.name))
    synsets = _synsets_of_folders(wnids, folder) if devkit is None else _read_synsets(devkit)
    unknown = [wnid for wnid in wnids if wnid not in synsets.index_of_wnid]
    if unknown:
        raise SourceError(f"folder {unknown[0]!r} in {str(folder)!r} is no synset of the devkit; take it out.")
    paths = [path for wnid in wnids for path in images_below(folder / wnid)]
    labels = [synsets.index_of_wnid[path.relative_to(folder).parts[0]] for path in paths]
    ids = relative_ids(paths, folder)
    return FileSource(str(spec), paths, ids, rules, labels=labels or None, class_names=synsets.class_names)


def _synsets_of_folders(wnids: list[str], folder: Path) -> Synsets:
    if len(wnids) != N_SYNSETS:
        raise SourceError(
            f"{str(folder)!r} holds {len(wnids)} synset folders, not {N_SYNSETS}, so that the class numbers cannot be"
            " known; add the devkit (?devkit=DIR), or number the classes from 0 with folder:."
        )
    return Synsets(tuple(wnids), {wnid: index for index, wnid in enumerate(wnids)}, {})


def _flat_folder(spec: Spec, rules: ReadOptions, folder: Path, devkit: Path | None) -> FileSource:
    if devkit is None:
        raise SourceError(
            f"the images in {str(folder)!r} need the devkit for their labels; unpack ILSVRC2012_devkit_t12.tar.gz in"
            f" {spec.location!r}, or give ?devkit=DIR."
        )
    synsets, truth = _read_synsets(devkit), _read_ground_truth(devkit / GROUND_TRUTH)
    matches = [(path, FLAT_NAME.fullmatch(path.name)) for path in images_in(folder)]
    numbered = [(path, int(match[1])) for path, match in matches if match]
    labels = [_label(path, number, truth, synsets) for path, number in numbered]
    paths = [path for path, _ in numbered]
    ids = relative_ids(paths, folder)
    return FileSource(str(spec), paths, ids, rules, labels=labels, class_names=synsets.class_names)


def _label(path: Path, number: int, truth: list[int], synsets: Synsets) -> int:
    """Return the class of the n-th validation image: line n of the ground truth, mapped through the devkit's table."""
    if not 1 <= number <= len(truth):
        raise SourceError(
            f"image {str(path)!r} has no line {number} in the ground truth, which has {len(truth)} lines."
        )
    if truth[number - 1] not in synsets.index_of_number:
        raise SourceError(
            f"line {number} of the ground truth is {truth[number - 1]}; 1 to {len(synsets.class_names)} was expected."
        )
    return synsets.index_of_number[truth[number - 1]]


def _read_ground_truth(path: Path) -> list[int]:
    try:
        return [int(line) for line in path.read_text(encoding="ascii").split()]
    except (OSError, ValueError) as error:
        raise SourceError(f"{str(path)!r} cannot be read: {error}; unpack the devkit again.") from error


def _read_synsets(devkit: Path) -> Synsets:
    """Read the devkit's table; only its leaves are classes, and their order there is not the frameworks' order."""
    path = devkit / "meta.mat"
    table = read_mat(path, ("synsets",), squeeze=True)["synsets"]
    fields = ("ILSVRC2012_ID", "WNID", "words", "num_children")
    if any(field not in (table.dtype.names or ()) for field in fields):
        raise SourceError(f"the synsets in {str(path)!r} lack one of {', '.join(fields)}; unpack the devkit again.")
    rows = zip(*(table[field].tolist() for field in fields), strict=True)
    leaves = sorted((str(wnid), str(words), int(number)) for number, wnid, words, children in rows if children == 0)
    return Synsets(
        tuple(f"{wnid} {words.split(',')[0]}" for wnid, words, _ in leaves),
        {wnid: index for index, (wnid, _, _) in enumerate(leaves)},
        {number: index for index, (_, _, number) in enumerate(leaves)},
    )
