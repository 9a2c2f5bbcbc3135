"""The decision graph: images, views, one copy of each network, and the policy.

With a schedule, a loop takes one look per round. Each round gathers the images that are still open, so that only the
needed looks are computed for any batch size, and the file contains each network once.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import checker, helper

from secondlook import __version__
from secondlook.extension import ExportRecord, Frame, Plan, Policy, SklearnClassifier
from secondlook.onnx_export.confidence_graph import (
    LookOutputs,
    add_confidence,
    add_familiarity,
    add_sigmoid,
    add_top_classes,
)
from secondlook.onnx_export.graph import Graph, Tensor, describe_value
from secondlook.onnx_export.image_graph import ImageShape, add_fit, add_normalization, add_view
from secondlook.onnx_export.networks import embed_network, get_versions

Looked = tuple[LookOutputs, Tensor, Tensor, Tensor, Tensor, Tensor]
"""Looks, the top-k classes, best first, confidence, mean probabilities, number of looks, and outputs of looks."""


class DecisionGraph:
    """Builds the graph of a plan; `networks` are the members of its classifier."""

    def __init__(self, plan: Plan, shape: ImageShape, networks: Sequence[onnx.ModelProto]) -> None:
        self.policy, self.views, self.members, self.kinds = plan.given, plan.views, plan.members, plan.kinds
        self.shape, self.frame, self.networks = shape, Frame(*shape.fitted), networks
        self.opset = get_versions(networks[0])[""]
        n_classes = self.members[0].n_classes
        assert n_classes is not None, "known from the images that networks are compared on"
        self.n_classes = n_classes
        self.n_outputs = len(self.members) * n_classes
        """Number of outputs of all members for each look."""

    def make_model(self, record: ExportRecord, description: str) -> onnx.ModelProto:
        """Build and check the model."""
        graph = Graph(self.opset)
        images = Tensor(graph, ExportRecord.INPUT, record.pixels)
        decided = self._add_decision(graph, add_fit(graph, images, self.members[0].preprocessing, self.shape))
        sizes = {
            "probabilities": [self.n_classes],
            "view_outputs": [len(self.views), self.n_outputs],
            "labels": [self.policy.top_k],
        }
        named = [graph.rename(decided[name], name) for name in ExportRecord.list_outputs(self.policy)]
        outputs = [describe_value(one.name, one.dtype, ["batch", *sizes.get(one.name, [])]) for one in named]
        free = ("height", "width", "channels")
        given = [name if size is None else size for name, size in zip(free, self.shape.given, strict=True)]
        inputs = [describe_value(ExportRecord.INPUT, images.dtype, ["batch", *given])]
        domains = {one.domain: one.version for network in self.networks for one in network.opset_import if one.domain}
        model = helper.make_model(
            graph.build("decide", inputs, outputs),
            opset_imports=[helper.make_opsetid(*one) for one in {**domains, "": self.opset}.items()],
            ir_version=max(network.ir_version for network in self.networks),
            producer_name="secondlook",
            producer_version=__version__,
            doc_string=description,
        )
        metadata = {Policy.METADATA: self.policy.model_dump_json(), ExportRecord.METADATA: record.model_dump_json()}
        helper.set_model_props(model, metadata)
        checker.check_model(model, full_check=True)
        return model

    def _add_decision(self, graph: Graph, images: Tensor) -> dict[str, Tensor]:
        """Add the graph from images [N, H, W, C] at input size to the decision, and return the outputs by name."""
        policy = self.policy
        looked = self._add_all_looks(graph, images) if policy.schedule is None else self._add_loop(graph, images)
        seen, classes, confidence, probabilities, looks, view_outputs = looked
        label = graph.op("Gather", classes, graph.constant(0, np.int64), axis=1)
        if policy.groups:
            thresholds = graph.constant([group.threshold for group in policy.groups], np.float64)
            threshold = graph.op("Gather", thresholds, label)
        else:
            threshold = graph.constant(policy.threshold, np.float64)
        accept, others = confidence >= threshold, {}
        if policy.familiarity is not None:
            others["familiarity"] = add_familiarity(seen)
            accept = accept & (others["familiarity"] >= policy.familiarity.limit)
        return {
            "label": label,
            "confidence": confidence.cast(np.float32),
            "accept": accept,
            "probabilities": probabilities.cast(np.float32),
            "looks": looks,
            "view_outputs": view_outputs,
            "labels": classes,
            **others,
        }

    def _add_networks(self, graph: Graph, images: Tensor) -> Tensor:
        """Add all members, and return their outputs side by side. [n, H, W, C] -> float32 [n, n_outputs]"""
        outputs = []
        for member, network in zip(self.members, self.networks, strict=True):
            inputs = add_normalization(graph, images, member.preprocessing)
            if isinstance(member, SklearnClassifier):  # takes features
                inputs = graph.op("Reshape", inputs, [-1, self.frame.height * self.frame.width * self.frame.channels])
            outputs.append(embed_network(graph, network, inputs))
        return outputs[0] if len(outputs) == 1 else graph.op("Concat", *outputs, axis=1)

    def _read_outputs(self, graph: Graph, outputs: Tensor) -> LookOutputs:
        """Prepare the outputs of looks for the policy. float32 [n, views, n_outputs]"""
        return LookOutputs(graph, self.policy, outputs, self.kinds, self.views, self.n_classes)

    def _add_all_looks(self, graph: Graph, images: Tensor) -> Looked:
        views = [add_view(graph, images, view, self.frame) for view in self.views]
        # Named, so that a program can make it an output and show what was looked at, as examples/browser does.
        stacked = graph.rename(graph.op("Concat", *views, axis=0), "views")
        outputs = self._add_networks(graph, stacked)
        per_view = graph.op("Reshape", outputs, [len(views), -1, self.n_outputs])
        view_outputs = graph.op("Transpose", per_view, perm=[1, 0, 2])
        seen = self._read_outputs(graph, view_outputs)
        confidence = add_confidence(seen)
        looks = graph.op("Expand", graph.constant([len(views)], np.int64), graph.op("Shape", images, start=0, end=1))
        return seen, seen.classes, confidence, seen.mean, looks, view_outputs

    # --- With a schedule ---

    def _add_loop(self, graph: Graph, images: Tensor) -> Looked:
        max_looks = len(self.views)
        count = graph.op("Shape", images, start=0, end=1)
        shape = graph.op("Concat", count, [max_looks, self.n_outputs], axis=0)
        zero, one = (graph.constant(number, np.int64) for number in (0, 1))
        numbers = graph.op("Range", zero, graph.op("Squeeze", count), one)
        untaken = graph.op("Expand", graph.constant(np.nan, np.float32), shape)
        unknown = graph.op("Expand", graph.constant(0.0, np.float64), count)
        none = graph.op("Expand", zero, count)
        limits = graph.constant(max_looks, np.int64), graph.constant(True)
        body = self._build_round(Graph(self.opset, graph), images)
        dtypes = [np.int64, np.float32, np.float64, np.int64]
        state = graph.op_with_outputs("Loop", *limits, numbers, untaken, unknown, none, dtypes=dtypes, body=body)
        # Shape inference does not know the shapes of loop states.
        view_outputs = graph.op("Reshape", state[1], [-1, max_looks, self.n_outputs])
        confidence, looks = (graph.op("Reshape", each, [-1]) for each in state[2:])
        seen = self._read_outputs(graph, view_outputs)
        # The mean over the looks taken; the others are NaN.
        averaged = seen.averaged
        columns = graph.op("Unsqueeze", looks, [1, 2])
        is_taken = graph.op("Less", graph.constant(np.arange(max_looks).reshape(1, -1, 1), np.int64), columns)
        known = graph.op("Where", is_taken, averaged, graph.constant(0.0, np.float64), dtype=np.float64)
        probabilities = known.reduce("Sum", 1) / graph.op("Unsqueeze", looks, [1]).cast(np.float64)
        from_image = self.policy.predict_from == "image"
        classes = add_top_classes(seen.first if from_image else probabilities, self.policy.top_k)
        return seen, classes, confidence, probabilities, looks, view_outputs

    def _build_round(self, graph: Graph, images: Tensor) -> onnx.GraphProto:
        """Return the body of the loop: look once at the open images, and find those that stay open."""
        forms: list[tuple[Any, list[int | str | None]]] = [
            (np.int64, []),  # number of the round, from 0
            (np.bool_, []),  # whether the loop continues
            (np.int64, [None]),  # positions of the images to look at
            (np.float32, ["batch", len(self.views), self.n_outputs]),  # outputs so far, NaN for looks not taken
            (np.float64, ["batch"]),  # confidence
            (np.int64, ["batch"]),  # looks
        ]
        inputs = [Tensor(graph, graph.make_name(), dtype) for dtype, _ in forms]
        place, _, is_next, outputs, confidence, looks = inputs
        opened = graph.op("Gather", graph.use(images), is_next, axis=0)
        view = self._add_next_view(graph, opened, place, range(len(self.views)))
        new = self._add_networks(graph, view)
        rows = graph.op("Unsqueeze", is_next, [1])
        columns = graph.op("Expand", place, graph.op("Shape", rows))
        outputs = graph.op("ScatterND", outputs, graph.op("Concat", rows, columns, axis=1), new)
        end = graph.op("Unsqueeze", place + 1, [0])
        seen = graph.op("Slice", graph.op("Gather", outputs, is_next, axis=0), [0], end, [1])
        read = self._read_outputs(graph, seen)
        estimate, is_open = self._estimate(graph, add_confidence(read), place)
        if self.policy.familiarity is not None:
            is_open = is_open & (add_familiarity(read) >= self.policy.familiarity.limit)
        confidence = graph.op("ScatterElements", confidence, is_next, estimate, axis=0)
        taken = graph.op("Expand", place + 1, graph.op("Shape", is_next))
        looks = graph.op("ScatterElements", looks, is_next, taken, axis=0)
        still_open = graph.op("Compress", is_next, is_open, axis=0)
        continues = graph.op("Greater", graph.op("Size", still_open), graph.constant(0, np.int64))
        results = (continues, still_open, outputs, confidence, looks)
        return graph.build(
            "look",
            [describe_value(one.name, *form) for one, form in zip(inputs, forms, strict=True)],
            [describe_value(one.name, *form) for one, form in zip(results, forms[1:], strict=True)],
        )

    def _add_next_view(self, graph: Graph, images: Tensor, place: Tensor, looks: range) -> Tensor:
        """Add the view of a round, as a tree of branches: only the branches on its path are computed."""
        images = graph.use(images)
        if len(looks) == 1:
            return add_view(graph, images, self.views[looks[0]], self.frame)
        middle = len(looks) // 2
        is_early = graph.op("Less", graph.use(place), graph.constant(looks[middle], np.int64))
        branches = {}
        for name, some in (("then_branch", looks[:middle]), ("else_branch", looks[middle:])):
            inner = Graph(self.opset, graph)
            view = self._add_next_view(inner, images, place, some)
            if view.name == images.name:  # the image itself belongs to an outer graph
                view = inner.op("Identity", view)
            described = describe_value(view.name, view.dtype, [None, *self.shape.fitted])
            branches[name] = inner.build(f"looks_{some.start}_to_{some.stop - 1}", [], [described])
        return graph.op("If", is_early, dtype=images.dtype, **branches)

    def _estimate(self, graph: Graph, running: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
        """Return `Schedule.estimate` and `Schedule.is_open` of the images of this round. float64 [m], bool [m]"""
        schedule, threshold = self.policy.schedule, self.policy.threshold
        assert schedule is not None, "there are rounds"
        change, width = (
            graph.op("Gather", graph.constant(values, np.float64), place)
            for values in (schedule.changes, schedule.widths)
        )
        low, high = (_shift(graph, running, change - width), _shift(graph, running, change + width))
        estimate = graph.op("Min", graph.op("Max", _shift(graph, running, change), low), high)
        # After the last look, both limits equal the estimate, so no image is open.
        return estimate, (low < threshold) & (high >= threshold)


def _shift(graph: Graph, confidence: Tensor, change: Tensor) -> Tensor:
    """Add `change`, a number, to the log-odds of confidences. float64 [m] -> [m]"""
    shifted = add_sigmoid(graph.op("Log", confidence) - graph.op("Log", 1.0 - confidence) + change)
    return graph.op("Where", graph.op("Equal", change, 0.0), confidence, shifted, dtype=np.float64)
