"""The graph that decides: images, views, one copy of each network, and what the policy makes of their outputs.

With a schedule, a loop takes one look after another. In each round the images that are still open are gathered, so that
looks which are not needed are not computed, whatever the batch size, and the network is in the file once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import checker, helper

from secondlook import __version__
from secondlook.extension import (
    EXPORT_METADATA,
    INPUT_NAME,
    Classifier,
    ExportRecord,
    Frame,
    Policy,
    Schedule,
    SklearnClassifier,
    ViewSet,
    list_outputs,
)
from secondlook.onnx_export.confidence_graph import LookOutputs, add_confidence, add_sigmoid, add_top_classes
from secondlook.onnx_export.graph import Graph, Tensor, describe_value
from secondlook.onnx_export.image_graph import ImageShape, add_fit, add_normalization, add_view
from secondlook.onnx_export.networks import embed_network, get_versions


@dataclass(frozen=True)
class Parts:
    """What a graph decides with: a policy, views in the order of looks, and the members of a classifier."""

    policy: Policy
    views: ViewSet
    frame: Frame
    members: Sequence[Classifier]
    networks: Sequence[onnx.ModelProto]
    n_classes: int

    @property
    def opset(self) -> int:
        """Version of ONNX's operators, which all networks share."""
        return get_versions(self.networks[0])[""]

    @property
    def n_outputs(self) -> int:
        """Number of outputs of all members for each look."""
        return len(self.members) * self.n_classes

    def add_networks(self, graph: Graph, images: Tensor) -> Tensor:
        """Add all members, and return their outputs side by side. [n, H, W, C] -> float32 [n, n_outputs]"""
        outputs = []
        for member, network in zip(self.members, self.networks, strict=True):
            inputs = add_normalization(graph, images, member.preprocessing)
            if isinstance(member, SklearnClassifier):  # takes features
                inputs = graph.op("Reshape", inputs, [-1, self.frame.height * self.frame.width * self.frame.channels])
            outputs.append(embed_network(graph, network, inputs))
        return outputs[0] if len(outputs) == 1 else graph.op("Concat", *outputs, axis=1)

    def read_outputs(self, graph: Graph, outputs: Tensor) -> LookOutputs:
        """Return the outputs of looks for the policy. float32 [n, views, n_outputs]"""
        kinds = [member.output for member in self.members]
        return LookOutputs(graph, self.policy, outputs, kinds, self.views, self.n_classes)


def make_model(parts: Parts, shape: ImageShape, record: ExportRecord, description: str) -> onnx.ModelProto:
    """Return the model, which is checked."""
    graph = Graph(parts.opset)
    images = Tensor(graph, INPUT_NAME, record.pixels)
    fitted = add_fit(graph, images, parts.members[0].preprocessing, shape)
    decided = _add_decision(graph, fitted, parts)
    sizes = {
        "probabilities": [parts.n_classes],
        "view_outputs": [len(parts.views), parts.n_outputs],
        "labels": [parts.policy.top_k],
    }
    named = [graph.rename(decided[name], name) for name in list_outputs(parts.policy)]
    outputs = [describe_value(one.name, one.dtype, ["batch", *sizes.get(one.name, [])]) for one in named]
    free = ("height", "width", "channels")
    given = [name if size is None else size for name, size in zip(free, shape.given, strict=True)]
    inputs = [describe_value(INPUT_NAME, images.dtype, ["batch", *given])]
    domains = {one.domain: one.version for network in parts.networks for one in network.opset_import if one.domain}
    model = helper.make_model(
        graph.build("decide", inputs, outputs),
        opset_imports=[helper.make_opsetid(*one) for one in {**domains, "": graph.opset}.items()],
        ir_version=max(network.ir_version for network in parts.networks),
        producer_name="secondlook",
        producer_version=__version__,
        doc_string=description,
    )
    metadata = {Policy.METADATA: parts.policy.model_dump_json(), EXPORT_METADATA: record.model_dump_json()}
    helper.set_model_props(model, metadata)
    checker.check_model(model, full_check=True)
    return model


def _add_decision(graph: Graph, images: Tensor, parts: Parts) -> dict[str, Tensor]:
    """Add everything from images [N, H, W, C] at the input size to the decision, and return the outputs by name."""
    schedule = parts.policy.schedule
    looked = _add_all_looks(graph, images, parts) if schedule is None else _add_loop(graph, images, parts, schedule)
    classes, confidence, probabilities, looks, view_outputs = looked
    label = graph.op("Gather", classes, graph.constant(0, np.int64), axis=1)
    if parts.policy.groups:
        thresholds = graph.constant([group.threshold for group in parts.policy.groups], np.float64)
        threshold = graph.op("Gather", thresholds, label)
    else:
        threshold = graph.constant(parts.policy.threshold, np.float64)
    return {
        "label": label,
        "confidence": confidence.cast(np.float32),
        "accept": confidence >= threshold,
        "probabilities": probabilities.cast(np.float32),
        "looks": looks,
        "view_outputs": view_outputs,
        "labels": classes,
    }


Looked = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""The top-k classes, best first, confidence, mean probabilities, number of looks, and outputs of looks."""


def _add_all_looks(graph: Graph, images: Tensor, parts: Parts) -> Looked:
    views = [add_view(graph, images, view, parts.frame) for view in parts.views]
    stacked = views[0] if len(views) == 1 else graph.op("Concat", *views, axis=0)
    outputs = parts.add_networks(graph, stacked)
    per_view = graph.op("Reshape", outputs, [len(views), -1, parts.n_outputs])
    view_outputs = graph.op("Transpose", per_view, perm=[1, 0, 2])
    seen = parts.read_outputs(graph, view_outputs)
    confidence = add_confidence(seen)
    looks = graph.op("Expand", graph.constant([len(views)], np.int64), graph.op("Shape", images, start=0, end=1))
    return seen.classes, confidence, seen.mean, looks, view_outputs


def _add_loop(graph: Graph, images: Tensor, parts: Parts, schedule: Schedule) -> Looked:
    count = graph.op("Shape", images, start=0, end=1)
    shape = graph.op("Concat", count, [schedule.max_looks, parts.n_outputs], axis=0)
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
        body=_Round(Graph(graph.opset, graph), images, parts, schedule).build(),
    )
    # The inference of shapes knows nothing of what a loop carries along.
    view_outputs, confidence, looks = (
        graph.op("Reshape", one, [-1, *sizes])
        for one, sizes in zip(carried, ([schedule.max_looks, parts.n_outputs], [], []), strict=True)
    )
    seen = parts.read_outputs(graph, view_outputs)
    probabilities = _add_mean_of_taken(graph, seen.averaged, looks, schedule.max_looks)
    classes = add_top_classes(seen.first if parts.policy.predict_from == "image" else probabilities, parts.policy.top_k)
    return classes, confidence, probabilities, looks, view_outputs


def _add_mean_of_taken(graph: Graph, values: Tensor, looks: Tensor, max_looks: int) -> Tensor:
    """Return the mean over the looks that were taken; others are NaN. [N, L, C], int64 [N] -> [N, C]"""
    columns = graph.op("Unsqueeze", looks, [1, 2])
    is_taken = graph.op("Less", graph.constant(np.arange(max_looks).reshape(1, -1, 1), np.int64), columns)
    known = graph.op("Where", is_taken, values, graph.constant(0.0, np.float64), dtype=np.float64)
    return known.reduce("Sum", 1) / graph.op("Unsqueeze", looks, [1]).cast(np.float64)


class _Round:
    """The body of the loop: one look at the images that are open, and which of them stay open."""

    def __init__(self, graph: Graph, images: Tensor, parts: Parts, schedule: Schedule) -> None:
        self.graph, self.images, self.parts, self.schedule = graph, graph.use(images), parts, schedule
        self.forms: list[tuple[Any, list[int | str | None]]] = [
            (np.int64, []),  # number of the round, from 0
            (np.bool_, []),  # whether it goes on
            (np.int64, [None]),  # positions of the images to look at
            (np.float32, ["batch", schedule.max_looks, parts.n_outputs]),  # all outputs so far, NaN where none is
            (np.float64, ["batch"]),  # confidence
            (np.int64, ["batch"]),  # looks
        ]
        """Types and shapes of the inputs; those after the first are handed on to the next round."""
        self.inputs = [Tensor(graph, graph.make_name(), dtype) for dtype, _ in self.forms]
        self.place, _, self.open, self.outputs, self.confidence, self.looks = self.inputs

    def build(self) -> onnx.GraphProto:
        """Return the body."""
        graph = self.graph
        opened = graph.op("Gather", self.images, self.open, axis=0)
        view = self._add_view(graph, opened, range(len(self.parts.views)))
        outputs = self._store(self.parts.add_networks(graph, view))
        estimate, is_open = self._estimate(outputs)
        confidence = graph.op("ScatterElements", self.confidence, self.open, estimate, axis=0)
        taken = graph.op("Expand", self.place + 1, graph.op("Shape", self.open))
        looks = graph.op("ScatterElements", self.looks, self.open, taken, axis=0)
        still_open = graph.op("Compress", self.open, is_open, axis=0)
        goes_on = graph.op("Greater", graph.op("Size", still_open), graph.constant(0, np.int64))
        results = (goes_on, still_open, outputs, confidence, looks)
        return graph.build(
            "look",
            [describe_value(one.name, *form) for one, form in zip(self.inputs, self.forms, strict=True)],
            [describe_value(one.name, *form) for one, form in zip(results, self.forms[1:], strict=True)],
        )

    def _add_view(self, graph: Graph, images: Tensor, looks: range) -> Tensor:
        """Add the view of this round: a tree of branches, of which only those that lead to it are computed."""
        images = graph.use(images)
        if len(looks) == 1:
            return add_view(graph, images, self.parts.views[looks[0]], self.parts.frame)
        middle = len(looks) // 2
        branches = {"then_branch": looks[:middle], "else_branch": looks[middle:]}
        is_early = graph.op("Less", graph.use(self.place), graph.constant(looks[middle], np.int64))
        return graph.op(
            "If",
            is_early,
            dtype=images.dtype,
            **{name: self._build_branch(Graph(graph.opset, graph), images, some) for name, some in branches.items()},
        )

    def _build_branch(self, graph: Graph, images: Tensor, looks: range) -> onnx.GraphProto:
        view = self._add_view(graph, images, looks)
        if view.name == images.name:  # the image itself, which belongs to an outer graph
            view = graph.op("Identity", graph.use(view))
        frame = self.parts.frame
        described = describe_value(view.name, view.dtype, [None, frame.height, frame.width, frame.channels])
        return graph.build(f"looks_{looks.start}_to_{looks.stop - 1}", [], [described])

    def _store(self, outputs: Tensor) -> Tensor:
        """Put the outputs of this look at their places among all outputs. [m, n_outputs] -> [N, L, n_outputs]"""
        graph = self.graph
        rows = graph.op("Unsqueeze", self.open, [1])
        columns = graph.op("Expand", self.place, graph.op("Shape", rows))
        return graph.op("ScatterND", self.outputs, graph.op("Concat", rows, columns, axis=1), outputs)

    def _estimate(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the estimated confidence of the images that were looked at, and which of them need another look.

        float64 [m], bool [m]. See `Schedule.estimate` and `Schedule.is_open`.
        """
        graph, schedule, threshold = self.graph, self.schedule, self.parts.policy.threshold
        end = graph.op("Unsqueeze", self.place + 1, [0])
        rows = graph.op("Gather", outputs, self.open, axis=0)
        seen = graph.op("Slice", rows, [0], end, [1])
        running = add_confidence(self.parts.read_outputs(graph, seen))
        change, width = (
            graph.op("Gather", graph.constant(values, np.float64), self.place)
            for values in (schedule.changes, schedule.widths)
        )
        low, high = (_shift(graph, running, change - width), _shift(graph, running, change + width))
        estimate = graph.op("Min", graph.op("Max", _shift(graph, running, change), low), high)
        # After the last look, both limits are the estimate, and nothing is open.
        return estimate, (low < threshold) & (high >= threshold)


def _shift(graph: Graph, confidence: Tensor, change: Tensor) -> Tensor:
    """Add `change`, a number, to the log-odds of confidences. float64 [m] -> [m]"""
    odds = graph.op("Log", confidence) - graph.op("Log", 1.0 - confidence)
    shifted = add_sigmoid(odds + change)
    return graph.op("Where", graph.op("Equal", change, 0.0), confidence, shifted, dtype=np.float64)
