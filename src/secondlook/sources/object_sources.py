"""Sources of images in memory: one image, a list or column of images or paths, an array, a tensor, a data set."""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import Array, default_ids
from secondlook.errors import SourceError
from secondlook.sources.device_images import DeviceImages, is_on_accelerator
from secondlook.sources.hugging_face import open_hugging_face_object
from secondlook.sources.image_files import FileSource
from secondlook.sources.image_objects import (
    KINDS,
    Kind,
    check_tensor_shape,
    convert_tensor,
    find_kind,
    is_instance,
    read_image,
)
from secondlook.sources.regular_files import describe_error, reject_url
from secondlook.sources.source import (
    DECODING_THREADS,
    ArraySource,
    ReadOptions,
    Source,
    UnreadableImageError,
    check_image_bytes,
    hash_pixels,
)
from secondlook.specs import expand_path

IMAGE_KEYS = ("image", "pixel_values")
LABEL_KEYS = ("label", "labels")
MEMORY_SCHEMES = ("array", "list", "dataset")
"""Schemes of the specs of sources in memory; such a spec names the source, but cannot open it again."""

ACCEPTED = f"a text such as 'folder:val/', a Source, {KINDS}, a list of these, or a data set of torch or datasets"


@dataclass(frozen=True)
class Labeling:
    """The labels and class names that were passed for images in memory."""

    labels: ArrayLike | None = None
    class_names: Iterable[str] | None = None


def open_object(data: Any, labeling: Labeling, read_options: ReadOptions) -> Source:
    """Open images in memory, or a list of paths; ids, digests and limits are those of other sources."""
    data = _unwrap_loader(data) if is_instance(data, "torch.utils.data", "DataLoader") else data
    if is_instance(data, "datasets", "Dataset"):
        return open_hugging_face_object(data, read_options, labeling.labels, labeling.class_names)
    if is_instance(data, "torch", "Tensor"):
        if is_on_accelerator(data):
            check_tensor_shape(data, "the tensor")
            return _open_array(DeviceImages(data[None] if data.ndim == 3 else data), labeling, read_options)
        data = convert_tensor(data, "the tensor")
    if isinstance(data, np.ndarray) and data.dtype.kind not in "OU":
        is_one_image = data.ndim == 3 and data.shape[2] in (1, 3)
        return _open_array(data[None] if is_one_image else data, labeling, read_options)
    if find_kind(data) in ("path", "bytes", "PIL image"):
        data = [data]
    if isinstance(data, np.ndarray) or is_instance(data, "pandas", "Series"):
        data = data.tolist()
    is_list = isinstance(data, list | tuple)
    return _open_items(data, "list" if is_list else "dataset", _check_length(data), labeling, read_options)


def _open_array(images: Array | DeviceImages, labeling: Labeling, read_options: ReadOptions) -> ArraySource:
    return ArraySource(images, labels=labeling.labels, class_names=labeling.class_names, on_error=read_options.on_error)


def _unwrap_loader(loader: Any) -> Any:
    """Return the data set of a DataLoader that yields all its items, in any order and in batches of any size."""
    from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

    is_usual = type(loader.batch_sampler) in (BatchSampler, type(None))
    for sampler in (loader.sampler, getattr(loader.batch_sampler, "sampler", loader.sampler)):
        is_shuffled = isinstance(sampler, RandomSampler) and not sampler.replacement
        is_complete = is_shuffled and sampler.num_samples == len(loader.dataset)
        is_usual = is_usual and (isinstance(sampler, SequentialSampler) or is_complete)
    if not is_usual and not is_instance(loader.dataset, "torch.utils.data", "IterableDataset"):
        name = type(loader.sampler).__name__
        raise SourceError(
            f"the DataLoader draws its images with a sampler of its own ({name}), so they have no stable ids; pass a"
            " torch.utils.data.Subset of its data set, or the data set itself."
        )
    return loader.dataset


def _check_length(data: Any) -> int:
    """Return the number of items of something with a length and positions."""
    name = type(data).__name__
    if isinstance(data, Mapping):
        raise SourceError(
            f"cannot open a {name} with the keys {', '.join(map(str, data))[:80]}; pass one of its values."
        )
    if is_instance(data, "pandas", "DataFrame"):
        raise SourceError("cannot open a DataFrame; pass its column of paths, such as frame['path'], and labels=.")
    try:
        length = len(data)
    except (TypeError, NotImplementedError):
        length = None
    if length is None or not hasattr(data, "__getitem__"):
        repair = "pass a list of its items" if isinstance(data, Iterable) else f"expected {ACCEPTED}"
        raise SourceError(f"cannot open an object of type {name}, which has no length or no positions; {repair}.")
    if not length:
        raise SourceError(f"the {name} of images is empty; expected at least one image.")
    return int(length)


def _open_items(items: Any, scheme: str, n_items: int, labeling: Labeling, read_options: ReadOptions) -> Source:
    """Open items that are images, pairs of image and label, or dicts; all images must be of one kind."""
    what = type(items).__name__ if scheme == "dataset" else "images"
    spec = f"{scheme}:{n_items} {what}"

    def read_item(index: int) -> Any:
        try:
            return _split_item(items[index], f"item {index} of {spec!r}")
        except SourceError:
            raise
        except Exception as error:  # whatever the user's data set raises
            raise SourceError(
                f"item {index} of {spec!r} cannot be read: {describe_error(error)}; repair it or remove it."
            ) from error

    kind = _find_image_kind(read_item(0)[0], 0, spec)
    paths, contents, labels = [], [], []
    for index in range(n_items):
        image, label = read_item(index)
        _check_same_kind(image, kind, index, spec)
        labels.append(label)
        if kind == "path":
            reject_url(path := os.fsdecode(image), f"item {index} of {spec!r}")
            paths.append(expand_path(path))
        else:
            contents.append(_summarize_image(image, kind, f"{index} of {spec}", read_options))
    found = _resolve_labels(labels, labeling.labels, spec)
    if kind == "path":
        ids = _make_path_ids(paths)
        return FileSource(
            f"{scheme}:{n_items} files", paths, ids, read_options, labels=found, class_names=labeling.class_names
        )
    return ItemSource(
        spec, lambda index: read_item(index)[0], kind, contents, read_options, found, labeling.class_names
    )


def _split_item(item: Any, where: str) -> tuple[Any, Any]:
    """Return the image and the label of an item; the label is None if it has none."""
    if isinstance(item, Mapping):
        image = next((item[key] for key in IMAGE_KEYS if key in item), None)
        if image is None:
            keys = ", ".join(map(str, item))[:80]
            raise SourceError(f"{where} has the keys {keys}; expected {' or '.join(map(repr, IMAGE_KEYS))} among them.")
        return image, next((item[key] for key in LABEL_KEYS if key in item), None)
    if isinstance(item, list | tuple):
        if len(item) not in (1, 2):
            raise SourceError(f"{where} has {len(item)} parts; expected an image, or a pair of image and label.")
        return item[0], item[1] if len(item) == 2 else None
    return item, None


def _find_image_kind(image: Any, index: int, spec: str) -> Kind:
    kind = find_kind(image)
    if kind is None:
        raise SourceError(f"image {index} of {spec!r} is of type {type(image).__name__}; expected {KINDS}.")
    return kind


def _check_same_kind(image: Any, kind: Kind, index: int, spec: str) -> None:
    found = _find_image_kind(image, index, spec)
    if found != kind:
        raise SourceError(
            f"image {index} of {spec!r} is given as {found}, but image 0 as {kind}; pass images of one kind."
        )


def _resolve_labels(labels: list[Any], given: ArrayLike | None, spec: str) -> ArrayLike | None:
    """Return the labels of the items, or else those that were passed."""
    missing = [index for index, label in enumerate(labels) if label is None]
    if len(missing) == len(labels):
        return given
    if given is not None:
        raise SourceError(f"labels= is given, but the items of {spec!r} have labels of their own; omit one of them.")
    if missing:
        raise SourceError(f"item {missing[0]} of {spec!r} has no label, but other items do; label all or none.")
    return [_unpack_label(label, index, spec) for index, label in enumerate(labels)]


def _unpack_label(label: Any, index: int, spec: str) -> int | str:
    """Return a label as an integer or a text; tensors and arrays of one number are accepted."""
    value = label.item() if hasattr(label, "item") and getattr(label, "ndim", 1) == 0 else label
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise SourceError(
            f"the label of item {index} of {spec!r} is {label!r:.60}; expected a class index or a class name."
        )
    return value


def _make_path_ids(paths: Sequence[Path]) -> list[str]:
    """Return the paths relative to the deepest folder that contains all: the names of files in one folder."""
    absolute = [Path(os.path.abspath(path)) for path in paths]  # noqa: PTH100 - links must not be resolved
    try:
        root = os.path.commonpath([path.parent for path in absolute])
    except ValueError:  # different drives
        return [path.as_posix() for path in absolute]
    return [path.relative_to(root).as_posix() for path in absolute]


@dataclass(frozen=True)
class ImageSummary:
    """The digest of an image in memory, its decoded size in bytes (0 if unknown) and its dtype (None if unknown)."""

    digest: bytes
    n_bytes: int = 0
    dtype: str | None = None


def _summarize_image(image: Any, kind: Kind, where: str, read_options: ReadOptions) -> ImageSummary:
    if kind == "bytes":
        return ImageSummary(hashlib.sha256(image).digest())
    try:
        pixels = read_image(image, where, max_pixels=read_options.max_pixels, max_bytes=read_options.max_bytes)
    except UnreadableImageError as error:
        return ImageSummary(error.reason.encode())
    return ImageSummary(hash_pixels(pixels), pixels.nbytes, str(pixels.dtype))


class ItemSource(Source):
    """Images of one kind that are returned by position, from a list or a data set.

    The items were read once to summarize them; an image that differs when it is read again is an error.
    """

    def __init__(
        self,
        spec: str,
        get_image: Callable[[int], Any],
        kind: Kind,
        summaries: Sequence[ImageSummary],
        read_options: ReadOptions,
        labels: ArrayLike | None,
        class_names: Iterable[str] | None,
    ) -> None:
        ids = default_ids(len(summaries))
        super().__init__(spec, ids, labels=labels, class_names=class_names, on_error=read_options.on_error)
        self.get_image = get_image
        self.kind = kind
        self.summaries = summaries
        self.max_pixels = read_options.max_pixels
        self.max_bytes = read_options.max_bytes
        # A list can be read by several threads, but a user's data set need not allow that.
        self.threads = DECODING_THREADS if kind == "bytes" and spec.startswith("list:") else 1
        self._check_dtypes()

    def _check_dtypes(self) -> None:
        dtypes = [(index, summary.dtype) for index, summary in enumerate(self.summaries) if summary.dtype is not None]
        for index, dtype in dtypes:
            if dtype != dtypes[0][1]:
                raise SourceError(
                    f"image {index} of {self.spec!r} is {dtype}, but image {dtypes[0][0]} is {dtypes[0][1]}; convert"
                    " all images to one dtype."
                )

    def read(self, index: int) -> Array:
        """Return one image, uint8, or float32 in [0, 1], [H, W, 1 or 3]."""
        return self._read(index, self.max_bytes)

    def read_within(self, index: int, max_bytes: int) -> Array:
        """Return one image, or raise `LargeImageError` if it takes more than `max_bytes`."""
        check_image_bytes(self.ids[index], self.summaries[index].n_bytes, max_bytes)
        return self._read(index, max_bytes)

    def _read(self, index: int, max_bytes: int) -> Array:
        where = f"{index} of {self.spec}"
        image = self.get_image(index)
        _check_same_kind(image, self.kind, index, self.spec)
        pixels = read_image(image, where, max_pixels=self.max_pixels, max_bytes=max_bytes)
        if self.kind == "bytes":
            return pixels
        if hash_pixels(pixels) != self.summaries[index].digest:
            raise SourceError(
                f"image {where} has other pixels than when it was first read; remove random transforms from the data"
                " set, because predictions must belong to fixed images."
            )
        return pixels.copy()

    def hash_content(self, index: int) -> bytes:
        """Return the sha256 of the pixels, or of an encoded image."""
        return self.summaries[index].digest


def stack_images(data: Any) -> Array:
    """Return images of any kind, all of the same size, as one array. -> uint8, or float32 in [0, 1], [N, H, W, 1 or 3]

    An array [N, H, W, 1 or 3] is returned as it is.
    """
    if isinstance(data, np.ndarray) and data.ndim == 4:
        return data
    source = data if isinstance(data, Source) else open_object(data, Labeling(), ReadOptions())
    block = source.read_block(range(len(source)))
    if block is not None:
        return block if isinstance(block, np.ndarray) else block.cpu().numpy()
    images = [source.read(index) for index in range(len(source))]
    for id_, image in zip(source.ids, images, strict=True):
        if image.shape != images[0].shape:
            raise SourceError(
                f"image {id_!r} of {source.spec!r} has shape {list(image.shape)}, but {source.ids[0]!r} has"
                f" {list(images[0].shape)}; resize them to one size."
            )
    return np.stack(images)
