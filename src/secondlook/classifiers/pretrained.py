"""Pretrained models of timm, torchvision and Hugging Face transformers, with the preprocessing of their weights."""

import importlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from secondlook.classifiers.classifier import Classifier, check_regular_file
from secondlook.classifiers.loading import LoadOptions, model_scheme
from secondlook.classifiers.preprocessing import Preprocessing, Size
from secondlook.classifiers.torch_model import (
    Placement,
    check_placement,
    force_weights_only,
    load_weights,
    wrap_module,
)
from secondlook.errors import ANY, ClassifierError, Repair, reject_failures
from secondlook.imports import import_extra
from secondlook.registry import did_you_mean

DEFAULT_WEIGHTS = "DEFAULT"

INTERPOLATIONS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
"""Names of Pillow's resampling constants."""


@model_scheme(
    "timm",
    form="timm:NAME",
    summary="timm model with pretrained weights and their preprocessing, or with ?weights=FILE",
    extra="torch",
    describes_itself=True,
)
def open_timm(
    location: str,
    options: LoadOptions,
    *,
    weights: str = DEFAULT_WEIGHTS,
    n_classes: int | None = None,
    **placement: Unpack[Placement],
) -> Classifier:
    """Open a timm model by its name (`resnet50.a1_in1k`) or `hf-hub:ORG/NAME`."""
    check_placement(placement)
    timm = _import_package("timm", "timm.data", options.spec)
    if ":" not in location and not timm.is_model(location):
        hint = did_you_mean(location.partition(".")[0], timm.list_models())
        raise ClassifierError(f"{options.spec!r} is not a timm model; timm.list_models() lists all models.{hint}")
    pretrained, head = weights == DEFAULT_WEIGHTS, {} if n_classes is None else {"num_classes": n_classes}
    repair = "if you are offline, pass a file of weights."
    with reject_failures(f"cannot create {options.spec!r}", repair), force_weights_only():
        model = timm.create_model(location, pretrained=pretrained, **head)
    if not pretrained:
        load_weights(model, Path(weights), options.spec)
    preprocessing = _parse_data_config(timm.data.resolve_model_data_config(model), options.spec)
    return wrap_module(model, options, placement, preprocessing=preprocessing, output=options.expect_output("logits"))


def _parse_data_config(config: Mapping[str, Any], spec: str) -> Preprocessing:
    """Return the evaluation preprocessing of a resolved data configuration of timm."""
    channels, height, width = config["input_size"]
    resize: Any = tuple(math.floor(side / float(config["crop_pct"])) for side in (height, width))
    mode = config.get("crop_mode") or "center"
    if mode == "center" and height == width:
        resize = resize[0]
    elif mode != "squash":
        fault = f"the preprocessing of {spec!r} (crop_mode={mode!r}, input {height} x {width}) is not supported"
        text = "pass {resize} and {crop} with 'torch:timm:create_model', or export the model to ONNX"
        raise ClassifierError(fault, repair=Repair(text, resize=ANY, crop=ANY))
    return Preprocessing(
        resize=resize,
        crop=(height, width),
        interpolation=config["interpolation"],
        channels=channels,
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
    )


@model_scheme(
    "torchvision",
    form="torchvision:NAME",
    summary="torchvision model with pretrained weights and their preprocessing, or with ?weights=FILE",
    extra="torch",
    describes_itself=True,
)
def open_torchvision(
    location: str,
    options: LoadOptions,
    *,
    weights: str = DEFAULT_WEIGHTS,
    n_classes: int | None = None,
    **placement: Unpack[Placement],
) -> Classifier:
    """Open a torchvision model by its name."""
    check_placement(placement)
    spec = options.spec
    models = _import_package("torchvision", "torchvision.models", spec).models
    names = models.list_models(module=models)
    if location not in names:
        hint = f"torchvision.models.list_models() lists all models.{did_you_mean(location, names)}"
        raise ClassifierError(f"{spec!r} is not an image classifier of torchvision; {hint}")
    published = models.get_model_weights(location).__members__
    entry = published.get(weights, published[DEFAULT_WEIGHTS])
    if weights in published:
        model = models.get_model(location, weights=entry)
    else:
        if not Path(weights).is_file():
            fault = f"of {spec!r} is neither a file nor published; published: {', '.join(published)}"
            raise ClassifierError(fault, argument="weights", value=weights)
        if location in ("googlenet", "inception_v3"):
            fault = f"the input transform of {spec!r} depends on the weights, so a file of weights is not supported"
            raise ClassifierError(fault, repair="create it in a function and pass 'torch:package.module:factory'")
        model = models.get_model(location, weights=None, **({} if n_classes is None else {"num_classes": n_classes}))
        load_weights(model, Path(weights), spec)
    transforms = entry.transforms()
    with reject_failures(f"{spec!r} does not have the transforms of an image classifier", "use another model."):
        preprocessing = Preprocessing(
            resize=_parse_side_or_size(transforms.resize_size),
            crop=_parse_side_or_size(transforms.crop_size),
            interpolation=transforms.interpolation.value,
            channels=3,
            mean=tuple(transforms.mean),
            std=tuple(transforms.std),
        )
    class_names = tuple(entry.meta["categories"]) if weights in published else None
    described: dict[str, Any] = {"output": options.expect_output("logits"), "class_names": class_names}
    return wrap_module(model, options, placement, preprocessing=preprocessing, **described)


def _parse_side_or_size(value: Any) -> int | Size:
    """Return the side of [256] or 256, or the (height, width) of a pair."""
    sides = [value] if isinstance(value, int) else list(value)
    return int(sides[0]) if len(sides) == 1 else (int(sides[0]), int(sides[1]))


def _import_package(package: str, submodule: str, spec: str) -> Any:
    """Import a package that is not part of an extra, because its build must match torch."""
    try:
        importlib.import_module(submodule)
        return importlib.import_module(package)
    except (ImportError, RuntimeError) as error:
        fault, repair = f"{spec!r} needs {package!r}, which cannot be imported", f"pip install {package}"
        raise ClassifierError(fault, repair=f"install the version that matches your torch: {repair}") from error


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
    trust_remote_code: bool = False,
    **placement: Unpack[Placement],
) -> Classifier:
    """Open a model by its name on the Hub or by its folder.

    Its Python code runs only with `trust_remote_code`; pickled weights are always loaded as data.
    """
    spec, folder = options.spec, Path(location)
    for file in folder.iterdir() if folder.is_dir() else ():
        if file.exists() and not file.is_dir():  # reading a pipe or a device may never end
            check_regular_file(file, f"file {file.name!r} of {spec!r}")
    problem = f"cannot load {spec!r} as an image classifier with an image processor"
    with reject_failures(problem, "check the name or folder."):
        model, processor = _load_pretrained(location, spec, revision, trust_remote_code)
        preprocessing = parse_processor(processor.to_dict(), spec)
        if not options.changed_settings:
            _check_processor(processor, preprocessing, spec)
        names = tuple(str(name) for _, name in sorted(model.config.id2label.items()))
    check_placement(placement)
    is_placeholder = names == tuple(f"LABEL_{index}" for index in range(len(names)))
    output, class_names = options.expect_output("logits"), None if is_placeholder else names
    described: dict[str, Any] = {"preprocessing": preprocessing, "output": output, "class_names": class_names}
    return wrap_module(model, options, placement, **described)


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
        repair = Repair("pass {trust_remote_code} if you have read the code and trust it", trust_remote_code=True)
        raise ClassifierError(f"{spec!r} comes with Python code, which is not run", repair=repair) from error
    if loading_info["missing_keys"]:
        fault = f"{spec!r} has no weights for {sorted(loading_info['missing_keys'])[:3]}; they would be random"
        raise ClassifierError(fault, repair="use a model that was trained for image classification")
    return model, processor


def parse_processor(settings: Mapping[str, Any], spec: str) -> Preprocessing:
    """Convert the settings of an image processor to preprocessing."""
    if settings.get("do_pad"):
        fault = f"the image processor of {spec!r} pads images (do_pad), which is not supported"
        raise ClassifierError(fault, repair="export the model to ONNX")
    resample = settings.get("resample")
    interpolation: Any = "bilinear" if resample is None else INTERPOLATIONS.get(int(resample))
    if interpolation is None:
        known = ", ".join(map(str, INTERPOLATIONS))
        raise ClassifierError(f"the image processor of {spec!r} has resample={resample!r}; expected one of {known}.")
    resize = _parse_sides(settings.get("size"), "size", spec) if settings.get("do_resize") else None
    crop = _parse_sides(settings.get("crop_size"), "crop_size", spec) if settings.get("do_center_crop") else None
    if settings.get("crop_pct") and isinstance(resize, int):
        square = (resize, resize)
        is_squashed = resize >= 384  # from here on, a ConvNeXT processor resizes to the square instead of cropping
        resize, crop = (square, None) if is_squashed else (int(resize / settings["crop_pct"]), square)
    mean, std = _parse_mean_and_std(settings)
    return Preprocessing(
        resize=resize,
        crop=crop,
        crop_rounding="down",
        interpolation=interpolation,
        channels=3,
        scale=float(settings.get("rescale_factor") or 1 / 255) if settings.get("do_rescale") else 1.0,
        mean=mean,
        std=std,
        color="BGR" if settings.get("do_flip_channel_order") else "RGB",
    )


def _parse_sides(size: Any, name: str, spec: str) -> int | Size:
    """Parse the size of an image processor as (height, width) or the shorter side."""
    if isinstance(size, int):
        return size, size
    known = {key: value for key, value in dict(size or {}).items() if value is not None}
    if set(known) == {"height", "width"}:
        return int(known["height"]), int(known["width"])
    if set(known) == {"shortest_edge"}:
        return int(known["shortest_edge"])
    fault = f"the image processor of {spec!r} has {name}={known}; expected height and width, or shortest_edge"
    raise ClassifierError(fault, repair="export the model to ONNX")


def _parse_mean_and_std(settings: Mapping[str, Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and std, including the offset and the second division of EfficientNet processors."""
    normalizes = settings.get("do_normalize")
    mean = np.atleast_1d(np.array(settings["image_mean"] if normalizes else 0.0))
    std = np.atleast_1d(np.array(settings["image_std"] if normalizes else 1.0))
    mean = mean + (1.0 if settings.get("rescale_offset") else 0.0)
    std = std * np.array(settings["image_std"]) if settings.get("include_top") else std
    return tuple(mean.tolist()), tuple(std.tolist())


def _check_processor(processor: Any, preprocessing: Preprocessing, spec: str) -> None:
    """Compare with the image processor on one noise image: some do more than their settings say."""
    probe = np.random.default_rng(0).integers(0, 256, (281, 353, 3), dtype=np.uint8)
    theirs = np.asarray(processor(images=[probe], return_tensors="pt")["pixel_values"])
    ours = preprocessing.normalize(preprocessing.fit([probe]))
    # Implementations of the same interpolation differ by the rounding of a gray level.
    gray_level = preprocessing.scale / max(preprocessing.std)
    if theirs.shape == ours.shape and np.abs(theirs - ours).mean() <= gray_level:
        return
    fault = f"the image processor of {spec!r} ({type(processor).__name__}) does more than its settings describe"
    repair = Repair("pass {resize}, {crop}, {mean} and {std}", resize=ANY, crop=ANY, mean=ANY, std=ANY)
    raise ClassifierError(fault, repair=repair)
