"""Every method against its formula written out image by image, and laws over the whole registry."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook.arrays import Array
from secondlook.estimators import METHODS, confidence
from secondlook.predictions import Predictions

Maker = Callable[..., Predictions]
BY = ("image", "views")
KINDS: list[dict[str, Any]] = [{}, {"members": 3}, {"logits": False}]


def options_of(name: str, preds: Predictions) -> dict[str, Any]:
    """What a method cannot do without, made up."""
    generator = np.random.default_rng(1)
    if name == "mc-dropout":
        return {"passes": generator.dirichlet(np.ones(preds.n_classes), size=(5, preds.n_images))}
    if name == "distance":
        here = generator.normal(size=(preds.n_images, 3))
        labels = generator.integers(0, preds.n_classes, 30)
        return {
            "embeddings": here,
            "train_embeddings": generator.normal(size=(30, 3)),
            "train_labels": labels,
            "neighbors": 9,
        }
    return {"p": 3} if name == "max-logit-pnorm" else {}


def asked_name(name: str) -> str:
    return "view:hflip" if name == "view" else name


def outputs(preds: Predictions) -> tuple[Array, Array]:
    """s(x) and s(D), [N, C]"""
    shares = np.concatenate([block for _, block in preds.blocks(rows=7)])
    return shares[:, 0], shares.mean(axis=1)


def top(values: Array, top_k: int) -> list[int]:
    return sorted(range(len(values)), key=lambda c: (-values[c], c))[:top_k]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("predict_from", BY)
@pytest.mark.parametrize("top_k", [1, 2, 6])
def test_softmax_responses(predictions: Maker, kind: dict[str, Any], predict_from: Any, top_k: int) -> None:
    preds = predictions(**kind)
    of_x, of_d = outputs(preds)
    classes = [top(row, top_k) for row in (of_x if predict_from == "image" else of_d)]
    np.testing.assert_allclose(
        confidence(preds, "msr", predict_from=predict_from, top_k=top_k), [sum(sorted(row)[-top_k:]) for row in of_x]
    )
    expected = [row[chosen].sum() for row, chosen in zip(of_d, classes, strict=True)]
    np.testing.assert_allclose(confidence(preds, "mean", predict_from=predict_from, top_k=top_k), expected)


@pytest.mark.parametrize("predict_from", BY)
def test_single_view_and_subset(predictions: Maker, predict_from: Any) -> None:
    preds = predictions()
    shares = preds.probabilities.astype(float)
    np.testing.assert_allclose(
        confidence(preds, "view:shift:1,0", predict_from=predict_from), shares[:, 2].max(axis=1), rtol=1e-6
    )
    np.testing.assert_array_equal(confidence(preds, "view:identity"), confidence(preds, "msr"))
    flipped = shares[:, :2].mean(axis=1)[np.arange(preds.n_images), preds.predicted(predict_from=predict_from)]
    np.testing.assert_allclose(
        confidence(preds, "mean", views=["hflip"], predict_from=predict_from), flipped, rtol=1e-6
    )


@pytest.mark.parametrize("predict_from", BY)
@pytest.mark.parametrize("on", ["image", "views"])
def test_black_box_scores(predictions: Maker, predict_from: Any, on: str) -> None:
    preds = predictions()
    output = outputs(preds)["xD".index(on)]
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
    ordered = -np.sort(-outputs(preds)[0], axis=1)
    np.testing.assert_allclose(confidence(preds, "margin", top_k=3), ordered[:, 2] - ordered[:, 3], atol=1e-15)
    np.testing.assert_allclose(confidence(preds, "margin", top_k=6), ordered[:, 5], atol=1e-15)


@pytest.mark.parametrize("members", [0, 3])
@pytest.mark.parametrize("p", [1, 2, 4.5])
def test_logit_methods(predictions: Maker, members: int, p: float) -> None:
    preds = predictions(members=members)
    logits = np.mean([table.logits.astype(float) for table in preds.members or (preds,)], axis=0)
    rows, predicted = np.arange(preds.n_images), preds.predicted()
    of_mean = np.exp(logits.mean(axis=1))
    expected = of_mean[rows, predicted] / of_mean.sum(axis=1)
    np.testing.assert_allclose(confidence(preds, "mean-logit"), expected, rtol=1e-5)
    for on, z in (("image", logits[:, 0]), ("views", logits.mean(axis=1))):
        centerd = z - z.mean(axis=1, keepdims=True)
        normed = centerd[rows, predicted] / np.linalg.norm(centerd, ord=p, axis=1)
        np.testing.assert_allclose(confidence(preds, "max-logit-pnorm", p=p, on=on), normed, rtol=1e-4, atol=1e-6)


def test_norm_is_chosen_on_the_labeled_images_or_the_response_stays() -> None:
    generator = np.random.default_rng(3)
    labels = generator.integers(0, 5, 400)
    logits = generator.normal(size=(400, 1, 5))
    right = generator.random(400) < 0.8
    logits[np.arange(400), 0, np.where(right, labels, (labels + 1) % 5)] += 6
    # Scaling says nothing about being right, and the softmax response listens to it.
    noisy = Predictions(logits=logits * generator.uniform(0.1, 10, (400, 1, 1)), views="identity", labels=labels)
    assert not np.array_equal(confidence(noisy, "max-logit-pnorm"), confidence(noisy, "msr"))
    all_right = Predictions(logits=logits, views="identity", labels=logits[:, 0].argmax(axis=1))
    np.testing.assert_array_equal(confidence(all_right, "max-logit-pnorm"), confidence(all_right, "msr"))
    mask = np.arange(400) < 200
    np.testing.assert_array_equal(
        confidence(noisy, "max-logit-pnorm", tune_on=mask), confidence(noisy, "max-logit-pnorm", tune_on=np.arange(200))
    )


def test_equal_logits_are_no_confidence_at_all() -> None:
    flat = Predictions(logits=np.ones((2, 1, 3)), views="identity")
    assert confidence(flat, "max-logit-pnorm", p=2).tolist() == [0.0, 0.0]


def test_ensemble_baseline_is_the_response_of_the_mean(predictions: Maker) -> None:
    preds = predictions(members=3)
    np.testing.assert_array_equal(confidence(preds, "nn-ensemble"), confidence(preds, "msr"))


@pytest.mark.parametrize("name", list(METHODS))
@pytest.mark.parametrize("predict_from", BY)
@pytest.mark.parametrize("top_k", [1, 5])
@pytest.mark.parametrize("members", [0, 2])
def test_every_method_gives_one_finite_number_per_image(
    predictions: Maker, name: str, predict_from: Any, top_k: int, members: int
) -> None:
    preds = predictions(members=2 if name == "nn-ensemble" else members)
    values = confidence(preds, asked_name(name), predict_from=predict_from, top_k=top_k, **options_of(name, preds))
    assert values.shape == (preds.n_images,)
    assert values.dtype == np.float64
    assert np.isfinite(values).all()
    again = confidence(preds, asked_name(name), predict_from=predict_from, top_k=top_k, **options_of(name, preds))
    np.testing.assert_array_equal(values, again)


PER_IMAGE = [name for name in METHODS if name not in ("bootstrap", "mc-dropout", "distance")]


@pytest.mark.parametrize("name", PER_IMAGE)
@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 1000))
def test_an_image_does_not_depend_on_its_neighbors(name: str, seed: int) -> None:
    generator = np.random.default_rng(seed)
    tables = [
        Predictions(logits=generator.normal(size=(12, 3, 4)) * 3, views=["identity", "hflip", "shift:1,0"])
        for _ in range(2)
    ]
    preds = Predictions(members=tables, views=tables[0].views)
    some = generator.permutation(12)[:5]
    options = options_of(name, preds)
    whole = confidence(preds, asked_name(name), **options)
    np.testing.assert_allclose(confidence(preds.select(images=some), asked_name(name), **options), whole[some])


@pytest.mark.parametrize("name", PER_IMAGE)
def test_surer_outputs_have_a_higher_confidence(name: str) -> None:
    strength = np.linspace(0.5, 9, 12)
    logits = np.zeros((12, 3, 4))
    logits[:, :, 2] = strength[:, None]
    logits[:, :, 0] = -1
    tables = [Predictions(logits=logits, views=["identity", "hflip", "shift:1,0"]) for _ in range(2)]
    preds = Predictions(members=tables, views=tables[0].views)
    assert (np.diff(confidence(preds, asked_name(name), **options_of(name, preds))) > 0).all()


def test_sure_images_do_not_tie() -> None:
    gaps = np.linspace(17, 30, 20)
    logits = np.zeros((20, 2, 3), dtype=np.float32)
    logits[:, :, 0] = gaps[:, None]
    preds = Predictions(logits=logits, views=["identity", "hflip"])
    for name in ("msr", "mean", "bootstrap"):
        assert (np.diff(confidence(preds, name)) > 0).all()
