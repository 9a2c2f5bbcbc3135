"""Speed of the bootstrap ranking BS(D): compared with numpy.argsort and plain Python, and by number of images.

Run: python benchmarks/ranking.py [--quick]
"""

import argparse
import functools
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from measurement import Row, create_parser, peak_memory_bytes, time_rounds, write_results
from secondlook.arrays import Array, Float64Array, IntArray
from secondlook.estimators.bootstrap import plurality_order, view_resampling_counts

VIEWS, RESAMPLES = 24, 1_000
MAX_ARGSORT_RATIO, MAX_MEGABYTES = 0.5, 1000
TYPES = ("float64", "float32")
SEED = 0


@dataclass(frozen=True)
class Sizes:
    """Numbers of images: to compare with argsort, to measure the growth, and to compare with plain Python."""

    argsort: int
    growth: tuple[int, ...]
    naive: tuple[int, ...]


FULL = Sizes(49_000, (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 500_000), (100, 200, 400))
QUICK = Sizes(2_000, (500, 1_000), (50,))


def make_other_mass(images: int) -> Float64Array:
    """Return values like those of a good classifier: 1e-8 to nearly 1, similar over views. [images, VIEWS]"""
    generator = np.random.default_rng(SEED)
    logits = generator.normal(4, 4, (images, 1)) + generator.normal(0, 1, (images, VIEWS))
    return 1 / (1 + np.exp(logits))


def rank_naively(resampled: Array, window: int) -> list[int]:
    """Rank with plain lists, as described in the paper. [N, B] -> images, the most confident first"""
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


def measure_ranking(images: int) -> dict[str, float]:
    """Return seconds, processor seconds (of all threads) and peak megabytes of a ranking in a separate process."""
    command = [sys.executable, __file__, "--child", str(images)]
    measured: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return measured


def run_child(images: int) -> None:
    """Rank and print the measurements as JSON, in the process that `measure_ranking` starts."""
    other_mass, counts = make_other_mass(images), view_resampling_counts(VIEWS, RESAMPLES, SEED)
    rounds = 3 if images <= FULL.argsort else 1
    start = time.process_time()
    (times,) = time_rounds(functools.partial(plurality_order, other_mass, counts), rounds=rounds)
    processor = (time.process_time() - start) / rounds
    megabytes = peak_memory_bytes() / 1e6
    print(json.dumps({"seconds": min(times), "processor_seconds": processor, "megabytes": megabytes}))


def compare_with_argsort(images: int, counts: IntArray) -> list[Row]:
    """Compare with one numpy.argsort of all resampled values, as float64 (the matrix product) and as float32."""
    values = (make_other_mass(images) @ counts).ravel()
    argsort = {name: time_rounds(functools.partial(np.argsort, values.astype(name)), rounds=1)[0][0] for name in TYPES}
    ours = measure_ranking(images)
    print(f"{images:,} images x {VIEWS} views x {RESAMPLES:,} resamples:")
    print(f"  ranking              {ours['seconds']:7.2f} s, peak {ours['megabytes']:.0f} MB (limit {MAX_MEGABYTES})")
    for name, seconds in argsort.items():
        ratio = ours["seconds"] / seconds
        print(f"  argsort of {name}   {seconds:7.2f} s, ratio {ratio:.3f} (limit {MAX_ARGSORT_RATIO})")
    met = ours["seconds"] <= MAX_ARGSORT_RATIO * argsort["float64"] and ours["megabytes"] < MAX_MEGABYTES
    print(f"  target {'met' if met else 'MISSED'}")
    rows = [{"what": f"argsort {name}", "images": images, "seconds": seconds} for name, seconds in argsort.items()]
    return [{"what": "ranking", "images": images, **ours}, *rows]


def measure_growth(sizes: tuple[int, ...]) -> list[Row]:
    """Measure time and memory by number of images."""
    print(f"\n{'images':>10}{'seconds':>10}{'processor':>11}{'us/image':>10}{'peak MB':>10}")
    rows: list[Row] = []
    for images in sizes:
        ours = measure_ranking(images)
        processor = ours["processor_seconds"]
        per_image = f"{processor:11.3f}{1e6 * processor / images:10.1f}"
        print(f"{images:10,}{ours['seconds']:10.3f}{per_image}{ours['megabytes']:10.0f}")
        rows.append({"what": "growth", "images": images, **ours})
    return rows


def compare_with_naive(sizes: tuple[int, ...], counts: IntArray) -> list[Row]:
    """Compare with plain Python on few images, and check that both rankings are equal."""
    print(f"\n{'images':>10}{'naive s':>10}{'ours s':>10}{'ratio':>10}")
    rows: list[Row] = []
    for images in sizes:
        other_mass = make_other_mass(images)
        resampled = sum_over_views(other_mass, counts)
        naive = time_rounds(functools.partial(rank_naively, resampled, RESAMPLES), rounds=1)[0][0]
        ours = min(time_rounds(functools.partial(plurality_order, other_mass, counts), rounds=3)[0])
        if rank_naively(resampled, RESAMPLES) != plurality_order(other_mass, counts).tolist():
            raise SystemExit(f"the two rankings of {images} images differ")
        print(f"{images:10,}{naive:10.2f}{ours:10.4f}{naive / ours:10.0f}")
        rows.append({"what": "naive", "images": images, "seconds": naive})
        rows.append({"what": "against naive", "images": images, "seconds": ours})
    return rows


def sum_over_views(other_mass: Float64Array, counts: IntArray) -> Array:
    """Return the float32 values that the ranking sorts, summed in the same order. [N, V], [V, B] -> [N, B]"""
    sums = np.zeros((len(other_mass), counts.shape[1]))
    for view in range(len(counts)):
        sums += other_mass[:, view, None] * counts[view]
    return sums.astype(np.float32)


def plot_growth(rows: list[Row], path: Path) -> None:
    """Plot time against the number of images on logarithmic axes, with proportional growth as a reference."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    images = np.array([float(str(row["images"])) for row in rows])
    seconds = np.array([float(str(row["processor_seconds"])) for row in rows])
    figure, axes = pyplot.subplots(figsize=(6, 4))
    axes.loglog(images, seconds, "o-", label="ranking")
    axes.loglog(images, seconds[-1] * images / images[-1], "--", label="proportional to the number of images")
    axes.set(xlabel="images", ylabel="processor seconds", title=f"BS(D), {VIEWS} views, {RESAMPLES:,} resamples")
    axes.legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")


def main() -> None:
    """Run all comparisons, print them and write them."""
    parser = create_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="few images, to check that the benchmark runs")
    parser.add_argument("--child", type=int, metavar="IMAGES", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        run_child(options.child)
        return
    sizes = QUICK if options.quick else FULL
    counts = view_resampling_counts(VIEWS, RESAMPLES, SEED)
    setting = {"views": VIEWS, "resamples": RESAMPLES, "seed": SEED}
    argsort = compare_with_argsort(sizes.argsort, counts)
    growth = measure_growth(sizes.growth)
    naive = compare_with_naive(sizes.naive, counts)
    write_results(options.out / "ranking.csv", [{**row, **setting} for row in (*argsort, *growth, *naive)])
    plot_growth(growth, options.out / "ranking.png")


if __name__ == "__main__":
    main()
