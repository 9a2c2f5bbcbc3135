"""Study of the defaults: are automatic views with the default confidence ever worse than the image alone?

Run: python -m reproduction.defaults_study DATA STORE [--out DIR]

DATA has the folders cifar10 (test.npz, three ResNets) and cifar10-jpeg (test/, seven Wide-ResNets). STORE keeps their
predictions, to resume and repeat the study without running the classifiers again. Small classifiers for data of
scikit-learn are trained each time. All numbers are from 20 random splits of the images into tuning images (to choose
views and fit confidences), certification images, and judged images.
"""

import argparse
import csv
import json
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import secondlook as sl
from reproduction.result_files import describe_circumstances, find_commit
from reproduction.sklearn_classifiers import train_all
from reproduction.workspace import Provenance
from secondlook.arrays import Array, BoolArray, Float64Array, IntArray
from secondlook.diagnosis import candidate_views, choose_views
from secondlook.errors import ConfidenceError
from secondlook.estimators import METHODS, default_method, fit_method, needs_fitting, tuning_positions
from secondlook.metrics import METRICS, rank
from secondlook.policies import largest_certified_count
from secondlook.predictions import PredictFrom

RESULTS = Path(__file__).parent / "results" / "defaults"
SPLITS = 20
MAX_IMAGES_OF_CHOICE = 256
"""The number of images that `choose_views` classifies."""

RESNETS = ("resnet20", "resnet32", "resnet56")
WIDE_RESNETS = ("wrn16-2-noaug", "wrn16-2-noflip", *(f"wrn16-2-seed{seed}" for seed in range(5)))
ENSEMBLES = {"ensemble of three ResNets": RESNETS, "ensemble of five Wide-ResNets": WIDE_RESNETS[2:]}
MIRRORED, UPSIDE_DOWN = ", mirrored", ", upside down"
ALSO_FLIPPED = ("resnet20", "resnet56", "wrn16-2-noaug", "wrn16-2-seed1")
"""Classifiers that also classify mirrored and upside-down images."""
CHOSEN_ON = ("resnet20", "wrn16-2-seed0")
"""The features and constants of the confidences were chosen on these two only."""
VIEWS_CHOSEN_ON = (
    *CHOSEN_ON,
    "wrn16-2-noaug",
    *(
        "digits, network of the demo",
        "digits, weak network",
        "digits, better network",
        "signs",
        "patches of photographs",
    ),
)
"""Earlier runs of this study on these chose the order of the pool and the limits of `choose_views`."""

SIDE = 32
NORMALIZATION = {
    "cifar10": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "cifar10-jpeg": ((0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.262)),
}
FURTHER_VIEWS = (
    *("hflip+gamma:0.85", "rotate:5", "rotate:-5"),
    *("hflip+shift:-6.25%,3.125%", "hflip+shift:3.125%,6.25%", "hflip+shift:6.25%,0"),
    *("shift:-9.375%,0", "shift:-9.375%,-3.125%"),
)
"""Views of the presets outside the pool, and the flipped `gamma:0.85` for mirrored images."""
POOL = candidate_views("auto", n=None).texts
VIEWS = tuple(dict.fromkeys((*POOL, *FURTHER_VIEWS)))
PRESETS = ("natural", "digits", "cifar10")

DELTA = 0.05
CERTIFIED = {"coverage at 1 %": 0.01, "coverage at 2 %": 0.02, "coverage at 5 %": 0.05}
"""Metrics: fraction of judged images accepted at a certified risk."""
MEASURED = {
    "accuracy": METRICS["accuracy"],
    "AUROC": METRICS["auroc"],
    "AUPR": METRICS["aupr"],
    "AURC": METRICS["aurc"],
}

PREDICT_FROM: tuple[PredictFrom, ...] = ("image", "views")
BASELINE = "mean"
APART = "blend, tuning images unused"
"""Separates the gain of `learned` from the value of its tuning images as certification images."""
NO_WEIGHT = dict.fromkeys(("intercept", "log_odds", "log_margin", "logit_norm", "image_log_odds"), 0.0)
CONFIDENCES: dict[str, tuple[str, dict[str, Any]]] = {
    "msr": ("msr", {}),
    BASELINE: ("mean", {}),
    "blend": ("blend", {}),
    APART: ("blend", {}),
    "learned": ("learned", {}),
    "max-logit-pnorm on views": ("max-logit-pnorm", {"on": "views"}),
    "mean with temperature": ("mean", {"temperature": "fit"}),
    # This feature alone ranks images like the mean margin over views.
    "mean margin": ("learned", {**NO_WEIGHT, "margin": 1.0}),
}

SHOWN_COVERAGE = "coverage at 2 %"
DEFAULTS, IMAGE = "defaults", "image alone"
IMAGE_TOLERANCE, PRESET_TOLERANCE = 0.1, 0.2
"""Allowed loss of AUROC (in percent) of the defaults to the image alone, and to the best preset."""
AVERAGE = "average"

Row = dict[str, str]


@dataclass(frozen=True, eq=False)
class StudySet:
    """The predictions of one classifier for one set of images."""

    name: str
    preds: sl.Predictions
    preset: str
    """The preset for these images, used to compare confidences."""
    is_chosen_on: bool
    """Whether choices were made on its classifier, or on a member of it."""


@dataclass(frozen=True, eq=False)
class Split:
    """Positions of the images of one split; together they are all images."""

    tuning: IntArray
    certification: IntArray
    judged: IntArray


def split_images(n_images: int, seed: int) -> Split:
    """Hold out tuning images, and divide the others into two halves."""
    tuning = tuning_positions(n_images, seed)
    others = np.random.default_rng(seed).permutation(np.delete(np.arange(n_images), tuning))
    half = len(others) // 2
    return Split(tuning, np.sort(others[:half]), np.sort(others[half:]))


# The sets of images and classifiers


def load_sets(data: Path, store: Path) -> Iterator[StudySet]:
    """Yield every classifier with its predictions; missing ones are collected into the store."""
    collected = {}
    for name in (*RESNETS, *WIDE_RESNETS):
        collected[name] = preds = collect_cifar10(data, store, name)
        yield StudySet(name, preds, "natural", name in CHOSEN_ON)
        if name in ALSO_FLIPPED:
            yield StudySet(f"{name}{MIRRORED}", mirror(preds), "natural", name in CHOSEN_ON)
            upside_down = collect_cifar10(data, store, name, upside_down=True)
            yield StudySet(f"{name}{UPSIDE_DOWN}", upside_down, "natural", name in CHOSEN_ON)
    for name, members in ENSEMBLES.items():
        ensemble = sl.Predictions(members=[collected[member] for member in members], views=VIEWS)
        yield StudySet(name, ensemble, "natural", any(member in CHOSEN_ON for member in members))
    for trained in train_all():
        views = list(dict.fromkeys([*VIEWS, *(text for preset in PRESETS for text in sl.ViewSet(preset).texts)]))
        images, labels = trained.unseen.images, trained.unseen.labels
        preds = sl.collect(trained.classifier, images, views, labels=labels, execution=sl.Execution(progress=False))
        yield StudySet(trained.name, preds, trained.preset, False)


def collect_cifar10(data: Path, store: Path, name: str, *, upside_down: bool = False) -> sl.Predictions:
    """Return the predictions of one classifier for all images, or for every fourth one upside down, in memory."""
    folder = "cifar10" if name in RESNETS else "cifar10-jpeg"
    images, labels = read_images(data / folder)
    if upside_down:
        images, labels = np.ascontiguousarray(images[::4, ::-1]), labels[::4]
    mean, std = NORMALIZATION[folder]
    model = sl.load_classifier(f"onnx:{data / folder / name}.onnx", output="logits", mean=mean, std=std)
    variant = "down" if upside_down else "main"
    stored = sl.collect(model, images, VIEWS, labels=labels, store=store / f"{name}-{variant}")
    return sl.Predictions(logits=stored.logits, views=stored.views, labels=stored.labels)


@cache
def read_images(folder: Path) -> tuple[Array, IntArray]:
    """Return the images of an archive or a folder, uint8 [10000, 32, 32, 3], and their labels, int64 [10000]."""
    if (folder / "test.npz").exists():
        arrays = np.load(folder / "test.npz")
        return arrays["images"], arrays["labels"].astype(np.int64)
    source = sl.open_source(f"folder:{folder / 'test'}")
    assert source.labels is not None, "the folders of the images are their labels"
    return np.stack([source.read(index) for index in range(len(source))]), source.labels


def mirror(preds: sl.Predictions) -> sl.Predictions:
    """Return the predictions for the mirrored images, for each view with a mirrored partner in the predictions.

    No classifier is needed: a view of the mirrored image equals a view of the image that begins with a flip.
    """
    pairs = {text: find_mirrored(text) for text in preds.views.texts if find_mirrored(text) in preds.views.texts}
    positions = [preds.views.texts.index(partner) for partner in pairs.values()]
    return sl.Predictions(logits=preds.logits[:, positions], views=list(pairs), labels=preds.labels)


def find_mirrored(view: str) -> str:
    """Return the view of an image that equals `view` of its mirror image."""
    names = {"identity": "hflip", "hflip": "identity"}
    return names.get(view) or (view.removeprefix("hflip+") if view.startswith("hflip+") else f"hflip+{view}")


def find_preset_views(preset: str, preds: sl.Predictions) -> list[str]:
    """Return the views of a preset as written in the predictions: shifts in pixels, or in percent of 32 pixels.

    Views without predictions are omitted: for mirrored images, those without a collected partner.
    """
    views = sl.ViewSet(preset).texts
    return [text for view in views for text in {view: 0, convert_to_percent(view): 0} if text in preds.views.texts]


def convert_to_percent(view: str) -> str:
    """Convert the shifts of a view from pixels of a 32x32 image to percent."""
    return "+".join(_convert_step(step) for step in view.split("+"))


def _convert_step(step: str) -> str:
    name, _, arguments = step.partition(":")
    if name != "shift" or "%" in arguments:
        return step
    return "shift:" + ",".join(f"{100 * int(part) / SIDE:g}%" if int(part) else "0" for part in arguments.split(","))


# Measurements


def measure_confidences(study_set: StudySet, splits: Sequence[Split]) -> dict[tuple[str, str, str], Float64Array]:
    """Return every metric in percent by class prediction, confidence and metric, on each split. float64 [splits]

    NaN if a confidence cannot be computed: it needs logits, or more errors among the tuning images.
    """
    preds = study_set.preds.select(views=find_preset_views(study_set.preset, study_set.preds))
    measured: dict[tuple[str, str, str], Float64Array] = {}
    for predict_from in PREDICT_FROM:
        correct = preds.correct(predict_from)
        for name, (method, options) in CONFIDENCES.items():
            is_set_apart = name == APART or needs_fitting(method, options)
            confidences = iter_confidences(preds, name, predict_from, splits)
            values = [
                {} if one is None else measure_split(correct, one, split, is_set_apart=is_set_apart)
                for split, one in zip(splits, confidences, strict=True)
            ]
            for metric in (*MEASURED, *CERTIFIED):
                measured[predict_from, name, metric] = np.array([100 * one.get(metric, np.nan) for one in values])
    return measured


def iter_confidences(
    preds: sl.Predictions, name: str, predict_from: PredictFrom, splits: Sequence[Split]
) -> Iterator[Float64Array | None]:
    """Yield the confidence of all images for each split, fitted to its tuning images; None if it cannot be fitted."""
    method, options = CONFIDENCES[name]
    if not needs_fitting(method, options):
        try:
            fixed = sl.confidence(preds, method, predict_from=predict_from, **options)
        except ConfidenceError:
            fixed = None
        yield from [fixed] * len(splits)
        return
    for split in splits:
        try:
            fitted: dict[str, Any] = fit_method(
                preds.select(images=split.tuning), method, predict_from=predict_from, **options
            )
        except ConfidenceError:
            yield None
        else:
            yield sl.confidence(preds, method, predict_from=predict_from, **fitted)


def measure_split(
    correct: BoolArray,
    confidence: Float64Array,
    split: Split,
    *,
    is_set_apart: bool,
    metrics: Mapping[str, Any] = MEASURED,
    certified: Mapping[str, float] = CERTIFIED,
) -> dict[str, float]:
    """Return every metric on the judged images of one split.

    The labels of the tuning images are used up if they are held out; otherwise they help to certify.
    """
    ranking = rank(correct[split.judged], confidence[split.judged])
    values = {metric: record.ranked(ranking) for metric, record in metrics.items()}
    labeled = split.certification if is_set_apart else np.concatenate([split.tuning, split.certification])
    labeled_ranking, descending = rank(correct[labeled], confidence[labeled]), np.sort(confidence[labeled])[::-1]
    for metric, risk in certified.items():
        accepted = largest_certified_count(labeled_ranking, risk, DELTA)
        threshold = np.inf if accepted is None else descending[accepted - 1]
        values[metric] = float(np.mean(confidence[split.judged] >= threshold))
    return values


def measure_defaults(study_set: StudySet, splits: Sequence[Split]) -> tuple[dict[str, Float64Array], list[str]]:
    """Return the AUROC in percent of the defaults and all alternatives, and the choices, by split."""
    preds, correct = study_set.preds, study_set.preds.correct()
    confidences = {IMAGE: sl.confidence(preds, "msr")}
    for preset in PRESETS:
        selected = preds.select(views=find_preset_views(preset, preds))
        confidences |= {f"{preset}, {method}": sl.confidence(selected, method) for method in ("mean", "blend")}
    values: dict[str, list[float]] = {DEFAULTS: [], **{name: [] for name in confidences}}
    choices = []
    for split in splits:
        confidence, choice = apply_defaults(preds, split)
        choices.append(choice)
        for name, one in {DEFAULTS: confidence, **confidences}.items():
            values[name].append(100 * sl.metrics.auroc(correct[split.judged], one[split.judged]))
    return {name: np.array(aurocs) for name, aurocs in values.items()}, choices


def apply_defaults(preds: sl.Predictions, split: Split) -> tuple[Float64Array, str]:
    """Return the default confidence of all images with the views chosen on the tuning images, and a description."""
    pool = preds.select(views=[text for text in POOL if text in preds.views.texts])
    spread = np.unique(np.linspace(0, len(split.tuning) - 1, MAX_IMAGES_OF_CHOICE).astype(np.int64))
    choice = choose_views(pool.select(images=split.tuning[spread]))
    choice = choice.refine(preds.select(images=split.tuning))
    selected = preds.select(views=list(choice.views))
    method = default_method(selected)
    return sl.confidence(selected, method), f"{method} on {len(choice.views)} views"


# Rows of the result files


def summarize(values: Float64Array) -> tuple[float, float, float]:
    """Return the mean over the splits and its 95 % interval.

    Each split judges about half of the images, so the spread over the splits is about the standard error on all images
    (half-sampling); t quantiles account for the few splits.
    """
    from scipy.stats import t

    mean = float(values.mean())
    margin = float(t.ppf(0.975, len(values) - 1) * values.std(ddof=1))
    return mean, mean - margin, mean + margin


def describe_values(values: Float64Array, differences: Float64Array) -> Row | None:
    """Return a number and a paired difference with their intervals, as texts; None if measured on less than two splits.

    NaN means not measured. float64 [splits]
    """
    measured = np.isfinite(values) & np.isfinite(differences)
    if measured.sum() < 2:
        return None
    names = ("value", "low", "high", "difference", "difference_low", "difference_high")
    numbers = (*summarize(values[measured]), *summarize(differences[measured]))
    return {"splits": str(measured.sum()), **{name: f"{one:.4f}" for name, one in zip(names, numbers, strict=True)}}


Measured = Mapping[tuple[str, str, str], Float64Array]


def make_confidence_rows(study_set: StudySet, measured: Measured) -> list[Row]:
    """Return a row for each class prediction, confidence and metric; the differences are to `mean`."""
    return _describe_confidences(_describe_set(study_set), measured)


def make_average_rows(all_measured: Sequence[Measured]) -> list[Row]:
    """Return the rows of the average over sets, split by split, of the differences to `mean`."""
    average = {}
    for key in all_measured[0]:
        baseline = (key[0], BASELINE, key[2])
        differences = np.array([measured[key] - measured[baseline] for measured in all_measured])
        # A confidence that was not fitted in some split of a set still counts in the others.
        average[key] = np.nanmean(differences, axis=0) if np.isfinite(differences).any() else differences[0]
    return _describe_confidences({"set": AVERAGE, "chosen_on": "no", "images": ""}, average)


def _describe_confidences(start: Row, measured: Measured) -> list[Row]:
    rows = []
    for (predict_from, name, metric), values in measured.items():
        described = describe_values(values, values - measured[predict_from, BASELINE, metric])
        if described is not None:
            rows.append({**start, "predict_from": predict_from, "confidence": name, "metric": metric, **described})
    return rows


def make_default_rows(study_set: StudySet, values: Mapping[str, Float64Array], choices: Sequence[str]) -> list[Row]:
    """Return a row for the defaults and each alternative, with the difference of the defaults to it."""
    rows = []
    for name, aurocs in values.items():
        described = describe_values(aurocs, values[DEFAULTS] - aurocs)
        assert described is not None, "every AUROC is defined"
        chosen = format_counts(choices) if name == DEFAULTS else ""
        rows.append({**_describe_set(study_set), "views": name, **described, "chosen": chosen})
    return rows


def _describe_set(study_set: StudySet) -> Row:
    chosen_on = "yes" if study_set.is_chosen_on else "no"
    return {"set": study_set.name, "chosen_on": chosen_on, "images": str(study_set.preds.n_images)}


def format_counts(texts: Iterable[str]) -> str:
    """Return each text with its number of occurrences, the most frequent first."""
    counted = Counter(texts).most_common()
    return "; ".join(f"{text} ({count})" for text, count in counted)


def write_rows(file: Path, rows: Sequence[Row]) -> None:
    """Write rows of the same columns as CSV."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read_rows(file: Path) -> list[Row]:
    """Read rows written by `write_rows`."""
    with file.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


# Tables


def format_defaults_table(rows: Sequence[Row]) -> str:
    """Return the defaults beside the image alone and the best preset, one line per set; misses are marked."""
    lines = [
        "| classifier and images | image alone | best preset | defaults | Δ vs image alone | Δ vs best preset | |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(row["set"] for row in rows):
        by_views = {row["views"]: row for row in rows if row["set"] == name}
        presets = [row for views, row in by_views.items() if views not in (DEFAULTS, IMAGE)]
        image, best = by_views[IMAGE], max(presets, key=lambda row: float(row["value"]))
        cells = [
            f"{name} †" if name.removesuffix(MIRRORED).removesuffix(UPSIDE_DOWN) in VIEWS_CHOSEN_ON else name,
            f"{float(image['value']):.2f}",
            f"{float(best['value']):.2f} ({best['views']})",
            f"{float(by_views[DEFAULTS]['value']):.2f}",
            format_difference(image),
            format_difference(best),
            ", ".join(list_misses(image, best)),
        ]
        lines.append(format_line(cells))
    return "\n".join(lines)


def list_misses(image: Row, best_preset: Row) -> list[str]:
    """Return the missed targets of the defaults."""
    misses = []
    if float(image["difference"]) < -IMAGE_TOLERANCE:
        misses.append("**below the image alone**")
    if float(best_preset["difference"]) < -PRESET_TOLERANCE:
        misses.append("**below the best preset**")
    return misses


def format_confidences_table(rows: Sequence[Row]) -> str:
    """Return AUROC and certified coverage of `blend` and `learned` beside `mean`, one line per set."""
    lines = [
        "| classifier and images | accuracy | AUROC of `mean` | `blend` | `learned` "
        "| coverage of `mean` | `blend` | `learned` |",
        "|---|---|---|---|---|---|---|---|",
    ]
    found = {(row["set"], row["confidence"], row["metric"]): row for row in rows if row["predict_from"] == "image"}
    for name in dict.fromkeys(row["set"] for row in rows if row["set"] != AVERAGE):
        cells = [mark_set(found[name, BASELINE, "AUROC"]), f"{float(found[name, BASELINE, 'accuracy']['value']):.1f}"]
        for metric, decimals in (("AUROC", 2), (SHOWN_COVERAGE, 1)):
            cells.append(f"{float(found[name, BASELINE, metric]['value']):.{decimals}f}")
            cells += [format_difference(found.get((name, one, metric)), decimals) for one in ("blend", "learned")]
        lines.append(format_line(cells))
    return "\n".join(lines)


def format_methods_table(rows: Sequence[Row]) -> str:
    """Return the difference of each confidence to `mean`, averaged over the held-out sets.

    The class is predicted from the image; confidences.csv has the class from the views, too.
    """
    lines = [
        "| confidence | AUROC | worst set | better, worse | AUPR | AURC | coverage at 1 % | at 2 % | at 5 % |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    by_image = [row for row in rows if row["predict_from"] == "image"]
    found = {(row["confidence"], row["metric"]): row for row in by_image if row["set"] == AVERAGE}
    for name in CONFIDENCES:
        if name == BASELINE:
            continue
        aurocs = [
            row
            for row in by_image
            if (row["confidence"], row["metric"], row["chosen_on"]) == (name, "AUROC", "no") and row["set"] != AVERAGE
        ]
        better = sum(float(row["difference_low"]) > 0 for row in aurocs)
        worse = sum(float(row["difference_high"]) < 0 for row in aurocs)
        cells = [
            f"`{name}`" if name in METHODS else name,
            format_difference(found[name, "AUROC"]),
            f"{min(float(row['difference']) for row in aurocs):+.2f}",
            f"{better}, {worse} of {len(aurocs)}",
            format_difference(found[name, "AUPR"]),
            format_difference(found[name, "AURC"], 3),
            *(format_difference(found[name, metric], 1) for metric in CERTIFIED),
        ]
        lines.append(format_line(cells))
    return "\n".join(lines)


def mark_set(row: Row) -> str:
    """Return the name of a set, marked if choices were made on its classifier."""
    return f"{row['set']} †" if row["chosen_on"] == "yes" else row["set"]


def format_difference(row: Row | None, decimals: int = 2) -> str:
    """Format a difference with its interval like '+0.50 [+0.31, +0.69]', and the number of splits if not all."""
    if row is None:
        return "–"
    middle, low, high = (float(row[name]) for name in ("difference", "difference_low", "difference_high"))
    splits = "" if row["splits"] == str(SPLITS) else f", {row['splits']} splits"
    return f"{middle:+.{decimals}f} [{low:+.{decimals}f}, {high:+.{decimals}f}]{splits}"


def format_line(cells: Sequence[str]) -> str:
    """Return a line of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def run_study(sets: Iterable[StudySet], n_splits: int = SPLITS) -> tuple[list[Row], list[Row]]:
    """Return the rows of confidences.csv and of defaults.csv."""
    confidence_rows, default_rows, judged = [], [], []
    for study_set in sets:
        splits = [split_images(study_set.preds.n_images, seed) for seed in range(n_splits)]
        measured = measure_confidences(study_set, splits)
        confidence_rows += make_confidence_rows(study_set, measured)
        values, choices = measure_defaults(study_set, splits)
        default_rows += make_default_rows(study_set, values, choices)
        if not study_set.is_chosen_on:
            judged.append(measured)
        print(f"{study_set.name}: AUROC {values[DEFAULTS].mean():.2f}, {format_counts(choices)}", flush=True)
    return confidence_rows + make_average_rows(judged), default_rows


def main() -> None:
    """Run the study and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("store", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # few errors in a split
    confidence_rows, default_rows = run_study(load_sets(arguments.data, arguments.store))
    write_rows(arguments.out / "confidences.csv", confidence_rows)
    write_rows(arguments.out / "defaults.csv", default_rows)
    circumstances = describe_circumstances("defaults", find_commit(), 0, None, Provenance({}, {}))
    (arguments.out / "circumstances.json").write_text(json.dumps(circumstances, indent=2) + "\n", encoding="utf-8")
    for table in (
        format_defaults_table(default_rows),
        format_confidences_table(confidence_rows),
        format_methods_table(confidence_rows),
    ):
        print(f"\n{table}")


if __name__ == "__main__":
    main()
