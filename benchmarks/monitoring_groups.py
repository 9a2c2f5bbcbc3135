"""Coverage with a guarantee for every predicted class, with one threshold, and with Bonferroni's correction.

Run: python benchmarks/monitoring_groups.py [--model ../shared/cifar10/resnet56.onnx ...] [--store DIR]
     python benchmarks/monitoring_groups.py --stored PREDICTIONS ...

Needs ../shared/cifar10/test.npz and the classifiers, or folders with stored predictions. Every risk is certified on all
images: with one threshold for all, with a threshold for each predicted class (step-down), and with thresholds that
are certified separately, each with an equal share of delta (Bonferroni).
"""

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from measurement import CIFAR10, Row, create_parser, load_cifar10_classifier, write_results
from secondlook.estimators import confidence
from secondlook.metrics import rank
from secondlook.policies import certify, largest_certified_count
from secondlook.predictions import Predictions, collect
from secondlook.sources import open_source

METHOD = "blend"
RISKS = (0.01, 0.02, 0.05, 0.1)
DELTA = 0.001


def per_class(name: str, preds: Predictions) -> list[Row]:
    """Return the certified coverage at each risk, and the largest error rate of a class with one threshold."""
    return [compare_thresholds(name, preds, risk) for risk in RISKS]


def compare_thresholds(name: str, preds: Predictions, risk: float) -> Row:
    """Certify a risk for all images and for every predicted class."""
    values, predicted, correct = confidence(preds, METHOD), preds.predicted(), preds.correct()
    joint = certify(preds, METHOD, risk=risk, delta=DELTA)
    grouped = certify(preds, METHOD, risk=risk, delta=DELTA, groups="class")
    accepted = joint.accept(values, method=joint.method)
    members = [predicted == index for index in range(preds.n_classes)]
    risks = [float(np.mean(~correct[own & accepted])) for own in members if (own & accepted).any()]
    share = DELTA / preds.n_classes
    separate = [
        largest_certified_count(rank(correct[own], values[own]), risk, share) or 0 for own in members if own.any()
    ]
    return {
        "classifier": name,
        "images": preds.n_images,
        "views": preds.n_views,
        "classes": preds.n_classes,
        "method": METHOD,
        "risk": risk,
        "delta": DELTA,
        "coverage": joint.coverage,
        "worst_class_risk_seen": max(risks, default=0.0),
        "class_coverage": grouped.coverage,
        "bonferroni_coverage": sum(separate) / preds.n_images,
        "certified_classes": sum(group.accepted > 0 for group in grouped.groups),
        "smallest_class_coverage": min(group.coverage for group in grouped.groups),
        "largest_class_coverage": max(group.coverage for group in grouped.groups),
    }


def format_table(rows: Sequence[Row]) -> str:
    """Return a line for each classifier and risk, as in the documentation."""
    lines = [
        "| classifier | risk | one threshold | worst class then | per class | classes | by Bonferroni |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        shares = ("coverage", "worst_class_risk_seen", "class_coverage", "bonferroni_coverage")
        coverage, worst, by_class, bonferroni = (f"{100 * float(str(row[share])):.1f} %" for share in shares)
        risk, certified = f"{100 * float(str(row['risk'])):g} %", f"{row['certified_classes']} of {row['classes']}"
        lines.append(
            f"| {' | '.join((str(row['classifier']), risk, coverage, worst, by_class, certified, bonferroni))} |"
        )
    return "\n".join(lines)


def list_predictions(options: argparse.Namespace, store: Path) -> Iterator[tuple[str, Predictions]]:
    """Yield the name and the predictions of each classifier."""
    for folder in options.stored:
        yield folder.name, Predictions.open(folder)
    for model in [] if options.stored else options.model:
        source = open_source(f"npz:{CIFAR10 / 'test.npz'}", limit=options.limit)
        yield model.stem, collect(load_cifar10_classifier(model), source, "cifar10", store=store)


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = create_parser(__doc__)
    models = [CIFAR10 / f"{name}.onnx" for name in ("resnet20", "resnet56")]
    parser.add_argument("--model", type=Path, nargs="+", default=models, help="CIFAR-10 classifiers (default: both)")
    parser.add_argument("--limit", type=int, help="number of CIFAR-10 images to use (default: all)")
    parser.add_argument("--store", type=Path, help="folder for predictions (default: a temporary one)")
    parser.add_argument("--stored", type=Path, nargs="+", default=[], help="folders with predictions to use instead")
    return parser.parse_args()


def main() -> None:
    """Certify all risks, print the table and write it."""
    options = parse_options()
    if not options.stored and not CIFAR10.is_dir():
        print(f"skipped: {CIFAR10} does not exist")
        return
    with tempfile.TemporaryDirectory() as temporary:
        everything = list_predictions(options, options.store or Path(temporary))
        rows = [row for name, preds in everything for row in per_class(name, preds)]
    write_results(options.out / "monitoring_groups.csv", rows)
    print(format_table(rows))


if __name__ == "__main__":
    main()
