"""Speed of the choice of views from predictions: 200 candidate views x 5,000 images x a budget of 24 views.

Run: python benchmarks/search.py
"""

import time

import numpy as np

from measurement import create_parser, write_results
from secondlook.diagnosis import candidate_views, choose_views
from secondlook.predictions import Predictions

CLASSES = 10
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
    """Time the choice, print the time and write it."""
    parser = create_parser(__doc__)
    parser.add_argument("--candidates", type=int, default=200, help="candidate views (default: %(default)s)")
    parser.add_argument("--images", type=int, default=5_000, help="images (default: %(default)s)")
    parser.add_argument("--budget", type=int, default=24, help="views to choose (default: %(default)s)")
    options = parser.parse_args()
    preds = make_predictions(options.candidates, options.images)
    errors = int((~preds.correct()).sum())
    start = time.perf_counter()
    choose_views(preds, budget=options.budget)
    seconds = time.perf_counter() - start
    verdict = "met" if seconds <= MAX_SECONDS else "MISSED"
    print(
        f"{options.candidates} candidates x {options.images:,} images ({errors} errors) x budget {options.budget}: "
        f"{seconds:.1f} s; target of {MAX_SECONDS:g} s {verdict}"
    )
    setting = {"candidates": options.candidates, "images": options.images, "errors": errors, "budget": options.budget}
    row = {"seconds": round(seconds, 2), **setting, "seed": SEED}
    write_results(options.out / "search.csv", [row])


if __name__ == "__main__":
    main()
