"""Images in memory, lists of paths and data sets of other libraries as sources."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from secondlook.arrays import Array
from secondlook.errors import SourceError
from secondlook.sources import Source, object_sources, open_source
from secondlook.views import apply_views
from tests.sources.conftest import labels_of, png_bytes, random_images, read_all, write_png

torch = pytest.importorskip("torch")
from torch.utils import data as torch_data  # noqa: E402

IMAGES = random_images(6)
TENSOR = torch.from_numpy(np.ascontiguousarray(IMAGES.transpose(0, 3, 1, 2)))
LABELS = [0, 1, 2, 2, 1, 0]


def write_files(folder: Path) -> list[Path]:
    for number, image in enumerate(IMAGES):
        write_png(folder / f"{number}.png", image)
    return [folder / f"{number}.png" for number in range(len(IMAGES))]


class Pictures(torch_data.Dataset[Any]):
    """A map-style data set whose items are made by a function of the position."""

    def __init__(self, make_item: Callable[[int], Any], length: int = 6) -> None:
        self.make_item, self.length = make_item, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.make_item(index)


def make_series(values: list[Any]) -> Any:
    return pytest.importorskip("pandas").Series(values)


def make_hub_data(folder: Path, **columns: Any) -> Any:
    datasets = pytest.importorskip("datasets")
    content = {"image": [{"path": str(path), "bytes": None} for path in write_files(folder)], **columns}
    features = datasets.Features({name: datasets.Value("int64") for name in content} | {"image": datasets.Image()})
    return datasets.Dataset.from_dict(content, features=features)


SEVERAL: dict[str, Callable[[Path], Any]] = {
    "array": lambda _: IMAGES,
    "tensor": lambda _: TENSOR,
    "list of arrays": lambda _: list(IMAGES),
    "tuple of arrays": lambda _: tuple(IMAGES),
    "list of tensors": lambda _: list(TENSOR),
    "list of PIL images": lambda _: [Image.fromarray(image) for image in IMAGES],
    "list of bytes": lambda _: [png_bytes(image) for image in IMAGES],
    "list of paths": write_files,
    "list of texts": lambda folder: [str(path) for path in write_files(folder)],
    "array of texts": lambda folder: np.array([str(path) for path in write_files(folder)]),
    "column of paths": lambda folder: make_series([str(path) for path in write_files(folder)]),
    "column of PIL images": lambda _: make_series([Image.fromarray(image) for image in IMAGES]),
    "data set": lambda _: Pictures(lambda index: TENSOR[index]),
    "data set of paths": lambda folder: Pictures(lambda index: write_files(folder)[index]),
    "loader": lambda _: torch_data.DataLoader(Pictures(lambda index: TENSOR[index]), batch_size=4, drop_last=True),
    "subset": lambda _: torch_data.Subset(Pictures(lambda index: TENSOR[index // 2], 12), range(0, 12, 2)),
    "datasets": make_hub_data,
    "datasets with format": lambda folder: make_hub_data(folder).with_format("torch"),
    "loader of datasets": lambda folder: torch_data.DataLoader(make_hub_data(folder).with_format("torch")),
}


@pytest.mark.parametrize("kind", SEVERAL)
def test_every_kind_has_the_same_images_and_takes_labels_and_a_selection(kind: str, tmp_path: Path) -> None:
    data = SEVERAL[kind](tmp_path)
    source = open_source(data)
    np.testing.assert_array_equal(read_all(source), IMAGES)
    assert source.labels is None
    is_paths = "path" in kind or "texts" in kind
    expected = [f"{number}.png" for number in range(6)] if is_paths else [f"{number:06d}" for number in range(6)]
    assert list(source.ids) == expected
    assert (source.find_path(5) == tmp_path / "5.png") == is_paths
    assert open_source(SEVERAL[kind](tmp_path)).digest == source.digest
    if kind in ("array", "loader") or any(part in kind for part in ("tensor", "PIL", "arrays")):
        assert source.digest == open_source(IMAGES).digest, "it does not depend on the kind of pixels"
    texts, names = ["cba"[label] for label in LABELS], ["c", "b", "a"]
    subset = open_source(data, labels=texts, class_names=names, subset="evaluation", fraction=0.5)
    positions = [expected.index(id_) for id_ in subset.ids]
    assert (len(positions), subset.class_names) == (3, ("c", "b", "a"))
    assert labels_of(subset) == [LABELS[position] for position in positions]


def test_paths_have_the_digest_of_their_folder_and_may_be_missing_or_large(tmp_path: Path) -> None:
    paths = write_files(tmp_path)
    assert open_source(paths).digest == open_source(f"folder:{tmp_path}").digest
    assert open_source("absent.jpg", on_error="skip").ids == ("absent.jpg",)
    with pytest.raises(SourceError, match=re.escape(f"perhaps 'folder:{tmp_path}'")):
        open_source(tmp_path)
    with pytest.raises(SourceError, match="above the limit of 47; pass max_pixels=48 "):
        read_all(open_source(paths[0], max_pixels=47))
    for number, path in enumerate(paths):
        (tmp_path / "ab"[number % 2]).mkdir(exist_ok=True)
        path.rename(tmp_path / "ab"[number % 2] / path.name)
    folder = open_source(f"folder:{tmp_path}")
    files = sorted(tmp_path.glob("*/*.png"))
    listed = open_source(files, labels=[path.parent.name for path in files])
    assert (listed.ids, listed.class_names, listed.digest) == (folder.ids, folder.class_names, folder.digest)


@pytest.mark.parametrize("kind", ["array", "tensor", "PIL", "bytes", "path", "text", "name", "12:30", "Path('12:30')"])
def test_single_image_is_a_source_of_one(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_files(tmp_path)[0]
    (tmp_path / "12:30").write_bytes(path.read_bytes())
    kinds = {"array": IMAGES[0], "tensor": TENSOR[0], "PIL": Image.fromarray(IMAGES[0]), "bytes": png_bytes(IMAGES[0])}
    kinds |= {"path": path, "text": str(path), "name": "0.png", "12:30": "12:30", "Path('12:30')": Path("12:30")}
    source = open_source(kinds[kind], labels=["cat"], class_names=["dog", "cat"])
    np.testing.assert_array_equal(read_all(source), IMAGES[:1])
    assert labels_of(source) == [1]


ITEMS: dict[str, Callable[[int], Any]] = {
    "pair": lambda index: (TENSOR[index], LABELS[index]),
    "list": lambda index: [TENSOR[index], np.int64(LABELS[index])],
    "tensor label": lambda index: (TENSOR[index], torch.tensor(LABELS[index])),
    "dict": lambda index: {"image": Image.fromarray(IMAGES[index]), "label": LABELS[index]},
    "pixel_values": lambda index: {"pixel_values": TENSOR[index], "labels": torch.tensor(LABELS[index])},
}


@pytest.mark.parametrize("kind", ITEMS)
def test_items_may_have_labels_and_shuffling_does_not_matter(kind: str) -> None:
    data: Any = Pictures(ITEMS[kind])
    for each in (data, *(torch_data.DataLoader(data, 4, shuffle=shuffle) for shuffle in (False, True))):
        source = open_source(each)
        np.testing.assert_array_equal(read_all(source), IMAGES)
        assert labels_of(source) == LABELS
        assert source.digest == open_source(IMAGES, labels=LABELS).digest


def test_labels_of_hub_data_and_of_pairs_of_path_and_name(tmp_path: Path) -> None:
    assert labels_of(open_source(make_hub_data(tmp_path, label=LABELS))) == LABELS
    source = open_source([(path, "abc"[label]) for path, label in zip(write_files(tmp_path), LABELS, strict=True)])
    assert source.find_path(1) == tmp_path / "1.png"
    assert (labels_of(source), source.class_names) == (LABELS, ("a", "b", "c"))


def test_names_are_looked_up_or_sorted() -> None:
    names = np.array(["b", "a", "c", "b", "a", "c"])
    for labels in (names, names.tolist(), make_series(names.tolist()), names.astype(object)):
        for class_names, expected in ((None, [1, 0, 2, 1, 0, 2]), (["c", "b", "a", "d"], [1, 2, 0, 1, 2, 0])):
            source = open_source(IMAGES, labels=labels, class_names=class_names)
            assert labels_of(source) == expected
            assert source.class_names == tuple(class_names or "abc")
    for wrong, class_names, value in (
        (list("abcabd"), list("abc"), "'d' of image 5"),
        (["a", 1, *"cabd"], None, "label 1 of image 1"),
        (["a", "b", None, *"abd"], None, "label None of image 2"),
        (["a", "b"], None, "[2]"),
    ):
        with pytest.raises(SourceError, match=re.escape(value)):
            open_source(IMAGES, labels=wrong, class_names=class_names)


@pytest.mark.parametrize("kind", ["list of bytes", "list of paths"])
def test_images_of_a_list_are_read_when_needed_and_skipped_if_damaged(kind: str, tmp_path: Path) -> None:
    data = SEVERAL[kind](tmp_path)
    source = open_source(data, on_error="skip")
    np.testing.assert_array_equal(source.read(3), IMAGES[3])
    if kind == "list of paths":
        data[3].write_bytes(data[3].read_bytes()[:60])
    else:
        data[3] = data[3][:60]
        source = open_source(data, on_error="skip")
    with pytest.raises(SourceError, match=r"(3 of list:6 images|3.png) .*on_error='skip'"):
        read_all(open_source(data))
    assert len(read_all(source)) == 5
    assert [image.id for image in source.skipped] == [source.ids[3]]


def test_images_of_a_data_set_are_read_a_few_at_a_time_if_large_and_are_always_the_same() -> None:
    with pytest.raises(SourceError, match=r"image 0 .*random transforms"):
        read_all(open_source(Pictures(lambda _: torch.rand(3, 8, 6))))
    source = open_source(Pictures(lambda index: TENSOR[index]), max_bytes=300)  # two images of 144 bytes
    assert [len(batch.images) for batch in source.batches(6)] == [2, 2, 2]
    for given in (IMAGES.copy(), list(IMAGES.copy())):  # which reading does not change
        open_source(given).read(0)[:] = 0
        np.testing.assert_array_equal(given[0], IMAGES[0])


@pytest.fixture
def on_accelerator(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Source]:
    """Opens tensors as if they were on a GPU."""

    def open_there(tensor: Any, **options: Any) -> Source:
        with monkeypatch.context() as patched:
            patched.setattr(object_sources, "is_on_accelerator", lambda tensor: True)
            return open_source(tensor, **options)

    return open_there


FLOATS = TENSOR / 255


@pytest.mark.parametrize(
    "tensor",
    [TENSOR, TENSOR[:, :1], TENSOR[2], FLOATS, FLOATS.half(), FLOATS.bfloat16(), FLOATS.double(), FLOATS.clone()[1]],
)
@pytest.mark.parametrize("options", [{}, {"limit": 1}, {"labels": [0]}])
def test_tensor_on_an_accelerator_is_the_same_source(
    tensor: Any, options: dict[str, Any], on_accelerator: Callable[..., Source]
) -> None:
    tensor = tensor[:1] if tensor.ndim == 4 and "labels" in options else tensor
    expected, source = open_source(tensor, **options), on_accelerator(tensor, **options)
    assert (source.spec, source.ids, source.digest) == (expected.spec, expected.ids, expected.digest)
    images = [expected.read(index) for index in range(len(expected))]
    for index, other in enumerate(images):
        image = source.read(index)
        assert image.flags.c_contiguous
        assert image.dtype == other.dtype
        np.testing.assert_array_equal(image, other)
    block = source.read_block(range(len(source)))
    assert isinstance(block, torch.Tensor)
    np.testing.assert_array_equal(block.numpy(), np.stack(images))
    np.testing.assert_array_equal(apply_views(source, "identity")[:, 0], block.numpy())


@pytest.mark.parametrize(
    "tensor",
    [
        *(TENSOR.permute(0, 2, 3, 1), TENSOR[0, 0], TENSOR[:0], TENSOR[:, :2], TENSOR[:, :, :0]),
        *(TENSOR.int(), TENSOR.bool(), TENSOR.float(), TENSOR.half(), FLOATS - 0.5, FLOATS[:0]),
        *(torch.full((2, 3, 4, 4), torch.nan), torch.full((2, 3, 4, 4), 1.001, dtype=torch.float64)),
    ],
)
def test_invalid_tensor_on_an_accelerator_is_rejected_as_any_other(
    tensor: Any, on_accelerator: Callable[..., Source]
) -> None:
    with pytest.raises(SourceError) as expected:
        open_source(tensor)
    with pytest.raises(SourceError, match=f"^{re.escape(str(expected.value))}$"):
        on_accelerator(tensor)


def test_labels_on_an_accelerator_are_copied_to_the_host() -> None:
    class Elsewhere:
        """Labels that cannot be converted to an array before they are on the host, as those on a GPU."""

        def __array__(self, *_arguments: Any, **_options: Any) -> Array:
            raise TypeError("cannot convert a tensor on a GPU")

        def cpu(self) -> Any:
            return torch.arange(6)

    labels: Any = Elsewhere()
    assert labels_of(open_source(TENSOR, labels=labels)) == list(range(6))


class Endless(torch_data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(TENSOR)


def fail_at(index: int) -> Any:
    if index == 4:
        raise OSError("the disk is gone")
    return TENSOR[index]


def make_loader(**options: Any) -> Any:
    return torch_data.DataLoader(Pictures(lambda index: TENSOR[index]), **options)


INVALID: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "mixed kinds": (lambda: [IMAGES[0], Image.fromarray(IMAGES[1])], ["image 1", "PIL image", "array"]),
    "mixed dtypes": (lambda: [IMAGES[0], IMAGES[1] / np.float32(255)], ["image 1", "float32", "uint8"]),
    "normalized": (lambda: Pictures(lambda index: TENSOR[index] / 100 - 1), ["image 0", "normalized", "mean=", "std="]),
    "failing item": (lambda: Pictures(fail_at), ["item 4", "the disk is gone"]),
    "three parts": (lambda: Pictures(lambda index: (TENSOR[index], 1, 2)), ["item 0", "3 parts"]),
    "unknown keys": (lambda: Pictures(lambda index: {"img": TENSOR[index]}), ["item 0", "img", "'pixel_values'"]),
    "one-hot label": (lambda: [(IMAGES[0], [0, 1])], ["item 0", "[0, 1]"]),
    "bool label": (lambda: [(IMAGES[0], True)], ["item 0", "True"]),
    "missing label": (lambda: [(IMAGES[0], 1), IMAGES[1]], ["item 1", "no label"]),
    "batches in a list": (lambda: [IMAGES, IMAGES], ["image 0", "[6, 8, 6, 3]", "labels="]),
    "pixels as lists": (lambda: IMAGES.tolist(), ["item 0", "8 parts"]),
    "list of numbers": (lambda: [1, 2], ["image 0", "int"]),
    "normalized batch": (lambda: TENSOR / 100 - 1, ["normalized", "mean=", "std="]),
    "channels last": (lambda: torch.from_numpy(IMAGES), ["[6, 8, 6, 3]", "permute(0, 3, 1, 2)"]),
    "empty": (list, ["empty"]),
    "dict": (lambda: {"test": [1], "train": [2]}, ["test, train"]),
    "generator": (lambda: (image for image in IMAGES), ["generator", "list"]),
    "number": (lambda: 5, ["int", "'folder:val/'"]),
    "data frame": (lambda: pytest.importorskip("pandas").DataFrame({"path": ["a"]}), ["frame['path']"]),
    "sampler": (lambda: make_loader(sampler=torch_data.SubsetRandomSampler([1, 2])), ["SubsetRandomSampler", "Subset"]),
    "replacement": (lambda: make_loader(sampler=torch_data.RandomSampler(range(6), True)), ["RandomSampler"]),
    "batch sampler": (
        lambda: make_loader(batch_sampler=torch_data.BatchSampler(torch_data.SubsetRandomSampler([1]), 1, False)),
        ["sampler"],
    ),
    "endless": (Endless, ["Endless", "length"]),
    "endless loader": (lambda: torch_data.DataLoader(Endless()), ["Endless", "length"]),
    "duplicate path": (lambda: ["a.png", "./a.png"], ["duplicate id 'a.png'"]),
    "hub data": (lambda: pytest.importorskip("datasets").Dataset.from_dict({"x": [1]}), ["0 columns", "cast_column"]),
}


@pytest.mark.parametrize("kind", INVALID)
def test_anything_else_is_rejected_in_one_sentence(kind: str) -> None:
    make, values = INVALID[kind]
    with pytest.raises(SourceError, match=re.escape(values[0])) as caught:
        open_source(make())
    assert all(value in str(caught.value) for value in values), str(caught.value)
    assert "\n" not in str(caught.value)


def test_images_in_memory_keep_their_labels_and_have_no_spec_to_open(tmp_path: Path) -> None:
    hub = make_hub_data(tmp_path, label=LABELS)
    for labeled, found in ((Pictures(ITEMS["pair"]), "labels="), (hub, "labels=.*'label'")):
        with pytest.raises(SourceError, match=found):
            open_source(labeled, labels=LABELS)
    for data in (IMAGES, list(IMAGES), Pictures(lambda index: TENSOR[index])):
        with pytest.raises(SourceError, match="in memory"):
            open_source(open_source(data).spec)
