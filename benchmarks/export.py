"""An exported file compared with the library: agreement of decisions, run time and size.

python benchmarks/export.py                                         # the sizes of the stored results
python benchmarks/export.py --images 400 --photographs 120 --rounds 10
python benchmarks/export.py --only cost                             # one part; keeps the rows of the other

Needs ../shared/cifar10 (test.npz and the ONNX models), and about twenty minutes on two cores. Policies for ResNets on
CIFAR-10 are certified on every second image, with all looks and adaptively; those for photographs accept half of them.
The photographs are crops of the two sample photographs of scikit-learn. The policy resizes them to 224 pixels for a
ResNet that first averages blocks of 7 x 7 pixels.

The run time, also for a ResNet-50 with random weights, is compared with the classifier as an ONNX file on ready inputs:
the same number of views, resized and normalized. Both alternate in pairs of sessions; the result is the median over the
pairs of the median ratio.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isqrt
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from measurement import (
    CIFAR10,
    CIFAR10_MEAN,
    CIFAR10_STD,
    PACKAGES,
    Row,
    create_parser,
    load_cifar10_classifier,
    make_row,
    print_table,
    read_rows,
    time_rounds,
    write_results,
)
from secondlook.arrays import Array
from secondlook.classifiers import Classifier, load_classifier
from secondlook.onnx_export import export_onnx, verify_export
from secondlook.onnx_export.export import ExportSummary
from secondlook.onnx_export.graph import LOWEST_OPSET, Graph, Tensor, describe_value
from secondlook.onnx_export.image_graph import add_fit, add_view, find_image_shape
from secondlook.onnx_export.networks import make_networks
from secondlook.onnx_export.verification import Verification
from secondlook.operations import Frame
from secondlook.policies import Policy, certify, threshold_for
from secondlook.predictions import ClassifierRecord, Execution, Predictions, collect
from secondlook.sources import open_source
from secondlook.views import ViewSet, apply_views

MODELS = ("resnet20.onnx", "resnet56.onnx")
METHOD, RISK, DELTA = "mean", 0.02, 0.001
PHOTOGRAPHS_MODEL = "resnet56.onnx"
POOLING = 7
"""Side of the averaged blocks of pixels: 224 pixels become 32."""
COVERAGE = 0.5
"""Fraction of accepted photographs, which have no labels."""
MIN_TUNING = 100
"""Minimum number of images to fit a schedule; otherwise a quarter of all."""
TIMED_SIZE = (320, 427)
"""Height and width of the photographs for run times."""
CHUNK = 20
"""Number of images with views compared at once."""
SLOW_ROUNDS = 30
"""Rounds of timing for a network of more than a second."""
SESSIONS = 6
"""Number of pairs of compared sessions: sessions differ by a few per cent, depending on their memory."""
MAX_RATIO, MAX_ADDED = 1.02, 50_000
MAX_DISTANCE = 1e-4
"""Maximum distance to the threshold, or to a limit of a look, where a decision may differ."""
ALL_LOOKS, ADAPTIVE = "all looks", "adaptive"
PARTS = ("equality", "cost")
EXPORT_PACKAGES = (*PACKAGES, "onnx", "pillow")


def main() -> None:
    """Measure, print the table and write it."""
    parser = create_parser(__doc__)
    parser.add_argument("--images", type=int, default=10_000, help="images of CIFAR-10 (default: %(default)s)")
    parser.add_argument("--photographs", type=int, default=200, help="number of photographs (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=100, help="rounds of timing for one image (default: %(default)s)")
    parser.add_argument("--only", choices=PARTS, help="measure one part")
    options = parser.parse_args()
    if not CIFAR10.is_dir():
        print(f"skipped: {CIFAR10} does not exist")
        return
    path = options.out / "export.csv"
    parts = (options.only,) if options.only else PARTS
    rows: list[Row] = [row for row in read_rows(path) if row["part"] not in parts]
    with tempfile.TemporaryDirectory() as folder:
        for name in MODELS:
            rows += measure(make_cifar10_case(CIFAR10 / name, options.images), Path(folder), options.rounds, parts)
        photographs = make_photographs_case(options.photographs, Path(folder))
        fitted = fit_case(photographs)
        for case in (photographs, fitted):
            rows += measure(case, Path(folder), options.rounds, parts)
        if "cost" in parts and options.rounds >= SLOW_ROUNDS:  # not in short runs
            rows += name_part("cost", time_resnet50(fitted, Path(folder)))
    write_results(path, rows, EXPORT_PACKAGES)
    print_table(rows, "An exported file")


# --- Classifiers, images and policies ---


@dataclass(frozen=True)
class Case:
    """A classifier with images, and policies to export."""

    name: str
    model: Path
    classifier: Classifier
    views: ViewSet
    images: Sequence[Array]
    """uint8 [H, W, 3] each"""
    policies: dict[str, Policy]
    batches: tuple[int, ...]
    """Batch sizes for run times."""
    max_difference: float
    """Target for the largest difference of the confidence."""


def make_cifar10_case(model: Path, n_images: int) -> Case:
    """Return a classifier of CIFAR-10 with policies that are certified on every second image."""
    source = open_source(f"npz:{CIFAR10 / 'test.npz'}", limit=n_images)
    images = [source.read(index) for index in range(len(source))]
    assert source.labels is not None, "the images have labels"
    classifier, views = load_cifar10_classifier(model), ViewSet("cifar10")
    preds = collect(classifier, images[::2], views, labels=source.labels[::2], execution=Execution(progress=False))
    return Case(model.stem, model, classifier, views, images, choose_policies(preds), (1, 8, 32), max_difference=1e-5)


def choose_policies(preds: Predictions) -> dict[str, Policy]:
    """Return a policy for all looks, and an adaptive one."""
    return {ALL_LOOKS: choose_policy(preds, adaptive=False), ADAPTIVE: choose_policy(preds, adaptive=True)}


def choose_policy(preds: Predictions, *, adaptive: bool) -> Policy:
    """Certify a policy; without labels, or if they are too few, choose one that accepts half of the images."""
    looking: dict[str, Any] = {"adaptive": adaptive}
    if adaptive:
        looking["tuning"] = np.arange(max(MIN_TUNING, preds.n_images // 4))
    if preds.has_labels:
        policy = certify(preds, METHOD, risk=RISK, delta=DELTA, **looking)
        if policy.certified:
            return policy
    return threshold_for(preds, METHOD, coverage=COVERAGE, **looking)


def make_photographs_case(n_images: int, folder: Path) -> Case:
    """Return a classifier of photographs at 224 pixels with policies that accept half of them."""
    model = folder / f"pooled_{PHOTOGRAPHS_MODEL}"
    write_pooled_model(CIFAR10 / PHOTOGRAPHS_MODEL, model)
    classifier = load_classifier(
        f"onnx:{model}", output="logits", mean=CIFAR10_MEAN, std=CIFAR10_STD, resize=256, crop=224
    )
    images, views = cut_photographs(n_images, seed=0), ViewSet("imagenet")
    policies = choose_policies(collect(classifier, images, views, execution=Execution(progress=False)))
    return Case("photographs", model, classifier, views, images, policies, (1, 4), max_difference=1e-3)


def fit_case(case: Case) -> Case:
    """Return the same classifier with photographs of its input size; nothing is timed."""
    preprocessing = replace(case.classifier.preprocessing, resize=None, crop=None)
    classifier = load_classifier(f"onnx:{case.model}", output="logits", preprocessing=preprocessing)
    images = [case.classifier.preprocessing.fit(image[None])[0] for image in case.images]
    policies = choose_policies(collect(classifier, images, case.views, execution=Execution(progress=False)))
    name = f"{case.name} of {images[0].shape[0]} pixels"
    return replace(case, name=name, classifier=classifier, images=images, policies=policies, batches=())


def write_pooled_model(source: Path, target: Path) -> None:
    """Write a classifier for images of seven times the side, which first averages blocks of pixels."""
    import onnx
    from onnx import helper

    model = onnx.load(str(source))
    (images,) = model.graph.input
    name, sides = images.name, images.type.tensor_type.shape.dim[2:]
    for side in sides:
        side.dim_value *= POOLING
    images.name = "photographs"
    block = [POOLING, POOLING]
    node = helper.make_node("AveragePool", ["photographs"], [name], kernel_shape=block, strides=block)
    model.graph.node.insert(0, node)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(target))


def cut_photographs(n_images: int, seed: int) -> list[Array]:
    """Return random crops of two photographs, of many sizes. uint8 [H, W, 3] each"""
    from sklearn.datasets import load_sample_images

    photographs = load_sample_images().images
    generator = np.random.default_rng(seed)
    images = []
    for number in range(n_images):
        whole = photographs[number % len(photographs)]
        height, width = (int(side * generator.uniform(0.2, 1)) for side in whole.shape[:2])
        top, left = generator.integers(0, np.subtract(whole.shape[:2], (height, width)) + 1)
        images.append(np.ascontiguousarray(whole[top : top + height, left : left + width]))
    return images


# --- Measuring ---


def measure(case: Case, folder: Path, rounds: int, parts: Sequence[str] = PARTS) -> Iterator[Row]:
    """Export the policies of a classifier, and yield all rows about them."""
    exported = {
        name: export_onnx(policy, folder / f"{case.name} {name}.onnx", classifier=case.classifier)
        for name, policy in case.policies.items()
    }
    if "equality" in parts:
        yield from name_part("equality", compare(case, exported))
    if "cost" in parts:
        yield from name_part("cost", measure_cost(case, exported, rounds))


def compare(case: Case, exported: dict[str, ExportSummary]) -> Iterator[Row]:
    """Yield the differences between files and the library in computations and decisions."""
    yield from compare_fit(case)
    yield from compare_views(case)
    for name, policy in case.policies.items():
        verified = verify_export(
            exported[name].path,
            policy,
            case.images,
            classifier=case.classifier,
            max_difference=case.max_difference,
            execution=Execution(device="cpu", progress=False),
        )
        yield from describe_verification(f"{case.name}, {name}", verified)


def measure_cost(case: Case, exported: dict[str, ExportSummary], rounds: int) -> Iterator[Row]:
    """Yield the sizes and run times of files."""
    files = {name: summary.path for name, summary in exported.items()}
    for name, summary in exported.items():
        yield make_value(f"{case.name}, {name}", "bytes more than the classifier", summary.added, f"<= {MAX_ADDED}")
    for batch in case.batches:
        yield from time_file(case, files[ALL_LOOKS], batch, max(3, rounds // isqrt(batch)))
    for batch in sorted({*case.batches[:1], *case.batches[-1:]}):
        yield from time_adaptive(case, files, batch, rounds)


def name_part(part: str, rows: Iterator[Row]) -> Iterator[Row]:
    """Yield rows with their part."""
    return ({"part": part, **row} for row in rows)


def make_value(what: str, measure: str, value: float, target: str = "") -> Row:
    """Return a row with a count, or with a value of five significant digits: some are tiny."""
    kept = value if isinstance(value, int) else float(f"{value:.5g}")
    return {**make_row(what, measure, value, target), "value": kept}


# --- Agreement of file and library ---


@dataclass
class PixelDifference:
    """Number of differing pixels, and largest difference in gray levels."""

    pixels: int = 0
    differing: int = 0
    largest: int = 0

    def add(self, found: Array, expected: Array) -> None:
        """Count the pixels of some more images. uint8, of the same shape"""
        difference = np.abs(found.astype(np.int16) - expected)
        self.pixels += difference.size
        self.differing += int(np.count_nonzero(difference))
        self.largest = max(self.largest, int(difference.max()))

    def describe(self, what: str, target: str = "") -> Iterator[Row]:
        """Yield the rows."""
        yield make_value(what, "pixels", self.pixels)
        yield make_value(what, "differing pixels", self.differing, target)
        yield make_value(what, "largest difference in gray levels", self.largest, target)


def compare_fit(case: Case) -> Iterator[Row]:
    """Compare images resized and cropped in ONNX with those of the library, unless they have the input size."""
    preprocessing = case.classifier.preprocessing
    if all(preprocessing.keeps(image.shape) for image in case.images):
        return
    shape = find_image_shape(preprocessing, None)
    sizes = (shape.given, [shape.fitted])
    session = build_session(lambda graph, images: [add_fit(graph, images, preprocessing, shape)], *sizes)
    difference = PixelDifference()
    for image in case.images:
        (found,) = session.run(None, {"images": image[None]})
        difference.add(found, preprocessing.fit(image[None]))
    yield from difference.describe(f"{case.name}: resized")


def compare_views(case: Case) -> Iterator[Row]:
    """Compare all views, made in ONNX, with those of the library."""
    images = case.classifier.preprocessing.fit(case.images)
    shape = images.shape[1:]
    frame = Frame(*shape)
    session = build_session(
        lambda graph, tensor: [add_view(graph, tensor, view, frame) for view in case.views],
        shape,
        [shape] * len(case.views),
    )
    difference = PixelDifference()
    for start in range(0, len(images), CHUNK):
        chunk = images[start : start + CHUNK]
        found = np.stack(session.run(None, {"images": chunk}), axis=1)
        difference.add(found, apply_views(chunk, case.views))
    is_copy = all("rotate" not in text and "zoom" not in text for text in case.views.texts)
    yield from difference.describe(f"{case.name}: {len(case.views)} views", "0" if is_copy else "")


def build_session(
    add: Callable[[Graph, Tensor], Sequence[Tensor]],
    given: Sequence[int | None],
    results: Sequence[Sequence[int]],
) -> Any:
    """Return a session of a graph from uint8 images to other images, one output for each of the shapes."""
    from onnx import helper

    graph = Graph(LOWEST_OPSET)
    made = add(graph, Tensor(graph, "images", np.uint8))
    outputs = [graph.rename(tensor, f"output{number}") for number, tensor in enumerate(made)]
    built = graph.build(
        "images",
        [describe_value("images", np.uint8, ["batch", *given])],
        [describe_value(one.name, np.uint8, ["batch", *shape]) for one, shape in zip(outputs, results, strict=True)],
    )
    opset = helper.make_opsetid("", LOWEST_OPSET)
    return open_session(helper.make_model(built, opset_imports=[opset], ir_version=9).SerializeToString())


def describe_verification(what: str, verified: Verification) -> Iterator[Row]:
    """Yield the differences between the decisions of a file and the library, in total and by image."""
    yield make_value(what, "images", verified.images)
    yield make_value(what, "differing classes", verified.differing_labels, "0")
    yield make_value(what, "differing decisions", verified.differing_decisions, "0")
    yield make_value(what, "differing looks", verified.differing_looks)
    largest = verified.largest_difference
    yield make_value(what, "largest difference of the confidence", largest, f"<= {verified.max_difference:g}")
    for image in verified.differing:
        measure = f"distance of image {image.id} from where its {image.cause} changes"
        yield make_value(what, measure, image.distance, f"<= {MAX_DISTANCE:g}")


# --- Run time ---


def open_session(model: str | bytes) -> Any:
    """Open an ONNX file, or its content, on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # Otherwise the threads of one session would keep spinning while the next one runs.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def time_file(case: Case, file: Path, batch: int, rounds: int) -> Iterator[Row]:
    """Compare a file with only the forwards on the ready views."""
    images = select_images(case, batch)
    preprocessing = case.classifier.preprocessing
    views = apply_views(preprocessing.fit(images), case.views)
    inputs = preprocessing.normalize(views.reshape(-1, *views.shape[2:]))
    forwards, decisions, ratios = [], [], []
    for number in range(SESSIONS):
        jobs = [prepare_run(open_session(str(case.model)), inputs), prepare_run(open_session(str(file)), images)]
        order = 1 if number % 2 else -1  # the first one finds other caches
        time_rounds(*jobs, rounds=2)
        bare, decided = time_rounds(*jobs[::order], rounds=max(3, rounds // SESSIONS))[::order]
        forwards.append(median(bare))
        decisions.append(median(decided))
        ratios.append(median(one / other for one, other in zip(decided, bare, strict=True)))
    what = f"{case.name}, batch of {batch}"
    yield make_value(what, "milliseconds of the forwards alone", 1000 * median(forwards))
    yield make_value(what, "milliseconds of the file", 1000 * median(decisions))
    yield make_value(what, "ratio of run time", median(ratios), f"<= {MAX_RATIO}")
    yield make_value(what, "smallest ratio of a pair of sessions", min(ratios))
    yield make_value(what, "largest ratio of a pair of sessions", max(ratios))


def time_resnet50(photographs: Case, folder: Path) -> Iterator[Row]:
    """Compare the run time for a network of common size at 224 pixels; its weights do not matter."""
    import onnx
    from transformers import ResNetConfig, ResNetForImageClassification

    preprocessing, shape = photographs.classifier.preprocessing, photographs.images[0].shape
    module = ResNetForImageClassification(ResNetConfig())  # type: ignore[no-untyped-call]
    classifier = load_classifier(module, output="logits", preprocessing=preprocessing)
    record, views = ClassifierRecord.describe(classifier), photographs.views.texts
    policy = Policy(threshold=0.5, method=METHOD, classifier=record, views=views)
    file = export_onnx(policy, folder / "resnet50.onnx", classifier=classifier, image_shape=shape).path
    (network,) = make_networks([classifier], shape)
    onnx.save(network, str(folder / "network.onnx"))
    case = replace(photographs, name="resnet50", model=folder / "network.onnx", classifier=classifier)
    yield from time_file(case, file, 1, SLOW_ROUNDS)


def time_adaptive(case: Case, files: dict[str, Path], batch: int, n_images: int) -> Iterator[Row]:
    """Compare the adaptive file with that of all looks, on batches of several images each, in alternation."""
    full, adaptive = (open_session(str(files[name])) for name in (ALL_LOOKS, ADAPTIVE))
    n_batches = max(2, n_images // batch)
    images = select_images(case, n_batches * batch)
    seconds, looks = [], []
    for start in range(0, len(images), batch):
        jobs = [prepare_run(session, images[start : start + batch]) for session in (full, adaptive)]
        seconds.append([one for (one,) in time_rounds(*jobs, rounds=1)])
        looks.append(adaptive.run(["looks"], {"images": images[start : start + batch]})[0])
    mean_full, mean_adaptive = np.mean(seconds[1:], axis=0)  # the first batch is slow
    what = f"{case.name}, adaptive, batch of {batch}"
    yield make_value(what, "mean looks", float(np.mean(looks)))
    yield make_value(what, "times as fast as all looks", mean_full / mean_adaptive)


def select_images(case: Case, n_images: int) -> Array:
    """Return images of one size, as often as needed. uint8 [n, H, W, 3]"""
    sizes = {image.shape for image in case.images}
    if len(sizes) == 1:
        return np.stack([case.images[number % len(case.images)] for number in range(n_images)])
    from PIL import Image

    height, width = TIMED_SIZE
    images = [case.images[number % len(case.images)] for number in range(n_images)]
    return np.stack([np.asarray(Image.fromarray(image).resize((width, height))) for image in images])


def prepare_run(session: Any, inputs: Array) -> Callable[[], object]:
    """Return a run of a session."""
    return partial(session.run, None, {session.get_inputs()[0].name: inputs})


if __name__ == "__main__":
    main()
