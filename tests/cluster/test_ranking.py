"""The ranking on a Ray cluster equals that of one process to the last bit."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from secondlook.arrays import Array
from secondlook.cluster import rank_on_cluster
from secondlook.errors import ConfidenceError
from secondlook.estimators import plurality_confidence, view_resampling_counts

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
