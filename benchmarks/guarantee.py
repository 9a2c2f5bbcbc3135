"""Whether the guarantee of `certify` holds, and what coverage it costs: simulated populations, and halves of CIFAR-10.

Run: python benchmarks/guarantee.py [--draws 2000] [--model ../shared/cifar10/resnet56.onnx] [--store DIR]

The halves need ../shared/cifar10/test.npz and the classifier; without them only the simulation runs.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.stats import binom

from measurement import CIFAR10, Row, create_parser, load_cifar10_classifier, write_results
from secondlook.arrays import BoolArray, Float64Array
from secondlook.estimators import confidence
from secondlook.metrics import Ranking, rank
from secondlook.predictions import Predictions, collect
from secondlook.selective import certify_confidence, largest_certified_count
from secondlook.sources import open_source

METHODS = ("msr", "mean", "bootstrap-lower")
Rate = Callable[[Float64Array], Float64Array]

POPULATIONS: dict[str, tuple[Rate, Rate]] = {
    # name in the results: error rate of the image at quantile u (0 is the most confident), risk of accepting up to u
    "risk 0.1 u": (lambda u: 0.2 * u, lambda u: 0.1 * u),
    "risk 0.2 u^3": (lambda u: 0.8 * u**3, lambda u: 0.2 * u**3),
    "risk 0.1 u^2": (lambda u: 0.3 * u**2, lambda u: 0.1 * u**2),
    "risk 0.08 u^6": (lambda u: 0.56 * u**6, lambda u: 0.08 * u**6),
    "risk 0.01 + 0.09 u^3": (lambda u: 0.01 + 0.36 * u**3, lambda u: 0.01 + 0.09 * u**3),
    "surest 2 % wrong": (
        lambda u: np.where(u < 0.02, 0.3, 0.6 * u**3),
        lambda u: (0.3 * np.minimum(u, 0.02) + 0.15 * np.maximum(u**4 - 1.6e-7, 0)) / u,
    ),
    "up and down about 5 %": (
        lambda u: (
            0.05 + 0.004 * np.sin(40 * u) * (1 - u) + 0.004 * u * (40 * np.cos(40 * u) * (1 - u) - np.sin(40 * u))
        ),
        lambda u: 0.05 + 0.004 * np.sin(40 * u) * (1 - u),
    ),
}


# --- Simulated populations ---


def bisect_certified_count(ranking: Ranking, risk: float, delta: float) -> int | None:
    """Return the number of images that Geifman and El-Yaniv's search accepts: log2(n) tests at delta / log2(n) each."""
    steps = int(np.ceil(np.log2(ranking.n_images)))
    low, high = 0, ranking.n_images
    for _ in range(steps):
        middle = (low + high + 1) // 2
        passes = middle > 0 and binom.cdf(ranking.errors[middle - 1], middle, risk) <= delta / steps
        low, high = (middle, high) if passes else (low, max(middle - 1, low))
    return low or None


def simulate(name: str, n_images: int, risk: float, delta: float, draws: int, seed: int) -> Row:
    """Draw calibration sets from a population and count how often the guarantee fails."""
    error_rate, risk_up_to = POPULATIONS[name]
    rng = np.random.default_rng(seed)
    coverages, bisected = np.zeros(draws), np.zeros(draws)
    for draw in range(draws):
        quantiles = rng.random(n_images)
        ranking = rank(rng.random(n_images) >= error_rate(quantiles), -quantiles)
        for found, search in ((coverages, largest_certified_count), (bisected, bisect_certified_count)):
            accepted = search(ranking, risk, delta)
            found[draw] = 0.0 if accepted is None else -ranking.confidences[accepted - 1]
    steps = np.arange(1, 100_001) / 100_000
    oracle = float(steps[risk_up_to(steps) <= risk].max(initial=0.0))
    failures = int(np.sum(risk_up_to(np.maximum(coverages, 1e-12)) * (coverages > 0) > risk + 1e-12))
    return {
        "world": name,
        "images": n_images,
        "risk": risk,
        "delta": delta,
        "draws": draws,
        "seed": seed,
        "broken": failures,
        "broken_share": failures / draws,
        "most_allowed_by_chance": int(binom.ppf(0.999, draws, delta)),
        "coverage": float(coverages.mean()),
        "oracle_coverage": oracle,
        "coverage_over_oracle": float(coverages.mean()) / oracle if oracle else 0.0,
        "bisection_over_oracle": float(bisected.mean()) / oracle if oracle else 0.0,
    }


def print_simulation(rows: list[Row]) -> None:
    """Print a line for each population."""
    for row in rows:
        print(
            f"{row['world']:24} guarantee failed in {row['broken']} of {row['draws']} draws "
            f"({row['broken_share']:.3f}), coverage {row['coverage']:.3f}, {row['coverage_over_oracle']:.3f} of the "
            f"oracle's (by bisection {row['bisection_over_oracle']:.3f})"
        )


# --- Halves of CIFAR-10 ---


def collect_cifar10(model: Path, limit: int | None, store: Path) -> Predictions:
    """Return the predictions for the CIFAR-10 test images, collected or read from the store."""
    source = open_source(f"npz:{CIFAR10 / 'test.npz'}", limit=limit)
    return collect(load_cifar10_classifier(model), source, "cifar10", store=store)


def certify_halves(preds: Predictions, risk: float, delta: float, rounds: int, seed: int) -> list[Row]:
    """Certify on a random half of the images and evaluate on the other; all methods share the same halves."""
    rows: list[Row] = []
    correct = preds.correct()
    for method in METHODS:
        confidences = confidence(preds, method)
        rng = np.random.default_rng(seed)
        for number in range(rounds):
            order = rng.permutation(len(correct))
            half, other = order[: len(order) // 2], order[len(order) // 2 :]
            rule = certify_confidence(correct[half], confidences[half], risk=risk, delta=delta)
            rows.append(
                {"method": method, "round": number, "risk": risk, "delta": delta, "seed": seed}
                | {"certified": rule.certified, "threshold": rule.threshold}
                | evaluate_decisions(correct[other], rule.accept(confidences[other]))
            )
    return rows


def evaluate_decisions(correct: BoolArray, accept: BoolArray) -> Row:
    """Return the coverage, and the errors and the error rate among the accepted images."""
    errors, accepted = int(np.sum(~correct & accept)), int(np.sum(accept))
    return {"coverage": accepted / len(accept), "errors": errors, "risk_seen": errors / max(accepted, 1)}


def print_halves(rows: list[Row]) -> None:
    """Print a line for each method."""
    print(f"\n{'method':16} certified  coverage (minimum)   risk on the other half: mean  maximum")
    for method in METHODS:
        selected = [row for row in rows if row["method"] == method]
        coverage, risk = (np.array([row[key] for row in selected], dtype=float) for key in ("coverage", "risk_seen"))
        certified = sum(bool(row["certified"]) for row in selected)
        print(
            f"{method:16} {certified:3} of {len(selected)}  {100 * coverage.mean():6.2f} % "
            f"({100 * coverage.min():.2f} %)   {100 * risk.mean():20.3f} %  {100 * risk.max():.3f} %"
        )


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = create_parser(__doc__)
    parser.add_argument("--draws", type=int, default=2000, help="simulated calibration sets (default: %(default)s)")
    parser.add_argument("--images", type=int, default=5000, help="images of each of them (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=50, help="random halves of CIFAR-10 (default: %(default)s)")
    parser.add_argument("--limit", type=int, help="use only the first images of CIFAR-10 (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    parser.add_argument(
        "--model", type=Path, default=CIFAR10 / "resnet56.onnx", help="CIFAR-10 classifier (default: %(default)s)"
    )
    parser.add_argument("--store", type=Path, help="folder for predictions (default: a temporary one)")
    return parser.parse_args()


def main() -> None:
    """Run the simulation and the halves, print both and write them."""
    options = parse_options()
    rows = [simulate(name, options.images, 0.05, 0.05, options.draws, options.seed) for name in POPULATIONS]
    print_simulation(rows)
    write_results(options.out / "guarantee_simulated.csv", rows)
    if not options.model.is_file():
        print(f"skipped the halves of CIFAR-10: {options.model} does not exist")
        return
    with tempfile.TemporaryDirectory() as temporary:
        preds = collect_cifar10(options.model, options.limit, options.store or Path(temporary))
        halves = certify_halves(preds, 0.01, 0.001, options.rounds, options.seed)
    print_halves(halves)
    write_results(options.out / "guarantee_cifar10.csv", halves)


if __name__ == "__main__":
    main()
