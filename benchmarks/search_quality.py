"""Whether searched views hold on images they were not chosen on: 20 splits of CIFAR-10, three classifiers; and digits.

Run: python benchmarks/search_quality.py DATA STORE
DATA holds test.npz, resnet20.onnx, resnet32.onnx and resnet56.onnx; STORE keeps the predictions of the pool, so that a
second run, or one that was stopped, does not ask the classifiers again.
"""

import argparse
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import secondlook.cli
from circumstances import write_results
from secondlook.arrays import IntArray
from secondlook.classifiers import load_classifier
from secondlook.cli.demo_digits import digit_images, seen_and_unseen
from secondlook.diagnosis import STRATEGIES, SearchResult, candidate_views, search_views
from secondlook.estimators import confidence
from secondlook.metrics import auroc
from secondlook.predictions import Predictions, collect
from secondlook.views import ViewSet

RESULTS = Path(__file__).parents[1] / "results" / "search"
CLASSIFIERS = ("resnet20", "resnet56", "resnet32")
"""The first two were looked at while the search was made, the third was not."""
IMAGES, SEARCHED, SPLITS, BUDGET, NATURAL = 5_000, 1_000, 20, 12, 100
"""A budget of 12 views beside the image itself, as many as the preset has."""
DIGITS_SEARCHED = 800
MOST_BELOW = 0.3
"""Points of AUROC that the found set may lie below the better of preset and mean over all, in any split."""
PRESET = "cifar10"
SEARCH = "search"
"""What `search_views` tells to use: what greedy found, or the preset where that is not shown to be better."""


def pool_of_the_study() -> ViewSet:
    """Return the natural candidates, the preset to compare with, and the insane ones."""
    insane = candidate_views("insane", 32, None)
    return ViewSet(dict.fromkeys([*candidate_views("natural", 32, NATURAL), *ViewSet(PRESET), *insane]))


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
    """What came out of one split."""

    auroc: dict[str, float]
    """On the judged images, in per cent, by what was used."""
    result: SearchResult
    """Of the search by greedy, from the searched images alone."""

    @property
    def guarantee_held(self) -> bool:
        """Whether the gain of the found set over the preset, on the judged images, lies in the interval told."""
        interval = self.result.gains[0].interval
        gain = (self.auroc["greedy, found"] - self.auroc["preset"]) / 100
        return interval is not None and interval.low <= gain <= interval.high


def one_split(preds: Predictions, split: int) -> Split:
    """Search on some images and judge on the others."""
    order = np.random.default_rng(split).permutation(preds.n_images)
    searched, judged = np.sort(order[:SEARCHED]), np.sort(order[SEARCHED:])
    seen = preds.select(images=searched)
    by_strategy = {name: search_views(seen, BUDGET, strategy=name, preset=PRESET, seed=split) for name in STRATEGIES}
    greedy = by_strategy["greedy"]
    labels_alone = search_views(seen, BUDGET, preset=PRESET, shrinkage=0.0, seed=split)
    sets = {
        "image itself": ViewSet("identity"),
        "preset": ViewSet(PRESET),
        "all sane": greedy.diagnosis.sane,
        "all sound": greedy.diagnosis.sound,
        SEARCH: greedy.views,
        **{f"{name}, found": result.found for name, result in by_strategy.items()},
        "greedy, labels alone": labels_alone.found,
    }
    return Split({name: auroc_of(preds, judged, views) for name, views in sets.items()}, greedy)


def study(classifier: str, preds: Predictions) -> list[dict[str, object]]:
    """Run all splits, print the table, and return a row for each split and set."""
    splits = [one_split(preds, split) for split in range(SPLITS)]
    values = {name: np.array([split.auroc[name] for split in splits]) for name in splits[0].auroc}
    better = np.maximum(values["preset"], values["all sane"])
    print(f"\n{classifier}: {IMAGES:,} images, {preds.n_views} views, {SPLITS} splits of {SEARCHED:,} for the search")
    print(f"{'':24}{'AUROC':>8}{'less preset':>13}{'less all sane':>15}{'worst split':>13}")
    for name, ours in values.items():
        less = (np.mean(ours - values["preset"]), np.mean(ours - values["all sane"]), np.min(ours - better))
        print(f"{name:24}{ours.mean():8.3f}{less[0]:+13.3f}{less[1]:+15.3f}{less[2]:+13.3f}")
    ours = values[SEARCH]
    reached = ours.mean() >= max(values["preset"].mean(), values["all sane"].mean())
    reached = reached and np.min(ours - better) >= -MOST_BELOW
    print(
        f"{SEARCH}: at least both on average, never {MOST_BELOW} below the better: {'reached' if reached else 'MISSED'}"
    )
    print_guarantees(splits)
    setting = {"images": IMAGES, "searched": SEARCHED, "budget": BUDGET, "pool": preds.n_views}
    return [
        {"classifier": classifier, "split": split, "set": name, "auroc": round(value, 4), "seed": split, **setting}
        for split, one in enumerate(splits)
        for name, value in one.auroc.items()
    ]


def flips_of_digits() -> list[dict[str, object]]:
    """Search natural candidates, flips among them, for the demo's digits; return how many flips were chosen."""
    images, labels = digit_images()
    unseen = seen_and_unseen()[1]
    network = Path(secondlook.cli.__file__).parent / "demo_data" / "digits.onnx"
    preds = collect(f"onnx:{network}", images[unseen], candidate_views("natural", 16, NATURAL), labels=labels[unseen])
    rows: list[dict[str, object]] = []
    for split in range(SPLITS):
        searched = np.sort(np.random.default_rng(split).permutation(preds.n_images)[:DIGITS_SEARCHED])
        result = search_views(preds.select(images=searched), BUDGET, seed=split)
        flips = sum("flip" in view for view in result.found.texts)
        rows.append({"classifier": "digits", "split": split, "set": "greedy, found", "flips": flips, "seed": split})
    print(
        f"\ndigits: {sum(int(str(row['flips'])) for row in rows)} flips chosen in {SPLITS} splits of {DIGITS_SEARCHED}"
    )
    return rows


def print_guarantees(splits: list[Split]) -> None:
    """Print what the searches told, and how that held on the judged images."""
    guaranteed = 100 * np.mean([split.result.gains[0].gain for split in splits])
    held = sum(split.guarantee_held for split in splits)
    kept = sum(split.result.kept is not None for split in splits)
    shrinkages = Counter(split.result.shrinkage for split in splits)
    print(f"the preset was kept in {kept} of {len(splits)} splits; shrinkages: {dict(shrinkages)}")
    print(f"gain of the found over the preset: told {guaranteed:+.3f} on average, interval held in {held} splits")


def main() -> None:
    """Run the study for each classifier and keep it in results/search."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("store", type=Path)
    given = parser.parse_args()
    rows = flips_of_digits()
    rows += [row for name in CLASSIFIERS for row in study(name, collected(given.data, name, given.store))]
    write_results(RESULTS / "quality.csv", rows)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
