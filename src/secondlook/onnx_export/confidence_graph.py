"""Predicted classes and confidences as operators of ONNX, in float64 as in the library."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from secondlook.arrays import PROBABILITY_FLOORS
from secondlook.errors import ExportError
from secondlook.estimators import METHODS, compile_method, find_method
from secondlook.onnx_export.graph import Graph, Tensor, as_int64
from secondlook.policies import Rule
from secondlook.views import ViewSet, as_view_set_with_identity

IMAGES, VIEWS, CLASSES = 0, 1, 2
"""Axes of outputs."""

Confidence = Callable[..., Tensor]
"""(outputs, *parameter, **options) -> float64 [n]"""


@dataclass(frozen=True)
class LookOutputs:
    """What looks at n images gave, and the rule that is applied to it.

    Attributes
    ----------
    graph, rule
        The graph that everything is added to, and the rule of the policy.
    logits, probabilities
        Outputs of each member, float64 [n, views, classes]; no logits where a member has none.
    views
        The views, in the order of looks.
    n_classes
        Number of classes.
    """

    graph: Graph
    rule: Rule
    logits: tuple[Tensor | None, ...]
    probabilities: tuple[Tensor, ...]
    views: ViewSet
    n_classes: int

    @classmethod
    def from_outputs(
        cls, graph: Graph, rule: Rule, outputs: Tensor, kinds: tuple[str, ...], views: ViewSet, n_classes: int
    ) -> "LookOutputs":
        """Convert outputs of all members side by side, float32 [n, views, members * classes]; `kinds` names theirs."""
        members = [outputs]
        if len(kinds) > 1:
            members = graph.op_with_outputs(
                "Split", outputs, dtypes=[None] * len(kinds), axis=CLASSES, num_outputs=len(kinds)
            )
        exact = [member.cast(np.float64) for member in members]
        logits = tuple(one if kind == "logits" else None for one, kind in zip(exact, kinds, strict=True))
        probabilities = tuple(
            # Rounding errors below 0 are set to 0, as for every classifier.
            graph.op("Softmax", one, axis=CLASSES) if kind == "logits" else graph.op("Max", one, 0.0)
            for one, kind in zip(exact, kinds, strict=True)
        )
        return cls(graph, rule, logits, probabilities, views, n_classes)

    @cached_property
    def averaged(self) -> Tensor:
        """The mean of the members' probabilities. float64 [n, views, classes]"""
        return _average(self.graph, self.probabilities)

    @cached_property
    def first(self) -> Tensor:
        """The probabilities for the image itself. float64 [n, classes]"""
        return self.take_view(self.averaged, 0)

    @cached_property
    def mean(self) -> Tensor:
        """The mean of the probabilities over the views. float64 [n, classes]"""
        return self.graph.op("ReduceMean", self.averaged, as_int64([VIEWS]), keepdims=0)

    @cached_property
    def classes(self) -> Tensor:
        """The predicted classes, best first. int64 [n, k]"""
        return add_top_classes(
            self.graph, self.first if self.rule.predict_from == "image" else self.mean, self.rule.top_k
        )

    @cached_property
    def mask(self) -> Tensor:
        """1 for predicted classes and 0 for all others. float64 [n, classes]"""
        columns = self.graph.op("Unsqueeze", self.classes, as_int64([2]))
        # An operator instead of a constant, which would take 8 bytes for each class.
        numbers = self.graph.op("Range", *(self.graph.constant(one, np.int64) for one in (0, self.n_classes, 1)))
        hits = self.graph.op("Equal", columns, numbers).cast(np.float64)
        return self.graph.op("ReduceMax", hits, as_int64([1]), keepdims=0)

    @cached_property
    def mask_of_views(self) -> Tensor:
        """The mask, for the outputs of all views. float64 [n, 1, classes]"""
        return self.graph.op("Unsqueeze", self.mask, as_int64([VIEWS]))

    def take_view(self, values: Tensor, position: int) -> Tensor:
        """Take one view. [n, views, classes] -> [n, classes]"""
        return self.graph.op("Gather", values, self.graph.constant(position, np.int64), axis=VIEWS)

    def select_views(self, views: ViewSet) -> "LookOutputs":
        """Return the outputs for some views; the predicted classes are those of all views."""
        positions = as_int64([self.views.index(view) for view in views])
        selected = replace(
            self,
            logits=tuple(
                None if one is None else self.graph.op("Gather", one, positions, axis=VIEWS) for one in self.logits
            ),
            probabilities=tuple(self.graph.op("Gather", one, positions, axis=VIEWS) for one in self.probabilities),
            views=views,
        )
        vars(selected)["classes"] = self.classes  # a cached property
        return selected

    def sum_predicted(self, values: Tensor) -> Tensor:
        """Sum the values of the predicted classes. float64 [n, classes] -> [n]"""
        return self.graph.op("ReduceSum", values * self.mask, as_int64([1]), keepdims=0)


def add_top_classes(graph: Graph, values: Tensor, top_k: int) -> Tensor:
    """Find the k largest values, best first; ties go to the lower class. [n, classes] -> int64 [n, k]"""
    if top_k == 1:
        return graph.op("ArgMax", values, axis=1, keepdims=1)
    return graph.op_with_outputs("TopK", values, as_int64([top_k]), dtypes=[None, np.int64], axis=1)[1]


def add_confidence(outputs: LookOutputs) -> Tensor:
    """Add the confidence of the rule. -> float64 [n]"""
    compiled = compile_method(outputs.rule.method, outputs.rule.options)
    values = CONFIDENCES[compiled.method.name](outputs, *compiled.parameter, **compiled.options)
    return outputs.graph.op("Clip", values, 0.0, 1.0) if compiled.method.is_probability else values


def check_method(rule: Rule) -> None:
    """Raise for a method that has no ONNX form, or that lacks fitted numbers."""
    name = find_method(rule.method).name
    if name not in CONFIDENCES:
        raise ExportError(f"method {rule.method!r} has no ONNX form; calibrate with one of: {', '.join(CONFIDENCES)}.")
    for option, value in rule.options.items():
        if value == "fit":
            raise ExportError(
                f"option {option}={value!r} of method {rule.method!r} is fitted to labeled images, which a file does "
                "not have; calibrate with a number."
            )


def add_sigmoid(graph: Graph, values: Tensor) -> Tensor:
    """Return 1 / (1 + exp(-v)). Same shape"""
    return 1.0 / (graph.op("Exp", -values) + 1.0)


def _average(graph: Graph, values: tuple[Tensor, ...]) -> Tensor:
    """Return the mean of tensors of the same shape."""
    total = values[0]
    for one in values[1:]:
        total = total + one
    return total if len(values) == 1 else total / float(len(values))


def _scale(outputs: LookOutputs, probabilities: Tensor, temperature: float | None) -> Tensor:
    """Apply a temperature to probabilities, over their last axis. Same shape"""
    if temperature is None:
        return probabilities
    graph = outputs.graph
    scaled = (probabilities / graph.op("ReduceMax", probabilities, as_int64([-1]), keepdims=1)) ** (1.0 / temperature)
    return scaled / graph.op("ReduceSum", scaled, as_int64([-1]), keepdims=1)


def _sum_top(outputs: LookOutputs, position: int, temperature: float | None) -> Tensor:
    """Sum the k largest probabilities of one view. -> [n]"""
    graph = outputs.graph
    scaled = _scale(outputs, outputs.take_view(outputs.averaged, position), temperature)
    largest, _ = graph.op_with_outputs("TopK", scaled, as_int64([outputs.rule.top_k]), dtypes=[None, np.int64], axis=1)
    return graph.op("ReduceSum", largest, as_int64([1]), keepdims=0)


def _add_msr(outputs: LookOutputs, *, temperature: float | None = None) -> Tensor:
    return _sum_top(outputs, 0, temperature)


def _add_view(outputs: LookOutputs, text: str, *, temperature: float | None = None) -> Tensor:
    return _sum_top(outputs, outputs.views.index(text), temperature)


def _add_mean(outputs: LookOutputs, *, views: Any = None, temperature: float | None = None) -> Tensor:
    if views is not None:
        outputs = outputs.select_views(as_view_set_with_identity(views, outputs.views))
    return outputs.sum_predicted(_mean_output(outputs, "views", temperature))


def _mean_output(outputs: LookOutputs, on: str, temperature: float | None) -> Tensor:
    """Return s(x) or s(D), with a temperature applied before the mean over the views. float64 [n, classes]"""
    if on == "image":
        return _scale(outputs, outputs.first, temperature)
    if temperature is None:
        return outputs.mean
    scaled = _scale(outputs, outputs.averaged, temperature)
    return outputs.graph.op("ReduceMean", scaled, as_int64([VIEWS]), keepdims=0)


def _add_entropy(outputs: LookOutputs, *, on: str = "image", temperature: float | None = None) -> Tensor:
    graph = outputs.graph
    values = _mean_output(outputs, on, temperature)
    positive = graph.op("Where", graph.op("Greater", values, 0.0), values, graph.constant(1.0), dtype=np.float64)
    return graph.op("ReduceSum", values * graph.op("Log", positive), as_int64([1]), keepdims=0)


def _add_margin(outputs: LookOutputs, *, on: str = "image", temperature: float | None = None) -> Tensor:
    values = _mean_output(outputs, on, temperature)
    others = values * (1.0 - outputs.mask)
    return outputs.sum_predicted(values) - outputs.graph.op("ReduceMax", others, as_int64([1]), keepdims=0)


def _add_doctor(outputs: LookOutputs, *, on: str = "image", temperature: float | None = None) -> Tensor:
    values = _mean_output(outputs, on, temperature)
    return outputs.graph.op("ReduceSum", values * values, as_int64([1]), keepdims=0)


def _mean_logits(outputs: LookOutputs, on: str) -> Tensor:
    """Return the mean logits over members and views, or those of the image itself. float64 [n, classes]"""
    known = tuple(one for one in outputs.logits if one is not None)
    if len(known) < len(outputs.logits):
        raise ExportError(
            f"method {outputs.rule.method!r} needs logits, but a classifier of the policy outputs probabilities; use "
            "another method."
        )
    logits = _average(outputs.graph, known)
    if on == "image":
        return outputs.take_view(logits, 0)
    return outputs.graph.op("ReduceMean", logits, as_int64([VIEWS]), keepdims=0)


def _add_mean_logit(outputs: LookOutputs, *, temperature: float | None = None) -> Tensor:
    probabilities = outputs.graph.op("Softmax", _mean_logits(outputs, "views"), axis=1)
    return outputs.sum_predicted(_scale(outputs, probabilities, temperature))


def _add_logit_norm(
    outputs: LookOutputs, *, on: str = "image", p: float | str = "none", temperature: float | None = None
) -> Tensor:
    if p == "none":
        return outputs.sum_predicted(_mean_output(outputs, on, temperature))
    graph, exponent = outputs.graph, float(p)
    logits = _mean_logits(outputs, on)
    centered = logits - graph.op("ReduceMean", logits, as_int64([1]), keepdims=1)
    sizes = graph.op("Abs", centered)
    largest = _replace_zero(graph, graph.op("ReduceMax", sizes, as_int64([1]), keepdims=1))
    powers = graph.op("ReduceSum", (sizes / largest) ** exponent, as_int64([1]), keepdims=1)
    return outputs.sum_predicted(centered / _replace_zero(graph, largest * powers ** (1.0 / exponent)))


def _replace_zero(graph: Graph, values: Tensor) -> Tensor:
    """Return values with 1 in the place of 0. Same shape"""
    return graph.op("Where", graph.op("Greater", values, 0.0), values, graph.constant(1.0), dtype=np.float64)


@dataclass(frozen=True)
class _Statistics:
    """What `blend` and `learned` average: statistics of the outputs of one member, float64 [n, views] each."""

    own: Tensor
    other: Tensor
    largest_other: Tensor


def _list_statistics(outputs: LookOutputs) -> list[_Statistics]:
    graph, axis = outputs.graph, as_int64([CLASSES])
    found = []
    for values, floor in zip(outputs.probabilities, _list_floors(outputs), strict=True):
        own, others = values * outputs.mask_of_views, values * (1.0 - outputs.mask_of_views)
        reduced = [
            graph.op(kind, one, axis, keepdims=0)
            for kind, one in (("ReduceSum", own), ("ReduceSum", others), ("ReduceMax", others))
        ]
        found.append(_Statistics(*(graph.op("Max", one, floor) for one in reduced)))
    return found


def _list_floors(outputs: LookOutputs) -> list[float]:
    """Return what a probability of 0 counts as, for each member."""
    return [PROBABILITY_FLOORS["probabilities" if logits is None else "logits"] for logits in outputs.logits]


def _list_normalized(outputs: LookOutputs) -> list[Tensor]:
    """Return the centered log of the predicted classes over the 2-norm of all, for each member. float64 [n, views]"""
    pairs = zip(outputs.probabilities, _list_floors(outputs), strict=True)
    return [_normalize_logs(outputs, values, floor) for values, floor in pairs]


def _normalize_logs(outputs: LookOutputs, values: Tensor, floor: float) -> Tensor:
    graph, axis = outputs.graph, as_int64([CLASSES])
    logs = graph.op("Log", graph.op("Max", values, floor))
    centered = logs - graph.op("ReduceMean", logs, axis, keepdims=1)
    norm = graph.op("Sqrt", graph.op("ReduceSum", centered * centered, axis, keepdims=0))
    own = graph.op("ReduceSum", centered * outputs.mask_of_views, axis, keepdims=0)
    return own / _replace_zero(graph, norm)


def _average_statistic(outputs: LookOutputs, values: list[Tensor]) -> Tensor:
    """Return the mean over members and views. float64 [n, views] each -> [n]"""
    mean = _average(outputs.graph, tuple(values))
    return outputs.graph.op("ReduceMean", mean, as_int64([VIEWS]), keepdims=0)


def _mean_log_odds(outputs: LookOutputs, found: list[_Statistics]) -> Tensor:
    own = _average_statistic(outputs, [one.own for one in found])
    return outputs.graph.op("Log", own / _average_statistic(outputs, [one.other for one in found]))


def _mean_log_margin(outputs: LookOutputs, found: list[_Statistics]) -> Tensor:
    margins = [outputs.graph.op("Log", one.own / one.largest_other) for one in found]
    return _average_statistic(outputs, margins)


def _add_blend(outputs: LookOutputs) -> Tensor:
    found = _list_statistics(outputs)
    score = (_mean_log_odds(outputs, found) + _mean_log_margin(outputs, found)) / 2.0
    return add_sigmoid(outputs.graph, score)


def _add_learned(outputs: LookOutputs, **weights: float) -> Tensor:
    graph, found = outputs.graph, _list_statistics(outputs)
    first = graph.constant(0, np.int64)
    own, other = (
        _average(graph, tuple(graph.op("Gather", one, first, axis=VIEWS) for one in values))
        for values in ([one.own for one in found], [one.other for one in found])
    )
    features: Mapping[str, Tensor] = {
        "log_odds": _mean_log_odds(outputs, found),
        "log_margin": _mean_log_margin(outputs, found),
        "margin": _average_statistic(outputs, [one.own - one.largest_other for one in found]),
        "logit_norm": _average_statistic(outputs, _list_normalized(outputs)),
        "image_log_odds": graph.op("Log", own / other),
    }
    total = features["log_odds"] * float(weights["log_odds"]) + float(weights["intercept"])
    for name in METHODS["learned"].fitted[2:]:
        total = total + features[name] * float(weights[name])
    return add_sigmoid(graph, total)


CONFIDENCES: Mapping[str, Confidence] = {
    "msr": _add_msr,
    "mean": _add_mean,
    "view": _add_view,
    "nn-ensemble": _add_msr,
    "entropy": _add_entropy,
    "margin": _add_margin,
    "doctor": _add_doctor,
    "mean-logit": _add_mean_logit,
    "max-logit-pnorm": _add_logit_norm,
    "blend": _add_blend,
    "learned": _add_learned,
}
"""Methods that can be exported, by name."""
