"""Study of `search_views` on CIFAR-10: are the found views better than the preset on images not used for the search?

Run: python -m reproduction.search_study DATA STORE

DATA has test.npz, resnet20.onnx, resnet32.onnx and resnet56.onnx. STORE keeps the predictions of the candidate views,
so that the study can be resumed and repeated without running the classifiers again.
"""

import argparse
import csv
import json
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import secondlook as sl
from reproduction.result_files import describe_circumstances, find_commit
from reproduction.workspace import Provenance
from secondlook.arrays import IntArray
from secondlook.diagnosis import SearchResult, candidate_views, search_views

RESULTS = Path(__file__).parent / "results" / "search"
CLASSIFIERS = ("resnet20", "resnet56", "resnet32")
IMAGES, SEARCHED, SPLITS, NATURAL = 5_000, 1_000, 20, 100
BUDGET = 12
"""As many views besides the image itself as the preset has."""
PRESET = "cifar10"
RETURNED, FOUND, ALL_USABLE, IMAGE = "views returned", "views found", "all usable", "image alone"


@dataclass(frozen=True)
class Split:
    """Search on some images, judged on the others."""

    result: SearchResult
    auroc: dict[str, float]
    """AUROC on the judged images in percent, by the views used."""

    @property
    def interval_covers(self) -> bool:
        """Whether the gain over the preset on the judged images lies in the interval that the search reported."""
        interval = self.result.gains[0].interval
        gain = (self.auroc[FOUND] - self.auroc[PRESET]) / 100
        return interval is not None and interval.low <= gain <= interval.high


def make_pool() -> sl.ViewSet:
    """Return natural candidates, the preset, and harmful views."""
    harmful = candidate_views("harmful", 32, None)
    return sl.ViewSet(dict.fromkeys([*candidate_views("natural", 32, NATURAL), *sl.ViewSet(PRESET), *harmful]))


def collect_pool(data: Path, name: str, store: Path) -> sl.Predictions:
    """Return the predictions of one classifier for all candidate views."""
    arrays = np.load(data / "test.npz")
    images, labels = arrays["images"][:IMAGES], arrays["labels"][:IMAGES].astype(np.int64)
    model = sl.load_classifier(
        f"onnx:{data / name}.onnx", output="logits", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)
    )
    return sl.collect(model, images, make_pool(), labels=labels, store=store)


def run_split(preds: sl.Predictions, seed: int) -> Split:
    """Search on some of the images and judge on the others."""
    order = np.random.default_rng(seed).permutation(preds.n_images)
    searched, judged = np.sort(order[:SEARCHED]), np.sort(order[SEARCHED:])
    result = search_views(preds.select(images=searched), BUDGET, preset=PRESET, seed=seed)
    sets = {
        IMAGE: sl.ViewSet("identity"),
        PRESET: sl.ViewSet(PRESET),
        ALL_USABLE: result.diagnosis.usable,
        FOUND: result.found,
        RETURNED: result.views,
    }
    return Split(result, {name: compute_auroc(preds, judged, views) for name, views in sets.items()})


def compute_auroc(preds: sl.Predictions, images: IntArray, views: sl.ViewSet) -> float:
    """Return the AUROC of the mean over some views on some images, in percent."""
    selected = preds.select(images=images, views=views)
    return 100 * sl.metrics.auroc(selected.correct(), sl.confidence(selected, "mean"))


def print_splits(classifier: str, splits: list[Split]) -> None:
    """Print the mean over the splits, and how often the preset was kept and the intervals were right."""
    values = {name: np.array([split.auroc[name] for split in splits]) for name in splits[0].auroc}
    print(f"\n{classifier}: AUROC in percent, mean over {len(splits)} splits")
    print(f"{'':16}{'AUROC':>8}{'Δ vs preset':>13}{'worst split':>13}")
    for name, aurocs in values.items():
        gains = aurocs - values[PRESET]
        print(f"{name:16}{aurocs.mean():8.3f}{gains.mean():+13.3f}{gains.min():+13.3f}")
    kept = sum(split.result.kept is not None for split in splits)
    covered = sum(split.interval_covers for split in splits)
    print(f"preset kept in {kept} splits; interval of the gain covers the gain on other images in {covered} splits")


def write_splits(splits: dict[str, list[Split]]) -> None:
    """Write a row for each classifier, split and set of views, and the circumstances beside them."""
    setting = [len(make_pool()), IMAGES, SEARCHED, BUDGET]
    RESULTS.mkdir(parents=True, exist_ok=True)
    with (RESULTS / "chooser.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["classifier", "split", "set", "auroc", "pool", "images", "searched", "budget"])
        for classifier, by_seed in splits.items():
            for seed, split in enumerate(by_seed):
                for name, value in split.auroc.items():
                    writer.writerow([classifier, seed, name, round(value, 4), *setting])
    circumstances = describe_circumstances("search", find_commit(), 0, IMAGES, Provenance({}, {}))
    (RESULTS / "chooser.json").write_text(json.dumps(circumstances, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Run the study for each classifier."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("store", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # few errors in a split
    splits = {}
    for name in CLASSIFIERS:
        preds = collect_pool(arguments.data, name, arguments.store)
        splits[name] = [run_split(preds, seed) for seed in range(SPLITS)]
        print_splits(name, splits[name])
    write_splits(splits)


if __name__ == "__main__":
    main()
