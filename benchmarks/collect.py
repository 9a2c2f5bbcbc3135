"""How fast collecting is beside the bare classifier, and how much memory a large table takes.

python benchmarks/collect.py                  # everything, as in the results kept
python benchmarks/collect.py --images 500 --rows 2000 --classes 100    # a quick look
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table

from circumstances import ROOT, write_results
from secondlook.arrays import Array
from secondlook.classifiers import load_classifier
from secondlook.predictions import Predictions, collect
from secondlook.sources import open_source
from secondlook.views import ViewSet, apply_views

CIFAR10 = ROOT.parent / "shared" / "cifar10"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SEED = 0
BATCH = 256
ROUNDS = 9
MEGABYTE = 2**20


def main() -> None:
    """Measure what is asked for and keep it."""
    asked = _arguments()
    if asked.child:
        print(json.dumps(_child(asked)))
        return
    rows = [*_throughput(asked.images), *_memory(asked.rows, asked.views, asked.classes)]
    write_results(asked.out, rows)
    _print(rows)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=1000, help="CIFAR-10 images for the throughput")
    parser.add_argument("--rows", type=int, default=50_000, help="images of the large table")
    parser.add_argument("--views", type=int, default=24, help="views of the large table")
    parser.add_argument("--classes", type=int, default=1000, help="classes of the large table")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "collect.csv")
    parser.add_argument("--child", choices=("collecting", "scoring"), help=argparse.SUPPRESS)
    parser.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def _throughput(count: int) -> list[dict[str, object]]:
    """Time the bare session and collecting in turns, on the same images and views.

    A machine that is shared speeds up and slows down, so each turn is compared with its neighbor; the median counts.
    """
    if not CIFAR10.is_dir():
        print(f"throughput left out: there is no {CIFAR10}")
        return []
    source = f"npz:{CIFAR10 / 'test.npz'}?limit={count}"
    views = ViewSet("cifar10")
    model = load_classifier(f"onnx:{CIFAR10 / 'resnet20.onnx'}", output="logits", mean=MEAN, std=STD)
    inputs = _ready_inputs(source, views)
    bare, collected = [], []
    for _ in range(ROUNDS):
        bare.append(_seconds_bare(inputs))
        with tempfile.TemporaryDirectory() as store:
            start = time.perf_counter()
            collect(model, source, views, store=store, batch_size=BATCH, progress=False)
            collected.append(time.perf_counter() - start)
    looks = len(inputs)
    ratios = [one / other for one, other in zip(bare, collected, strict=True)]
    return [
        _row("bare ONNX session", "images x views per second", looks / median(bare), ""),
        _row("collect to disk", "images x views per second", looks / median(collected), ""),
        _row("collect beside the bare session", "ratio of throughput", median(ratios), ">= 0.95"),
    ]


def _ready_inputs(source: str, views: ViewSet) -> Array:
    """Every view of every image, normalized: float32 [N x V, 3, 32, 32]."""
    images = np.stack([image for batch in open_source(source).batches(1000) for image in batch.images])
    looks = apply_views(images, views).reshape(-1, *images.shape[1:]).transpose(0, 3, 1, 2)
    ready = looks.astype(np.float32)
    ready /= 255
    ready -= np.array(MEAN, dtype=np.float32)[:, None, None]
    ready /= np.array(STD, dtype=np.float32)[:, None, None]
    return ready


def _seconds_bare(inputs: Array) -> float:
    import onnxruntime

    session = onnxruntime.InferenceSession(CIFAR10 / "resnet20.onnx", providers=["CPUExecutionProvider"])
    session.run(None, {"images": inputs[:BATCH]})
    start = time.perf_counter()
    for first in range(0, len(inputs), BATCH):
        session.run(None, {"images": inputs[first : first + BATCH]})
    return time.perf_counter() - start


def _memory(rows: int, views: int, classes: int) -> list[dict[str, object]]:
    """Collect a large table and score it, each in a process of its own, and ask each for its peak."""
    needed = rows * views * classes * 4 * 1.1
    with tempfile.TemporaryDirectory() as folder:
        if shutil.disk_usage(folder).free < needed:
            print(f"memory left out: the table needs {needed / 2**30:.1f} GB of disk in {folder}")
            return []
        size = f"{rows} images x {views} views x {classes} classes"
        results = []
        for stage in ("collecting", "scoring"):
            command = [sys.executable, __file__, "--child", stage, "--store", folder]
            sizes = ["--rows", str(rows), "--views", str(views), "--classes", str(classes)]
            answer = json.loads(subprocess.run([*command, *sizes], capture_output=True, text=True, check=True).stdout)
            results.append(_row(f"{stage} {size}", "peak memory, MB", answer["peak_mb"], "< 1500"))
            results.append(_row(f"{stage} {size}", "seconds", answer["seconds"], ""))
        return results


def _child(asked: argparse.Namespace) -> dict[str, float]:
    start = time.perf_counter()
    if asked.child == "collecting":
        _collect_random(asked.store, asked.rows, asked.views, asked.classes)
    else:
        _mean_confidence(Predictions.open(asked.store))
    return {"seconds": time.perf_counter() - start, "peak_mb": _peak_bytes() / MEGABYTE}


def _peak_bytes() -> int:
    """Return the peak memory of this process.

    On Linux `getrusage` starts a new program with the peak of the one that started it; the status file does not.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        (line,) = (line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _collect_random(store: Path, rows: int, views: int, classes: int) -> None:
    random = np.random.default_rng(SEED)
    images = random.integers(0, 256, (rows, 8, 8, 3), dtype=np.uint8)
    logits = random.normal(size=(4096, classes)).astype(np.float32)

    def random_classifier(batch: Array) -> Array:
        answers: Array = logits[batch[:, 0, 0, 0].astype(int) * 16 + batch[:, 0, 0, 1] % 16]
        return answers

    texts = ["identity", *(f"shift:{x},{y}" for x in range(-2, 3) for y in range(-2, 3) if (x, y) != (0, 0))][:views]
    model = load_classifier(random_classifier, name=f"random {classes} {SEED}", output="logits")
    collect(model, images, texts, store=store, progress=False)


def _mean_confidence(predictions: Predictions) -> Array:
    """Score every image as the mean confidence does: the mean over views of the predicted class's probability."""
    predicted = predictions.predicted(predict_from="image")
    confidence = np.empty(predictions.n_images)
    for rows, block in predictions.blocks():
        confidence[rows] = np.take_along_axis(block.mean(axis=1), predicted[rows, None], axis=1)[:, 0]
    return confidence


def _row(what: str, measure: str, value: float, target: str) -> dict[str, object]:
    return {"what": what, "measure": measure, "value": round(value, 4), "target": target, "seed": SEED}


def _print(rows: list[dict[str, object]]) -> None:
    table = Table("what", "measure", "value", "target", title=f"Collecting, {os.cpu_count()} cores")
    for row in rows:
        table.add_row(*(str(row[name]) for name in ("what", "measure", "value", "target")))
    Console().print(table)


if __name__ == "__main__":
    main()
