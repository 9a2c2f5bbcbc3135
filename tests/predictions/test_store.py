"""Stores: readable by other tools, verified when read, repaired when damaged; manifests are validated."""

import errno
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook.arrays import Array
from secondlook.classifiers import load_classifier
from secondlook.errors import PredictionsError
from secondlook.files import shared_lock
from secondlook.predictions import DamagedChunkWarning, Execution, Predictions, collect
from secondlook.predictions.store import DamagedChunkError, group_rows
from secondlook.views import ViewSet
from tests.predictions.conftest import CountingFunction, write_images

VIEWS = ViewSet("identity hflip")
Collect = Callable[[], Predictions]


def chunk_path(store: Path, view: str = "hflip", number: int = 1) -> Path:
    paths = store.glob(f"*/*/part-{number:06d}-*.parquet")
    (path,) = (path for path in paths if pq.read_schema(path).metadata.get(b"secondlook.view") == view.encode())
    return path


@pytest.fixture
def collect_again(counting: CountingFunction, images: Array, labels: Array, store: Path) -> Collect:
    """Collect what `stored` has into the same store."""
    return lambda: collect(counting.load(), images, VIEWS, labels=labels, store=store)


def damage_bit(content: bytes) -> bytes:
    damaged = bytearray(content)
    damaged[len(content) // 4] ^= 16
    return bytes(damaged)


@pytest.mark.parametrize("is_images_file", [False, True])
@pytest.mark.parametrize("damage", [lambda content: content[:-20], lambda _: b"", damage_bit])
def test_damaged_file_is_reported_and_rewritten(
    stored: Predictions,
    counting: CountingFunction,
    collect_again: Collect,
    store: Path,
    damage: Callable[[bytes], bytes],
    is_images_file: bool,
) -> None:
    path = next(store.glob("*/images/*")) if is_images_file else chunk_path(store)
    content, logits = path.read_bytes(), stored.logits
    path.write_bytes(damage(content))
    with pytest.raises(DamagedChunkError, match=re.escape(repr(str(path)))):
        _ = Predictions.open(store).logits
    with pytest.warns(DamagedChunkWarning, match=re.escape(repr(str(path)))):
        repaired = collect_again()
    assert counting.images == 2 * 50 + (0 if is_images_file else 16)
    assert path.read_bytes() == content
    np.testing.assert_array_equal(repaired.logits, logits)


@pytest.mark.usefixtures("stored")
def test_missing_chunk_is_computed_and_temporary_files_are_kept_in_use(collect_again: Collect, store: Path) -> None:
    path = chunk_path(store)
    content = path.read_bytes()
    path.unlink()
    with pytest.raises(PredictionsError, match=r"1 of 8 chunks .* 1 of 2 views"):
        Predictions.open(store)
    assert Predictions.open(store, views="identity").n_views == 1
    collect_again()
    assert chunk_path(store).read_bytes() == content
    temporary = path.with_name(".part-000001.parquet." + "01" * 16 + ".secondlook.tmp")
    temporary.write_bytes(b"incomplete")
    with shared_lock(path.parents[1] / "collecting.lock"):
        collect_again()
    assert temporary.exists()
    collect_again()
    assert not temporary.exists()


def test_of_two_different_chunks_all_use_the_same(
    stored: Predictions, counting: CountingFunction, images: Array, store: Path, tmp_path: Path
) -> None:
    """Two processes may compute one chunk at the same time, equal up to rounding, and neither file is damaged."""
    rounded = load_classifier(lambda batch: counting(batch) + 1e-3, name="counting", output="logits")
    collect(rounded, images, VIEWS, store=tmp_path / "rounded")
    path, other = chunk_path(store), chunk_path(tmp_path / "rounded")
    shutil.copy(other, path.parent)
    found = Predictions.open(store).logits
    assert np.array_equal(found, stored.logits) == (path.name < other.name)
    np.testing.assert_allclose(found, stored.logits, atol=2e-3)


def test_missing_stores_and_views_are_rejected(counting: CountingFunction, images: Array, store: Path) -> None:
    for folder in (store, store.parent):  # missing, and empty
        with pytest.raises(PredictionsError, match=re.escape(repr(str(folder)))):
            Predictions.open(folder)
    collect(counting.load(), images, VIEWS, store=store)
    with pytest.raises(PredictionsError, match="'vflip'"):
        Predictions.open(store, views="identity vflip")


@pytest.fixture(scope="module")
def wide_store(tmp_path_factory: pytest.TempPathFactory) -> tuple[Predictions, Array, Path]:
    """50 images with 3,000 classes: chunks have several row groups."""
    store = tmp_path_factory.mktemp("store")
    random = np.random.default_rng(0)
    model = load_classifier(lambda batch: random.normal(size=(len(batch), 3000)), name="random", output="logits")
    opened = collect(model, np.zeros((50, 2, 2, 3), dtype=np.uint8), VIEWS, store=store)
    return opened, opened.logits, store


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


def test_chunks_are_read_by_other_tools_and_selected_outputs_only_once(stored: Predictions, store: Path) -> None:
    table = pq.read_table(chunk_path(store, "identity", 3))
    assert table.column_names == ["index", "logits"]
    assert table["index"].to_pylist() == [48, 49]
    names = ["secondlook.job", "secondlook.chunk", "secondlook.view", "secondlook.skipped"]
    assert set(table.schema.metadata) == set(map(str.encode, names))
    np.testing.assert_array_equal(np.array(table["logits"].to_pylist(), dtype=np.float32), stored.logits[48:, 0])
    # Row groups are bounded powers of two.
    assert [group_rows(classes) for classes in (1, 10, 100, 1000, 21_000, 10**6)] == [1024, 1024, 512, 64, 16, 16]
    logits, opened = stored.logits, Predictions.open(store)
    selected, predicted = opened.select(images=[3, 1], views="identity"), opened.predicted("image")
    kept = chunk_path(store, "identity", 0)
    for path in store.glob("*/*/part-*"):
        if path != kept:
            path.unlink()
    np.testing.assert_array_equal(selected.logits, logits[[3, 1]][:, :1])
    kept.unlink()
    np.testing.assert_array_equal(opened.predicted("image"), predicted)


def classify_by_brightness(batch: Array) -> Array:
    brightness = batch.mean(axis=(1, 2, 3)) / 255
    return np.stack([brightness, 1 - brightness], axis=1)


def write_gray_images(folder: Path, count: int, large: int) -> str:
    """Write images of increasing brightness, one of which is too large for `max_pixels=100`."""
    sides = [40 if number == large else 6 for number in range(count)]
    return write_images(folder, [np.full((side, side, 3), 10 * n, np.uint8) for n, side in enumerate(sides)])


def test_views_of_different_images_are_never_combined(tmp_path: Path, store: Path) -> None:
    model = load_classifier(classify_by_brightness, name="brightness", resize=(6, 6))
    data = write_gray_images(tmp_path / "images", 6, large=2)
    collect(model, data, "identity", store=store)
    mixed = collect(model, f"{data}?max_pixels=100", VIEWS, store=store, execution=Execution(on_error="skip"))
    with pytest.raises(DamagedChunkError, match=r"'hflip'.*'identity'"):
        _ = mixed.probabilities
    repaired = collect(model, data, VIEWS, store=store)
    expected = np.repeat(10 * np.arange(6)[:, None] / 255, 2, axis=1)
    np.testing.assert_allclose(repaired.probabilities[:, :, 0], expected, atol=1e-6)


def test_skipped_images_are_retried(tmp_path: Path, store: Path) -> None:
    sizes: list[int] = []

    def classify(batch: Array) -> Array:
        sizes.append(len(batch))
        return classify_by_brightness(batch)

    model = load_classifier(classify, name="brightness", resize=(6, 6))
    data = write_gray_images(tmp_path / "images", 20, large=17)
    for _ in range(2):  # the second time nothing is computed
        incomplete = collect(model, f"{data}?max_pixels=100", VIEWS, store=store, execution=Execution(on_error="skip"))
        assert [name for name, _ in incomplete.skipped] == ["017.png"]
    assert sum(sizes) == 2 * 19
    complete = collect(model, data, VIEWS, store=store)
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


# --- Manifests ---


@pytest.fixture
def manifest(stored: Predictions, store: Path) -> Path:
    return next(store.glob("*/manifest.json"))


def change(path: Path, **changes: object) -> None:
    """Change a manifest into one without a checksum, as in stores of earlier versions."""
    content = json.loads(path.read_text())
    for name, value in changes.items():
        holder = {"images": content["data"], "output": content["classifier"]}.get(name, content)
        holder[name] = value
    del content["checksum"]
    path.write_text(json.dumps(content))


SKIPPED = [{"index": index, "id": "a", "reason": "b"} for index in range(51)]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"version": 2}, "version"),
        ({"surprise": 1}, "surprise"),
        ({"views": 3}, "views"),
        ({"rows_per_chunk": 0}, "rows_per_chunk"),
        ({"rows_per_chunk": 10**30}, "rows_per_chunk"),
        ({"classes": 0}, "classes"),
        ({"skipped": SKIPPED[50:]}, "skipped image 50"),
        ({"skipped": SKIPPED[:50]}, "all of the 50 images"),
        # These are valid by themselves, but the files are the ground truth, and so many images would take forever.
        ({"images": 10**15}, f"{10**15} images.*50"),
        ({"images": 40}, "40 images.*50"),
        ({"classes": 10**12}, f"{10**12} classes.*4"),
        ({"classes": 3}, "3 classes.*4"),
        ({"output": "probabilities"}, "probabilities"),
    ],
)
def test_invalid_manifest_is_rejected(
    manifest: Path, store: Path, collect_again: Collect, changes: dict[str, object], fault: str
) -> None:
    change(manifest, **changes)
    is_contradiction = fault in ("probabilities",) or ".*" in fault
    for read in (lambda: Predictions.open(store), *([collect_again] if changes == {"images": 10**15} else [])):
        with pytest.raises(
            PredictionsError, match=fault if is_contradiction else f"{re.escape(str(manifest))}.*{fault}"
        ):
            read()


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("member", ["../entry", "/dev/null", "\0", "a" * 5000])
def test_ensemble_of_other_folders_is_rejected(store: Path, member: str) -> None:
    (store / "ensemble").mkdir()
    (store / "ensemble" / "ensemble.json").write_text(json.dumps({"version": 1, "members": [member]}))
    with pytest.raises(PredictionsError, match=r"members\.0"):
        Predictions.open(store / "ensemble")


def test_manifest_records_what_was_collected_and_is_rejected_if_changed(manifest: Path, store: Path) -> None:
    content: dict[str, Any] = json.loads(manifest.read_text())
    assert (content["classifier"]["name"], content["classifier"]["output"]) == ("counting", "logits")
    assert (content["data"]["images"], content["data"]["labeled"]) == (50, True)
    assert (content["views"], content["rows_per_chunk"], content["classes"]) == (["identity", "hflip"], 16, 4)
    assert set(content["versions"]) == {"secondlook", "python", "numpy", "pyarrow"}
    manifest.write_text(manifest.read_text().replace('"counting"', '"countinG"'))
    with pytest.raises(PredictionsError, match="checksum"):
        Predictions.open(store)
    manifest.write_text("{")
    with pytest.raises(PredictionsError, match=f"{re.escape(str(manifest))}.*JSON"):
        Predictions.open(store)
