"""Certified coverage by number of labels: random, on demand and others; failures in simulated worlds.

Run: python benchmarks/labels.py [coverage] [worlds] [--rounds 10] [--draws 1000] [--store DIR]

Without a name both run. `coverage` needs ../shared (seven classifiers of CIFAR-10 and CIFAR-100) and the extra `peers`
for MAPIE; the store keeps the predictions, which take about twenty minutes to collect on two cores.
"""

import argparse
import math
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
from scipy.special import bdtr
from scipy.stats import binom

import secondlook as sl
from guarantee import POPULATIONS
from measurement import PACKAGES, ROOT, Row, create_parser, write_results
from secondlook.arrays import BoolArray, Float64Array, IntArray
from secondlook.errors import DecisionError
from secondlook.metrics import rank
from secondlook.policies import certify_confidence, threshold_for
from secondlook.policies.fixed_sequence import START_RATIO, CountedImages, FixedSequence, count_without_errors

SHARED = ROOT.parent / "shared"
RESNET = ("cifar10", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
WIDE_RESNET = ("cifar10-jpeg", (0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.262))
CIFAR100 = ("cifar100", (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))
DESIGNED_ON = {"resnet20": RESNET, "wrn16-2-seed0": WIDE_RESNET, "c100-plain": CIFAR100, "c100-smooth": CIFAR100}
JUDGED_ON = {"resnet56": RESNET, "wrn16-2-noaug": WIDE_RESNET, "c100-mixup": CIFAR100}
"""Sizes of labeling plans were chosen on the former; the latter are held out."""
METHOD, VIEWS = "blend", "cifar10"
RISKS, DELTA = (0.01, 0.02, 0.05), 0.05
LABELS = (50, 100, 200, 350, 500, 700, 1000, 1400, 2000, 3000, 5000)
STEPS = 25
"""Number of parts of labels on demand."""


# --- Coverage on real classifiers ---


def load_predictions(name: str, store: Path) -> sl.Predictions:
    """Return the predictions of a classifier for its 10,000 test images, in memory."""
    folder, mean, std = {**DESIGNED_ON, **JUDGED_ON}[name]
    model = sl.load_classifier(f"onnx:{SHARED / folder / name}.onnx", output="logits", mean=mean, std=std)
    data = f"folder:{SHARED / folder / 'test'}" if folder == "cifar10-jpeg" else f"npz:{SHARED / folder / 'test.npz'}"
    stored = sl.collect(model, data, VIEWS, store=store)
    return sl.Predictions(logits=stored.logits, views=stored.views, labels=stored.labels)


Pool = tuple[sl.Predictions, BoolArray, Float64Array]
"""Predictions for the pool, their correctness, bool [N], and their confidence, float64 [N]."""
Choose = Callable[[Pool, int, float, int], tuple[float, int]]
"""(pool in random order, labels, risk, seed) -> the threshold, infinite if none is certified, and the labels used"""


def certify_random(pool: Pool, labels: int, risk: float, seed: int) -> tuple[float, int]:
    """Certify on images labeled at random."""
    _, correct, confidence = pool
    return certify_confidence(correct[:labels], confidence[:labels], risk=risk, delta=DELTA).threshold, labels


def certify_from_fixed_fractions(pool: Pool, labels: int, risk: float, seed: int) -> tuple[float, int]:
    """Certify on images labeled at random, with tests that start at n/√2, n/2, ... instead of the smallest ranks."""
    correct, confidence = pool[1][:labels], pool[2][:labels]
    starts: list[int] = []
    for count in range(1, 11):
        ranks = sorted({int(labels / START_RATIO**step) for step in range(1, count + 1)})
        if ranks[0] >= count_without_errors(risk, DELTA / len(ranks)):
            starts = ranks
    smallest = count_without_errors(risk, DELTA)
    starts = starts or ([smallest] if smallest < labels else [])
    ranking = rank(correct, confidence)
    errors = np.cumsum(~correct[np.argsort(-confidence, kind="stable")])
    p_values = np.asarray(bdtr(errors.astype(np.float64), np.arange(1, labels + 1), risk), dtype=np.float64)
    images = CountedImages(ranking, labels, np.zeros_like(ranking.accepted))
    accepted, _ = FixedSequence(images, starts, p_values).run(DELTA)
    return (math.inf if accepted is None else float(np.sort(-confidence)[accepted - 1] * -1)), labels


def label_on_demand(pool: Pool, labels: int, risk: float, seed: int) -> tuple[float, int]:
    """Label the images of a plan."""
    preds, correct, _ = pool
    predicted = preds.predicted()
    answers = np.where(correct, predicted, (predicted + 1) % preds.n_classes)
    truth = dict(zip(preds.ids, answers.tolist(), strict=True))
    try:
        plan = sl.LabelingPlan(preds, METHOD, risk=risk, delta=DELTA, max_labels=labels, seed=seed)
    except DecisionError:  # too few labels for any guarantee
        return math.inf, 0
    while ids := plan.next_ids(max(1, labels // STEPS)):
        plan.add({id_: truth[id_] for id_ in ids})
    return (plan.policy.threshold if plan.progress.accepted else math.inf), plan.progress.labels


def choose_on_average(pool: Pool, labels: int, risk: float, seed: int) -> tuple[float, int]:
    """Choose a threshold with this risk on average over calibrations, without a guarantee for a single one."""
    try:
        return threshold_for(pool[0].select(images=np.arange(labels)), METHOD, average_risk=risk).threshold, labels
    except DecisionError:
        return math.inf, labels


def certify_by_mapie(*, tuned: bool) -> Choose:
    """Return the choice of MAPIE's binary controller, with default settings or a sequence of 700 thresholds.

    It gets the confidence rank of each image as a fraction of the pool: the same order, evenly spread from 0 to 1.
    """

    def choose(pool: Pool, labels: int, risk: float, seed: int) -> tuple[float, int]:
        from mapie.risk_control import BinaryClassificationController

        _, correct, confidence = pool
        shares = np.searchsorted(np.sort(confidence), confidence) / len(confidence)
        grid = np.linspace(0.7, 0.02, 700)  # from the most confident 30 % down
        settings = {"fwer_method": "fixed_sequence", "list_predict_params": grid} if tuned else {}
        controller = BinaryClassificationController(
            lambda values: np.column_stack([1 - values, values]),
            "precision",
            1 - risk,
            confidence_level=1 - DELTA,
            **settings,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # if no threshold is valid
            controller.calibrate(shares[:labels], correct[:labels].astype(int))
        best = controller.best_predict_param
        return (math.inf if best is None else float(np.quantile(confidence, best))), labels

    return choose


THINNED_SHARE, THINNED_TOP, STEP = 0.5, 0.4, 25
"""Above the quantile THINNED_TOP, images are labeled with this probability; every STEP-th rank is tested."""


@cache
def allow_weighted_errors(rank_: int, risk: float, level: float) -> int:
    """Return the largest sum of weights of errors that passes at a rank, -1 if none does.

    An error weighs 2 / share if images like it are labeled with the probability `share`, else 1. The probability of a
    sum up to a bound is linear in the error rate of each image. So it is largest if, for some k, k images have
    all their errors among the thinned ones and the others have none. It is bounded for all k of an interval at once.
    """
    weight = round(2 / THINNED_SHARE)
    edges = np.linspace(0, rank_, min(200, rank_) + 1).astype(int)
    low, others = edges[:-1], rank_ - edges[1:]
    allowed = -1
    while True:
        total = np.zeros(len(low))
        for thinned in range((allowed + 1) // weight + 1):
            left = allowed + 1 - weight * thinned
            passes = np.where(others > left, bdtr(np.minimum(left, others), np.maximum(others, 1), risk), 1.0)
            total += binom.pmf(thinned, low, THINNED_SHARE * risk) * passes
        if total.max() > level:
            return allowed
        allowed += 1


def label_thinned(pool: Pool, labels: int, risk: float, seed: int) -> tuple[float, int]:
    """Label on demand, but only a share of the most confident images: an experiment outside the package."""
    _, correct, confidence = pool
    # The approximate number of labels if 70 % of the images are certified.
    n_images = min(len(confidence), round(labels / (0.7 - THINNED_TOP * (1 - THINNED_SHARE))))
    cut = np.quantile(confidence[n_images // 2 :] if n_images == len(confidence) else confidence[n_images:], 0.6)
    order = np.argsort(-confidence[:n_images], kind="stable")
    confidence, wrong = confidence[order], ~correct[order]
    is_thinned = confidence >= cut
    is_labeled = ~is_thinned | (np.random.default_rng(seed).random(n_images) < THINNED_SHARE)
    found = np.cumsum(np.where(is_thinned, round(2 / THINNED_SHARE), 1) * (wrong & is_labeled))
    used = np.cumsum(is_labeled)
    starts = [int(n_images / START_RATIO**step) // STEP * STEP for step in (2, 1)]
    starts = [one for one in starts if one and allow_weighted_errors(one, risk, DELTA / 2) >= 0]
    if not starts:
        return math.inf, 0
    share = DELTA / len(starts)
    for place, start in enumerate(starts):
        most = allow_weighted_errors(start, risk, share)
        while start > STEP and allow_weighted_errors(start - STEP, risk, share) >= most:
            start -= STEP
        starts[place] = start
    level, certified, asked = 0.0, 0, 0
    for start, following in zip(starts, [*starts[1:], n_images], strict=True):
        asked = max(asked, int(used[start - 1]))
        if level == 0 and found[start - 1] > allow_weighted_errors(start, risk, share):
            continue
        level += share
        for tested in range(start + STEP, following + 1, STEP):
            asked = max(asked, int(used[tested - 1]))
            if found[tested - 1] > allow_weighted_errors(tested, risk, level):
                level = 0.0
                break
            certified = tested
    return (float(confidence[certified - 1]) if certified else math.inf), asked


WAYS: Mapping[str, Choose] = {
    "random, fixed fractions": certify_from_fixed_fractions,
    "random": certify_random,
    "on demand": label_on_demand,
    "thinned": label_thinned,
    "on average": choose_on_average,
    "MAPIE, default": certify_by_mapie(tuned=False),
    "MAPIE, sequence of 700": certify_by_mapie(tuned=True),
}
BASELINES = ("random, fixed fractions", "random")
"""Baselines for numbers of labels; the first is an earlier choice of starts in `certify`."""
LINES = {
    "random, fixed fractions": "#999999",
    "random": "#0072B2",
    "on demand": "#D55E00",
    "on average": "#E69F00",
    "MAPIE, default": "#CC79A7",
    "MAPIE, sequence of 700": "#009E73",
}
"""Colors of the plotted ways."""


def measure_coverage(name: str, store: Path, rounds: int, seed: int) -> list[Row]:
    """Certify each way on half of the images and judge it on the other half; a row per risk and labels."""
    preds = load_predictions(name, store)
    correct, confidence = preds.correct(), sl.confidence(preds, METHOD)
    rows: list[Row] = []
    for risk in RISKS:
        for labels in LABELS:
            outcomes: dict[str, list[tuple[float, int, float]]] = {way: [] for way in WAYS}
            for round_ in range(rounds):
                order = np.random.default_rng([seed, round_]).permutation(preds.n_images)
                drawn, judged = order[:5000], order[5000:]
                pool = (preds.select(images=drawn), correct[drawn], confidence[drawn])
                for way, choose in WAYS.items():
                    threshold, used = choose(pool, labels, risk, seed + round_)
                    accept = confidence[judged] >= threshold
                    wrong = float(np.mean(~correct[judged][accept])) if accept.any() else 0.0
                    outcomes[way].append((float(accept.mean()), used, wrong))
            for way, found in outcomes.items():
                coverage, used_labels, seen = np.array(found).T
                rows.append(
                    {"classifier": name, "designed_on": name in DESIGNED_ON, "risk": risk, "delta": DELTA}
                    | {"way": way, "max_labels": labels, "labels": float(used_labels.mean())}
                    | {"coverage": float(coverage.mean()), "certified_share": float(np.mean(coverage > 0))}
                    | {"risk_seen_above": int(np.sum(seen > risk)), "rounds": rounds, "seed": seed}
                )
            print(
                f"{name} {risk:g} {labels}:",
                {way: round(np.mean(found, axis=0)[0], 3) for way, found in outcomes.items()},
            )
    return rows


def compare_labels(rows: Sequence[Mapping[str, object]], way: str, baseline: str) -> dict[str, float]:
    """Return the ratio of labels that a baseline needs for the coverage of a way, by classifier and risk."""
    ratios: dict[str, float] = {}
    for name, risk in dict.fromkeys((str(row["classifier"]), float(str(row["risk"]))) for row in rows):
        own = [row for row in rows if (row["classifier"], float(str(row["risk"]))) == (name, risk)]

        def read(way: str, column: str) -> Float64Array:
            return np.array([float(str(row[column])) for row in own if row["way"] == way])  # noqa: B023

        reached = np.maximum.accumulate(read(baseline, "coverage"))
        coverage, labels = read(way, "coverage"), read(way, "labels")
        is_comparable = (coverage > 0.02) & (coverage <= reached[-1])
        if is_comparable.any():
            needed = np.interp(coverage[is_comparable], reached, read(baseline, "labels"))
            ratios[f"{name}, {100 * risk:g} %"] = float(np.exp(np.mean(np.log(needed / labels[is_comparable]))))
    return ratios


def format_ratio_table(rows: Sequence[Mapping[str, object]]) -> str:
    """Return a Markdown table: ratio of labels that the baselines need for the coverage of labels on demand."""
    before, now = (compare_labels(rows, "on demand", baseline) for baseline in BASELINES)
    lines = [f"| classifier | {' | '.join(f'{100 * risk:g} %' for risk in RISKS)} |", f"|---|{'---|' * len(RISKS)}"]
    for name in (*DESIGNED_ON, *JUDGED_ON):
        keys = [f"{name}, {100 * risk:g} %" for risk in RISKS]
        cells = [f"{before[key]:.1f} ({now[key]:.1f})" if key in before and key in now else "–" for key in keys]
        lines.append(f"| {name}{' (judged)' if name in JUDGED_ON else ''} | {' | '.join(cells)} |")
    return "\n".join(lines)


def plot_coverage(rows: Sequence[Mapping[str, object]], path: Path) -> None:
    """Plot the certified coverage against labels: a row of panels per risk, a panel per judged classifier."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(len(RISKS), len(JUDGED_ON), figsize=(11, 8), sharex=True, sharey=True)
    for line, risk in zip(panels, RISKS, strict=True):
        for axes, name in zip(line, JUDGED_ON, strict=True):
            for way, color in LINES.items():
                shown = [row for row in rows if (row["classifier"], row["way"]) == (name, way)]
                shown = [row for row in shown if float(str(row["risk"])) == risk and float(str(row["labels"])) > 0]
                labels, coverage = ([float(str(row[column])) for row in shown] for column in ("labels", "coverage"))
                style = "--" if way == "on average" else "-"
                axes.plot(labels, coverage, style, color=color, marker=".", label=way)
            axes.set(xscale="log", title=f"{name}, risk {100 * risk:g} %")
    for axes in panels[-1]:
        axes.set(xlabel="labels")
    for axes in panels[:, 0]:
        axes.set(ylabel="certified coverage", ylim=(0, 1))
    panels[0][-1].legend(fontsize=7, loc="upper left")  # little is certified there
    figure.tight_layout()
    figure.savefig(path, dpi=100)


# --- Failures in simulated worlds ---

WORLD_SETTINGS = ((600, 0.05, 0.1, 300), (1500, 0.02, 0.1, 500))
"""Images of a pool, risk, delta and labels."""
WORLDS: Mapping[str, tuple[Callable[[Float64Array], Float64Array], Callable[[Float64Array], Float64Array]]] = {
    **POPULATIONS,
    # Error rates just above the risks, everywhere or in steps.
    "5.1 % everywhere": (lambda u: np.full_like(u, 0.051), lambda u: np.full_like(u, 0.051)),
    "2.05 % everywhere": (lambda u: np.full_like(u, 0.0205), lambda u: np.full_like(u, 0.0205)),
    "0, then 20 % from 0.2": (lambda u: np.where(u < 0.2, 0.0, 0.2), lambda u: 0.2 * np.maximum(u - 0.2, 0) / u),
    "blocks of 0 and 10 %": (
        lambda u: np.where(np.floor(20 * u) % 2 == 1, 0.1, 0.0),
        lambda u: (0.005 * np.floor(10 * u) + 0.1 * np.maximum(u - np.floor(10 * u) / 10 - 0.05, 0)) / u,
    ),
    "surest 1 % wrong": (lambda u: np.where(u < 0.01, 1.0, 0.0), lambda u: np.minimum(u, 0.01) / u),
}


def draw_world(name: str, n_images: int, rng: np.random.Generator) -> tuple[sl.Predictions, IntArray]:
    """Return predictions of class 0 for images of a world, most confident at quantile 0, and their labels."""
    u = rng.random(n_images)
    labels = (rng.random(n_images) < WORLDS[name][0](u)).astype(np.int64)
    probability = 1 - 0.49 * u
    probabilities = np.stack([probability, 1 - probability], axis=1)[:, None]
    return sl.Predictions(probabilities=probabilities, views=["identity"], labels=labels), labels


def simulate_world(name: str, setting: tuple[int, float, float, int], draws: int, seed: int) -> list[Row]:
    """Count true risks above the target: on demand, on average, and with all labels of a pool."""
    n_images, risk, delta, labels = setting
    risks: dict[str, list[float]] = {"on demand": [], "random": [], "on average": []}
    for draw in range(draws):
        preds, truth = draw_world(name, n_images, np.random.default_rng([seed, draw]))
        answers = dict(zip(preds.ids, truth.tolist(), strict=True))
        plan = sl.LabelingPlan(preds, "msr", risk=risk, delta=delta, max_labels=labels, seed=draw)
        while ids := plan.next_ids(labels // 5):
            plan.add({id_: answers[id_] for id_ in ids})
        certified = certify_confidence(preds.correct(), sl.confidence(preds, "msr"), risk=risk, delta=delta)
        thresholds = {"on demand": plan.policy.threshold if plan.progress.accepted else math.inf}
        thresholds["random"] = certified.threshold
        try:
            thresholds["on average"] = threshold_for(preds, "msr", average_risk=risk).threshold
        except DecisionError:
            thresholds["on average"] = math.inf
        for way, threshold in thresholds.items():
            quantile = min((1 - threshold) / 0.49, 1.0)
            risks[way].append(float(WORLDS[name][1](np.array(max(quantile, 1e-12)))) if quantile > 0 else 0.0)
    return [
        {"world": name, "way": way, "images": n_images, "max_labels": labels, "risk": risk, "delta": delta}
        | {"draws": draws, "seed": seed, "above": int(np.sum(np.array(found) > risk + 1e-9))}
        | {"most_allowed_by_chance": int(binom.ppf(0.999, draws, delta)), "mean_risk": float(np.mean(found))}
        for way, found in risks.items()
    ]


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = create_parser(__doc__)
    parser.add_argument("what", nargs="*", help="coverage, worlds (default: both)")
    parser.add_argument("--rounds", type=int, default=10, help="random halves of the images (default: %(default)s)")
    parser.add_argument("--draws", type=int, default=1000, help="simulated pools (default: %(default)s)")
    parser.add_argument("--store", type=Path, help="folder for predictions (default: a temporary one)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    return parser.parse_args()


def main() -> None:
    """Measure coverage, or simulate worlds, and write the results."""
    options = parse_options()
    wanted = options.what or ["coverage", "worlds"]
    if "coverage" in wanted and SHARED.is_dir():
        with tempfile.TemporaryDirectory() as temporary:
            store = options.store or Path(temporary)
            rows = [
                row
                for name in (*DESIGNED_ON, *JUDGED_ON)
                for row in measure_coverage(name, store, options.rounds, options.seed)
            ]
        write_results(options.out / "labels.csv", rows, packages=(*PACKAGES, "mapie"))
        plot_coverage(rows, options.out / "labels.png")
        print(format_ratio_table(rows))
        for baseline, way in ((baseline, way) for baseline in BASELINES for way in WAYS):
            ratios = compare_labels(rows, way, baseline)
            judged = [ratio for key, ratio in ratios.items() if key.partition(",")[0] in JUDGED_ON]
            print(f"{way}: {np.mean(judged):.2f} x fewer labels than {baseline} on judged classifiers,", ratios)
    if "worlds" in wanted:
        cells = [(name, setting) for name in WORLDS for setting in WORLD_SETTINGS]
        rows = [row for name, setting in cells for row in simulate_world(name, setting, options.draws, options.seed)]
        write_results(options.out / "labels_simulated.csv", rows)
        for row in rows:
            print({key: row[key] for key in ("world", "way", "risk", "above", "most_allowed_by_chance", "mean_risk")})


if __name__ == "__main__":
    main()
