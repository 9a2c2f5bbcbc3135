"""How methods are named, registered and refused: one sentence for each mistake."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from secondlook.arrays import Float64Array
from secondlook.errors import ConfidenceError, PredictionsError, SecondLookError, ViewError
from secondlook.estimators import METHODS, bootstrap_confidences, confidence, confidence_interval, method
from secondlook.estimators.registry import find_method
from secondlook.predictions import Predictions

Maker = Callable[..., Predictions]

GUARANTEED = {
    *("msr", "mean", "view", "bootstrap", "bootstrap-lower", "mc-dropout", "distance", "nn-ensemble"),
    *("entropy", "margin", "doctor", "max-logit-pnorm", "mean-logit"),
}
HEAVY = {"torch", "numba", "cv2", "onnxruntime", "pyarrow", "sklearn", "scipy", "plotly", "ray", "transformers"}


def test_every_guaranteed_method_exists_and_says_what_it_is() -> None:
    assert set(METHODS) == GUARANTEED
    for name, record in METHODS.items():
        assert record.name == name
        assert record.symbol
        assert record.summary
        assert "\n" not in record.summary
    assert METHODS["view"].form == "view:TEXT"
    assert METHODS["bootstrap"].options == ("resamplings", "window", "seed")


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ConfidenceError, match="'mean' is registered already"):

        @method("mean", symbol="s", summary="again")
        def again(preds: Predictions, *, predict_from: str, top_k: int) -> Float64Array:
            return np.zeros(preds.n_images)


def test_a_view_may_contain_colons() -> None:
    assert find_method("view:hflip+shift:1,0")[1] == ("hflip+shift:1,0",)


@pytest.mark.parametrize(
    ("name", "options", "error", "says"),
    [
        ("bootstrp", {}, ConfidenceError, "Did you mean 'bootstrap'"),
        ("view", {}, ConfidenceError, "write it as 'view:TEXT'"),
        ("view:", {}, ConfidenceError, "write it as 'view:TEXT'"),
        ("msr:hflip", {}, ConfidenceError, "write it as 'msr'"),
        ("view:vflip", {}, PredictionsError, "'vflip' is not among the predictions"),
        ("view:hflp", {}, ViewError, "hflp"),
        ("mean", {"view": "hflip"}, ConfidenceError, "Did you mean 'views'"),
        ("nn-ensemble", {"seed": 1}, ConfidenceError, "has no option 'seed'"),
        ("mean", {"top_k": 7}, PredictionsError, "top_k is 7; expected .* from 1 to 6"),
        ("msr", {"top_k": 0}, PredictionsError, "top_k is 0"),
        ("msr", {"predict_from": "d"}, ConfidenceError, "by is 'd'"),
        ("entropy", {"on": "y"}, ConfidenceError, "on is 'y'"),
        ("nn-ensemble", {}, ConfidenceError, r"needs the members of an ensemble; collect with Ensemble"),
        ("mc-dropout", {}, ConfidenceError, r"needs passes=, which mc_dropout_passes\(classifier, images\) makes"),
        ("distance", {"embeddings": np.ones((40, 2))}, ConfidenceError, "train_embeddings= and train_labels="),
        ("bootstrap", {"resamplings": 0}, ConfidenceError, "resamplings is 0"),
        ("bootstrap", {"window": 0}, ConfidenceError, "at least 1"),
        ("bootstrap", {"seed": -1}, ConfidenceError, "seed is -1"),
        ("bootstrap-lower", {"level": 1.0}, ConfidenceError, "level is 1.0"),
        ("msr", {"temperature": 0}, ConfidenceError, "temperature is 0"),
        ("msr", {"temperature": "fitt"}, ConfidenceError, "temperature is 'fitt'"),
        ("max-logit-pnorm", {"p": 0}, ConfidenceError, "p is 0"),
    ],
)
def test_a_mistake_gets_one_sentence(
    predictions: Maker, name: str, options: dict[str, Any], error: type[SecondLookError], says: str
) -> None:
    with pytest.raises(error, match=says) as raised:
        confidence(predictions(), name, **options)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["mean-logit", "max-logit-pnorm"])
@pytest.mark.parametrize("members", [0, 2])
def test_logits_are_asked_for(predictions: Maker, name: str, members: int) -> None:
    with pytest.raises(ConfidenceError, match="needs logits; collect from a classifier that gives them"):
        confidence(predictions(logits=False, members=members), name)


def test_labels_are_asked_for(predictions: Maker) -> None:
    with pytest.raises(ConfidenceError, match="temperature='fit' needs labels"):
        confidence(predictions(labels=False), "msr", temperature="fit")
    with pytest.raises(ConfidenceError, match="needs labels to choose p"):
        confidence(predictions(labels=False), "max-logit-pnorm")


@pytest.mark.parametrize(
    "ask", [lambda p: confidence(p, "bootstrap"), lambda p: confidence(p, "bootstrap-lower"), confidence_interval]
)
def test_the_bootstrap_says_that_it_needs_two_views(predictions: Maker, ask: Callable[[Predictions], Any]) -> None:
    with pytest.raises(ConfidenceError, match="at least two views"):
        ask(predictions(v=1))


@pytest.mark.parametrize(
    ("change", "says"),
    [(np.nan, "not finite"), (-0.5, "negative"), (0.9, "do not sum to 1")],
)
def test_bad_probabilities_never_reach_a_method(change: float, says: str) -> None:
    shares = np.full((3, 2, 4), 0.25)
    shares[1, 1, 2] = change
    with pytest.raises(PredictionsError, match=says):
        confidence(Predictions(probabilities=shares, views=["identity", "hflip"]), "mean")


def test_arrays_are_refused_with_the_way_to_wrap_them() -> None:
    array: Any = np.full((3, 2, 4), 0.25)
    for ask in (confidence, confidence_interval, bootstrap_confidences):
        with pytest.raises(ConfidenceError, match=r"wrap arrays .* as Predictions\(probabilities="):
            ask(array)


@pytest.mark.parametrize(("values", "says"), [([1.0, np.nan], "of image 1 is nan"), ([1.0], r"expected float64 \[2\]")])
def test_a_broken_method_cannot_hand_on_what_it_computed(
    values: list[float], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from secondlook.estimators import registry

    monkeypatch.setattr(registry, "_methods", {})
    method("broken", symbol="b", summary="broken")(lambda preds, *, predict_from, top_k: np.array(values))
    preds = Predictions(probabilities=np.full((2, 1, 2), 0.5), views="identity")
    with pytest.raises(ConfidenceError, match=says):
        confidence(preds, "broken")


def test_importing_the_room_loads_nothing_heavy() -> None:
    code = (
        "import sys, secondlook.estimators as e; e.METHODS, e.confidence, e.confidence_interval, e.plurality_order; "
        f"sys.exit(', '.join({HEAVY} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["msr", "mean", "bootstrap-lower", "view:hflip"])
def test_a_probability_is_at_most_one_also_for_several_classes(name: str) -> None:
    answers = np.array([[[0.6, 0.4, 0.0]] * 2] * 3, dtype=np.float32)  # 0.6 + 0.4 is 1.00000003 in these digits
    assert answers[0, 0].astype(np.float64).sum() > 1
    preds = Predictions(probabilities=answers, views="identity hflip")
    assert (confidence(preds, name, top_k=2) == 1).all()
