"""Statistics of images: those of parts, joined, are those of all images to the last bit, for every method."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook.errors import ConfidenceError, MetricError
from secondlook.estimators import METHODS, FittedMethods, confidence, fit_methods, method, methods
from secondlook.evaluation import ImageStatistics, evaluate
from secondlook.predictions import PredictFrom, Predictions
from secondlook.registry import Registry

VIEWS = ("identity", "hflip", "shift:1,0", "shift:0,1")
NEEDS_MORE_THAN_OUTPUTS = ("passes", "embeddings")
LEARNED = "learned?intercept=-.5&log_odds=.3&log_margin=.2&margin=.7&logit_norm=1.1&image_log_odds=.1"
TEXTS = {
    "view": ["view:hflip"],
    "learned": [LEARNED],
    "max-logit-pnorm": ["max-logit-pnorm?p=3", "max-logit-pnorm?p=2&on=views"],
    "bootstrap": ["bootstrap", "bootstrap?seed=3&window=5&resamplings=20"],
    "entropy": ["entropy", "entropy?on=views&temperature=2"],
}
"""Texts of methods that need a parameter or fitted options, or read other outputs with some options."""
BLACK_BOX = [
    text
    for name, record in METHODS.items()
    if not set(record.needs) & set(NEEDS_MORE_THAN_OUTPUTS)
    for text in TEXTS.get(name, [name])
]


def make_predictions(seed: int, n: int, v: int, c: int, members: int, *, kind: str = "logits") -> Predictions:
    """Return random outputs of one classifier (members = 0) or of an ensemble; some images are copies."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(c, size=n)
    copies = generator.integers(0, n, n)
    tables = []
    for _ in range(max(1, members)):
        values = 3 * generator.normal(size=(n, v, c))
        values = np.where(generator.random(n)[:, None, None] < 0.3, values[copies], values).astype(np.float32)
        if kind == "probabilities":
            values = np.exp(values) / np.exp(values).sum(axis=2, keepdims=True)
        outputs: dict[str, Any] = {kind: values}
        tables.append(Predictions(**outputs, views=VIEWS[:v], labels=labels))
    return Predictions(members=tables, views=tables[0].views) if members else tables[0]


def list_arrays(statistics: ImageStatistics) -> dict[str, Any]:
    """Return all values as bytes."""
    arrays: dict[str, Any] = {"ids": statistics.ids, "shape": (statistics.n_members, statistics.n_views)}
    for name, values in statistics.columns.items():
        arrays[name] = values.dtype, values.shape, values.tobytes()
    return arrays


@st.composite
def divided_predictions(draw: st.DrawFn) -> tuple[Predictions, list[slice]]:
    """Draw predictions, and where to cut them: parts of one image and of many."""
    n, v, c = draw(st.integers(2, 40)), draw(st.integers(2, 4)), draw(st.sampled_from([2, 3, 7, 130]))
    kind = draw(st.sampled_from(["logits", "probabilities"]))
    preds = make_predictions(draw(st.integers(0, 10**6)), n, v, c, draw(st.sampled_from([0, 2, 3])), kind=kind)
    cuts = sorted(draw(st.sets(st.integers(1, n - 1), max_size=4)))
    edges = [0, *cuts, n]
    return preds, [slice(a, b) for a, b in itertools.pairwise(edges)]


def fit_all(preds: Predictions, texts: list[str], predict_from: PredictFrom, top_k: int) -> FittedMethods:
    """Return the methods that these predictions have what they need for."""
    kinds = {"logits": preds.members[0].has_logits if preds.members else preds.has_logits, "members": preds.members}
    usable = [
        text for text in texts if all(kinds.get(need, True) for need in METHODS[text.split(":")[0].split("?")[0]].needs)
    ]
    return fit_methods(preds, usable, predict_from=predict_from, top_k=top_k)


@settings(deadline=None, max_examples=60)
@given(divided_predictions(), st.sampled_from(["image", "views"]), st.integers(1, 2))
def test_statistics_of_parts_joined_are_those_of_all_images(
    divided: tuple[Predictions, list[slice]], predict_from: PredictFrom, top_k: int
) -> None:
    preds, parts = divided
    fitted = fit_all(preds, BLACK_BOX, predict_from, top_k)
    whole = ImageStatistics.compute(preds, fitted)
    positions = np.arange(preds.n_images)
    computed = [ImageStatistics.compute(preds.select(images=positions[part]), fitted) for part in parts]
    assert list_arrays(ImageStatistics.join(computed)) == list_arrays(whole)
    read = [ImageStatistics.from_arrow(one.to_arrow()) for one in computed]
    assert list_arrays(ImageStatistics.join(read)) == list_arrays(whole)
    chosen = positions[::2]
    expected = ImageStatistics.compute(preds.select(images=chosen), fitted)
    assert list_arrays(whole.select(chosen)) == list_arrays(expected)


def test_every_black_box_method_is_part_of_the_statistics_or_follows_from_them() -> None:
    preds = make_predictions(3, 50, 4, 5, 2)
    fitted = fit_all(preds, BLACK_BOX, "image", 1)
    assert set(fitted.options) == set(BLACK_BOX)
    statistics = ImageStatistics.compute(preds, fitted)
    prefix, columns = "confidence:", statistics.columns
    found = {name.removeprefix(prefix): columns[name] for name in columns if name.startswith(prefix)}
    for text, values in found.items():
        np.testing.assert_array_equal(values, confidence(preds, text))
    assert set(BLACK_BOX) - set(found) == {*TEXTS["bootstrap"]}
    result = statistics.evaluate(fitted, ["auroc"], resamples=5)
    assert result == evaluate(preds, BLACK_BOX, ["auroc"], resamples=5)
    for text in TEXTS["bootstrap"]:  # without the statistics, as a user would
        own = evaluate(preds, {text: confidence(preds, text)}, ["auroc"], resamples=5)
        assert result[text, "auroc"].value == own[text, "auroc"].value


def test_joined_statistics_with_and_without_labels_have_none() -> None:
    labeled = make_predictions(1, 9, 3, 4, 0)
    unlabeled = Predictions(logits=labeled.logits, views=labeled.views)
    fitted = fit_methods(labeled, ["msr", "bootstrap"])
    joined = ImageStatistics.join(
        [ImageStatistics.compute(labeled, fitted), ImageStatistics.compute(unlabeled, fitted, is_judged=False)]
    )
    assert joined.n_images == 18
    assert list(joined.columns) == ["confidence:msr", "other_mass"]


def test_ranking_with_invalid_options_is_rejected_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    preds = make_predictions(1, 9, 1, 4, 0)
    fitted = fit_methods(preds, ["msr", "bootstrap"])
    monkeypatch.setattr(Predictions, "blocks", lambda *_: pytest.fail("read"))
    with pytest.raises(ConfidenceError, match="two views"):
        ImageStatistics.compute(preds, fitted)


def test_rank_by_something_else_is_evaluated_but_not_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    registry: Registry[Any] = Registry("method", ConfidenceError)
    for record in METHODS.values():
        registry.add(record)
    monkeypatch.setattr(methods, "METHODS", registry)

    @method("position", symbol="n", summary="rank by position", is_rank=True)
    def position(preds: Predictions, *, predict_from: str, top_k: int) -> Any:
        return np.arange(float(preds.n_images))

    preds = make_predictions(1, 30, 3, 4, 0)
    result = evaluate(preds, ["position"], ["auroc"], resamples=5)
    own = {"position": np.arange(30.0)}
    assert result["position", "auroc"] == evaluate(preds, own, ["auroc"], resamples=5).rows[0]
    ImageStatistics.check_divisible(["mean", "bootstrap?seed=3"])
    with pytest.raises(MetricError, match="'position'"):
        ImageStatistics.check_divisible(["mean", "position"])
