"""Speed of the search: 200 candidate views x 5,000 images x a budget of 24 views.

Run: python benchmarks/search.py
"""

import time
from pathlib import Path

import numpy as np

from circumstances import write_results
from secondlook.diagnosis import candidate_views, search_views
from secondlook.predictions import Predictions

RESULTS = Path(__file__).parent / "results"
CANDIDATES, IMAGES, BUDGET, CLASSES = 200, 5_000, 24, 10
MAX_SECONDS = 20.0
SEED = 0


def make_predictions(n_views: int, n_images: int) -> Predictions:
    """Return predictions like those of a good classifier: about 8 % errors, similar outputs for all views."""
    generator = np.random.default_rng(SEED)
    labels = generator.integers(CLASSES, size=n_images)
    logits = generator.normal(0, 1.5, (n_images, 1, CLASSES)) + generator.normal(0, 0.7, (n_images, n_views, CLASSES))
    logits[np.arange(n_images), :, labels] += 5.0
    return Predictions(logits=logits.astype(np.float32), views=candidate_views("natural", 32, n_views), labels=labels)


def main() -> None:
    """Time the search with its five folds, print the time, and write it to benchmarks/results."""
    preds = make_predictions(CANDIDATES, IMAGES)
    errors = int((~preds.correct()).sum())
    started = time.perf_counter()
    search_views(preds, BUDGET, seed=SEED)
    seconds = time.perf_counter() - started
    verdict = "reached" if seconds <= MAX_SECONDS else "MISSED"
    print(f"{CANDIDATES} candidates x {IMAGES:,} images ({errors} errors) x budget {BUDGET}: {seconds:.1f} s, ", end="")
    print(f"at most {MAX_SECONDS:g} s: {verdict}")
    row = {"objective": "auroc", "seconds": round(seconds, 2), "candidates": CANDIDATES, "images": IMAGES}
    write_results(RESULTS / "search.csv", [{**row, "errors": errors, "budget": BUDGET, "seed": SEED}])


if __name__ == "__main__":
    main()
