"""Accuracy and risk without labels, and images until the alarm, on corrupted CIFAR-10 images.

Run: python benchmarks/monitoring_estimates.py [--model ../shared/cifar10/resnet20.onnx] [--torch] [--stream 2000]

A policy is calibrated on the first images, and estimates accuracy and risk of later ones in 15 corruptions of three
strengths. For each corruption, it learns again from the shifts without those that resemble the corruption. The file of
results keeps the rows of other classifiers. Needs ../shared/cifar10/test.npz.
"""

import argparse
import csv
import multiprocessing
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from corruptions import CORRUPTIONS, STRENGTHS
from measurement import CIFAR10, CIFAR10_MEAN, CIFAR10_STD, Row, create_parser, write_results
from secondlook.arrays import Array, Float64Array, IntArray
from secondlook.classifiers import Classifier, load_classifier
from secondlook.estimators import compute_look_statistics, confidence
from secondlook.monitoring.alarm import ShiftAlarm
from secondlook.monitoring.estimates import (
    AccuracyEstimate,
    AccuracyEstimator,
    LabeledScores,
    ShiftedScores,
    collect_shifts,
    learn_shift_model,
    score_images,
)
from secondlook.policies import Policy, certify
from secondlook.predictions import Execution, Predictions, collect
from secondlook.sources import open_source

VIEWS, METHOD = "cifar10", "blend"
WINDOW = 500
"""Number of images in a window, to judge estimates for windows, too."""
MIXES, MIX_IMAGES = 2, 1000
"""Number of new class mixtures of a stream, and their number of images."""
CLEAN = "none"
BASELINES = ("atc msr", "atc mean", "cbpe mean")
LEARNED, ALL_SHIFTS, NO_SHIFTS = "shifts", "all shifts", "no shifts"
"""Learned without the shifts that resemble the corruption; from all shifts; from no corrupted images."""
SUMMARY = "mean"


@dataclass(frozen=True, eq=False)
class Stream:
    """Scored images of one corruption."""

    scores: LabeledScores
    first_look: Float64Array
    mean: Float64Array
    """The mean over views of the probability of the predicted class."""
    disagreement: Float64Array

    @classmethod
    def score(cls, policy: Policy, preds: Predictions) -> "Stream":
        """Score images as the policy does."""
        first_look, disagreement = compute_look_statistics(preds)
        return cls(score_images(policy, preds), first_look, confidence(preds, "mean"), disagreement)

    def select(self, images: IntArray) -> "Stream":
        """Return some of the images."""
        parts = {name: getattr(self.scores, name)[images] for name in self.scores.__dataclass_fields__}
        return Stream(LabeledScores(**parts), self.first_look[images], self.mean[images], self.disagreement[images])

    @property
    def accuracy(self) -> float:
        """Share of the images that are correct."""
        return float(self.scores.correct.mean())

    @property
    def risk(self) -> float:
        """Error rate among accepted images; NaN if there are none."""
        accept = self.scores.accept
        return float(np.mean(~self.scores.correct[accept])) if accept.any() else np.nan


class Setting(NamedTuple):
    """Fixed before any corruption: the policy and its calibration images, and scores of shifts."""

    policy: Policy
    calibration: Stream
    shifted: list[ShiftedScores]

    def learn(self, left_out: Sequence[str]) -> Policy:
        """Return the policy after learning from all shifts except some kinds."""
        known = {one.kind for one in self.shifted}
        assert known.issuperset(left_out), f"{set(left_out) - known} are no kinds of shifts"
        assert self.policy.reference is not None, "the policy was calibrated on labeled images"
        kept = [one for one in self.shifted if one.kind not in left_out]
        model = learn_shift_model(self.policy.reference, 10, self.calibration.scores, kept)
        return self.policy.model_copy(update={"shifts": model})


def corrupt_images(images: Array, name: str, strength: int) -> Array:
    """Corrupt images with a separate random seed. uint8 [N, H, W, 3]"""
    return CORRUPTIONS[name](images, strength, np.random.default_rng([zlib.crc32(name.encode()), strength]))


def estimate(policy: Policy, stream: Stream) -> AccuracyEstimate:
    """Estimate from the scores of a stream, never from its labels."""
    estimator, scores = AccuracyEstimator(policy), stream.scores
    features = estimator.features(scores.confidence, scores.predicted)
    accepted = features[scores.accept].sum(axis=0)
    return estimator.estimate(len(features), features.sum(axis=0), int(scores.accept.sum()), accepted)


def estimate_baselines(calibration: Stream, stream: Stream) -> dict[str, float]:
    """Return accuracy by a threshold on the plain softmax or on the mean over views, and by the mean of the latter."""
    accuracy = calibration.accuracy

    def reach(known: Float64Array, values: Float64Array) -> float:
        return float(np.mean(values >= np.quantile(known, 1 - accuracy)))

    return {
        "atc msr": reach(calibration.first_look, stream.first_look),
        "atc mean": reach(calibration.mean, stream.mean),
        "cbpe mean": float(stream.mean.mean()),
    }


def judge_estimates(setting: Setting, name: str, stream: Stream) -> Row:
    """Compare the estimates for a stream with the truth, in shares."""
    left_out = CORRUPTIONS[name].resembles if name in CORRUPTIONS else ()
    row: Row = {"accuracy": stream.accuracy, "risk": stream.risk, "coverage": float(stream.scores.accept.mean())}
    row |= {f"accuracy, {one}": value for one, value in estimate_baselines(setting.calibration, stream).items()}
    learned = setting.learn(left_out)
    for method, policy in ((NO_SHIFTS, setting.policy), (ALL_SHIFTS, setting.learn(())), (LEARNED, learned)):
        found = estimate(policy, stream)
        row |= {f"accuracy, {method}": found.accuracy, f"risk, {method}": np.nan if found.risk is None else found.risk}
        row |= {f"accuracy hit, {method}": _holds(found.accuracy_low, stream.accuracy, found.accuracy_high)}
        row |= {f"risk hit, {method}": _holds(found.risk_low, stream.risk, found.risk_high)}
        row |= {f"accuracy width, {method}": (found.accuracy_high or 0) - (found.accuracy_low or 0)}
        row |= {f"risk width, {method}": (found.risk_high or 0) - (found.risk_low or 0)}
    return row | _judge_windows(learned, stream) | _judge_mixes(setting, learned, stream)


def _holds(low: float | None, truth: float, high: float | None) -> int:
    return int(low is not None and high is not None and low <= truth <= high)


def _judge_windows(policy: Policy, stream: Stream) -> Row:
    """Return the mean error and the hits of estimates for windows of the stream."""
    errors, hits = [], []
    for start in range(0, len(stream.mean) - WINDOW + 1, WINDOW):
        window = stream.select(np.arange(start, start + WINDOW))
        found = estimate(policy, window)
        errors.append(abs((found.accuracy or 0) - window.accuracy))
        hits.append(_holds(found.accuracy_low, window.accuracy, found.accuracy_high))
    if not errors:
        return {}
    return {"window error": float(np.mean(errors)), "window hits": float(np.mean(hits))}


def _judge_mixes(setting: Setting, policy: Policy, stream: Stream) -> Row:
    """Return the mean error of estimates for streams with more frequent classes."""
    rng, errors = np.random.default_rng(0), []
    for _ in range(MIXES):
        weights = rng.dirichlet(np.ones(10))[stream.scores.labels]
        mixed = stream.select(rng.choice(len(weights), MIX_IMAGES, p=weights / weights.sum()))
        baseline = estimate_baselines(setting.calibration, mixed)["atc mean"]
        errors.append([abs(value - mixed.accuracy) for value in (estimate(policy, mixed).accuracy or 0, baseline)])
    learned, baseline = np.mean(errors, axis=0).tolist()
    return {f"mix error, {LEARNED}": learned, "mix error, atc mean": baseline}


def count_until_alarm(policy: Policy, stream: Stream, repetitions: int) -> Row:
    """Return the number of images until the shift alarm: median and 90 % quantile over orders of the stream."""
    raised = []
    for seed in range(repetitions):
        images = stream.select(np.random.default_rng(seed).permutation(len(stream.mean)))
        assert policy.reference is not None, "the policy was calibrated on labeled images"
        alarm = ShiftAlarm(policy.reference, is_adaptive=False, seed=seed)
        alarm.update(images.scores.confidence, images.first_look, images.disagreement)
        raised.append(np.inf if alarm.state.raised_at is None else alarm.state.raised_at)
    middle, late = (float(np.quantile(raised, share, method="higher")) for share in (0.5, 0.9))
    return {"alarm, median": middle, "alarm, 90 %": late, "alarms": int(np.isfinite(raised).sum())}


def load_model(options: argparse.Namespace) -> Classifier:
    """Load an ONNX file for ONNX Runtime, or for torch on a GPU, which takes only a few minutes."""
    mean, std = tuple(options.mean), tuple(options.std)
    if not options.torch:
        return load_classifier(f"onnx:{options.model}", output="logits", mean=mean, std=std)
    from networks import load_network

    network = load_network(options.model)
    return load_classifier(network, output="logits", mean=mean, std=std, name=options.model.stem)


def prepare(classifier: Classifier, options: argparse.Namespace) -> Setting:
    """Calibrate on the first images, and classify shifts of some of them."""
    source = open_source(f"npz:{CIFAR10 / 'test.npz'}").select(np.arange(options.calibration))
    preds = collect(classifier, source, VIEWS, store=options.store)
    rule = certify(preds, METHOD, risk=options.risk, delta=options.delta)
    policy = rule.replace(classifier=classifier, views=preds.views.texts)
    drawn = np.sort(np.random.default_rng(options.seed).permutation(len(source))[: options.shift_images])
    with np.load(CIFAR10 / "test.npz") as stored:
        sample = open_source(stored["images"][drawn], labels=stored["labels"][drawn].astype(np.int64))
    shifted = collect_shifts(policy, classifier, sample, store=options.store)
    return Setting(policy, Stream.score(policy, preds), shifted)


def list_streams(
    classifier: Classifier, policy: Policy, options: argparse.Namespace
) -> Iterator[tuple[str, int, Stream]]:
    """Yield the scored stream for every corruption and strength, the unchanged images first."""
    kept = slice(options.calibration, options.calibration + options.stream)
    with np.load(CIFAR10 / "test.npz") as stored:
        images, labels = stored["images"][kept], stored["labels"][kept].astype(np.int64)
    jobs = [(name, strength) for name in CORRUPTIONS for strength in STRENGTHS]
    # Not forked: the model may have started threads and a GPU.
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as executor:
        corrupted = executor.map(partial(corrupt_images, images), *zip(*jobs, strict=True))
        for (name, strength), batch in zip([(CLEAN, 0), *jobs], _chain(images, corrupted), strict=True):
            preds = collect(
                classifier, batch, policy.views, labels=labels, store=options.store, execution=Execution(progress=False)
            )
            yield name, strength, Stream.score(policy, preds)


def _chain(first: Array, others: Iterator[Array]) -> Iterator[Array]:
    yield first
    yield from others


def summarize(rows: Sequence[Row]) -> Row:
    """Return mean absolute errors over all corruptions, and mean hits and widths."""
    summary: Row = {"corruption": SUMMARY, "strength": "all"}
    for name in rows[0]:
        values = [float(str(row[name])) for row in rows if name not in ("classifier", "corruption", "strength")]
        truth = name.partition(", ")[0]
        if name.startswith(("accuracy, ", "risk, ")):
            errors = [abs(value - float(str(row[truth]))) for value, row in zip(values, rows, strict=True)]
            summary[name] = float(np.nanmean(errors))
        elif values and not name.startswith("alarm,"):
            summary[name] = float(np.nanmean(values))
    summary["alarm, median"] = float(np.median([float(str(row["alarm, median"])) for row in rows]))
    return summary


def judge_classifier(options: argparse.Namespace) -> list[Row]:
    """Return a row for each corruption, and one with mean errors."""
    classifier = load_model(options)
    setting = prepare(classifier, options)
    rows: list[Row] = []
    for name, strength, stream in list_streams(classifier, setting.policy, options):
        row: Row = {"classifier": options.model.stem, "corruption": name, "strength": strength}
        row |= judge_estimates(setting, name, stream)
        row |= count_until_alarm(setting.policy, stream, options.repetitions)
        rows.append(row)
        print(
            f"{name:16} {strength}  accuracy {stream.accuracy:.3f}, estimated {row[f'accuracy, {LEARNED}']:.3f} "
            f"(atc {row['accuracy, atc mean']:.3f})  risk {stream.risk:.3f}, estimated {row[f'risk, {LEARNED}']:.3f}  "
            f"alarm after {row['alarm, median']:.0f} images",
            flush=True,
        )
    rows.append({"classifier": options.model.stem, **summarize(rows[1:])})
    names = ("calibration", "stream", "shift_images", "delta", "repetitions", "seed")
    settings = {"guaranteed_risk": options.risk, **{name: getattr(options, name) for name in names}}
    return [{**row, **settings} for row in rows]


def format_summary(rows: Sequence[Mapping[str, str]]) -> str:
    """Return the mean absolute errors in points, one line per classifier."""
    methods = (*BASELINES, NO_SHIFTS, LEARNED)
    lines = [
        f"| classifier | {' | '.join(methods)} | hits | risk, {NO_SHIFTS} | risk, {LEARNED} | hits |",
        f"|---|{'---|' * (len(methods) + 4)}",
    ]
    for row in rows:
        if row["corruption"] != SUMMARY:
            continue
        cells = [f"{100 * float(row[f'accuracy, {method}']):.1f}" for method in methods]
        cells += [f"{100 * float(row[f'accuracy hit, {LEARNED}']):.0f} %"]
        cells += [f"{100 * float(row[f'risk, {method}']):.1f}" for method in (NO_SHIFTS, LEARNED)]
        cells += [f"{100 * float(row[f'risk hit, {LEARNED}']):.0f} %"]
        lines.append(f"| {row['classifier']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Judge a classifier, print the table and write it."""
    parser = create_parser(__doc__)
    parser.add_argument("--model", type=Path, default=CIFAR10 / "resnet20.onnx", help="ONNX file of a classifier")
    parser.add_argument("--torch", action="store_true", help="run the model by torch, on GPUs if there are any")
    parser.add_argument("--mean", type=float, nargs=3, default=CIFAR10_MEAN, help="of its input (default: %(default)s)")
    parser.add_argument("--std", type=float, nargs=3, default=CIFAR10_STD, help="of its input (default: %(default)s)")
    parser.add_argument("--calibration", type=int, default=5000, help="images to calibrate on (default: %(default)s)")
    parser.add_argument("--stream", type=int, default=2000, help="images to corrupt (default: %(default)s)")
    parser.add_argument("--shift-images", type=int, default=500, help="images to learn from (default: %(default)s)")
    parser.add_argument("--risk", type=float, default=0.02)
    parser.add_argument("--delta", type=float, default=0.001)
    parser.add_argument("--repetitions", type=int, default=20, help="orders of each stream (default: %(default)s)")
    parser.add_argument("--store", type=Path, default=None, help="folder to keep predictions in")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if not CIFAR10.is_dir():
        print(f"skipped: {CIFAR10} does not exist")
        return
    path = options.out / "monitoring_estimates.csv"
    others: list[Row] = []
    if path.is_file():
        with path.open(newline="", encoding="utf-8") as file:
            others = [dict(row) for row in csv.DictReader(file) if row["classifier"] != options.model.stem]
    rows = judge_classifier(options)
    write_results(path, others + rows)
    print(format_summary([{name: str(value) for name, value in row.items()} for row in rows]))


if __name__ == "__main__":
    main()
