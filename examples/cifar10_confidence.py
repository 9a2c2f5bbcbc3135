"""Compare confidence methods on CIFAR-10: how well does each detect the errors of a classifier?

    python examples/cifar10_confidence.py ../shared/cifar10 resnet20 --store predictions/

Needs a folder with `test.npz` (`images` uint8 [N, 32, 32, 3] and `labels` [N]) and the classifier as MODEL.onnx, which
outputs logits for normalized images. The first run takes minutes on a CPU; with `--store` the predictions are reused.

Prints AUROC, AUPR and AURC of every method that needs only predictions, with the class predicted from the image and
from the views; then how often the bootstrap interval of some views contains the mean over other views.
"""

import argparse
import itertools
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

import secondlook as sl

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

METHODS: list[tuple[str, dict[str, Any]]] = [
    ("msr", {}),
    ("mean", {}),
    ("blend", {}),
    ("bootstrap", {}),
    ("zero", {}),
    ("gen", {}),
    ("max-logit-pnorm", {"on": "image"}),
    ("max-logit-pnorm", {"on": "views"}),
    ("msr", {"temperature": "fit"}),
    ("mean", {"temperature": "fit"}),
]


def main() -> None:
    """Collect the predictions, or read them from the store, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with test.npz and the classifier")
    parser.add_argument("model", help="name of the classifier, for example resnet20")
    parser.add_argument("--store", type=Path, help="folder for the predictions (default: they are not stored)")
    parser.add_argument("--images", type=int, help="use only the first images (default: all)")
    options = parser.parse_args()
    preds = collect_predictions(options.folder, options.model, options.store, options.images)
    print_metrics(preds, options.model, "image")
    print_metrics(preds, options.model, "views")
    print_interval_coverage(preds)


def collect_predictions(folder: Path, model: str, store: Path | None, images: int | None) -> sl.Predictions:
    """Return the predictions for the `cifar10` views of the test images."""
    with np.load(folder / "test.npz") as test:
        pixels, labels = test["images"][:images], test["labels"][:images]
    classifier = sl.load_classifier(f"onnx:{folder / model}.onnx", output="logits", mean=MEAN, std=STD)
    return sl.collect(classifier, pixels, sl.ViewSet("cifar10"), labels=labels, store=store)


def print_metrics(preds: sl.Predictions, model: str, predict_from: Literal["image", "views"]) -> None:
    """Print AUROC and AUPR (errors are positive, in percent) and AURC (mean selective risk x 1000) of each method."""
    correct = preds.correct(predict_from=predict_from)
    print(f"\n{model}, {preds.n_images:,} images, class from {predict_from}, accuracy {correct.mean():.4f}")
    print(f"{'confidence':<34}{'AUROC':>8}{'AUPR':>8}{'AURC':>8}")
    for name, options in METHODS:
        title = " ".join([name, *(f"{option}={value}" for option, value in options.items())])
        confidence = sl.confidence(preds, name, predict_from=predict_from, **options)
        auroc, aupr = 100 * sl.metrics.auroc(correct, confidence), 100 * sl.metrics.aupr(correct, confidence)
        print(f"{title:<34}{auroc:8.2f}{aupr:8.2f}{1000 * sl.metrics.aurc(correct, confidence):8.2f}")


def print_interval_coverage(preds: sl.Predictions, level: float = 0.95, splits: int = 20) -> None:
    """Print how often the interval of some views contains the mean over the held-out views.

    It holds out the flipped views, and as a comparison the same number of random views. For independent views, both
    numbers would be equal.
    """
    flipped = np.array(["hflip" in text for text in preds.views.texts])
    generator = np.random.default_rng(0)
    fractions = []
    for _ in range(splits):
        chosen = 1 + generator.permutation(preds.n_views - 1)[: flipped.sum()]
        held_out = np.isin(np.arange(preds.n_views), chosen)
        fractions.append(compute_interval_coverage(preds, held_out, level))
    print(
        f"\nthe {level:.0%} interval of {(~flipped).sum()} views contains the mean over {flipped.sum()} held-out views"
    )
    print(f"  random views held out:  {np.mean(fractions):.1%} of the images")
    print(f"  flipped views held out: {compute_interval_coverage(preds, flipped, level):.1%} of the images")


def compute_interval_coverage(preds: sl.Predictions, held_out: NDArray[np.bool_], level: float) -> float:
    """Return the fraction of images whose interval contains the mean over the held-out views. bool [V]"""
    used = list(itertools.compress(preds.views, ~held_out))
    low, high = sl.confidence_interval(preds.select(views=used), level)
    predicted = preds.predicted()[:, None, None]
    probabilities = np.take_along_axis(preds.probabilities.astype(float), predicted, axis=2)[:, :, 0]
    means = probabilities[:, held_out].mean(axis=1)
    return float(((low <= means) & (means <= high)).mean())


if __name__ == "__main__":
    main()
