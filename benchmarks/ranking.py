"""How fast BS(D) ranks: against one numpy.argsort of all values, over the number of images, and against the naive way.

Run: python benchmarks/ranking.py
"""

import functools
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from circumstances import write_results
from secondlook.arrays import Array, Float64Array, IntArray
from secondlook.estimators import plurality_order, view_resampling_counts

RESULTS = Path(__file__).parent / "results"
IMAGES, VIEWS, RESAMPLINGS = 49_000, 24, 1_000
GROWTH = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 500_000)
NAIVE = (100, 200, 400)
MOST_OF_ARGSORT, MOST_MEGABYTES = 0.5, 1000
TYPES = ("float64", "float32")
SEED = 0


def made_up_doubts(images: int) -> Float64Array:
    """Return doubts like those of a good classifier: from 1e-8 to nearly 1, views of an image alike. [images, VIEWS]"""
    generator = np.random.default_rng(SEED)
    logits = generator.normal(4, 4, (images, 1)) + generator.normal(0, 1, (images, VIEWS))
    return 1 / (1 + np.exp(logits))


def seconds(job: Callable[[], object], rounds: int = 3) -> float:
    """Return the least time of a few rounds."""
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        job()
        times.append(time.perf_counter() - started)
    return min(times)


def naive_order(resampled: Array, window: int) -> list[int]:
    """Rank as the paper writes it, by plain lists. [N, B] -> images, the surest first"""
    images = [image for _, image in sorted((x, image) for image, row in enumerate(resampled.tolist()) for x in row)]
    order = []
    while images:
        in_window = images[:window]
        counts = dict.fromkeys(in_window, 0)
        for image in in_window:
            counts[image] += 1
        most_frequent = max(counts, key=lambda image: counts[image])
        order.append(most_frequent)
        images = [image for image in images if image != most_frequent]
    return order


def measured_alone(images: int) -> dict[str, float]:
    """Return seconds, processor seconds (of all threads) and peak megabytes of a ranking in a process of its own."""
    done = subprocess.run([sys.executable, __file__, "alone", str(images)], capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def rank_alone(images: int) -> None:
    """Rank once and print the figures; what `measured_alone` starts."""
    doubts, counts = made_up_doubts(images), view_resampling_counts(VIEWS, RESAMPLINGS, SEED)
    plurality_order(doubts[:100], counts)
    rounds = 3 if images <= IMAGES else 1
    started = time.process_time()
    taken = seconds(functools.partial(plurality_order, doubts, counts), rounds)
    processor = (time.process_time() - started) / rounds
    print(json.dumps({"seconds": taken, "processor_seconds": processor, "megabytes": peak_megabytes()}))


def peak_megabytes() -> float:
    """Return the most memory this process has held; getrusage would count what its parent held as well."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    found = re.search(r"VmHWM:\s*(\d+) kB", status)
    return int(found[1]) * 1024 / 1e6 if found else float("nan")


def against_argsort(counts: IntArray) -> list[dict[str, object]]:
    """Compare with one numpy.argsort of all bootstrapped values, float64 as they come from the product."""
    values = (made_up_doubts(IMAGES) @ counts).ravel()
    argsort = {kind: seconds(functools.partial(np.argsort, values.astype(kind)), rounds=1) for kind in TYPES}
    ours = measured_alone(IMAGES)
    print(f"{IMAGES:,} images x {VIEWS} views x {RESAMPLINGS:,} resamplings, from scores to ranking:")
    print(
        f"  ranking              {ours['seconds']:7.2f} s, peak {ours['megabytes']:.0f} MB (allowed {MOST_MEGABYTES})"
    )
    for name, taken in argsort.items():
        print(f"  argsort of {name}   {taken:7.2f} s, ratio {ours['seconds'] / taken:.3f} (allowed {MOST_OF_ARGSORT})")
    reached = ours["seconds"] <= MOST_OF_ARGSORT * argsort["float64"] and ours["megabytes"] < MOST_MEGABYTES
    print(f"  target {'reached' if reached else 'MISSED'}")
    rows = [{"what": f"argsort {name}", "images": IMAGES, "seconds": taken} for name, taken in argsort.items()]
    return [{"what": "ranking", "images": IMAGES, **ours}, *rows]


def over_images() -> list[dict[str, object]]:
    """Measure how time and memory grow with the number of images."""
    print(f"\n{'images':>10}{'seconds':>10}{'processor':>11}{'us/image':>10}{'peak MB':>10}")
    rows: list[dict[str, object]] = []
    for images in GROWTH:
        ours = measured_alone(images)
        processor = ours["processor_seconds"]
        per_image = f"{processor:11.3f}{1e6 * processor / images:10.1f}"
        print(f"{images:10,}{ours['seconds']:10.3f}{per_image}{ours['megabytes']:10.0f}")
        rows.append({"what": "growth", "images": images, **ours})
    return rows


def against_naive(counts: IntArray) -> list[dict[str, object]]:
    """Compare with the naive transcription, where that is still bearable; both must rank alike."""
    print(f"\n{'images':>10}{'naive s':>10}{'ours s':>10}{'ratio':>10}")
    rows: list[dict[str, object]] = []
    for images in NAIVE:
        doubts = made_up_doubts(images)
        resampled = sum_over_views(doubts, counts)
        naive = seconds(functools.partial(naive_order, resampled, RESAMPLINGS), rounds=1)
        ours = seconds(functools.partial(plurality_order, doubts, counts))
        if naive_order(resampled, RESAMPLINGS) != plurality_order(doubts, counts).tolist():
            raise SystemExit(f"the rankings of {images} images differ")
        print(f"{images:10,}{naive:10.2f}{ours:10.4f}{naive / ours:10.0f}")
        rows.append({"what": "naive", "images": images, "seconds": naive})
        rows.append({"what": "against naive", "images": images, "seconds": ours})
    return rows


def sum_over_views(doubts: Float64Array, counts: IntArray) -> Array:
    """Return the float32 that the ranking sorts, added up in the same order. [N, V], [V, B] -> [N, B]"""
    sums = np.zeros((len(doubts), counts.shape[1]))
    for view in range(len(counts)):
        sums += doubts[:, view, None] * counts[view]
    return sums.astype(np.float32)


def plot(rows: list[dict[str, object]], path: Path) -> None:
    """Draw time over the number of images, both logarithmic, beside a straight line."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    images = np.array([float(str(row["images"])) for row in rows])
    taken = np.array([float(str(row["processor_seconds"])) for row in rows])
    figure, axes = pyplot.subplots(figsize=(6, 4))
    axes.loglog(images, taken, "o-", label="ranking")
    axes.loglog(images, taken[-1] * images / images[-1], "--", label="in proportion to the images")
    axes.set(xlabel="images", ylabel="processor seconds", title=f"BS(D), {VIEWS} views, {RESAMPLINGS:,} resamplings")
    axes.legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")


def main() -> None:
    """Run all comparisons, print them, and keep them in benchmarks/results."""
    counts = view_resampling_counts(VIEWS, RESAMPLINGS, SEED)
    setting = {"views": VIEWS, "resamplings": RESAMPLINGS, "seed": SEED}
    ratio, growth, naive = against_argsort(counts), over_images(), against_naive(counts)
    plot(growth, RESULTS / "ranking.png")
    write_results(RESULTS / "ranking.csv", [{**row, **setting} for row in (*ratio, *growth, *naive)])


if __name__ == "__main__":
    if sys.argv[1:2] == ["alone"]:
        rank_alone(int(sys.argv[2]))
    else:
        main()
