"""`LabelingPlan`: a guaranteed threshold from few labels, requested from the most confident image down.

docs/background/proofs.md has the proof. An image without a label counts as wrong. A threshold certified early therefore
remains certified once all labels are there, and labeling may stop at any time for any reason.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from secondlook.arrays import BoolArray, Float64Array, IntArray, is_whole_number
from secondlook.errors import ANY, DecisionError, Repair
from secondlook.estimators import compile_method, resolve_tuning, tuning_positions
from secondlook.policies.certification import score_candidates
from secondlook.policies.fixed_sequence import CountedImages, FixedSequence, count_without_errors, find_cut
from secondlook.policies.guarantee import DEFAULT_DELTA, Calibration, Guarantee
from secondlook.policies.policy import Policy
from secondlook.predictions import PredictFrom, Predictions

DEFAULT_LABELS = 3
"""Default number of labels, as a multiple of the number that is enough without errors."""
# Chosen on resnet20, wrn16-2-seed0, c100-plain and c100-smooth; the guarantee does not depend on these constants.
SIZE_RATIO = 1.1
"""Ratio of successive candidates for the number of images."""
ERROR_SCALES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Error rates, as multiples of those predicted by the probabilities; a plan averages over them."""
SMALLEST_FACTOR = 0.01


@dataclass(frozen=True)
class LabelingProgress:
    """Progress of a plan; `print` shows a sentence."""

    guarantee: Guarantee
    images: int
    """Number of images to choose the threshold on."""
    labels: int
    errors: int
    """Number of labels that differ from the prediction."""
    accepted: int
    """Number of images certified so far."""
    next_step: int | None
    """Labels needed to certify more if all are right; None if no labels within the plan certify more."""

    @property
    def finished(self) -> bool:
        """Whether labeling stops, since no labels within the plan certify more."""
        return self.next_step is None

    @property
    def coverage(self) -> float:
        """Fraction of the images certified so far."""
        return self.accepted / self.images

    @property
    def certified_text(self) -> str:
        """What is certified so far, as text."""
        risk = f"at most {100 * self.guarantee.risk:g} % errors ({100 * (1 - self.guarantee.delta):g} % confidence)"
        if not self.accepted:
            return f"nothing is certified {'' if self.finished else 'yet '}for {risk}"
        accepted = f"{self.accepted:,} of {self.images:,} images ({100 * self.coverage:.1f} %)"
        return f"certified: accept {accepted} with {risk}"

    def __str__(self) -> str:
        labels = f"{self.labels:,} labels, {self.errors:,} of them differ from the prediction"
        needed = "1 more label certifies" if self.next_step == 1 else f"{self.next_step or 0:,} more labels certify"
        following = "labeling is finished" if self.finished else f"{needed} more if right"
        return f"{labels}; {self.certified_text}; {following}"


class LabelingPlan:
    """Requests labels one by one, and computes their guarantee at any time.

    The guarantee is that of `certify`: it holds with probability 1 - `delta` over the draw of the images, for any
    number of labels. Labels are requested for the most confident images without one, until they cannot certify more.
    The plan depends only on its arguments, so the same arguments and labels resume it later.

    Parameters
    ----------
    preds
        Predictions for independent draws from the distribution of later images. Labels are not used.
    method, options
        The confidence and its options, as in `certify`; it must not need fitting to labels.
    risk, delta
        Largest error rate among accepted images, and failure probability of the guarantee.
    max_labels
        Largest number of labels; by default three times the number that is enough without errors. A subset of the
        images is drawn, since a given number of labels certifies most on a limited number of images.
    predict_from, top_k
        As in `certify`.
    duplicates
        Ids of images that are copies of others; only errors among them count.
    tuning
        Positions or a mask bool [N] of images that were used to choose views. They need no labels, and determine the
        size of the subset. By default, a quarter of the images, at most 1,000.
    seed
        Random seed of the subset.
    """

    def __init__(
        self,
        preds: Predictions,
        method: str | None = None,
        *,
        risk: float,
        delta: float = DEFAULT_DELTA,
        max_labels: int | None = None,
        predict_from: PredictFrom = "image",
        top_k: int = 1,
        duplicates: Collection[str] = (),
        tuning: object = None,
        seed: int = 0,
        **options: object,
    ) -> None:
        Guarantee.check("risk", risk)
        Guarantee.check("delta", delta)
        if max_labels is None:
            max_labels = DEFAULT_LABELS * count_without_errors(risk, delta)
        if not is_whole_number(max_labels) or max_labels < 1:
            fault = "is not a number of labels; expected a whole number of at least 1"
            raise DecisionError(fault, argument="max_labels", value=max_labels)
        needed = count_without_errors(risk, delta) + 1
        if min(max_labels, preds.n_images) < needed:
            wanted = {"max_labels": needed, "risk": ANY, "delta": ANY}
            repair = Repair("pass more images, {max_labels} or more, a larger {risk} or a larger {delta}", **wanted)
            few = f"{min(max_labels, preds.n_images):,} labels cannot guarantee at most {100 * risk:g} % errors"
            fault = (
                f"{few} ({100 * (1 - delta):g} % confidence), even if none is an error: at least {needed:,} are needed"
            )
            raise DecisionError(fault, repair=repair)
        self.guarantee, self.max_labels = Guarantee(risk=risk, delta=delta), int(max_labels)
        if tuning is None:  # if all images can be labeled, there is nothing to choose
            tuning = tuning_positions(preds.n_images) if preds.n_images > max_labels else ()
        apart = resolve_tuning(tuning, preds.n_images)
        (scored,) = score_candidates(
            *(preds, None, None, method, options, predict_from, top_k, apart, False), duplicates=duplicates
        )
        size = scored.preds.n_images
        if not len(apart):
            size = min(size, max_labels)
        elif size > max_labels:
            others = preds.select(images=apart)
            ranks = np.argsort(-scored.settings.confidence(others), kind="stable")
            # Probability that each prediction is wrong, estimated without labels.
            likely = compile_method("mean", {}, predict_from=predict_from, top_k=top_k).confidence(others)
            size = self._choose_size(1 - likely[ranks], size)
        drawn = np.random.default_rng(seed).permutation(scored.preds.n_images)[:size]
        drawn = drawn[np.argsort(-scored.confidence[drawn], kind="stable")]
        self._scored = scored.select(drawn)
        self._predicted = self._scored.preds.predicted(predict_from, top_k).reshape(len(drawn), -1)
        self._places = {id_: place for place, id_ in enumerate(self._scored.preds.ids)}
        self._others = frozenset(preds.ids) - self._places.keys()
        self.labels: dict[str, int | None] = {}
        """The labels added so far, by id."""

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the images to choose the threshold on, most confident first."""
        return self._scored.preds.ids

    @property
    def settings(self) -> Policy:
        """The policy without a threshold; it accepts nothing."""
        return self._scored.settings

    def add(self, labels: Mapping[str, int | None]) -> None:
        """Add labels by id: the index of the class, or None for an image of no class, which counts as wrong.

        A label replaces an earlier one of the same image. Labels of images that the plan did not draw are ignored.
        """
        for id_, label in labels.items():
            if id_ not in self._places and id_ not in self._others:
                raise DecisionError(f"there is a label for image {id_!r}, which is not among the predictions.")
            if label is not None and not (is_whole_number(label) and 0 <= label < self._scored.preds.n_classes):
                fault = f"the label of image {id_!r} is {label!r}; expected a class from 0 to"
                raise DecisionError(f"{fault} {self._scored.preds.n_classes - 1}, or None.")
        self.labels |= {id_: label for id_, label in labels.items() if id_ in self._places}

    def next_ids(self, count: int = 10) -> tuple[str, ...]:
        """Return the ids of up to `count` images to label next, most confident first; none if labeling is finished."""
        if self.progress.finished:
            return ()
        count = min(count, self.max_labels - len(self.labels))
        return tuple([id_ for id_ in self.ids if id_ not in self.labels][:count])

    @property
    def progress(self) -> LabelingProgress:
        """Progress of labeling, and what is certified so far."""
        is_labeled, is_wrong = self._read_labels()
        certified = self._find_certified(~is_labeled | is_wrong)
        accepted = int(certified.max(initial=0))
        # The first number certified if all images without a label are right.
        more = self._find_certified(is_wrong)
        more = more[more > accepted]
        needed = int(np.sum(~is_labeled[: more[0]])) if len(more) else self.max_labels + 1
        is_within = needed <= self.max_labels - len(self.labels)
        return LabelingProgress(
            guarantee=self.guarantee,
            images=len(is_labeled),
            labels=len(self.labels),
            errors=int(is_wrong.sum()),
            accepted=accepted,
            next_step=needed if is_within else None,
        )

    @property
    def policy(self) -> Policy:
        """The policy that the labels certify so far; raises an error if they certify nothing."""
        progress, (is_labeled, is_wrong) = self.progress, self._read_labels()
        if not progress.accepted:
            raise DecisionError(f"no threshold is certified yet: {progress}", repair="add more labels")
        images = self._count(~is_labeled | is_wrong)
        threshold, errors = find_cut(images.ranking, progress.accepted)
        n_counted, accepted = images.ranking.n_images, progress.accepted
        copies, labels = images.n_images - n_counted, progress.labels
        calibration = Calibration(images=n_counted, accepted=accepted, errors=errors, duplicates=copies, labels=labels)
        chosen = Policy(threshold=threshold, guarantee=self.guarantee, calibration=calibration)
        policy = self._scored.complete(chosen, self.guarantee.delta)
        return policy.model_copy(update={"reference": self._scored.describe_reference(threshold)})

    def __str__(self) -> str:
        return str(self.progress)

    def _read_labels(self) -> tuple[BoolArray, BoolArray]:
        """Return which images have a label, and which labels are errors. bool [n] each"""
        is_labeled, is_wrong = np.zeros((2, len(self._places)), dtype=np.bool_)
        places = np.array([self._places[id_] for id_ in self.labels], dtype=np.int64)
        labels = np.array([-1 if label is None else label for label in self.labels.values()], dtype=np.int64)
        is_labeled[places] = True
        is_wrong[places] = (self._predicted[places] != labels[:, None]).all(axis=1)
        return is_labeled, is_wrong

    def _count(self, is_wrong: BoolArray) -> CountedImages:
        return CountedImages.count(~is_wrong, self._scored.confidence, self._scored.is_copy)

    def _find_certified(self, is_wrong: BoolArray) -> IntArray:
        """Return all certified numbers of most confident images for these errors, ascending. bool [n]"""
        return _find_certified(self._count(is_wrong), self.guarantee)

    def _choose_size(self, doubt: Float64Array, n_images: int) -> int:
        """Return the number of images of which the planned labels are expected to certify most, from tuning images.

        `doubt` is the error probability of the tuning images, most confident first, float64 [T]. The images that the
        threshold is chosen on must not choose their own number.
        """
        sizes = [n_images]
        while sizes[-1] > self.max_labels:
            sizes.append(int(sizes[-1] / SIZE_RATIO))
        factor = 1.0
        while factor > SMALLEST_FACTOR:  # some classifiers are strongly underconfident
            scales = [factor * scale for scale in ERROR_SCALES]
            coverages = [np.mean([self._forecast(scale * doubt, size) for scale in scales]) for size in sizes]
            if any(coverages):
                return sizes[int(np.argmax(coverages))]
            factor /= 2
        return sizes[-1]

    def _forecast(self, doubt: Float64Array, size: int) -> float:
        """Return the coverage that the planned labels certify among `size` images with the error rates of `doubt`."""
        at_rank = doubt[((np.arange(size) + 0.5) * len(doubt) / size).astype(np.int64)]
        images = CountedImages.count(~_place_errors(at_rank), -np.arange(size))
        certified = _find_certified(images, self.guarantee)
        return float(certified[certified <= self.max_labels].max(initial=0)) / size


def _place_errors(expected: Float64Array) -> BoolArray:
    """Place errors at regular intervals of their cumulative expected number. float64 [n] -> bool [n]"""
    return np.diff(np.floor(np.cumsum(expected) + 0.5), prepend=0.0) > 0


def _find_certified(images: CountedImages, guarantee: Guarantee) -> IntArray:
    ties, _ = FixedSequence.plan(images, guarantee.risk, guarantee.delta).find_certified(guarantee.delta)
    accepted: IntArray = images.ranking.accepted[ties]
    return accepted
