"""`check_setup`: compare readings of a classifier on a few hundred images, and report a clearly better one."""

import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from secondlook.arrays import Array, IntArray, is_whole_number
from secondlook.classifiers import Classifier, FunctionClassifier, Preprocessing, load_classifier
from secondlook.diagnosis.class_order import (
    MAX_LISTED,
    cross_fit_correct,
    describe_order,
    fit_best_order,
    is_guessing,
    list_in_order,
    propose_orders,
)
from secondlook.diagnosis.readings import Trial, describe_input, find_changes, format_changes, propose_readings, read_as
from secondlook.errors import ClassifierError
from secondlook.predictions import DEFAULT_EXECUTION, Execution, collect, read_first_image
from secondlook.progress import progress_bar
from secondlook.sources import SOURCES, ArraySource, Source
from secondlook.tables import format_table

DEFAULT_IMAGES = 256
IMAGES_AT_ONCE = 16
"""Number of images held at their original size."""
MAX_BYTES = 2**27
"""Memory limit for resized images; very large images are limited to a smaller number."""
FIRST_IMAGES = 32
"""Number of images for trying every reading; the most promising readings are tried on all images."""
MAX_PROMISING = 3
ROUNDS = 2
"""Number of settings that are changed in turn: normalization and color order may both be wrong."""
LOW_ACCURACY = 0.5
OVERCONFIDENCE = 0.05
"""An evaluation tries other readings if the accuracy is low, or below the confidence by more than this."""
EQUAL = 0.05
"""Smallest p-value at which two readings count as equally accurate."""
ANOTHER_ORDER = "another class order"
SUFFIX = f", {ANOTHER_ORDER}"
MIN_REORDERED_GAIN = 3
"""Gain over the given reading in correct images, each in its best class order, that makes a reading promising."""
CONFIDENCE_GAIN = 0.1
IMAGES_PER_CLASS = 4
"""Mean number of images per class needed to find a class order."""
MAX_CONTRAST_GAIN = 10.0
"""Pixels multiplied by more than this make most models more confident, even for wrong predictions."""


class SetupWarning(UserWarning):
    """Preprocessing, class order or outputs of a classifier probably differ from those in training."""

    START = "the setup looks wrong: "
    """The beginning of every warning of a check."""


@dataclass(frozen=True)
class Reading:
    """A way to convert images to the input of a model, and its outputs to classes, with the resulting accuracy."""

    name: str
    """The difference, for example 'ImageNet normalization'; 'as given' for the setup itself."""
    settings: dict[str, Any]
    """Arguments that differ from those given."""
    images: int
    """Number of images; unpromising readings are only tried on the first images."""
    accuracy: float | None
    """Share of correct predictions, or None without labels."""
    confidence: float
    """Mean of the largest probabilities."""
    p_value: float | None = None
    """P-value of the gain in accuracy, to compare with 0.01 divided by the number of comparisons; None if not
    tested."""
    class_order: tuple[int, ...] | None = None
    """The output of the classifier for each class of the data, if the order differs."""
    equally_good: tuple[str, ...] = ()
    """Names of other readings without a significant difference in accuracy."""


@dataclass(frozen=True)
class SetupCheck:
    """The result of `check_setup`; `print` shows a table and the verdict."""

    classifier: str
    data: str
    readings: tuple[Reading, ...]
    """The setup as given, then the other readings in the order of trials."""
    better: Reading | None
    """The reading that is clearly better, or None."""
    warnings: tuple[str, ...]
    """Probable mistakes, one sentence each; empty if the setup looks right."""
    verdict: str
    classified: int
    """Total number of classified images."""
    members: tuple["SetupCheck", ...] = ()
    """For an ensemble, the checks of its members; the other attributes then summarize them."""

    @property
    def looks_right(self) -> bool:
        """Whether nothing clearly better was found; always True without labels."""
        return not self.warnings

    def to_dict(self) -> dict[str, Any]:
        """Return the check as plain values for JSON."""
        return {**asdict(self), "looks_right": self.looks_right}

    def __str__(self) -> str:
        if self.members:
            return "\n\n".join(f"{member.classifier}\n{member}" for member in self.members)
        rows = [["reading", "images", "accuracy", "confidence", "p"], *map(_format_row, self.readings)]
        return f"{format_table(rows, numbers=True)}\n{self.verdict}"


def _format_row(reading: Reading) -> list[str]:
    return [
        reading.name,
        str(reading.images),
        "" if reading.accuracy is None else _format_share(reading.accuracy),
        _format_share(reading.confidence),
        "" if reading.p_value is None else "<0.0001" if reading.p_value < 0.0001 else f"{reading.p_value:.4f}",
    ]


def _format_share(share: float) -> str:
    return f"{100 * share:.1f} %"


def check_setup(
    classifier: object,
    data: Any,
    *,
    labels: Any = None,
    n_images: int = DEFAULT_IMAGES,
    quick: bool = False,
    execution: Execution = DEFAULT_EXECUTION,
) -> SetupCheck:
    """Check whether a classifier is used as it was trained: preprocessing, order of channels and order of classes.

    Other readings of the same classifier are tried on some of the images: the usual normalizations, RGB and BGR, ways
    to resize and crop, the other layout, other class orders. The check reports a reading with a clearly higher accuracy
    on the same images. Without labels, it can only compare confidences.

    Parameters
    ----------
    classifier
        A spec like 'onnx:model.onnx', a model, a function, or a list of these; members of an ensemble are checked one
        by one.
    data, labels
        Images as for `collect`, with labels if possible.
    n_images
        Number of images to use, spread evenly over the source and the same in every call.
    quick
        Whether to try other readings of labeled images only if the accuracy is low, or below the confidence.
    execution
        Where and how to classify, see `Execution`.
    """
    if not is_whole_number(n_images) or n_images < 1:
        expected = "is out of range; expected the number of images to use, at least 1"
        raise ClassifierError(expected, argument="n_images", value=n_images)
    loaded = load_classifier(classifier).on_device(execution.device)
    source = loaded.open_labeled(data, labels, execution.on_error)
    checks = [_check_member(member, source, n_images, quick, execution) for member in loaded.members or (loaded,)]
    if not loaded.members:
        return checks[0]
    return SetupCheck(
        classifier=loaded.name,
        data=source.spec,
        readings=tuple(reading for check in checks for reading in check.readings),
        better=next((check.better for check in checks if check.better is not None), None),
        warnings=tuple(dict.fromkeys(sentence for check in checks for sentence in check.warnings)),
        verdict=" ".join(dict.fromkeys(check.verdict for check in checks)),
        classified=sum(check.classified for check in checks),
        members=tuple(checks),
    )


def _check_member(
    classifier: Classifier, source: Source, n_images: int, quick: bool, execution: Execution
) -> SetupCheck:
    search = _Search(classifier, source, n_images, execution)
    is_labeled = len(search.labels) > 0
    best = search.find_better(quick) if is_labeled else search.find_more_confident()
    readings = tuple(search.make_reading(trial) for trial in search.trials)
    given, better = readings[0], None if best is None else search.make_reading(best)
    sentences = []
    if search.has_sigmoids:
        fault = f"all outputs of {classifier.name!r} lie in [0, 1], although they are declared as logits"
        reason = "the sigmoid outputs of a multi-label model are not class probabilities"
        repair = "if each image has exactly one class, export the model without the sigmoid"
        sentences.append(f"{SetupWarning.START}{fault}; {reason}: {repair}.")
    if better is not None and is_labeled:
        sentences.append(_describe_better(classifier, source, given, better))
    elif is_labeled and search.may_be_reordered():
        enough = IMAGES_PER_CLASS * search.given.probabilities.shape[1]
        seen = f"{_format_share(search.given.accuracy)} on {given.images} images is no better than guessing"
        reason = f"although the mean confidence is {_format_share(given.confidence)}"
        order = f"the labels may be in {ANOTHER_ORDER}, which about {enough:,} labeled images can show"
        sentences.append(f"{SetupWarning.START}accuracy {seen}, {reason}; {order}.")
    verdict = " ".join(sentence[0].upper() + sentence[1:] for sentence in sentences)
    return SetupCheck(
        classifier=classifier.name,
        data=source.spec,
        readings=readings,
        better=better if is_labeled else None,
        warnings=tuple(sentences),
        verdict=verdict or _describe_given(classifier, given, better, len(readings) - 1),
        classified=search.classified,
    )


class _Search:
    """The search for a better reading on a sample of at most `n_images` images, the same in every call.

    `trials` are the readings tried so far, the given one first, and `classified` counts the classified images.
    """

    def __init__(self, classifier: Classifier, source: Source, n_images: int, execution: Execution) -> None:
        largest = MAX_BYTES // read_first_image(classifier, source).nbytes
        self._classifier = classifier
        self._source = source.spread(min(n_images, max(IMAGES_AT_ONCE, largest)))
        self._execution = Execution(batch_size=execution.batch_size, progress=execution.progress)
        self._sizes: set[tuple[int, ...]] = set()
        self._fitted: dict[tuple[object, ...], Array] = {}
        preds = collect(classifier, self._source, "identity", execution=self._execution)
        # Rows that sum to 1 are rejected as logits, so these are sigmoid outputs.
        self.has_sigmoids = (
            preds.has_logits and len(preds) > 1 and bool(preds.logits.min() >= 0 and preds.logits.max() <= 1)
        )
        self.labels: IntArray = preds.labels if preds.has_labels else np.empty(0, dtype=np.int64)
        self.classified = len(preds)
        self._orders = propose_orders(preds.n_classes, source.class_names)
        self.given = Trial.create("as given", describe_input(classifier), preds.probabilities[:, 0], self.labels, None)
        self.trials = [self.given]

    def find_better(self, quick: bool) -> Trial | None:
        """Return the best clearly better reading; `quick` tries others only if the given one is suspicious."""
        best, accuracy = self.given, self.given.accuracy
        is_suspicious = accuracy < LOW_ACCURACY or self.given.confidence - accuracy > OVERCONFIDENCE
        if quick and not is_suspicious and self._choose(self.given, self._reorder(self.given), readings=1) is None:
            return None
        for _ in range(ROUNDS):
            found = self._try_readings(best)
            if found is None:
                break
            if found.complexity:  # list a reading in another class order only if it is better
                self.trials.append(found)
            best = found
        return None if best is self.given else best

    def may_be_reordered(self) -> bool:
        """Return whether confident predictions are as good as guesses, on too few images to find the class order."""
        given, n_images, n_classes = self.given, len(self.given), self.given.probabilities.shape[1]
        if not FIRST_IMAGES <= n_images < IMAGES_PER_CLASS * n_classes or given.confidence < LOW_ACCURACY:
            return False
        return is_guessing(round(given.accuracy * n_images), n_images, n_classes)

    def find_more_confident(self) -> Trial | None:
        """Return the reading with the highest confidence, if it is much higher without fewer predicted classes."""
        given = self.given
        trials = self._try_all(given, self._propose_readings(given.preprocessing), len(given))
        self.trials += trials
        # Confidences are only comparable for pixels of similar contrast, and without a collapse to fewer classes.
        contrast, diversity = MAX_CONTRAST_GAIN * given.contrast, 0.9 * given.diversity
        comparable = (trial for trial in trials if trial.contrast <= contrast and trial.diversity >= diversity)
        best = max(comparable, key=lambda trial: trial.confidence, default=given)
        return best if best.confidence >= given.confidence + CONFIDENCE_GAIN else None

    def make_reading(self, trial: Trial) -> Reading:
        is_labeled = len(trial.labels) > 0
        is_tested = trial is not self.given and is_labeled and len(trial) == len(self.given)
        return Reading(
            name=trial.name,
            settings=find_changes(trial.preprocessing, self.given.preprocessing),
            images=len(trial),
            accuracy=trial.accuracy if is_labeled else None,
            confidence=trial.confidence,
            p_value=trial.compute_p_value(self.given) if is_tested else None,
            class_order=None if trial.order is None else tuple(trial.order.tolist()),
            equally_good=trial.equally_good,
        )

    def _try_readings(self, given: Trial) -> Trial | None:
        """Return the best reading that differs from a given one in one respect, if it is clearly better."""
        tried = {trial.preprocessing for trial in self.trials}
        proposed = self._propose_readings(given.preprocessing)
        prefix = "" if given is self.given else f"{given.name}, "
        proposed = {f"{prefix}{name}": reading for name, reading in proposed.items() if reading not in tried}
        trials = self._try_all(given, proposed, FIRST_IMAGES)
        promising = {trial.name: trial.preprocessing for trial in self._find_promising(trials, given)}
        complete = {trial.name: trial for trial in self._try_all(given, promising, len(self.given))}
        self.trials += [complete.get(trial.name, trial) for trial in trials]
        reordered = [each for trial in (given, *complete.values()) for each in self._reorder(trial)]
        return self._choose(given, [*complete.values(), *reordered], readings=1 + len(proposed))

    def _propose_readings(self, given: Preprocessing) -> dict[str, Preprocessing]:
        self._fit([given])
        proposed = propose_readings(given, self._get_fitted(given).shape[3], self._sizes)
        self._fit(proposed.values())
        return proposed

    def _fit(self, preprocessings: Iterable[Preprocessing]) -> None:
        """Read, resize and crop the images for each new geometry, in one pass over the source."""
        geometries = {tuple(each.geometry.values()): each for each in preprocessings}
        parts: dict[tuple[object, ...], list[Array]] = {one: [] for one in geometries if one not in self._fitted}
        for batch in self._source.batches(IMAGES_AT_ONCE) if parts else ():
            self._sizes |= {image.shape[:2] for image in batch.images}
            for geometry, arrays in parts.items():
                arrays.append(geometries[geometry].fit(batch.images))
        self._fitted |= {geometry: np.concatenate(arrays) for geometry, arrays in parts.items()}

    def _get_fitted(self, preprocessing: Preprocessing) -> Array:
        return self._fitted[tuple(preprocessing.geometry.values())]

    def _try_all(self, given: Trial, readings: dict[str, Preprocessing], count: int) -> list[Trial]:
        """Classify the first `count` images under each reading; omit readings under which the model fails."""
        trials = []
        with progress_bar("other readings", len(readings), "readings", enabled=self._execution.progress) as advance:
            for name, reading in readings.items():
                probabilities = self._classify(reading, count)
                if probabilities is not None:
                    trials.append(Trial.create(name, reading, probabilities, self.labels, given.order))
                advance(1)
        return trials

    def _classify(self, preprocessing: Preprocessing, count: int) -> Array | None:
        """Return the probabilities of the first images, or None if the model fails. [count, C]"""
        images = ArraySource(self._get_fitted(preprocessing)[:count])
        self.classified += len(images)
        try:
            # A model may raise anything for an unsuitable input.
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                classifier = read_as(self._classifier, preprocessing)
                preds = collect(classifier, images, "identity", execution=replace(self._execution, progress=False))
        except Exception:  # noqa: BLE001
            return None
        return preds.probabilities[:, 0] if preds.n_classes == self.given.probabilities.shape[1] else None

    def _find_promising(self, trials: list[Trial], given: Trial) -> list[Trial]:
        """Return the trials with the lowest log loss, and the most accurate trial in its best class order."""
        probabilities = given.probabilities[:FIRST_IMAGES]
        first = Trial.create(given.name, given.preprocessing, probabilities, given.labels, given.order)
        lower = [trial for trial in trials if trial.log_loss < first.log_loss]
        promising = sorted(lower, key=lambda trial: trial.log_loss)[:MAX_PROMISING]
        needed = _count_reordered(first) + MIN_REORDERED_GAIN
        reordered = max(trials, key=_count_reordered, default=None)
        if reordered is not None and reordered not in promising and _count_reordered(reordered) >= needed:
            promising.append(reordered)
        return promising

    def _reorder(self, trial: Trial) -> list[Trial]:
        """Return a trial under other class orders, the simplest first."""
        labels, predicted = trial.labels, trial.predicted
        name = ANOTHER_ORDER if trial is self.given else f"{trial.name.removesuffix(SUFFIX)}{SUFFIX}"
        reordered = []
        for complexity, fit in enumerate(self._orders, start=1):
            order = fit(labels, predicted)
            if (order != range(len(order))).any():
                correct = cross_fit_correct(fit, labels, predicted)
                reordered.append(replace(trial, name=name, order=order, correct=correct, complexity=complexity))
        return reordered

    def _choose(self, given: Trial, candidates: list[Trial], readings: int) -> Trial | None:
        """Return the most accurate of the clearly better candidates, in the simplest class order.

        One half of the false-alarm probability is for the readings, and one half for all their class orders.
        """
        comparisons = (2 * readings, 2 * readings * len(self._orders))
        better = [trial for trial in candidates if trial.is_clearly_better(given, comparisons[trial.complexity > 0])]
        if not better:
            return None
        top = max(better, key=lambda trial: trial.accuracy)
        equal = [trial for trial in better if top.compute_p_value(trial) > EQUAL]
        simplest = [trial for trial in equal if trial.complexity == min(each.complexity for each in equal)]
        best = max(simplest, key=lambda trial: (trial.accuracy, -trial.log_loss))
        return replace(best, equally_good=tuple(trial.name for trial in simplest if trial is not best))


def _count_reordered(trial: Trial) -> int:
    """Return the number of correct predictions in the best class order."""
    order = fit_best_order(trial.labels, trial.predicted, trial.probabilities.shape[1])
    return int((order[trial.labels] == trial.predicted).sum())


def _describe_given(classifier: Classifier, given: Reading, better: Reading | None, others: int) -> str:
    """Return the verdict if nothing is clearly better; unlabeled images can give a hint."""
    count = f"none of {others} other readings" if others else "no other reading"
    if given.accuracy is not None:
        return f"Accuracy {_format_share(given.accuracy)} on {given.images} images; {count} is clearly better."
    start = f"Mean confidence {_format_share(given.confidence)} on {given.images} images"
    if better is None:
        return f"{start}, and {count} is much more confident; only labeled images can show whether the setup is right."
    other = f"{_describe_repair(classifier, better)} it would be {_format_share(better.confidence)}"
    hint = "which may be a sign of another preprocessing in training: check with labeled images."
    return f"{start} without labels; {other}, {hint}"


def _describe_better(classifier: Classifier, source: Source, given: Reading, better: Reading) -> str:
    causes = [_describe_repair(classifier, better)] if better.settings else []
    causes += [] if better.class_order is None else [f"in {ANOTHER_ORDER}"]
    sentence = (
        f"{SetupWarning.START}accuracy {_format_share(given.accuracy or 0)} on {given.images} images; "
        f"{' and '.join(causes)} it would be {_format_share(better.accuracy or 0)}"
    )
    if better.equally_good:
        *first, last = better.equally_good
        names = f"{', '.join(first)} and {last} are" if first else f"{last} is"
        sentence += f" ({names} about as good)"
    if better.class_order is not None:
        sentence += f": {_describe_class_order(better.class_order, source)}"
    return f"{sentence}."


def _describe_repair(classifier: Classifier, reading: Reading) -> str:
    is_function = isinstance(classifier, FunctionClassifier)
    start = "if the function normalized pixels of 0 to 255 with" if is_function else "with"
    return f"{start} {format_changes(reading.settings)}"


def _describe_class_order(order: tuple[int, ...], source: Source) -> str:
    names = source.class_names
    scheme = SOURCES.get(source.spec.partition(":")[0])  # specs of custom sources need not follow the grammar
    if scheme is not None and "classes" in scheme.options:
        listed = "list their names in the order of the classifier with ?classes=FILE, one per line"
        repair = f"rename the classes, or {listed}"
    else:
        array = list(order) if len(order) <= MAX_LISTED else "class_order"
        repair = f"number the labels in the order of the classifier, np.array({array})[labels]"
    return f"{describe_order(order, names)}; {repair}: {list_in_order(order, names)}"
