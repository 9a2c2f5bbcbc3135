"""Whether searched views hold on images they were not chosen on: 20 splits of CIFAR-10, two classifiers.

Run: python benchmarks/search_quality.py DATA STORE
DATA holds test.npz, resnet20.onnx and resnet56.onnx; STORE keeps the predictions of the pool, so that a second run, or
one that was stopped, does not ask the classifiers again.
"""

import argparse
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from circumstances import write_results
from secondlook.arrays import IntArray
from secondlook.classifiers import load_classifier
from secondlook.estimators import confidence
from secondlook.metrics import auroc
from secondlook.predictions import Predictions, collect
from secondlook.search import STRATEGIES, Gain, candidates, search_views
from secondlook.views import ViewSet

RESULTS = Path(__file__).parent / "results"
CLASSIFIERS = ("resnet20", "resnet56")
IMAGES, SEARCHED, SPLITS, BUDGET, NATURAL = 5_000, 1_000, 20, 12, 100
MOST_BELOW = 0.3
"""Points of AUROC that the found set may lie below the better of preset and mean over all, in any split."""
PRESET = "cifar10"
PLAIN = "labels alone"
"""Greedy without shrinkage, for comparison."""


def pool_of_the_study() -> ViewSet:
    """Return the natural candidates, the preset to compare with, and the insane ones."""
    insane = candidates("insane", 32, None)
    return ViewSet(dict.fromkeys([*candidates("natural", 32, NATURAL), *ViewSet(PRESET), *insane]))


def collected(data: Path, name: str, store: Path) -> Predictions:
    """Return the answers of one classifier to the whole pool."""
    arrays = np.load(data / "test.npz")
    images, labels = arrays["images"][:IMAGES], arrays["labels"][:IMAGES].astype(np.int64)
    model = load_classifier(
        f"onnx:{data / name}.onnx", output="logits", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)
    )
    return collect(model, images, pool_of_the_study(), labels=labels, store=store)


def auroc_of(preds: Predictions, judged: IntArray, views: ViewSet) -> float:
    """Return the AUROC, in per cent, of the mean over some views on some of the images."""
    chosen = preds.select(images=judged, views=views)
    return 100 * auroc(chosen.correct(), confidence(chosen, "mean"))


@dataclass(frozen=True)
class Split:
    """What came out of one split: AUROC on the judged images by what was used, and what the search had promised."""

    auroc: dict[str, float]
    promised: Gain
    """The gain of greedy over the preset, as told from the searched images alone."""

    @property
    def kept_promise(self) -> bool:
        """Whether the gain on the judged images lies in the interval that was told."""
        interval = self.promised.interval
        gain = (self.auroc["greedy"] - self.auroc["preset"]) / 100
        return interval is not None and interval.low <= gain <= interval.high


def one_split(preds: Predictions, split: int) -> Split:
    """Search on some images and judge on the others."""
    order = np.random.default_rng(split).permutation(preds.n_images)
    searched, judged = np.sort(order[:SEARCHED]), np.sort(order[SEARCHED:])
    seen = preds.select(images=searched)
    found = {name: search_views(seen, BUDGET, strategy=name, preset=PRESET, seed=split) for name in STRATEGIES}
    found[PLAIN] = search_views(seen, BUDGET, preset=PRESET, shrinkage=0.0, seed=split)
    diagnosis = found["greedy"].diagnosis
    sets = {"image itself": ViewSet("identity"), "preset": ViewSet(PRESET), "all sane": diagnosis.sane}
    sets |= {"all sound": diagnosis.sound, **{name: result.views for name, result in found.items()}}
    return Split({name: auroc_of(preds, judged, views) for name, views in sets.items()}, found["greedy"].gains[0])


def study(classifier: str, preds: Predictions) -> list[dict[str, object]]:
    """Run all splits, print the table, and return a row for each split and set."""
    splits = [one_split(preds, split) for split in range(SPLITS)]
    values = {name: np.array([split.auroc[name] for split in splits]) for name in splits[0].auroc}
    better = np.maximum(values["preset"], values["all sane"])
    print(f"\n{classifier}: {IMAGES:,} images, {preds.n_views} views, {SPLITS} splits of {SEARCHED:,} for the search")
    print(f"{'':16}{'AUROC':>8}{'less preset':>13}{'less all sane':>15}{'worst split':>13}")
    for name, ours in values.items():
        less = (np.mean(ours - values["preset"]), np.mean(ours - values["all sane"]), np.min(ours - better))
        print(f"{name:16}{ours.mean():8.2f}{less[0]:+13.3f}{less[1]:+15.3f}{less[2]:+13.3f}")
    ours = values["greedy"]
    reached = ours.mean() >= max(values["preset"].mean(), values["all sane"].mean())
    reached = reached and np.min(ours - better) >= -MOST_BELOW
    print(f"greedy at least as good on average, and never {MOST_BELOW} below: {'reached' if reached else 'MISSED'}")
    promised = 100 * np.mean([split.promised.gain for split in splits])
    kept = sum(split.kept_promise for split in splits)
    told = Counter(split.promised.verdict for split in splits)
    print(f"gain over the preset: promised {promised:+.3f} on average, the interval held in {kept} of {SPLITS} splits;")
    print(f"verdicts: {', '.join(f'{verdict} {count}' for verdict, count in told.items())}")
    setting = {"images": IMAGES, "searched": SEARCHED, "budget": BUDGET, "pool": preds.n_views}
    return [
        {"classifier": classifier, "split": split, "set": name, "auroc": round(value, 4), "seed": split, **setting}
        for split, row in enumerate(splits)
        for name, value in row.auroc.items()
    ]


def main() -> None:
    """Run the study for each classifier and keep it in benchmarks/results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("store", type=Path)
    given = parser.parse_args()
    rows = [row for name in CLASSIFIERS for row in study(name, collected(given.data, name, given.store))]
    write_results(RESULTS / "search_quality.csv", rows)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
