"""Latency of `decide` for one image compared with one bare forward of the same ONNX model on all its views.

python benchmarks/latency.py                # the rounds of the stored results
python benchmarks/latency.py --rounds 50    # quick

Needs ../shared/cifar10 (test.npz and the ONNX models). The bare forward gets its input ready-made, so views,
preprocessing, confidence, interval and decision all count as overhead.
"""

import io
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from measurement import (
    CIFAR10,
    Row,
    create_parser,
    load_cifar10_classifier,
    make_row,
    print_table,
    time_rounds,
    write_results,
)
from secondlook.arrays import Array
from secondlook.classifiers import Classifier
from secondlook.scoring import LoadedPolicy, load_policy
from secondlook.selective import Policy, Rule
from secondlook.sources import open_source
from secondlook.views import ViewSet, apply_views

MODELS = ("resnet20.onnx", "resnet56.onnx")
"""The smallest and the largest of the classifiers."""

VIEWS = "cifar10"
TARGET = 1.1


def main() -> None:
    """Measure the latency, print the table and write it."""
    parser = create_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=300, help="decisions per model (default: %(default)s)")
    options = parser.parse_args()
    if not CIFAR10.is_dir():
        print(f"skipped: {CIFAR10} does not exist")
        return
    rows = [row for name in MODELS for row in measure_latency(CIFAR10 / name, options.rounds)]
    write_results(options.out / "latency.csv", rows)
    print_table(rows, "Deciding about one image")


def measure_latency(model: Path, rounds: int) -> list[Row]:
    """Time the bare session, `decide` on pixels and `decide` on the bytes of a PNG file in alternation.

    The speed of a shared machine varies, so the ratio is computed within each round; the median over rounds is kept.
    """
    image = next(open_source(f"npz:{CIFAR10 / 'test.npz'}").batches(1)).images[0]
    file = encode_png(image)
    classifier = load_cifar10_classifier(model)
    policy = make_policy(classifier)
    jobs = (prepare_forward(classifier, image), lambda: policy.decide(image), lambda: policy.decide(file))
    time_rounds(*jobs, rounds=3)  # compile the kernels
    bare, decided, decoded = time_rounds(*jobs, rounds=rounds)
    name, n_views = model.stem, len(ViewSet(VIEWS))
    return [
        make_row(f"{name}: bare forward of {n_views} views", "milliseconds", 1000 * median(bare)),
        make_row(f"{name}: decide, from pixels", "milliseconds", 1000 * median(decided)),
        make_row(f"{name}: decide, from pixels", "ratio of latency", compare(decided, bare), f"<= {TARGET}"),
        make_row(f"{name}: decide, from the bytes of a PNG", "ratio of latency", compare(decoded, bare)),
    ]


def make_policy(classifier: Classifier) -> LoadedPolicy:
    """Write a policy for a classifier and load it."""
    policy = Policy.from_rule(Rule(0.9, "blend"), classifier=classifier, views=ViewSet(VIEWS).texts)
    with tempfile.TemporaryDirectory() as folder:
        policy.save(Path(folder) / "policy.json")
        return load_policy(Path(folder) / "policy.json", classifier=classifier)


def prepare_forward(classifier: Classifier, image: Array) -> Callable[[], object]:
    """Return one forward of the bare ONNX session on all views of an image.

    It is the session of the classifier: the threads of a second one would go on spinning while the first one runs.
    """
    session: Any = vars(classifier)["_session"]
    inputs = classifier.preprocessing.normalize(apply_views(image[None], VIEWS)[0])
    return partial(session.run, None, {session.get_inputs()[0].name: inputs})


def encode_png(image: Array) -> bytes:
    """Return an image as the bytes of a PNG file. uint8 [H, W, 3]"""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


def compare(seconds: list[float], bare: list[float]) -> float:
    """Return the median over rounds of the ratio to the bare session."""
    return float(np.median(np.array(seconds) / np.array(bare)))


if __name__ == "__main__":
    main()
