"""`check_setup`: try other readings of a classifier on a few hundred images, and tell if one is clearly better."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from secondlook.arrays import Array, IntArray, is_whole_number
from secondlook.classifiers import Classifier, Preprocessing, load_classifier
from secondlook.diagnosis.class_order import cross_fit_correct, fit_best_order, propose_orders
from secondlook.diagnosis.readings import find_changes
from secondlook.diagnosis.setup_comparison import Outcome, compute_p_value, is_clearly_better
from secondlook.diagnosis.setup_result import Reading, SetupCheck
from secondlook.diagnosis.setup_sample import Sample
from secondlook.diagnosis.setup_wording import describe_better, describe_given, describe_hint, describe_sigmoids
from secondlook.errors import ClassifierError
from secondlook.predictions import BatchSize, ClassNamesWarning, Predictions
from secondlook.progress import progress_bar
from secondlook.sources import OnError, Source, open_labeled

DEFAULT_IMAGES = 256
FIRST_IMAGES = 32
"""Images that every reading is tried on; the most promising ones are tried on all."""

MAX_PROMISING = 3
ROUNDS = 2
"""How often one more setting is changed: normalization and color order may both be wrong."""

LOW_ACCURACY = 0.5
OVERCONFIDENCE = 0.05
"""At the start of an evaluation, other readings are tried where the accuracy is low or this much below confidence."""

EQUAL = 0.05
"""Smallest p value at which two readings count as equally accurate."""

ANOTHER_ORDER = "another class order"
SUFFIX = f", {ANOTHER_ORDER}"
MIN_REORDERED_GAIN = 3
"""Images more than the given reading, in the best class order, that make a reading promising."""

CONFIDENCE_GAIN = 0.1
MAX_CONTRAST_GAIN = 10.0
"""Pixels multiplied by more than this make most models more confident, also where they are wrong."""


def check_setup(
    classifier: object,
    data: Any,
    *,
    labels: Any = None,
    images: int = DEFAULT_IMAGES,
    batch_size: BatchSize = "auto",
    on_error: OnError | None = None,
    progress: bool = True,
    device: str = "auto",
) -> SetupCheck:
    """Check whether a classifier is used as it was trained: preprocessing, order of channels and order of classes.

    Other readings of the same classifier are tried on some of the images: the usual normalizations, RGB and BGR, ways
    to resize and crop, the other layout, other class orders. The check tells if one of them has a clearly higher
    accuracy on the same images. Without labels, it can compare confidences only.

    Parameters
    ----------
    classifier
        A spec such as 'onnx:model.onnx', a model, a function, or a list of these; members of an ensemble are checked
        one by one.
    data, labels
        Images as for `collect`, with labels if possible.
    images
        Number of images to use, spread evenly over the source, the same ones each time.
    batch_size, on_error
        Images per call of the classifier; "fail" or "skip" for an image that cannot be read.
    progress
        Whether to show progress bars.
    device
        Where to classify: "auto", "cpu", "cuda" (all GPUs) or "cuda:N", see `collect`.
    """
    if not is_whole_number(images) or images < 1:
        raise ClassifierError(f"images is {images!r}; expected the number of images to use, at least 1.")
    loaded = load_classifier(classifier).on_device(device)
    source = open_labeled(data, labels, loaded.class_names, on_error)
    checks = [
        _check_member(member, source, images, batch_size=batch_size, progress=progress)
        for member in loaded.members or (loaded,)
    ]
    return SetupCheck.join(loaded.name, checks) if loaded.members else checks[0]


def find_setup_warnings(classifier: Classifier, source: Source, *, batch_size: BatchSize = "auto") -> tuple[str, ...]:
    """Return what is probably wrong with a setup, after classifying 256 labeled images.

    Other readings are tried only where the accuracy is low, or below the confidence.
    """
    found: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ClassNamesWarning)  # the evaluation itself warns
        for member in classifier.members or (classifier,):
            check = _check_member(
                member, source, DEFAULT_IMAGES, batch_size=batch_size, progress=False, only_if_suspicious=True
            )
            found += check.warnings
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True)
class _Trial:
    """A reading that was tried, on all images or on the first ones."""

    name: str
    preprocessing: Preprocessing
    outcome: Outcome
    complexity: int = 0
    """Of equally good readings, that with the simpler class order is taken."""
    equally_good: tuple[str, ...] = ()


def _check_member(
    classifier: Classifier,
    source: Source,
    images: int,
    *,
    batch_size: BatchSize,
    progress: bool,
    only_if_suspicious: bool = False,
) -> SetupCheck:
    sample = Sample(classifier, source, images, batch_size=batch_size, progress=progress)
    search = _Search(sample, source.class_names, progress)
    better = search.find_more_confident() if sample.labels is None else search.find_better(only_if_suspicious)
    given, found = search.make_reading(search.given), None if better is None else search.make_reading(better)
    sentences = [describe_sigmoids(classifier)] if _are_sigmoids(sample.predictions) else []
    verdict = describe_given(given, len(search.trials) - 1)
    if found is not None and sample.labels is None:
        verdict = describe_hint(classifier, given, found)
    elif found is not None:
        sentences.append(describe_better(classifier, source, given, found))
    return SetupCheck(
        classifier=classifier.name,
        data=source.spec,
        readings=tuple(search.make_reading(trial) for trial in search.trials),
        better=found if sample.labels is not None else None,
        warnings=tuple(sentences),
        verdict=" ".join(sentence[0].upper() + sentence[1:] for sentence in sentences) or verdict,
        classified=sample.classified,
    )


class _Search:
    """The search for a better reading. `trials` are the readings that were tried, the given one first."""

    def __init__(self, sample: Sample, class_names: Sequence[str] | None, progress: bool) -> None:
        self._sample = sample
        self._progress = progress
        self._orders = propose_orders(sample.predictions.n_classes, class_names)
        self.given = _Trial("as given", sample.given, self._make_outcome(sample.predictions.probabilities[:, 0], None))
        self.trials = [self.given]

    def find_better(self, only_if_suspicious: bool) -> _Trial | None:
        """Return the best reading that is clearly more accurate than the given one."""
        if only_if_suspicious and not self._is_suspicious():
            return None
        best = self.given
        for _ in range(ROUNDS):
            found = self._try_readings(best)
            if found is None:
                break
            if found.complexity:  # a reading in another class order is listed only if it is better
                self.trials.append(found)
            best = found
        return None if best is self.given else best

    def _is_suspicious(self) -> bool:
        """Whether the accuracy is low, below the confidence, or clearly higher in another class order."""
        accuracy, confidence = self.given.outcome.accuracy or 0.0, self.given.outcome.confidence
        if accuracy < LOW_ACCURACY or confidence - accuracy > OVERCONFIDENCE:
            return True
        return self._choose(self.given, self._reorder(self.given), readings=1) is not None

    def find_more_confident(self) -> _Trial | None:
        """Return the reading with the highest confidence, if it is much higher and the classes are as diverse."""
        trials = self._try_all(self.given, self._sample.propose_readings(self.given.preprocessing), len(self._sample))
        self.trials += trials
        best = max((trial for trial in trials if self._is_comparable(trial)), key=_confidence, default=self.given)
        return best if _confidence(best) >= _confidence(self.given) + CONFIDENCE_GAIN else None

    def make_reading(self, trial: _Trial) -> Reading:
        """Return what is published about a trial."""
        outcome, order = trial.outcome, trial.outcome.order
        is_tested = trial is not self.given and outcome.labels is not None and len(outcome) == len(self.given.outcome)
        return Reading(
            name=trial.name,
            settings=find_changes(trial.preprocessing, self.given.preprocessing),
            images=len(outcome),
            accuracy=outcome.accuracy,
            confidence=outcome.confidence,
            p_value=compute_p_value(outcome, self.given.outcome) if is_tested else None,
            class_order=None if order is None else tuple(order.tolist()),
            equally_good=trial.equally_good,
        )

    def _try_readings(self, given: _Trial) -> _Trial | None:
        """Return the best reading that differs from a given one in one respect, if it is clearly better."""
        tried = {trial.preprocessing for trial in self.trials}
        proposed = self._sample.propose_readings(given.preprocessing)
        prefix = "" if given is self.given else f"{given.name}, "
        proposed = {f"{prefix}{name}": reading for name, reading in proposed.items() if reading not in tried}
        trials = self._try_all(given, proposed, FIRST_IMAGES)
        promising = {trial.name: trial.preprocessing for trial in self._find_promising(trials, given)}
        complete = {trial.name: trial for trial in self._try_all(given, promising, len(self._sample))}
        self.trials += [complete.get(trial.name, trial) for trial in trials]
        candidates = [
            *complete.values(),
            *(each for trial in (given, *complete.values()) for each in self._reorder(trial)),
        ]
        return self._choose(given, candidates, readings=1 + len(proposed))

    def _try_all(self, given: _Trial, readings: dict[str, Preprocessing], count: int) -> list[_Trial]:
        """Classify the first `count` images under each reading; readings under which the model fails are left out."""
        trials = []
        with progress_bar("other readings", len(readings), "readings", enabled=self._progress) as advance:
            for name, reading in readings.items():
                probabilities = self._sample.classify(reading, count)
                if probabilities is not None:
                    trials.append(_Trial(name, reading, self._make_outcome(probabilities, given.outcome.order)))
                advance(1)
        return trials

    def _make_outcome(self, probabilities: Array, order: IntArray | None) -> Outcome:
        labels = None if self._sample.labels is None else self._sample.labels[: len(probabilities)]
        return Outcome.create(probabilities, labels, order)

    def _find_promising(self, trials: list[_Trial], given: _Trial) -> list[_Trial]:
        """Return the trials with the lowest log loss, and that which is the most accurate in its best class order."""
        first = self._make_outcome(given.outcome.probabilities[:FIRST_IMAGES], given.outcome.order)
        lower = [trial for trial in trials if trial.outcome.log_loss < first.log_loss]
        promising = sorted(lower, key=lambda trial: trial.outcome.log_loss)[:MAX_PROMISING]
        needed = _count_reordered(first) + MIN_REORDERED_GAIN
        reordered = max(trials, key=lambda trial: _count_reordered(trial.outcome), default=None)
        if reordered is not None and reordered not in promising and _count_reordered(reordered.outcome) >= needed:
            promising.append(reordered)
        return promising

    def _reorder(self, trial: _Trial) -> list[_Trial]:
        """Return a trial under other class orders, the simplest first."""
        labels, predicted = trial.outcome.labels, trial.outcome.predicted
        assert labels is not None
        reordered = []
        for complexity, fit in enumerate(self._orders, start=1):
            order = fit(labels, predicted)
            if (order != range(len(order))).any():
                outcome = replace(trial.outcome, order=order, correct=cross_fit_correct(fit, labels, predicted))
                name = ANOTHER_ORDER if trial is self.given else f"{trial.name.removesuffix(SUFFIX)}{SUFFIX}"
                reordered.append(_Trial(name, trial.preprocessing, outcome, complexity))
        return reordered

    def _choose(self, given: _Trial, candidates: list[_Trial], readings: int) -> _Trial | None:
        """Return the most accurate of the candidates that are clearly better, in the simplest class order.

        Of the probability of a false alarm, one half is for the readings and one half for all their class orders.
        """
        comparisons = (2 * readings, 2 * readings * len(self._orders))
        better = [
            trial
            for trial in candidates
            if is_clearly_better(trial.outcome, given.outcome, comparisons[trial.complexity > 0])
        ]
        if not better:
            return None
        top = max(better, key=_accuracy)
        equal = [trial for trial in better if compute_p_value(top.outcome, trial.outcome) > EQUAL]
        simplest = [trial for trial in equal if trial.complexity == min(each.complexity for each in equal)]
        best = max(simplest, key=lambda trial: (_accuracy(trial), -trial.outcome.log_loss))
        return replace(best, equally_good=tuple(trial.name for trial in simplest if trial is not best))

    def _is_comparable(self, trial: _Trial) -> bool:
        """Whether confidences can be compared: pixels of a similar contrast, and no collapse to fewer classes."""
        contrast, before = (_contrast(each.preprocessing) for each in (trial, self.given))
        return contrast <= MAX_CONTRAST_GAIN * before and trial.outcome.diversity >= 0.9 * self.given.outcome.diversity


def _count_reordered(outcome: Outcome) -> int:
    """Return the number of correct predictions in the best class order."""
    assert outcome.labels is not None
    order = fit_best_order(outcome.labels, outcome.predicted, outcome.probabilities.shape[1])
    return int((order[outcome.labels] == outcome.predicted).sum())


def _accuracy(trial: _Trial) -> float:
    return trial.outcome.accuracy or 0.0


def _confidence(trial: _Trial) -> float:
    return trial.outcome.confidence


def _contrast(preprocessing: Preprocessing) -> float:
    return preprocessing.scale / min(preprocessing.std)


def _are_sigmoids(preds: Predictions) -> bool:
    """Whether the outputs of several images, declared as logits, all lie in [0, 1]; rows that sum to 1 are rejected."""
    return preds.has_logits and len(preds) > 1 and bool(preds.logits.min() >= 0 and preds.logits.max() <= 1)
