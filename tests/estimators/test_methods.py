"""How methods are registered, found and rejected, laws of every registered method, and running confidences."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import secondlook as sl
from secondlook.arrays import Float64Array
from secondlook.errors import ConfidenceError, PredictionsError, SecondLookError, ViewError
from secondlook.estimators import (
    METHODS,
    compile_method,
    confidence,
    confidence_interval,
    default_method,
    find_method,
    method,
)
from secondlook.estimators import methods as methods_module
from secondlook.estimators.methods import split_method
from secondlook.predictions import Predictions
from secondlook.registry import Registry
from tests.estimators.conftest import make_options, make_predictions

FORMS = {"msr", "mean", "view:TEXT", "bootstrap", "max-logit-pnorm", "blend", "gen", "learned", "zero"}
MEANS = sorted(name for name in METHODS if METHODS[name].is_mean_over_views)
OTHERS = sorted(name for name in METHODS if not METHODS[name].is_mean_over_views and METHODS[name].parameter is None)
PER_IMAGE = [name for name in METHODS if name != "bootstrap"]


def with_parameter(name: str) -> str:
    return "view:hflip" if name == "view" else name


def test_the_registered_methods_are_these_and_no_name_is_registered_twice() -> None:
    assert {record.form for record in METHODS.values()} == FORMS
    for name, record in METHODS.items():
        assert record.name == name
        assert record.symbol
        assert record.summary
        assert record.words
        assert "\n" not in record.summary
    assert METHODS["bootstrap"].options == ("resamples", "window", "seed")
    assert MEANS == ["blend", "gen", "learned", "mean"]
    assert {name for name, record in METHODS.items() if record.fitted} == {"learned", "max-logit-pnorm"}
    with pytest.raises(ConfidenceError, match="'mean'"):

        @method("mean", symbol="s", summary="again")
        def again(preds: Predictions, *, predict_from: str, top_k: int) -> Float64Array:
            return np.zeros(preds.n_images)


@pytest.mark.parametrize(
    ("text", "plain", "options"),
    [
        ("mean", "mean", {}),
        ("mean?", "mean", {}),
        ("max-logit-pnorm?p=3&on=views", "max-logit-pnorm", {"p": 3, "on": "views"}),
        ("view:hflip+shift:-1,0?temperature=1.5", "view:hflip+shift:-1,0", {"temperature": 1.5}),
        ("view:really?", "view:really", {}),
        ("view:really? yes", "view:really? yes", {}),
        ("x?a=true&b=false&c=-2&d=1e-3&e=fit", "x", {"a": True, "b": False, "c": -2, "d": 0.001, "e": "fit"}),
        ("mean?views=hflip%26rot", "mean", {"views": "hflip&rot"}),
    ],
)
def test_options_may_follow_the_name_of_a_method(text: str, plain: str, options: dict[str, object]) -> None:
    found_plain, found = split_method(text)
    assert (found_plain, found) == (plain, options)
    assert split_method("mean?temperature=fit", {"temperature": 1.25}) == ("mean", {"temperature": 1.25}), "fitted"
    assert [type(value) for value in found.values()] == [type(value) for value in options.values()]


def test_options_in_the_text_are_those_given_beside_it() -> None:
    preds = make_predictions()
    assert find_method("max-logit-pnorm?p=3&on=views") is METHODS["max-logit-pnorm"]
    assert find_method("view:hflip+shift:1,0") is METHODS["view"]
    for text, plain, options in (
        ("max-logit-pnorm?p=3&on=views", "max-logit-pnorm", {"p": 3, "on": "views"}),
        ("view:shift:1,0?temperature=2.5", "view:shift:1,0", {"temperature": 2.5}),
        ("bootstrap?seed=4&resamples=50", "bootstrap", {"seed": 4, "resamples": 50}),
        ("mean?views=identity hflip", "mean", {"views": "identity hflip"}),
        ("mean?temperature=fit", "mean", {"temperature": "fit"}),
    ):
        np.testing.assert_array_equal(confidence(preds, text), confidence(preds, plain, **options))
    twice = confidence(preds, "max-logit-pnorm?on=views", on="views", p=2)
    np.testing.assert_array_equal(twice, confidence(preds, "max-logit-pnorm?on=views&p=2"))


@pytest.mark.parametrize(
    ("name", "options", "error", "mentioned"),
    [
        ("bootstrp", {}, ConfidenceError, ["'bootstrp'", "'bootstrap'"]),
        ("view", {}, ConfidenceError, ["'view'", "'view:TEXT'"]),
        ("view:", {}, ConfidenceError, ["'view:'", "'view:TEXT'"]),
        ("msr:hflip", {}, ConfidenceError, ["'msr:hflip'", "'msr'"]),
        ("msr:", {}, ConfidenceError, ["'msr:'", "'msr'"]),
        ("view:vflip", {}, PredictionsError, ["vflip"]),
        ("view:hflp", {}, ViewError, ["hflp"]),
        ("mean", {"view": "hflip"}, ConfidenceError, ["'view'", "'views'"]),
        ("zero", {"seed": 1}, ConfidenceError, ["'zero'", "'seed'"]),
        ("mean", {"top_k": 7}, PredictionsError, ["7", "6"]),
        ("msr", {"top_k": 0}, PredictionsError, ["0"]),
        ("msr", {"predict_from": "d"}, PredictionsError, ["'d'"]),
        ("max-logit-pnorm", {"on": "y"}, ConfidenceError, ["'y'"]),
        ("bootstrap", {"resamples": 0}, ConfidenceError, ["resamples", "0"]),
        ("bootstrap", {"window": 0}, ConfidenceError, ["window", "0"]),
        ("bootstrap", {"seed": -1}, ConfidenceError, ["seed", "-1"]),
        ("bootstrap", {"seed": "1"}, ConfidenceError, ["seed", "'1'"]),
        ("zero", {"share": 0}, ConfidenceError, ["share=0"]),
        ("zero?share=1.5", {}, ConfidenceError, ["share=1.5"]),
        ("zero?share=all", {}, ConfidenceError, ["share='all'"]),
        ("msr", {"temperature": 0}, ConfidenceError, ["temperature", "0"]),
        ("msr", {"temperature": "fitt"}, ConfidenceError, ["temperature", "'fitt'"]),
        ("max-logit-pnorm", {"p": 0}, ConfidenceError, ["p=0"]),
        ("max-logit-pnorm", {"p": "non"}, ConfidenceError, ["p='non'", "'none'"]),
        ("max-logit-pnorm?p=3&p=4", {}, ConfidenceError, ["'p'", "'max-logit-pnorm?p=3&p=4'"]),
        ("max-logit-pnorm?p=3", {"p": 4}, ConfidenceError, ["'p'", "3", "4"]),
        ("max-logit-pnorm?q=3", {}, ConfidenceError, ["'max-logit-pnorm'", "'q'"]),
        ("mean?tempreature=2", {}, ConfidenceError, ["'tempreature'", "'temperature'"]),
        ("mean?predict_from=views", {}, ConfidenceError, ["'predict_from'", "pass predict_from="]),
        ("mean?temperature", {}, ConfidenceError, ["'mean?temperature'"]),
        ("mean?temperature=", {}, ConfidenceError, ["'temperature='"]),
        ("meen?temperature=2", {}, ConfidenceError, ["'meen'", "'mean'"]),
        ("learned", {}, ConfidenceError, ["'learned'", "fit_method("]),
        ("learned", {"log_odds": 1.0}, ConfidenceError, ["'learned'", "intercept"]),
        ("learned", {"intercept": float("nan")}, ConfidenceError, ["intercept", "nan"]),
    ],
)
def test_invalid_requests_are_rejected_in_one_sentence(
    name: str, options: dict[str, Any], error: type[SecondLookError], mentioned: list[str]
) -> None:
    with pytest.raises(error) as raised:
        confidence(make_predictions(), name, **options)
    assert all(one in str(raised.value) for one in mentioned)
    assert "\n" not in str(raised.value)


def test_missing_logits_labels_and_views_and_plain_arrays_are_rejected() -> None:
    for members in (0, 2):
        with pytest.raises(ConfidenceError, match=r"'max-logit-pnorm'.*logits"):
            confidence(make_predictions(logits=False, members=members), "max-logit-pnorm")
    for name, offending in (("msr?temperature=fit", "temperature='fit'"), ("max-logit-pnorm", "'max-logit-pnorm'")):
        with pytest.raises(ConfidenceError, match=f"{offending}.*labels"):
            confidence(make_predictions(labels=False), name)
    with pytest.raises(ConfidenceError, match="two views"):
        confidence(make_predictions(v=1), "bootstrap")
    array: Any = np.full((3, 2, 4), 0.25)
    for compute in (confidence, confidence_interval):
        with pytest.raises(ConfidenceError, match=r"ndarray.*Predictions\(probabilities="):
            compute(array)
    with pytest.raises(ConfidenceError, match="two views"):
        confidence_interval(make_predictions(v=1))


@pytest.mark.parametrize(("values", "offending"), [([1.0, np.nan], "nan"), ([1.0], "[1]")])
def test_invalid_values_of_a_method_fail(values: list[float], offending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods_module, "METHODS", Registry("method", ConfidenceError))
    method("broken", symbol="b", summary="broken")(lambda preds, *, predict_from, top_k: np.array(values))
    preds = Predictions(probabilities=np.full((2, 1, 2), 0.5), views="identity")
    with pytest.raises(ConfidenceError, match=f"'broken'.*{re.escape(offending)}"):
        confidence(preds, "broken")


@pytest.mark.parametrize("name", ["msr", "mean", "view:hflip"])
def test_a_probability_of_several_classes_is_at_most_one(name: str) -> None:
    outputs = np.array([[[0.6, 0.4, 0.0]] * 2] * 3, dtype=np.float32)  # 0.6 + 0.4 is 1.00000003 in float32
    assert outputs[0, 0].astype(np.float64).sum() > 1
    preds = Predictions(probabilities=outputs, views="identity hflip")
    assert (confidence(preds, name, top_k=2) == 1).all()


@pytest.mark.parametrize("name", list(METHODS))
@pytest.mark.parametrize("predict_from", ["image", "views"])
@pytest.mark.parametrize("top_k", [1, 5])
@pytest.mark.parametrize("members", [0, 2])
def test_every_method_returns_one_finite_number_per_image(
    name: str, predict_from: Any, top_k: int, members: int
) -> None:
    preds = make_predictions(members=members)
    text, options = with_parameter(name), make_options(name, preds)
    values = confidence(preds, text, predict_from=predict_from, top_k=top_k, **options)
    assert values.shape == (preds.n_images,)
    assert values.dtype == np.float64
    assert np.isfinite(values).all()
    again = confidence(preds, text, predict_from=predict_from, top_k=top_k, **options)
    np.testing.assert_array_equal(values, again)


def test_a_compiled_method_checks_classes_and_parses_its_options_once() -> None:
    with pytest.raises(PredictionsError, match=r"top_k.*4"):
        compile_method("msr", top_k=4).confidence(make_predictions(c=3))
    invalid: list[Any] = [0, 1.0, True]
    for top_k in invalid:
        with pytest.raises(PredictionsError, match="top_k"):
            compile_method("msr", top_k=top_k)
    compiled = compile_method("max-logit-pnorm?on=views", {"p": 3})
    assert (compiled.name, compiled.options) == ("max-logit-pnorm", {"on": "views", "p": 3})
    assert compile_method("view:hflip").parameter == ("hflip",)


@pytest.mark.parametrize("n_views", [1, 4])
def test_the_default_confidence_is_that_of_certify(n_views: int) -> None:
    preds = make_predictions(n=400, v=n_views)
    certified = sl.certify(preds, risk=0.3, delta=0.1)
    assert certified.method == default_method(preds)
    np.testing.assert_array_equal(confidence(preds), certified.confidence(preds))
    if n_views > 1:
        np.testing.assert_array_equal(confidence_interval(preds), confidence_interval(preds, method=certified.method))


@pytest.mark.parametrize("name", PER_IMAGE)
@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 1000))
def test_the_confidence_of_an_image_does_not_depend_on_other_images(name: str, seed: int) -> None:
    preds = make_predictions(12, 3, 4, members=2, seed=seed, labels=False)
    some = np.random.default_rng(seed).permutation(12)[:5]
    options = make_options(name, preds)
    values = confidence(preds, with_parameter(name), **options)
    selected = confidence(preds.select(images=some), with_parameter(name), **options)
    np.testing.assert_allclose(selected, values[some])


@pytest.mark.parametrize("name", PER_IMAGE)
def test_sharper_outputs_have_a_higher_confidence(name: str) -> None:
    logits = np.zeros((12, 3, 4))
    logits[:, :, 2] = np.linspace(0.5, 9, 12)[:, None]
    logits[:, :, 0] = -1
    tables = [Predictions(logits=logits, views=["identity", "hflip", "shift:1,0"]) for _ in range(2)]
    preds = Predictions(members=tables, views=tables[0].views)
    assert (np.diff(confidence(preds, with_parameter(name), **make_options(name, preds))) > 0).all()


def test_confident_images_do_not_tie() -> None:
    logits = np.zeros((20, 2, 3), dtype=np.float32)
    logits[:, :, 0] = np.linspace(17, 30, 20)[:, None]
    preds = Predictions(logits=logits, views=["identity", "hflip"])
    for name in ("msr", "mean", "bootstrap", "blend"):
        assert (np.diff(confidence(preds, name)) > 0).all()


def compute_running(preds: Predictions, name: str, predict_from: Any = "image", top_k: int = 1, **options: Any) -> Any:
    return compile_method(name, options, predict_from=predict_from, top_k=top_k).running(preds)


@pytest.mark.parametrize("name", MEANS)
@pytest.mark.parametrize("predict_from", ["image", "views"])
@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("members", [0, 3])
def test_each_column_is_that_of_the_first_views(name: str, predict_from: str, top_k: int, members: int) -> None:
    preds = make_predictions(v=5, members=members)
    given_options = {"predict_from": predict_from, "top_k": top_k, **make_options(name, preds)}
    running = compute_running(preds, name, **given_options)
    assert running.shape == (preds.n_images, 5)
    for count in range(1, 6):
        part = preds.select(views=list(preds.views.texts[:count]))
        np.testing.assert_allclose(running[:, count - 1], confidence(part, name, **given_options), rtol=1e-12)


@pytest.mark.parametrize("name", MEANS)
@pytest.mark.parametrize("predict_from", ["image", "views"])
def test_further_views_change_no_bit_of_what_was_known(name: str, predict_from: str) -> None:
    # As many views as NumPy adds up in another order than one after another.
    logits = np.random.default_rng(0).normal(0, 3, (40, 20, 6))
    preds = Predictions(logits=logits, views=["identity", *(f"shift:{shift},0" for shift in range(1, 20))])
    given_options = {"predict_from": predict_from, **make_options(name, preds)}
    running = compute_running(preds, name, **given_options)
    for count in range(1, 21):
        part = preds.select(views=list(preds.views.texts[:count]), images=np.arange(7, 20))
        np.testing.assert_array_equal(compute_running(part, name, **given_options), running[7:20, :count])


@pytest.mark.parametrize("name", MEANS)
def test_mean_of_the_statistics_makes_the_confidence(name: str) -> None:
    preds = make_predictions(members=2)
    options = make_options(name, preds)
    values, combine = compile_method(name, options).view_statistics(preds)
    assert values.shape[1:] == (preds.n_images, preds.n_views)
    combined = combine(values.mean(axis=2, keepdims=True))[:, 0]
    np.testing.assert_allclose(combined, confidence(preds, name, **options), rtol=1e-12)


def test_other_methods_and_fixed_views_are_refused() -> None:
    for name in OTHERS:
        with pytest.raises(ConfidenceError, match="'blend'") as error:
            compute_running(make_predictions(), name)
        assert repr(name) in str(error.value)
    with pytest.raises(ConfidenceError, match="'views'"):
        compute_running(make_predictions(), "mean", views=["identity", "hflip"])
