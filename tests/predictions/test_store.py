"""What is kept on disk: readable by others, checked whenever it is read, repaired when it is damaged."""

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from secondlook.arrays import Array
from secondlook.classifiers import load_classifier
from secondlook.errors import PredictionsError
from secondlook.files import shared_lock
from secondlook.predictions import DamagedChunkWarning, Predictions, collect
from secondlook.predictions.manifest import SkippedImage, view_name
from secondlook.predictions.part import Chunk, ChunkFile, ChunkPlace, DamagedChunkError, rows_per_group, write_chunk
from secondlook.views import ViewSet

VIEWS = ViewSet("identity hflip")
PLACE = ChunkPlace("run", "hflip", 0)


def run_of(store: Path) -> Path:
    (folder,) = store.iterdir()
    return folder


def part_of(store: Path, view: str = "hflip", number: int = 1) -> Path:
    return run_of(store) / view_name(view) / f"part-{number:06d}.parquet"


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip_a_bit_of_a_number(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 4] ^= 16
    path.write_bytes(content)


def put_another_part_there(path: Path) -> None:
    shutil.copy(path.with_name("part-000000.parquet"), path)


def put_another_view_there(path: Path) -> None:
    shutil.copy(path.parent.parent / view_name("identity") / path.name, path)


DAMAGES = [truncate, empty, flip_a_bit_of_a_number, put_another_part_there, put_another_view_there]


@pytest.fixture
def filled(counting: Callable[[Array], Array], images: Array, labels: Array, store: Path) -> Predictions:
    return collect(counting.loaded(), images, VIEWS, labels=labels, store=store)  # type: ignore[attr-defined]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_noticed_said_and_repaired(
    filled: Predictions,
    counting: Callable[[Array], Array],
    images: Array,
    labels: Array,
    store: Path,
    damage: Callable[[Path], None],
) -> None:
    path = part_of(store)
    good, logits = path.read_bytes(), filled.logits
    damage(path)
    with pytest.raises(PredictionsError, match=r"part-000001.parquet' is damaged .*collect into the same store again"):
        _ = Predictions.open(store).logits
    counting.images = 0  # type: ignore[attr-defined]
    with pytest.warns(DamagedChunkWarning, match=r"computing again: .*part-000001.parquet"):
        repaired = collect(counting.loaded(), images, VIEWS, labels=labels, store=store)  # type: ignore[attr-defined]
    assert counting.images == 16  # type: ignore[attr-defined]
    assert path.read_bytes() == good
    np.testing.assert_array_equal(repaired.logits, logits)


def test_a_missing_part_is_noticed_and_computed(
    filled: Predictions, counting: Callable[[Array], Array], images: Array, labels: Array, store: Path
) -> None:
    good = part_of(store).read_bytes()
    part_of(store).unlink()
    with pytest.raises(PredictionsError, match="not finished: 1 of 8 parts are missing, in 1 of 2 views"):
        Predictions.open(store)
    assert Predictions.open(store, views="identity").n_views == 1
    collect(counting.loaded(), images, VIEWS, labels=labels, store=store)  # type: ignore[attr-defined]
    assert part_of(store).read_bytes() == good


def test_damaged_images_file_is_noticed_said_and_repaired(
    filled: Predictions, counting: Callable[[Array], Array], images: Array, labels: Array, store: Path
) -> None:
    path = run_of(store) / "images.parquet"
    good = path.read_bytes()
    truncate(path)
    with pytest.raises(PredictionsError, match=r"images.parquet' is damaged"):
        Predictions.open(store)
    with pytest.warns(DamagedChunkWarning, match="images.parquet"):
        collect(counting.loaded(), images, VIEWS, labels=labels, store=store)  # type: ignore[attr-defined]
    assert path.read_bytes() == good


def test_unfinished_files_of_the_dead_are_cleared_away(
    filled: Predictions, counting: Callable[[Array], Array], images: Array, labels: Array, store: Path
) -> None:
    left = part_of(store).with_name(".part-000001.parquet.0123.tmp")
    left.write_bytes(b"half of it")
    collect(counting.loaded(), images, VIEWS, labels=labels, store=store)  # type: ignore[attr-defined]
    assert not left.exists()


def test_unfinished_files_of_the_living_stay(
    filled: Predictions, counting: Callable[[Array], Array], images: Array, labels: Array, store: Path
) -> None:
    left = part_of(store).with_name(".part-000001.parquet.0123.tmp")
    with shared_lock(run_of(store) / "collecting.lock"):
        left.write_bytes(b"half of it")
        collect(counting.loaded(), images, VIEWS, labels=labels, store=store)  # type: ignore[attr-defined]
    assert left.exists()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"version": 2}, "version: Input should be 1"),
        ({"surprise": 1}, "surprise: Extra inputs are not permitted"),
        ({"views": 3}, "views: "),
        ({"skipped": [{"index": 50, "id": "a", "reason": "b"}]}, "skipped image 50 is not among the 50 images"),
    ],
)
def test_the_manifest_is_validated_on_reading(
    filled: Predictions, store: Path, change: dict[str, object], complaint: str
) -> None:
    path = run_of(store) / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(PredictionsError, match=f"manifest.json' cannot be used .*{complaint}"):
        Predictions.open(store)


def test_a_manifest_that_is_no_json(filled: Predictions, store: Path) -> None:
    (run_of(store) / "manifest.json").write_text("{")
    with pytest.raises(PredictionsError, match=r"cannot be used .*Invalid JSON"):
        Predictions.open(store)


def test_the_manifest_says_how_it_came_about(filled: Predictions, store: Path) -> None:
    manifest = json.loads((run_of(store) / "manifest.json").read_text())
    assert manifest["classifier"]["name"] == "counting"
    assert manifest["classifier"]["output"] == "logits"
    assert manifest["data"]["images"] == 50
    assert manifest["views"] == ["identity", "hflip"]
    assert manifest["classes"] == 4
    assert set(manifest["versions"]) == {"secondlook", "python", "numpy", "pyarrow"}


def test_no_store_and_an_empty_one(store: Path) -> None:
    with pytest.raises(PredictionsError, match="there is no store"):
        Predictions.open(store)
    store.mkdir()
    with pytest.raises(PredictionsError, match="holds no predictions"):
        Predictions.open(store)


def test_no_run_of_that_name(filled: Predictions, store: Path) -> None:
    with pytest.raises(PredictionsError, match="no single run whose name begins with 'nothing'"):
        Predictions.open(store, run="nothing")


def test_views_that_are_not_there(filled: Predictions, store: Path) -> None:
    with pytest.raises(PredictionsError, match="view 'vflip' is not among the predictions"):
        Predictions.open(store, views="identity vflip")


def test_opened_without_a_classifier_it_is_the_same(filled: Predictions, labels: Array, store: Path) -> None:
    opened = Predictions.open(store)
    np.testing.assert_array_equal(opened.logits, filled.logits)
    np.testing.assert_array_equal(opened.labels, labels)
    assert list(opened.ids) == list(filled.ids)
    assert opened.views == VIEWS


@given(
    st.permutations(range(50)), st.integers(1, 50), st.sampled_from([["identity"], ["hflip"], ["identity", "hflip"]])
)
@settings(deadline=None, max_examples=25)
def test_any_selection_is_read_right(
    shuffled_store: tuple[Predictions, Array], order: list[int], count: int, views: list[str]
) -> None:
    opened, logits = shuffled_store
    chosen = opened.select(images=order[:count], views=views)
    kept = [0] if views == ["identity"] else [0, 1]
    np.testing.assert_array_equal(chosen.logits, logits[order[:count]][:, kept])
    pieces = [block for _, block in chosen.logit_blocks(7)]
    np.testing.assert_array_equal(np.concatenate(pieces), logits[order[:count]][:, kept])


@pytest.fixture(scope="module")
def shuffled_store(tmp_path_factory: pytest.TempPathFactory) -> tuple[Predictions, Array]:
    """A run of 50 images with 3,000 classes: its parts have several row groups."""
    from secondlook.classifiers import load_classifier

    store = tmp_path_factory.mktemp("store")
    random = np.random.default_rng(0)
    model = load_classifier(lambda batch: random.normal(size=(len(batch), 3000)), name="random", output="logits")
    opened = collect(model, np.zeros((50, 2, 2, 3), dtype=np.uint8), VIEWS, store=store)
    return opened, opened.logits


def test_parts_are_parquet_that_others_read(filled: Predictions, store: Path) -> None:
    table = pq.read_table(part_of(store, "identity", 3))
    assert table.column_names == ["index", "logits"]
    assert table["index"].to_pylist() == [48, 49]
    np.testing.assert_array_equal(np.array(table["logits"].to_pylist(), dtype=np.float32), filled.logits[48:, 0])


@given(st.data())
@settings(deadline=None, max_examples=100)
def test_any_changed_byte_is_noticed_or_does_no_harm(stored_part: tuple[Path, Chunk], data: st.DataObject) -> None:
    path, part = stored_part
    good = path.read_bytes()
    content = bytearray(good)
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    damaged = path.with_name("damaged.parquet")
    damaged.write_bytes(content)
    try:
        found = ChunkFile(damaged, PLACE, "logits").read()
    except DamagedChunkError:
        return
    np.testing.assert_array_equal(found.answers, part.answers)
    np.testing.assert_array_equal(found.indices, part.indices)


@pytest.fixture(scope="module")
def stored_part(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Chunk]:
    path = tmp_path_factory.mktemp("part") / "part.parquet"
    answers = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    part = Chunk(np.array([0, 1, 3, 4, 5]), answers, (SkippedImage(index=2, id="two", reason="broken"),))
    write_chunk(path, PLACE, "logits", part)
    return path, part


def test_a_part_comes_back_as_it_was_and_always_in_the_same_bytes(
    stored_part: tuple[Path, Chunk], tmp_path: Path
) -> None:
    path, part = stored_part
    found = ChunkFile(path, PLACE, "logits").read()
    assert found.skipped == part.skipped
    write_chunk(tmp_path / "again", PLACE, "logits", part)
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


def test_groups_are_bounded_powers_of_two() -> None:
    assert [rows_per_group(classes) for classes in (1, 10, 100, 1000, 21_000, 10**6)] == [1024, 1024, 512, 64, 16, 16]


def test_views_of_different_images_are_never_put_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    for number in range(6):
        side = 40 if number == 2 else 8
        Image.fromarray(np.full((side, side, 3), 40 * number, np.uint8)).save(tmp_path / "pictures" / f"{number}.png")

    def brightness(batch: Array) -> Array:
        bright = batch.mean(axis=(1, 2, 3)) / 255
        return np.stack([bright, 1 - bright], axis=1)

    model = load_classifier(brightness, name="brightness", resize=(8, 8))
    data, store = f"folder:{tmp_path / 'pictures'}", tmp_path / "store"
    expected = np.repeat(40 * np.arange(6)[:, None] / 255, 2, axis=1)
    collect(model, data, "identity", store=store)
    mixed = collect(model, f"{data}?max_pixels=100", "identity hflip", store=store, on_error="skip")
    with pytest.raises(PredictionsError, match=r"view 'hflip' .* is about other images than that of view 'identity'"):
        mixed.probabilities  # noqa: B018 -- reading is what fails
    mended = collect(model, data, "identity hflip", store=store)
    np.testing.assert_allclose(mended.probabilities[:, :, 0], expected, atol=1e-6)


def test_what_could_not_be_read_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    for number in range(20):
        side = 40 if number == 17 else 4
        picture = Image.fromarray(np.full((side, side, 3), 10 * number, np.uint8))
        picture.save(tmp_path / "pictures" / f"{number:02d}.png")
    asked: list[int] = []

    def answer(batch: Array) -> Array:
        asked.append(len(batch))
        bright = batch.mean(axis=(1, 2, 3)) / 255
        return np.stack([bright, 1 - bright], axis=1)

    model = load_classifier(answer, name="brightness", resize=(4, 4))
    data, store = f"folder:{tmp_path / 'pictures'}", tmp_path / "store"
    for _ in range(2):  # the second time nothing is asked again
        few = collect(model, f"{data}?max_pixels=100", "identity hflip", store=store, on_error="skip")
        assert [name for name, _ in few.skipped] == ["17.png"]
    assert sum(asked) == 2 * 19
    everything = collect(model, data, "identity hflip", store=store)
    assert everything.n_images == 20
    assert sum(asked) == 2 * 19 + 2 * 4, "only the part that it is in, of images 16 to 19"
    np.testing.assert_allclose(everything.probabilities[:, 1, 0], 10 * np.arange(20) / 255, atol=1e-6)


@pytest.mark.usefixtures("filled")
def test_what_the_system_refuses_for_now_is_not_damage(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = pq.ParquetFile

    def busy(path: Path, **options: Any) -> pq.ParquetFile:
        if path.name.startswith("part-"):
            raise OSError(errno.EIO, "Input/output error")
        return opened(path, **options)

    before = sorted(store.rglob("part-*.parquet"))
    monkeypatch.setattr(pq, "ParquetFile", busy)
    with pytest.raises(PredictionsError, match=r"cannot be read: Input/output error; .* try again") as caught:
        Predictions.open(store).probabilities  # noqa: B018
    assert not isinstance(caught.value, DamagedChunkError)
    assert sorted(store.rglob("part-*.parquet")) == before
