"""The graph that decides: images, views, one copy of each network, and what the rule makes of their outputs.

With a schedule, a loop takes one look after another. In each round the images that are still open are gathered, so that
looks which are not needed are not computed, whatever the batch size, and the network is in the file once.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from secondlook.classifiers import Classifier
from secondlook.onnx_export.confidence_graph import LookOutputs, add_confidence, add_sigmoid, add_top_classes
from secondlook.onnx_export.graph import Graph, Tensor, as_int64, describe_value
from secondlook.onnx_export.networks import Network, embed_network
from secondlook.onnx_export.preprocessing_graph import add_normalization
from secondlook.onnx_export.view_graph import add_view
from secondlook.operations import Frame
from secondlook.policies import Rule, Schedule
from secondlook.views import ViewSet

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class DecisionOutputs:
    """The outputs of the graph, see `OUTPUT_NAMES`."""

    label: Tensor
    confidence: Tensor
    accept: Tensor
    probabilities: Tensor
    looks: Tensor
    view_outputs: Tensor
    labels: Tensor
    """The top-k classes, best first."""


@dataclass(frozen=True)
class DecisionPlan:
    """What a graph decides with: a rule, views in the order of looks, and the members of a classifier."""

    rule: Rule
    views: ViewSet
    frame: Frame
    members: tuple[Classifier, ...]
    networks: tuple[Network, ...]

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return self.networks[0].n_classes

    def add_networks(self, graph: Graph, images: Tensor) -> Tensor:
        """Add all members, and return their outputs side by side. [n, H, W, C] -> float32 [n, members * classes]"""
        outputs = [self._add_member(graph, images, number) for number in range(len(self.members))]
        return outputs[0] if len(outputs) == 1 else graph.op("Concat", *outputs, axis=1)

    def _add_member(self, graph: Graph, images: Tensor, number: int) -> Tensor:
        network = self.networks[number]
        inputs = add_normalization(graph, images, self.members[number].preprocessing)
        if network.takes_features:
            inputs = graph.op(
                "Reshape", inputs, as_int64([-1, self.frame.height * self.frame.width * self.frame.channels])
            )
        return embed_network(graph, network, inputs, f"member{number}/" if len(self.members) > 1 else "")

    def read_outputs(self, graph: Graph, outputs: Tensor) -> LookOutputs:
        """Return the outputs of looks for the rule. float32 [n, views, members * classes]"""
        kinds = tuple(member.output for member in self.members)
        return LookOutputs.from_outputs(graph, self.rule, outputs, kinds, self.views, self.n_classes)


def add_decision(graph: Graph, images: Tensor, plan: DecisionPlan) -> DecisionOutputs:
    """Add everything from images at the input size to the decision. [N, H, W, C]"""
    if plan.rule.schedule is None:
        return _add_all_looks(graph, images, plan)
    return _add_adaptive_looks(graph, images, plan, plan.rule.schedule)


def _add_all_looks(graph: Graph, images: Tensor, plan: DecisionPlan) -> DecisionOutputs:
    views = [add_view(graph, images, view, plan.frame) for view in plan.views]
    stacked = views[0] if len(views) == 1 else graph.op("Concat", *views, axis=0)
    outputs = plan.add_networks(graph, stacked)
    per_view = graph.op("Reshape", outputs, as_int64([len(views), -1, len(plan.members) * plan.n_classes]))
    view_outputs = graph.op("Transpose", per_view, perm=[1, 0, 2])
    seen = plan.read_outputs(graph, view_outputs)
    confidence = add_confidence(seen)
    looks = graph.op("Expand", graph.constant([len(views)], np.int64), _count(graph, images))
    return _decide(graph, plan.rule, seen.classes, confidence, seen.mean, looks, view_outputs)


def _decide(
    graph: Graph,
    rule: Rule,
    classes: Tensor,
    confidence: Tensor,
    probabilities: Tensor,
    looks: Tensor,
    view_outputs: Tensor,
) -> DecisionOutputs:
    label = graph.op("Gather", classes, graph.constant(0, np.int64), axis=1)
    if rule.groups:
        thresholds = graph.constant([group.threshold for group in rule.groups], np.float64)
        threshold = graph.op("Gather", thresholds, label)
    else:
        threshold = graph.constant(rule.threshold, np.float64)
    return DecisionOutputs(
        label,
        confidence.cast(np.float32),
        confidence >= threshold,
        probabilities.cast(np.float32),
        looks,
        view_outputs,
        classes,
    )


def _count(graph: Graph, images: Tensor) -> Tensor:
    """Return the number of images. int64 [1]"""
    return graph.op("Shape", images, start=0, end=1)


def _add_adaptive_looks(graph: Graph, images: Tensor, plan: DecisionPlan, schedule: Schedule) -> DecisionOutputs:
    count = _count(graph, images)
    n_outputs = len(plan.members) * plan.n_classes
    shape = graph.op("Concat", count, as_int64([schedule.max_looks, n_outputs]), axis=0)
    numbers = graph.op("Range", graph.constant(0, np.int64), graph.op("Squeeze", count), graph.constant(1, np.int64))
    untaken = graph.op("Expand", graph.constant(np.nan, np.float32), shape)
    unknown = graph.op("Expand", graph.constant(0.0, np.float64), count)
    none = graph.op("Expand", graph.constant(0, np.int64), count)
    _, *carried = graph.op_with_outputs(
        "Loop",
        graph.constant(schedule.max_looks, np.int64),
        graph.constant(True),
        numbers,
        untaken,
        unknown,
        none,
        dtypes=[np.int64, np.float32, np.float64, np.int64],
        body=_Round(graph.make_inner(), images, plan, schedule).build(),
    )
    # The inference of shapes knows nothing of what a loop carries along.
    view_outputs, confidence, looks = (
        graph.op("Reshape", one, as_int64([-1, *sizes]))
        for one, sizes in zip(carried, ([schedule.max_looks, n_outputs], [], []), strict=True)
    )
    seen = plan.read_outputs(graph, view_outputs)
    probabilities = _add_mean_of_taken(graph, seen.averaged, looks, schedule.max_looks)
    by = seen.first if plan.rule.predict_from == "image" else probabilities
    classes = add_top_classes(graph, by, plan.rule.top_k)
    return _decide(graph, plan.rule, classes, confidence, probabilities, looks, view_outputs)


def _add_mean_of_taken(graph: Graph, values: Tensor, looks: Tensor, max_looks: int) -> Tensor:
    """Return the mean over the looks that were taken; others are NaN. [N, L, C], int64 [N] -> [N, C]"""
    columns = graph.op("Unsqueeze", looks, as_int64([1, 2]))
    is_taken = graph.op("Less", graph.constant(np.arange(max_looks).reshape(1, -1, 1), np.int64), columns)
    known = graph.op("Where", is_taken, values, graph.constant(0.0, np.float64), dtype=np.float64)
    total = graph.op("ReduceSum", known, as_int64([1]), keepdims=0)
    return total / graph.op("Unsqueeze", looks, as_int64([1])).cast(np.float64)


class _Round:
    """The body of the loop: one look at the images that are open, and which of them stay open."""

    def __init__(self, graph: Graph, images: Tensor, plan: DecisionPlan, schedule: Schedule) -> None:
        self.graph = graph
        self.images = graph.use(images)
        self.plan = plan
        self.schedule = schedule
        self.place = graph.tensor(graph.make_name(), np.int64)
        """Number of the round, from 0."""
        self.condition = graph.tensor(graph.make_name(), np.bool_)
        self.open = graph.tensor(graph.make_name(), np.int64)
        """Positions of the images to look at. int64 [m]"""
        self.outputs = graph.tensor(graph.make_name(), np.float32)
        """Outputs of all looks so far, NaN where there was none. float32 [N, L, members * classes]"""
        self.confidence = graph.tensor(graph.make_name(), np.float64)
        self.looks = graph.tensor(graph.make_name(), np.int64)

    def build(self) -> "onnx.GraphProto":
        """Return the body."""
        graph = self.graph
        opened = graph.op("Gather", self.images, self.open, axis=0)
        view = self._add_view(graph, opened, range(len(self.plan.views)))
        outputs = self._store(self.plan.add_networks(graph, view))
        estimate, is_open = self._estimate(outputs)
        confidence = graph.op("ScatterElements", self.confidence, self.open, estimate, axis=0)
        taken = graph.op("Expand", self.place + 1, graph.op("Shape", self.open))
        looks = graph.op("ScatterElements", self.looks, self.open, taken, axis=0)
        still_open = graph.op("Compress", self.open, is_open, axis=0)
        goes_on = graph.op("Greater", graph.op("Size", still_open), graph.constant(0, np.int64))
        n_outputs = len(self.plan.members) * self.plan.n_classes
        shape: list[int | str] = ["batch", self.schedule.max_looks, n_outputs]
        return graph.build(
            "look",
            [
                describe_value(self.place.name, np.int64, []),
                describe_value(self.condition.name, np.bool_, []),
                describe_value(self.open.name, np.int64, [None]),
                describe_value(self.outputs.name, np.float32, shape),
                describe_value(self.confidence.name, np.float64, ["batch"]),
                describe_value(self.looks.name, np.int64, ["batch"]),
            ],
            [
                describe_value(goes_on.name, np.bool_, []),
                describe_value(still_open.name, np.int64, [None]),
                describe_value(outputs.name, np.float32, shape),
                describe_value(confidence.name, np.float64, ["batch"]),
                describe_value(looks.name, np.int64, ["batch"]),
            ],
        )

    def _add_view(self, graph: Graph, images: Tensor, looks: range) -> Tensor:
        """Add the view of this round: a tree of branches, of which only those that lead to it are computed."""
        images = graph.use(images)
        if len(looks) == 1:
            return add_view(graph, images, self.plan.views[looks[0]], self.plan.frame)
        middle = len(looks) // 2
        branches = {"then_branch": looks[:middle], "else_branch": looks[middle:]}
        is_early = graph.op("Less", graph.use(self.place), graph.constant(looks[middle], np.int64))
        return graph.op(
            "If",
            is_early,
            dtype=images.dtype,
            **{name: self._build_branch(graph.make_inner(), images, part) for name, part in branches.items()},
        )

    def _build_branch(self, graph: Graph, images: Tensor, looks: range) -> "onnx.GraphProto":
        view = self._add_view(graph, images, looks)
        if view.name == images.name:  # the image itself, which belongs to an outer graph
            view = graph.op("Identity", graph.use(view))
        frame = self.plan.frame
        shape = [None, frame.height, frame.width, frame.channels]
        return graph.build(
            f"looks_{looks.start}_to_{looks.stop - 1}", [], [describe_value(view.name, view.dtype, shape)]
        )

    def _store(self, outputs: Tensor) -> Tensor:
        """Put the outputs of this look at their places among all outputs. [m, P] -> [N, L, P]"""
        graph = self.graph
        rows = graph.op("Unsqueeze", self.open, as_int64([1]))
        columns = graph.op("Expand", self.place, graph.op("Shape", rows))
        return graph.op("ScatterND", self.outputs, graph.op("Concat", rows, columns, axis=1), outputs)

    def _estimate(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the estimated confidence of the images that were looked at, and which of them need another look.

        float64 [m], bool [m]. See `Schedule.estimate` and `Schedule.is_open`.
        """
        graph, schedule = self.graph, self.schedule
        end = graph.op("Unsqueeze", self.place + 1, as_int64([0]))
        rows = graph.op("Gather", outputs, self.open, axis=0)
        seen = graph.op("Slice", rows, as_int64([0]), end, as_int64([1]))
        running = add_confidence(self.plan.read_outputs(graph, seen))
        change, width = (
            graph.op("Gather", graph.constant(values, np.float64), self.place)
            for values in (schedule.changes, schedule.widths)
        )
        low, high = (_shift(graph, running, change - width), _shift(graph, running, change + width))
        estimate = graph.op("Min", graph.op("Max", _shift(graph, running, change), low), high)
        threshold = self.plan.rule.threshold
        # After the last look, both limits are the estimate, and nothing is open.
        return estimate, graph.op("And", low < threshold, high >= threshold)


def _shift(graph: Graph, confidence: Tensor, change: Tensor) -> Tensor:
    """Add `change`, a number, to the log-odds of confidences. float64 [m] -> [m]"""
    odds = graph.op("Log", confidence) - graph.op("Log", 1.0 - confidence)
    shifted = add_sigmoid(graph, odds + change)
    return graph.op("Where", graph.op("Equal", change, 0.0), confidence, shifted, dtype=np.float64)
