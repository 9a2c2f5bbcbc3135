"""Image classifiers of Hugging Face transformers, with the preprocessing of their image processor."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from secondlook.classifiers.classifier import Classifier, check_regular_file, reject_failures
from secondlook.classifiers.loading import LoadOptions, model_scheme
from secondlook.classifiers.preprocessing import Preprocessing, Size
from secondlook.classifiers.torch_model import make_placement, wrap_module
from secondlook.errors import ClassifierError
from secondlook.imports import import_extra

MIN_SQUASHED_SIDE = 384
"""From this side on, a ConvNeXT processor resizes the whole image to the square instead of cropping."""

INTERPOLATIONS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
"""Names of Pillow's resampling constants."""


@model_scheme(
    "hf",
    form="hf:NAME_OR_DIR",
    summary="Hugging Face transformers image classifier, with its image processor",
    extra="hf",
    describes_itself=True,
)
def open_transformers(
    location: str,
    options: LoadOptions,
    *,
    revision: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    channels_last: bool | None = None,
    compile: bool = False,  # noqa: A002 - as in torch
    cuda_graphs: bool = False,
    trust_remote_code: bool = False,
) -> Classifier:
    """Open a model by its name on the Hub or by the folder it was saved in.

    Parameters
    ----------
    location
        Name on the Hub, or path of a folder.
    options
        Options common to all model schemes.
    revision
        Branch, tag or commit on the Hub.
    device, dtype, channels_last, compile, cuda_graphs
        As for a torch model.
    trust_remote_code
        Run the Python code that the model comes with; by default such a model is rejected. Pickled weights are loaded
        as data in either case.
    """
    _check_folder(Path(location), options.spec)
    with reject_failures(
        f"cannot load {options.spec!r} as an image classifier with an image processor", "check the name or folder."
    ):
        model, processor = _load_pretrained(location, options.spec, revision, trust_remote_code)
        preprocessing = parse_processor(processor.to_dict(), options.spec)
        if not options.changed_settings:
            _check_processor(processor, preprocessing, options.spec)
        class_names = _parse_class_names(model.config.id2label)
    return wrap_module(
        model,
        options,
        preprocessing,
        make_placement(device, dtype, channels_last, compile, cuda_graphs),
        output=options.expect_output("logits"),
        class_names=class_names,
    )


def _check_folder(folder: Path, spec: str) -> None:
    """Raise for a folder with a pipe or a device in it, which transformers might read without end."""
    if folder.is_dir():
        for file in folder.iterdir():
            if file.exists() and not file.is_dir():
                check_regular_file(file, f"file {file.name!r} of {spec!r}")


def _load_pretrained(location: str, spec: str, revision: str | None, trust_remote_code: bool) -> tuple[Any, Any]:
    transformers = import_extra("transformers", feature=repr(spec), extra="hf")
    # Without a value, transformers asks on stdin whether to run the code.
    settings = {"trust_remote_code": trust_remote_code, **({} if revision is None else {"revision": revision})}
    try:
        processor = transformers.AutoImageProcessor.from_pretrained(location, **settings)
        model, loading_info = transformers.AutoModelForImageClassification.from_pretrained(
            location, output_loading_info=True, weights_only=True, **settings
        )
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise ClassifierError(
            f"{spec!r} comes with Python code, which is not run; "
            "pass trust_remote_code=True if you have read the code and trust it (in a spec: ?trust_remote_code=true)."
        ) from error
    if loading_info["missing_keys"]:
        raise ClassifierError(
            f"{spec!r} has no weights for {sorted(loading_info['missing_keys'])[:3]}, which would be random; "
            "use a model that was trained for image classification."
        )
    return model, processor


def parse_processor(settings: Mapping[str, Any], spec: str) -> Preprocessing:
    """Return the preprocessing equal to the settings of an image processor."""
    if settings.get("do_pad"):
        raise ClassifierError(
            f"the image processor of {spec!r} pads images (do_pad), which is not supported; export the model to ONNX."
        )
    resize, crop = _parse_resize_and_crop(settings, spec)
    mean, std = _parse_mean_and_std(settings)
    return Preprocessing(
        resize=resize,
        crop=crop,
        crop_rounding="down",
        interpolation=_parse_interpolation(settings.get("resample"), spec),
        channels=3,
        scale=float(settings.get("rescale_factor") or 1 / 255) if settings.get("do_rescale") else 1.0,
        mean=mean,
        std=std,
        color="BGR" if settings.get("do_flip_channel_order") else "RGB",
    )


def _parse_resize_and_crop(settings: Mapping[str, Any], spec: str) -> tuple[int | Size | None, Size | None]:
    resize = _parse_size(settings.get("size"), "size", spec) if settings.get("do_resize") else None
    crop = _parse_size(settings.get("crop_size"), "crop_size", spec) if settings.get("do_center_crop") else None
    if settings.get("crop_pct") and isinstance(resize, int):
        square = (resize, resize)
        return (square, None) if resize >= MIN_SQUASHED_SIDE else (int(resize / settings["crop_pct"]), square)
    return resize, (crop, crop) if isinstance(crop, int) else crop


def _parse_size(size: Any, name: str, spec: str) -> int | Size:
    """Return (height, width) or the shorter side, from the ways an image processor writes a size."""
    if isinstance(size, int):
        return size, size
    known = {key: value for key, value in dict(size or {}).items() if value is not None}
    if set(known) == {"height", "width"}:
        return int(known["height"]), int(known["width"])
    if set(known) == {"shortest_edge"}:
        return int(known["shortest_edge"])
    raise ClassifierError(
        f"the image processor of {spec!r} has {name}={known}, which is not supported; "
        "expected height and width, or shortest_edge: export the model to ONNX."
    )


def _parse_mean_and_std(settings: Mapping[str, Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and std, including the offset and the second division of EfficientNet processors."""
    normalizes = settings.get("do_normalize")
    mean = np.atleast_1d(np.array(settings["image_mean"] if normalizes else 0.0))
    std = np.atleast_1d(np.array(settings["image_std"] if normalizes else 1.0))
    mean = mean + (1.0 if settings.get("rescale_offset") else 0.0)
    std = std * np.array(settings["image_std"]) if settings.get("include_top") else std
    return tuple(mean.tolist()), tuple(std.tolist())


def _parse_interpolation(resample: Any, spec: str) -> Any:
    name = INTERPOLATIONS.get(int(resample)) if resample is not None else "bilinear"
    if name is None:
        raise ClassifierError(
            f"the image processor of {spec!r} has an unknown interpolation, resample={resample!r}; "
            f"expected one of {', '.join(map(str, INTERPOLATIONS))}."
        )
    return name


def _check_processor(processor: Any, preprocessing: Preprocessing, spec: str) -> None:
    """Compare with the image processor on one noise image: some do more than their settings describe."""
    probe = np.random.default_rng(0).integers(0, 256, (281, 353, 3), dtype=np.uint8)
    theirs = np.asarray(processor(images=[probe], return_tensors="pt")["pixel_values"])
    ours = preprocessing.normalize(preprocessing.fit([probe]))
    if theirs.shape == ours.shape:
        gray_level = preprocessing.scale / max(preprocessing.std)
        # Two implementations of the same interpolation differ by the rounding of a gray level.
        if np.abs(theirs - ours).mean() <= gray_level:
            return
    raise ClassifierError(
        f"the image processor of {spec!r} ({type(processor).__name__}) does more than its settings describe, so its "
        "preprocessing cannot be reproduced; pass resize=, crop=, mean= and std=."
    )


def _parse_class_names(id2label: Mapping[int, str]) -> tuple[str, ...] | None:
    """Return the class names, or None for the placeholders LABEL_0, LABEL_1, ..."""
    names = tuple(str(id2label[index]) for index in sorted(id2label))
    return None if names == tuple(f"LABEL_{index}" for index in range(len(names))) else names
