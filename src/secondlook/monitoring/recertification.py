"""`recertify`: a new guarantee from reviewed images, weighted by their sampling probabilities.

For each of several thresholds fixed before the stream, bets that the error rate among accepted images is below the risk
give a p-value. The thresholds are tested in a fixed sequence. Proof: docs/background/monitoring-proofs.md.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from secondlook import __version__
from secondlook.arrays import BoolArray, Float64Array, is_whole_number
from secondlook.decisions import Answer
from secondlook.errors import ANY, DecisionError, MonitoringError, Repair
from secondlook.file_systems import is_url
from secondlook.monitoring.audit import MOST_AGREEING, LabelErrors, log_capital_below
from secondlook.monitoring.scores import Labels, ScoreRows, collect_labels, find_class, list_score_files
from secondlook.policies import Calibration, Guarantee, Ledger, Policy, Reference
from secondlook.predictions import DEFAULT_EXECUTION, Execution
from secondlook.progress import progress_bar

START_RATIO = 2
MAX_STARTS = 6
"""The tests start at the present threshold, and at those with 1 / START_RATIO ** k of its coverage, k >= 1."""


@dataclass(frozen=True)
class Recertification:
    """A new policy, compared with the previous one; `str` is a summary."""

    before: Policy
    policy: Policy
    coverage_before: float
    """Fraction of the new images that the previous policy accepted."""
    reviewed: int
    """Reviewed images, without 'cannot tell'."""
    none_of_these: int
    """Reviewed images of none of the classes."""
    accepted_before: int
    """Reviewed images of none of the classes that the previous policy accepted."""
    accepted_now: int
    """The same for the new policy."""

    def __str__(self) -> str:
        old, new = self.before.threshold, self.policy.threshold
        change = "unchanged" if old == new else "higher" if new > old else "lower"
        coverage = f"{100 * self.coverage_before:.4g} % before, {100 * self.policy.coverage:.4g} % now"
        accepted = f"{self.accepted_before:,} accepted before, {self.accepted_now:,} now"
        return (
            f"threshold: {old:.6g} before, {new:.6g} now ({change})\ncoverage of these images: {coverage}\n"
            f"guarantee before: {self.before.guarantee_text}\nguarantee now: {self.policy.guarantee_text}\n"
            f"reviewed: {self.reviewed:,} images, {self.none_of_these:,} of none of the classes ({accepted})"
        )

    def to_dict(self) -> dict[str, object]:
        """Return the change as JSON values."""
        changes = {
            "threshold": (self.before.threshold, self.policy.threshold),
            "coverage": (self.coverage_before, self.policy.coverage),
            "guarantee": (self.before.guarantee_text, self.policy.guarantee_text),
            "accepted_none_of_these": (self.accepted_before, self.accepted_now),
        }
        compared = {name: {"before": before, "now": now} for name, (before, now) in changes.items()}
        return {**compared, "reviewed": self.reviewed, "none_of_these": self.none_of_these}


def recertify(
    policy: Policy,
    scores: str | Path | Sequence[object],
    labels: Labels,
    *,
    risk: float | None = None,
    delta: float | None = None,
    planned_looks: int | None = None,
    reviewer_error: float = 0.0,
    data: str = "",
    ledger: str | Path | None = None,
    execution: Execution = DEFAULT_EXECUTION,
) -> Recertification:
    """Return a new policy from reviewed images, for any distribution of the new images.

    The guarantee holds with probability 1 - `delta` over the draw of the images and of the audits. You may repeat the
    call with the same risk and delta while the stream and its labels grow. Another risk or delta is another
    calibration on the same images: a ledger records them and warns about their joint failure probability.

    Parameters
    ----------
    policy
        The policy that the images were scored with.
    scores
        Scores of all images of the stream in their order: Parquet files (paths, patterns such as 'scores/*.parquet',
        folders or URLs of parts), or tables as for `Monitor.update`.
    labels
        The class index or name of each reviewed image by its id, or 'none of these', 'bad image' (both count as errors)
        or 'cannot tell' (not reviewed); or the path of a CSV file with the columns id and label. Labels of accepted
        images outside the audits are ignored, since how they were sampled is unknown.
    risk, delta
        Largest error rate among accepted images, and failure probability; by default those of the policy.
    planned_looks
        Number of calls on the stream, if number and times are fixed before any label is known. Each call is an exact
        binomial test with an equal share of `delta`, and takes a third to half fewer labels than bets. All accepted
        images need the same audit probability, such as 1. By default, bets, which are valid for any number of calls.
    reviewer_error
        Largest probability that a reviewer gives a wrong label. The guarantee is valid up to it, and takes more labels.
    ledger
        The file that records calibrations on the stream; by default '_calibrations.json' in the folder of the first
        score file. Without it, calibrations from tables or URLs are not recorded.
    data, execution
        The spec of the images, for the record; and whether to show a progress bar.
    """
    guarantee = _choose_guarantee(policy, risk, delta)
    if planned_looks is not None and (not is_whole_number(planned_looks) or planned_looks < 1):
        fault = "is invalid; expected a whole number of at least 1"
        raise DecisionError(fault, argument="planned_looks", value=planned_looks)
    limit = LabelErrors.bound(reviewer_error, MOST_AGREEING).lower_risk(guarantee.risk)
    tables, place = _read_tables(scores, execution)
    ledger = place if ledger is None else Path(ledger)
    stream = _read_stream(policy, tables, labels)
    rows, errors = stream.rows, stream.is_reviewed & stream.is_wrong
    thresholds, starts = list_thresholds(policy)
    compute_p_value = stream.compute_p_value if planned_looks is None else stream.compute_exact_p_value
    p_values = np.array([compute_p_value(threshold, limit) for threshold in thresholds])
    share = guarantee.delta / (planned_looks or 1)
    passing = find_last_passing(p_values, starts, share)
    content = "\n".join(f"{id_},{int(wrong)}" for id_, wrong in zip(rows.ids, stream.is_wrong, strict=True))
    digest = hashlib.sha256(content.encode(errors="surrogatepass")).hexdigest()
    joint_delta = None
    if ledger is not None:
        # Also if nothing passes: a retry counts as another test.
        joint_delta = Ledger.record(
            ledger,
            "calibrate on images that are reviewed from now on",
            planned=0.0 if planned_looks is None else guarantee.delta,
            images=policy.checksum,
            predictions="",
            # All bets on a growing stream are one calibration; each planned look is a separate one.
            selection=hashlib.sha256(rows.ids[0].encode(errors="surrogatepass")).hexdigest()
            if planned_looks is None
            else digest,
            views=policy.views,
            methods=(policy.method,),
            options=policy.options,
            predict_from=policy.predict_from,
            top_k=policy.top_k,
            risk=guarantee.risk,
            delta=share,
        )
    if passing is None:
        raise DecisionError(_describe_shortfall(stream, [thresholds[place] for place in starts], guarantee, limit))
    above = stream.is_above(thresholds[passing])
    calibration = Calibration(
        images=len(rows),
        accepted=int(above.sum()),
        reviewed=int(np.sum(above & stream.is_reviewed)),
        reviewer_error=reviewer_error,
        estimated_risk=min(1.0, float(np.sum(1 / stream.probability[above & errors]) / max(1, above.sum()))),
        joint_delta=joint_delta,
        data=data,
        digest=digest,
    )
    # The new reference, with errors estimated from the reviewed images.
    disagreement = None if np.isnan(rows.disagreement).any() or policy.schedule else rows.disagreement
    weights = np.where(errors, 1 / stream.probability, 0.0)
    familiarity = None if policy.familiarity is None else rows.familiarity
    changes: dict[str, Any] = {
        "made": "",
        "secondlook": __version__,
        "threshold": thresholds[passing],
        "guarantee": guarantee,
        "average_risk": None,
        "costs": None,
        "calibration": calibration,
        "compared": (),
        "unknown": None,
        "reference": Reference.make(rows.confidence, rows.first_look, disagreement, weights, familiarity),
        "shifts": None,
    }
    return Recertification(
        before=policy,
        policy=policy.model_copy(update=changes),
        coverage_before=float(rows.accept.mean()),
        reviewed=int(stream.is_reviewed.sum()),
        none_of_these=int(stream.is_unknown.sum()),
        accepted_before=int(np.sum(stream.is_unknown & rows.accept)),
        accepted_now=int(np.sum(stream.is_unknown & above)),
    )


def _choose_guarantee(policy: Policy, risk: float | None, delta: float | None) -> Guarantee:
    if policy.groups:
        fault = "the policy has a threshold for each class, but audits cover all classes together"
        raise DecisionError(fault, repair="calibrate on labeled images of each class")
    wanted: dict[Literal["risk", "delta"], Any] = {"risk": risk, "delta": delta}
    for name, given in wanted.items():
        value = wanted[name] = getattr(policy.guarantee, name, None) if given is None else given
        if value is None:
            repair = Repair(f"pass {{{name}}}", **{name: ANY})
            raise DecisionError(f"the policy has no guarantee, so {name} is unknown", repair=repair)
        Guarantee.check(name, value)
    return Guarantee(**wanted)


def _read_tables(scores: str | Path | Sequence[object], execution: Execution) -> tuple[Sequence[object], Path | None]:
    """Return the tables, and the path of the ledger next to the first score file; None for tables and URLs."""
    given = [scores] if isinstance(scores, str | Path) else scores
    paths = [one for one in given if isinstance(one, str | Path)]
    if len(paths) < len(given):
        return given, None
    tables, files = [], list_score_files(paths)
    with progress_bar("scores", len(files), "files", enabled=execution.progress) as advance:
        for file in files:
            tables.append(file.parse(file.read()))
            advance(1)
    is_local = len(files) > 0 and not is_url(files[0].name)
    return tables, Path(files[0].name).with_name(Ledger.OF_SCORES) if is_local else None


class _Stream(NamedTuple):
    """All images of a stream and their reviews, as arrays [n]."""

    rows: ScoreRows
    is_due: BoolArray
    """Whether the image needs a review: rejected, or audited."""
    probability: Float64Array
    """Probability of being reviewed."""
    is_reviewed: BoolArray
    is_unknown: BoolArray
    """Whether the image was reviewed and shows none of the classes."""
    is_wrong: BoolArray
    """Whether a due image has a wrong prediction, or no review."""
    smallest: float
    """Smallest probability that an image can have."""
    is_familiar: BoolArray | None
    """Whether the image is familiar enough to be accepted; None if the policy has no limit for it."""

    def is_above(self, threshold: float) -> BoolArray:
        """Return whether a threshold accepts each image; unfamiliar images are rejected. bool [n]"""
        reaches: BoolArray = self.rows.confidence >= threshold
        return reaches if self.is_familiar is None else reaches & self.is_familiar

    def compute_p_value(self, threshold: float, risk: float) -> float:
        """Return the p-value of an error rate of at least `risk` among the images that a threshold accepts."""
        above = self.is_above(threshold)
        errors = self.probability[above & self.is_wrong]
        return math.exp(-max(0.0, log_capital_below(int(above.sum()), errors, self.smallest, risk)))

    def compute_exact_p_value(self, threshold: float, risk: float) -> float:
        """Return the same by an exact binomial test; 1 if the accepted images have several probabilities."""
        from scipy.special import bdtr

        above = self.is_above(threshold)
        probabilities = np.unique(self.probability[above])
        if len(probabilities) > 1 and self.rows.accept[above].all():
            fault = "exact tests need the same probability of an audit for all accepted images; got"
            fault += f" {probabilities[0]:.3g} to {probabilities[-1]:.3g}"
            repair = Repair("review all of them, or omit {planned_looks}", planned_looks=ANY)
            raise MonitoringError(fault, repair=repair)
        if len(probabilities) != 1:
            return 1.0
        found = int(np.sum(above & self.is_wrong))
        return float(bdtr(float(found), int(above.sum()), float(probabilities[0]) * risk))


def _read_stream(policy: Policy, tables: Sequence[object], labels: Labels) -> _Stream:
    parts = [ScoreRows.read(table, policy) for table in tables]
    if not any(map(len, parts)):
        raise MonitoringError("the scores contain no images; pass the scores of reviewed images.")
    rows = ScoreRows.join(parts)
    known = {id_: place for place, id_ in enumerate(rows.ids)}
    if len(known) < len(rows):
        raise MonitoringError("some images are in several tables of scores; pass each table once.")
    probability = np.where(rows.accept, rows.audit_probability, 1.0)
    for place in np.flatnonzero(np.isnan(probability)):
        fault = f"accepted image {rows.ids[place]!r} has no audit probability"
        raise MonitoringError(fault, repair=Repair("score with {audit}", of="score", audit=ANY))
    is_reviewed, is_unknown, is_right = np.zeros((3, len(rows)), dtype=np.bool_)
    for id_, label in collect_labels(labels).items():
        if id_ not in known:
            raise MonitoringError(f"the scores do not contain the labeled image {id_!r}; pass all scores.")
        row, found = known[id_], find_class(label, policy.class_names, id_)
        is_reviewed[row], is_unknown[row] = found != Answer.CANNOT_TELL, found == Answer.NONE_OF_THESE
        is_right[row] = found in rows.predicted[row]
    is_due = ~rows.accept | rows.audit
    smallest = 1.0 if rows.smallest_probability is None else rows.smallest_probability
    is_familiar = policy.is_familiar(rows.familiarity)
    reviews = (is_reviewed & is_due, is_unknown & is_due, is_due & ~is_right)
    return _Stream(rows, is_due, probability, *reviews, smallest, is_familiar)


def list_thresholds(policy: Policy) -> tuple[list[float], list[int]]:
    """Return the thresholds to test, in descending order, and the indices at which the tests start.

    They do not depend on the new images: the present threshold and, without a schedule, the edges of the reference.
    """
    if policy.schedule is not None or policy.reference is None:
        return [policy.threshold], [0]
    histogram = policy.reference.confidence
    thresholds = sorted({policy.threshold, *histogram.edges}, reverse=True)
    present = thresholds.index(policy.threshold)
    above = np.cumsum(histogram.counts[::-1])[::-1]
    accepted = above[np.minimum(histogram.find_bins(np.array(thresholds)), len(above) - 1)]
    wanted = accepted[present] / np.power(float(START_RATIO), np.arange(MAX_STARTS))
    starts = {present, *np.minimum(np.searchsorted(accepted, wanted), present).tolist()}
    return thresholds, sorted(starts if len(thresholds) > 1 else {present})


def find_last_passing(p_values: Float64Array, starts: Sequence[int], delta: float) -> int | None:
    """Return the index of the last test that passes, None if none does. float64 [n]

    The starts share `delta` equally. Each sequence stops at its first failure; one that reaches the next start passes
    its share on.
    """
    share, level, last = delta / len(starts), 0.0, None
    for start, end in zip(starts, [*starts[1:], len(p_values)], strict=True):
        level += share
        failures = np.flatnonzero(p_values[start:end] > level)
        passed = start + int(failures[0]) if len(failures) else end
        last = passed - 1 if passed > start else last
        level = 0.0 if len(failures) else level
    return last


def _describe_shortfall(stream: _Stream, starts: Sequence[float], guarantee: Guarantee, limit: float) -> str:
    """Return the message that no test at `limit` passed, with the number of reviews needed at the closest start."""
    prospects = []
    for threshold in starts:
        above = stream.is_above(threshold)
        reviewed = above & stream.is_reviewed
        labels, wrong = int(reviewed.sum()), reviewed & stream.is_wrong
        accepted = int(np.sum(above & (stream.is_reviewed | ~stream.is_due)))
        # Labels that certify the threshold if the error rate stays the same.
        capital = log_capital_below(accepted, stream.probability[wrong], stream.smallest, limit)
        level = math.log(len(starts) / guarantee.delta)
        needed = math.ceil(labels * level / capital) if capital > 0 and labels else math.inf
        prospects.append((needed, labels, int(wrong.sum())))
    needed, labels, errors = min(prospects, key=lambda one: one[0])
    pending = int(np.sum(stream.is_due & ~stream.is_reviewed & stream.rows.accept))
    waiting = f"; {pending:,} audits are not reviewed yet, and count as wrong" if pending else ""
    repair = "more reviews would not help at this error rate: improve the classifier, or allow a larger risk or delta"
    if needed < math.inf:
        repair = f"it needs roughly {needed:,} reviews of accepted images if the error rate stays the same"
    return (
        f"no threshold guarantees {guarantee}; at the closest one, {errors:,} of {labels:,} reviewed images are wrong"
        f"{waiting}; {repair}."
    )
