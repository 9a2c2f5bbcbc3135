"""The ranking on a Ray cluster equals that of one process to the last bit."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from secondlook.arrays import Array
from secondlook.classifiers import load_classifier
from secondlook.cluster import rank_on_cluster, read_masses
from secondlook.errors import ConfidenceError
from secondlook.estimators import confidence, default_resamplings, plurality_confidence, view_resampling_counts
from secondlook.report import create_run
from tests.conftest import PickledEngine

pytestmark = [
    pytest.mark.posix,
    pytest.mark.xdist_group("ray"),  # with --dist loadgroup, one test process starts the cluster
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context"),
]


@pytest.fixture
def ray(connected: Any) -> Any:
    """Ray, connected to a cluster."""
    import ray

    return ray


def make_table(numbers: Array, other_mass: Array) -> pa.Table:
    lists = pa.FixedSizeListArray.from_arrays(np.ascontiguousarray(other_mass).reshape(-1), other_mass.shape[1])
    return pa.table({"image": numbers, "other_mass": lists})


def make_other_mass(n: int, views: int) -> Array:
    """Return masses with copies of images, images of zeros, one of them negative, and values close to others."""
    generator = np.random.default_rng(0)
    other_mass = generator.random((n, views)) ** 6
    other_mass[n // 2 : n // 2 + 30] = other_mass[30:60]
    other_mass[-12:] = 0.0
    other_mass[-1] = -0.0
    other_mass[-20:-12] = other_mass[:8] * (1 + 1e-9)
    return other_mass


def test_ranking_on_a_cluster_equals_that_of_one_process(ray: Any, tmp_path: Path) -> None:
    other_mass, counts = make_other_mass(300, 5), view_resampling_counts(5, 40, 0)
    numbers = np.arange(300) * 3 + 5
    order = np.random.default_rng(1).permutation(300)
    for part, some in enumerate(np.array_split(order, 2)):
        pq.write_table(make_table(numbers[some], other_mass[some]), tmp_path / f"{part}.parquet")
    found = rank_on_cluster(ray.data.read_parquet(str(tmp_path)), counts, 7, entries_per_range=6500)
    np.testing.assert_array_equal(found, plurality_confidence(other_mass, counts, 7))


@pytest.mark.parametrize(("numbers", "offending"), [([0, 4, 4], "number 4"), ([0, 1, 2**32], str(2**32))])
def test_invalid_numbers_are_rejected(ray: Any, numbers: list[int], offending: str) -> None:
    masses = ray.data.from_arrow(make_table(np.array(numbers), np.full((3, 2), 0.5)))
    with pytest.raises(ConfidenceError, match=offending):
        rank_on_cluster(masses, np.ones((2, 4)))


@pytest.mark.parametrize(("other_mass", "offending"), [(np.full((3, 2), np.nan), "NaN"), (np.ones((3, 3)), "3 values")])
def test_invalid_masses_are_rejected(ray: Any, other_mass: Array, offending: str) -> None:
    masses = ray.data.from_arrow(make_table(np.arange(3), other_mass))
    with pytest.raises(ConfidenceError, match=offending):
        rank_on_cluster(masses, np.ones((2, 4)))


def test_statistics_of_a_run_are_ranked(ray: Any, pickled_engine: PickledEngine, tmp_path: Path) -> None:
    """One image is broken, and so are all of a chunk of seven."""
    images = np.random.default_rng(2).integers(0, 256, (40, 6, 6, 3), dtype=np.uint8)
    (tmp_path / "new").mkdir()
    for number, image in enumerate(images):
        content = b"broken" if number == 3 or 7 <= number < 14 else None
        path = tmp_path / "new" / f"{number % 2}" / f"{number:02d}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(image).save(path)
        if content is not None:
            path.write_bytes(content)

    def classify(batch: Any) -> Any:
        bright = 1 / (1 + np.exp(-(batch.mean(axis=(1, 2, 3)) - 127.5) / 4))
        return np.stack([1 - bright, bright], axis=1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("secondlook.predictions.collection.chunk_rows", lambda *_: 7)
        run = create_run(
            load_classifier(classify, name="brightness"),
            f"folder:{tmp_path / 'new'}",
            tmp_path / "run",
            views="identity, hflip, brightness:1.01",
            methods=["msr", "bootstrap"],
            resamples=5,
            check_setup=False,
            engine=pickled_engine,
            progress=False,
        )
    (folder,) = (tmp_path / "run" / "statistics").iterdir()
    counts = view_resampling_counts(3, default_resamplings(3), 0)
    found = rank_on_cluster(read_masses(folder), counts)
    np.testing.assert_array_equal(found, confidence(run.predictions, "bootstrap"))
    with pytest.raises(ConfidenceError, match="nowhere"):
        read_masses(tmp_path / "nowhere")
