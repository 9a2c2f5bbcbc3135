"""The classifiers of the experiments: what stands for each where the user says nothing, and what the user may say."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from reproduction.needed import NeededFile
from secondlook.errors import ExperimentError
from secondlook.registry import did_you_mean

Options = tuple[tuple[str, object], ...]

TOML_FORM = """[{key}]
spec = "onnx:FILE.onnx"        # or torch:, torchvision:, hf:, function:, ...
output = "logits"              # or "probabilities"
mean = [0.5, 0.5, 0.5]         # as in training; with std, for pixels in [0, 1]
std = [0.5, 0.5, 0.5]"""
"""What a user writes for a classifier."""

NAME_FORM = 'add name = "..." below [{key}] in the TOML file, another one whenever the function changes'
"""What a user writes for a function, which has no file to recognize it by."""


@dataclass(frozen=True)
class ClassifierPlan:
    """A classifier by its key: what the paper used, and the spec that stands for it unless the user names another.

    `{root}` in the spec is the folder that holds `file`, found in the first of `folders` below the data root.
    `layer` is the layer of a torch classifier whose activations the distance method reads.
    """

    key: str
    title: str
    spec: str | None = None
    options: Options = ()
    file: NeededFile | None = None
    folders: tuple[str, ...] = ("",)
    layer: str | None = None

    def root(self, data_root: Path) -> Path:
        """Return the folder that holds the file, or the one where it should be."""
        candidates = [data_root / folder for folder in self.folders]
        file = self.file
        return next((root for root in candidates if file is not None and file.is_below(root)), candidates[0])


def _resnet(name: str, accuracy: str, size: str) -> ClassifierPlan:
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    origin = (
        f"weights of akamaster/pytorch_resnet_cifar10 as ONNX, input normalized outside, logits (accuracy {accuracy})"
    )
    return _onnx(f"cifar10-{name}", name, f"{name}.onnx", size, origin, mean, std, "cifar10")


def _wide_resnet(name: str, training: str) -> ClassifierPlan:
    mean, std = (0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.262)
    origin = f"Wide-ResNet-16-2 trained {training}, as examples/train_wide_resnet.py exports it"
    return _onnx(f"wrn-{name}", f"WRN-16-2 {name}", f"wrn16-2-{name}.onnx", "2.8 MB", origin, mean, std, "cifar10-jpeg")


def _onnx(
    key: str,
    title: str,
    file: str,
    size: str,
    origin: str,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    folder: str,
) -> ClassifierPlan:
    options = (("output", "logits"), ("mean", mean), ("std", std))
    return ClassifierPlan(
        key, title, f"onnx:{{root}}/{file}", options, NeededFile(file, size, origin), folders=("", folder)
    )


CLASSIFIERS = {
    plan.key: plan
    for plan in (
        ClassifierPlan("cifar10-vgg8", "VGG-8 for CIFAR-10"),
        ClassifierPlan("cifar100-vgg8", "VGG-8 for CIFAR-100"),
        ClassifierPlan("svhn-vgg8", "VGG-8 for SVHN"),
        ClassifierPlan("imagenet-alexnet", "AlexNet", "torchvision:alexnet?weights=IMAGENET1K_V1"),
        ClassifierPlan("imagenet-resnet18", "ResNet18", "torchvision:resnet18?weights=IMAGENET1K_V1"),
        ClassifierPlan("imagenet-resnext", "ResNeXt", "torchvision:resnext101_32x8d?weights=IMAGENET1K_V1"),
        ClassifierPlan("stl10-elu", "ELU network for STL-10 shrunk to 32x32"),
        ClassifierPlan("stl10-wrn-noflip", "Wide-ResNet for STL-10 trained without flips"),
        *(
            ClassifierPlan(f"stl10-wrn-{seed}", f"Wide-ResNet for STL-10 trained with flips, seed {seed}")
            for seed in range(5)
        ),
        _resnet("resnet20", "0.9173", "1.1 MB"),
        _resnet("resnet32", "0.9263", "1.9 MB"),
        _resnet("resnet56", "0.9339", "3.4 MB"),
        *(_wide_resnet(f"seed{seed}", f"with crops and flips, seed {seed}") for seed in range(5)),
        _wide_resnet("noflip", "with crops only"),
        _wide_resnet("noaug", "with neither crops nor flips"),
    )
}


def read_classifiers(path: Path) -> dict[str, ClassifierPlan]:
    """Read which classifier stands for which key: a TOML table per key with `spec`, and options of load_classifier."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ExperimentError(f"classifiers file {str(path)!r} cannot be read: {error}; expected TOML.") from error
    return {key: _plan_of(key, table, path) for key, table in content.items()}


def _plan_of(key: str, table: object, path: Path) -> ClassifierPlan:
    if key not in CLASSIFIERS:
        raise ExperimentError(
            f"{str(path)!r} names the classifier {key!r}, which no experiment has; there are: "
            f"{', '.join(CLASSIFIERS)}.{did_you_mean(key, CLASSIFIERS)}"
        )
    if not isinstance(table, Mapping) or not isinstance(table.get("spec"), str):
        raise ExperimentError(
            f'[{key}] in {str(path)!r} has no text spec; write for example spec = "onnx:FILE.onnx" below [{key}].'
        )
    options = {name: _frozen(value) for name, value in table.items() if name not in ("spec", "layer")}
    return ClassifierPlan(key, CLASSIFIERS[key].title, table["spec"], tuple(options.items()), layer=table.get("layer"))


def _frozen(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value
