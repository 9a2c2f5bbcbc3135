"""Stores: readable by other tools, verified when read, repaired when damaged."""

import errno
import re
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from secondlook.arrays import Array
from secondlook.classifiers import Classifier, load_classifier
from secondlook.errors import PredictionsError
from secondlook.files import shared_lock
from secondlook.predictions import (
    DamagedChunkWarning,
    Execution,
    Predictions,
    batching,
    collect,
)
from secondlook.predictions.store import Chunk, DamagedChunkError, StoreEntry, group_rows, view_key
from secondlook.views import ViewSet

VIEWS = ViewSet("identity hflip")


class Counting(Protocol):
    images: int

    def load(self, name: str = "counting") -> Classifier: ...


def entry_folder(store: Path) -> Path:
    (folder,) = store.iterdir()
    return folder


def chunk_path(store: Path, view: str = "hflip", number: int = 1) -> Path:
    (path,) = (entry_folder(store) / view_key(view)).glob(f"part-{number:06d}-*.parquet")
    return path


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 4] ^= 16
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [truncate, empty, flip_a_bit])
def test_damaged_chunk_is_reported_and_recomputed(
    stored: Predictions,
    counting: Counting,
    images: Array,
    labels: Array,
    store: Path,
    damage: Callable[[Path], None],
) -> None:
    path = chunk_path(store)
    content, logits = path.read_bytes(), stored.logits
    damage(path)
    with pytest.raises(DamagedChunkError, match=re.escape(repr(str(path)))):
        _ = Predictions.open(store).logits
    counting.images = 0
    with pytest.warns(DamagedChunkWarning, match=re.escape(repr(str(path)))):
        repaired = collect(counting.load(), images, VIEWS, labels=labels, store=store)
    assert counting.images == 16
    assert path.read_bytes() == content
    np.testing.assert_array_equal(repaired.logits, logits)


def test_of_two_different_chunks_every_process_uses_the_same(stored: Predictions, store: Path) -> None:
    """Two processes may compute one chunk at the same time, equal up to rounding, and neither file is damaged."""
    logits = stored.logits
    path = chunk_path(store)
    entry = StoreEntry.open(entry_folder(store))
    indices, outputs = entry.read_rows("hflip", 1, [0])
    StoreEntry.open(entry.folder).write_chunk("hflip", 1, Chunk(indices, outputs + np.float32(1e-3)))
    files = sorted(path.parent.glob("part-000001-*"))
    assert len(files) == 2
    is_first = files[0] == path
    assert np.array_equal(Predictions.open(store).logits, logits) == is_first
    np.testing.assert_allclose(Predictions.open(store).logits, logits, atol=2e-3)


def test_row_groups_are_bounded_powers_of_two() -> None:
    assert [group_rows(classes) for classes in (1, 10, 100, 1000, 21_000, 10**6)] == [1024, 1024, 512, 64, 16, 16]


@pytest.mark.usefixtures("stored")
def test_missing_chunk_is_reported_and_computed(counting: Counting, images: Array, labels: Array, store: Path) -> None:
    path = chunk_path(store)
    content = path.read_bytes()
    path.unlink()
    with pytest.raises(PredictionsError, match=r"1 of 8 chunks .* 1 of 2 views"):
        Predictions.open(store)
    assert Predictions.open(store, views="identity").n_views == 1
    collect(counting.load(), images, VIEWS, labels=labels, store=store)
    assert chunk_path(store).read_bytes() == content


@pytest.mark.usefixtures("stored")
def test_damaged_images_file_is_reported_and_rewritten(
    counting: Counting, images: Array, labels: Array, store: Path
) -> None:
    (path,) = (entry_folder(store) / "images").iterdir()
    content = path.read_bytes()
    truncate(path)
    with pytest.raises(DamagedChunkError, match=re.escape(repr(str(path)))):
        Predictions.open(store)
    with pytest.warns(DamagedChunkWarning, match=re.escape(repr(str(path)))):
        collect(counting.load(), images, VIEWS, labels=labels, store=store)
    assert path.read_bytes() == content


@pytest.mark.usefixtures("stored")
def test_temporary_files_of_killed_processes_are_removed(
    counting: Counting, images: Array, labels: Array, store: Path
) -> None:
    temporary = chunk_path(store).with_name(".part-000001.parquet." + "01" * 16 + ".tmp")
    temporary.write_bytes(b"incomplete")
    collect(counting.load(), images, VIEWS, labels=labels, store=store)
    assert not temporary.exists()


@pytest.mark.usefixtures("stored")
def test_temporary_files_of_running_processes_are_kept(
    counting: Counting, images: Array, labels: Array, store: Path
) -> None:
    temporary = chunk_path(store).with_name(".part-000001.parquet." + "01" * 16 + ".tmp")
    with shared_lock(entry_folder(store) / "collecting.lock"):
        temporary.write_bytes(b"incomplete")
        collect(counting.load(), images, VIEWS, labels=labels, store=store)
    assert temporary.exists()


def test_missing_and_empty_stores_are_rejected(store: Path) -> None:
    with pytest.raises(PredictionsError, match=re.escape(repr(str(store)))):
        Predictions.open(store)
    store.mkdir()
    with pytest.raises(PredictionsError, match=re.escape(repr(str(store)))):
        Predictions.open(store)


@pytest.mark.usefixtures("stored")
def test_unknown_view_is_rejected(store: Path) -> None:
    with pytest.raises(PredictionsError, match="'vflip'"):
        Predictions.open(store, views="identity vflip")


@given(
    st.permutations(range(50)), st.integers(1, 50), st.sampled_from([["identity"], ["hflip"], ["identity", "hflip"]])
)
@settings(deadline=None, max_examples=25)
def test_any_selection_is_read_correctly(
    wide_store: tuple[Predictions, Array, Path], order: list[int], count: int, views: list[str]
) -> None:
    opened, logits, _ = wide_store
    selected = opened.select(images=order[:count], views=views)
    expected = logits[order[:count]][:, [0] if views == ["identity"] else [0, 1]]
    np.testing.assert_array_equal(selected.logits, expected)
    np.testing.assert_array_equal(np.concatenate([block for _, block in selected.logit_blocks(7)]), expected)


@pytest.fixture(scope="module")
def wide_store(tmp_path_factory: pytest.TempPathFactory) -> tuple[Predictions, Array, Path]:
    """50 images with 3,000 classes: chunks have several row groups."""
    store = tmp_path_factory.mktemp("store")
    random = np.random.default_rng(0)
    model = load_classifier(lambda batch: random.normal(size=(len(batch), 3000)), name="random", output="logits")
    opened = collect(model, np.zeros((50, 2, 2, 3), dtype=np.uint8), VIEWS, store=store)
    return opened, opened.logits, store


def test_chunks_can_be_read_by_other_tools(stored: Predictions, store: Path) -> None:
    table = pq.read_table(chunk_path(store, "identity", 3))
    assert table.column_names == ["index", "logits"]
    assert table["index"].to_pylist() == [48, 49]
    names = ["secondlook.job", "secondlook.chunk", "secondlook.view", "secondlook.skipped"]
    assert set(table.schema.metadata) == set(map(str.encode, names))
    assert table.schema.metadata[b"secondlook.view"] == b"identity"
    np.testing.assert_array_equal(np.array(table["logits"].to_pylist(), dtype=np.float32), stored.logits[48:, 0])


def classify_by_brightness(batch: Array) -> Array:
    brightness = batch.mean(axis=(1, 2, 3)) / 255
    return np.stack([brightness, 1 - brightness], axis=1)


def test_views_of_different_images_are_never_combined(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for number in range(6):
        side = 40 if number == 2 else 8
        Image.fromarray(np.full((side, side, 3), 40 * number, np.uint8)).save(tmp_path / "images" / f"{number}.png")
    model = load_classifier(classify_by_brightness, name="brightness", resize=(8, 8))
    data, store = f"folder:{tmp_path / 'images'}", tmp_path / "store"
    expected = np.repeat(40 * np.arange(6)[:, None] / 255, 2, axis=1)
    collect(model, data, "identity", store=store)
    mixed = collect(
        model, f"{data}?max_pixels=100", "identity hflip", store=store, execution=Execution(on_error="skip")
    )
    with pytest.raises(DamagedChunkError, match=r"'hflip'.*'identity'"):
        _ = mixed.probabilities
    repaired = collect(model, data, "identity hflip", store=store)
    np.testing.assert_allclose(repaired.probabilities[:, :, 0], expected, atol=1e-6)


def test_skipped_images_are_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "CHUNK_BYTES", 16 * 4 * 4 * 3)
    (tmp_path / "images").mkdir()
    for number in range(20):
        side = 40 if number == 17 else 4
        image = Image.fromarray(np.full((side, side, 3), 10 * number, np.uint8))
        image.save(tmp_path / "images" / f"{number:02d}.png")
    sizes: list[int] = []

    def classify(batch: Array) -> Array:
        sizes.append(len(batch))
        return classify_by_brightness(batch)

    model = load_classifier(classify, name="brightness", resize=(4, 4))
    data, store = f"folder:{tmp_path / 'images'}", tmp_path / "store"
    for _ in range(2):  # the second time nothing is computed
        incomplete = collect(
            model, f"{data}?max_pixels=100", "identity hflip", store=store, execution=Execution(on_error="skip")
        )
        assert [name for name, _ in incomplete.skipped] == ["17.png"]
    assert sum(sizes) == 2 * 19
    complete = collect(model, data, "identity hflip", store=store)
    assert complete.n_images == 20
    assert sum(sizes) == 2 * 19 + 2 * 4, "only its chunk, images 16 to 19, is recomputed"
    np.testing.assert_allclose(complete.probabilities[:, 1, 0], 10 * np.arange(20) / 255, atol=1e-6)


@pytest.mark.usefixtures("stored")
def test_temporary_read_error_is_not_damage(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: str) -> pa.MemoryMappedFile:
        raise OSError(errno.EIO, "Input/output error")

    before = sorted(store.rglob("part-*.parquet"))
    monkeypatch.setattr(pa, "memory_map", fail)
    with pytest.raises(PredictionsError, match="Input/output error") as caught:
        _ = Predictions.open(store).probabilities
    assert not isinstance(caught.value, DamagedChunkError)
    assert sorted(store.rglob("part-*.parquet")) == before


@given(st.data())
@settings(deadline=None, max_examples=50)
def test_any_flipped_bit_is_detected(wide_store: tuple[Predictions, Array, Path], data: st.DataObject) -> None:
    path = sorted(wide_store[2].rglob("part-000000-*"))[data.draw(st.integers(0, 2))]
    content = path.read_bytes()
    damaged = bytearray(content)
    damaged[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(damaged)
    try:
        with pytest.raises(DamagedChunkError):
            _ = Predictions.open(wide_store[2]).logits
    finally:
        path.write_bytes(content)
