"""Images in memory: one image of any kind, and sources of images, lists, columns, tensors and data sets."""

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from secondlook.arrays import Array, default_ids, validate_pixels
from secondlook.errors import ANY, Repair, SourceError, shorten_reason
from secondlook.sources.array_source import ArraySource, DeviceImages
from secondlook.sources.encoded_sources import EncodedSource, FileSource, Labeling, find_common_folder
from secondlook.sources.hugging_face import HuggingFaceSource
from secondlook.sources.image_files import convert_pillow_image, decode_image, read_image_file
from secondlook.sources.regular_files import make_absolute, reject_url
from secondlook.sources.source import (
    DECODING_THREADS,
    MAX_BYTES,
    UNREADABLE,
    ReadOptions,
    Source,
    UnreadableImageError,
    check_image_bytes,
    hash_pixels,
)
from secondlook.specs import Spec, expand_path

Kind = Literal["path", "bytes", "PIL image", "array", "tensor"]
KINDS = "a path, the bytes of an image file, a PIL image, a NumPy array [H, W, 1 or 3] or a torch tensor [C, H, W]"
ACCEPTED = f"a text like 'folder:val/', a Source, {KINDS}, a list of these, or a data set of torch or datasets"

IMAGE_KEYS = ("image", "pixel_values")
LABEL_KEYS = ("label", "labels")
MEMORY_SCHEMES = ("array", "list", "dataset")
"""Schemes of sources in memory; their specs are only names and cannot open the source again."""


def read_image(
    image: object,
    where: str | None = None,
    *,
    max_pixels: int = ReadOptions.max_pixels,
    max_bytes: int = MAX_BYTES,
    keep_16_bit: bool = False,
) -> Array:
    """Return one image as an array. -> uint8, or float32 in [0, 1], [H, W, 1 or 3]

    The image is a path, the bytes of an image file, a PIL image, a NumPy array [H, W, 1 or 3] (not copied), or a torch
    tensor [C, H, W]. Arrays and tensors may have a leading axis of length 1. `where` names the image in errors. The
    limits apply to image files and PIL images; with `keep_16_bit`, 16-bit gray pixels of these stay uint16 [H, W, 1].
    """
    value: Any = image
    kind = _check_kind(image, f"image {where}" if where else "the image")
    if kind == "path":
        path = os.fsdecode(value)
        content = read_image_file(expand_path(path), where or path, max_bytes)
        return decode_image(content, where or path, max_pixels, max_bytes, keep_16_bit=keep_16_bit)
    if kind == "bytes":
        return decode_image(bytes(value), where or "in memory", max_pixels, max_bytes, keep_16_bit=keep_16_bit)
    if kind == "PIL image":
        return convert_pillow_image(value, where or "in memory", max_pixels, max_bytes, keep_16_bit=keep_16_bit)
    name = f"image {where}" if where else f"the {kind}"
    pixels = _convert_tensor(value, name) if kind == "tensor" else value
    pixels = pixels[0] if pixels.ndim == 4 and len(pixels) == 1 else pixels
    return np.ascontiguousarray(validate_pixels(pixels, f"the pixels of {name}", SourceError, single=True))


def find_kind(image: object) -> Kind | None:
    """Return the kind of an image, or None for anything else, without importing a package."""
    if isinstance(image, str | os.PathLike):
        return "path"
    if isinstance(image, bytes | bytearray | memoryview):
        return "bytes"
    if isinstance(image, np.ndarray):
        return "array"
    if _is_instance(image, "PIL.Image", "Image"):
        return "PIL image"
    return "tensor" if _is_instance(image, "torch", "Tensor") else None


def _check_kind(image: object, name: str) -> Kind:
    kind = find_kind(image)
    if kind is None:
        raise SourceError(f"{name} is of type {type(image).__name__}; expected {KINDS}.")
    return kind


def _is_instance(value: object, module: str, name: str) -> bool:
    """Whether a value is an instance of a class of a module; False if the module is not loaded."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def is_on_accelerator(tensor: Any) -> bool:
    """Whether a tensor is in the memory of a GPU."""
    return bool(tensor.is_cuda)


def _convert_tensor(tensor: Any, name: str) -> Array:
    """Convert a torch tensor [..., C, H, W] to an array [..., H, W, C], without a copy if possible."""
    _check_tensor_shape(tensor, name)
    values = tensor.detach().cpu()
    array: Array = (values.float() if values.is_floating_point() else values).numpy()
    return np.moveaxis(array, -3, -1)


def _check_tensor_shape(tensor: Any, name: str) -> None:
    if tensor.ndim in (3, 4) and tensor.shape[-3] in (1, 3):
        return
    fault = f"{name} has shape {list(tensor.shape)}; expected [C, H, W] or [N, C, H, W] with 1 or 3 channels"
    if tensor.ndim in (3, 4) and tensor.shape[-1] in (1, 3):
        axes = (2, 0, 1) if tensor.ndim == 3 else (0, 3, 1, 2)
        raise SourceError(fault, repair=f"the channels seem to come last: pass it with permute{axes}")
    raise SourceError(f"{fault}.")


def open_object(data: Any, labeling: Labeling, read_options: ReadOptions) -> Source:
    """Open images in memory, or a list of paths."""
    data = _unwrap_loader(data) if _is_instance(data, "torch.utils.data", "DataLoader") else data
    if _is_instance(data, "datasets", "Dataset"):  # images are read as stored, without its format
        return HuggingFaceSource(Spec("dataset", f"{len(data)} rows"), data.with_format(None), read_options, labeling)
    if _is_instance(data, "torch", "Tensor"):
        if is_on_accelerator(data):
            _check_tensor_shape(data, "the tensor")
            data = DeviceImages(data[None] if data.ndim == 3 else data)
        else:
            data = _convert_tensor(data, "the tensor")
    if isinstance(data, DeviceImages) or (isinstance(data, np.ndarray) and data.dtype.kind not in "OU"):
        images: Any = data
        images = images[None] if len(images.shape) == 3 and images.shape[2] in (1, 3) else images
        labels, class_names = labeling.labels, labeling.class_names
        return ArraySource(images, labels=labels, class_names=class_names, on_error=read_options.on_error)
    if find_kind(data) in ("path", "bytes", "PIL image"):
        data = [data]
    if isinstance(data, np.ndarray) or _is_instance(data, "pandas", "Series"):
        data = data.tolist()
    return _open_items(data, _check_length(data), labeling, read_options)


def _unwrap_loader(loader: Any) -> Any:
    """Return the data set of a DataLoader, if the loader yields all items, in any order and batch size."""
    from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

    if _is_instance(loader.dataset, "torch.utils.data", "IterableDataset"):
        return loader.dataset
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    is_shuffled = isinstance(sampler, RandomSampler) and not sampler.replacement
    is_complete = is_shuffled and sampler.num_samples == len(loader.dataset)
    is_usual = type(loader.batch_sampler) in (BatchSampler, type(None))
    if not is_usual or not (isinstance(sampler, SequentialSampler) or is_complete):
        fault = f"the DataLoader has a custom sampler ({type(sampler).__name__})"
        repair = "pass a torch.utils.data.Subset of its data set, or the data set itself"
        raise SourceError(f"{fault}, so its images have no stable ids", repair=repair)
    return loader.dataset


def _check_length(data: Any) -> int:
    """Return the number of items of an object with `__len__` and `__getitem__`."""
    name = type(data).__name__
    if isinstance(data, Mapping):
        keys = ", ".join(map(str, data))[:80]
        raise SourceError(f"cannot open a {name} with the keys {keys}; pass one of its values.")
    if _is_instance(data, "pandas", "DataFrame"):
        repair = Repair("pass its column of paths, for example frame['path'], and {labels}", labels=ANY)
        raise SourceError("cannot open a DataFrame", repair=repair)
    try:
        length = len(data)
    except (TypeError, NotImplementedError):
        length = None
    if length is None or not hasattr(data, "__getitem__"):
        advice = "pass a list of its items" if isinstance(data, Iterable) else f"expected {ACCEPTED}"
        raise SourceError(f"cannot open an object of type {name}, which has no length or no indexing; {advice}.")
    if not length:
        raise SourceError(f"the {name} of images is empty; expected at least one image.")
    return int(length)


def _open_items(items: Any, n_items: int, labeling: Labeling, read_options: ReadOptions) -> Source:
    """Open items: images, pairs of image and label, or dicts. All images must be of one kind."""
    is_list = isinstance(items, list | tuple)
    scheme = "list" if is_list else "dataset"
    spec = f"{scheme}:{n_items} {'images' if is_list else type(items).__name__}"

    def read_item(index: int) -> Any:
        try:
            return _split_item(items[index], f"item {index} of {spec!r}")
        except SourceError:
            raise
        except Exception as error:  # a user's data set may raise anything
            fault = f"item {index} of {spec!r} cannot be read: {shorten_reason(error)}"
            raise SourceError(fault, repair="repair it or remove it") from error

    def read_one(index: int) -> Any:
        return read_item(index)[0]

    kind = _check_kind(read_one(0), f"image 0 of {spec!r}")
    paths, summaries, labels = [], [], []
    for index in range(n_items):
        image, label = read_item(index)
        _check_same_kind(image, kind, index, spec)
        labels.append(label)
        if kind == "path":
            reject_url(path := os.fsdecode(image), f"item {index} of {spec!r}")
            paths.append(expand_path(path))
        else:
            summaries.append(_summarize_image(image, kind, f"{index} of {spec}", read_options))
    labeling = Labeling(_resolve_labels(labels, labeling.labels, spec), labeling.class_names)
    if kind != "path":
        return ItemSource(spec, read_one, kind, summaries, read_options, labeling)
    absolute = [make_absolute(path) for path in paths]
    root = find_common_folder(absolute)
    ids = [(path if root is None else path.relative_to(root)).as_posix() for path in absolute]
    return FileSource(f"{scheme}:{n_items} files", paths, ids, read_options, labeling)


def _split_item(item: Any, where: str) -> tuple[Any, Any]:
    """Return the image and the label of an item, or None for the label."""
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


def _check_same_kind(image: Any, kind: Kind, index: int, spec: str) -> None:
    name = f"image {index} of {spec!r}"
    found = _check_kind(image, name)
    if found != kind:
        raise SourceError(f"{name} is given as {found}, but image 0 as {kind}; pass images of one kind.")


def _resolve_labels(labels: list[Any], given: ArrayLike | None, spec: str) -> ArrayLike | None:
    """Return the labels of the items, as integers or texts, or else the labels `given`."""
    missing = [index for index, label in enumerate(labels) if label is None]
    if len(missing) == len(labels):
        return given
    if given is not None:
        fault = f"is given, but the items of {spec!r} have labels, too"
        raise SourceError(fault, argument="labels", repair="omit one of them")
    if missing:
        raise SourceError(f"item {missing[0]} of {spec!r} has no label, but other items do; label all or none.")
    values = [label.item() if getattr(label, "ndim", 1) == 0 else label for label in labels]
    for index, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int | str):
            fault = f"the label of item {index} of {spec!r} is {labels[index]!r:.60}"
            raise SourceError(f"{fault}; expected a class index or a class name.")
    return values


class ImageSummary(NamedTuple):
    """The digest of an image in memory, its decoded size in bytes (0 if unknown) and its dtype (None if unknown)."""

    digest: bytes
    n_bytes: int = 0
    dtype: str | None = None


def _summarize_image(image: Any, kind: Kind, where: str, read_options: ReadOptions) -> ImageSummary:
    if kind == "bytes":
        return ImageSummary(hashlib.sha256(image).digest())
    try:
        pixels = read_image(image, where, max_pixels=read_options.max_pixels, max_bytes=read_options.max_bytes)
    except UnreadableImageError:
        return ImageSummary(UNREADABLE)
    return ImageSummary(hash_pixels(pixels), pixels.nbytes, str(pixels.dtype))


class ItemSource(EncodedSource):
    """Images of one kind from a list or a data set; an image that changed since its summary is an error."""

    def __init__(
        self,
        spec: str,
        get_image: Callable[[int], Any],
        kind: Kind,
        summaries: Sequence[ImageSummary],
        read_options: ReadOptions,
        labeling: Labeling,
    ) -> None:
        super().__init__(spec, default_ids(len(summaries)), read_options, labeling)
        self.get_image = get_image
        self.kind = kind
        self.summaries = summaries
        # A list can be read by several threads, but a user's data set need not allow that.
        self.threads = DECODING_THREADS if kind == "bytes" and spec.startswith("list:") else 1
        known = [(index, summary.dtype) for index, summary in enumerate(summaries) if summary.dtype is not None]
        for index, dtype in known:
            if dtype != known[0][1]:
                fault = f"image {index} of {spec!r} is {dtype}, but image {known[0][0]} is {known[0][1]}"
                raise SourceError(fault, repair="convert all images to one dtype")

    def _read_encoded(self, index: int) -> bytes:
        return bytes(self._get_image(index))

    def _name_image(self, index: int) -> str:
        return f"{index} of {self.spec}"

    def read_within(self, index: int, max_bytes: int) -> Array:
        """Return one image of at most `max_bytes`. -> uint8, or float32 in [0, 1], [H, W, 1 or 3]"""
        if self.kind == "bytes":
            return super().read_within(index, max_bytes)
        check_image_bytes(self.ids[index], "it takes", self.summaries[index].n_bytes, max_bytes)
        where = self._name_image(index)
        pixels = read_image(self._get_image(index), where, max_pixels=self.max_pixels, max_bytes=max_bytes)
        if hash_pixels(pixels) != self.summaries[index].digest:
            repair = "remove random transforms from the data set: predictions need fixed images"
            raise SourceError(f"the pixels of image {where} have changed since it was first read", repair=repair)
        return pixels.copy()

    def hash_content(self, index: int) -> bytes:
        """Return the sha256 of the pixels, or of an encoded image."""
        return self.summaries[index].digest

    def _get_image(self, index: int) -> Any:
        image = self.get_image(index)
        _check_same_kind(image, self.kind, index, self.spec)
        return image
