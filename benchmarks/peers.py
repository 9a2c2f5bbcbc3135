"""Certified coverage beside MAPIE's, on the same confidences, images and labels.

Run: python benchmarks/peers.py [--model ../shared/cifar10/resnet56.onnx] [--store DIR] [--rounds 20]

Needs MAPIE (`pip install -e '.[peers]'`) and the CIFAR-10 files; skipped without the latter. MAPIE has two controllers
that can abstain. Both test a list of thresholds ("learn then test"), with the Hoeffding-Bentkus p-value:

- the binary one is given "the prediction is correct" as the positive class, the confidence as its probability, and
  the precision to control, which is 1 - the risk among accepted predictions. It has all of MAPIE's corrections;
- the multi-class one is given the mean over the views. With its own risks it controls the precision of every class
  at once, a stronger promise; with a risk defined by hand, correctness among accepted predictions, it makes the
  promise of `certify`.
"""

import argparse
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

from guarantee import add_cifar10_options, collect_cifar10, evaluate_decisions
from measurement import PACKAGES, Row, create_parser, write_results
from secondlook.arrays import BoolArray, Float64Array
from secondlook.estimators import confidence
from secondlook.predictions import Predictions
from secondlook.selective import certify_confidence

RISKS, DELTA = (0.01, 0.02, 0.05), 0.05
SIZES = (1000, 5000)
"""Images to calibrate on; decisions are evaluated on the others."""
FINE_GRID = np.linspace(0.999, 0.3, 700)
"""Thresholds for MAPIE's fixed-sequence test, from the surest down."""

Decide = Callable[[Predictions, np.ndarray, np.ndarray, float], BoolArray | None]
"""(predictions, indices to calibrate on, indices to decide about, risk) -> accept bool [M], or None: no threshold"""


def mean_confidence(preds: Predictions) -> Float64Array:
    """Return the mean over views of the probability of the class predicted from the views. float64 [N]"""
    return confidence(preds, "mean", predict_from="views")


def decide_by_secondlook(preds: Predictions, half: np.ndarray, other: np.ndarray, risk: float) -> BoolArray | None:
    """Certify a threshold with `certify_confidence`."""
    confidences, correct = mean_confidence(preds), preds.correct(predict_from="views")
    rule = certify_confidence(correct[half], confidences[half], risk=risk, delta=DELTA)
    return rule.accept(confidences[other]) if rule.certified else None


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
        # The smallest valid threshold accepts most; MAPIE's own choice is the one with the highest precision.
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
    """Calibrate in every way on the same random images and evaluate on the others; a row for each way and risk."""
    rows: list[Row] = []
    for risk in RISKS:
        for way, decide in WAYS.items():
            rng = np.random.default_rng(seed)
            outcomes = []
            for _ in range(rounds):
                order = rng.permutation(preds.n_images)
                half, other = order[:n_calibrate], order[n_calibrate:]
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # MAPIE warns where no threshold is valid, which is counted below
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


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = create_parser(__doc__)
    add_cifar10_options(parser, rounds=20)
    return parser.parse_args()


def main() -> None:
    """Compare all ways on CIFAR-10, print them and write the results."""
    options = parse_options()
    if not options.model.is_file():
        print(f"skipped: {options.model} does not exist")
        return
    with tempfile.TemporaryDirectory() as temporary:
        preds = collect_cifar10(options.model, options.limit, options.store or Path(temporary))
        rows = [row for size in SIZES for row in compare_ways(preds, size, options.rounds, options.seed)]
    write_results(options.out / "peers.csv", rows, packages=(*PACKAGES, "mapie", "scikit-learn"))


if __name__ == "__main__":
    main()
