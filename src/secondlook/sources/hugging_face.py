"""`hf:NAME`: data sets of the Hugging Face hub, read by `datasets`."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from secondlook.arrays import IntArray, default_ids
from secondlook.errors import SourceError, reject_failures
from secondlook.imports import import_extra
from secondlook.registry import did_you_mean
from secondlook.sources.encoded_sources import EncodedSource, Labeling
from secondlook.sources.image_files import read_image_file
from secondlook.sources.labels import hide_unpublished
from secondlook.sources.regular_files import find_column
from secondlook.sources.source import ReadOptions, UnreadableImageError, source_scheme
from secondlook.specs import Spec


@source_scheme(
    "hf",
    form="hf:NAME?split=test",
    summary="a data set of the Hugging Face hub",
    options=("split", "config", "revision", "image", "label", "cache"),
    extra="hf",
)
def open_hugging_face(spec: Spec, read_options: ReadOptions) -> "HuggingFaceSource":
    """Open a split of a data set; images are decoded when they are read."""
    splits, split = _load_splits(spec), spec.options.get("split")
    if split is None and len(splits) == 1:
        split = next(iter(splits))
    if split not in splits:
        fault = f"has no split {split!r}" if split else "has several splits"
        repair = f"choose one of {', '.join(splits)} with ?split=.{did_you_mean(split or '', splits)}"
        raise SourceError(f"{str(spec)!r} {fault}", repair=repair)
    return HuggingFaceSource(spec, splits[split], read_options, Labeling(), folders=_find_caches(spec))


def _load_splits(spec: Spec) -> Any:
    if spec.path.exists():  # `datasets` would follow the addresses and paths that local files name
        repair = "use parquet:PATH for Parquet files, and folder:PATH for image files"
        raise SourceError(f"{str(spec)!r} is a local path; hf: loads data sets of the hub by name", repair=repair)
    datasets = import_extra("datasets", feature=f"the source {str(spec)!r}", extra="hf")
    name, revision, cache = (spec.options.get(option) for option in ("config", "revision", "cache"))
    with reject_failures(f"data set {str(spec)!r} cannot be loaded", "check its name and options", SourceError):
        return datasets.load_dataset(spec.location, name, revision=revision, cache_dir=cache)


def _find_caches(spec: Spec) -> list[Path]:
    """Return the folders in which data sets of the hub are stored."""
    from datasets import config
    from huggingface_hub.constants import HF_HUB_CACHE

    return [Path(one).resolve() for one in (spec.options.get("cache"), config.HF_CACHE_HOME, HF_HUB_CACHE) if one]


class HuggingFaceSource(EncodedSource):
    """One split of a data set, with one image per row."""

    def __init__(
        self,
        spec: Spec,
        data: Any,
        read_options: ReadOptions,
        labeling: Labeling,
        folders: Sequence[Path] | None = None,
    ) -> None:
        from datasets import Image

        self.folders = folders
        """Where rows may name image files; None for anywhere."""
        self.image, label = _find_image_column(spec, data), _find_label_column(spec, data)
        if label is not None:
            if labeling.labels is not None:
                fault = f"is given, but {str(spec)!r} has labels in its column {label!r}"
                raise SourceError(fault, argument="labels", repair="omit one of them")
            class_names = labeling.class_names or getattr(data.features[label], "names", None)
            labels = np.asarray(data.with_format("numpy")[label][:])
            labeling = Labeling(hide_unpublished(labels), class_names)
        super().__init__(str(spec), default_ids(len(data)), read_options, labeling)
        try:
            self.encoded: Any = data.select_columns([self.image]).cast_column(self.image, Image(decode=False))
        except (TypeError, ValueError, NotImplementedError) as error:
            fault = f"column {self.image!r} of {str(spec)!r} contains no images: {error}"
            raise SourceError(fault, repair="choose another with ?image=COLUMN") from error

    def _read_encoded(self, index: int) -> bytes:
        cell = self._read_cell(index)
        if cell.get("bytes") is not None:
            return bytes(cell["bytes"])
        if not cell.get("path"):
            raise UnreadableImageError(self._name_image(index), "its row is empty")
        path = Path(str(cell["path"])).resolve()
        if self.folders is not None and not any(path.is_relative_to(folder) for folder in self.folders):
            raise UnreadableImageError(self._name_image(index), "its row names a file outside of the cache")
        return read_image_file(path, self._name_image(index), self.max_bytes)

    def extract(self, positions: range | IntArray) -> "HuggingFaceSource":
        """Return a subset with its encoded images: other machines do not have the data set's cache."""
        rows = [{self.image: self._read_cell(int(position))} for position in positions]
        return self._copy_part(positions, encoded=rows)

    def _read_cell(self, index: int) -> dict[str, Any]:
        cell = self.encoded[index][self.image]
        return {} if cell is None else dict(cell)


def _find_image_column(spec: Spec, data: Any) -> str:
    from datasets import Image

    if "image" in spec.options:
        return find_column(spec, "image", data.features)
    columns = _find_columns(data, Image)
    if len(columns) != 1:
        repair = _suggest_choice(spec, "image", data.features)
        raise SourceError(f"{str(spec)!r} has {len(columns)} columns of type Image", repair=repair)
    return columns[0]


def _find_label_column(spec: Spec, data: Any) -> str | None:
    """Return the only column of type ClassLabel, or an integer column with a common name, or None."""
    from datasets import ClassLabel

    if "label" in spec.options:
        return find_column(spec, "label", data.features)
    columns = _find_columns(data, ClassLabel)
    if len(columns) > 1:
        repair = _suggest_choice(spec, "label", columns)
        raise SourceError(f"{str(spec)!r} has several columns of type ClassLabel", repair=repair)
    common = ("label", "labels", "fine_label")
    integers = [name for name in common if "int" in str(getattr(data.features.get(name), "dtype", ""))]
    return next(iter(columns + integers), None)


def _find_columns(data: Any, kind: type) -> list[str]:
    return [str(name) for name, feature in data.features.items() if isinstance(feature, kind)]


def _suggest_choice(spec: Spec, option: str, columns: Iterable[str]) -> str:
    names = ", ".join(columns)
    if spec.scheme == "dataset":
        return f"keep one of {names} with select_columns, after a cast of images with cast_column(name, Image())"
    return f"choose one of {names} with ?{option}=COLUMN"
