"""`hf:NAME`: data sets of the Hugging Face hub, local Parquet files and local image folders, through `datasets`."""

import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np

from secondlook.arrays import Array, IntArray
from secondlook.errors import MissingExtraError, SourceError
from secondlook.registry import did_you_mean
from secondlook.sources.decoding import decode_file, decode_image
from secondlook.sources.labels import numbered_ids
from secondlook.sources.schemes import source_scheme
from secondlook.sources.source import DECODING_THREADS, ReadOptions, Source, UnreadableImageError
from secondlook.sources.spec import Spec

LABEL_COLUMNS = ("label", "labels", "fine_label")


@source_scheme(
    "hf",
    form="hf:NAME_OR_PATH?split=test",
    summary="a Hugging Face data set: a hub name, a local Parquet file, or a local folder of Parquet files or images",
    options={
        "split": "which split; needed where there are several",
        "config": "which configuration of the data set",
        "revision": "which version on the hub",
        "image": "the column of the images, if there are several or it is not marked as images",
        "label": "the column of the labels, if there are several or it has an unusual name",
        "cache": "the folder for prepared data, instead of the library's own",
    },
    extra="hf",
)
def open_hugging_face(spec: Spec, rules: ReadOptions) -> "HuggingFaceSource":
    """Open a data set; images stay encoded until they are read."""
    data = _one_split(_load(spec), spec)
    return HuggingFaceSource(spec, data, _image_column(spec, data), _label_column(spec, data), rules)


class HuggingFaceSource(Source):
    """One split of a data set, an image per row."""

    threads: int = DECODING_THREADS

    def __init__(self, spec: Spec, data: Any, image: str, label: str | None, rules: ReadOptions) -> None:
        from datasets import Image

        labels = None if label is None else _known_labels(data, label)
        names = getattr(data.features[label], "names", None) if label is not None else None
        super().__init__(str(spec), numbered_ids(len(data)), labels=labels, class_names=names, on_error=rules.on_error)
        try:
            self.encoded = data.select_columns([image]).cast_column(image, Image(decode=False))
        except (TypeError, ValueError, NotImplementedError) as error:
            raise SourceError(f"column {image!r} of {str(spec)!r} holds no images: {error}; name another.") from error
        self.image = image
        self.max_pixels = rules.max_pixels

    def read(self, index: int) -> Array:
        """Decode one row. -> uint8 [H, W, 3]"""
        where = f"{self.ids[index]} of {self.spec}"
        cell = self._cell(index)
        if cell.get("bytes") is None:
            return decode_file(Path(self._path(index, cell)), where, self.max_pixels)
        return decode_image(io.BytesIO(cell["bytes"]), where, self.max_pixels)

    def content(self, index: int) -> bytes:
        """Return the sha256 of the encoded image, whatever its size."""
        cell = self._cell(index)
        if cell.get("bytes") is not None:
            return hashlib.sha256(cell["bytes"]).digest()
        return super().content(index)

    def _cell(self, index: int) -> dict[str, Any]:
        cell = self.encoded[index][self.image]
        return {} if cell is None else dict(cell)

    def _path(self, index: int, cell: dict[str, Any]) -> str:
        if not cell.get("path"):
            raise UnreadableImageError(f"{self.ids[index]} of {self.spec}", "its row is empty")
        return str(cell["path"])


def _load(spec: Spec) -> Any:
    try:
        from datasets import load_dataset
        from datasets.exceptions import DatasetsError
    except ImportError as error:
        raise MissingExtraError(f"the source {str(spec)!r}", "datasets", "hf") from error
    settings = {name: spec.options.get(option) for name, option in (("name", "config"), ("revision", "revision"))}
    path, cache = spec.path, spec.options.get("cache")
    try:
        if path.is_file():
            return load_dataset(_kind_of_file(path, spec), data_files=str(path), cache_dir=cache)
        return load_dataset(str(path) if path.is_dir() else spec.location, **settings, cache_dir=cache)
    except (OSError, ValueError, RuntimeError, LookupError, DatasetsError) as error:
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise SourceError(
            f"the data set of {str(spec)!r} cannot be loaded ({first_line}); give a name on the hub, or a path that"
            " exists."
        ) from error


def _kind_of_file(path: Path, spec: Spec) -> str:
    if path.suffix.lower() != ".parquet":
        raise SourceError(f"{str(spec)!r} is a {path.suffix or 'nameless'} file; hf: reads .parquet files and folders.")
    return "parquet"


def _one_split(splits: Any, spec: Spec) -> Any:
    wanted = spec.options.get("split")
    if wanted is None and len(splits) == 1:
        return next(iter(splits.values()))
    if wanted not in splits:
        known = ", ".join(splits)
        what = f"has no split {wanted!r}" if wanted else "has several splits"
        raise SourceError(
            f"{str(spec)!r} {what}; choose one of {known} with ?split=.{did_you_mean(wanted or '', splits)}"
        )
    return splits[wanted]


def _image_column(spec: Spec, data: Any) -> str:
    from datasets import Image

    if "image" in spec.options:
        return _existing_column(spec, data, "image")
    columns = [name for name, feature in data.features.items() if isinstance(feature, Image)]
    if len(columns) != 1:
        raise SourceError(
            f"{str(spec)!r} has {len(columns)} columns marked as images, among {', '.join(data.features)}; choose one"
            " with ?image=COLUMN."
        )
    return str(columns[0])


def _label_column(spec: Spec, data: Any) -> str | None:
    """Return the one column of class labels, or the usual column of whole numbers, or None."""
    from datasets import ClassLabel

    if "label" in spec.options:
        return _existing_column(spec, data, "label")
    columns = [name for name, feature in data.features.items() if isinstance(feature, ClassLabel)]
    if len(columns) > 1:
        raise SourceError(
            f"{str(spec)!r} has several columns of labels: {', '.join(columns)}; choose with ?label=COLUMN."
        )
    whole = [name for name in LABEL_COLUMNS if "int" in str(getattr(data.features.get(name), "dtype", ""))]
    return next(iter(columns + whole), None)


def _existing_column(spec: Spec, data: Any, option: str) -> str:
    name = spec.options[option]
    if name not in data.features:
        raise SourceError(
            f"{str(spec)!r} has no column {name!r}; it has:"
            f" {', '.join(data.features)}.{did_you_mean(name, data.features)}"
        )
    return name


def _known_labels(data: Any, column: str) -> IntArray | None:
    """Return the labels; the hub marks those kept secret with -1, and a split of these has none."""
    values = data.with_format("numpy")[column]
    labels = np.asarray(values[:] if not isinstance(values, np.ndarray) else values)
    return None if labels.size and bool((labels == -1).all()) else labels
