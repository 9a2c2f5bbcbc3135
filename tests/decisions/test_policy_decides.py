"""From predictions to a policy that decides about images: what it needs, what it refuses, and how little it does."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest
from PIL import Image

import secondlook as sl
from secondlook.arrays import Array
from secondlook.classifiers import Classifier
from secondlook.decisions import Decision
from secondlook.errors import DecisionError
from secondlook.policies import Policy, certify_confidence

DIGITS = Path(sl.__file__).parent / "cli" / "demo_data" / "digits.onnx"
PACKAGE = str(Path(sl.__file__).parent)
VIEWS = "identity shift:1,0 shift:0,1 rotate:5 zoom:1.1"
MAX_FUNCTIONS = 60
"""Of secondlook that a warm decision may pass."""
MAX_OWN_FUNCTIONS = 15
"""Of policies and decisions among them."""


@pytest.fixture
def collected(classifier: Classifier, bright_or_dark: tuple[Array, Array]) -> sl.Predictions:
    images, labels = bright_or_dark
    return sl.collect(classifier, images, "identity hflip shift:1,0", labels=labels)


def test_numbers_need_the_name_of_their_method(collected: sl.Predictions) -> None:
    policy = sl.certify(collected, "blend", risk=0.1, delta=0.1)
    confidence = sl.confidence(collected, "blend")
    with pytest.raises(DecisionError, match="method='blend'"):
        policy.accept(confidence)
    with pytest.raises(DecisionError, match=r"'blend'.*'mean'"):
        policy.accept(sl.confidence(collected, "mean"), method="mean")
    np.testing.assert_array_equal(policy.accept(confidence, method="blend"), policy.accept(collected))
    assert policy.accept(collected).mean() == pytest.approx(policy.coverage, abs=0.02)


def test_policy_of_confidences_from_elsewhere_needs_their_name(collected: sl.Predictions) -> None:
    values = sl.confidence(collected, "mean")
    policy = certify_confidence(collected.correct(), values, risk=0.1, delta=0.1)
    with pytest.raises(DecisionError, match="method='external'"):
        policy.accept(values)
    assert policy.accept(values, method="external").mean() == policy.coverage


def test_policy_of_arrays_says_so_when_an_image_is_given(classifier: Classifier, images: Array) -> None:
    arrays = np.random.default_rng(0).dirichlet([0.2, 0.2], (400, 1)).astype(np.float32)
    preds = sl.Predictions(probabilities=arrays, views=["identity"], labels=arrays[:, 0].argmax(axis=1))
    policy = sl.certify(preds, risk=0.1, delta=0.1)
    assert policy.certified
    for use in (policy.decide, policy.bind().decide):
        with pytest.raises(DecisionError, match="from arrays"):
            use(images[0])
    with pytest.raises(DecisionError, match=r"from arrays.*allow_mismatch=True"):
        policy.bind(classifier).decide(images[0])
    assert policy.bind(classifier, allow_mismatch=True).decide(images[0]).guarantee is None


def test_bound_policy_decides(collected: sl.Predictions, classifier: Classifier, images: Array) -> None:
    policy = sl.certify(collected, risk=0.1, delta=0.1)
    with pytest.raises(DecisionError, match="classifier="):
        policy.decide(images[0])
    bound = policy.bind(classifier)
    decision = bound.decide(images[0])
    assert isinstance(decision, Decision)
    assert decision.guarantee == policy.guarantee
    assert decision.accept == policy.accept(collected)[0]
    assert decision.confidence == pytest.approx(sl.confidence(collected, policy.method)[0])


@pytest.fixture
def digits() -> tuple[Array, Array]:
    """Digits uint8 [1797, 16, 16, 1], and their labels."""
    import cv2
    from sklearn.datasets import load_digits

    small, labels = load_digits(return_X_y=True)
    pixels = np.rint(small.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    large = [cv2.resize(image, (16, 16), interpolation=cv2.INTER_CUBIC) for image in pixels]
    return np.stack(large)[..., None], labels


def test_policy_from_collected_predictions_decides_from_its_file(digits: tuple[Array, Array], tmp_path: Path) -> None:
    images, labels = digits
    model = sl.load_classifier(f"onnx:{DIGITS}", gray="luminance")
    preds = sl.collect(model, images[:600], VIEWS, labels=labels[:600])
    sl.certify(preds, risk=0.05, delta=0.05).save(tmp_path / "policy.json")
    Image.fromarray(images[700, :, :, 0]).save(tmp_path / "photo.png")
    policy = sl.load_policy(tmp_path / "policy.json")
    decision = policy.decide(tmp_path / "photo.png")
    assert decision.guarantee == policy.guarantee
    assert decision.label == labels[700]
    assert decision.looks == 5
    assert decision.interval is None, "it is computed on request only"
    interval = policy.decide(tmp_path / "photo.png", interval=True).interval
    assert interval is not None
    low, high = interval
    assert low <= decision.confidence <= high


def count_functions(call: Callable[[], object]) -> set[CodeType]:
    """Return the functions of secondlook that a call passes through."""
    passed: set[CodeType] = set()

    def record(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and not code.co_name.startswith("<"):
            passed.add(code)

    sys.setprofile(record)
    try:
        call()
    finally:
        sys.setprofile(None)
    return passed


def test_warm_decision_passes_few_functions(digits: tuple[Array, Array]) -> None:
    images, labels = digits
    model = sl.load_classifier(f"onnx:{DIGITS}")
    preds = sl.collect(model, images[:600], VIEWS, labels=labels[:600])
    policy: Policy = sl.certify(preds, risk=0.1, delta=0.05).bind(model)
    policy.decide(images[700])
    passed = count_functions(lambda: policy.decide(images[701]))
    names = sorted(f"{Path(code.co_filename).relative_to(PACKAGE)}:{code.co_qualname}" for code in passed)
    print(len(names), *names, sep="\n")
    assert len(names) <= MAX_FUNCTIONS
    assert sum(name.startswith(("policies", "decisions")) for name in names) <= MAX_OWN_FUNCTIONS
