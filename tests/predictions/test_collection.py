"""Collecting: every view of every image is classified once, and never again."""

import errno
import re
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
from PIL import Image

from secondlook.arrays import Array
from secondlook.classifiers import Classifier, Ensemble, load_classifier
from secondlook.errors import PredictionsError, SecondLookError
from secondlook.predictions import ClassNamesWarning, Execution, Predictions, collect
from secondlook.sources import open_source
from secondlook.views import ViewSet, apply_views

VIEWS = ViewSet("identity hflip shift:1,0")
SHARED = Path(__file__).resolve().parents[3] / "shared"


class Counting(Protocol):
    images: int
    batch_sizes: list[int]

    def __call__(self, batch: Array) -> Array: ...
    def load(self, name: str = "counting") -> Classifier: ...


def reference_logits(function: Counting, images: Array, views: ViewSet) -> Array:
    """Classify every view of every image separately."""
    transformed = apply_views(images, views)
    return np.stack([[function(view[None])[0] for view in image] for image in transformed]).astype(np.float32)


@pytest.mark.parametrize("batch_size", [1, 7, 16, 100, "auto"])
@pytest.mark.parametrize("on_disk", [False, True])
def test_collect_returns_the_outputs_of_the_classifier(
    counting: Counting, images: Array, labels: Array, tmp_path: Path, batch_size: int, on_disk: bool
) -> None:
    store = tmp_path if on_disk else None
    preds = collect(
        counting.load(), images, VIEWS, labels=labels, store=store, execution=Execution(batch_size=batch_size)
    )
    assert counting.images == 50 * 3
    assert preds.shape == (50, 3, 4)
    assert preds.has_logits
    np.testing.assert_array_equal(preds.logits, reference_logits(counting, images, VIEWS))
    np.testing.assert_array_equal(preds.labels, labels)
    assert list(preds.ids) == list(open_source(images).ids)
    assert preds.views == VIEWS


def test_outputs_of_a_plain_function_are_probabilities(images: Array) -> None:
    preds = collect(lambda batch: np.full((len(batch), 2), 0.5), images, "identity hflip")
    assert not preds.has_logits
    assert preds.probabilities.tolist() == np.full((50, 2, 2), 0.5).tolist()


def test_float_images_are_not_converted(images: Array) -> None:
    floats = (images / 255).astype(np.float32)
    preds = collect(load_classifier(lambda batch: batch[:, 0, 0], output="logits"), floats, "identity hflip")
    np.testing.assert_array_equal(preds.logits[:, 0], floats[:, 0, 0])
    np.testing.assert_array_equal(preds.logits[:, 1], floats[:, 0, -1])


def test_collecting_again_computes_nothing(counting: Counting, another: Counting, images: Array, store: Path) -> None:
    first = collect(counting.load(), images, VIEWS, store=store)
    again = collect(another.load(), images, VIEWS, store=store)
    assert another.images == 0
    np.testing.assert_array_equal(first.logits, again.logits)


@pytest.mark.parametrize(("n_images", "batch_size", "sizes"), [(1, "auto", [3]), (5, "auto", [15]), (5, 10, [10, 5])])
@pytest.mark.parametrize("on_disk", [False, True])
def test_views_of_few_images_fill_a_batch(
    counting: Counting, images: Array, store: Path, n_images: int, batch_size: Any, sizes: list[int], on_disk: bool
) -> None:
    few = images[:n_images]
    preds = collect(
        counting.load(), few, VIEWS, store=store if on_disk else None, execution=Execution(batch_size=batch_size)
    )
    assert counting.batch_sizes == sizes
    np.testing.assert_array_equal(preds.logits, reference_logits(counting, few, VIEWS))


def test_only_new_views_are_computed(counting: Counting, images: Array, store: Path) -> None:
    collect(counting.load(), images, VIEWS, store=store)
    counting.images = 0
    more = collect(counting.load(), images, "identity vflip shift:1,0", store=store)
    assert counting.images == 50
    assert more.views.texts == ("identity", "vflip", "shift:1,0")
    np.testing.assert_array_equal(more.logits, reference_logits(counting, images, more.views))
    assert Predictions.open(store).views.texts == ("identity", "hflip", "shift:1,0", "vflip")
    assert Predictions.open(store, views="identity vflip").n_views == 2


def test_views_added_by_another_process_are_kept(counting: Counting, images: Array, store: Path) -> None:
    def interrupted(batch: Array) -> Array:
        if counting.images == 0:
            collect(counting.load(), images, "identity vflip", store=store)
        return counting(batch)

    interrupted_classifier = load_classifier(interrupted, name="counting", output="logits")
    collect(
        interrupted_classifier, images, VIEWS, store=store, execution=Execution(batch_size=16)
    )  # a view of a chunk at a time
    assert set(Predictions.open(store).views.texts) == {"identity", "hflip", "shift:1,0", "vflip"}
    assert counting.images < 50 * 5, "the identity was stored before it was needed"


def test_each_classifier_output_preprocessing_and_data_has_its_own_entry(
    counting: Counting, images: Array, labels: Array, store: Path
) -> None:
    changed = images.copy()
    changed[49, 0, 0, 0] ^= 1
    other_output = load_classifier(
        lambda batch: np.full((len(batch), 4), 0.25), name="counting", output="probabilities"
    )
    smaller = load_classifier(counting, name="counting", output="logits", crop=4)
    entries = [
        collect(counting.load(), images, VIEWS, store=store),
        collect(counting.load(), changed, VIEWS, store=store),
        collect(counting.load(), images[:49], VIEWS, store=store),
        collect(counting.load("another"), images, VIEWS, store=store),
        collect(smaller, images, VIEWS, store=store),
        collect(other_output, images, VIEWS, store=store),
    ]
    assert counting.images == (50 + 50 + 49 + 50 + 50) * 3
    assert len(list(store.iterdir())) == len(entries)
    np.testing.assert_array_equal(entries[4].logits, reference_logits(counting, images[:, 1:5, 1:5], VIEWS))
    with pytest.raises(PredictionsError, match=r"6 entries: .*counting on array:.*50 images, 3.*entry="):
        Predictions.open(store)
    name = sorted(folder.name for folder in store.iterdir())[0]
    assert Predictions.open(store, entry=name[:6]).n_views == 3
    assert Predictions.open(store / name).n_views == 3


def test_ensemble_shares_the_entries_of_its_members(
    counting: Counting, another: Counting, images: Array, labels: Array, store: Path
) -> None:
    alone = collect(counting.load("one"), images, VIEWS, store=store, labels=labels)
    ensemble = Ensemble([counting.load("one"), load_classifier(lambda b: -another(b), name="two", output="logits")])
    together = collect(ensemble, images, VIEWS, store=store, labels=labels)
    assert (counting.images, another.images) == (150, 150)
    np.testing.assert_array_equal(together.members[0].logits, alone.logits)
    np.testing.assert_array_equal(together.members[1].logits, -alone.logits)
    means = np.mean([member.probabilities for member in together.members], axis=0)
    np.testing.assert_allclose(together.probabilities, means, atol=1e-6)
    np.testing.assert_array_equal(Predictions.open(store).probabilities, together.probabilities)
    in_memory = collect(ensemble, images, VIEWS, labels=labels)
    np.testing.assert_array_equal(in_memory.probabilities, together.probabilities)


def write_images(folder: Path, count: int, broken: list[int]) -> None:
    folder.mkdir()
    for number in range(count):
        pixels = np.random.default_rng(number).integers(0, 256, (6, 6, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02d}.png")
    for number in broken:
        (folder / f"{number:02d}.png").write_bytes(b"not an image")


@pytest.mark.parametrize("broken", [[0], [3, 17, 18], list(range(16, 32)), list(range(16))])
@pytest.mark.parametrize("on_disk", [False, True])
def test_unreadable_images_are_skipped_and_listed(
    counting: Counting, tmp_path: Path, broken: list[int], on_disk: bool
) -> None:
    write_images(tmp_path / "images", 40, broken)
    source = f"folder:{tmp_path / 'images'}"
    store = tmp_path / "store" if on_disk else None
    preds = collect(counting.load(), source, VIEWS, store=store, execution=Execution(on_error="skip"))
    good = [number for number in range(40) if number not in broken]
    assert list(preds.ids) == [f"{number:02d}.png" for number in good]
    assert [name for name, _ in preds.skipped] == [f"{number:02d}.png" for number in broken]
    pixels = np.stack([np.asarray(Image.open(tmp_path / "images" / name)) for name in preds.ids])
    np.testing.assert_array_equal(preds.logits, reference_logits(counting, pixels, VIEWS))
    if store:
        assert Predictions.open(store).skipped == preds.skipped
        classified = counting.images
        assert (
            collect(counting.load(), source, VIEWS, store=store, execution=Execution(on_error="skip")).skipped
            == preds.skipped
        )
        assert counting.images == classified
        with pytest.raises(SecondLookError, match=rf"{broken[0]:02d}\.png.*on_error='skip'"):
            collect(counting.load(), source, VIEWS, store=store)


@pytest.mark.parametrize("on_disk", [False, True])
def test_source_without_readable_images_is_rejected(counting: Counting, tmp_path: Path, on_disk: bool) -> None:
    write_images(tmp_path / "images", 3, [0, 1, 2])
    store = tmp_path / "store" if on_disk else None
    with pytest.raises(PredictionsError, match=r"3 images .*'00\.png'"):
        collect(
            counting.load(), f"folder:{tmp_path / 'images'}", VIEWS, store=store, execution=Execution(on_error="skip")
        )


def test_unreadable_image_is_an_error_by_default(counting: Counting, tmp_path: Path) -> None:
    write_images(tmp_path / "images", 40, [33])
    with pytest.raises(SecondLookError, match=r"33\.png"):
        collect(counting.load(), f"folder:{tmp_path / 'images'}", VIEWS)


def test_function_without_a_name_cannot_be_stored(images: Array, store: Path) -> None:
    with pytest.raises(PredictionsError, match=r"name=.*store="):
        collect(lambda batch: np.full((len(batch), 2), 0.5), images, VIEWS, store=store)
    assert not store.exists()


@pytest.mark.parametrize("on_disk", [False, True])
def test_wrong_labels_and_class_counts_are_rejected_at_the_first_output(
    counting: Counting, images: Array, tmp_path: Path, on_disk: bool
) -> None:
    store = tmp_path / "store" if on_disk else None
    with pytest.raises(PredictionsError, match=r"labels\[0\] is 9.* 0 to 3"):
        collect(counting.load(), images, VIEWS, labels=np.full(50, 9), store=store, execution=Execution(batch_size=5))
    assert counting.images == 5
    named = open_source(images, labels=np.zeros(50, dtype=int), class_names=("cat", "dog"))
    with pytest.raises(PredictionsError, match=r"2 classes \(cat, dog\).*'counting'.* 4"):
        collect(counting.load(), named, VIEWS, store=store)


def write_classes(folder: Path, names: tuple[str, ...]) -> str:
    """Write two images of each class, in a folder per class, and return the spec."""
    folder.mkdir(exist_ok=True)
    for name in names:
        write_images(folder / name, 2, [])
    return f"folder:{folder}"


def test_folder_with_too_few_or_too_many_classes_is_rejected(counting: Counting, tmp_path: Path) -> None:
    data = write_classes(tmp_path / "val", ("cat", "dog", "eel"))
    with pytest.raises(PredictionsError, match=re.escape(repr(data))) as raised:
        collect(counting.load(), data, VIEWS)
    assert re.search(r"3 classes \(cat, dog, eel\).*'counting'.* 4; .*\?classes=FILE", str(raised.value))
    (tmp_path / "names.txt").write_text("cat\ncow\ndog\neel\n")
    preds = collect(counting.load(), f"{data}?classes={tmp_path}/names.txt", VIEWS)
    assert preds.labels.tolist() == [0, 0, 2, 2, 3, 3]
    more = write_classes(tmp_path / "more", tuple("abcdef"))
    with pytest.raises(PredictionsError, match=r"6 classes \(a, b, c, d, e, \.\.\.\).*'counting'.* 4"):
        collect(counting.load(), more, VIEWS)


def make_named_classifier(names: tuple[str, ...] | None, name: str = "named") -> Classifier:
    classifier = load_classifier(lambda batch: np.full((len(batch), 2), 0.5), name=name)
    classifier.class_names = names
    return classifier


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("names", [("dog", "cat"), ("Dog", "_CAT")])
def test_class_names_in_a_different_order_are_rejected(tmp_path: Path, names: tuple[str, ...], on_disk: bool) -> None:
    data, store = write_classes(tmp_path / "val", ("cat", "dog")), tmp_path / "store" if on_disk else None
    member = make_named_classifier(("cat", "dog"), "right")
    for classifier in (make_named_classifier(names), Ensemble([member, make_named_classifier(names)])):
        with pytest.raises(PredictionsError, match="order") as raised:
            collect(classifier, data, VIEWS, store=store)
        for value in (repr(names[0]), "'cat'", "'named'", repr(data), "?classes=FILE"):
            assert value in str(raised.value)
    assert store is None or not store.exists(), "names are checked before anything is computed"
    (tmp_path / "names.txt").write_text("dog\ncat\n")
    ordered = collect(make_named_classifier(names), f"{data}?classes={tmp_path}/names.txt", VIEWS, store=store)
    assert ordered.labels.tolist() == [1, 1, 0, 0]
    assert collect(make_named_classifier(names), f"{data}?labels=none", VIEWS, store=store).n_images == 4


@pytest.mark.parametrize(
    "names",
    [("cat", "dog"), ("Cat", "DOG"), ("c_a-t", "d o g"), ("n02123045 tabby cat", "n02085620 dog"), None, ("cat",)],
)
def test_matching_or_incomparable_class_names_are_accepted(
    images: Array, names: tuple[str, ...] | None, recwarn: pytest.WarningsRecorder
) -> None:
    source = open_source(images, labels=np.zeros(50, dtype=int), class_names=("cat", "dog"))
    collect(make_named_classifier(names), source, "identity")
    assert not recwarn.list


def test_different_class_names_cause_one_warning(images: Array) -> None:
    labeled = open_source(images, labels=np.zeros(50, dtype=int), class_names=("cat", "dog"))
    ensemble = Ensemble(
        [make_named_classifier(names) for names in (("cat", "dog"), ("cat", "hound"), ("feline", "dog"))]
    )
    with pytest.warns(ClassNamesWarning) as warned:
        collect(ensemble, labeled, VIEWS)
    (message,) = [str(warning.message) for warning in warned]
    for value in ("class 1", "'hound'", "'named'", "'dog'", "'array:[50, 6, 6, 3]'", "class_names"):
        assert value in message
    collect(ensemble, open_source(images, class_names=("cat", "dog")), VIEWS)


@pytest.mark.parametrize("batch_size", [0, -1, 2.0, "big", True])
def test_invalid_batch_size_is_rejected(counting: Counting, images: Array, batch_size: object) -> None:
    with pytest.raises(PredictionsError, match=re.escape(repr(batch_size))):
        collect(counting.load(), images, VIEWS, execution=Execution(batch_size=batch_size))  # type: ignore[arg-type]


@pytest.mark.parametrize("on_disk", [False, True])
def test_errors_of_the_classifier_are_raised(images: Array, tmp_path: Path, on_disk: bool) -> None:
    def failing(batch: Array) -> Array:
        raise ZeroDivisionError("on purpose")

    with pytest.raises(ZeroDivisionError):
        collect(load_classifier(failing, name="failing"), images, VIEWS, store=tmp_path / "store" if on_disk else None)


@pytest.mark.skipif(not (SHARED / "cifar10").is_dir(), reason="needs the shared CIFAR-10 data")
def test_accuracy_of_a_real_classifier_on_real_images(store: Path) -> None:
    model = load_classifier(
        f"onnx:{SHARED / 'cifar10' / 'resnet20.onnx'}",
        output="logits",
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
    )
    source = f"npz:{SHARED / 'cifar10' / 'test.npz'}?limit=300"
    preds = collect(model, source, "identity hflip shift:1,0", store=store)
    assert preds.class_names is not None
    assert preds.class_names[3] == "cat"
    assert 0.88 < preds.correct().mean() < 0.97
    assert 0.88 < preds.correct(predict_from="views").mean() < 0.97
    assert preds.correct(top_k=5).mean() > 0.98


@pytest.mark.parametrize("written", ["manifest.json", "images/.part-000000", "/.part-000002", "ensemble.json"])
def test_full_disk_is_an_error_with_the_path(
    counting: Counting, images: Array, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    opened = Path.open

    def open_or_fail(path: Path, mode: str = "r", **options: Any) -> Any:
        if mode == "xb" and written in path.as_posix():
            raise OSError(errno.ENOSPC, "No space left on device")
        return opened(path, mode, **options)

    ensemble = Ensemble([counting.load("a"), counting.load("b")])
    with monkeypatch.context() as full_disk:
        full_disk.setattr(Path, "open", open_or_fail)
        with pytest.raises(PredictionsError, match=rf"{re.escape(str(tmp_path))}.*No space left"):
            collect(ensemble, images, VIEWS, store=tmp_path, execution=Execution(progress=False))
    assert collect(ensemble, images, VIEWS, store=tmp_path, execution=Execution(progress=False)).n_images == 50


def test_store_that_cannot_be_created_is_an_error_with_the_path(
    counting: Counting, images: Array, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(PredictionsError, match=re.escape(str(tmp_path / "file"))):
        collect(counting.load(), images, VIEWS, store=tmp_path / "file")


def test_system_error_of_a_classifier_is_not_one_of_the_store(images: Array, tmp_path: Path) -> None:
    def classify(batch: Array) -> Array:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")

    with pytest.raises(Exception, match="Connection refused") as failed:
        collect(load_classifier(classify, name="remote"), images, VIEWS, store=tmp_path)
    assert "store" not in str(failed.value)
