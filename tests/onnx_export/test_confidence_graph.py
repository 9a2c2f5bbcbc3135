"""Predicted classes and confidences as ONNX operators against the estimators, and looks against the schedule."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook.arrays import Array, Output
from secondlook.errors import ExportError
from secondlook.estimators import METHODS, confidence
from secondlook.onnx_export.confidence_graph import CONFIDENCES, LookOutputs, add_confidence, check_method
from secondlook.onnx_export.graph import Graph, Tensor
from secondlook.policies import Policy
from secondlook.predictions import PredictFrom, Predictions
from tests.estimators.conftest import LEARNED_WEIGHTS, make_predictions
from tests.onnx_export.running import run_graph

CASES: dict[str, list[dict[str, Any]]] = {
    "msr": [{}, {"temperature": 2.5}],
    "mean": [{}, {"temperature": 0.5}, {"views": "identity shift:1,0"}],
    "view:hflip": [{}, {"temperature": 3.0}],
    "max-logit-pnorm": [{"p": 3}, {"p": 0.5, "on": "views"}, {"p": "none", "on": "views", "temperature": 2.0}],
    "blend": [{}],
    "learned": [LEARNED_WEIGHTS],
    "gen": [{}],
}
"""Options of each method to try."""


def list_outputs(preds: Predictions) -> tuple[Array, list[Output]]:
    """Return the outputs of all members side by side, float32 [n, views, members * classes], and their kinds."""
    members = preds.members or (preds,)
    kinds: list[Output] = ["logits" if member.has_logits else "probabilities" for member in members]
    outputs = [member.logits if member.has_logits else member.probabilities for member in members]
    return np.concatenate(outputs, axis=2).astype(np.float32), kinds


def compute_in_graph(preds: Predictions, rule: Policy) -> tuple[Array, Array, Array]:
    """Return the confidence, the predicted classes and the mean probabilities that the graph computes."""
    outputs, kinds = list_outputs(preds)

    def add(graph: Graph, tensor: Tensor) -> list[Tensor]:
        seen = LookOutputs(graph, rule, tensor, kinds, preds.views, preds.n_classes)
        return [add_confidence(seen), seen.classes, seen.mean]

    values, classes, mean = run_graph(add, outputs)
    return values, classes, mean


def as_float32(preds: Predictions) -> Predictions:
    """Return predictions with the numbers that a classifier would output."""
    if preds.members:
        return Predictions(members=[as_float32(member) for member in preds.members], views=preds.views)
    outputs, (kind,) = list_outputs(preds)
    named: dict[str, Any] = {kind: outputs}
    return Predictions(**named, views=preds.views)


def list_kinds() -> list[tuple[str, str]]:
    """Return each method with the kinds of predictions that it can be computed from."""
    kinds = {"logits": {"logits"}, "probabilities": set(), "members": {"logits"}}
    needs = {method: set(METHODS[method.partition(":")[0]].needs) for method in CASES}
    return [(method, kind) for method in CASES for kind, has in kinds.items() if needs[method] <= has]


@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("predict_from", ["image", "views"])
@pytest.mark.parametrize(("method", "kind"), list_kinds())
def test_confidence_equals_the_estimator(method: str, kind: str, predict_from: PredictFrom, top_k: int) -> None:
    preds = as_float32(make_predictions(members=3 * (kind == "members"), logits=kind != "probabilities"))
    for options in CASES[method]:
        rule = Policy(threshold=0.5, method=method, predict_from=predict_from, top_k=top_k, options=options)
        values, classes, mean = compute_in_graph(preds, rule)
        expected = confidence(preds, method, predict_from=predict_from, top_k=top_k, **options)
        np.testing.assert_allclose(values, expected, rtol=1e-12, atol=1e-13, err_msg=str(options))
        np.testing.assert_array_equal(classes, preds.predicted(predict_from, top_k).reshape(-1, top_k))
        np.testing.assert_allclose(mean, preds.probabilities.mean(axis=1), atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 9),
    st.integers(2, 6),
    st.integers(2, 7),
    st.sampled_from(["mean", "blend", "msr", "gen"]),
)
def test_extreme_outputs_equal_the_estimator(seed: int, n: int, v: int, c: int, method: str) -> None:
    """Saturated outputs, ties and equal rows: float32 would lose the digits that decide."""
    generator = np.random.default_rng(seed)
    logits = generator.choice([-300.0, -40.0, 0.0, 0.0, 1.0, 36.0, 700.0], (n, v, c)).astype(np.float32)
    preds = Predictions(logits=logits, views=make_predictions(v=v).views)
    values, classes, _ = compute_in_graph(preds, Policy(threshold=0.5, method=method))
    np.testing.assert_allclose(values, confidence(preds, method), rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(classes[:, 0], preds.predicted())


def test_every_method_is_tested_or_rejected_and_logit_methods_need_logits() -> None:
    assert {name.partition(":")[0] for name in CASES} == set(CONFIDENCES)
    for name in set(METHODS) - set(CONFIDENCES):
        with pytest.raises(ExportError, match=name):
            check_method(Policy(threshold=0.5, method=name))
    with pytest.raises(ExportError, match="temperature='fit'"):
        check_method(Policy(threshold=0.5, method="mean", options={"temperature": "fit"}))
    preds = as_float32(make_predictions(logits=False))
    with pytest.raises(ExportError, match="max-logit-pnorm"):
        compute_in_graph(preds, Policy(threshold=0.5, method="max-logit-pnorm", options={"p": 3}))
