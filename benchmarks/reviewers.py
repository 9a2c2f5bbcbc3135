"""Audits and recertification with reviewers who err: false verdicts, and the number of labels.

Run: python benchmarks/reviewers.py [--streams 2000]

Labels are simulated one by one, by the rule of `LabelErrors.bound`: a prediction counts as wrong once `agreeing`
reviewers gave the same label that contradicts it. All labels are counted, also those of further reviewers.
"""

import contextlib
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, product
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from measurement import Row, create_parser, write_results
from monitoring import ALPHA, CORES, DESIGNS, PATTERNS, RISK, AuditedStream, summarize_counts, summarize_share
from secondlook.arrays import BoolArray, Float64Array, IntArray
from secondlook.errors import DecisionError
from secondlook.monitoring import recertify
from secondlook.monitoring.audit import LabelErrors, log_capital_above, log_capital_below
from secondlook.policies import AuditPlan, Policy, Reference, certify
from secondlook.predictions import Predictions

ERROR, CLASSES, PREDICTED, RATE = 0.03, 10, 0, 0.01
IMAGES, MORE_IMAGES = 100_000, 250_000
"""Accepted images of a stream to count false verdicts, and to count labels."""
CHECK_EVERY = 1000
"""Accepted images between two checks whether the guarantee holds."""


@dataclass(frozen=True)
class Protocol:
    """How reviewers err, how many of them are asked, and which error the test allows for."""

    reviewer_error: float = ERROR
    stated: float = ERROR
    """The bound that the test allows for."""
    agreeing: int = 1
    double_review: float = 0.0
    """Fraction of the images that two reviewers label in any case."""
    errors: str = "any class"
    """The class that an erring reviewer gives: "any class", "false" (always the same wrong class, and no errors about
    wrong predictions), or "missed" (the predicted class, and no errors about correct predictions)."""

    def review(self, wrong: BoolArray, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        """Return whether each prediction counts as wrong (1, 0, or -1 for not reviewed) and its number of labels."""
        labels = self.draw_labels(wrong, rng)
        is_double = rng.random(len(wrong)) < self.double_review
        return count_labels(labels, is_double, self.agreeing)

    def draw_labels(self, wrong: BoolArray, rng: np.random.Generator) -> IntArray:
        """Return the labels that four reviewers would give; the prediction is class 0. [n, 4]"""
        shape = (len(wrong), 4)
        truth = np.where(wrong, 1, PREDICTED)[:, None]
        errs = rng.random(shape) < self.reviewer_error
        given = (truth + rng.integers(1, CLASSES, shape)) % CLASSES
        if self.errors != "any class":
            errs &= wrong[:, None] == (self.errors == "missed")
            given = 1 - truth
        return np.where(errs, given, truth)


def count_labels(labels: IntArray, is_double: BoolArray, agreeing: int) -> tuple[IntArray, IntArray]:
    """Return which predictions count as wrong (1, 0, or -1 for not reviewed), and the number of labels used. [n, 4]"""
    needed = max(2, agreeing)
    found, used = np.full(len(labels), -1), np.zeros(len(labels), dtype=np.int64)
    is_open = np.ones(len(labels), dtype=np.bool_)
    for place in range(needed + 1):
        latest = labels[:, place]
        same = np.sum(labels[:, : place + 1] == latest[:, None], axis=1)
        is_settled = same >= np.where(latest == PREDICTED, 2, needed)
        if place == 0:
            is_settled = ~is_double & ((latest == PREDICTED) | (agreeing == 1))
        used += is_open
        found[is_open & is_settled] = (latest != PREDICTED)[is_open & is_settled]
        is_open &= ~is_settled
    return found, used


class Outcome(NamedTuple):
    """What became of a stream."""

    labels: int | None
    """Labels until the verdict; None without it."""
    most: int
    """Labels of the whole stream."""


@dataclass(frozen=True)
class Audits:
    """The audits of a stream."""

    images: int
    positions: IntArray
    probabilities: Float64Array
    wrong: BoolArray
    smallest: float

    @classmethod
    def draw(cls, design: str, error_rate: float, images: int, rng: np.random.Generator) -> "Audits":
        """Draw the audits of a stream with errors as calibrated."""
        plan = AuditPlan(None, 0.0, RATE)
        if design == "designed":
            confidence = rng.random(5000)
            known = rng.random(5000) < RISK * PATTERNS["as calibrated"](confidence)
            plan = AuditPlan(Reference.make(confidence, confidence, None, known), 0.0, RATE)
        stream = AuditedStream(design, RATE, "as calibrated", images, error_rate)
        audited, probability, wrong = stream.draw(rng, plan)
        places = np.flatnonzero(audited)
        return cls(images, places + 1, probability[places], wrong[places], plan.smallest)

    def find_broken(self, protocol: Protocol, rng: np.random.Generator) -> Outcome:
        """Return the number of labels until the guarantee was found broken."""
        found, used = protocol.review(self.wrong, rng)
        limit = LabelErrors.bound(protocol.stated, protocol.agreeing).raise_risk(RISK)
        capital = log_capital_above(self.positions, self.probabilities, found == 1, limit)
        reached = np.flatnonzero(capital >= -math.log(ALPHA))
        return Outcome(int(used[: reached[0] + 1].sum()) if len(reached) else None, int(used.sum()))

    def find_held(self, protocol: Protocol, rng: np.random.Generator) -> Outcome:
        """Return the number of labels until the guarantee was found to hold."""
        found, used = protocol.review(self.wrong, rng)
        limit = LabelErrors.bound(protocol.stated, protocol.agreeing).lower_risk(RISK)
        for accepted in range(CHECK_EVERY, self.images + 1, CHECK_EVERY):
            last = int(np.searchsorted(self.positions, accepted, side="right"))
            errors = self.probabilities[:last][found[:last] != PREDICTED]
            if log_capital_below(accepted, errors, self.smallest, limit) >= -math.log(ALPHA):
                return Outcome(int(used[:last].sum()), int(used.sum()))
        return Outcome(None, int(used.sum()))


PERFECT = Protocol(0.0, 0.0)
TODAY = Protocol(stated=0.0)
SINGLE = Protocol()
AT_RISK = (
    PERFECT,
    TODAY,
    SINGLE,
    Protocol(errors="false"),
    *(Protocol(agreeing=agreeing, double_review=share) for agreeing, share in product((2, 3), (0.0, 0.1))),
    *(Protocol(agreeing=one, double_review=share, errors="false") for one, share in product((2, 3), (0.0, 0.1, 1.0))),
)
BELOW_RISK = (PERFECT, TODAY, SINGLE, Protocol(agreeing=3))
POWER = (
    PERFECT,
    SINGLE,
    *(Protocol(agreeing=agreeing, double_review=share) for agreeing, share in product((2, 3), (0.0, 0.1))),
    *(Protocol(agreeing=3, errors=errors) for errors in ("false", "missed")),
)


def simulate(
    world: int, design: str, error_rate: float, protocols: Sequence[Protocol], streams: int, images: int, verdict: str
) -> list[list[Outcome]]:
    """Return the outcomes of each protocol in the same streams; the verdict is "broken" or "holds"."""
    outcomes: list[list[Outcome]] = [[] for _ in protocols]
    for seed in np.random.SeedSequence(0, spawn_key=(world,)).spawn(streams):
        rng, *others = map(np.random.default_rng, seed.spawn(1 + len(protocols)))
        audits = Audits.draw(design, error_rate, images, rng)
        judge = audits.find_broken if verdict == "broken" else audits.find_held
        for protocol, other, into in zip(protocols, others, outcomes, strict=True):
            into.append(judge(protocol, other))
    return outcomes


def describe(measured: str, design: str, error_rate: float, protocol: Protocol, streams: int, images: int) -> Row:
    """Return the columns that describe a simulation."""
    row: Row = {"seed": 0, "measured": measured, "design": design, "audit_rate": RATE, "risk": RISK}
    row |= {"error_rate": error_rate, "images": images, "streams": streams, "alpha": ALPHA}
    return row | asdict(protocol)


def count_false_verdicts(world: int, design: str, error_rate: float, streams: int) -> list[Row]:
    """Return how often the guarantee is called broken although the error rate is at most the guaranteed one."""
    protocols, rows = AT_RISK if error_rate == RISK else BELOW_RISK, []
    outcomes = simulate(world, design, error_rate, protocols, streams, IMAGES, "broken")
    for protocol, found in zip(protocols, outcomes, strict=True):
        row = describe("false broken", design, error_rate, protocol, streams, IMAGES)
        row |= summarize_share("alarms", sum(one.labels is not None for one in found), streams)
        rows.append(row | {"labels_per_audit": ratio([one.most for one in found], [one.most for one in outcomes[0]])})
    return rows


def ratio(values: Sequence[float], others: Sequence[float]) -> float:
    """Return the ratio of two means."""
    return round(float(np.mean(values) / np.mean(others)), 3)


def count_labels_until(world: int, verdict: str, design: str, factor: float, streams: int) -> list[Row]:
    """Return the labels until a verdict, as a ratio to perfect reviewers; no verdict counts as all labels."""
    rows = []
    outcomes = simulate(world, design, factor * RISK, POWER, streams, MORE_IMAGES, verdict)
    counts = [[one.most if one.labels is None else one.labels for one in found] for found in outcomes]
    for protocol, found, labels in zip(POWER, outcomes, counts, strict=True):
        row = describe(f"labels until {verdict}", design, factor * RISK, protocol, streams, MORE_IMAGES)
        row |= {"alarms": sum(one.labels is not None for one in found), **summarize_counts("labels_until", labels)}
        row["ratio_mean"] = ratio(labels, counts[0])
        rows.append(row | {"ratio_median": round(float(np.median(labels) / np.median(counts[0])), 3)})
    return rows


# --- Recertification ---

NEW_RISK, NEW_DELTA, NEW_IMAGES = 0.1, 0.05, 4000


def make_policy() -> Policy:
    """Return a policy whose threshold accepts all images of `count_false_certificates`."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 2000)
    logits = rng.normal(size=(2000, 2, 3)) + 1.5 * np.eye(3)[labels][:, None]
    preds = Predictions(logits=logits.astype(np.float32), labels=labels, views="identity hflip")
    return certify(preds, "msr", risk=NEW_RISK, delta=NEW_DELTA)


def count_false_certificates(world: int, error: float, planned_looks: int | None, streams: int) -> list[Row]:
    """Return how often a risk is certified that is exceeded a little, if reviewers miss errors.

    All images are accepted by every threshold, and reviewed.
    """
    policy, ids = make_policy(), [str(place) for place in range(NEW_IMAGES)]
    constant = {"label": 0, "confidence": 1.0, "first_look": 1.0, "disagreement": 0.0, "looks": 2, "accept": True}
    audit = {"audit": True, "audit_probability": 1.0}
    table = pa.Table.from_pylist([{"id": id_, **constant, **audit} for id_ in ids])
    false, rows = {0.0: 0, error: 0}, []
    for seed in np.random.SeedSequence(0, spawn_key=(world,)).spawn(streams):
        rng = np.random.default_rng(seed)
        wrong = (rng.random(NEW_IMAGES) < NEW_RISK + 1e-6) & (rng.random(NEW_IMAGES) >= error)
        labels = dict(zip(ids, wrong.astype(int).tolist(), strict=True))
        for stated in false:
            with contextlib.suppress(DecisionError):
                recertify(policy, [table], labels, planned_looks=planned_looks, reviewer_error=stated)
                false[stated] += 1
    for stated, hits in false.items():
        row: Row = {"seed": 0, "measured": "false certificates", "risk": NEW_RISK, "error_rate": NEW_RISK}
        row |= {"images": NEW_IMAGES, "streams": streams, "alpha": NEW_DELTA, "planned_looks": planned_looks or ""}
        row |= asdict(Protocol(error, stated, errors="missed"))
        rows.append(row | summarize_share("alarms", hits, streams))
    return rows


def list_jobs(streams: int) -> list[Callable[[], list[Row]]]:
    """Return the simulation of each world; its number is part of the random seed."""
    few = max(streams // 8, 1)
    powers = [*product(("broken",), DESIGNS, (2, 3, 5)), ("holds", "even", 0.3)]
    at_risk, certified = product(DESIGNS, (RISK, RISK / 2)), product((ERROR, 0.2), (None, 1))
    return [
        *(partial(count_false_verdicts, world, *one, streams) for world, one in enumerate(at_risk)),
        *(partial(count_labels_until, world, *one, few) for world, one in enumerate(powers, start=100)),
        *(partial(count_false_certificates, world, *one, few) for world, one in enumerate(certified, start=200)),
    ]


def run(job: Callable[[], list[Row]]) -> list[Row]:
    """Run a job, in a process of the pool."""
    return job()


def main() -> None:
    """Simulate all streams, print a line for each kind and write the table."""
    parser = create_parser(__doc__)
    parser.add_argument("--streams", type=int, default=2000, help="streams of each kind (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=CORES, help="processes (default: %(default)s)")
    options = parser.parse_args()
    rows = []
    with ProcessPoolExecutor(options.workers) as executor:
        for row in chain.from_iterable(executor.map(run, list_jobs(options.streams))):
            print(", ".join(f"{name} {value}" for name, value in row.items() if value != ""), flush=True)
            rows.append(row)
    write_results(options.out / "reviewers.csv", rows)


if __name__ == "__main__":
    main()
