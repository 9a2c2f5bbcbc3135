"""`load_policy(...).decide(image)`: the decisions of `score`, one image at a time, in one call of the classifier."""

import io
import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import secondlook as sl
from secondlook.arrays import Array
from secondlook.classifiers import Classifier, Ensemble, Preprocessing, load_classifier, onnx_model
from secondlook.classifiers import classifier as classifier_module
from secondlook.decisions import Decision, Plan, compile_policy
from secondlook.errors import ConfidenceError, DecisionError, SourceError
from secondlook.policies import Guarantee, Policy
from tests.policy_maker import attach, score

DIGITS = Path(sl.__file__).parent / "cli" / "demo_data" / "digits.onnx"
VIEWS = ("identity", "hflip", "shift:1,0", "rotate:5", "contrast:1.1")
COLUMNS = ("label", "class", "confidence", "low", "high", "accept", "looks")
"""The columns of score files that `as_row` returns."""


class Counting:
    """A classifier of three classes that counts its calls."""

    def __init__(self) -> None:
        self.batch_sizes: list[int] = []

    def __call__(self, batch: Any) -> Any:
        self.batch_sizes.append(len(batch))
        scores = np.stack([row.reshape(-1, 3).mean(axis=0) for row in batch.astype(np.float64)]) / 8
        exponents = np.exp(scores - scores.max(axis=1, keepdims=True))
        return exponents / exponents.sum(axis=1, keepdims=True)


@pytest.fixture
def counting() -> Counting:
    return Counting()


@pytest.fixture
def colors() -> Array:
    """Pixels uint8 [20, 9, 7, 3]."""
    return np.random.default_rng(5).integers(0, 256, (20, 9, 7, 3), dtype=np.uint8)


def save_policy(path: Path, classifier: Classifier, rule: Policy, views: tuple[str, ...] = VIEWS, **extra: Any) -> Path:
    attach(rule, classifier=classifier, views=views, **extra).save(path)
    return path


def score_rows(policy: Path, images: Any, out: Path, classifier: object) -> list[dict[str, Any]]:
    score(policy, images, out, classifier=classifier)
    return [json.loads(line) for line in out.read_text().splitlines()]


def as_row(decision: Decision) -> tuple[object, ...]:
    low, high = decision.interval or (None, None)
    return decision.label, decision.class_name, decision.confidence, low, high, decision.accept, decision.looks


@pytest.mark.parametrize(
    ("rule", "views"),
    [
        (Policy(threshold=0.7, method="mean"), VIEWS),
        (Policy(threshold=0.7, method="mean", predict_from="views"), VIEWS),
        (Policy(threshold=0.9, method="mean", top_k=2), VIEWS),
        (Policy(threshold=0.6, method="bootstrap-lower", options={"seed": 3}), VIEWS),
        (Policy(threshold=0.6, method="msr"), ("identity",)),
    ],
    ids=["mean", "from views", "top 2", "bootstrap-lower", "single view"],
)
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_decisions_are_those_of_score(
    counting: Counting, colors: Array, tmp_path: Path, rule: Policy, views: tuple[str, ...], dtype: str
) -> None:
    images = colors if dtype == "uint8" else (colors / 255).astype(np.float32)
    classifier = load_classifier(counting, name="colors")
    path = save_policy(tmp_path / "policy.json", classifier, rule, views, class_names=("red", "green", "blue"))
    rows = score_rows(path, images, tmp_path / "scores.jsonl", classifier)
    policy = sl.load_policy(path, classifier=classifier)
    for image, row in zip(images, rows, strict=True):
        decision = policy.decide(image, interval=True)
        assert as_row(decision) == tuple(row[name] for name in COLUMNS)
        if rule.top_k > 1:
            assert decision.labels == tuple(row["labels"])


def test_decision_of_an_ensemble_is_that_of_score(counting: Counting, colors: Array, tmp_path: Path) -> None:
    dim = load_classifier(lambda batch: Counting()(batch // 2), name="dim")
    ensemble = Ensemble([load_classifier(counting, name="colors"), dim], name="both")
    path = save_policy(tmp_path / "policy.json", ensemble, Policy(threshold=0.5, method="mean"))
    rows = score_rows(path, colors[:3], tmp_path / "scores.jsonl", ensemble)
    counting.batch_sizes = []
    decision = sl.load_policy(path, classifier=ensemble).decide(colors[1], interval=True)
    assert as_row(decision) == tuple(rows[1][name] for name in COLUMNS)
    assert counting.batch_sizes == [len(VIEWS)]


def test_all_views_are_classified_in_one_call(counting: Counting, colors: Array, tmp_path: Path) -> None:
    classifier = load_classifier(counting, name="colors")
    policy = sl.load_policy(
        save_policy(tmp_path / "policy.json", classifier, Policy(threshold=0.5, method="mean")), classifier=classifier
    )
    for image in colors:
        policy.decide(image)
    assert counting.batch_sizes == [len(VIEWS)] * len(colors)


def test_large_images_are_classified_in_batches(counting: Counting, tmp_path: Path) -> None:
    classifier = load_classifier(counting, name="colors")
    views = ("identity", *(f"shift:{x},0" for x in range(1, 10)))
    path = save_policy(tmp_path / "policy.json", classifier, Policy(threshold=0.5, method="mean"), views)
    image = np.random.default_rng(0).integers(0, 256, (800, 800, 3), dtype=np.uint8)
    sl.load_policy(path, classifier=classifier).decide(image)
    assert counting.batch_sizes == [8, 2]


def test_every_kind_of_image_gives_the_same_decision(counting: Counting, colors: Array, tmp_path: Path) -> None:
    import torch

    classifier = load_classifier(counting, name="colors")
    policy = sl.load_policy(
        save_policy(tmp_path / "policy.json", classifier, Policy(threshold=0.5, method="mean")), classifier=classifier
    )
    image = Image.fromarray(colors[0])
    image.save(tmp_path / "image.png")
    file = io.BytesIO()
    image.save(file, "PNG")
    kinds = [
        colors[0],
        colors[:1],
        image,
        tmp_path / "image.png",
        str(tmp_path / "image.png"),
        file.getvalue(),
        torch.from_numpy(colors[0]).permute(2, 0, 1),
    ]
    first, *others = [policy.decide(kind) for kind in kinds]
    assert all(decision == first for decision in others)
    for wrong in (colors, 3, tmp_path / "missing.png", b"not an image"):
        with pytest.raises(SourceError):
            policy.decide(wrong)


@pytest.fixture
def digits_policy(tmp_path: Path) -> Path:
    """A policy beside its ONNX file, with a relative path."""
    shutil.copy(DIGITS, tmp_path / "digits.onnx")
    classifier = load_classifier(f"onnx:{tmp_path / 'digits.onnx'}")
    named = attach(
        Policy(threshold=0.4, method="mean", guarantee=Guarantee(risk=0.05, delta=0.01)),
        classifier=classifier,
        views=("identity", "shift:1,0", "zoom:1.1"),
    )
    relative = named.known_classifier.model_copy(update={"name": "onnx:digits.onnx"})
    named.model_copy(update={"classifier": relative}).save(tmp_path / "policy.json")
    return tmp_path / "policy.json"


@pytest.fixture
def digit() -> Array:
    side = load_classifier(f"onnx:{DIGITS}").preprocessing.input_size or (8, 8)
    return np.random.default_rng(2).integers(0, 256, (*side, 1), dtype=np.uint8)


def test_onnx_file_beside_the_policy_is_loaded_once(
    digits_policy: Path, digit: Array, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loaded: list[object] = []
    find = classifier_module.find_model_file

    def record(location: str, spec: str) -> Path:
        loaded.append(spec)
        return find(location, spec)

    monkeypatch.setattr(onnx_model, "find_model_file", record)
    policy = sl.load_policy(digits_policy)
    assert loaded == [], "nothing is loaded before the first image"
    first = policy.decide(digit, interval=True)
    assert first.guarantee == Guarantee(risk=0.05, delta=0.01)
    n_loaded = len(loaded)
    assert n_loaded > 0
    (tmp_path / "digits.onnx").unlink()
    assert policy.decide(digit, interval=True) == first
    assert len(loaded) == n_loaded
    score(policy, digit[None], tmp_path / "scores.jsonl")
    row = json.loads((tmp_path / "scores.jsonl").read_text())
    assert as_row(first) == tuple(row[name] for name in COLUMNS)


def test_mismatch_is_an_error_or_voids_the_guarantee(classifier: Classifier, images: Array, tmp_path: Path) -> None:
    rule = Policy(threshold=0.5, method="mean", guarantee=Guarantee(risk=0.1, delta=0.1))
    path = save_policy(tmp_path / "policy.json", classifier, rule, ("identity",))
    other = load_classifier(classifier.forward, name="other")
    with pytest.raises(DecisionError, match="digest"):
        sl.load_policy(path, classifier=other).decide(images[0])
    assert sl.load_policy(path, classifier=other, allow_mismatch=True).decide(images[0]).guarantee is None
    assert sl.load_policy(path, classifier=classifier).decide(images[0]).guarantee == rule.guarantee


def test_copy_with_another_threshold_decides_by_it(classifier: Classifier, images: Array, tmp_path: Path) -> None:
    policy = sl.load_policy(
        save_policy(tmp_path / "policy.json", classifier, Policy(threshold=0.0, method="mean")), classifier=classifier
    )
    assert policy.decide(images[0]).accept
    assert not policy.model_copy(update={"threshold": 1.1}).decide(images[0]).accept
    assert policy.decide(images[0]).accept


def test_level_and_seed_are_those_of_the_interval(classifier: Classifier, images: Array, tmp_path: Path) -> None:
    policy = sl.load_policy(
        save_policy(tmp_path / "policy.json", classifier, Policy(threshold=0.5, method="mean")), classifier=classifier
    )
    wide, narrow = (policy.decide(images[3], interval=True, level=level) for level in (0.99, 0.5))
    assert wide.interval is not None
    assert narrow.interval is not None
    assert wide.interval[0] < narrow.interval[0] < narrow.interval[1] < wide.interval[1]
    for wrong in ({"level": 2}, {"seed": -1}, {"seed": 0.0}, {"seed": [0]}):
        with pytest.raises(ConfidenceError):
            policy.decide(images[3], interval=True, **wrong)


@pytest.mark.parametrize("batch_size", [None, 1, 4])
def test_fixed_batch_size_of_a_model_is_kept(tmp_path: Path, digit: Array, batch_size: int | None) -> None:
    import onnx

    model = onnx.load(DIGITS)
    for value in (*model.graph.input, *model.graph.output):
        axis = value.type.tensor_type.shape.dim[0]
        axis.Clear()
        if batch_size is None:
            axis.dim_param = "N"
        else:
            axis.dim_value = batch_size
    onnx.save(model, tmp_path / "fixed.onnx")
    decisions = []
    for file in (DIGITS, tmp_path / "fixed.onnx"):
        classifier = load_classifier(f"onnx:{file}")
        views = ("identity", "shift:1,0", "shift:0,1")
        path = save_policy(tmp_path / f"{file.stem}.json", classifier, Policy(threshold=0.4, method="mean"), views)
        decisions.append(sl.load_policy(path).decide(digit, interval=True))
    assert decisions[0].label == decisions[1].label
    assert decisions[0].confidence == pytest.approx(decisions[1].confidence, abs=1e-6)


@pytest.mark.parametrize("is_ensemble", [False, True])
@pytest.mark.parametrize("settings", [{}, {"predict_from": "views"}, {"top_k": 2, "method": "blend"}], ids=str)
def test_adaptive_decisions_are_those_of_score(
    make_adaptive_rule: Callable[..., Policy],
    counting: Counting,
    colors: Array,
    tmp_path: Path,
    is_ensemble: bool,
    settings: dict[str, Any],
) -> None:
    """One image at a time, also in several threads; each look is one call with one image."""
    classifier = load_classifier(counting, name="colors")
    if is_ensemble:
        dim = load_classifier(lambda batch: Counting()(batch // 2), name="dim")
        classifier = Ensemble([classifier, dim], name="both")
    rule = make_adaptive_rule(**settings)
    assert rule.schedule is not None
    path = save_policy(tmp_path / "policy.json", classifier, rule, rule.schedule.views)
    rows = score_rows(path, colors, tmp_path / "scores.jsonl", classifier)
    counting.batch_sizes = []
    policy = sl.load_policy(path, classifier=classifier)
    with ThreadPoolExecutor(4) as threads:
        decisions = list(threads.map(lambda image: policy.decide(image, interval=True), colors))
    assert counting.batch_sizes == [1] * sum(row["looks"] for row in rows)
    assert len({row["looks"] for row in rows}) > 2
    for decision, row in zip(decisions, rows, strict=True):
        assert as_row(decision) == tuple(row[name] for name in COLUMNS)
        assert (decision.interval is None) == (decision.looks == 1 and not is_ensemble)


class TestPlan:
    def test_several_images_are_looked_at_as_single_ones(
        self, tmp_path: Path, counting: Counting, colors: Array
    ) -> None:
        classifier = load_classifier(counting, output="probabilities", name="counting")
        policy = sl.load_policy(
            save_policy(tmp_path / "p.json", classifier, Policy(threshold=0.5, method="mean")), classifier=classifier
        )
        plan = compile_policy(policy)
        assert isinstance(plan, Plan)
        (looked,) = plan.look_at_images(list(colors))
        assert looked.positions.tolist() == list(range(len(colors)))
        alone = [policy.decide(image, interval=True) for image in colors]
        np.testing.assert_allclose(policy.confidence(looked.preds), [one.confidence for one in alone])

    def test_it_is_warmed_up_where_the_shape_of_images_is_known(self, tmp_path: Path, counting: Counting) -> None:
        for preprocessing, expected in ((None, []), (Preprocessing(size=(9, 7), channels=3), [5])):
            classifier = load_classifier(counting, output="probabilities", name="counting", preprocessing=preprocessing)
            path = save_policy(tmp_path / f"{len(expected)}.json", classifier, Policy(threshold=0.5, method="mean"))
            plan = compile_policy(sl.load_policy(path, classifier=classifier))
            assert isinstance(plan, Plan)
            plan.warm_up()
            assert counting.batch_sizes == expected
