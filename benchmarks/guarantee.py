"""Failures of the guarantee of `certify`, and its coverage: simulated populations, and halves of CIFAR-10.

Run: python benchmarks/guarantee.py [--draws 2000] [--model ../shared/cifar10/resnet56.onnx] [--store DIR]
     python benchmarks/guarantee.py --best-of 5 20 --draws 4000 --images 500
     python benchmarks/guarantee.py --adaptive [--model ../shared/cifar10/resnet20.onnx] [--store DIR]
     python benchmarks/guarantee.py --unknown

The halves need ../shared/cifar10/test.npz and the classifier; without them only the simulation runs. With --best-of,
the best of several methods is certified instead, once with the whole delta for each and once with equal shares. With
--adaptive, adaptive rules are certified instead, on 1,000 images drawn from a simulated population or from CIFAR-10;
with --unknown, policies with a limit of familiarity, on 1,000 images and 200 example unknown images.
"""

import argparse
import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import binom, binomtest, norm

from measurement import CIFAR10, Row, create_parser, load_cifar10_classifier, write_results
from secondlook.arrays import BoolArray, Float64Array
from secondlook.diagnosis import candidate_views
from secondlook.errors import DecisionError
from secondlook.estimators import confidence
from secondlook.metrics import Ranking, rank
from secondlook.policies import Guarantee, Policy, certify, certify_confidence, largest_certified_count
from secondlook.predictions import PredictFrom, Predictions, collect
from secondlook.sources import open_source

METHODS = ("msr", "mean")
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


def make_predictions(n_views: int, n_images: int) -> Predictions:
    """Return predictions like those of a good classifier: about 8 % errors, similar outputs for all views."""
    generator = np.random.default_rng(0)
    labels = generator.integers(10, size=n_images)
    logits = generator.normal(0, 1.5, (n_images, 1, 10)) + generator.normal(0, 0.7, (n_images, n_views, 10))
    logits[np.arange(n_images), :, labels] += 5.0
    return Predictions(logits=logits.astype(np.float32), views=candidate_views("natural", 32, n_views), labels=labels)


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
    """Draw calibration sets from a population and count failures of the guarantee."""
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


# --- The best of several methods ---

CORRELATION = 0.7
"""Correlation between the confidences of two methods; each is a standard normal variable."""
DIFFICULTY, SLOPE = -2.5, 2.0
"""An image of quality z is wrong with probability Phi(DIFFICULTY - SLOPE * z), and a confidence is a noisy quality."""


def find_threshold(risk: float) -> float:
    """Return the threshold on the confidence of any one method above which the error rate is exactly `risk`."""
    shrink = np.sqrt(1 + SLOPE**2 * (1 - CORRELATION))

    def excess(threshold: float) -> float:
        errors, _ = quad(
            lambda value: norm.cdf((DIFFICULTY - SLOPE * np.sqrt(CORRELATION) * value) / shrink) * norm.pdf(value),
            threshold,
            10,
        )
        return float(errors / norm.sf(threshold)) - risk

    return float(brentq(excess, -4, 4))


def certify_best(correct: BoolArray, confidences: Float64Array, risk: float, delta: float) -> float:
    """Return the threshold of the method with the largest coverage, each certified with `delta`. bool [N], [M, N]"""
    threshold, largest = np.inf, 0
    for values in confidences:
        ranking = rank(correct, values)
        accepted = largest_certified_count(ranking, risk, delta) or 0
        if accepted > largest:
            tie = np.searchsorted(ranking.accepted, accepted)
            threshold, largest = float(ranking.confidences[tie]), accepted
    return threshold


def simulate_best_of(methods: int, n_images: int, risk: float, delta: float, draws: int, seed: int) -> list[Row]:
    """Count failures of the guarantee of the best of several methods."""
    rng, limit = np.random.default_rng(seed), find_threshold(risk)
    deltas = {"whole delta each": delta, "equal shares": delta / methods}
    failures = dict.fromkeys(deltas, 0)
    for _ in range(draws):
        quality, noise = rng.normal(size=n_images), rng.normal(size=(methods, n_images))
        correct = rng.random(n_images) >= norm.cdf(DIFFICULTY - SLOPE * quality)
        confidences = np.sqrt(CORRELATION) * quality + np.sqrt(1 - CORRELATION) * noise
        for way, level in deltas.items():
            failures[way] += certify_best(correct, confidences, risk, level) < limit
    settings: Row = {"methods": methods, "images": n_images, "risk": risk, "delta": delta, "draws": draws, "seed": seed}
    return [
        {**settings, "certified": way, "broken": broken, "broken_share": broken / draws}
        | {"most_allowed_by_chance": int(binom.ppf(0.999, draws, delta))}
        for way, broken in failures.items()
    ]


def print_best_of(rows: list[Row]) -> None:
    """Print a line for each number of methods and way to certify them."""
    for row in rows:
        print(
            f"best of {row['methods']:2}, {row['certified']:16} guarantee failed in {row['broken']} of {row['draws']} "
            f"draws ({row['broken_share']:.3f}; by chance up to {row['most_allowed_by_chance']})"
        )


# --- Adaptive rules ---

ADAPTIVE_METHOD = "blend"
ADAPTIVE_TUNING, ADAPTIVE_IMAGES = 250, 1000
"""Numbers of images to fit a schedule, and to certify a threshold."""
POPULATION_IMAGES, SIMULATED_VIEWS = 4000, 5


@dataclass(frozen=True, eq=False)
class AdaptiveWorld:
    """A finite population of images; the true values of a rule are those on all images."""

    name: str
    population: Predictions
    guarantee: Guarantee
    predict_from: PredictFrom = "image"

    def draw(self, rng: np.random.Generator) -> Predictions:
        """Draw tuning images, then certification images, with replacement."""
        return draw_images(self.population, ADAPTIVE_TUNING + ADAPTIVE_IMAGES, rng)

    def certify(self, preds: Predictions) -> Policy:
        """Fit a schedule to the tuning images and certify an adaptive rule on the others."""
        return certify(
            preds,
            ADAPTIVE_METHOD,
            risk=self.guarantee.risk,
            delta=self.guarantee.delta,
            predict_from=self.predict_from,
            adaptive=True,
            tuning=np.arange(ADAPTIVE_TUNING),
        )

    def evaluate(self, rule: Policy, all_looks: Float64Array) -> dict[str, float]:
        """Return the true values of a rule, and its bound on differing decisions.

        `all_looks` is the confidence of the population with all looks, float64 [N].
        """
        looked = rule.look(self.population)
        accept = rule.accept(looked.confidence, method=rule.method)
        other_class = looked.predicted != self.population.predicted(self.predict_from)
        wrong = looked.predicted != self.population.labels
        bound = rule.calibration.differing_bound if rule.calibration else None
        return {
            "coverage": float(accept.mean()),
            "risk_seen": float(wrong[accept].mean()) if accept.any() else 0.0,
            "looks": float(looked.looks.mean()),
            "differing": float(
                np.mean((accept != rule.accept(all_looks, method=rule.method)) | (accept & other_class))
            ),
            "differing_bound": 1.0 if bound is None else bound,
        }


def draw_images(population: Predictions, count: int, rng: np.random.Generator) -> Predictions:
    """Draw images with replacement."""
    positions = rng.integers(population.n_images, size=count)
    logits, labels = population.logits[positions], population.labels[positions]
    return Predictions(logits=logits, views=population.views, labels=labels)


def simulate_adaptive(world: AdaptiveWorld, draws: int, seed: int) -> Row:
    """Count failures of the guarantee for adaptive decisions, and of the bound on differing decisions."""
    rng = np.random.default_rng(seed)
    all_looks = confidence(world.population, ADAPTIVE_METHOD, predict_from=world.predict_from)
    rules = (world.certify(world.draw(rng)) for _ in range(draws))
    outcomes = [world.evaluate(rule, all_looks) for rule in rules if rule.certified]
    row: Row = {"world": world.name, "predict_from": world.predict_from, "views": world.population.n_views}
    row |= {"tuning": ADAPTIVE_TUNING, "images": ADAPTIVE_IMAGES, "draws": draws, "seed": seed}
    row |= {"risk": world.guarantee.risk, "delta": world.guarantee.delta, "certified": len(outcomes)}
    row |= {name: float(np.mean([outcome[name] for outcome in outcomes])) for name in outcomes[0]}
    failures = {
        "broken": sum(outcome["risk_seen"] > world.guarantee.risk for outcome in outcomes),
        "bound_broken": sum(outcome["differing"] > outcome["differing_bound"] for outcome in outcomes),
    }
    for name, count in failures.items():
        interval = binomtest(count, draws).proportion_ci()
        row |= {name: count, f"{name}_share": count / draws}
        row |= {f"{name}_low": float(interval.low), f"{name}_high": float(interval.high)}
    return row


def list_adaptive_worlds(model: Path, store: Path) -> Iterator[AdaptiveWorld]:
    """Yield the worlds: images of CIFAR-10, if its files exist, and simulated ones with the class from the views."""
    if model.is_file():
        preds = collect_cifar10(model, POPULATION_IMAGES, store)
        population = Predictions(logits=preds.logits, views=preds.views, labels=preds.labels)
        for guarantee in (Guarantee(risk=0.02, delta=0.05), Guarantee(risk=0.05, delta=0.1)):
            yield AdaptiveWorld(f"{model.stem} on CIFAR-10", population, guarantee)
    simulated = make_predictions(SIMULATED_VIEWS, POPULATION_IMAGES)
    yield AdaptiveWorld("simulated classifier", simulated, Guarantee(risk=0.05, delta=0.1), "views")


def run_adaptive(options: argparse.Namespace) -> None:
    """Certify adaptive rules in all worlds, on all cores, print the table and write it."""
    with tempfile.TemporaryDirectory() as temporary, ProcessPoolExecutor() as executor:
        worlds = list(list_adaptive_worlds(options.model, options.store or Path(temporary)))
        rows = list(executor.map(partial(simulate_adaptive, draws=options.draws, seed=options.seed), worlds))
    write_results(options.out / "guarantee_adaptive.csv", rows)
    print(format_adaptive_table([{name: str(value) for name, value in row.items()} for row in rows]))


def format_adaptive_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return the failure rates of the guarantee and the bound, with exact 95 % intervals, one line per world."""
    lines = [
        "| images | class from | risk | delta | guarantee failed | bound failed | coverage | looks |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        failures = (
            f"{int(row[name]):,} of {int(row['draws']):,}: {100 * float(row[f'{name}_share']):.1f} % "
            f"[{100 * float(row[f'{name}_low']):.1f}, {100 * float(row[f'{name}_high']):.1f}]"
            for name in ("broken", "bound_broken")
        )
        rates = (f"{100 * float(row[name]):g} %" for name in ("risk", "delta"))
        numbers = (f"{100 * float(row['coverage']):.1f} %", f"{float(row['looks']):.2f} of {row['views']}")
        lines.append(f"| {' | '.join((row['world'], row['predict_from'], *rates, *failures, *numbers))} |")
    return "\n".join(lines)


# --- Policies with a limit of familiarity ---

UNKNOWN_EXAMPLES = 200
UNKNOWN_GUARANTEE = Guarantee(risk=0.05, delta=0.1)
UNKNOWN_LEVEL = 0.05
"""Failure probability of the bound on accepted unknown images."""
UNKNOWN_WORLDS = ("unknown images", "misleading familiarity")


@dataclass(frozen=True, eq=False)
class UnknownWorld:
    """Finite populations of known and unknown images; the true values of a policy are those on all images."""

    name: str
    known: Predictions
    unknown: Predictions
    """Their labels do not matter."""
    budget: float

    @classmethod
    def make(cls, name: str) -> Self:
        """Return one of `UNKNOWN_WORLDS`."""
        if name == "misleading familiarity":
            population = make_misleading_images()
            return cls(name, population, population, 0.45)
        known, rng = make_predictions(SIMULATED_VIEWS, POPULATION_IMAGES), np.random.default_rng(1)
        logits = rng.normal(0, 2, (POPULATION_IMAGES, 1, 10)) + rng.normal(0, 0.7, known.logits.shape)
        return cls(name, known, Predictions(logits=logits, views=known.views, labels=known.labels), 0.05)

    def certify(self, preds: Predictions, examples: Predictions) -> Policy:
        """Choose the limit on the first images, the tuning images, and certify a threshold on the others."""
        return certify(
            preds,
            "msr",
            risk=UNKNOWN_GUARANTEE.risk,
            delta=UNKNOWN_GUARANTEE.delta,
            tuning=np.arange(ADAPTIVE_TUNING),
            unknown=examples,
            unknown_budget=self.budget,
        )


def make_misleading_images() -> Predictions:
    """Return images with slightly more errors than the risk at any confidence and familiarity.

    Familiar images have fewer errors, so a lucky limit looks good. Confidence, familiarity and errors are evenly
    spread, to have the error rates of an infinite population.
    """
    places = np.arange(1, 5 * POPULATION_IMAGES + 1)
    confidences, spreads, chances = (places * np.sqrt(prime) % 1 for prime in (2, 3, 5))
    wrong = chances < UNKNOWN_GUARANTEE.risk * (1.01 + 0.04 * spreads)
    first, share = 0.9 + 0.09 * confidences, 0.5 * spreads
    others = 1 - first
    probabilities = np.stack([first, others * (1 - share), others * share], axis=1)
    return Predictions(logits=np.log(probabilities)[:, None], views="identity", labels=wrong.astype(np.int64))


def simulate_unknown(world: UnknownWorld, draws: int, seed: int) -> Row:
    """Count failures of the guarantee for known images, and of the bound on accepted unknown ones."""
    rng, risk = np.random.default_rng(seed), UNKNOWN_GUARANTEE.risk
    wrong, outcomes = ~world.known.correct(), []
    for _ in range(draws):
        preds = draw_images(world.known, ADAPTIVE_TUNING + ADAPTIVE_IMAGES, rng)
        examples, policy = draw_images(world.unknown, UNKNOWN_EXAMPLES, rng), None
        with contextlib.suppress(DecisionError):  # few tuning images are confident, and all others are unfamiliar
            policy = world.certify(preds, examples)
        if policy is None or not policy.certified:
            continue
        bound = 1.0 if policy.unknown is None else policy.unknown.bound
        accept, unknown = policy.accept(world.known), float(policy.accept(world.unknown).mean())
        broken = bool(accept.any()) and float(wrong[accept].mean()) > risk
        outcomes.append((accept.mean(), unknown, bound, broken, unknown > bound))
    row: Row = {"world": world.name, "tuning": ADAPTIVE_TUNING, "images": ADAPTIVE_IMAGES, "examples": UNKNOWN_EXAMPLES}
    row |= {"budget": world.budget, "risk": risk, "delta": UNKNOWN_GUARANTEE.delta, "draws": draws, "seed": seed}
    row["certified"] = len(outcomes)
    columns = np.array(outcomes, dtype=np.float64).reshape(-1, 5).T
    names, levels = ("coverage", "accepted_unknown", "bound"), (UNKNOWN_GUARANTEE.delta, UNKNOWN_LEVEL)
    row |= {name: float(values.mean()) if len(values) else 0.0 for name, values in zip(names, columns, strict=False)}
    for name, failures, level in zip(("broken", "bound_broken"), columns[3:], levels, strict=True):
        count = int(failures.sum())
        allowed = int(binom.ppf(0.999, draws, level))
        row |= {name: count, f"{name}_share": count / draws, f"{name}_allowed_by_chance": allowed}
    return row


def run_unknown(options: argparse.Namespace) -> None:
    """Certify with a limit of familiarity in both worlds, print a line for each and write them."""
    with ProcessPoolExecutor() as executor:
        worlds = map(UnknownWorld.make, UNKNOWN_WORLDS)
        rows = list(executor.map(partial(simulate_unknown, draws=options.draws, seed=options.seed), worlds))
    write_results(options.out / "guarantee_unknown.csv", rows)
    for row in rows:
        print(
            f"{row['world']:24} guarantee failed in {row['broken']} and bound in {row['bound_broken']} of "
            f"{row['draws']} draws (by chance up to {row['broken_allowed_by_chance']} and "
            f"{row['bound_broken_allowed_by_chance']}), coverage {row['coverage']:.3f}, "
            f"unknown accepted {row['accepted_unknown']:.3f}, bound {row['bound']:.3f}"
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
                | evaluate_decisions(correct[other], rule.accept(confidences[other], method=rule.method))
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


def add_cifar10_options(parser: argparse.ArgumentParser, rounds: int) -> None:
    """Add the options of a benchmark that certifies on some images of CIFAR-10 and evaluates on others."""
    parser.add_argument("--rounds", type=int, default=rounds, help="random splits of CIFAR-10 (default: %(default)s)")
    parser.add_argument("--limit", type=int, help="use only the first images of CIFAR-10 (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    parser.add_argument(
        "--model", type=Path, default=CIFAR10 / "resnet56.onnx", help="CIFAR-10 classifier (default: %(default)s)"
    )
    parser.add_argument("--store", type=Path, help="folder for predictions (default: a temporary one)")


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = create_parser(__doc__)
    parser.add_argument("--draws", type=int, default=2000, help="simulated calibration sets (default: %(default)s)")
    parser.add_argument("--images", type=int, default=5000, help="images of each of them (default: %(default)s)")
    parser.add_argument(
        "--best-of", type=int, nargs="+", metavar="N", help="only certify the best of this many methods (default: not)"
    )
    parser.add_argument("--adaptive", action="store_true", help="only certify adaptive rules (default: not)")
    parser.add_argument(
        "--unknown", action="store_true", help="only certify policies with a limit of familiarity (default: not)"
    )
    add_cifar10_options(parser, rounds=50)
    return parser.parse_args()


def main() -> None:
    """Run the simulation and the halves, print both and write them."""
    options = parse_options()
    if options.best_of:
        best = [
            row
            for methods in options.best_of
            for row in simulate_best_of(methods, options.images, 0.05, 0.1, options.draws, options.seed)
        ]
        print_best_of(best)
        write_results(options.out / "guarantee_best_of.csv", best)
        return
    if options.adaptive:
        run_adaptive(options)
        return
    if options.unknown:
        run_unknown(options)
        return
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
