"""Whether the guarantee of `certify` is kept, and what coverage it costs: simulated worlds, and halves of CIFAR-10.

Run: python benchmarks/guarantee.py [--draws 2000] [--model ../shared/cifar10/resnet56.onnx] [--store DIR]
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.stats import binom

from circumstances import write_results
from secondlook.arrays import BoolArray, Float64Array
from secondlook.classifiers import load_classifier
from secondlook.estimators import confidence
from secondlook.metrics import Ranking, rank
from secondlook.predictions import Predictions, collect
from secondlook.selective import certify_confidence, largest_certified_count

ROOT = Path(__file__).resolve().parents[1]
CIFAR10 = ROOT.parent / "shared" / "cifar10"
RESULTS = Path(__file__).parent / "results"
METHODS = ("msr", "mean", "bootstrap-lower")
Rate = Callable[[Float64Array], Float64Array]

WORLDS: dict[str, tuple[Rate, Rate]] = {
    # name: error rate of the image at quantile u (0 is the surest), and risk of accepting all up to u
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


def by_bisection(ranking: Ranking, risk: float, delta: float) -> int | None:
    """Return how many images Geifman and El-Yaniv's search accepts: log2(n) tests at delta / log2(n) each."""
    steps = int(np.ceil(np.log2(ranking.n_images)))
    low, high = 0, ranking.n_images
    for _ in range(steps):
        middle = (low + high + 1) // 2
        passes = middle > 0 and binom.cdf(ranking.errors[middle - 1], middle, risk) <= delta / steps
        low, high = (middle, high) if passes else (low, max(middle - 1, low))
    return low or None


def simulated(name: str, n: int, risk: float, delta: float, draws: int, seed: int) -> dict[str, object]:
    """Draw calibration sets from a world and count how often the accepted images break the guarantee."""
    error_rate, risk_up_to = WORLDS[name]
    rng = np.random.default_rng(seed)
    places, bisected = np.zeros(draws), np.zeros(draws)
    for draw in range(draws):
        place = rng.random(n)
        ranking = rank(rng.random(n) >= error_rate(place), -place)
        for kept, search in ((places, largest_certified_count), (bisected, by_bisection)):
            accepted = search(ranking, risk, delta)
            kept[draw] = 0.0 if accepted is None else -ranking.confidences[accepted - 1]
    steps = np.arange(1, 100_001) / 100_000
    oracle = float(steps[risk_up_to(steps) <= risk].max(initial=0.0))
    broken = int(np.sum(risk_up_to(np.maximum(places, 1e-12)) * (places > 0) > risk + 1e-12))
    return {
        "world": name,
        "images": n,
        "risk": risk,
        "delta": delta,
        "draws": draws,
        "seed": seed,
        "broken": broken,
        "broken_share": broken / draws,
        "most_allowed_by_chance": int(binom.ppf(0.999, draws, delta)),
        "coverage": float(places.mean()),
        "oracle_coverage": oracle,
        "coverage_over_oracle": float(places.mean()) / oracle if oracle else 0.0,
        "bisection_over_oracle": float(bisected.mean()) / oracle if oracle else 0.0,
    }


def cifar10_predictions(model: Path, store: Path) -> Predictions:
    """Collect the classifier's answers to the CIFAR-10 test images, or find them in the store."""
    classifier = load_classifier(
        f"onnx:{model}", output="logits", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)
    )
    return collect(classifier, f"npz:{CIFAR10 / 'test.npz'}", "cifar10", store=store)


def halves(preds: Predictions, risk: float, delta: float, rounds: int, seed: int) -> list[dict[str, object]]:
    """Certify on a random half and look at the other, for each method on the same halves."""
    rows: list[dict[str, object]] = []
    correct = preds.correct()
    for method in METHODS:
        sure = confidence(preds, method)
        rng = np.random.default_rng(seed)
        for number in range(rounds):
            order = rng.permutation(len(correct))
            half, other = order[: len(order) // 2], order[len(order) // 2 :]
            rule = certify_confidence(correct[half], sure[half], risk=risk, delta=delta)
            seen = looked_at(correct[other], rule.accept(sure[other]))
            rows.append({"method": method, "round": number, "risk": risk, "delta": delta, "seed": seed}
                        | {"certified": rule.certified, "threshold": rule.threshold} | seen)  # fmt: skip
    return rows


def looked_at(correct: BoolArray, accept: BoolArray) -> dict[str, object]:
    """Return the coverage and the error rate among the accepted on images that were not used."""
    errors, accepted = int(np.sum(~correct & accept)), int(np.sum(accept))
    return {"coverage": accepted / len(accept), "errors": errors, "risk_seen": errors / max(accepted, 1)}


def print_halves(rows: list[dict[str, object]]) -> None:
    """Print one line for each method."""
    print(f"\n{'method':16} certified  coverage (least)   risk on the other half: mean  largest")
    for method in METHODS:
        mine = [row for row in rows if row["method"] == method]
        coverage, risk = (np.array([row[key] for row in mine], dtype=float) for key in ("coverage", "risk_seen"))
        certified = sum(bool(row["certified"]) for row in mine)
        print(
            f"{method:16} {certified:3} of {len(mine)}  {100 * coverage.mean():6.2f} % ({100 * coverage.min():.2f} %)"
            f"   {100 * risk.mean():18.3f} %  {100 * risk.max():.3f} %"
        )


def main() -> None:
    """Run both parts, print them and keep them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", type=Path, default=CIFAR10 / "resnet56.onnx")
    parser.add_argument("--store", type=Path, help="where predictions are kept; a temporary folder unless given")
    given = parser.parse_args()
    rows = [simulated(name, given.images, 0.05, 0.05, given.draws, given.seed) for name in WORLDS]
    for row in rows:
        print(
            f"{row['world']:24} failed in {row['broken']} of {row['draws']} draws ({row['broken_share']:.3f}), "
            f"coverage {row['coverage']:.3f}, {row['coverage_over_oracle']:.3f} of the oracle's "
            f"(by bisection {row['bisection_over_oracle']:.3f})"
        )
    write_results(RESULTS / "guarantee_simulated.csv", rows)
    if not given.model.is_file():
        print(f"no classifier at {given.model}: the halves of CIFAR-10 are left out")
        return
    with tempfile.TemporaryDirectory() as temporary:
        preds = cifar10_predictions(given.model, given.store or Path(temporary))
        tested = halves(preds, 0.01, 0.001, given.rounds, given.seed)
    print_halves(tested)
    write_results(RESULTS / "guarantee_cifar10.csv", tested)


if __name__ == "__main__":
    main()
