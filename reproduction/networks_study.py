"""Study of fourteen classifiers: the defaults beside the image alone, the methods of the paper, and all other methods.

Run: python -m reproduction.networks_study DATA STORE [--out DIR]

DATA has the folders cifar10, cifar10-jpeg and cifar100 with their classifiers. STORE keeps the predictions, to resume
and repeat the study without running the classifiers again. Views are chosen once per classifier, like `auto`. Tuning
images, used to choose views and to fit `learned`, are not used to certify or to judge.
"""

import argparse
import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

import secondlook as sl
from reproduction.defaults_study import (
    MEASURED,
    SPLITS,
    Row,
    Split,
    describe_values,
    format_difference,
    format_line,
    measure_split,
    read_images,
    write_rows,
)
from reproduction.result_files import describe_circumstances, find_commit
from reproduction.unknown_study import CHOSEN_ON, CIFAR100_NETWORKS, NETWORKS, NORMALIZATIONS, find_folder
from reproduction.workspace import Provenance
from secondlook.arrays import Array, Float64Array, IntArray
from secondlook.diagnosis import collect_views
from secondlook.estimators import METHODS, default_method, fit_method, needs_fitting
from secondlook.metrics import METRICS

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "networks"

AUTO, PRINTED = "auto", "cifar100"
"""Sets of views: chosen for the classifier, and the 40 views that the paper prints for CIFAR-100."""
MAX_PRINTED_IMAGES = 1_500

DETECTED = {name: MEASURED[name] for name in ("accuracy", "AUROC", "AURC")} | {"AUGRC": METRICS["augrc"]}
CERTIFIED = {"coverage at 2 %": 0.02, "coverage at 5 %": 0.05, "coverage at 10 %": 0.1}
BASELINE, MEAN, BOOTSTRAP = "msr", "mean", "bootstrap"
LABEL_FREE = (*(name for name, one in METHODS.items() if not (one.parameter or one.fitted)), "zero?share=1")
FITTED = ("learned", "max-logit-pnorm?on=views")
SHOWN = (BASELINE, MEAN, BOOTSTRAP, "blend", "learned")
LEAST_GAIN, TOLERANCE = 1.5, 0.3
"""Targets in AUROC: the default's minimum gain over the image alone on CIFAR-100, and maximum loss to any method."""

CORRUPTED = ("c100-small", "resnet20")
CORRUPTIONS = ("gaussian noise", "motion blur", "fog", "jpeg")
STRENGTH = 2
MAX_CORRUPTED_IMAGES = 2_000

Measured = Mapping[tuple[str, str], Float64Array]
"""Values on each split by method and metric, in percent. float64 [splits]"""


def load_classifier(data: Path, network: str) -> sl.Classifier:
    """Load a network with the normalization of its folder."""
    folder = find_folder(network)
    mean, std = NORMALIZATIONS[folder]
    return sl.load_classifier(f"onnx:{data / folder / network}.onnx", output="logits", mean=mean, std=std)


def collect_network(
    data: Path, store: Path, network: str, views: str, limit: int | None = None
) -> tuple[sl.Predictions, IntArray]:
    """Return the predictions of a network, in memory, and the positions of the tuning images."""
    model = load_classifier(data, network)
    images, labels = read_images(data / find_folder(network))
    source = model.open_labeled(images[:limit], labels[:limit])
    stored, tuning, _ = collect_views(model, source, views, store=store / f"{network}-{views}")
    return sl.Predictions(logits=stored.logits, views=stored.views, labels=stored.labels), tuning


def collect_corrupted(data: Path, store: Path, network: str, views: Sequence[str]) -> dict[str, sl.Predictions]:
    """Return the predictions for corrupted images, by corruption, with the views chosen on clean ones."""
    sys.path.append(str(ROOT / "benchmarks"))
    from corruptions import CORRUPTIONS as KNOWN

    model, (images, labels) = load_classifier(data, network), read_images(data / find_folder(network))
    images, labels = images[-MAX_CORRUPTED_IMAGES:], labels[-MAX_CORRUPTED_IMAGES:]
    collected = {}
    for name in CORRUPTIONS:
        corrupted: Array = KNOWN[name](images, STRENGTH, np.random.default_rng(0))
        stored = sl.collect(model, corrupted, list(views), labels=labels, store=store / f"{network}-{name}")
        collected[name] = sl.Predictions(logits=stored.logits, views=stored.views, labels=stored.labels)
    return collected


# ---- Measurements


def split_others(n_images: int, tuning: IntArray, seed: int) -> Split:
    """Divide the images that are not tuning images into two halves."""
    others = np.random.default_rng(seed).permutation(np.delete(np.arange(n_images), tuning))
    certification, judged = np.array_split(others, 2)
    return Split(tuning, np.sort(certification), np.sort(judged))


def compute_confidences(preds: sl.Predictions, tuning: IntArray, methods: Sequence[str]) -> dict[str, Float64Array]:
    """Return the confidences of all images by method, fitted to the tuning images if needed."""
    confidences = {}
    for method in methods:
        if needs_fitting(method):
            name = method.partition("?")[0]
            fitted = fit_method(preds.select(images=tuning), method)
            confidences[method] = sl.confidence(preds, name, **fitted)
        else:
            confidences[method] = sl.confidence(preds, method)
    return confidences


def measure_network(
    preds: sl.Predictions, tuning: IntArray, methods: Sequence[str], n_splits: int = SPLITS
) -> dict[tuple[str, str], Float64Array]:
    """Return every metric of every method in percent, on each split. float64 [splits]"""
    correct, confidences = preds.correct(), compute_confidences(preds, tuning, methods)
    splits = [split_others(preds.n_images, tuning, seed) for seed in range(n_splits)]
    measured = {}
    for method, confidence in confidences.items():
        values = [
            measure_split(correct, confidence, split, is_set_apart=True, metrics=DETECTED, certified=CERTIFIED)
            for split in splits
        ]
        for metric in (*DETECTED, *CERTIFIED):
            measured[method, metric] = np.array([100 * one[metric] for one in values])
    return measured


def list_methods(preds: sl.Predictions) -> tuple[str, ...]:
    """Return the methods to compare: all without labels, including single views, and the fitted ones."""
    return (*LABEL_FREE, *(f"view:{text}" for text in preds.views.texts[1:]), *FITTED)


def make_rows(start: Row, measured: Measured, default: str) -> list[Row]:
    """Return a row for each method and metric, with its difference to `msr` and that of the default to it."""
    rows = []
    for (method, metric), values in measured.items():
        described = describe_values(values, values - measured[BASELINE, metric])
        compared = describe_values(values, measured[default, metric] - values)
        assert described is not None, "every metric is defined"
        assert compared is not None, "every metric is defined"
        differences = {f"default_{name}": compared[name] for name in compared if name.startswith("difference")}
        rows.append({**start, "method": method, "metric": metric, **described, **differences})
    return rows


def make_bootstrap_row(start: Row, measured: Measured) -> Row:
    """Return the row of BS(D) minus MSR(D), in AUROC."""
    values = measured[BOOTSTRAP, "AUROC"]
    described = describe_values(values, values - measured[MEAN, "AUROC"])
    assert described is not None, "every AUROC is defined"
    return {**start, **described}


# ---- Tables


def find_rows(rows: Sequence[Row], **wanted: str) -> dict[tuple[str, str], Row]:
    """Return the matching rows by network and method."""
    return {(row["network"], row["method"]): row for row in rows if wanted.items() <= row.items()}


def mark_network(network: str) -> str:
    """Return the name of a network, marked if choices were made on it."""
    return f"{network} †" if network in CHOSEN_ON else network


def find_best_other(rows: Sequence[Row], network: str, default: str = "blend") -> Row:
    """Return the row of the best label-free method by AUROC, except the default."""
    others = (
        row
        for row in rows
        if (row["network"], row["metric"]) == (network, "AUROC") and row["method"] not in (*FITTED, default)
    )
    return max(others, key=lambda row: float(row["value"]))


def format_auroc_table(rows: Sequence[Row]) -> str:
    """Return AUROC of the methods beside `msr`, and of the default beside the best other label-free method."""
    columns = [f"`{name}`" for name in SHOWN[1:]]
    lines = [format_line(["network", "accuracy", "`msr`", *columns, "`blend` − best other label-free method"])]
    lines.append("|" + "---|" * (len(columns) + 4))
    found, accuracies = find_rows(rows, metric="AUROC"), find_rows(rows, metric="accuracy")
    for network in dict.fromkeys(row["network"] for row in rows):
        best = find_best_other(rows, network)
        compared = {name: best[f"default_{name}"] for name in ("difference", "difference_low", "difference_high")}
        missed = "" if is_reached(rows, network) else " **missed**"
        cells = [
            mark_network(network),
            f"{float(accuracies[network, BASELINE]['value']):.1f}",
            f"{float(found[network, BASELINE]['value']):.2f}",
            *(format_difference(found[network, name]) for name in SHOWN[1:]),
            f"{format_difference(best | compared)} `{best['method']}`{missed}",
        ]
        lines.append(format_line(cells))
    return "\n".join(lines)


def is_reached(rows: Sequence[Row], network: str) -> bool:
    """Whether the default gains enough over the image alone, and no label-free method is clearly better."""
    gain = float(find_rows(rows, metric="AUROC")[network, "blend"]["difference"])
    loses = float(find_best_other(rows, network)["default_difference"]) < -TOLERANCE
    return not loses and (network not in CIFAR100_NETWORKS or gain >= LEAST_GAIN)


def format_complete_table(rows: Sequence[Row], methods: Sequence[str] = SHOWN) -> str:
    """Return AURC, AUGRC and certified coverage, one line per network and method; differences are to `msr`."""
    metrics = {"AURC": 2, "AUGRC": 2} | dict.fromkeys(CERTIFIED, 1)
    lines = [format_line(["network", "method", *metrics]), "|" + "---|" * (len(metrics) + 2)]
    for network in dict.fromkeys(row["network"] for row in rows):
        for method in methods:
            cells = [mark_network(network), f"`{method}`"]
            for metric, decimals in metrics.items():
                row = find_rows(rows, metric=metric)[network, method]
                value = f"{float(row['value']):.{decimals}f}"
                cells.append(value if method == BASELINE else f"{value}, {format_difference(row, decimals)}")
            lines.append(format_line(cells))
    return "\n".join(lines)


def format_bootstrap_table(rows: Sequence[Row]) -> str:
    """Return BS(D) minus MSR(D) for each network, one column per set of views."""
    lines = ["| network | chosen views | the 40 printed views |", "|---|---|---|"]
    for network in CIFAR100_NETWORKS:
        found = {row["views"]: row for row in rows if row["network"] == network}
        lines.append(format_line([mark_network(network), *(format_difference(found[one]) for one in (AUTO, PRINTED))]))
    return "\n".join(lines)


def format_corrupted_table(rows: Sequence[Row]) -> str:
    """Return AURC and AUGRC of `det_mcp` of fd-shifts, which is `msr`, and of the default, by corruption."""
    header = ["network", "images", "AURC of `det_mcp`", "`blend`", "AUGRC of `det_mcp`", "`blend`"]
    lines = [format_line(header), "|" + "---|" * len(header)]
    for network in CORRUPTED:
        for images in dict.fromkeys(row["images"] for row in rows):
            cells = [network, images]
            for metric in ("AURC", "AUGRC"):
                found = find_rows(rows, network=network, images=images, metric=metric)
                cells.append(f"{float(found[network, BASELINE]['value']):.2f}")
                cells.append(format_difference(found[network, "blend"]))
            lines.append(format_line(cells))
    return "\n".join(lines)


def main() -> None:
    """Run the study and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("store", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # few errors in a split
    methods, bootstrap, corrupted = [], [], []
    no_tuning = np.zeros(0, dtype=np.int64)
    for network in NETWORKS:
        start = {"network": network, "chosen_on": "yes" if network in CHOSEN_ON else "no"}
        preds, tuning = collect_network(arguments.data, arguments.store, network, AUTO)
        measured = measure_network(preds, tuning, list_methods(preds))
        methods += make_rows(start, measured, default_method(preds))
        if network in CIFAR100_NETWORKS:
            bootstrap.append(make_bootstrap_row({**start, "views": AUTO, "images": str(preds.n_images)}, measured))
            printed, _ = collect_network(arguments.data, arguments.store, network, PRINTED, MAX_PRINTED_IMAGES)
            measured = measure_network(printed, no_tuning, (BASELINE, MEAN, BOOTSTRAP))
            bootstrap.append(make_bootstrap_row({**start, "views": PRINTED, "images": str(printed.n_images)}, measured))
        if network in CORRUPTED:
            sets = {"i.i.d.": preds.select(images=np.arange(preds.n_images - MAX_CORRUPTED_IMAGES, preds.n_images))}
            sets |= collect_corrupted(arguments.data, arguments.store, network, preds.views.texts)
            for name, one in sets.items():
                measured = measure_network(one, no_tuning, (BASELINE, "blend"))
                corrupted += make_rows({**start, "images": name}, measured, "blend")
        print(f"{network}: measured", flush=True)
    for name, rows in {"methods": methods, "bootstrap": bootstrap, "corrupted": corrupted}.items():
        write_rows(arguments.out / f"{name}.csv", rows)
    circumstances = describe_circumstances("networks", find_commit(), 0, None, Provenance({}, {}))
    (arguments.out / "circumstances.json").write_text(json.dumps(circumstances, indent=2) + "\n", encoding="utf-8")
    tables = (
        format_auroc_table(methods),
        format_complete_table(methods),
        format_bootstrap_table(bootstrap),
        format_corrupted_table(corrupted),
    )
    (arguments.out / "tables.md").write_text("\n\n".join(tables) + "\n", encoding="utf-8")
    print("\n\n".join(tables))


if __name__ == "__main__":
    main()
