"""Image classifiers of Hugging Face transformers, with the preprocessing of their own processor."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from secondlook.classifiers.classifier import Classifier
from secondlook.classifiers.geometry import INTERPOLATIONS, Size
from secondlook.classifiers.preprocessing import Preprocessing
from secondlook.classifiers.schemes import LoadOptions, model_scheme
from secondlook.classifiers.torch_model import classifier_of
from secondlook.errors import ClassifierError, MissingExtraError

WARPED_FROM = 384
"""From this side on a ConvNeXT processor squeezes the whole image into the square instead of cropping."""

PILLOW_NUMBERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}


@model_scheme(
    "hf",
    form="hf:NAME_OR_DIR",
    says="Hugging Face transformers image classifier, with its own processor",
    extra="hf",
)
def open_huggingface(
    target: str,
    statement: LoadOptions,
    *,
    revision: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    channels_last: bool = False,
) -> Classifier:
    """Open a model by its name on the hub or by the folder it was saved in; no code from there is run."""
    model, processor = _from_pretrained(target, statement.spec, revision)
    preprocessing = preprocessing_of(processor.to_dict(), statement.spec)
    if not statement.given_settings:
        _check_against(processor, preprocessing, statement.spec)
    stated = dataclasses.replace(statement, output=statement.known_output("logits"))
    return classifier_of(
        model,
        stated,
        preprocessing,
        device=device,
        dtype=dtype,
        channels_last=channels_last,
        own=False,
        class_names=_class_names(model.config.id2label),
    )


def _from_pretrained(target: str, spec: str, revision: str | None) -> tuple[Any, Any]:
    try:
        from transformers import AutoImageProcessor, AutoModelForImageClassification
    except ImportError as error:
        raise MissingExtraError(f"{spec!r}", "transformers", "hf") from error
    where = {} if revision is None else {"revision": revision}
    try:
        processor = AutoImageProcessor.from_pretrained(target, **where)  # type: ignore[no-untyped-call]
        model, loading = AutoModelForImageClassification.from_pretrained(target, output_loading_info=True, **where)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ClassifierError(
            f"{spec!r} cannot be loaded as an image classifier with its processor: {reason}; check the name or folder."
        ) from error
    if loading["missing_keys"]:
        raise ClassifierError(
            f"{spec!r} has no weights for {sorted(loading['missing_keys'])[:3]}, which would be left random; "
            "use a model that was trained to classify images."
        )
    return model, processor


def preprocessing_of(settings: Mapping[str, Any], spec: str) -> Preprocessing:
    """Return our preprocessing for the settings of a processor, or say which one cannot be expressed."""
    if settings.get("do_pad"):
        raise ClassifierError(
            f"the processor of {spec!r} pads images (do_pad), which is not supported; export to ONNX."
        )
    resize, crop = _resize_and_crop(settings, spec)
    mean, std = _mean_and_std(settings)
    return Preprocessing(
        resize=resize,
        crop=crop,
        crop_rounding="down",
        interpolation=_interpolation(settings.get("resample"), spec),
        channels=3,
        scale=float(settings.get("rescale_factor") or 1 / 255) if settings.get("do_rescale") else 1.0,
        mean=mean,
        std=std,
        color="BGR" if settings.get("do_flip_channel_order") else "RGB",
    )


def _resize_and_crop(settings: Mapping[str, Any], spec: str) -> tuple[int | Size | None, Size | None]:
    resize = _side_or_size(settings.get("size"), "size", spec) if settings.get("do_resize") else None
    crop = _side_or_size(settings.get("crop_size"), "crop_size", spec) if settings.get("do_center_crop") else None
    if settings.get("crop_pct") and isinstance(resize, int):
        square = (resize, resize)
        return (square, None) if resize >= WARPED_FROM else (int(resize / settings["crop_pct"]), square)
    return resize, (crop, crop) if isinstance(crop, int) else crop


def _side_or_size(size: Any, name: str, spec: str) -> int | Size:
    """Return (height, width), or the shorter side, of what a processor calls a size."""
    if isinstance(size, int):
        return size, size
    known = {key: value for key, value in dict(size or {}).items() if value is not None}
    if set(known) == {"height", "width"}:
        return int(known["height"]), int(known["width"])
    if set(known) == {"shortest_edge"}:
        return int(known["shortest_edge"])
    raise ClassifierError(
        f"the processor of {spec!r} has {name}={known}, which is not supported; "
        "it must hold height and width, or the shortest edge."
    )


def _mean_and_std(settings: Mapping[str, Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std, with the offset and the second division that EfficientNet processors add."""
    normalizes = settings.get("do_normalize")
    mean = np.atleast_1d(np.array(settings["image_mean"] if normalizes else 0.0))
    std = np.atleast_1d(np.array(settings["image_std"] if normalizes else 1.0))
    mean = mean + (1.0 if settings.get("rescale_offset") else 0.0)
    std = std * np.array(settings["image_std"]) if settings.get("include_top") else std
    return tuple(mean.tolist()), tuple(std.tolist())


def _interpolation(resample: Any, spec: str) -> Any:
    name = PILLOW_NUMBERS.get(int(resample)) if resample is not None else "bilinear"
    if name not in INTERPOLATIONS:
        raise ClassifierError(
            f"the processor of {spec!r} has resample={resample!r}, which is not a known interpolation."
        )
    return name


def _check_against(processor: Any, preprocessing: Preprocessing, spec: str) -> None:
    """Compare with the processor itself on one noisy image: some compute what their settings do not say."""
    probe = np.random.default_rng(0).integers(0, 256, (281, 353, 3), dtype=np.uint8)
    theirs = np.asarray(processor(images=[probe], return_tensors="pt")["pixel_values"])
    ours = preprocessing.normalize(preprocessing.fit([probe]))
    if theirs.shape == ours.shape:
        level = preprocessing.scale / max(preprocessing.std)
        # Two implementations of one interpolation differ by the rounding of a gray level.
        if np.abs(theirs - ours).mean() <= level:
            return
    raise ClassifierError(
        f"the processor of {spec!r} ({type(processor).__name__}) does more than its settings say, so its preprocessing "
        "cannot be taken over; give resize=, crop=, mean= and std= yourself."
    )


def _class_names(id2label: Mapping[int, str]) -> tuple[str, ...] | None:
    """Names of the classes, unless they are the placeholders LABEL_0, LABEL_1, ..."""
    names = tuple(str(id2label[index]) for index in sorted(id2label))
    return None if names == tuple(f"LABEL_{index}" for index in range(len(names))) else names
