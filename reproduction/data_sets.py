"""The data sets of the experiments: which official files they are, where they lie, and how they are split."""

from dataclasses import dataclass
from pathlib import Path

from reproduction.needed import NeededFile


@dataclass(frozen=True)
class DataSet:
    """A data set below the data root.

    Attributes
    ----------
    spec
        Text of the source, with `{root}` for the folder.
    folders
        Where below the data root that folder may be; the first is where it should be.
    files
        What must lie in the folder.
    images
        How many images the official files hold.
    experimental
        How many of them are the experimental part; the rest is for evaluation.
    training
        Text of the source of training images, for the methods that need them.
    """

    key: str
    title: str
    spec: str
    files: tuple[NeededFile, ...]
    images: int
    experimental: int
    folders: tuple[str, ...] = ("",)
    training: str | None = None
    note: str = ""

    def root(self, data_root: Path) -> Path:
        """Return the folder of the files: the first that holds all of them, or else the one where they should be."""
        candidates = [data_root / folder for folder in self.folders]
        found = (root for root in candidates if all(file.is_below(root) for file in self.files))
        return next(found, candidates[0])

    def experimental_images(self, images: int) -> int:
        """Return the size of the experimental part; of a data set cut short, the same share."""
        return self.experimental if images == self.images else max(1, round(images * self.experimental / self.images))


SVHN_NOTE = (
    "The released code shifts SVHN's labels by one, so that every image of the digit 0 counts as an error: the "
    "checkpoint's accuracy is 0.960, and 0.960 x (1 - 1744/26032) = 0.896 is what the paper prints. The published "
    "column, its set of views and its gain (+14.85) are artefacts of these labels. Ours has the right labels; "
    "MSR(digits) is the set that a user should take."
)

_CIFAR_PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
_STL10_ORIGIN = "from stl10_binary.tar.gz (2.6 GB), https://cs.stanford.edu/~acoates/stl10/"

DATA_SETS = {
    data_set.key: data_set
    for data_set in (
        DataSet(
            "cifar10",
            "CIFAR-10",
            "cifar10:{root}",
            (
                NeededFile(
                    "cifar-10-batches-py/test_batch",
                    "31 MB",
                    f"from cifar-10-python.tar.gz (170 MB), {_CIFAR_PAGE}",
                    ("test_batch",),
                ),
                NeededFile("cifar-10-batches-py/batches.meta", "158 bytes", "from the same archive", ("batches.meta",)),
            ),
            images=10_000,
            experimental=1_000,
        ),
        DataSet(
            "cifar100",
            "CIFAR-100",
            "cifar100:{root}",
            (
                NeededFile(
                    "cifar-100-python/test",
                    "31 MB",
                    f"from cifar-100-python.tar.gz (169 MB), {_CIFAR_PAGE}",
                    ("test",),
                ),
                NeededFile("cifar-100-python/meta", "2 kB", "from the same archive", ("meta",)),
            ),
            images=10_000,
            experimental=1_000,
        ),
        DataSet(
            "svhn",
            "SVHN",
            "svhn:{root}",
            (
                NeededFile(
                    "svhn/test_32x32.mat",
                    "64 MB",
                    "cropped digits (format 2), http://ufldl.stanford.edu/housenumbers/test_32x32.mat",
                    ("SVHN/test_32x32.mat", "test_32x32.mat"),
                ),
            ),
            images=26_032,
            experimental=3_254,
            note=SVHN_NOTE,
        ),
        DataSet(
            "stl10",
            "STL-10",
            "stl10:{root}",
            (
                NeededFile("stl10_binary/test_X.bin", "221 MB", _STL10_ORIGIN, ("test_X.bin",)),
                NeededFile("stl10_binary/test_y.bin", "8 kB", "from the same archive", ("test_y.bin",)),
                NeededFile("stl10_binary/class_names.txt", "66 bytes", "from the same archive", ("class_names.txt",)),
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
                NeededFile(
                    "ILSVRC2012_img_val",
                    "50,000 images, 6.7 GB",
                    "unpack ILSVRC2012_img_val.tar there, https://image-net.org (needs an account)",
                    ("val", "validation"),
                ),
                NeededFile(
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
                NeededFile(
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
            (NeededFile("test", "10,000 files, 9 MB", "the CIFAR-10 test images as test/CLASS/NAME.jpg"),),
            images=10_000,
            experimental=5_000,
            folders=("", "cifar10-jpeg"),
        ),
    )
}
