"""How well does a CIFAR-10 classifier know when it is wrong, and how much does a second look help?

    python examples/cifar10_confidence.py ../shared/cifar10 resnet20 --store predictions/

The folder holds `test.npz` (images uint8 [N, 32, 32, 3], labels) and NAME.onnx (logits). Prints every confidence that
needs nothing but predictions, measured as a detector of errors, and how far the bootstrap interval can be trusted.
"""

import argparse
import itertools
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score

from secondlook.arrays import BoolArray, Float64Array
from secondlook.classifiers import load_classifier
from secondlook.estimators import confidence, confidence_interval
from secondlook.predictions import Predictions, collect
from secondlook.views import ViewSet

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

ROWS: list[tuple[str, dict[str, Any]]] = [
    ("msr", {}),
    ("mean", {}),
    ("bootstrap", {}),
    ("bootstrap-lower", {}),
    ("mean-logit", {}),
    ("entropy", {"on": "image"}),
    ("entropy", {"on": "views"}),
    ("margin", {"on": "image"}),
    ("margin", {"on": "views"}),
    ("doctor", {"on": "image"}),
    ("doctor", {"on": "views"}),
    ("max-logit-pnorm", {"on": "image"}),
    ("max-logit-pnorm", {"on": "views"}),
    ("msr", {"temperature": "fit"}),
    ("mean", {"temperature": "fit"}),
]


def main() -> None:
    """Collect (or open) the predictions and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with test.npz and the model")
    parser.add_argument("model", help="name of the model, such as resnet20")
    parser.add_argument("--store", type=Path, help="keep the predictions in this folder")
    parser.add_argument("--images", type=int, help="only that many images, from the first")
    asked = parser.parse_args()
    preds = predictions_of(asked.folder, asked.model, asked.store, asked.images)
    for predict_from in ("image", "views"):
        print_table(preds, asked.model, predict_from)
    print_interval_on_unseen_views(preds)


def predictions_of(folder: Path, model: str, store: Path | None, images: int | None) -> Predictions:
    """Return what the model answers to the `cifar10` views of the test images."""
    with np.load(folder / "test.npz") as test:
        pixels, labels = test["images"][:images], test["labels"][:images]
    classifier = load_classifier(f"onnx:{folder / model}.onnx", output="logits", mean=MEAN, std=STD)
    return collect(classifier, pixels, ViewSet("cifar10"), labels=labels, store=store)


def print_table(preds: Predictions, model: str, predict_from: Any) -> None:
    """Print AUROC and AUPR (errors positive, per cent) and AURC (mean selective risk, per mille) of each confidence."""
    correct = preds.correct(predict_from=predict_from)
    print(f"\n{model}, {preds.n_images:,} images, class by {predict_from}, accuracy {correct.mean():.4f}")
    print(f"{'confidence':<34}{'AUROC':>8}{'AUPR':>8}{'AURC':>8}")
    for name, options in ROWS:
        text = " ".join([name, *(f"{option}={value}" for option, value in options.items())])
        auroc, aupr, aurc = measured(correct, confidence(preds, name, predict_from=predict_from, **options))
        print(f"{text:<34}{auroc:8.2f}{aupr:8.2f}{aurc:8.2f}")


def measured(correct: BoolArray, surety: Float64Array) -> tuple[float, float, float]:
    """Return AUROC and AUPR in per cent, errors positive, and the mean selective risk x 1000."""
    errors_in_order = ~correct[np.argsort(-surety, kind="stable")]
    risk = np.cumsum(errors_in_order) / np.arange(1, len(correct) + 1)
    auroc, aupr = roc_auc_score(~correct, -surety), average_precision_score(~correct, -surety)
    return 100 * auroc, 100 * aupr, 1000 * float(risk.mean())


def print_interval_on_unseen_views(preds: Predictions, level: float = 0.95, splits: int = 20) -> None:
    """Print how often the interval of some views holds the mean of the views it has not seen.

    Once the unseen views are the flipped ones, once they are drawn at random, equally many. Were the views of an
    image independent, both figures would be the same.
    """
    flipped = np.array(["hflip" in text for text in preds.views.texts])
    generator = np.random.default_rng(0)
    at_random = []
    for _ in range(splits):
        places = 1 + generator.permutation(preds.n_views - 1)[: flipped.sum()]
        at_random.append(share_held(preds, np.isin(np.arange(preds.n_views), places), level))
    print(f"\nthe {level:.0%} interval of {(~flipped).sum()} views holds the mean of {flipped.sum()} unseen ones")
    print(f"  unseen views drawn at random: {np.mean(at_random):.1%} of the images")
    print(f"  unseen views are the flipped: {share_held(preds, flipped, level):.1%} of the images")


def share_held(preds: Predictions, unseen: BoolArray, level: float) -> float:
    """Return the share of images whose interval from the seen views holds the mean of the unseen ones, bool [V]."""
    low, high = confidence_interval(preds.select(views=list(itertools.compress(preds.views, ~unseen))), level)
    shares = np.take_along_axis(preds.probabilities.astype(float), preds.predicted()[:, None, None], axis=2)[:, :, 0]
    means = shares[:, unseen].mean(axis=1)
    return float(((low <= means) & (means <= high)).mean())


if __name__ == "__main__":
    main()
