"""Adaptive mode compared with all looks: certified coverage, its frontier, larger pools of views, time of `score`.

Run: python benchmarks/adaptive.py [coverage] [frontier] [pool] [speed] [--store DIR]

Without a name all four run; `speed` needs an otherwise idle machine. They need ../shared/cifar10 and
../shared/cifar10-jpeg. The store keeps the predictions of ten classifiers for 35 views, which take about an hour to
collect on two cores; `python -m reproduction.defaults_study` can use the same one.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from guarantee import evaluate_decisions
from measurement import CIFAR10, ROOT, Row, create_parser, load_cifar10_classifier, time_rounds, write_results
from reproduction.defaults_study import (
    RESNETS,
    VIEWS,
    WIDE_RESNETS,
    Split,
    collect_cifar10,
    find_preset_views,
    format_line,
    read_rows,
    summarize,
)
from secondlook.arrays import Float64Array
from secondlook.classifiers import Classifier
from secondlook.decisions import score
from secondlook.decisions.summary import ScoreSummary
from secondlook.diagnosis import candidate_views
from secondlook.estimators import confidence
from secondlook.policies import Frontier, Guarantee, Policy, certify, certify_confidence
from secondlook.predictions import Execution, Predictions
from secondlook.sources import Source, open_source

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STORE = ROOT / "build" / "predictions"
CLASSIFIERS = (*RESNETS, *WIDE_RESNETS)
CHOSEN_ON = ("resnet20", "wrn16-2-seed0", "wrn16-2-noaug")
"""The form of the limits and the default tolerance were chosen on these; the others are held out."""
GUARANTEES = (Guarantee(risk=0.01, delta=0.001), Guarantee(risk=0.02, delta=0.05))
METHOD = "blend"
PRESET = "cifar10"
TUNING, CERTIFICATION = 0.1, 0.5
"""Fractions of the images to fit a schedule and to certify a threshold; the others are for testing."""

POOLS = {
    PRESET: None,
    "auto": candidate_views("auto", n=None).texts,
    "all but rotations and zooms": tuple(view for view in VIEWS if "rotate" not in view and "zoom" not in view),
}
"""Views of each pool; None: those of the preset."""
POOL_MEANS = ("coverage_all", "coverage_adaptive", "gain_all", "gain_adaptive", "looks")
POOL_COLUMNS = ("splits", "coverage_all", "coverage_adaptive", "looks", "differing")

MAX_LOSS, MAX_LOOKS = 0.005, 2.0
"""The target: maximum loss of certified coverage compared with all looks, and maximum mean looks."""
LOOKS = np.concatenate([np.arange(1, 3, 0.1), np.arange(3, 13.5, 0.5)]).round(1)
"""Mean looks in the table of the frontier."""
FRONTIER_SPLITS, POOL_SPLITS = 10, 20
"""Maximum number of splits."""
FRONTIER_RANGE = (-6, 1)
"""Range of the plot: difference to all looks, in points."""
LINES = {
    "resnet20": "#0072B2",
    "resnet32": "#56B4E9",
    "resnet56": "#009E73",
    "wrn16-2-seed": "#999999",
    "wrn16-2-noflip": "#E69F00",
    "wrn16-2-noaug": "#D55E00",
}
"""Colors in the plot, by the start of the name."""

TIMED = ("resnet20", "resnet56")
MIN_SPEEDUP = 4.0


# --- Certified coverage ---


def divide_images(n_images: int, seed: int) -> Split:
    """Divide the images at random into tuning, certification and judged images."""
    order = np.random.default_rng(seed).permutation(n_images)
    return Split(*np.split(order, [round(TUNING * n_images), round((TUNING + CERTIFICATION) * n_images)]))


def certify_split(preds: Predictions, split: Split, guarantee: Guarantee) -> Policy:
    """Fit a schedule to the tuning images and certify the adaptive rule on the certification images."""
    return certify(
        preds.select(images=np.concatenate([split.tuning, split.certification])),
        METHOD,
        risk=guarantee.risk,
        delta=guarantee.delta,
        adaptive=True,
        tuning=np.arange(len(split.tuning)),
    )


def measure_split(preds: Predictions, all_looks: Float64Array, split: Split, guarantee: Guarantee) -> dict[str, float]:
    """Return the outcome of each rule on the judged images of one split; NaN if nothing was certified.

    `all_looks` is the confidence of every image with all looks, float64 [N]. All looks need no tuning images, so they
    are also certified on tuning and certification images together, to show the cost of the tuning labels.
    """
    correct, judged = preds.correct(), split.judged
    outcome: dict[str, float] = {}
    labeled = {"all": split.certification, "all_more_labels": np.concatenate([split.tuning, split.certification])}
    for name, images in labeled.items():
        rule = certify_confidence(correct[images], all_looks[images], risk=guarantee.risk, delta=guarantee.delta)
        outcome |= _name_evaluated(name, correct[judged], rule.accept(all_looks[judged], method=rule.method))
    rule = certify_split(preds, split, guarantee)
    looked = rule.look(preds.select(images=judged))
    accept = rule.accept(looked.confidence, method=rule.method)
    outcome |= _name_evaluated("adaptive", correct[judged], accept)
    outcome["looks"] = outcome["differing"] = outcome["bound"] = np.nan
    if rule.certified:
        assert rule.calibration is not None, "certify counts images"
        assert rule.calibration.differing_bound is not None, "the rule is adaptive"
        outcome["looks"] = float(looked.looks.mean())
        outcome["differing"] = float(np.mean(accept != (all_looks[judged] >= rule.threshold)))
        outcome["bound"] = rule.calibration.differing_bound
    return outcome


def _name_evaluated(name: str, correct: np.ndarray, accept: np.ndarray) -> dict[str, float]:
    evaluated = evaluate_decisions(correct, accept)
    return {f"coverage_{name}": float(str(evaluated["coverage"])), f"risk_{name}": float(str(evaluated["risk_seen"]))}


def measure_splits(preds: Predictions, splits: Sequence[Split], guarantee: Guarantee) -> dict[str, Float64Array]:
    """Return the outcomes of all splits by name. float64 [splits]"""
    all_looks = confidence(preds, METHOD)
    outcomes = [measure_split(preds, all_looks, split, guarantee) for split in splits]
    return {name: np.array([outcome[name] for outcome in outcomes]) for name in outcomes[0]}


def describe_outcomes(outcomes: Mapping[str, Float64Array], guarantee: Guarantee) -> Row:
    """Return means over the splits, paired differences with their intervals, and counts of exceeded limits."""
    adaptive, all_looks = outcomes["coverage_adaptive"], outcomes["coverage_all"]
    row: Row = {"splits": len(adaptive), "certified_splits_all": int(np.sum(all_looks > 0))}
    row["certified_splits"] = int(np.sum(np.isfinite(outcomes["looks"])))
    for name in ("coverage_all", "coverage_adaptive", "coverage_all_more_labels"):
        row[name] = round(float(outcomes[name].mean()), 6)
    row |= describe_difference("difference", adaptive - all_looks)
    row |= describe_difference("difference_more_labels", adaptive - outcomes["coverage_all_more_labels"])
    for name in ("looks", "differing", "bound"):
        row[name] = round(float(np.nanmean(outcomes[name])), 6) if row["certified_splits"] else ""
    row["bound_exceeded"] = int(np.sum(outcomes["differing"] > outcomes["bound"]))
    for name in ("risk_all", "risk_adaptive"):
        row[name] = round(float(outcomes[name].mean()), 6)
        row[f"{name}_exceeded"] = int(np.sum(outcomes[name] > guarantee.risk))
    return row


def describe_difference(name: str, differences: Float64Array) -> Row:
    """Return the mean of paired differences and its 95 % interval over the splits."""
    names = (name, f"{name}_low", f"{name}_high")
    return {one: round(value, 6) for one, value in zip(names, summarize(differences), strict=True)}


def measure_coverage(store: Path, n_splits: int, name: str) -> list[Row]:
    """Compare the adaptive rule with all looks of the preset; a row for each guarantee."""
    preds = select_pool(collect_cifar10(CIFAR10.parent, store, name), PRESET)
    splits = [divide_images(preds.n_images, seed) for seed in range(n_splits)]
    return [
        {**describe_setting(name, guarantee), "views": preds.n_views}
        | describe_outcomes(measure_splits(preds, splits, guarantee), guarantee)
        for guarantee in GUARANTEES
    ]


def describe_setting(name: str, guarantee: Guarantee) -> Row:
    """Return the common columns of rows of one classifier and guarantee; splits have seeds from 0."""
    chosen_on = "yes" if name in CHOSEN_ON else "no"
    return {"classifier": name, "chosen_on": chosen_on, "risk": guarantee.risk, "delta": guarantee.delta, "seed": 0}


def select_pool(preds: Predictions, pool: str) -> Predictions:
    """Return the predictions for the views of a pool."""
    return preds.select(views=list(POOLS[pool] or find_preset_views(PRESET, preds)))


def print_coverage(rows: Sequence[Row]) -> None:
    """Print a line for each row."""
    for row in rows:
        print(
            f"{row['classifier']:14} risk {row['risk']}: all looks {100 * float(str(row['coverage_all'])):.2f} %, "
            f"adaptive {100 * float(str(row['coverage_adaptive'])):.2f} %, looks {row['looks']}, "
            f"differing {row['differing']}, bound exceeded {row['bound_exceeded']}, "
            f"risk exceeded {row['risk_adaptive_exceeded']} (all looks: {row['risk_all_exceeded']})",
            flush=True,
        )


def format_coverage_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return coverage in percent and mean looks, one line per classifier and risk; missed targets are marked.

    "Risk exceeded" counts the splits, for all looks and for the adaptive rule.
    """
    lines = [
        "| classifier | risk | all looks | with more labels | adaptive | difference | looks | differing "
        "| risk exceeded | |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            format_line(
                [
                    f"{row['classifier']} †" if row["chosen_on"] == "yes" else row["classifier"],
                    f"{100 * float(row['risk']):g} %",
                    *(f"{100 * float(row[f'coverage_{one}']):.1f}" for one in ("all", "all_more_labels", "adaptive")),
                    format_interval(row, "difference"),
                    f"{float(row['looks']):.2f}",
                    f"{100 * float(row['differing']):.1f} %",
                    f"{row['risk_all_exceeded']}, {row['risk_adaptive_exceeded']} of {row['splits']}",
                    ", ".join(list_misses(row)),
                ]
            )
        )
    for risk in dict.fromkeys(row["risk"] for row in rows):
        judged = [row for row in rows if row["risk"] == risk and row["chosen_on"] == "no"]
        if judged:
            lines.append(format_line(_average_columns(judged)))
    return "\n".join(lines)


def _average_columns(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the cells of the average over held-out classifiers."""
    names = ("coverage_all", "coverage_all_more_labels", "coverage_adaptive", "difference", "looks", "differing")
    *coverages, difference, looks, differing = (float(np.mean([float(row[name]) for row in rows])) for name in names)
    splits, all_looks, adaptive = (
        sum(int(row[name]) for row in rows) for name in ("splits", "risk_all_exceeded", "risk_adaptive_exceeded")
    )
    return [
        f"average of {len(rows)} without †",
        f"{100 * float(rows[0]['risk']):g} %",
        *(f"{100 * coverage:.1f}" for coverage in coverages),
        f"{100 * difference:+.2f}",
        f"{looks:.2f}",
        f"{100 * differing:.1f} %",
        f"{all_looks}, {adaptive} of {splits}",
        "",
    ]


def format_interval(row: Mapping[str, str], name: str) -> str:
    """Return a difference in points with its interval, like '-0.12 [-0.51, +0.27]'."""
    middle, low, high = (100 * float(row[column]) for column in (name, f"{name}_low", f"{name}_high"))
    return f"{middle:+.2f} [{low:+.2f}, {high:+.2f}]"


def list_misses(row: Mapping[str, str]) -> list[str]:
    """Return the missed targets, judged by the printed decimals."""
    misses = []
    if round(100 * float(row["difference"]), 2) < -100 * MAX_LOSS:
        misses.append(f"**more than {100 * MAX_LOSS:g} points below**")
    if round(float(row["looks"]), 2) > MAX_LOOKS:
        misses.append(f"**more than {MAX_LOOKS:g} looks**")
    return misses


# --- The frontier of coverage against looks ---


def measure_frontier(store: Path, n_splits: int, name: str) -> list[Row]:
    """Average the certified coverage at each mean number of looks over splits."""
    preds = select_pool(collect_cifar10(CIFAR10.parent, store, name), PRESET)
    splits = [divide_images(preds.n_images, seed) for seed in range(n_splits)]
    return [row for guarantee in GUARANTEES for row in trace_frontier(preds, splits, name, guarantee)]


def trace_frontier(preds: Predictions, splits: Sequence[Split], name: str, guarantee: Guarantee) -> Iterator[Row]:
    """Yield a row for each mean number of looks, and one for the default tolerance.

    The margins of a grid need a different mean number of looks in each split, so the coverage is interpolated.
    """
    curves, all_looks, defaults = [], [], []
    for split in splits:
        frontier = Frontier.compute(
            preds.select(images=np.concatenate([split.tuning, split.certification])),
            METHOD,
            risk=guarantee.risk,
            delta=guarantee.delta,
            tuning=np.arange(len(split.tuning)),
        )
        curves.append(interpolate_coverage(frontier))
        all_looks.append(frontier.all_looks.coverage)
        defaults.append(frontier.chosen)
    points = [("", looks, coverage) for looks, coverage in zip(LOOKS, np.mean(curves, axis=0), strict=True)]
    certified_looks = [point.looks for point in defaults if point.coverage > 0]
    points.append(("default", np.mean(certified_looks), np.mean([point.coverage for point in defaults])))
    for tolerance, looks, coverage in points:
        yield {
            **describe_setting(name, guarantee),
            "splits": len(splits),
            "tolerance": tolerance,
            "looks": round(float(looks), 6),
            "coverage": round(float(coverage), 6),
            "difference": round(float(coverage - np.mean(all_looks)), 6),
        }


def interpolate_coverage(frontier: Frontier) -> Float64Array:
    """Return the coverage at each of `LOOKS`."""
    points = [(point.looks, point.coverage) for point in (*frontier.points, frontier.all_looks)]
    looks, coverages = np.array(sorted(points)).T
    interpolated: Float64Array = np.interp(LOOKS, looks, coverages)
    return interpolated


def print_frontier(rows: Sequence[Row]) -> None:
    """Print the point of the default tolerance."""
    for row in rows:
        if row["tolerance"]:
            difference = 100 * float(str(row["difference"]))
            print(
                f"{row['classifier']:14} risk {row['risk']}: {row['looks']} looks, {difference:+.2f} points", flush=True
            )


def plot_frontier(rows: Sequence[Mapping[str, str]], path: Path) -> None:
    """Plot the coverage less that of all looks against the mean looks, one panel per guarantee."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    risks = list(dict.fromkeys(row["risk"] for row in rows))
    figure, panels = pyplot.subplots(1, len(risks), figsize=(5 * len(risks), 4.2), sharey=True, squeeze=False)
    for axes, risk in zip(panels[0], risks, strict=True):
        shown = [row for row in rows if row["risk"] == risk]
        _draw_frontier(axes, shown)
        title = f"risk {100 * float(risk):g} %, {100 * (1 - float(shown[0]['delta'])):g} % confidence"
        axes.set(title=title, xlabel="mean looks per image")
    panels[0][0].set(ylabel="certified coverage less that of all looks, points", ylim=FRONTIER_RANGE)
    panels[0][-1].legend(fontsize=7, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def _draw_frontier(axes: "Axes", rows: Sequence[Mapping[str, str]]) -> None:
    low, high = FRONTIER_RANGE
    axes.axvspan(1, MAX_LOOKS, ymin=(-100 * MAX_LOSS - low) / (high - low), color="#dddddd", zorder=0)
    axes.axhline(0, color="#666666", lw=0.8)
    for start, color in LINES.items():
        names = dict.fromkeys(row["classifier"] for row in rows if row["classifier"].startswith(start))
        for count, name in enumerate(names):
            shown = [row for row in rows if row["classifier"] == name]
            *curve, default = [(float(row["looks"]), 100 * float(row["difference"])) for row in shown]
            label = None if count else start if len(names) == 1 else f"{start}, {len(names)} seeds"
            axes.plot(*zip(*curve, strict=True), color=color, lw=1.3, label=label)
            axes.plot(*default, "o", color=color, ms=5)
    axes.set_xscale("log")
    ticks = (1, 1.5, 2, 3, 4, 6, 8, 13)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


# --- Larger pools of views ---


def measure_pools(store: Path, n_splits: int, name: str) -> list[Row]:
    """Compare pools of views on the same splits; a row for each guarantee and pool."""
    preds = collect_cifar10(CIFAR10.parent, store, name)
    splits = [divide_images(preds.n_images, seed) for seed in range(n_splits)]
    return [row for guarantee in GUARANTEES for row in compare_pools(preds, splits, name, guarantee)]


def compare_pools(preds: Predictions, splits: Sequence[Split], name: str, guarantee: Guarantee) -> Iterator[Row]:
    """Yield a row for each pool; the gains are over all looks of the preset."""
    outcomes = {pool: measure_splits(select_pool(preds, pool), splits, guarantee) for pool in POOLS}
    baseline = outcomes[PRESET]["coverage_all"]
    for pool, measured in outcomes.items():
        described = describe_outcomes(measured, guarantee)
        yield (
            {**describe_setting(name, guarantee), "pool": pool, "views": select_pool(preds, pool).n_views}
            | {column: described[column] for column in POOL_COLUMNS}
            | describe_difference("gain_all", measured["coverage_all"] - baseline)
            | describe_difference("gain_adaptive", measured["coverage_adaptive"] - baseline)
        )


def print_pools(rows: Sequence[Row]) -> None:
    """Print a line for each row."""
    for row in rows:
        coverages = [100 * float(str(row[name])) for name in ("coverage_all", "coverage_adaptive", "gain_all")]
        print(
            f"{row['classifier']:14} risk {row['risk']}, {row['pool']} ({row['views']} views): all looks "
            f"{coverages[0]:.2f} % ({coverages[2]:+.2f}), adaptive {coverages[1]:.2f} %, looks {row['looks']}",
            flush=True,
        )


def format_pool_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return coverages in percent and looks, averaged over the classifiers, with gains over all looks of the preset.

    The last column counts the classifiers for which the interval of the gain is entirely above or below zero.
    """
    lines = [
        "| views | risk | all looks | adaptive | looks | all looks better, worse |",
        "|---|---|---|---|---|---|",
    ]
    for risk, pool in dict.fromkeys((row["risk"], row["pool"]) for row in rows):
        shown = [row for row in rows if (row["risk"], row["pool"]) == (risk, pool)]
        means = {name: np.mean([float(row[name]) for row in shown]) for name in POOL_MEANS}
        better = sum(float(row["gain_all_low"]) > 0 for row in shown)
        worse = sum(float(row["gain_all_high"]) < 0 for row in shown)
        cells = [
            f"{pool}, {shown[0]['views']} views",
            f"{100 * float(risk):g} %",
            *(
                f"{100 * means[f'coverage_{one}']:.1f} ({100 * means[f'gain_{one}']:+.1f})"
                for one in ("all", "adaptive")
            ),
            f"{means['looks']:.2f}",
            "" if pool == PRESET else f"{better}, {worse} of {len(shown)}",
        ]
        lines.append(format_line(cells))
    return "\n".join(lines)


# --- The time of `score` ---


def measure_speed(store: Path, n_images: int, rounds: int, name: str) -> list[Row]:
    """Time `score` on images not used for certification: with all looks, adaptively, and with one look.

    The three alternate, because the speed of a shared machine varies; ratios are computed within each round.
    """
    classifier = load_cifar10_classifier(CIFAR10 / f"{name}.onnx")
    preds = select_pool(collect_cifar10(CIFAR10.parent, store, name), PRESET)
    source = open_source(f"npz:{CIFAR10 / 'test.npz'}", limit=n_images)
    policies = make_policies(preds, n_images, classifier)
    with tempfile.TemporaryDirectory() as folder:
        jobs = [partial(score_images, policy, source, classifier, Path(folder)) for policy in policies.values()]
        mean_looks = [job().mean_looks for job in jobs]  # compiles the kernels, too
        seconds = dict(zip(policies, np.array(time_rounds(*jobs, rounds=rounds)), strict=True))
    return [
        {**describe_setting(name, GUARANTEES[0]), "rule": rule, "images": n_images, "rounds": rounds}
        | {"looks": round(looks, 4), "seconds": round(median(seconds[rule]), 4)}
        | {"speedup": round(median(seconds["all looks"] / seconds[rule]), 3)}
        | {"target": f">= {MIN_SPEEDUP:g}" if rule == "adaptive" else ""}
        for rule, looks in zip(policies, mean_looks, strict=True)
    ]


def make_policies(preds: Predictions, n_scored: int, classifier: Classifier) -> dict[str, Policy]:
    """Calibrate three policies on all but the first images."""
    labeled = preds.select(images=np.arange(n_scored, preds.n_images))
    certify_first = partial(certify, method=METHOD, risk=GUARANTEES[0].risk, delta=GUARANTEES[0].delta)
    rules = {
        "all looks": (labeled.views.texts, certify_first(labeled)),
        "adaptive": (labeled.views.texts, certify_first(labeled, adaptive=True)),
        "one look": (("identity",), certify_first(labeled.select(views=["identity"]))),
    }
    return {
        name: rule.replace(classifier=classifier, views=(rule.schedule.views if rule.schedule else views))
        for name, (views, rule) in rules.items()
    }


def score_images(policy: Policy, source: Source, classifier: Classifier, folder: Path) -> ScoreSummary:
    """Score all images into a file, replacing that of the last round."""
    return score(
        policy,
        source,
        folder / "scores.csv",
        classifier=classifier,
        overwrite=True,
        execution=Execution(progress=False),
    )


def format_speed_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return looks, seconds and speedup over all looks, one line per classifier and rule."""
    lines = ["| classifier | | looks | seconds | times as fast |", "|---|---|---|---|---|"]
    for row in rows:
        numbers = (f"{float(row['looks']):.2f}", f"{float(row['seconds']):.2f}", f"{float(row['speedup']):.1f}")
        lines.append(format_line([row["classifier"], row["rule"], *numbers]))
    return "\n".join(lines)


# --- The command line ---


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = create_parser(__doc__)
    parser.add_argument("parts", nargs="*", choices=PARTS, metavar="part", help="parts to run (default: all)")
    parser.add_argument("--store", type=Path, default=STORE, help="folder for predictions (default: %(default)s)")
    parser.add_argument("--splits", type=int, default=50, help="random splits of the images (default: %(default)s)")
    parser.add_argument("--images", type=int, default=1000, help="images to score (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of scoring (default: %(default)s)")
    return parser.parse_args()


def run_coverage(options: argparse.Namespace) -> None:
    """Compare the coverage of the adaptive rule with that of all looks."""
    rows = run_classifiers(partial(measure_coverage, options.store, options.splits), print_coverage)
    write_results(options.out / "adaptive_coverage.csv", rows)
    print(format_coverage_table(read_rows(options.out / "adaptive_coverage.csv")))


def run_frontier(options: argparse.Namespace) -> None:
    """Trace the frontier and plot it."""
    splits = min(options.splits, FRONTIER_SPLITS)
    rows = run_classifiers(partial(measure_frontier, options.store, splits), print_frontier)
    write_results(options.out / "adaptive_frontier.csv", rows)
    plot_frontier(read_rows(options.out / "adaptive_frontier.csv"), options.out / "adaptive.png")


def run_pools(options: argparse.Namespace) -> None:
    """Compare larger pools of views with the preset."""
    splits = min(options.splits, POOL_SPLITS)
    rows = run_classifiers(partial(measure_pools, options.store, splits), print_pools)
    write_results(options.out / "adaptive_pool.csv", rows)
    print(format_pool_table(read_rows(options.out / "adaptive_pool.csv")))


def run_speed(options: argparse.Namespace) -> None:
    """Time `score`, in this process alone."""
    rows = [row for name in TIMED for row in measure_speed(options.store, options.images, options.rounds, name)]
    write_results(options.out / "adaptive_speed.csv", rows)
    print(format_speed_table(read_rows(options.out / "adaptive_speed.csv")))


def run_classifiers(measure: Callable[[str], list[Row]], show: Callable[[Sequence[Row]], None]) -> list[Row]:
    """Return the rows of all classifiers, measured on all cores and printed when ready."""
    rows: list[Row] = []
    with ProcessPoolExecutor() as executor:
        for measured in executor.map(measure, CLASSIFIERS):
            show(measured)
            rows += measured
    return rows


PARTS = {"coverage": run_coverage, "frontier": run_frontier, "pool": run_pools, "speed": run_speed}


def main() -> None:
    """Run the chosen parts, and print and write their results."""
    options = parse_options()
    if not CIFAR10.is_dir():
        print(f"skipped: {CIFAR10} does not exist")
        return
    for part in options.parts or PARTS:
        PARTS[part](options)


if __name__ == "__main__":
    main()
