"""Reliability and speed of the shift alarm and the audits of monitoring.

Run: python benchmarks/monitoring.py simulated [--streams 2000] [--images 100000]
     python benchmarks/monitoring.py audits [--model ../shared/cifar10/resnet56.onnx ...] [--store DIR]

`simulated` counts false alarms in simulated streams without changes, or with exactly the guaranteed error rate. It also
counts the images or labels until shifts and changed error rates are found.

`audits` measures the latter with the confidences and errors of real classifiers. It needs ../shared/cifar10.
"""

import argparse
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
from scipy.stats import binomtest

from measurement import CIFAR10, Row, create_parser, load_cifar10_classifier, write_results
from secondlook.arrays import BoolArray, Float64Array
from secondlook.monitoring.alarm import ShiftAlarm
from secondlook.monitoring.audit import AuditedImage, judge_audits
from secondlook.policies import AuditPlan, Reference, certify
from secondlook.predictions import Predictions, collect
from secondlook.sources import open_source

ALPHA = 0.05
METHOD, DELTA = "blend", 0.05
CORES = os.cpu_count() or 1


def summarize_share(name: str, hits: int, streams: int) -> Row:
    """Return a share with its exact 95 % interval."""
    interval = binomtest(hits, streams).proportion_ci()
    return {
        name: hits,
        f"{name}_share": hits / streams,
        f"{name}_low": round(float(interval.low), 5),
        f"{name}_high": round(float(interval.high), 5),
    }


def summarize_counts(name: str, counts: Sequence[int]) -> Row:
    """Return the mean, the median and the 90 % quantile of counts; empty without any."""
    if not counts:
        return {f"{name}_mean": "", f"{name}_median": "", f"{name}_90": ""}
    median, most = np.quantile(counts, [0.5, 0.9])
    return {f"{name}_mean": round(float(np.mean(counts)), 1), f"{name}_median": median, f"{name}_90": round(most)}


# --- Simulated streams: the shift alarm ---

QUALITY_MEAN, QUALITY_STD, NOISE = 2.5, 1.5, 0.7
"""Confidence and disagreement are noisy logistic functions of the quality of an image, which is normal."""
DEGRADED = 3.0
"""Loss of quality of degraded images, in standard deviations."""
CHUNK = 1000


@dataclass(frozen=True)
class ShiftedStream:
    """A stream of simulated images that changes at some time, or never."""

    calibration: int
    values: str = "continuous"
    """Or "ties": confidence and disagreement with a single digit."""
    images: int = 100_000
    start: int | None = None
    """Number of images before the shift; None if there is none."""
    location: float = 0.0
    """Loss of quality of all images, in standard deviations."""
    degraded: float = 0.0
    """Fraction of the images that become much worse."""

    def draw(
        self, rng: np.random.Generator, n: int, *, shifted: bool = False
    ) -> tuple[Float64Array, Float64Array, Float64Array]:
        """Return confidence, first look and disagreement. float64 [n] each"""
        worse = np.zeros(n)
        if shifted:
            worse += self.location + np.where(rng.random(n) < self.degraded, DEGRADED, 0.0)
        quality = QUALITY_MEAN + QUALITY_STD * (rng.normal(size=n) - worse)
        noisy = quality + NOISE * rng.normal(size=(2, n))
        confidence, agreement = 1 / (1 + np.exp(-noisy))
        if self.values == "ties":
            confidence, agreement = np.round(confidence, 1), np.round(agreement, 1)
        return confidence, confidence, 1 - agreement

    def watch(self, seed: int) -> int | None:
        """Return the number of images until the alarm; None without one. It may be raised before the shift."""
        rng = np.random.default_rng([seed, self.calibration, self.start or 0])
        reference = Reference.make(*self.draw(rng, self.calibration), None)
        alarm = ShiftAlarm(reference, is_adaptive=False, alpha=ALPHA, seed=seed)
        quiet = self.images if self.start is None else self.start
        alarm.update(*self.draw(rng, quiet))
        while alarm.state.raised_at is None and alarm.state.images < self.images:
            alarm.update(*self.draw(rng, CHUNK, shifted=True))
        return alarm.state.raised_at


SHIFTS = tuple(
    ShiftedStream(5000, location=location, degraded=degraded)
    for location, degraded in ((0.1, 0), (0.25, 0), (0.5, 0), (1, 0), (0, 0.05), (0, 0.2), (0, 0.5))
)
STARTS = (0, 1000, 20_000)


def list_quiet_streams(images: int) -> list[ShiftedStream]:
    """Return the streams without changes."""
    return [ShiftedStream(n, values, images) for n, values in product((500, 5000), ("continuous", "ties"))]


def list_shifted_streams() -> list[ShiftedStream]:
    """Return the streams with a shift, each with 20,000 more images."""
    return [replace(shift, start=start, images=start + 20_000) for start in STARTS for shift in SHIFTS]


def count_false_alarms(stream: ShiftedStream, streams: int, executor: ProcessPoolExecutor) -> Row:
    """Return the number of streams without a shift that raise an alarm."""
    raised = list(executor.map(stream.watch, range(streams), chunksize=10))
    row: Row = {"measured": "false alarms of the shift alarm", "calibration": stream.calibration}
    row |= {"values": stream.values, "streams": streams, "images": stream.images, "alpha": ALPHA}
    return row | summarize_share("alarms", sum(one is not None for one in raised), streams)


def measure_delay(stream: ShiftedStream, streams: int, executor: ProcessPoolExecutor) -> Row:
    """Return the number of images from a shift to the alarm; streams with an earlier alarm are omitted."""
    raised = list(executor.map(stream.watch, range(streams), chunksize=5))
    start = stream.start or 0
    judged = [one for one in raised if one is None or one > start]
    delays = [stream.images - start if one is None else one - start for one in judged]
    row: Row = {"measured": "images until the shift alarm", "calibration": stream.calibration, "values": stream.values}
    row |= {"start": start, "shift": describe_shift(stream), "streams": streams, "images": stream.images}
    row |= {"alpha": ALPHA, "judged": len(judged), "alarms": sum(one is not None for one in judged)}
    return row | summarize_counts("images_until", delays)


def describe_shift(stream: ShiftedStream) -> str:
    """Return a shift in words."""
    if stream.degraded:
        return f"{100 * stream.degraded:g} % of images {DEGRADED:g} sd worse"
    return f"all images {stream.location:g} sd worse"


# --- Simulated streams: audits ---

RISK = 0.01
PATTERNS: dict[str, Callable[[Float64Array], Float64Array]] = {
    # name: error rate relative to its mean at quantile u of the confidence of accepted images (0: least confident)
    "as calibrated": lambda u: 9 * (1 - u) ** 8,
    "even": lambda u: np.ones(len(u)),
    "confident half": lambda u: np.where(u > 0.5, 2.0, 0.0),
}


@dataclass(frozen=True)
class AuditedStream:
    """A stream of accepted images with a known error rate; some are audited, and all audits are reviewed."""

    design: str
    """The plan of audits: "designed" or "even"."""
    rate: float
    """Fraction of audited images."""
    pattern: str
    """Distribution of the errors."""
    images: int = 100_000
    risk: float = RISK
    """The error rate; the guaranteed one is RISK."""
    extra: str | None = None
    """Distribution of the errors above RISK; None: like the others."""

    def draw(self, rng: np.random.Generator, plan: AuditPlan) -> tuple[BoolArray, Float64Array, BoolArray]:
        """Return audits, their probabilities, and errors. [images] each"""
        confidence = rng.random(self.images)
        error_rate = self.risk * PATTERNS[self.pattern](confidence)
        if self.extra is not None:
            added = (self.risk - RISK) * PATTERNS[self.extra](confidence)
            error_rate = RISK * PATTERNS[self.pattern](confidence) + added
        probability = plan.probabilities(confidence)
        return rng.random(self.images) < probability, probability, rng.random(self.images) < error_rate

    def judge(self, seed: int) -> tuple[int | None, bool]:
        """Return the number of labels until the guarantee was found broken, and whether it held in the end."""
        rng = np.random.default_rng([seed, 7])
        plan = AuditPlan(None, 0.0, self.rate)
        if self.design == "designed":
            confidence = rng.random(5000)
            wrong = rng.random(5000) < RISK * PATTERNS["as calibrated"](confidence)
            plan = AuditPlan(Reference.make(confidence, confidence, None, wrong), 0.0, self.rate)
        audited, probability, wrong = self.draw(rng, plan)
        places = np.flatnonzero(audited)
        images = map(AuditedImage, (places + 1).tolist(), probability[places].tolist(), wrong[places].tolist())
        verdict = judge_audits(self.images, list(images), risk=RISK, alpha=ALPHA, smallest=plan.smallest)
        if verdict.broken_at is None:
            return None, verdict.verdict == "holds"
        return int(np.searchsorted(places + 1, verdict.broken_at, side="right")), False

    def describe(self) -> Row:
        """Return the columns that describe the simulation."""
        return {
            "design": self.design,
            "audit_rate": self.rate,
            "errors": self.pattern if self.extra is None else f"{self.pattern}, and new ones {self.extra}",
            "risk": RISK,
            "error_rate": self.risk,
            "images": self.images,
            "alpha": ALPHA,
        }


DESIGNS = ("designed", "even")


def list_streams_at_risk(images: int) -> list[AuditedStream]:
    """Return the streams with exactly the guaranteed error rate."""
    patterns = [AuditedStream(design, 0.01, pattern, images) for design, pattern in product(DESIGNS, PATTERNS)]
    return [*patterns, *(AuditedStream(design, 0.05, "as calibrated", images) for design in DESIGNS)]


def list_broken_streams() -> list[AuditedStream]:
    """Return the streams with a larger error rate than guaranteed."""
    streams = [AuditedStream(design, 0.01, "as calibrated", 250_000) for design in DESIGNS]
    larger = [replace(stream, risk=risk) for risk in (0.02, 0.03, 0.05) for stream in streams]
    return [*larger, *(replace(stream, risk=0.02, extra="even") for stream in streams)]


def count_false_verdicts(stream: AuditedStream, streams: int, executor: ProcessPoolExecutor) -> Row:
    """Return how often the guarantee is called broken although the error rate is as guaranteed.

    "below" counts the streams with a final verdict of a smaller error rate, which is also false.
    """
    verdicts = list(executor.map(stream.judge, range(streams), chunksize=20))
    row = {"measured": "false verdicts of audits", "streams": streams, **stream.describe()}
    row |= summarize_share("alarms", sum(labels is not None for labels, _ in verdicts), streams)
    return row | summarize_share("below", sum(held for _, held in verdicts), streams)


def measure_labels(stream: AuditedStream, streams: int, executor: ProcessPoolExecutor) -> Row:
    """Return the number of labels to find a broken guarantee; not found counts as all labels of the stream."""
    verdicts = list(executor.map(stream.judge, range(streams), chunksize=5))
    labels = [found for found, _ in verdicts]
    most = round(stream.rate * stream.images)
    row = {"measured": "labels until broken", "streams": streams, **stream.describe()}
    row |= {"alarms": sum(found is not None for found in labels)}
    return row | summarize_counts("labels_until", [most if found is None else found for found in labels])


# --- Real classifiers: audits ---

STREAM_IMAGES = 60_000


def draw_real_stream(preds: Predictions, design: str, error_rate: float, rate: float, seed: int) -> int | None:
    """Return the number of labels to find a larger error rate; None if it is not found.

    A risk is certified on a random half of the images. The stream draws accepted images of the other half, correct and
    wrong ones at the given error rate.
    """
    rng = np.random.default_rng([seed, 11])
    order = rng.permutation(preds.n_images)
    half = preds.n_images // 2
    rule = certify(preds.select(images=np.sort(order[:half])), METHOD, risk=RISK, delta=DELTA)
    others = preds.select(images=np.sort(order[half:]))
    confidence, correct = rule.confidence(others), others.correct()
    accepted = rule.accept(confidence, method=rule.method)
    wrong = rng.random(STREAM_IMAGES) < error_rate
    right_ones, wrong_ones = (confidence[accepted & (correct == is_right)] for is_right in (True, False))
    values = np.where(wrong, rng.choice(wrong_ones, STREAM_IMAGES), rng.choice(right_ones, STREAM_IMAGES))
    plan = AuditPlan(rule.reference if design == "designed" else None, rule.threshold, rate)
    probability = plan.probabilities(values)
    places = np.flatnonzero(rng.random(STREAM_IMAGES) < probability)
    images = map(AuditedImage, (places + 1).tolist(), probability[places].tolist(), wrong[places].tolist())
    verdict = judge_audits(STREAM_IMAGES, list(images), risk=RISK, alpha=ALPHA, smallest=plan.smallest)
    found = verdict.broken_at
    return None if found is None else int(np.searchsorted(places + 1, found, side="right"))


def run_audits(options: argparse.Namespace) -> None:
    """Draw streams from the images of classifiers, print a line for each design and write the table."""
    if not CIFAR10.is_dir():
        print(f"skipped: {CIFAR10} does not exist")
        return
    rows = []
    for model in options.model:
        source = open_source(f"npz:{CIFAR10 / 'test.npz'}")
        preds = collect(load_cifar10_classifier(model), source, "cifar10", store=options.store)
        for error_rate, design in product((RISK, 2 * RISK), DESIGNS):
            draw = partial(draw_real_stream, preds, design, error_rate, options.rate)
            labels = [draw(seed) for seed in range(options.streams)]
            most = round(options.rate * STREAM_IMAGES)
            row: Row = {"seed": 0, "classifier": model.stem, "design": design, "audit_rate": options.rate}
            row |= {"risk": RISK, "error_rate": error_rate, "images": STREAM_IMAGES, "streams": options.streams}
            row |= {"alpha": ALPHA, "alarms": sum(found is not None for found in labels)}
            row |= summarize_counts("labels_until", [most if found is None else found for found in labels])
            rows.append(row)
            print(", ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    write_results(options.out / "monitoring_audits.csv", rows)


def add_audits_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `audits`."""
    models = [CIFAR10 / f"{name}.onnx" for name in ("resnet20", "resnet56")]
    parser.add_argument("--model", type=Path, nargs="+", default=models, help="CIFAR-10 classifiers (default: both)")
    parser.add_argument("--store", type=Path, default=None, help="folder to keep predictions in")
    parser.add_argument("--streams", type=int, default=100, help="streams of each kind (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=0.05, help="fraction to audit (default: %(default)s)")


# --- Subcommands ---


def run_simulated(options: argparse.Namespace) -> None:
    """Simulate streams, print a line for each kind and write the table."""
    few = max(options.streams // 10, 1)
    with ProcessPoolExecutor(CORES) as executor:
        jobs: Iterable[Callable[[], Row]] = (
            *(
                partial(count_false_alarms, one, options.streams, executor)
                for one in list_quiet_streams(options.images)
            ),
            *(partial(measure_delay, one, few, executor) for one in list_shifted_streams()),
            *(
                partial(count_false_verdicts, one, options.streams, executor)
                for one in list_streams_at_risk(options.images)
            ),
            *(partial(measure_labels, one, 2 * few, executor) for one in list_broken_streams()),
        )
        rows = []
        for job in jobs:
            rows.append({"seed": 0, **job()})
            print(", ".join(f"{name} {value}" for name, value in rows[-1].items() if value != ""), flush=True)
    write_results(options.out / "monitoring_simulated.csv", rows)


def add_simulated_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `simulated`."""
    parser.add_argument("--streams", type=int, default=2000, help="streams without a change (default: %(default)s)")
    parser.add_argument("--images", type=int, default=100_000, help="images of each (default: %(default)s)")


SUBCOMMANDS: dict[str, tuple[Callable[[argparse.Namespace], None], Callable[[argparse.ArgumentParser], None]]] = {
    # name: the function to run, the function that adds its options
    "simulated": (run_simulated, add_simulated_options),
    "audits": (run_audits, add_audits_options),
}


def main() -> None:
    """Run one subcommand."""
    parser = create_parser(__doc__)
    subparsers = parser.add_subparsers(dest="subcommand", required=True)
    for name, (run, add_options) in SUBCOMMANDS.items():
        subparser = subparsers.add_parser(name, help=run.__doc__, allow_abbrev=False)
        add_options(subparser)
        subparser.set_defaults(run=run)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
