"""How long metrics take on many scores, against one argsort of them and against the usual formula in plain NumPy.

Run: python benchmarks/metrics.py [--images 10000000]
"""

import argparse
import importlib
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from circumstances import write_results
from secondlook.arrays import BoolArray, Float64Array
from secondlook.metrics import METRICS, BoundMetric, parse_metric

RESULTS = Path(__file__).parent / "results" / "metrics.csv"
LIMIT = 1.5
ROUNDS = 3
PARAMETERS = {None: "", "coverage": ":0.8", "risk": ":0.05"}


def peer() -> tuple[str, Callable[[BoolArray, Float64Array], float]]:
    """Return the AURC of torch-uncertainty, or the same formula in plain NumPy where that does not import."""
    try:
        import torch

        area = importlib.import_module("torch_uncertainty.metrics").AURC
    except ImportError:
        return "plain NumPy", plain_aurc

    def torch_aurc(correct: BoolArray, confidence: Float64Array) -> float:
        metric = area()
        metric.update(torch.from_numpy(confidence), torch.from_numpy(correct.astype(np.int64)))
        return float(metric.compute())

    return "torch-uncertainty", torch_aurc


def plain_aurc(correct: BoolArray, confidence: Float64Array) -> float:
    """Mean over n of the error rate among the n surest, ties in whatever order the sort leaves them."""
    wrong = ~correct[np.argsort(-confidence)]
    return float(np.mean(np.cumsum(wrong) / np.arange(1, len(wrong) + 1)))


def seconds(job: Callable[[], object]) -> float:
    """Return the median time of a few rounds."""
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        job()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def timed(one: BoundMetric, correct: BoolArray, confidence: Float64Array) -> float:
    """Return the time of a metric from arrays in any order to the number, sorting included."""
    return seconds(lambda: one(correct, confidence))


def main() -> None:
    """Time every metric, print the table and keep it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng = np.random.default_rng(given.seed)
    confidence = rng.random(given.images)
    correct = rng.random(given.images) < 0.6 + 0.4 * confidence
    argsort = seconds(lambda: np.argsort(confidence))
    name, formula = peer()
    jobs = {f"aurc, {name}": seconds(lambda: formula(correct, confidence))}
    for one in METRICS.values():
        text = one.name + PARAMETERS[one.parameter]
        jobs[text] = timed(parse_metric(text), correct, confidence)
    print(f"{given.images:,} scores; one numpy.argsort: {argsort:.2f} s")
    rows: list[dict[str, object]] = []
    for text, taken in jobs.items():
        ratio = taken / argsort
        print(f"{text:24} {taken:6.2f} s  {ratio:5.2f} x argsort{'' if ratio <= LIMIT else '  ABOVE THE LIMIT'}")
        rows.append({"job": text, "images": given.images, "seed": given.seed, "seconds": taken, "argsorts": ratio})
    write_results(RESULTS, rows)


if __name__ == "__main__":
    main()
