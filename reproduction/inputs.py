"""Inputs of the experiments: data sets, classifiers and their files, and instructions for missing inputs."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from reproduction import archives  # noqa: F401 - registers the sources of the data sets
from reproduction.experiment import ReproductionError, TitledRecord
from secondlook.registry import Registry

# --- Required files, and missing items ---


@dataclass(frozen=True)
class RequiredFile:
    """A file or folder below the data root: its path, size and origin, and other paths that are accepted."""

    path: str
    size: str
    origin: str
    alternatives: tuple[str, ...] = ()

    def exists_in(self, root: Path) -> bool:
        """Return whether the file exists at one of its paths."""
        return any((root / path).exists() for path in (self.path, *self.alternatives))

    def instruction(self, root: Path) -> str:
        """Return the location and the origin of the file."""
        return f"put {root / self.path} ({self.size}): {self.origin}"


@dataclass(frozen=True)
class MissingItem:
    """Something that an experiment could not use or compute: its name, the reason, and how to provide it."""

    name: str
    reason: str
    instructions: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [line for instruction in self.instructions for line in instruction.splitlines()]
        return "\n".join([f"- {self.name}: {self.reason}", *("    " + line for line in lines)])


def format_missing(missing: tuple[MissingItem, ...]) -> str:
    """Return the list of missing items without duplicates, or "" if nothing is missing."""
    return "\n".join(["Missing:", *map(str, dict.fromkeys(missing))]) if missing else ""


# --- Data sets ---


@dataclass(frozen=True)
class DataSet(TitledRecord):
    """A data set below the data root.

    Attributes
    ----------
    spec
        Spec of the source, with `{root}` for the folder.
    files
        Files that the folder must contain.
    images
        Number of images in the official files.
    experimental
        Number of experimental images; the others are for evaluation.
    folders
        Where the folder may be below the data root, the preferred place first.
    training
        Spec of the training images, for methods that need them.
    """

    spec: str
    files: tuple[RequiredFile, ...]
    images: int
    experimental: int
    folders: tuple[str, ...] = ("",)
    training: str | None = None

    def find_root(self, data_root: Path) -> Path:
        """Return the first folder that contains all files, or the preferred one if none does."""
        return _find_root(data_root, self.folders, self.files)

    def count_experimental(self, images: int) -> int:
        """Return the number of experimental images; a shortened data set keeps the proportion."""
        return self.experimental if images == self.images else max(1, round(images * self.experimental / self.images))


def _find_root(data_root: Path, folders: tuple[str, ...], files: tuple[RequiredFile, ...]) -> Path:
    candidates = [data_root / folder for folder in folders]
    return next((root for root in candidates if all(file.exists_in(root) for file in files)), candidates[0])


_CIFAR_PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
_STL10_ORIGIN = "from stl10_binary.tar.gz (2.6 GB), https://cs.stanford.edu/~acoates/stl10/"

DATA_SETS: Registry[DataSet] = Registry("data set", ReproductionError)

for _data_set in (
    DataSet(
        "cifar10",
        "CIFAR-10",
        "cifar10:{root}",
        (
            RequiredFile(
                "cifar-10-batches-py/test_batch",
                "31 MB",
                f"from cifar-10-python.tar.gz (170 MB), {_CIFAR_PAGE}",
                ("test_batch",),
            ),
            RequiredFile("cifar-10-batches-py/batches.meta", "158 bytes", "from the same archive", ("batches.meta",)),
        ),
        images=10_000,
        experimental=1_000,
    ),
    DataSet(
        "cifar100",
        "CIFAR-100",
        "cifar100:{root}",
        (
            RequiredFile(
                "cifar-100-python/test",
                "31 MB",
                f"from cifar-100-python.tar.gz (169 MB), {_CIFAR_PAGE}",
                ("test",),
            ),
            RequiredFile("cifar-100-python/meta", "2 kB", "from the same archive", ("meta",)),
        ),
        images=10_000,
        experimental=1_000,
    ),
    DataSet(
        "svhn",
        "SVHN",
        "svhn:{root}",
        (
            RequiredFile(
                "svhn/test_32x32.mat",
                "64 MB",
                "cropped digits (format 2), http://ufldl.stanford.edu/housenumbers/test_32x32.mat",
                ("SVHN/test_32x32.mat", "test_32x32.mat"),
            ),
        ),
        images=26_032,
        experimental=3_254,
    ),
    DataSet(
        "stl10",
        "STL-10",
        "stl10:{root}",
        (
            RequiredFile("stl10_binary/test_X.bin", "221 MB", _STL10_ORIGIN, ("test_X.bin",)),
            RequiredFile("stl10_binary/test_y.bin", "8 kB", "from the same archive", ("test_y.bin",)),
            RequiredFile("stl10_binary/class_names.txt", "66 bytes", "from the same archive", ("class_names.txt",)),
        ),
        images=8_000,
        experimental=1_000,
        training="stl10:{root}?split=train",
    ),
    DataSet(
        "imagenet",
        "ImageNet",
        "imagenet:{root}",
        (
            RequiredFile(
                "ILSVRC2012_img_val",
                "50,000 images, 6.7 GB",
                "unpack ILSVRC2012_img_val.tar there, https://image-net.org (needs an account)",
                ("val", "validation"),
            ),
            RequiredFile(
                "ILSVRC2012_devkit_t12",
                "2.6 MB packed",
                "unpack ILSVRC2012_devkit_t12.tar.gz there (not needed with a folder per synset)",
                ("devkit",),
            ),
        ),
        images=50_000,
        experimental=1_000,
        folders=("imagenet", ""),
    ),
    DataSet(
        "cifar10-npz",
        "CIFAR-10",
        "npz:{root}/test.npz",
        (
            RequiredFile(
                "test.npz",
                "28 MB",
                "the 10,000 CIFAR-10 test images as NumPy arrays: images uint8 [N, 32, 32, 3], labels, class_names",
            ),
        ),
        images=10_000,
        experimental=2_000,
        folders=("", "cifar10"),
    ),
    DataSet(
        "cifar10-jpeg",
        "CIFAR-10, strongly compressed",
        "folder:{root}/test",
        (RequiredFile("test", "10,000 files, 9 MB", "the CIFAR-10 test images as test/CLASS/NAME.jpg"),),
        images=10_000,
        experimental=5_000,
        folders=("", "cifar10-jpeg"),
    ),
):
    DATA_SETS.add(_data_set)


# --- Classifiers ---

TOML_EXAMPLE = """[{name}]
spec = "onnx:FILE.onnx"        # or torch:, torchvision:, hf:, function:, ...
output = "logits"              # or "probabilities"
mean = [0.5, 0.5, 0.5]         # as in training; with std, for pixels in [0, 1]
std = [0.5, 0.5, 0.5]"""
"""An entry of the classifiers file."""

NAME_INSTRUCTION = 'add name = "..." below [{name}] in the TOML file, and change it whenever the function changes'
"""A function has no file with a digest."""


@dataclass(frozen=True)
class ClassifierRecord(TitledRecord):
    """A named classifier of columns, and its default spec.

    `{root}` in the spec is the first of `folders` below the data root that contains `file`. The distance method uses
    the activations of `layer` of a torch classifier.
    """

    spec: str | None = None
    options: tuple[tuple[str, object], ...] = ()
    file: RequiredFile | None = None
    folders: tuple[str, ...] = ("",)
    layer: str | None = None

    def find_root(self, data_root: Path) -> Path:
        """Return the first folder that contains the file, or the preferred one if none does."""
        return _find_root(data_root, self.folders, () if self.file is None else (self.file,))


def _resnet(name: str, accuracy: str, size: str) -> ClassifierRecord:
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    origin = f"weights of akamaster/pytorch_resnet_cifar10 as ONNX, logits, without normalization (accuracy {accuracy})"
    return _onnx(f"cifar10-{name}", name, f"{name}.onnx", size, origin, mean, std, "cifar10")


def _wide_resnet(name: str, training: str) -> ClassifierRecord:
    mean, std = (0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.262)
    origin = f"Wide-ResNet-16-2 trained {training}, exported by examples/train_wide_resnet.py"
    return _onnx(f"wrn-{name}", f"WRN-16-2 {name}", f"wrn16-2-{name}.onnx", "2.8 MB", origin, mean, std, "cifar10-jpeg")


def _onnx(
    name: str,
    title: str,
    file: str,
    size: str,
    origin: str,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    folder: str,
) -> ClassifierRecord:
    options = (("output", "logits"), ("mean", mean), ("std", std))
    required = RequiredFile(file, size, origin)
    return ClassifierRecord(name, title, f"onnx:{{root}}/{file}", options, required, folders=("", folder))


CLASSIFIERS: Registry[ClassifierRecord] = Registry("classifier", ReproductionError)

for _classifier in (
    ClassifierRecord("cifar10-vgg8", "VGG-8 for CIFAR-10"),
    ClassifierRecord("cifar100-vgg8", "VGG-8 for CIFAR-100"),
    ClassifierRecord("svhn-vgg8", "VGG-8 for SVHN"),
    ClassifierRecord("imagenet-alexnet", "AlexNet", "torchvision:alexnet?weights=IMAGENET1K_V1"),
    ClassifierRecord("imagenet-resnet18", "ResNet18", "torchvision:resnet18?weights=IMAGENET1K_V1"),
    ClassifierRecord("imagenet-resnext", "ResNeXt", "torchvision:resnext101_32x8d?weights=IMAGENET1K_V1"),
    ClassifierRecord("stl10-elu", "ELU network for STL-10 resized to 32x32"),
    ClassifierRecord("stl10-wrn-noflip", "Wide-ResNet for STL-10 trained without flips"),
    *(
        ClassifierRecord(f"stl10-wrn-{seed}", f"Wide-ResNet for STL-10 trained with flips, seed {seed}")
        for seed in range(5)
    ),
    _resnet("resnet20", "0.9173", "1.1 MB"),
    _resnet("resnet32", "0.9263", "1.9 MB"),
    _resnet("resnet56", "0.9339", "3.4 MB"),
    *(_wide_resnet(f"seed{seed}", f"with crops and flips, seed {seed}") for seed in range(5)),
    _wide_resnet("noflip", "with crops only"),
    _wide_resnet("noaug", "with neither crops nor flips"),
):
    CLASSIFIERS.add(_classifier)


def read_classifiers(path: Path) -> dict[str, ClassifierRecord]:
    """Read the classifiers of a TOML file: one table per name, with `spec` and options of `load_classifier`."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ReproductionError(f"cannot read the classifiers file {str(path)!r}: {error}; expected TOML.") from error
    return {name: _parse_classifier(name, table, path) for name, table in content.items()}


def _parse_classifier(name: str, table: object, path: Path) -> ClassifierRecord:
    default = CLASSIFIERS.find(name, where=f" in {str(path)!r}")
    if not isinstance(table, Mapping) or not isinstance(table.get("spec"), str):
        raise ReproductionError(
            f'[{name}] in {str(path)!r} has no spec; add a line like spec = "onnx:FILE.onnx" below [{name}].'
        )
    options = {key: _as_tuple(value) for key, value in table.items() if key not in ("spec", "layer")}
    return ClassifierRecord(name, default.title, table["spec"], tuple(options.items()), layer=table.get("layer"))


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value
