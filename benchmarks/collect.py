"""Speed of `collect` compared with the ONNX session alone, and peak memory of a large table of predictions.

python benchmarks/collect.py                                           # the sizes of the stored results
python benchmarks/collect.py --images 500 --rows 2000 --classes 100    # quick

The speed needs ../shared/cifar10 (test.npz, resnet20.onnx); the memory needs about 5 GB of disk at the default sizes.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from measurement import (
    CIFAR10,
    CIFAR10_MEAN,
    CIFAR10_STD,
    Row,
    create_parser,
    load_cifar10_classifier,
    make_row,
    peak_memory_bytes,
    print_table,
    write_results,
)
from secondlook.arrays import Array
from secondlook.classifiers import load_classifier
from secondlook.predictions import Execution, Predictions, collect
from secondlook.sources import open_source
from secondlook.views import ViewSet, apply_views

MODEL = CIFAR10 / "resnet20.onnx"
SEED = 0
BATCH_SIZE = 256
MEGABYTE = 2**20


def main() -> None:
    """Measure speed and memory, print the table and write it."""
    options = parse_options()
    if options.child:
        print(json.dumps(run_child(options)))
        return
    rows = [
        *measure_throughput(options.images, options.rounds),
        *measure_memory(options.rows, options.views, options.classes),
    ]
    write_results(options.out / "collect.csv", rows)
    print_table(rows, "Collecting predictions")


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = create_parser(__doc__)
    parser.add_argument("--images", type=int, default=1000, help="CIFAR-10 images for the speed (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=9, help="rounds for the speed (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=50_000, help="images of the large table (default: %(default)s)")
    parser.add_argument("--views", type=int, default=24, help="views of the large table (default: %(default)s)")
    parser.add_argument("--classes", type=int, default=1000, help="classes of the large table (default: %(default)s)")
    parser.add_argument("--child", choices=("collecting", "scoring"), help=argparse.SUPPRESS)
    parser.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


# --- Speed ---


def measure_throughput(count: int, rounds: int) -> list[Row]:
    """Time the ONNX session and `collect` in alternation, on the same images and views.

    The speed of a shared machine varies, so the ratio is computed within each round; the median over rounds is kept.
    """
    if not CIFAR10.is_dir():
        print(f"skipped the speed: {CIFAR10} does not exist")
        return []
    source = f"npz:{CIFAR10 / 'test.npz'}?limit={count}"
    views = ViewSet("cifar10")
    model = load_cifar10_classifier(MODEL)
    inputs = prepare_inputs(source, views)
    session_times, collect_times = [], []
    for _ in range(rounds):
        session_times.append(time_session(inputs))
        with tempfile.TemporaryDirectory() as store:
            start = time.perf_counter()
            collect(model, source, views, store=store, execution=Execution(batch_size=BATCH_SIZE, progress=False))
            collect_times.append(time.perf_counter() - start)
    ratios = [session / collected for session, collected in zip(session_times, collect_times, strict=True)]
    return [
        make_row("bare ONNX session", "images x views per second", len(inputs) / median(session_times)),
        make_row("collect to disk", "images x views per second", len(inputs) / median(collect_times)),
        make_row("collect beside the bare session", "ratio of throughput", median(ratios), ">= 0.95"),
    ]


def prepare_inputs(source: str, views: ViewSet) -> Array:
    """Return every view of every image, normalized. float32 [N x V, 3, 32, 32]"""
    images = np.stack([image for batch in open_source(source).batches(1000) for image in batch.images])
    transformed = apply_views(images, views).reshape(-1, *images.shape[1:]).transpose(0, 3, 1, 2)
    inputs = transformed.astype(np.float32)
    inputs /= 255
    inputs -= np.array(CIFAR10_MEAN, dtype=np.float32)[:, None, None]
    inputs /= np.array(CIFAR10_STD, dtype=np.float32)[:, None, None]
    return inputs


def time_session(inputs: Array) -> float:
    """Return the seconds of the ONNX session for all inputs, after one batch to warm up."""
    import onnxruntime

    session = onnxruntime.InferenceSession(MODEL, providers=["CPUExecutionProvider"])
    session.run(None, {"images": inputs[:BATCH_SIZE]})
    start = time.perf_counter()
    for first in range(0, len(inputs), BATCH_SIZE):
        session.run(None, {"images": inputs[first : first + BATCH_SIZE]})
    return time.perf_counter() - start


# --- Memory ---


def measure_memory(rows: int, views: int, classes: int) -> list[Row]:
    """Collect a large table and compute confidences from it, each in a separate process with its own peak memory."""
    required = rows * views * classes * 4 * 1.1
    with tempfile.TemporaryDirectory() as folder:
        if shutil.disk_usage(folder).free < required:
            print(f"skipped the memory: the table needs {required / 2**30:.1f} GB of disk in {folder}")
            return []
        size = f"{rows} images x {views} views x {classes} classes"
        results = []
        for stage in ("collecting", "scoring"):
            command = [sys.executable, __file__, "--child", stage, "--store", folder]
            sizes = ["--rows", str(rows), "--views", str(views), "--classes", str(classes)]
            measured = json.loads(subprocess.run([*command, *sizes], capture_output=True, text=True, check=True).stdout)
            results.append(make_row(f"{stage} {size}", "peak memory, MB", measured["peak_mb"], "< 1500"))
            results.append(make_row(f"{stage} {size}", "seconds", measured["seconds"]))
        return results


def run_child(options: argparse.Namespace) -> dict[str, float]:
    """Run one stage and return its measurements, in the process that `measure_memory` starts."""
    start = time.perf_counter()
    if options.child == "collecting":
        collect_random_outputs(options.store, options.rows, options.views, options.classes)
    else:
        compute_mean_confidence(Predictions.open(options.store))
    return {"seconds": time.perf_counter() - start, "peak_mb": peak_memory_bytes() / MEGABYTE}


def collect_random_outputs(store: Path, rows: int, views: int, classes: int) -> None:
    """Collect the outputs of a classifier that returns random logits at no cost."""
    random = np.random.default_rng(SEED)
    images = random.integers(0, 256, (rows, 8, 8, 3), dtype=np.uint8)
    logits = random.normal(size=(4096, classes)).astype(np.float32)

    def classify(batch: Array) -> Array:
        outputs: Array = logits[batch[:, 0, 0, 0].astype(int) * 16 + batch[:, 0, 0, 1] % 16]
        return outputs

    texts = ["identity", *(f"shift:{x},{y}" for x in range(-2, 3) for y in range(-2, 3) if (x, y) != (0, 0))][:views]
    model = load_classifier(classify, name=f"random {classes} {SEED}", output="logits")
    collect(model, images, texts, store=store, execution=Execution(progress=False))


def compute_mean_confidence(predictions: Predictions) -> Array:
    """Return the mean over views of the predicted class's probability, computed block by block. float64 [N]"""
    predicted = predictions.predicted(predict_from="image")
    confidence = np.empty(predictions.n_images)
    for rows, block in predictions.blocks():
        confidence[rows] = np.take_along_axis(block.mean(axis=1), predicted[rows, None], axis=1)[:, 0]
    return confidence


if __name__ == "__main__":
    main()
