"""The sentences of a check: what is probably wrong, and the arguments that repair it."""

from collections.abc import Sequence

from secondlook.classifiers import Classifier, FunctionClassifier
from secondlook.diagnosis.class_order import MAX_LISTED, describe_order, list_in_order
from secondlook.diagnosis.readings import format_changes
from secondlook.diagnosis.setup_result import LOOKS_WRONG, Reading, format_share
from secondlook.sources import SOURCES, Source


def describe_given(given: Reading, others: int) -> str:
    """Return the verdict on a setup that nothing is clearly better than."""
    count = f"none of {others} other readings" if others else "no other reading"
    if given.accuracy is None:
        return (
            f"Mean confidence {format_share(given.confidence)} on {given.images} images, and {count} is much more "
            "confident; only labeled images can tell whether the setup is right."
        )
    return f"Accuracy {format_share(given.accuracy)} on {given.images} images; {count} is clearly better."


def describe_hint(classifier: Classifier, given: Reading, better: Reading) -> str:
    """Return the verdict on unlabeled images for which another reading is more confident."""
    return (
        f"Mean confidence {format_share(given.confidence)} on {given.images} images without labels; "
        f"{_describe_repair(classifier, better)} it would be {format_share(better.confidence)}, which may be a sign of "
        "another preprocessing in training: check with labeled images."
    )


def describe_better(classifier: Classifier, source: Source, given: Reading, better: Reading) -> str:
    """Return the warning that another reading is clearly more accurate."""
    causes = []
    if better.settings:
        causes.append(_describe_repair(classifier, better))
    if better.class_order is not None:
        causes.append("in another class order")
    sentence = (
        f"{LOOKS_WRONG}accuracy {format_share(given.accuracy or 0)} on {given.images} images; {' and '.join(causes)} "
        f"it would be {format_share(better.accuracy or 0)}"
    )
    if better.equally_good:
        sentence += f" ({_join(better.equally_good)} {'is' if len(better.equally_good) == 1 else 'are'} about as good)"
    if better.class_order is not None:
        sentence += f": {_describe_class_order(better.class_order, source)}"
    return f"{sentence}."


def describe_sigmoids(classifier: Classifier) -> str:
    """Return the warning that outputs declared as logits look like those of a multi-label model."""
    return (
        f"{LOOKS_WRONG}all outputs of {classifier.name!r} lie in [0, 1], although output='logits'; the sigmoid outputs "
        "of a multi-label model are not class probabilities: if each image has exactly one class, export the model "
        "without the sigmoid."
    )


def _join(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _describe_repair(classifier: Classifier, reading: Reading) -> str:
    changes = format_changes(reading.settings)
    if isinstance(classifier, FunctionClassifier):
        return f"if the function normalized pixels of 0 to 255 with {changes}"
    return f"with {changes}"


def _describe_class_order(order: tuple[int, ...], source: Source) -> str:
    names = source.class_names
    scheme = SOURCES.get(source.spec.partition(":")[0])  # specs of custom sources need not follow the grammar
    difference = describe_order(order, names)
    if scheme is not None and "classes" in scheme.options:
        return (
            f"{difference}; rename the classes, or list their names in the order of the classifier with ?classes=FILE, "
            f"one per line: {list_in_order(order, names)}"
        )
    array = f"np.array({list(order)})[labels]" if len(order) <= MAX_LISTED else "np.array(class_order)[labels]"
    return f"{difference}; number the labels in the order of the classifier, {array}: {list_in_order(order, names)}"
