"""Scoring on a Ray cluster compared with this process, and with more workers.

python benchmarks/cluster.py               # the sizes of the stored results: about five minutes on two cores
python benchmarks/cluster.py --parts 4 --ranked 50000

A local Ray is started once. Per part of 1,000 images, the *overhead* is the time that a worker and the driver add to
the local engine: sending the part, reading, encoding and writing its rows. It is measured from the first finished part
to the last, because processes start once per job; their start time is a separate row. One classifier only sleeps for a
millisecond per image, to run more workers than cores; the real one needs ../shared/cifar10 and is skipped without it.
Last, the ranking BS(D), which needs all images together, is measured on one machine.
"""

import logging
import multiprocessing
import pickle
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import ray

from measurement import (
    CIFAR10,
    PACKAGES,
    Row,
    create_parser,
    load_cifar10_classifier,
    make_row,
    peak_memory_bytes,
    print_table,
    write_results,
)
from secondlook.arrays import Array
from secondlook.classifiers import Classifier, load_classifier
from secondlook.cluster import RayEngine
from secondlook.decisions import score
from secondlook.decisions.summary import ScoreSummary
from secondlook.estimators.bootstrap import default_resamples, plurality_confidence, view_resampling_counts
from secondlook.policies import Policy, threshold_for
from secondlook.predictions import Engine, Execution, collect
from secondlook.sources import ArraySource, Source, open_source

PART_SIZE = 1000
SECONDS_PER_IMAGE = 0.001
MAX_OVERHEAD = 0.10
WORKERS = (1, 2, 4)
LISTED_FILES = 200_000
CALIBRATION_IMAGES = 500
COVERAGE = 0.9
RANKED_VIEWS = 13


def main() -> None:
    """Measure, print the table and write it."""
    parser = create_parser(__doc__)
    parser.add_argument("--parts", type=int, default=12, help="parts of 1,000 images per worker (default: %(default)s)")
    parser.add_argument(
        "--ranked", type=int, nargs="*", default=[100_000, 1_000_000], help="images to rank (default: %(default)s)"
    )
    options = parser.parse_args()
    started = time.perf_counter()
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    rows = [make_row("a Ray of this machine", "seconds to start", time.perf_counter() - started)]
    rows += measure_overhead(options.parts)
    rows += measure_scaling(options.parts)
    if CIFAR10.is_dir():
        rows += measure_real_classifier(min(options.parts, 6))
    rows += measure_bytes()
    ray.shutdown()
    rows += [row for n_images in options.ranked for row in measure_ranking(n_images)]
    write_results(options.out / "cluster.csv", rows, (*PACKAGES, "ray"))
    print_table(rows, "Scoring on a Ray cluster")


def measure_overhead(n_parts: int) -> list[Row]:
    """Compare one worker with the local engine, both with a classifier that only waits."""
    classifier = make_waiting_classifier()
    images = make_images(n_parts * PART_SIZE)
    local = time_local(classifier, images)
    on_ray, start = time_on_ray(classifier, images, 1)
    what = f"one worker, {n_parts} parts of {PART_SIZE:,} images, {1000 * SECONDS_PER_IMAGE:g} ms per image"
    return [
        make_row(f"local engine, {1000 * SECONDS_PER_IMAGE:g} ms per image", "images/s", local),
        make_row(what, "images/s", on_ray),
        make_row(what, "overhead per image", local / on_ray - 1, f"<= {MAX_OVERHEAD:g}"),
        make_row("a job on a Ray that is running", "seconds before the first part", start),
    ]


def measure_scaling(n_parts: int) -> list[Row]:
    """Compare several workers with one: each has as many parts to do, with a classifier that only waits."""
    classifier = make_waiting_classifier()
    speeds = {
        workers: time_on_ray(classifier, make_images(workers * n_parts * PART_SIZE), workers)[0] for workers in WORKERS
    }
    rows = []
    for workers, speed in speeds.items():
        what = "1 worker that waits" if workers == 1 else f"{workers} workers that wait"
        rows += [
            make_row(what, "images/s", speed),
            make_row(what, "times one worker", speed / speeds[1], f"{workers}" if workers > 1 else ""),
        ]
    return rows


def measure_real_classifier(n_parts: int) -> list[Row]:
    """Compare one worker on all cores with the local engine: all looks, and adaptively."""
    source = open_source(f"npz:{CIFAR10 / 'test.npz'}", limit=CALIBRATION_IMAGES + n_parts * PART_SIZE)
    images = np.stack([source.read(index) for index in range(len(source))])
    classifier = load_cifar10_classifier(CIFAR10 / "resnet20.onnx")
    preds = collect(classifier, images[:CALIBRATION_IMAGES], "cifar10", execution=Execution(progress=False))
    rule = threshold_for(preds, "mean", coverage=COVERAGE, adaptive=True)
    assert rule.schedule is not None, "the rule is adaptive"
    rows = []
    for looking, one, views in (
        ("all looks", Policy(threshold=rule.threshold, method="mean"), preds.views.texts),
        ("adaptively", rule, rule.schedule.views),
    ):
        policy = one.replace(classifier=classifier, views=views)
        scored = images[CALIBRATION_IMAGES:]
        local = time_local(classifier, scored, policy)
        on_ray, _ = time_on_ray(classifier, scored, 1, policy, cpus=2)
        what = f"resnet20, {looking}"
        rows += [
            make_row(f"{what}, local engine", "images/s", local),
            make_row(f"{what}, one worker on all cores", "images/s", on_ray),
            make_row(
                f"{what}, one worker on all cores", "overhead per image", local / on_ray - 1, f"<= {MAX_OVERHEAD:g}"
            ),
        ]
    return rows


def measure_bytes() -> list[Row]:
    """Measure the sizes that grow with the number of images: the list of files, data sent to workers, and rows."""
    names = [f"{number // 1000:06d}/image-{number:09d}.jpg" for number in range(LISTED_FILES)]
    tracemalloc.start()
    source = open_source([Path("/data") / name for name in names])
    listed = tracemalloc.get_traced_memory()[0] / len(source)
    tracemalloc.stop()
    part = source.extract(range(PART_SIZE))
    sent = len(pickle.dumps(part)) / PART_SIZE
    images = ArraySource(make_images(4 * PART_SIZE), ids=names[: 4 * PART_SIZE])
    with tempfile.TemporaryDirectory() as folder:
        run_job(make_waiting_classifier(0.0), images, Path(folder) / "scores", None)
        written = sum(path.stat().st_size for path in Path(folder, "scores").glob("*.parquet")) / len(images)
    return [
        make_row("driver, list of files", "bytes per image", listed),
        make_row("sent to a worker", "bytes per image", sent),
        make_row("rows of scores", "bytes per image", written),
    ]


def measure_ranking(n_images: int) -> list[Row]:
    """Rank images by BS(D) in a separate process, and measure its time and peak memory."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        seconds, n_bytes = pool.submit(rank_images, n_images).result()
    what = f"BS(D) on one machine, {n_images:,} images x {RANKED_VIEWS} views"
    return [make_row(what, "seconds", seconds), make_row(what, "peak GB", n_bytes / 1e9)]


def rank_images(n_images: int) -> tuple[float, int]:
    """Return the seconds for ranking random images, and the peak memory of this process in bytes."""
    counts = view_resampling_counts(RANKED_VIEWS, default_resamples(RANKED_VIEWS), 0)
    plurality_confidence(np.random.default_rng(1).random((100, RANKED_VIEWS)), counts)  # compile the kernels
    masses = np.random.default_rng(0).random((n_images, RANKED_VIEWS))
    np.power(masses, 6, out=masses)  # most images are confident
    started = time.perf_counter()
    plurality_confidence(masses, counts)
    return time.perf_counter() - started, peak_memory_bytes()


def time_local(classifier: Classifier, images: Array, policy: Policy | None = None) -> float:
    """Return images per second of the local engine."""
    return time_job(classifier, images, None, policy)[0]


def time_on_ray(
    classifier: Classifier, images: Array, workers: int, policy: Policy | None = None, cpus: float = 0.5
) -> tuple[float, float]:
    """Return images per second of a number of workers, and the seconds before the first part started."""
    return time_job(classifier, images, RayEngine(workers=workers, cpus_per_worker=cpus), policy, workers)


def time_job(
    classifier: Classifier, images: Array, engine: Engine | None, policy: Policy | None, workers: int = 1
) -> tuple[float, float]:
    """Return images per second from the first part of every worker to the last part, and the seconds before that.

    The time of a part is the time of its file.
    """
    with tempfile.TemporaryDirectory() as folder:
        started = time.time()
        run_job(classifier, images, Path(folder) / "scores", engine, policy)
        times = sorted(path.stat().st_mtime_ns / 1e9 for path in Path(folder, "scores").glob("*.parquet"))
    speed = (len(times) - workers) * PART_SIZE / (times[-1] - times[workers - 1])
    return speed, times[0] - started - workers * PART_SIZE / speed


def run_job(
    classifier: Classifier, images: Array | Source, out: Path, engine: Engine | None, policy: Policy | None = None
) -> ScoreSummary:
    """Score images into a folder of parts."""
    policy = policy or Policy(threshold=0.5, method="msr").replace(classifier=classifier, views=("identity",))
    execution = Execution(engine=engine, part_size=PART_SIZE, on_error="skip", progress=False)
    return score(policy, images, out, classifier=classifier, execution=execution)


def make_waiting_classifier(seconds: float = SECONDS_PER_IMAGE) -> Classifier:
    """Return a classifier that sleeps for some time per image."""

    def wait(batch: Any) -> Any:
        time.sleep(seconds * len(batch))
        bright = batch.mean(axis=(1, 2, 3)) / 255
        return np.stack([1 - bright, bright], axis=1)

    function: Callable[[Any], Any] = wait
    return load_classifier(function, name=f"waits {seconds} s")


def make_images(count: int) -> Array:
    """Return random images, uint8 [count, 8, 8, 3]."""
    return np.random.default_rng(0).integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)


if __name__ == "__main__":
    main()
