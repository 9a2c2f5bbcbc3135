"""Collecting: every view of every image is classified once, and never again."""

from pathlib import Path
from typing import Protocol

import numpy as np
import pytest
from PIL import Image

from secondlook.arrays import Array
from secondlook.classifiers import Classifier, Ensemble, Preprocessing, load_classifier
from secondlook.errors import PredictionsError, SecondLookError
from secondlook.predictions import Predictions, collect, flow
from secondlook.predictions.checks import ClassNamesWarning
from secondlook.sources import open_source
from secondlook.views import ViewSet, apply_views

VIEWS = ViewSet("identity hflip shift:1,0")
SHARED = Path(__file__).resolve().parents[3] / "shared"


class Counting(Protocol):
    images: int
    batch_sizes: list[int]

    def __call__(self, batch: Array) -> Array: ...
    def loaded(self, name: str = "counting") -> Classifier: ...


def obvious_logits(function: Counting, images: Array, views: ViewSet) -> Array:
    """Classify every view of every image on its own."""
    looked_at = apply_views(images, views)
    return np.stack([[function(view[None])[0] for view in image] for image in looked_at]).astype(np.float32)


@pytest.mark.parametrize("batch_size", [1, 7, 16, 100, "auto"])
@pytest.mark.parametrize("kept", [False, True])
def test_collect_gives_what_the_classifier_says(
    counting: Counting, images: Array, labels: Array, tmp_path: Path, batch_size: int, kept: bool
) -> None:
    store = tmp_path if kept else None
    preds = collect(counting.loaded(), images, VIEWS, labels=labels, store=store, batch_size=batch_size)
    assert counting.images == 50 * 3
    assert preds.shape == (50, 3, 4)
    assert preds.has_logits
    np.testing.assert_array_equal(preds.logits, obvious_logits(counting, images, VIEWS))
    np.testing.assert_array_equal(preds.labels, labels)
    assert list(preds.ids) == list(open_source(images).ids)
    assert preds.views == VIEWS


def test_a_plain_function_gives_probabilities(images: Array) -> None:
    preds = collect(lambda batch: np.full((len(batch), 2), 0.5), images, "identity hflip")
    assert not preds.has_logits
    assert preds.probabilities.tolist() == np.full((50, 2, 2), 0.5).tolist()


def test_float_images_are_looked_at_as_they_are(images: Array) -> None:
    floats = (images / 255).astype(np.float32)
    preds = collect(load_classifier(lambda batch: batch[:, 0, 0], output="logits"), floats, "identity hflip")
    np.testing.assert_array_equal(preds.logits[:, 0], floats[:, 0, 0])
    np.testing.assert_array_equal(preds.logits[:, 1], floats[:, 0, -1])


def test_asking_again_computes_nothing(counting: Counting, another: Counting, images: Array, store: Path) -> None:
    first = collect(counting.loaded(), images, VIEWS, store=store)
    again = collect(another.loaded(), images, VIEWS, store=store)
    assert another.images == 0
    np.testing.assert_array_equal(first.logits, again.logits)


def test_more_views_compute_only_those(counting: Counting, images: Array, store: Path) -> None:
    collect(counting.loaded(), images, VIEWS, store=store)
    counting.images = 0
    more = collect(counting.loaded(), images, "identity vflip shift:1,0", store=store)
    assert counting.images == 50
    assert more.views.texts == ("identity", "vflip", "shift:1,0")
    np.testing.assert_array_equal(more.logits, obvious_logits(counting, images, more.views))
    assert Predictions.open(store).views.texts == ("identity", "hflip", "shift:1,0", "vflip")
    assert Predictions.open(store, views="identity vflip").n_views == 2


def test_fewer_views_compute_nothing(counting: Counting, images: Array, store: Path) -> None:
    collect(counting.loaded(), images, VIEWS, store=store)
    counting.images = 0
    assert collect(counting.loaded(), images, "identity shift:1,0", store=store).n_views == 2
    assert counting.images == 0


def test_views_that_another_adds_meanwhile_stay(counting: Counting, images: Array, store: Path) -> None:
    def interrupted(batch: Array) -> Array:
        if counting.images == 0:
            collect(counting.loaded(), images, "identity vflip", store=store)
        return counting(batch)

    collect(load_classifier(interrupted, name="counting", output="logits"), images, VIEWS, store=store)
    assert set(Predictions.open(store).views.texts) == {"identity", "hflip", "shift:1,0", "vflip"}
    assert counting.images < 50 * 5, "the identity was there when its turn came"


def test_nothing_else_mixes_in(counting: Counting, images: Array, labels: Array, store: Path) -> None:
    changed = images.copy()
    changed[49, 0, 0, 0] ^= 1
    other_output = load_classifier(
        lambda batch: np.full((len(batch), 4), 0.25), name="counting", output="probabilities"
    )
    smaller = load_classifier(counting, name="counting", output="logits", crop=4)
    runs = [
        collect(counting.loaded(), images, VIEWS, store=store),
        collect(counting.loaded(), changed, VIEWS, store=store),
        collect(counting.loaded(), images[:49], VIEWS, store=store),
        collect(counting.loaded("another"), images, VIEWS, store=store),
        collect(smaller, images, VIEWS, store=store),
        collect(other_output, images, VIEWS, store=store),
    ]
    assert counting.images == (50 + 50 + 49 + 50 + 50) * 3
    assert len(list(store.iterdir())) == len(runs)
    np.testing.assert_array_equal(runs[4].logits, obvious_logits(counting, images[:, 1:5, 1:5], VIEWS))
    with pytest.raises(
        PredictionsError, match=r"holds 6 runs; choose one with run=: .*counting on array:.*50 images, 3"
    ):
        Predictions.open(store)
    name = sorted(folder.name for folder in store.iterdir())[0]
    assert Predictions.open(store, run=name[:6]).n_views == 3
    assert Predictions.open(store / name).n_views == 3


def test_an_ensemble_shares_the_runs_of_its_members(
    counting: Counting, another: Counting, images: Array, labels: Array, store: Path
) -> None:
    alone = collect(counting.loaded("one"), images, VIEWS, store=store, labels=labels)
    ensemble = Ensemble([counting.loaded("one"), load_classifier(lambda b: -another(b), name="two", output="logits")])
    together = collect(ensemble, images, VIEWS, store=store, labels=labels)
    assert (counting.images, another.images) == (150, 150)
    np.testing.assert_array_equal(together.members[0].logits, alone.logits)
    np.testing.assert_array_equal(together.members[1].logits, -alone.logits)
    means = np.mean([member.probabilities for member in together.members], axis=0)
    np.testing.assert_allclose(together.probabilities, means, atol=1e-6)
    np.testing.assert_array_equal(Predictions.open(store).probabilities, together.probabilities)
    in_memory = collect(ensemble, images, VIEWS, labels=labels)
    np.testing.assert_array_equal(in_memory.probabilities, together.probabilities)


def write_pictures(folder: Path, count: int, broken: list[int]) -> None:
    folder.mkdir()
    for number in range(count):
        pixels = np.random.default_rng(number).integers(0, 256, (6, 6, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02d}.png")
    for number in broken:
        (folder / f"{number:02d}.png").write_bytes(b"no picture")


@pytest.mark.parametrize("broken", [[0], [3, 17, 18], list(range(16, 32)), list(range(16))])
@pytest.mark.parametrize("kept", [False, True])
def test_images_that_cannot_be_read_are_skipped_and_listed(
    counting: Counting, tmp_path: Path, broken: list[int], kept: bool
) -> None:
    write_pictures(tmp_path / "pictures", 40, broken)
    source = f"folder:{tmp_path / 'pictures'}"
    store = tmp_path / "store" if kept else None
    preds = collect(counting.loaded(), source, VIEWS, store=store, on_error="skip")
    good = [number for number in range(40) if number not in broken]
    assert list(preds.ids) == [f"{number:02d}.png" for number in good]
    assert [name for name, _ in preds.skipped] == [f"{number:02d}.png" for number in broken]
    pixels = np.stack([np.asarray(Image.open(tmp_path / "pictures" / name)) for name in preds.ids])
    np.testing.assert_array_equal(preds.logits, obvious_logits(counting, pixels, VIEWS))
    if store:
        assert Predictions.open(store).skipped == preds.skipped
        asked = counting.images
        assert collect(counting.loaded(), source, VIEWS, store=store, on_error="skip").skipped == preds.skipped
        assert counting.images == asked
        with pytest.raises(SecondLookError, match=rf"{broken[0]:02d}.png.*on_error='skip'"):
            collect(counting.loaded(), source, VIEWS, store=store)


@pytest.mark.parametrize("kept", [False, True])
def test_no_readable_image_at_all(counting: Counting, tmp_path: Path, kept: bool) -> None:
    write_pictures(tmp_path / "pictures", 3, [0, 1, 2])
    store = tmp_path / "store" if kept else None
    with pytest.raises(PredictionsError, match=r"none of the 3 images of .* could be read; the first, '00.png'"):
        collect(counting.loaded(), f"folder:{tmp_path / 'pictures'}", VIEWS, store=store, on_error="skip")


def test_a_broken_image_fails_by_default(counting: Counting, tmp_path: Path) -> None:
    write_pictures(tmp_path / "pictures", 40, [33])
    with pytest.raises(SecondLookError, match=r"33\.png"):
        collect(counting.loaded(), f"folder:{tmp_path / 'pictures'}", VIEWS)


def test_a_function_without_a_name_cannot_be_kept(images: Array, store: Path) -> None:
    with pytest.raises(PredictionsError, match="has no name to keep its answers under; give it one"):
        collect(lambda batch: np.full((len(batch), 2), 0.5), images, VIEWS, store=store)
    assert not store.exists()


@pytest.mark.parametrize("kept", [False, True])
def test_wrong_labels_and_names_are_said_at_the_first_answer(
    counting: Counting, images: Array, tmp_path: Path, kept: bool
) -> None:
    store = tmp_path / "store" if kept else None
    with pytest.raises(PredictionsError, match=r"labels\[0\] is 9; expected a class index from 0 to 3"):
        collect(counting.loaded(), images, VIEWS, labels=np.full(50, 9), store=store, batch_size=5)
    assert counting.images == 5
    named = open_source(images, labels=np.zeros(50, dtype=int), class_names=("cat", "dog"))
    with pytest.raises(PredictionsError, match=r"has 2 classes \(cat, dog\), but classifier 'counting' answers 4"):
        collect(counting.loaded(), named, VIEWS, store=store)


def write_classes(folder: Path, names: tuple[str, ...]) -> str:
    """Two images of each class, in a folder per class."""
    folder.mkdir(exist_ok=True)
    for name in names:
        write_pictures(folder / name, 2, [])
    return f"folder:{folder}"


def test_a_folder_that_lacks_a_class_of_the_classifier(counting: Counting, tmp_path: Path) -> None:
    data = write_classes(tmp_path / "val", ("cat", "dog", "eel"))
    with pytest.raises(PredictionsError) as raised:
        collect(counting.loaded(), data, VIEWS)
    assert str(raised.value) == (
        f"data {data!r} has 3 classes (cat, dog, eel), but classifier 'counting' answers 4; "
        "name all classes in the order of the outputs with ?classes=FILE, one name per line."
    )
    (tmp_path / "names.txt").write_text("cat\ncow\ndog\neel\n")
    preds = collect(counting.loaded(), f"{data}?classes={tmp_path}/names.txt", VIEWS)
    assert preds.labels.tolist() == [0, 0, 2, 2, 3, 3]
    more = write_classes(tmp_path / "more", tuple("abcdef"))
    with pytest.raises(PredictionsError, match=r"6 classes \(a, b, c, d, e, \.\.\.\).*answers 4; use a classifier of"):
        collect(counting.loaded(), more, VIEWS)


def named_classifier(names: tuple[str, ...] | None, name: str = "named") -> Classifier:
    classifier = load_classifier(lambda batch: np.full((len(batch), 2), 0.5), name=name)
    classifier.class_names = names
    return classifier


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("names", [("dog", "cat"), ("Dog", "_CAT")])
def test_names_in_another_order_are_refused(tmp_path: Path, names: tuple[str, ...], kept: bool) -> None:
    data, store = write_classes(tmp_path / "val", ("cat", "dog")), tmp_path / "store" if kept else None
    member = named_classifier(("cat", "dog"), "right")
    for classifier in (named_classifier(names), Ensemble([member, named_classifier(names)])):
        with pytest.raises(PredictionsError) as raised:
            collect(classifier, data, VIEWS, store=store)
        assert str(raised.value) == (
            f"classifier 'named' calls class 0 {names[0]!r}, data {data!r} calls it 'cat', so both have the same names "
            "in another order; give the data the classifier's order with ?classes=FILE, one name per line."
        )
    assert store is None or not store.exists(), "it is said before anything is computed"
    (tmp_path / "names.txt").write_text("dog\ncat\n")
    ordered = collect(named_classifier(names), f"{data}?classes={tmp_path}/names.txt", VIEWS, store=store)
    assert ordered.labels.tolist() == [1, 1, 0, 0]
    assert collect(named_classifier(names), f"{data}?labels=none", VIEWS, store=store).n_images == 4


def test_an_array_in_another_order_is_refused(images: Array) -> None:
    source = open_source(images, labels=np.zeros(50, dtype=int), class_names=("cat", "dog"))
    with pytest.raises(PredictionsError, match="give the data the classifier's order in its class_names, and number"):
        collect(named_classifier(("dog", "cat")), source, VIEWS)


@pytest.mark.parametrize(
    "names",
    [("cat", "dog"), ("Cat", "DOG"), ("c_a-t", "d o g"), ("n02123045 tabby cat", "n02085620 dog"), None, ("cat",)],
)
def test_names_that_agree_or_say_nothing_are_let_pass(
    images: Array, names: tuple[str, ...] | None, recwarn: pytest.WarningsRecorder
) -> None:
    source = open_source(images, labels=np.zeros(50, dtype=int), class_names=("cat", "dog"))
    collect(named_classifier(names), source, "identity")
    assert not recwarn.list


def test_other_names_are_warned_of_once(images: Array) -> None:
    labeled = open_source(images, labels=np.zeros(50, dtype=int), class_names=("cat", "dog"))
    ensemble = Ensemble([named_classifier(names) for names in (("cat", "dog"), ("cat", "hound"), ("feline", "dog"))])
    with pytest.warns(ClassNamesWarning) as warned:
        collect(ensemble, labeled, VIEWS)
    assert [str(each.message) for each in warned] == [
        "classifier 'named' calls class 1 'hound', data 'array:[50, 6, 6, 3]' calls it 'dog'; if that is another class "
        "and not another spelling, the labels are wrong: give the data the classifier's order in its class_names, and "
        "number its labels so."
    ]
    collect(ensemble, open_source(images, class_names=("cat", "dog")), VIEWS)


@pytest.mark.parametrize("batch_size", [0, -1, 2.0, "big", True])
def test_wrong_batch_size(counting: Counting, images: Array, batch_size: object) -> None:
    with pytest.raises(PredictionsError, match=r"batch_size is .*; expected 'auto' or a number of images"):
        collect(counting.loaded(), images, VIEWS, batch_size=batch_size)  # type: ignore[arg-type]


@pytest.mark.parametrize("kept", [False, True])
def test_an_error_of_the_classifier_ends_the_collecting(images: Array, tmp_path: Path, kept: bool) -> None:
    def failing(batch: Array) -> Array:
        raise ZeroDivisionError("on purpose")

    with pytest.raises(ZeroDivisionError):
        collect(load_classifier(failing, name="failing"), images, VIEWS, store=tmp_path / "store" if kept else None)


def test_memory_that_runs_out_halves_the_batch(counting: Counting, images: Array, store: Path) -> None:
    def small_memory(batch: Array) -> Array:
        if len(batch) > 3:
            raise MemoryError
        return counting(batch)

    preds = collect(load_classifier(small_memory, name="small", output="logits"), images, VIEWS, batch_size=16)
    assert max(counting.batch_sizes) == 2
    np.testing.assert_array_equal(preds.logits, obvious_logits(counting, images, VIEWS))


@pytest.mark.skipif(not (SHARED / "cifar10").is_dir(), reason="needs the shared CIFAR-10 data")
def test_real_images_and_a_real_classifier(store: Path) -> None:
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


def test_few_images_are_held_at_their_own_size(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    source = open_source(np.zeros((70, 40, 40, 3), dtype=np.uint8))
    fit = Preprocessing.fit

    def watched(self: Preprocessing, images: list[Array]) -> Array:
        held.append(len(images))
        return fit(self, images)

    monkeypatch.setattr(flow, "DECODED_AT_ONCE", 5)
    monkeypatch.setattr(Preprocessing, "fit", watched)
    sizes: list[int] = []

    def answer(batch: Array) -> Array:
        sizes.append(len(batch))
        return np.full((len(batch), 2), 0.5)

    collect(load_classifier(answer, resize=(8, 8)), source, "identity", batch_size=32)
    assert max(held) == 5
    assert sizes == [16, 16, 16, 16, 6], "parts of 16 images, which batches do not cross"


def test_labels_are_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    monkeypatch.setattr(flow, "checked_labels", lambda labels, images, classes: looked.append(images))
    collect(
        lambda batch: np.full((len(batch), 2), 0.5),
        np.zeros((50, 4, 4, 3), np.uint8),
        "identity hflip",
        labels=np.zeros(50, int),
        batch_size=7,
    )
    assert looked == [50]
