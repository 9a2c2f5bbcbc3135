"""Predicted classes and confidences as ONNX operators, in float64 as in the library."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from secondlook.extension import (
    GEN_CLASSES,
    GEN_EXPONENT,
    METHODS,
    PROBABILITY_FLOORS,
    ExportError,
    Output,
    Policy,
    ViewSet,
    compile_method,
    find_method,
)
from secondlook.onnx_export.graph import Graph, Tensor

VIEWS, CLASSES = 1, 2
"""Axes of outputs."""


class LookOutputs:
    """Outputs of the looks at n images, and their policy."""

    def __init__(
        self, graph: Graph, policy: Policy, outputs: Tensor, kinds: Sequence[Output], views: ViewSet, n_classes: int
    ) -> None:
        """Split the outputs of all members, float32 [n, views, members * classes]; `kinds` has one entry per member."""
        self.graph, self.policy, self.views, self.n_classes = graph, policy, views, n_classes
        members, count = [outputs], len(kinds)
        if count > 1:
            members = graph.op_with_outputs("Split", outputs, dtypes=[None] * count, axis=CLASSES, num_outputs=count)
        exact = [member.cast(np.float64) for member in members]
        self.logits = [one for one, kind in zip(exact, kinds, strict=True) if kind == "logits"]
        """Logits of each member that outputs them, float64 [n, views, classes]."""
        self.probabilities = [
            # Negative rounding errors become 0, as for every classifier.
            graph.op("Softmax", one, axis=CLASSES) if kind == "logits" else graph.op("Max", one, 0.0)
            for one, kind in zip(exact, kinds, strict=True)
        ]
        """Probabilities of each member, float64 [n, views, classes]."""
        self.floors = [PROBABILITY_FLOORS[kind] for kind in kinds]
        """Lower bound of the probabilities of each member."""

    @property
    def averaged(self) -> Tensor:
        """The mean of the members' probabilities. float64 [n, views, classes]"""
        return _average(self.probabilities)

    @property
    def first(self) -> Tensor:
        """The probabilities for the image itself. float64 [n, classes]"""
        return self.take_view(self.averaged, 0)

    @property
    def mean(self) -> Tensor:
        """The mean of the probabilities over the views. float64 [n, classes]"""
        return self.averaged.reduce("Mean", VIEWS)

    @property
    def classes(self) -> Tensor:
        """The predicted classes, best first. int64 [n, k]"""
        values = self.first if self.policy.predict_from == "image" else self.mean
        return add_top_classes(values, self.policy.top_k)

    @property
    def mask(self) -> Tensor:
        """1 for predicted classes and 0 for all others. float64 [n, classes]"""
        columns = self.graph.op("Unsqueeze", self.classes, [2])
        # An operator, since a constant would take 8 bytes per class.
        numbers = self.graph.op("Range", *(self.graph.constant(one, np.int64) for one in (0, self.n_classes, 1)))
        return self.graph.op("Equal", columns, numbers).cast(np.float64).reduce("Max", 1)

    def take_view(self, values: Tensor, position: int) -> Tensor:
        """Take one view. [n, views, ...] -> [n, ...]"""
        return self.graph.op("Gather", values, self.graph.constant(position, np.int64), axis=VIEWS)

    def sum_predicted(self, values: Tensor) -> Tensor:
        """Sum the values of the predicted classes. float64 [n, classes] -> [n]"""
        return (values * self.mask).reduce("Sum", 1)


def add_top_classes(values: Tensor, top_k: int) -> Tensor:
    """Find the k largest values, best first; ties go to the lower class. [n, classes] -> int64 [n, k]"""
    if top_k == 1:
        return values.graph.op("ArgMax", values, axis=1, keepdims=1)
    return _add_top(values, top_k)[1]


def add_confidence(outputs: LookOutputs) -> Tensor:
    """Add the confidence of the policy. -> float64 [n]"""
    compiled = compile_method(outputs.policy.method, outputs.policy.options)
    values = CONFIDENCES[compiled.method.name](outputs, *compiled.parameter, **compiled.options)
    return outputs.graph.op("Clip", values, 0.0, 1.0) if compiled.method.is_probability else values


def add_familiarity(outputs: LookOutputs) -> Tensor:
    """Add the familiarity of the policy, over all looks, or of the first look with a schedule. -> float64 [n]"""
    limit, graph = outputs.policy.familiarity, outputs.graph
    assert limit is not None, "the policy has a limit"

    def summarize(values: Sequence[Tensor]) -> Tensor:
        return _average_looks(values) if outputs.policy.schedule is None else outputs.take_view(_average(values), 0)

    found = summarize(_list_gen(outputs))
    if not limit.weights:
        return found
    pairs = zip(outputs.probabilities, outputs.floors, strict=True)
    logs = summarize([graph.op("Log", graph.op("Max", values, floor)) for values, floor in pairs])
    weights = graph.constant(limit.weights[1:], np.float64)
    return found * limit.weights[0] + (logs * weights).reduce("Sum", 1)


def check_method(policy: Policy) -> None:
    """Raise for a method without an ONNX form or without fitted parameters."""
    if find_method(policy.method).name not in CONFIDENCES:
        known = ", ".join(CONFIDENCES)
        raise ExportError(f"method {policy.method!r} has no ONNX form; calibrate with one of: {known}.")
    for option, value in policy.options.items():
        if value == "fit":
            fault = f"of method {policy.method!r} needs labeled images to fit, which an exported file does not have"
            raise ExportError(fault, argument=option, value=value, repair="calibrate with a number")


def add_sigmoid(values: Tensor) -> Tensor:
    """Return 1 / (1 + exp(-v)). Same shape"""
    return 1.0 / (values.graph.op("Exp", -values) + 1.0)


def _add_top(values: Tensor, top_k: int) -> list[Tensor]:
    """Return the k largest values and their classes. [n, classes] -> [n, k], int64 [n, k]"""
    return values.graph.op_with_outputs("TopK", values, [top_k], dtypes=[None, np.int64], axis=1)


def _average(values: Sequence[Tensor]) -> Tensor:
    total = values[0]
    for one in values[1:]:
        total = total + one
    return total if len(values) == 1 else total / float(len(values))


def _scale(probabilities: Tensor, temperature: float | None) -> Tensor:
    """Apply a temperature to probabilities, over their last axis. Same shape"""
    if temperature is None:
        return probabilities
    scaled = (probabilities / probabilities.reduce("Max", -1, keepdims=1)) ** (1.0 / temperature)
    return scaled / scaled.reduce("Sum", -1, keepdims=1)


def _replace_zero(values: Tensor) -> Tensor:
    """Replace 0 by 1 in non-negative values. Same shape"""
    graph = values.graph
    return graph.op("Where", graph.op("Greater", values, 0.0), values, graph.constant(1.0), dtype=np.float64)


# --- Methods on mean outputs ---


def _add_view(outputs: LookOutputs, text: str = "identity", *, temperature: float | None = None) -> Tensor:
    """Sum the k largest probabilities of one view. -> [n]"""
    scaled = _scale(outputs.take_view(outputs.averaged, outputs.views.index(text)), temperature)
    return _add_top(scaled, outputs.policy.top_k)[0].reduce("Sum", 1)


def _add_mean(outputs: LookOutputs, *, views: Any = None, temperature: float | None = None) -> Tensor:
    if views is None:
        return outputs.sum_predicted(_mean_output(outputs, "views", temperature))
    positions = [outputs.views.index(view) for view in ViewSet.with_identity(views, outputs.views)]
    selected = outputs.graph.op("Gather", outputs.averaged, positions, axis=VIEWS)
    return outputs.sum_predicted(_scale(selected, temperature).reduce("Mean", VIEWS))


def _mean_output(outputs: LookOutputs, on: str, temperature: float | None) -> Tensor:
    """Return s(x) or s(D), with a temperature applied before the mean over the views. float64 [n, classes]"""
    if on == "image":
        return _scale(outputs.first, temperature)
    return _scale(outputs.averaged, temperature).reduce("Mean", VIEWS)


def _mean_logits(outputs: LookOutputs, on: str) -> Tensor:
    """Return the mean logits over members, and over views or of the image itself. float64 [n, classes]"""
    if len(outputs.logits) < len(outputs.probabilities):
        fault = f"method {outputs.policy.method!r} needs logits, but a classifier of the policy outputs probabilities"
        raise ExportError(fault, repair="use another method")
    logits = _average(outputs.logits)
    return outputs.take_view(logits, 0) if on == "image" else logits.reduce("Mean", VIEWS)


def _add_logit_norm(
    outputs: LookOutputs, *, on: str = "image", p: float | str = "none", temperature: float | None = None
) -> Tensor:
    if p == "none":
        return outputs.sum_predicted(_mean_output(outputs, on, temperature))
    exponent, logits = float(p), _mean_logits(outputs, on)
    centered = logits - logits.reduce("Mean", 1, keepdims=1)
    sizes = outputs.graph.op("Abs", centered)
    largest = _replace_zero(sizes.reduce("Max", 1, keepdims=1))
    powers = ((sizes / largest) ** exponent).reduce("Sum", 1, keepdims=1)
    return outputs.sum_predicted(centered / _replace_zero(largest * powers ** (1.0 / exponent)))


# --- Methods on statistics of each look ---


def _list_statistics(outputs: LookOutputs) -> tuple[tuple[Tensor, ...], ...]:
    """Return the probabilities of predicted and other classes, and the largest other. float64 [n, views] per member"""
    found, mask = [], outputs.graph.op("Unsqueeze", outputs.mask, [VIEWS])
    for values, floor in zip(outputs.probabilities, outputs.floors, strict=True):
        own, others = values * mask, values * (1.0 - mask)
        reduced = [own.reduce("Sum", CLASSES), others.reduce("Sum", CLASSES), others.reduce("Max", CLASSES)]
        found.append([outputs.graph.op("Max", one, floor) for one in reduced])
    return tuple(zip(*found, strict=True))


def _normalize_logs(outputs: LookOutputs, values: Tensor, floor: float) -> Tensor:
    """Return the centered log of the predicted classes over the 2-norm of all. [n, views, classes] -> [n, views]"""
    graph, mask = outputs.graph, outputs.graph.op("Unsqueeze", outputs.mask, [VIEWS])
    logs = graph.op("Log", graph.op("Max", values, floor))
    centered = logs - logs.reduce("Mean", CLASSES, keepdims=1)
    norm = graph.op("Sqrt", (centered * centered).reduce("Sum", CLASSES))
    return (centered * mask).reduce("Sum", CLASSES) / _replace_zero(norm)


def _average_looks(values: Sequence[Tensor]) -> Tensor:
    """Return the mean over members and views. float64 [n, views] each -> [n]"""
    return _average(values).reduce("Mean", VIEWS)


def _list_gen(outputs: LookOutputs) -> list[Tensor]:
    """Return one minus the generalized entropy of each look. float64 [n, views] per member"""
    graph, found = outputs.graph, []
    for values in outputs.probabilities:
        leading = values
        if outputs.n_classes > GEN_CLASSES:
            count, dtypes = graph.constant([GEN_CLASSES], np.int64), [None, np.int64]
            leading = graph.op_with_outputs("TopK", values, count, dtypes=dtypes, axis=CLASSES)[0]
        spread = graph.op("Max", leading * (1.0 - leading), 0.0)
        found.append(1.0 - (spread**GEN_EXPONENT).reduce("Mean", CLASSES))
    return found


def _add_log_features(outputs: LookOutputs) -> tuple[Tensor, Tensor]:
    """Return the log-odds of mean probabilities, and the mean of log margins. float64 [n] each"""
    graph, (own, other, largest) = outputs.graph, _list_statistics(outputs)
    log_odds = graph.op("Log", _average_looks(own) / _average_looks(other))
    log_margins = [graph.op("Log", one / another) for one, another in zip(own, largest, strict=True)]
    return log_odds, _average_looks(log_margins)


def _add_blend(outputs: LookOutputs) -> Tensor:
    log_odds, log_margin = _add_log_features(outputs)
    return add_sigmoid((log_odds + log_margin) / 2.0)


def _add_learned(outputs: LookOutputs, **weights: float) -> Tensor:
    own, other, largest = _list_statistics(outputs)
    first_own, first_other = (_average([outputs.take_view(one, 0) for one in each]) for each in (own, other))
    log_odds, log_margin = _add_log_features(outputs)
    normalized = zip(outputs.probabilities, outputs.floors, strict=True)
    features: Mapping[str, Tensor] = {
        "log_odds": log_odds,
        "log_margin": log_margin,
        "margin": _average_looks([one - another for one, another in zip(own, largest, strict=True)]),
        "logit_norm": _average_looks([_normalize_logs(outputs, *one) for one in normalized]),
        "image_log_odds": outputs.graph.op("Log", first_own / first_other),
    }
    total = features["log_odds"] * float(weights["log_odds"]) + float(weights["intercept"])
    for name in METHODS["learned"].fitted[2:]:
        total = total + features[name] * float(weights[name])
    return add_sigmoid(total)


CONFIDENCES: Mapping[str, Callable[..., Tensor]] = {
    "msr": _add_view,
    "mean": _add_mean,
    "view": _add_view,
    "max-logit-pnorm": _add_logit_norm,
    "blend": _add_blend,
    "learned": _add_learned,
    "gen": lambda outputs: _average_looks(_list_gen(outputs)),
}
"""Methods that can be exported, by name: (outputs, *parameter, **options) -> float64 [n]"""
