"""Collecting: every view of every image is classified once, here or on an engine, and never again."""

import errno
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from secondlook.arrays import Array, IntArray
from secondlook.classifiers import Classifier, Ensemble, load_classifier
from secondlook.errors import PredictionsError, SecondLookError
from secondlook.predictions import ClassNamesWarning, DamagedChunkWarning, Execution, Predictions, collect
from secondlook.sources import ArraySource, open_source
from secondlook.views import ViewSet, apply_views
from tests.predictions.conftest import CountingFunction, classify_pixels, read_files, reading_threads, write_images

VIEWS = ViewSet("identity hflip shift:1,0")
SHARED = Path(__file__).resolve().parents[3] / "shared"
SKIP = Execution(on_error="skip")
Counting = CountingFunction


def reference_logits(function: Callable[[Array], Array], images: Array, views: ViewSet) -> Array:
    """Classify every view of every image separately."""
    transformed = apply_views(images, views)
    return np.stack([[function(view[None])[0] for view in image] for image in transformed]).astype(np.float32)


def halves(batch: Array) -> Array:
    return np.full((len(batch), 2), 0.5)


@pytest.fixture(params=[False, True], ids=["in memory", "on disk"])
def optional_store(request: pytest.FixtureRequest, store: Path) -> Path | None:
    return store if request.param else None


@pytest.mark.parametrize(
    ("n_images", "batch_size", "sizes"),
    [
        *((50, 1, [1] * 150), (50, 7, [7, 7, 2] * 9 + [6]), (50, 16, [16] * 9 + [6]), (50, 32, [32, 16] * 3 + [6])),
        *((50, 100, [48] * 3 + [6]), (50, "auto", [48] * 3 + [6])),
        *((5, 10, [10, 5]), (5, "auto", [15]), (1, "auto", [3])),
    ],
)
def test_outputs_are_those_of_the_classifier_and_views_fill_a_batch_within_a_chunk(
    counting: Counting, images: Array, optional_store: Path | None, n_images: int, batch_size: Any, sizes: list[int]
) -> None:
    few, labels, execution = images[:n_images], np.arange(n_images) % 4, Execution(batch_size=batch_size)
    preds = collect(counting.load(), few, VIEWS, labels=labels, store=optional_store, execution=execution)
    assert counting.batch_sizes == sizes
    assert (preds.shape, preds.has_logits, preds.views) == ((n_images, 3, 4), True, VIEWS)
    np.testing.assert_array_equal(preds.logits, reference_logits(counting, few, VIEWS))
    np.testing.assert_array_equal(preds.labels, labels)
    assert list(preds.ids) == list(open_source(few).ids)


def test_outputs_and_images_are_not_converted(images: Array) -> None:
    preds = collect(halves, images, "identity hflip")
    assert not preds.has_logits
    assert preds.probabilities.tolist() == np.full((50, 2, 2), 0.5).tolist()
    floats = (images / 255).astype(np.float32)
    preds = collect(load_classifier(lambda batch: batch[:, 0, 0], output="logits"), floats, "identity hflip")
    np.testing.assert_array_equal(preds.logits[:, 0], floats[:, 0, 0])
    np.testing.assert_array_equal(preds.logits[:, 1], floats[:, 0, -1])


def test_chunks_are_divided_by_the_size_of_inputs(counting: Counting) -> None:
    large, resized = np.zeros((40, 40, 40, 3), np.uint8), load_classifier(counting, output="logits", resize=(6, 6))
    collect(resized, large, "identity", execution=Execution(batch_size=32))
    assert counting.batch_sizes == [16, 16, 8]


def test_only_new_views_are_computed(counting: Counting, images: Array, store: Path) -> None:
    another = Counting()
    first = collect(counting.load(), images, VIEWS, store=store)
    again = collect(another.load(), images, VIEWS, store=store)
    assert another.images == 0
    np.testing.assert_array_equal(first.logits, again.logits)
    more = collect(another.load(), images, "identity vflip shift:1,0", store=store)
    assert another.images == 50
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
    one_view_of_a_chunk = Execution(batch_size=16)
    collect(interrupted_classifier, images, VIEWS, store=store, execution=one_view_of_a_chunk)
    assert set(Predictions.open(store).views.texts) == {"identity", "hflip", "shift:1,0", "vflip"}
    assert counting.images < 50 * 5, "the identity was stored before it was needed"


def test_every_classifier_output_and_data_has_its_own_entry(counting: Counting, images: Array, store: Path) -> None:
    changed = images.copy()
    changed[49, 0, 0, 0] ^= 1
    other_output = load_classifier(lambda batch: np.full((len(batch), 4), 0.25), name="counting")
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


def test_ensemble_shares_entries_of_its_members(counting: Counting, images: Array, labels: Array, store: Path) -> None:
    another = Counting()
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


def test_stores_that_cannot_be_written_fail(counting: Counting, images: Array, store: Path, tmp_path: Path) -> None:
    with pytest.raises(PredictionsError, match=r"'function halves' has no name .*name='v1'"):
        collect(halves, images, VIEWS, store=store)
    assert not store.exists()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(PredictionsError, match=re.escape(str(tmp_path / "file"))):
        collect(counting.load(), images, VIEWS, store=tmp_path / "file")


@pytest.mark.parametrize("batch_size", [0, -1, 2.0, "big", True])
def test_invalid_batch_size_is_rejected(counting: Counting, images: Array, batch_size: Any) -> None:
    with pytest.raises(PredictionsError, match=re.escape(repr(batch_size))):
        collect(counting.load(), images, VIEWS, execution=Execution(batch_size=batch_size))


@pytest.mark.skipif(not (SHARED / "cifar10").is_dir(), reason="needs the shared CIFAR-10 data")
def test_accuracy_of_a_real_classifier_on_real_images(store: Path) -> None:
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    model = load_classifier(f"onnx:{SHARED / 'cifar10' / 'resnet20.onnx'}", output="logits", mean=mean, std=std)
    preds = collect(model, f"npz:{SHARED / 'cifar10' / 'test.npz'}?limit=300", VIEWS, store=store)
    assert preds.class_names is not None
    assert preds.class_names[3] == "cat"
    assert 0.88 < preds.correct().mean() < 0.97
    assert 0.88 < preds.correct(predict_from="views").mean() < 0.97
    assert preds.correct(top_k=5).mean() > 0.98


# --- Unreadable images ---


@pytest.mark.parametrize("broken", [[0], [3, 17, 18], list(range(16, 32)), list(range(16)), range(40)])
def test_unreadable_images_are_skipped_and_listed(
    counting: Counting, images: Array, tmp_path: Path, broken: list[int], optional_store: Path | None
) -> None:
    source = write_images(tmp_path / "images", images[:40], broken)
    names = np.array([f"{number:03d}.png" for number in range(40)])
    with pytest.raises(SecondLookError, match=rf"{names[broken[0]]}"):
        collect(counting.load(), source, VIEWS)
    if len(broken) == 40:
        with pytest.raises(PredictionsError, match=r"40 images .*'000\.png'"):
            collect(counting.load(), source, VIEWS, store=optional_store, execution=SKIP)
        return
    preds = collect(counting.load(), source, VIEWS, store=optional_store, execution=SKIP)
    good = np.delete(np.arange(40), broken)
    assert list(preds.ids) == names[good].tolist()
    assert [name for name, _ in preds.skipped] == names[broken].tolist()
    np.testing.assert_array_equal(preds.logits, reference_logits(counting, images[good], VIEWS))
    if optional_store:
        assert Predictions.open(optional_store).skipped == preds.skipped
        classified = counting.images
        again = collect(counting.load(), source, VIEWS, store=optional_store, execution=SKIP)
        assert again.skipped == preds.skipped
        assert counting.images == classified
        with pytest.raises(SecondLookError, match=rf"{names[broken[0]]}.*on_error='skip'"):
            collect(counting.load(), source, VIEWS, store=optional_store)


# --- Classes and labels ---


def test_wrong_labels_and_classes_fail_at_once(counting: Counting, images: Array, optional_store: Path | None) -> None:
    few = Execution(batch_size=5)
    with pytest.raises(PredictionsError, match=r"'000000' is 9.* 0 to 3"):
        collect(counting.load(), images, VIEWS, labels=np.full(50, 9), store=optional_store, execution=few)
    assert counting.images == 5
    named = open_source(images, labels=np.zeros(50, dtype=int), class_names=("cat", "dog"))
    with pytest.raises(PredictionsError, match=r"2 classes \(cat, dog\).*'counting'.* 4"):
        collect(counting.load(), named, VIEWS, store=optional_store)


def write_classes(folder: Path, names: tuple[str, ...]) -> str:
    """Write two images of each class, in a folder per class, and return the spec."""
    for number, name in enumerate(names):
        write_images(folder / name, np.full((2, 6, 6, 3), 9 * number, np.uint8))
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
    classifier = load_classifier(halves, name=name)
    classifier.class_names = names
    return classifier


@pytest.mark.parametrize("names", [("dog", "cat"), ("Dog", "_CAT")])
def test_class_names_in_another_order_fail(tmp_path: Path, names: tuple[str, ...], optional_store: Path | None) -> None:
    data = write_classes(tmp_path / "val", ("cat", "dog"))
    member = make_named_classifier(("cat", "dog"), "right")
    for classifier in (make_named_classifier(names), Ensemble([member, make_named_classifier(names)])):
        with pytest.raises(PredictionsError, match="order") as raised:
            collect(classifier, data, VIEWS, store=optional_store)
        for value in (repr(names[0]), "'cat'", "'named'", repr(data), "?classes=FILE"):
            assert value in str(raised.value)
    assert optional_store is None or not optional_store.exists(), "names are checked before anything is computed"
    (tmp_path / "names.txt").write_text("dog\ncat\n")
    ordered = collect(make_named_classifier(names), f"{data}?classes={tmp_path}/names.txt", VIEWS, store=optional_store)
    assert ordered.labels.tolist() == [1, 1, 0, 0]
    assert collect(make_named_classifier(names), f"{data}?labels=none", VIEWS, store=optional_store).n_images == 4


def test_class_names_that_differ_cause_one_warning_others_none(images: Array, labels: Array) -> None:
    labeled = open_source(images, labels=labels % 2, class_names=("cat", "dog"))
    alike = [("cat", "dog"), ("Cat", "DOG"), ("c_a-t", "d o g"), ("n02123045 tabby cat", "n02085620 dog")]
    for matching in (*alike, None, ("cat",)):
        collect(make_named_classifier(matching), labeled, "identity")  # any warning is an error
    names = (("cat", "dog"), ("cat", "hound"), ("feline", "dog"))
    ensemble = Ensemble([make_named_classifier(each) for each in names])
    with pytest.warns(ClassNamesWarning) as warned:
        collect(ensemble, labeled, VIEWS)
    (message,) = [str(warning.message) for warning in warned]
    for value in ("class 1", "'hound'", "'named'", "'dog'", "'array:[50, 6, 6, 3]'", "class_names"):
        assert value in message
    collect(ensemble, open_source(images, class_names=("cat", "dog")), VIEWS)


# --- Errors ---


@pytest.mark.parametrize("error", [ZeroDivisionError("on purpose"), ConnectionRefusedError(111, "Connection refused")])
def test_classifier_errors_do_not_name_the_store(images: Array, optional_store: Path | None, error: Exception) -> None:
    def fail(batch: Array) -> Array:
        raise error

    with pytest.raises(type(error)) as failed:
        collect(load_classifier(fail, name="failing"), images, VIEWS, store=optional_store)
    assert "store" not in str(failed.value)


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


@pytest.mark.parametrize("place", [1, 18])
def test_images_of_mixed_sizes_are_rejected_by_name(place: int, tmp_path: Path) -> None:
    """Image 18 is in another group of decoded images than image 0, but in the same chunk of 32."""
    data = write_images(tmp_path / "images", [np.zeros((4 + (n == place),) * 2 + (3,), np.uint8) for n in range(20)])
    with pytest.raises(PredictionsError, match=rf"'{place:03d}.png' .*5 x 5 x 3.*'000.png' has 4 x 4 x 3.*resize="):
        collect(halves, data, "identity")


# --- Memory ---


def measure_peak(classifier: Classifier, data: Any) -> tuple[Predictions, int]:
    """Return predictions, and the largest memory in bytes while they are collected."""
    collect(classifier, open_source(data, limit=1), "identity")  # loads libraries
    tracemalloc.start()
    try:
        return collect(classifier, data, "identity"), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_few_large_images_are_held_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files that decode to 12 MB each, and huge inputs: without a limit, 16 were held together, or a chunk."""
    for number in range(18):
        Image.new("1", (2000, 2000)).save(tmp_path / f"{number:02d}.png")
    (tmp_path / "18.png").write_bytes((tmp_path / "00.png").read_bytes()[:100])
    Image.new("1", (4200, 2000)).save(tmp_path / "19.png")
    monkeypatch.setattr("secondlook.sources.image_files.STRIP_PIXELS", 2**16)
    data = f"folder:{tmp_path}?max_bytes=25000000&on_error=skip"
    predictions, peak = measure_peak(load_classifier(halves, resize=(8, 8)), data)
    assert len(predictions.ids) == 18
    skipped = dict(predictions.skipped)
    assert list(skipped) == ["18.png", "19.png"]
    assert "above the limit of 25000000" in skipped["19.png"]
    assert peak < 30_000_000
    huge, peak = measure_peak(load_classifier(halves), np.zeros((40, 600, 600, 3), dtype=np.uint8))
    assert huge.n_images == 40
    assert peak < 20_000_000, "a few images of 1.08 MB in each stage, not all of them"


# --- Resuming ---


@pytest.mark.parametrize("at", [*range(1, 12), 25])
def test_interrupted_job_loses_at_most_one_chunk(counting: Counting, images: Array, tmp_path: Path, at: int) -> None:
    def interrupt(batch: Array) -> Array:
        if len(counting.batch_sizes) + 1 == at:
            raise KeyboardInterrupt
        return counting(batch)

    four = Execution(batch_size=4)  # chunks have 16 images, so each is four batches
    interrupted = load_classifier(interrupt, name="counting", output="logits")
    with pytest.raises(KeyboardInterrupt):
        collect(interrupted, images, "identity hflip", store=tmp_path / "interrupted", execution=four)
    done, counting.images = counting.images, 0
    resumed = collect(counting.load(), images, "identity hflip", store=tmp_path / "interrupted", execution=four)
    assert 0 <= done + counting.images - 2 * len(images) < 16
    whole = collect(counting.load(), images, "identity hflip", store=tmp_path / "whole", execution=four)
    np.testing.assert_array_equal(resumed.logits, whole.logits)
    assert read_files(tmp_path / "interrupted") == read_files(tmp_path / "whole")


def test_only_needed_chunks_are_decoded_and_classified(
    counting: Counting, images: Array, store: Path, set_chunk_bytes: Callable[[int], None]
) -> None:
    """An entry keeps the division into chunks that it was created with."""

    class Recorded(ArraySource):
        def read_block(self, positions: range | IntArray) -> Any:
            read.append(positions)
            return super().read_block(positions)

    read: list[range | IntArray] = []
    collect(counting.load(), Recorded(images), "identity", store=store)
    for chunk in store.glob("*/*/part-000001-*.parquet"):
        chunk.unlink()
    set_chunk_bytes(4 * 6 * 6 * 3)
    counting.images = 0
    read.clear()
    collect(counting.load(), Recorded(images), "identity", store=store)
    assert {index for indices in read for index in indices if len(indices) > 1} == set(range(16, 32))
    assert counting.images == 16
    assert reading_threads() == []
    resumed = collect(counting.load(), images, "identity hflip", store=store)
    assert counting.images == 16 + 50
    np.testing.assert_array_equal(resumed.logits, reference_logits(counting, images, ViewSet("identity hflip")))


# --- On an engine ---


def classify_otherwise(batch: Array) -> Array:
    return classify_pixels(255 - batch)


def load(function: Any = classify_pixels) -> Classifier:
    return load_classifier(function, output="logits", name=function.__name__)


@pytest.fixture
def expected(images: Array, labels: Array, tmp_path: Path) -> dict[str, bytes]:
    """The files of a store that is filled in this process."""
    collect(load(), images, VIEWS, labels=labels, store=tmp_path / "expected")
    return read_files(tmp_path / "expected")


@pytest.fixture
def collect_on_engine(images: Array, labels: Array, store: Path, pickled_engine: Any) -> Callable[..., Predictions]:
    def run(**options: Any) -> Predictions:
        execution = Execution(engine=pickled_engine)
        return collect(load(), images, VIEWS, **{"labels": labels, "store": store, "execution": execution, **options})

    return run


def test_engine_writes_the_same_files_and_resumes(
    store: Path, labels: Array, expected: dict[str, bytes], collect_on_engine: Any, pickled_engine: Any
) -> None:
    with pytest.raises(PredictionsError, match="label"):
        collect_on_engine(labels=np.full(50, 4), store=None)
    assert len(pickled_engine.numbers) == 1, "wrong labels are found at the first chunk"
    pickled_engine.numbers.clear()
    pickled_engine.dies_after = 2
    with pytest.raises(KeyboardInterrupt):
        collect_on_engine()
    pickled_engine.dies_after = None
    preds = collect_on_engine()
    assert sorted(pickled_engine.numbers) == [0, 1, 2, 3], "no chunk is computed twice"
    assert read_files(store) == expected
    assert preds.ids == Predictions.open(store).ids
    np.testing.assert_array_equal(collect_on_engine().labels, labels)
    assert len(pickled_engine.numbers) == 4, "nothing is computed again"


def test_damaged_and_missing_chunks_are_computed_again(
    store: Path, expected: dict[str, bytes], collect_on_engine: Any, pickled_engine: Any
) -> None:
    collect_on_engine(execution=Execution())
    one, other = sorted(store.rglob("part-000001-*"))[0], sorted(store.rglob("part-000003-*"))[1]
    one.write_bytes(one.read_bytes()[:-30])
    other.unlink()
    with pytest.warns(DamagedChunkWarning):
        collect_on_engine()
    assert sorted(pickled_engine.numbers) == [1, 3]
    assert read_files(store) == expected


def test_new_views_only(images: Array, labels: Array, store: Path, collect_on_engine: Any, pickled_engine: Any) -> None:
    collect(load(), images, "identity hflip", labels=labels, store=store)
    before = {path: path.stat().st_mtime_ns for path in store.rglob("part-*")}
    preds = collect_on_engine()
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert [load_worker.keywords["needed"] for load_worker in pickled_engine.loads] == [{2}]
    np.testing.assert_array_equal(preds.logits, reference_logits(classify_pixels, images, VIEWS))


@pytest.mark.parametrize("members", [1, 2])
def test_outputs_of_engines_are_the_same(
    images: Array, labels: Array, optional_store: Path | None, tmp_path: Path, members: int, pickled_engine: Any
) -> None:
    model = Ensemble([load(), load(classify_otherwise)]) if members == 2 else load()
    here = None if optional_store is None else tmp_path / "here"
    expected = collect(model, images, VIEWS, labels=labels, store=here)
    execution = Execution(engine=pickled_engine)
    found = collect(model, images, VIEWS, labels=labels, store=optional_store, execution=execution)
    assert len(pickled_engine.numbers) == 4 * members
    np.testing.assert_array_equal(found.probabilities, expected.probabilities)
    for one, other in zip(found.members or [found], expected.members or [expected], strict=True):
        np.testing.assert_array_equal(one.logits, other.logits)
    np.testing.assert_array_equal(found.labels, expected.labels)
    if optional_store and here:
        assert read_files(optional_store) == read_files(here)


def test_engines_skip_unreadable_images_by_default(images: Array, tmp_path: Path, pickled_engine: Any) -> None:
    broken = [0, 3, *range(16, 32), 49]  # the second chunk has no other images
    spec = write_images(tmp_path / "images", images, broken)
    skip = Execution(engine=pickled_engine, on_error="skip")
    found = collect(load(), spec, VIEWS, store=tmp_path / "found", execution=skip)
    expected = collect(load(), spec, VIEWS, store=tmp_path / "expected", execution=SKIP)
    by_default = collect(load(), spec, VIEWS, execution=Execution(engine=pickled_engine))
    assert found.skipped == expected.skipped == by_default.skipped
    assert [id_ for id_, _ in found.skipped] == [f"{number:03d}.png" for number in broken]
    assert read_files(tmp_path / "found") == read_files(tmp_path / "expected")
    for data, on_error in ((spec, "fail"), (f"{spec}?on_error=fail", None)):
        with pytest.raises(SecondLookError, match=r"000\.png"):
            collect(load(), data, VIEWS, execution=Execution(engine=pickled_engine, on_error=on_error))  # type: ignore[arg-type]
