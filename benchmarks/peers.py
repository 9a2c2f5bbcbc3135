"""Certified coverage compared with MAPIE, and speed on a CPU compared with ttach and MONAI.

Run: python benchmarks/peers.py [--only coverage|speed]
     python benchmarks/peers.py --only coverage [--model ../shared/cifar10/resnet56.onnx] [--store DIR] [--rounds 20]
     python benchmarks/peers.py --only speed [--images 1000] [--batch-size 256] [--speed-rounds 9]

Needs the packages of `pip install -e '.[peers]'`.

Coverage is compared on the same confidences, images and labels; skipped without the CIFAR-10 files. MAPIE has two
controllers that can abstain. Both test a list of thresholds ("learn then test"), with the Hoeffding-Bentkus p-value:

- the binary one gets "the prediction is correct" as the positive class, the confidence as its probability, and the
  precision to control: 1 - the risk among accepted predictions. It has all of MAPIE's corrections;
- the multi-class one gets the mean over the views. With its own risks it controls the precision of every class at
  once, a stronger guarantee; with a custom risk, correctness among accepted predictions, it has the guarantee of
  `certify`.

Speed is compared on the same torch network, flips, threads and, as far as possible, batches; each way returns the mean
over the flips of the probabilities. Without the CIFAR-10 files the network and the pixels are random. Differences:

- only `collect` starts from uint8 pixels and normalizes them; it keeps the logits of every view;
- ttach's wrapper gets normalized batches and keeps the sum over the views;
- MONAI's TestTimeAugmentation gets normalized images, one at a time, and returns the probabilities of every view. It
  is made for random transforms: here the coin of its `RandFlipd` is replaced by a fixed sequence. By default every
  tensor carries metadata, which a classifier does not need, so it is timed without metadata too. Its floor is the bare
  forward of the views of one image at a time.
"""

import argparse
import itertools
import math
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from guarantee import add_cifar10_options, collect_cifar10, evaluate_decisions
from measurement import CIFAR10, CIFAR10_MEAN, CIFAR10_STD, PACKAGES, Row, create_parser, time_rounds, write_results
from secondlook.arrays import Array, BoolArray, Float64Array
from secondlook.classifiers import Classifier, load_classifier
from secondlook.estimators import confidence
from secondlook.policies import certify_confidence
from secondlook.predictions import Execution, Predictions, collect
from secondlook.views import apply_views

if TYPE_CHECKING:
    import torch

# --- Coverage ---

RISKS, DELTA = (0.01, 0.02, 0.05), 0.05
SIZES = (1000, 5000)
"""Number of images to calibrate on; decisions are evaluated on the others."""
FINE_GRID = np.linspace(0.999, 0.3, 700)
"""Thresholds for MAPIE's fixed-sequence test, in descending order."""

Decide = Callable[[Predictions, np.ndarray, np.ndarray, float], BoolArray | None]
"""(predictions, indices to calibrate on, indices to decide about, risk) -> accept bool [M], or None: no threshold"""


def mean_confidence(preds: Predictions) -> Float64Array:
    """Return the mean over views of the probability of the class predicted from the views. float64 [N]"""
    return confidence(preds, "mean", predict_from="views")


def decide_by_secondlook(preds: Predictions, half: np.ndarray, other: np.ndarray, risk: float) -> BoolArray | None:
    """Certify a threshold with `certify_confidence`."""
    confidences, correct = mean_confidence(preds), preds.correct(predict_from="views")
    rule = certify_confidence(correct[half], confidences[half], risk=risk, delta=DELTA)
    return rule.accept(confidences[other], method=rule.method) if rule.certified else None


def decide_by_binary_controller(**options: object) -> Decide:
    """Return a decision by MAPIE's binary controller with these options."""

    def decide(preds: Predictions, half: np.ndarray, other: np.ndarray, risk: float) -> BoolArray | None:
        from mapie.risk_control import BinaryClassificationController

        confidences, correct = mean_confidence(preds), preds.correct(predict_from="views")
        controller = BinaryClassificationController(
            lambda values: np.column_stack([1 - values, values]),
            "precision",
            1 - risk,
            confidence_level=1 - DELTA,
            **options,
        )
        controller.calibrate(confidences[half], correct[half].astype(int))
        return None if controller.best_predict_param is None else controller.predict(confidences[other]) == 1

    return decide


def decide_by_class_controller(*, per_class: bool) -> Decide:
    """Return a decision by MAPIE's multi-class controller, which controls the precision of each class or of all."""

    def decide(preds: Predictions, half: np.ndarray, other: np.ndarray, risk: float) -> BoolArray | None:
        from mapie.risk_control import BinaryRisk, MultiClassificationLTTController
        from mapie.risk_control.risks import build_precision_ovr

        means = preds.probabilities.mean(axis=1, dtype=np.float64)
        means /= means.sum(axis=1, keepdims=True)
        classes = np.arange(means.shape[1])
        among_accepted = BinaryRisk(
            risk_occurrence=lambda labels, predicted: predicted.ravel() == labels.ravel(),
            risk_condition=lambda _, predicted: ~np.isnan(predicted.ravel()),
            higher_is_better=True,
        )
        risks = build_precision_ovr(classes.tolist()) if per_class else [among_accepted]
        controller = MultiClassificationLTTController(
            lambda rows: rows, risks, [1 - risk] * len(risks), confidence_level=1 - DELTA, classes=classes
        )
        controller.calibrate(means[half], preds.labels[half])
        # The smallest valid threshold accepts most; MAPIE itself chooses the highest precision.
        valid = np.asarray(controller.valid_predict_params)
        return None if valid.size == 0 else means[other].max(axis=1) >= valid.min()

    return decide


WAYS: dict[str, Decide] = {
    "secondlook certify": decide_by_secondlook,
    "MAPIE binary controller, as it comes": decide_by_binary_controller(),
    "MAPIE binary controller, fixed sequence of 700": decide_by_binary_controller(
        fwer_method="fixed_sequence", list_predict_params=FINE_GRID
    ),
    "MAPIE multi-class controller, all classes together": decide_by_class_controller(per_class=False),
    "MAPIE multi-class controller, each class": decide_by_class_controller(per_class=True),
}


def compare_ways(preds: Predictions, n_calibrate: int, rounds: int, seed: int) -> list[Row]:
    """Calibrate all ways on the same random images and evaluate on the others; a row for each way and risk."""
    rows: list[Row] = []
    for risk in RISKS:
        for way, decide in WAYS.items():
            rng = np.random.default_rng(seed)
            outcomes = []
            for _ in range(rounds):
                order = rng.permutation(preds.n_images)
                half, other = order[:n_calibrate], order[n_calibrate:]
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # MAPIE warns if no threshold is valid; counted below
                    accept = decide(preds, half, other, risk)
                correct = preds.correct(predict_from="views")[other]
                outcomes.append(
                    {"certified": accept is not None}
                    | evaluate_decisions(correct, np.zeros(len(other), bool) if accept is None else accept)
                )
            seen = np.array([outcome["risk_seen"] for outcome in outcomes], dtype=float)
            rows.append(
                {"way": way, "calibrated_on": n_calibrate, "risk": risk, "delta": DELTA, "rounds": rounds, "seed": seed}
                | {"certified": sum(bool(outcome["certified"]) for outcome in outcomes)}
                | {"coverage": float(np.mean([outcome["coverage"] for outcome in outcomes]))}
                | {"risk_seen_mean": float(seen.mean()), "risk_seen_above": int(np.sum(seen > risk))}
            )
            print("  ".join(f"{key}={value}" for key, value in rows[-1].items() if key != "seed"), flush=True)
    return rows


# --- Speed ---

SPEED_MODEL = CIFAR10 / "resnet20.onnx"
SPEED_PACKAGES = ("secondlook", "numpy", "opencv-python-headless", "torch", "ttach", "monai")
FLIPS = (("identity", "hflip"), ("identity", "hflip", "vflip", "hflip+vflip"))
FORWARD = "bare forward"
SINGLE_SHARE = 0.1
"""Fraction of the images for jobs with one image at a time."""


@dataclass(frozen=True)
class Contestant:
    """A job about some images: it returns their mean probabilities, [n_images, n_classes], or logits if it is bare."""

    run: Callable[[], Any]
    n_images: int
    batch_size: int
    is_bare: bool = False


def make_contestants(
    network: "torch.nn.Module", pixels: Array, views: Sequence[str], batch_size: int
) -> dict[str, Contestant]:
    """Prepare all jobs. Pixels are uint8 [N, H, W, 3]; the views are one of `FLIPS`."""
    import torch
    import ttach

    classifier = load_classifier(network, output="logits", device="cpu", mean=CIFAR10_MEAN, std=CIFAR10_STD)
    transformed = apply_views(pixels, views).reshape(-1, *pixels.shape[1:])
    inputs = torch.from_numpy(classifier.preprocessing.normalize(transformed))
    n_images, n_views = len(pixels), len(views)
    n_single = math.ceil(n_images * SINGLE_SHARE)
    images = inputs[::n_views].contiguous()
    predict = torch.nn.Sequential(network, torch.nn.Softmax(1))
    flips = ttach.aliases.hflip_transform() if n_views == 2 else ttach.aliases.flip_transform()
    wrapper = ttach.ClassificationTTAWrapper(predict, flips)
    forward = partial(run_batches, network, inputs, batch_size)
    forward_single = partial(run_batches, network, inputs[: n_single * n_views], n_views)
    monai = partial(run_monai, predict, images[:n_single], views)
    return {
        FORWARD: Contestant(forward, n_images, batch_size, is_bare=True),
        "secondlook collect": Contestant(
            partial(run_secondlook, classifier, pixels, views, batch_size), n_images, batch_size
        ),
        "ttach ClassificationTTAWrapper": Contestant(
            partial(run_batches, wrapper, images, batch_size), n_images, batch_size
        ),
        "bare forward, one image at a time": Contestant(forward_single, n_single, n_views, is_bare=True),
        "MONAI TestTimeAugmentation": Contestant(monai, n_single, n_views),
        "MONAI TestTimeAugmentation, no metadata": Contestant(partial(monai, metadata=False), n_single, n_views),
    }


def run_secondlook(classifier: Classifier, pixels: Array, views: Sequence[str], batch_size: int) -> Array:
    """Return the mean probabilities of images. uint8 [N, H, W, 3] -> [N, n_classes]"""
    preds = collect(classifier, pixels, views, execution=Execution(batch_size=batch_size, progress=False))
    means: Array = preds.probabilities.mean(axis=1)
    return means


def run_batches(network: "torch.nn.Module", inputs: "torch.Tensor", batch_size: int) -> "torch.Tensor":
    """Return the outputs of a network for ready inputs. [N, 3, H, W] -> [N, n_classes]"""
    import torch

    with torch.inference_mode():
        return torch.cat([network(inputs[start : start + batch_size]) for start in range(0, len(inputs), batch_size)])


def run_monai(
    network: "torch.nn.Module", images: "torch.Tensor", views: Sequence[str], *, metadata: bool = True
) -> "torch.Tensor":
    """Return the mean probabilities of images, one at a time. [N, 3, H, W] -> [N, n_classes]"""
    import torch
    from monai.data import TestTimeAugmentation, set_track_meta
    from monai.transforms import Compose, RandFlipd

    class FlipInTurn(RandFlipd):  # type: ignore[misc]
        def __init__(self, axis: int, step: str) -> None:
            super().__init__("image", spatial_axis=axis)
            self.turns = itertools.cycle(step in view for view in views)

        def randomize(self, data: object = None) -> None:
            self._do_transform = next(self.turns)

    steps = {"hflip": 1, "vflip": 0}
    augment = TestTimeAugmentation(
        Compose([FlipInTurn(axis, step) for step, axis in steps.items() if step in views]),
        batch_size=len(views),
        inferrer_fn=network,
        return_full_data=True,
        progress=False,
        apply_inverse_to_pred=False,
    )
    set_track_meta(metadata)
    try:
        with torch.inference_mode():
            means = [augment({"image": image}, num_examples=len(views)).mean(0) for image in images]
            return torch.stack([torch.as_tensor(mean) for mean in means])
    finally:
        set_track_meta(True)


def compare_speed(
    network: "torch.nn.Module", pixels: Array, views: Sequence[str], *, batch_size: int, rounds: int
) -> list[Row]:
    """Time all contestants in alternation; a row for each. Pixels are uint8 [N, H, W, 3]."""
    contestants = make_contestants(network, pixels, views, batch_size)
    results = {name: contestant.run() for name, contestant in contestants.items()}  # warms up, too
    times = time_rounds(*(contestant.run for contestant in contestants.values()), rounds=rounds)
    means = results[FORWARD].reshape(len(pixels), len(views), -1).softmax(2).mean(1).numpy()
    speeds = {
        name: contestant.n_images / np.array(seconds)
        for (name, contestant), seconds in zip(contestants.items(), times, strict=True)
    }
    rows: list[Row] = []
    for name, contestant in contestants.items():
        row: Row = {"way": name, "views": len(views), "images": contestant.n_images}
        row |= {"batch_size": contestant.batch_size, "rounds": rounds}
        row["images_per_second"] = round(float(np.median(speeds[name])), 2)
        row["ratio_to_forward"] = round(float(np.median(speeds[name] / speeds[FORWARD])), 4)
        if not contestant.is_bare:
            difference = np.abs(np.asarray(results[name]) - means[: contestant.n_images]).max()
            row["largest_difference"] = float(f"{difference:.2g}")
        rows.append(row)
        print("  ".join(f"{key}={value}" for key, value in row.items()), flush=True)
    return rows


def run_speed(n_images: int, batch_size: int, rounds: int, seed: int) -> list[Row]:
    """Compare the speed with two and with four flips, on CIFAR-10 or, without its files, on random pixels."""
    import torch

    from networks import load_network, make_wide_resnet

    if SPEED_MODEL.is_file():
        name, network = SPEED_MODEL.stem, load_network(SPEED_MODEL)
        with np.load(CIFAR10 / "test.npz") as archive:
            pixels = archive["images"][:n_images]
    else:
        name, network = "random wide resnet 16-2", make_wide_resnet(seed=seed)
        pixels = np.random.default_rng(seed).integers(0, 256, (n_images, 32, 32, 3), dtype=np.uint8)
    shared: Row = {"network": name, "torch_threads": torch.get_num_threads(), "seed": seed}
    return [
        shared | row
        for views in FLIPS
        for row in compare_speed(network, pixels, views, batch_size=batch_size, rounds=rounds)
    ]


# --- Command line ---


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = create_parser(__doc__)
    parser.add_argument("--only", choices=("coverage", "speed"), help="what to compare (default: both)")
    add_cifar10_options(parser, rounds=20)
    parser.add_argument("--images", type=int, default=1000, help="images for the speed (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=256, help="for the speed (default: %(default)s)")
    parser.add_argument("--speed-rounds", type=int, default=9, help="rounds of the speed (default: %(default)s)")
    return parser.parse_args()


def main() -> None:
    """Compare coverage and speed, and print and write the results."""
    options = parse_options()
    if options.only != "speed":
        run_coverage(options)
    if options.only != "coverage":
        rows = run_speed(options.images, options.batch_size, options.speed_rounds, options.seed)
        write_results(options.out / "peers_speed.csv", rows, packages=SPEED_PACKAGES)


def run_coverage(options: argparse.Namespace) -> None:
    """Compare all ways to certify on CIFAR-10, and print and write the results."""
    if not options.model.is_file():
        print(f"skipped the coverage: {options.model} does not exist")
        return
    with tempfile.TemporaryDirectory() as temporary:
        preds = collect_cifar10(options.model, options.limit, options.store or Path(temporary))
        rows = [row for size in SIZES for row in compare_ways(preds, size, options.rounds, options.seed)]
    write_results(options.out / "peers.csv", rows, packages=(*PACKAGES, "mapie", "scikit-learn"))


if __name__ == "__main__":
    main()
