"""Speed of the metrics on many images, compared with one argsort of the confidences and with plain NumPy.

Run: python benchmarks/metrics.py [--images 10000000]
"""

import functools
import importlib
import statistics
from collections.abc import Callable

import numpy as np

from measurement import Row, create_parser, time_rounds, write_results
from secondlook.arrays import BoolArray, Float64Array
from secondlook.metrics import METRICS, parse_metric

MAX_ARGSORTS = 1.5
ROUNDS = 3
PARAMETERS = {None: "", "coverage": ":0.8", "risk": ":0.05"}


def find_reference_aurc() -> tuple[str, Callable[[BoolArray, Float64Array], float]]:
    """Return the AURC of torch-uncertainty, or the same formula in plain NumPy if that is not installed."""
    try:
        import torch

        area = importlib.import_module("torch_uncertainty.metrics").AURC
    except ImportError:
        return "plain NumPy", compute_plain_aurc

    def compute_torch_aurc(correct: BoolArray, confidence: Float64Array) -> float:
        metric = area()
        metric.update(torch.from_numpy(confidence), torch.from_numpy(correct.astype(np.int64)))
        return float(metric.compute())

    return "torch-uncertainty", compute_torch_aurc


def compute_plain_aurc(correct: BoolArray, confidence: Float64Array) -> float:
    """Return the mean over n of the error rate among the n most confident images; ties are in arbitrary order."""
    wrong = ~correct[np.argsort(-confidence)]
    return float(np.mean(np.cumsum(wrong) / np.arange(1, len(wrong) + 1)))


def time_median(job: Callable[[], object]) -> float:
    """Return the median seconds of a few rounds."""
    return statistics.median(time_rounds(job, rounds=ROUNDS)[0])


def main() -> None:
    """Time every metric from unsorted arrays to the number, print the table and write it."""
    parser = create_parser(__doc__)
    parser.add_argument("--images", type=int, default=10_000_000, help="images (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    confidence = rng.random(options.images)
    correct = rng.random(options.images) < 0.6 + 0.4 * confidence
    argsort = time_median(lambda: np.argsort(confidence))
    name, reference_aurc = find_reference_aurc()
    times = {f"aurc, {name}": time_median(lambda: reference_aurc(correct, confidence))}
    for metric in METRICS.values():
        text = metric.name + PARAMETERS[metric.parameter]
        times[text] = time_median(functools.partial(parse_metric(text), correct, confidence))
    print(f"{options.images:,} images; one numpy.argsort: {argsort:.2f} s")
    rows: list[Row] = []
    for text, seconds in times.items():
        ratio = seconds / argsort
        print(f"{text:24} {seconds:6.2f} s  {ratio:5.2f} x argsort{'' if ratio <= MAX_ARGSORTS else '  TOO SLOW'}")
        rows.append(
            {"job": text, "images": options.images, "seed": options.seed, "seconds": seconds, "argsorts": ratio}
        )
    write_results(options.out / "metrics.csv", rows)


if __name__ == "__main__":
    main()
