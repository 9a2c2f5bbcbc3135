"""Models of torchvision, with the preprocessing that belongs to their weights."""

import dataclasses
from pathlib import Path
from typing import Any

from secondlook.classifiers import torch_files
from secondlook.classifiers.classifier import Classifier
from secondlook.classifiers.geometry import Size
from secondlook.classifiers.preprocessing import Preprocessing
from secondlook.classifiers.schemes import LoadOptions, model_scheme
from secondlook.classifiers.torch_model import classifier_of, require_torch
from secondlook.errors import ClassifierError
from secondlook.registry import did_you_mean

NORMALIZING_INSIDE = ("googlenet", "inception_v3")
"""Models that change their input depending on whose weights they carry."""


@model_scheme(
    "torchvision",
    form="torchvision:NAME",
    says="model of torchvision with its own weights and preprocessing, or with weights=FILE",
    extra="torch",
)
def open_torchvision(
    target: str,
    statement: LoadOptions,
    *,
    weights: str = "DEFAULT",
    n_classes: int | None = None,
    device: str | None = None,
    dtype: str | None = None,
    channels_last: bool = False,
) -> Classifier:
    """Open a model of torchvision.

    Parameters
    ----------
    target
        Name of the model, such as `resnet50`.
    statement
        What the user states.
    weights
        'DEFAULT' or another name of published weights (`IMAGENET1K_V1`), or a safetensors file or state dict.
    n_classes
        Number of classes where the weights of the file differ in it from the published ones.
    device, dtype, channels_last
        As for a torch model.
    """
    models = _torchvision_models(statement.spec)
    entries = _published_weights(models, target, statement.spec)
    own = weights in entries.__members__
    entry = entries[weights] if own else entries["DEFAULT"]
    if own:
        model = models.get_model(target, weights=entry)
    else:
        model = _with_file(models, target, weights, n_classes, list(entries.__members__), statement.spec)
    stated = dataclasses.replace(statement, output=statement.known_output("logits"))
    return classifier_of(
        model,
        stated,
        preprocessing_of(entry.transforms(), statement.spec),
        device=device,
        dtype=dtype,
        channels_last=channels_last,
        own=False,
        class_names=tuple(entry.meta["categories"]) if own else None,
    )


def _torchvision_models(spec: str) -> Any:
    require_torch()
    try:
        from torchvision import models
    except (ImportError, RuntimeError) as error:
        raise ClassifierError(
            f"{spec!r} needs 'torchvision', which does not import. "
            "Install the one that belongs to your torch: pip install torchvision"
        ) from error
    return models


def _published_weights(models: Any, name: str, spec: str) -> Any:
    names = models.list_models(module=models)
    if name not in names:
        raise ClassifierError(
            f"{spec!r} is not an image classifier of torchvision; "
            f"torchvision.models.list_models() gives all.{did_you_mean(name, names)}"
        )
    return models.get_model_weights(name)


def _with_file(models: Any, name: str, file: str, n_classes: int | None, published: list[str], spec: str) -> Any:
    if not Path(file).is_file():
        raise ClassifierError(
            f"weights={file!r} of {spec!r} is neither a file nor published; published: {', '.join(published)}."
        )
    if name in NORMALIZING_INSIDE:
        raise ClassifierError(
            f"{spec!r} changes its input depending on whose weights it carries, so weights=FILE is not supported; "
            "make it in a function of your own: 'torch:package.module:factory'."
        )
    options = {} if n_classes is None else {"num_classes": n_classes}
    model = models.get_model(name, weights=None, **options)
    torch_files.load_weights(model, Path(file), spec)
    return model


def preprocessing_of(transforms: Any, spec: str) -> Preprocessing:
    """Return the preprocessing of torchvision's own transforms for a set of weights."""
    parts = ("resize_size", "crop_size", "mean", "std", "interpolation")
    lacking = [part for part in parts if not hasattr(transforms, part)]
    if lacking:
        raise ClassifierError(
            f"the transforms of {spec!r} ({type(transforms).__name__}) have no {lacking[0]}, so they are "
            "not those of an image classifier."
        )
    crop = _side_or_size(transforms.crop_size)
    return Preprocessing(
        resize=_side_or_size(transforms.resize_size),
        crop=crop,
        interpolation=transforms.interpolation.value,
        channels=3,
        mean=tuple(transforms.mean),
        std=tuple(transforms.std),
    )


def _side_or_size(value: Any) -> int | Size:
    """Return the one side of [256] or 256, or the (height, width) of a pair."""
    sides = [value] if isinstance(value, int) else list(value)
    return int(sides[0]) if len(sides) == 1 else (int(sides[0]), int(sides[1]))
