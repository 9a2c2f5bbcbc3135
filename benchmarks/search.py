"""How fast views are found: 200 candidates x 5,000 images x a budget of 24, by each strategy.

Run: python benchmarks/search.py
"""

import time
import warnings
from pathlib import Path

import numpy as np

from circumstances import write_results
from secondlook.diagnosis import STRATEGIES, candidate_views, search_views
from secondlook.predictions import Predictions

RESULTS = Path(__file__).parent / "results"
CANDIDATES, IMAGES, BUDGET, CLASSES = 200, 5_000, 24, 10
MOST_SECONDS = 20.0
SEED = 0


def made_up_predictions(n_views: int, n_images: int) -> Predictions:
    """Return predictions like those of a good classifier: about 8 % errors, views of an image alike."""
    generator = np.random.default_rng(SEED)
    labels = generator.integers(CLASSES, size=n_images)
    logits = generator.normal(0, 1.5, (n_images, 1, CLASSES)) + generator.normal(0, 0.7, (n_images, n_views, CLASSES))
    logits[np.arange(n_images), :, labels] += 5.0
    return Predictions(logits=logits.astype(np.float32), views=candidate_views("natural", 32, n_views), labels=labels)


def main() -> None:
    """Time each strategy with its five folds, print it, and keep it in benchmarks/results."""
    preds = made_up_predictions(CANDIDATES, IMAGES)
    errors = int((~preds.correct()).sum())
    print(
        f"{CANDIDATES} candidates x {IMAGES:,} images ({errors} errors) x budget {BUDGET}, allowed {MOST_SECONDS:g} s:"
    )
    search_views(preds.select(images=np.arange(1000)), 3)  # compiles
    rows: list[dict[str, object]] = []
    for name in STRATEGIES:
        started = time.perf_counter()
        search_views(preds, BUDGET, strategy=name, seed=SEED)
        taken = time.perf_counter() - started
        print(f"  {name:16} {taken:6.1f} s  {'reached' if taken <= MOST_SECONDS else 'MISSED'}")
        setting = {"candidates": CANDIDATES, "images": IMAGES, "errors": errors, "budget": BUDGET, "seed": SEED}
        rows.append({"strategy": name, "objective": "auroc", "seconds": round(taken, 2), **setting})
    write_results(RESULTS / "search.csv", rows)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
