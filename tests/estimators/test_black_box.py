"""Every black-box method against its formula, written out image by image."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from secondlook.arrays import Array
from secondlook.estimators import confidence
from secondlook.predictions import Predictions

Maker = Callable[..., Predictions]
PREDICT_FROM = ("image", "views")
KINDS: list[dict[str, Any]] = [{}, {"members": 3}, {"logits": False}]


def compute_outputs(preds: Predictions) -> dict[str, Array]:
    """Return s(x) and s(D), [N, C]."""
    probabilities = np.concatenate([block for _, block in preds.blocks(rows=7)])
    return {"image": probabilities[:, 0], "views": probabilities.mean(axis=1)}


def find_top_classes(values: Array, top_k: int) -> list[int]:
    return sorted(range(len(values)), key=lambda c: (-values[c], c))[:top_k]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("predict_from", PREDICT_FROM)
@pytest.mark.parametrize("top_k", [1, 2, 6])
def test_softmax_responses(predictions: Maker, kind: dict[str, Any], predict_from: Any, top_k: int) -> None:
    preds = predictions(**kind)
    outputs = compute_outputs(preds)
    np.testing.assert_allclose(
        confidence(preds, "msr", predict_from=predict_from, top_k=top_k),
        [sum(sorted(row)[-top_k:]) for row in outputs["image"]],
    )
    classes = [find_top_classes(row, top_k) for row in outputs[predict_from]]
    expected = [row[chosen].sum() for row, chosen in zip(outputs["views"], classes, strict=True)]
    np.testing.assert_allclose(confidence(preds, "mean", predict_from=predict_from, top_k=top_k), expected)


@pytest.mark.parametrize("predict_from", PREDICT_FROM)
def test_a_single_view_and_a_subset_of_views(predictions: Maker, predict_from: Any) -> None:
    preds = predictions()
    probabilities = preds.probabilities.astype(float)
    np.testing.assert_allclose(
        confidence(preds, "view:shift:1,0", predict_from=predict_from), probabilities[:, 2].max(axis=1), rtol=1e-6
    )
    np.testing.assert_array_equal(confidence(preds, "view:identity"), confidence(preds, "msr"))
    predicted = preds.predicted(predict_from=predict_from)
    mean_of_two = probabilities[:, :2].mean(axis=1)[np.arange(preds.n_images), predicted]
    np.testing.assert_allclose(
        confidence(preds, "mean", views=["hflip"], predict_from=predict_from), mean_of_two, rtol=1e-6
    )


@pytest.mark.parametrize("predict_from", PREDICT_FROM)
@pytest.mark.parametrize("on", ["image", "views"])
def test_entropy_doctor_and_margin(predictions: Maker, predict_from: Any, on: str) -> None:
    preds = predictions()
    output = compute_outputs(preds)[on]
    predicted = preds.predicted(predict_from=predict_from)
    others = [np.delete(row, c).max() for row, c in zip(output, predicted, strict=True)]
    margins = output[np.arange(len(output)), predicted] - others
    np.testing.assert_allclose(
        confidence(preds, "entropy", predict_from=predict_from, on=on), (output * np.log(output)).sum(axis=1)
    )
    np.testing.assert_allclose(confidence(preds, "doctor", predict_from=predict_from, on=on), (output**2).sum(axis=1))
    np.testing.assert_allclose(confidence(preds, "margin", predict_from=predict_from, on=on), margins, atol=1e-15)


def test_margin_of_several_classes(predictions: Maker) -> None:
    preds = predictions()
    descending = -np.sort(-compute_outputs(preds)["image"], axis=1)
    np.testing.assert_allclose(confidence(preds, "margin", top_k=3), descending[:, 2] - descending[:, 3], atol=1e-15)
    np.testing.assert_allclose(confidence(preds, "margin", top_k=6), descending[:, 5], atol=1e-15)


@pytest.mark.parametrize("members", [0, 3])
@pytest.mark.parametrize("p", [1, 2, 4.5])
def test_logit_methods(predictions: Maker, members: int, p: float) -> None:
    preds = predictions(members=members)
    logits = np.mean([member.logits.astype(float) for member in preds.members or (preds,)], axis=0)
    rows, predicted = np.arange(preds.n_images), preds.predicted()
    exponentials = np.exp(logits.mean(axis=1))
    expected = exponentials[rows, predicted] / exponentials.sum(axis=1)
    np.testing.assert_allclose(confidence(preds, "mean-logit"), expected, rtol=1e-5)
    for on, z in (("image", logits[:, 0]), ("views", logits.mean(axis=1))):
        centered = z - z.mean(axis=1, keepdims=True)
        normalized = centered[rows, predicted] / np.linalg.norm(centered, ord=p, axis=1)
        np.testing.assert_allclose(confidence(preds, "max-logit-pnorm", p=p, on=on), normalized, rtol=1e-4, atol=1e-6)


def test_the_norm_is_tuned_on_labeled_images_with_the_softmax_response_as_fallback() -> None:
    generator = np.random.default_rng(3)
    labels = generator.integers(0, 5, 400)
    logits = generator.normal(size=(400, 1, 5))
    is_correct = generator.random(400) < 0.8
    logits[np.arange(400), 0, np.where(is_correct, labels, (labels + 1) % 5)] += 6
    # A random scale carries no information about correctness, but changes the softmax response.
    scale = generator.uniform(0.1, 10, (400, 1, 1))
    preds = Predictions(logits=logits * scale, views="identity", labels=labels)
    assert not np.array_equal(confidence(preds, "max-logit-pnorm"), confidence(preds, "msr"))
    all_correct = Predictions(logits=logits, views="identity", labels=logits[:, 0].argmax(axis=1))
    np.testing.assert_array_equal(confidence(all_correct, "max-logit-pnorm"), confidence(all_correct, "msr"))
    mask = np.arange(400) < 200
    np.testing.assert_array_equal(
        confidence(preds, "max-logit-pnorm", tune_on=mask), confidence(preds, "max-logit-pnorm", tune_on=np.arange(200))
    )


def test_equal_logits_have_no_confidence() -> None:
    flat = Predictions(logits=np.ones((2, 1, 3)), views="identity")
    assert confidence(flat, "max-logit-pnorm", p=2).tolist() == [0.0, 0.0]


def test_the_ensemble_baseline_is_the_response_of_the_mean_over_members(predictions: Maker) -> None:
    preds = predictions(members=3)
    np.testing.assert_array_equal(confidence(preds, "nn-ensemble"), confidence(preds, "msr"))
