"""Pretrained models of timm and torchvision, with the preprocessing of their weights."""

import importlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from secondlook.classifiers.classifier import Classifier, reject_failures
from secondlook.classifiers.loading import LoadOptions, model_scheme
from secondlook.classifiers.preprocessing import Preprocessing, Size
from secondlook.classifiers.torch_model import (
    force_weights_only,
    load_weights,
    make_placement,
    require_torch,
    wrap_module,
)
from secondlook.errors import ClassifierError
from secondlook.registry import did_you_mean

DEFAULT_WEIGHTS = "DEFAULT"

INPUT_TRANSFORMING_MODELS = ("googlenet", "inception_v3")
"""torchvision models that transform their input, depending on which weights are loaded."""


@model_scheme(
    "timm",
    form="timm:NAME",
    summary="timm model with pretrained weights and their preprocessing, or with weights=FILE",
    extra="torch",
    describes_itself=True,
)
def open_timm(
    location: str,
    options: LoadOptions,
    *,
    weights: str = DEFAULT_WEIGHTS,
    n_classes: int | None = None,
    device: str | None = None,
    dtype: str | None = None,
    channels_last: bool | None = None,
    compile: bool = False,  # noqa: A002 - as in torch
    cuda_graphs: bool = False,
) -> Classifier:
    """Open a timm model.

    Parameters
    ----------
    location
        Name of the model, optionally with the tag of its weights (`resnet50.a1_in1k`), or `hf-hub:ORG/NAME`.
    options
        Options common to all model schemes.
    weights
        'DEFAULT' for the pretrained weights, or a safetensors file or state dict.
    n_classes
        Number of classes of the weights in the file, if it differs from the pretrained weights.
    device, dtype, channels_last, compile, cuda_graphs
        As for a torch model.
    """
    timm = _import_package("timm", "timm.data", options.spec)
    pretrained = weights == DEFAULT_WEIGHTS
    model = _create_timm_model(timm, location, options.spec, pretrained=pretrained, n_classes=n_classes)
    if not pretrained:
        load_weights(model, Path(weights), options.spec)
    return wrap_module(
        model,
        options,
        _parse_data_config(timm.data.resolve_model_data_config(model), options.spec),
        make_placement(device, dtype, channels_last, compile, cuda_graphs),
        output=options.expect_output("logits"),
    )


def _create_timm_model(timm: Any, name: str, spec: str, *, pretrained: bool, n_classes: int | None) -> Any:
    if ":" not in name and not timm.is_model(name):
        hint = did_you_mean(name.partition(".")[0], timm.list_models())
        raise ClassifierError(f"{spec!r} is not a timm model; timm.list_models() lists all models.{hint}")
    with reject_failures(f"cannot create {spec!r}", "without a network pass weights=FILE."), force_weights_only():
        return timm.create_model(name, pretrained=pretrained, **_head_options(n_classes))


def _parse_data_config(config: Mapping[str, Any], spec: str) -> Preprocessing:
    """Return the evaluation preprocessing of a resolved data configuration of timm."""
    channels, height, width = config["input_size"]
    return Preprocessing(
        resize=_compute_resize(config, (height, width), spec),
        crop=(height, width),
        interpolation=config["interpolation"],
        channels=channels,
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
    )


def _compute_resize(config: Mapping[str, Any], size: Size, spec: str) -> int | Size:
    """Return the size to which timm resizes before cropping: the input size divided by `crop_pct`."""
    height, width = (math.floor(side / float(config["crop_pct"])) for side in size)
    mode = config.get("crop_mode") or "center"
    if mode == "squash":
        return height, width
    if mode == "center" and height == width:
        return height
    raise ClassifierError(
        f"the preprocessing of {spec!r} (crop_mode={mode!r}, input {size[0]} x {size[1]}) is not supported; "
        "pass resize= and crop= with 'torch:timm:create_model', or export the model to ONNX."
    )


@model_scheme(
    "torchvision",
    form="torchvision:NAME",
    summary="torchvision model with pretrained weights and their preprocessing, or with weights=FILE",
    extra="torch",
    describes_itself=True,
)
def open_torchvision(
    location: str,
    options: LoadOptions,
    *,
    weights: str = DEFAULT_WEIGHTS,
    n_classes: int | None = None,
    device: str | None = None,
    dtype: str | None = None,
    channels_last: bool | None = None,
    compile: bool = False,  # noqa: A002 - as in torch
    cuda_graphs: bool = False,
) -> Classifier:
    """Open a torchvision model.

    Parameters
    ----------
    location
        Name of the model, such as `resnet50`.
    options
        Options common to all model schemes.
    weights
        'DEFAULT' or the name of other pretrained weights (`IMAGENET1K_V1`), or a safetensors file or state dict.
    n_classes
        Number of classes of the weights in the file, if it differs from the pretrained weights.
    device, dtype, channels_last, compile, cuda_graphs
        As for a torch model.
    """
    models = _import_package("torchvision", "torchvision.models", options.spec).models
    entries = _get_published_weights(models, location, options.spec)
    pretrained = weights in entries.__members__
    entry = entries[weights if pretrained else DEFAULT_WEIGHTS]
    if pretrained:
        model = models.get_model(location, weights=entry)
    else:
        _check_weights_file(location, weights, list(entries.__members__), options.spec)
        model = models.get_model(location, weights=None, **_head_options(n_classes))
        load_weights(model, Path(weights), options.spec)
    return wrap_module(
        model,
        options,
        _parse_transforms(entry.transforms(), options.spec),
        make_placement(device, dtype, channels_last, compile, cuda_graphs),
        output=options.expect_output("logits"),
        class_names=tuple(entry.meta["categories"]) if pretrained else None,
    )


def _get_published_weights(models: Any, name: str, spec: str) -> Any:
    names = models.list_models(module=models)
    if name not in names:
        raise ClassifierError(
            f"{spec!r} is not an image classifier of torchvision; "
            f"torchvision.models.list_models() lists all models.{did_you_mean(name, names)}"
        )
    return models.get_model_weights(name)


def _check_weights_file(name: str, file: str, published: list[str], spec: str) -> None:
    if not Path(file).is_file():
        raise ClassifierError(
            f"weights={file!r} of {spec!r} is neither a file nor published; published: {', '.join(published)}."
        )
    if name in INPUT_TRANSFORMING_MODELS:
        raise ClassifierError(
            f"{spec!r} transforms its input depending on the weights, so weights=FILE is not supported; "
            "create it in a function and pass 'torch:package.module:factory'."
        )


def _parse_transforms(transforms: Any, spec: str) -> Preprocessing:
    """Return the preprocessing equal to the transforms of pretrained torchvision weights."""
    for attribute in ("resize_size", "crop_size", "mean", "std", "interpolation"):
        if not hasattr(transforms, attribute):
            raise ClassifierError(
                f"the transforms of {spec!r} ({type(transforms).__name__}) have no {attribute}; "
                "expected those of an image classifier."
            )
    return Preprocessing(
        resize=_parse_side_or_size(transforms.resize_size),
        crop=_parse_side_or_size(transforms.crop_size),
        interpolation=transforms.interpolation.value,
        channels=3,
        mean=tuple(transforms.mean),
        std=tuple(transforms.std),
    )


def _parse_side_or_size(value: Any) -> int | Size:
    """Return the side of [256] or 256, or the (height, width) of a pair."""
    sides = [value] if isinstance(value, int) else list(value)
    return int(sides[0]) if len(sides) == 1 else (int(sides[0]), int(sides[1]))


def _head_options(n_classes: int | None) -> dict[str, int]:
    return {} if n_classes is None else {"num_classes": n_classes}


def _import_package(package: str, submodule: str, spec: str) -> Any:
    """Import a package that no extra installs, because its build has to match that of torch."""
    require_torch()
    try:
        imported = importlib.import_module(package)
        importlib.import_module(submodule)
    except (ImportError, RuntimeError) as error:
        raise ClassifierError(
            f"{spec!r} needs {package!r}, which cannot be imported. "
            f"Install the version that matches your torch: pip install {package}"
        ) from error
    return imported
