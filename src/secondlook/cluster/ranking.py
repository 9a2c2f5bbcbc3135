"""The ranking BS(D) of more images than fit on one machine: their values are sorted by Ray Data, range by range."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from secondlook.arrays import Array, BoolArray, Float64Array, IntArray
from secondlook.cluster.connection import connect, summarize_error
from secondlook.errors import ClusterError, ConfidenceError
from secondlook.estimators import (
    WindowRanking,
    check_window,
    count_bin_sizes,
    make_entries,
    rank_by_ranges,
    spread_confidences,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from ray.data import Dataset

IMAGE, OTHER_MASS, ENTRY = "image", "other_mass", "entry"
"""Columns."""

ENTRIES_PER_RANGE = 1 << 27
"""Entries in the object store at a time, 8 bytes each: 1 GiB, and as much again while they are sorted."""
IMAGES_PER_BATCH = 4096
MAX_NUMBER = 2**32
"""Numbers of images must be below: an entry has 32 bits for them."""


def rank_on_cluster(
    masses: "Dataset",
    counts: Array,
    window: int | None = None,
    *,
    address: str | None = None,
    entries_per_range: int = ENTRIES_PER_RANGE,
) -> Float64Array:
    """Return what `plurality_confidence` returns, to the last bit, for images that are anywhere on a Ray cluster.

    All resampled values are sorted by Ray Data, one range of values at a time, and pass through the window in this
    process. It holds about 60 bytes per image; the object store holds one range. The other-class mass is read once for
    each range, so it should be cheap to read, as from Parquet files.

    Parameters
    ----------
    masses
        A row for each image: its number in the column 'image', an integer from 0 that no other image has, and the
        `other_class_mass` of its outputs in the column 'other_mass', a list of V floats. See `read_masses`.
    counts
        How often each resampling draws each output, [V, B].
    window
        Number of entries in the window, by default B.
    address
        Address of the cluster, as in `RayEngine`.
    entries_per_range
        Number of values to sort at a time; a range of nearly equal values may have more.

    Returns
    -------
    float64 [N]
        The confidences of the images in the order of their numbers.
    """
    counts = np.ascontiguousarray(counts, dtype=np.float64)
    window = check_window(window, counts)
    with connect(address) as ray, _translate_errors(ray):
        numbers, digests, bin_sizes = _summarize(masses, counts)

        def sort(low: int, high: int, is_ranked: BoolArray) -> Iterator[Array]:
            return _iter_sorted(masses, counts, low, high, ray.put(np.packbits(is_ranked)))

        ranking = WindowRanking(len(numbers), window, int(numbers[-1]) + 1)
        order = rank_by_ranges(ranking, bin_sizes, entries_per_range, sort)
    return spread_confidences(np.searchsorted(numbers, order), *_group_equal(digests))


def read_masses(folder: str | Path) -> "Dataset":
    """Return the other-class mass of all images of an evaluation, for `rank_on_cluster`, from its folder of statistics.

    Such a folder is 'statistics/KEY' in the folder of a run, on a disk that all machines share. Images are numbered in
    the order of their source, without those that could not be read. This process must be connected to Ray.
    """
    import pyarrow.parquet as pq
    import ray.data

    files = sorted(Path(folder).absolute().glob("part-*.parquet"))
    metadata = [pq.read_metadata(file) for file in files]
    if not any(one.num_rows and OTHER_MASS in one.schema.to_arrow_schema().names for one in metadata):
        raise ConfidenceError(
            f"{str(folder)!r} has no statistics with {OTHER_MASS!r}; evaluate the method 'bootstrap' with an engine, "
            "and pass the folder in 'statistics' of its run."
        )
    sizes = [one.num_rows for one in metadata]
    firsts = np.cumsum([0, *sizes[:-1]]).tolist()
    parts = [
        {"path": str(file), "first": first}
        for file, first, size in zip(files, firsts, sizes, strict=True)
        if size  # a part without readable images has no columns
    ]
    masses = ray.data.from_items(parts, override_num_blocks=len(parts))
    return masses.map_batches(_read_part, batch_size=1, batch_format="pyarrow")


def _read_part(part: "pa.Table") -> "pa.Table":
    import pyarrow as pa
    import pyarrow.parquet as pq

    (row,) = part.to_pylist()
    masses = pq.read_table(row["path"], columns=[OTHER_MASS])[OTHER_MASS]
    return pa.table({IMAGE: row["first"] + np.arange(len(masses)), OTHER_MASS: masses})


@contextmanager
def _translate_errors(ray: Any) -> Iterator[None]:
    """Raise `ClusterError` where Ray or a worker fails."""
    try:
        yield
    except ray.exceptions.RayError as error:
        raise ClusterError(
            f"the images cannot be ranked on the Ray cluster: {summarize_error(error)}; install the same version of"
            " secondlook on all machines of the cluster."
        ) from error


def _summarize(masses: "Dataset", counts: Float64Array) -> tuple[IntArray, Array, IntArray]:
    """Return the numbers of all images, ascending, a digest of each, and how many values are in each bin.

    int64 [N], uint64 [N, 2], int64 [bins]
    """
    parts = _map(masses, _summarize_batch, counts=counts)
    numbers, digests, bin_sizes = [], [], np.zeros(0, dtype=np.int64)
    for row in parts.iter_rows():
        if row["error"] is not None:
            raise ConfidenceError(row["error"])
        numbers.append(np.frombuffer(row["numbers"], dtype=np.int64))
        digests.append(np.frombuffer(row["digests"], dtype=np.uint64).reshape(-1, 2))
        places, sizes = np.frombuffer(row["bins"], dtype=np.int64).reshape(2, -1)
        bin_sizes = np.pad(bin_sizes, (0, max(0, places[-1] + 1 - len(bin_sizes))))
        bin_sizes[places] += sizes
    if not numbers:
        raise ConfidenceError("there are no images to rank; expected a row for each image.")
    joined = np.concatenate(numbers)
    order = np.argsort(joined, kind="stable")
    joined = joined[order]
    if joined[0] < 0 or joined[-1] >= MAX_NUMBER:
        wrong = joined[0] if joined[0] < 0 else joined[-1]
        raise ConfidenceError(f"the number of an image is {wrong}; expected 0 to {MAX_NUMBER - 1}.")
    repeated = np.flatnonzero(np.diff(joined) == 0)
    if len(repeated):
        raise ConfidenceError(f"two images have the number {joined[repeated[0]]}; expected one for each image.")
    return joined, np.concatenate(digests)[order], bin_sizes


def _summarize_batch(batch: "pa.Table", counts: Float64Array) -> "pa.Table":
    """Return one row about a batch of images: their numbers, digests of their masses, and sizes of bins with values."""
    import pyarrow as pa

    content: dict[str, bytes | None] = dict.fromkeys(("numbers", "digests", "bins"))
    fault = None
    try:
        numbers, masses = _read_batch(batch, len(counts))
        sizes = count_bin_sizes(masses, counts)
    except ConfidenceError as error:  # Ray would raise it as an error of its own
        fault = str(error)
    else:
        places = np.flatnonzero(sizes)
        # Zero and negative zero are equal, but their bytes are not.
        digests = b"".join(hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in masses + 0.0)
        bins = np.stack([places, sizes[places]]).tobytes()
        content = {"numbers": numbers.tobytes(), "digests": digests, "bins": bins}
    columns = {name: pa.array([value], pa.large_binary()) for name, value in content.items()}
    return pa.table({**columns, "error": pa.array([fault], pa.string())})


def _iter_sorted(masses: "Dataset", counts: Float64Array, low: int, high: int, is_ranked: Any) -> Iterator[Array]:
    """Yield the sorted entries of bins low..high-1 by segments, without those of ranked images. uint64 [n]"""
    entries = _map(masses, _expand_batch, counts=counts, low=low, high=high, ranked=[is_ranked])
    last = 0
    for segment in entries.sort(ENTRY).iter_batches(batch_size=None, batch_format="numpy"):
        values = segment[ENTRY]
        if len(values):
            assert values[0] >= last, "Ray Data yields sorted blocks in order"
            last = values[-1]
            yield values.view(np.uint64)


def _expand_batch(batch: "pa.Table", counts: Float64Array, low: int, high: int, ranked: list[Any]) -> "pa.Table":
    """Return the entries of a batch of images in some bins, as int64, which Ray sorts: the highest bit is never set."""
    import pyarrow as pa
    import ray

    numbers, masses = _read_batch(batch, len(counts))
    packed = ray.get(ranked[0])
    is_ranked = (packed[numbers >> 3] >> (7 - (numbers & 7)) & 1).astype(np.bool_)
    entries = make_entries(masses, counts, numbers, low, high, is_ranked)
    return pa.table({ENTRY: entries.view(np.int64)})


def _map(masses: "Dataset", function: Callable[..., "pa.Table"], **arguments: object) -> "Dataset":
    """Apply a function to batches of images, without a progress bar."""
    mapped = masses.map_batches(
        function, fn_kwargs=arguments, batch_format="pyarrow", batch_size=IMAGES_PER_BATCH, zero_copy_batch=True
    )
    mapped.context.enable_progress_bars = False
    mapped.context.print_on_execution_start = False
    return mapped


def _read_batch(batch: "pa.Table", n_outputs: int) -> tuple[IntArray, Float64Array]:
    """Return the numbers of the images, int64 [n], and their other-class mass, float64 [n, n_outputs]."""
    import pyarrow.compute as pc

    numbers = batch[IMAGE].to_numpy().astype(np.int64)
    lists = batch[OTHER_MASS]
    lengths = np.unique(pc.list_value_length(lists).to_numpy())
    if set(lengths.tolist()) - {n_outputs}:
        raise ConfidenceError(
            f"an image has {lengths[lengths != n_outputs][0]} values of other-class mass; expected {n_outputs}, one "
            "for each row of counts."
        )
    return numbers, pc.list_flatten(lists).to_numpy().reshape(len(numbers), n_outputs)


def _group_equal(digests: Array) -> tuple[IntArray, IntArray]:
    """Return the positions of images that equal others in every view, and a group for each. uint64 [N, 2] -> int64 [n]

    Two different images have equal digests with a probability of 2**-128.
    """
    _, group, sizes = np.unique(digests, axis=0, return_inverse=True, return_counts=True)
    group = group.reshape(-1)
    candidates = np.flatnonzero(sizes[group] > 1)
    return candidates, np.unique(group[candidates], return_inverse=True)[1].reshape(-1)
