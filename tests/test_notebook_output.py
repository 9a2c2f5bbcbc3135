"""Notebook output of results: the same texts and numbers as `print`, escaped."""

import html
import re
from typing import Any

import numpy as np
import pytest

import secondlook as sl
from secondlook.diagnosis import diagnose_views
from tests.policy_maker import attach

INJECTION = "<script>alert('$x$')</script>"


@pytest.fixture(scope="module")
def preds() -> sl.Predictions:
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=200)
    logits = 2 * rng.normal(size=(200, 1, 3)) + 0.3 * rng.normal(size=(200, 4, 3))
    logits[np.arange(200), :, labels] += 2
    names = (INJECTION, "b", "c")
    return sl.Predictions(logits=logits, views="identity hflip shift:1,0 shift:0,1", labels=labels, class_names=names)


def test_notebooks_show_what_print_shows(preds: sl.Predictions) -> None:
    model = sl.load_classifier(lambda images: np.ones((len(images), 3)) / 3, output="probabilities", name=INJECTION)
    rule = sl.certify(preds, risk=0.5, delta=0.1)
    results: dict[str, Any] = {
        "evaluation": sl.evaluate(preds, {INJECTION: sl.confidence(preds, "mean")}, groups="class", resamples=5),
        "comparison": sl.compare({INJECTION: preds}, resamples=5),
        "rule": rule,
        "rule without a guarantee": sl.certify(preds, risk=0.0001, delta=0.001),
        "diagnosis": diagnose_views(preds),
        "policy": attach(rule, classifier=model, views=preds.views.texts, data="npz:a.npz", data_digest="0"),
    }
    for name, result in results.items():
        shown = result._repr_html_()
        assert "<script" not in shown, name
        assert html.unescape(re.sub(r"<[^>]*>", " ", shown)).split() == str(result).split(), name


def test_view_set_is_a_numbered_list() -> None:
    shown = sl.ViewSet("digits")._repr_html_()
    assert "15 views, preset digits" in shown
    for place, text in enumerate(sl.ViewSet("digits").texts):
        assert re.search(rf"<td[^>]*>{place}</td><td>{re.escape(html.escape(text))}</td>", shown)
