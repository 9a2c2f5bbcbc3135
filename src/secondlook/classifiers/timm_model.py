"""Models of timm, with the preprocessing that belongs to their weights."""

import dataclasses
import math
from collections.abc import Mapping
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

OWN_WEIGHTS = "DEFAULT"


@model_scheme(
    "timm",
    form="timm:NAME",
    says="model of timm with its own weights and preprocessing, or with weights=FILE",
    extra="torch",
)
def open_timm(
    target: str,
    statement: LoadOptions,
    *,
    weights: str = OWN_WEIGHTS,
    n_classes: int | None = None,
    device: str | None = None,
    dtype: str | None = None,
    channels_last: bool = False,
) -> Classifier:
    """Open a model of timm.

    Parameters
    ----------
    target
        Name of the model, with the tag of its weights where wanted (`resnet50.a1_in1k`), or `hf-hub:ORG/NAME`.
    statement
        What the user states.
    weights
        'DEFAULT' for the published weights, or a safetensors file or state dict.
    n_classes
        Number of classes where the weights of the file differ in it from the published ones.
    device, dtype, channels_last
        As for a torch model.
    """
    timm = _timm(statement.spec)
    model = _created(timm, target, statement.spec, pretrained=weights == OWN_WEIGHTS, n_classes=n_classes)
    if weights != OWN_WEIGHTS:
        torch_files.load_weights(model, Path(weights), statement.spec)
    preprocessing = preprocessing_of(timm.data.resolve_model_data_config(model), statement.spec)
    stated = dataclasses.replace(statement, output=statement.known_output("logits"))
    return classifier_of(
        model, stated, preprocessing, device=device, dtype=dtype, channels_last=channels_last, own=False
    )


def _timm(spec: str) -> Any:
    require_torch()
    try:
        import timm
        import timm.data
    except (ImportError, RuntimeError) as error:
        raise ClassifierError(
            f"{spec!r} needs 'timm', which does not import. Install it with: pip install timm"
        ) from error
    return timm


def _created(timm: Any, name: str, spec: str, *, pretrained: bool, n_classes: int | None) -> Any:
    if ":" not in name and not timm.is_model(name):
        hint = did_you_mean(name.partition(".")[0], timm.list_models())
        raise ClassifierError(f"{spec!r} is not a model of timm; timm.list_models() gives all.{hint}")
    options = {} if n_classes is None else {"num_classes": n_classes}
    try:
        return timm.create_model(name, pretrained=pretrained, **options)
    except (RuntimeError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ClassifierError(
            f"{spec!r} cannot be created: {reason}; where there is no network, pass weights=FILE."
        ) from error


def preprocessing_of(config: Mapping[str, Any], spec: str) -> Preprocessing:
    """Return the evaluation preprocessing of a resolved data configuration of timm."""
    channels, height, width = config["input_size"]
    return Preprocessing(
        resize=_resize(config, (height, width), spec),
        crop=(height, width),
        interpolation=config["interpolation"],
        channels=channels,
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
    )


def _resize(config: Mapping[str, Any], size: Size, spec: str) -> int | Size:
    """Return what timm resizes to before it crops: the input size divided by `crop_pct`."""
    height, width = (math.floor(side / float(config["crop_pct"])) for side in size)
    mode = config.get("crop_mode") or "center"
    if mode == "squash":
        return height, width
    if mode == "center" and height == width:
        return height
    raise ClassifierError(
        f"the preprocessing of {spec!r} (crop_mode={mode!r}, input {size[0]} x {size[1]}) is not supported; "
        "give resize= and crop= yourself with 'torch:timm:create_model' or export the model to ONNX."
    )
