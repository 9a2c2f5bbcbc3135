"""Latency of `decide` for one image compared with one bare forward of the same ONNX model on all its views.

python benchmarks/latency.py                # the rounds of the stored results
python benchmarks/latency.py --rounds 50    # quick

Needs ../shared/cifar10 (test.npz and the ONNX models). The bare forward gets its input ready-made, so views,
preprocessing, confidence and decision all count as overhead. An adaptive policy looks at an image again only
while its decision is open, one forward after another, so it is compared with all looks over many images.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

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
from secondlook.classifiers.onnx_model import OnnxClassifier
from secondlook.decisions import encode_png
from secondlook.policies import Policy, threshold_for
from secondlook.predictions import Execution, collect
from secondlook.sources import open_source
from secondlook.views import ViewSet, apply_views

MODELS = ("resnet20.onnx", "resnet56.onnx")
"""The smallest and the largest of the classifiers."""

VIEWS = "cifar10"
TARGET = 1.1
COVERAGE = 0.9
CALIBRATION_IMAGES = 500
"""Number of images to fit an adaptive policy; later images are timed."""


def main() -> None:
    """Measure the latency, print the table and write it."""
    parser = create_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=300, help="decisions per model (default: %(default)s)")
    options = parser.parse_args()
    if not CIFAR10.is_dir():
        print(f"skipped: {CIFAR10} does not exist")
        return
    measures = (measure_latency, measure_adaptive)
    rows = [row for name in MODELS for measure in measures for row in measure(CIFAR10 / name, options.rounds)]
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


def measure_adaptive(model: Path, n_images: int) -> list[Row]:
    """Time `decide` with all looks and adaptively, once for each image, in alternation."""
    source = open_source(f"npz:{CIFAR10 / 'test.npz'}", limit=CALIBRATION_IMAGES + n_images)
    images = [source.read(index) for index in range(len(source))]
    classifier = load_cifar10_classifier(model)
    preds = collect(classifier, images[:CALIBRATION_IMAGES], VIEWS, execution=Execution(progress=False))
    rule = threshold_for(preds, "blend", coverage=COVERAGE, adaptive=True)
    assert rule.schedule is not None, "the rule is adaptive"
    full, adaptive = (
        make_policy(classifier, one, rule.schedule.views) for one in (rule.model_copy(update={"schedule": None}), rule)
    )
    seconds = []
    looks = [adaptive.decide(image).looks for image in images[CALIBRATION_IMAGES:]]
    for image in images[CALIBRATION_IMAGES:]:
        one_full, one_adaptive = time_rounds(partial(full.decide, image), partial(adaptive.decide, image), rounds=1)
        seconds.append((*one_full, *one_adaptive))
    (mean_full, mean_adaptive), slowest = np.mean(seconds, axis=0), np.max(seconds, axis=0)[1]
    name = model.stem
    return [
        make_row(f"{name}: decide with all looks", "mean milliseconds", 1000 * mean_full),
        make_row(f"{name}: decide adaptively, {np.mean(looks):.2f} looks", "mean milliseconds", 1000 * mean_adaptive),
        make_row(f"{name}: decide adaptively", "times as fast", mean_full / mean_adaptive),
        make_row(f"{name}: decide adaptively, slowest of {n_images}", "milliseconds", 1000 * slowest),
    ]


def make_policy(
    classifier: Classifier,
    policy: Policy = Policy(threshold=0.9, method="blend"),  # noqa: B008 -- immutable
    views: tuple[str, ...] = ViewSet(VIEWS).texts,
) -> Policy:
    """Return a policy that decides with a classifier."""
    return policy.replace(classifier=classifier, views=views).bind(classifier)


def prepare_forward(classifier: Classifier, image: Array) -> Callable[[], object]:
    """Return one forward of the bare ONNX session on all views of an image.

    It is the session of the classifier: the threads of a second one would keep spinning while the first one runs.
    """
    assert isinstance(classifier, OnnxClassifier)
    session = classifier.session
    inputs = classifier.preprocessing.normalize(apply_views(image[None], VIEWS)[0])
    return partial(session.run, None, {session.get_inputs()[0].name: inputs})


def compare(seconds: list[float], bare: list[float]) -> float:
    """Return the median over rounds of the ratio to the bare session."""
    return float(np.median(np.array(seconds) / np.array(bare)))


if __name__ == "__main__":
    main()
