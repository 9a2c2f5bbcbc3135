"""Decisions about images: values, tables, one image at a time as in `score`, and policies that cannot decide."""

import io
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import secondlook as sl
from secondlook.arrays import Array
from secondlook.classifiers import Classifier, Ensemble, ImageShapeError, Preprocessing, load_classifier
from secondlook.decisions import Decision, Decisions, RowOptions, SelectiveClassifier
from secondlook.errors import ANY, ConfidenceError, DecisionError, Repair, SourceError
from secondlook.policies import Guarantee, Policy, certify_confidence
from secondlook.views import ViewSet
from tests.decisions.conftest import (
    Counting,
    brightness,
    compile_plan,
    count_colors,
    make_adaptive_rule,
    make_policy,
    read_rows,
)
from tests.policy_maker import score

PACKAGE = Path(sl.__file__).parent
DIGITS = PACKAGE / "cli" / "demo_data" / "digits.onnx"
VIEWS = "identity hflip shift:1,0 rotate:5 contrast:1.1"
DIGIT_VIEWS = "identity shift:1,0 shift:0,1 rotate:5 zoom:1.1"
COLUMNS = ("label", "class", "confidence", "low", "high", "accept", "looks")
"""The columns of score files that `as_row` returns."""
MAX_FUNCTIONS = 60
"""Of secondlook that a warm decision may pass."""
MAX_OWN_FUNCTIONS = 15
"""Of policies and decisions among them."""


@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("interval", [False, True])
def test_decisions_are_a_sequence_and_a_table(top_k: int, interval: bool) -> None:
    labels = np.array([[2, 0], [0, 1], [1, 2]])
    confidence = np.array([0.9, 0.4, 0.7])
    columns: dict[str, list[Any]] = {
        "id": ["a", "b", "c"],
        "label": [2, 0, 1],
        **({"labels": labels.tolist()} if top_k == 2 else {}),
        "confidence": confidence.tolist(),
        "low": (confidence - 0.1).tolist() if interval else [None] * 3,
        "high": (confidence + 0.05).tolist() if interval else [None] * 3,
        "accept": [True, False, True],
        "looks": [2, 13, 1],
        "first_look": (confidence - 0.2).tolist(),
        "disagreement": [0.1, 0.3, None],
    }
    decisions = Decisions(
        ("a", "b", "c"),
        labels if top_k == 2 else labels[:, 0],
        confidence,
        confidence >= 0.5,
        np.array([2, 13, 1]),
        confidence - 0.2,
        np.array([0.1, 0.3, np.nan]),
        (confidence - 0.1, confidence + 0.05) if interval else None,
    )
    table = decisions.to_arrow()
    assert table.to_pydict() == columns
    assert table.column_names == list(columns) == list(decisions.to_frame().columns)
    number, classes = pa.float64(), [pa.list_(pa.int64())] * (top_k - 1)
    types = [pa.string(), pa.int64(), *classes, *[number] * 3, pa.bool_(), pa.int64(), number, number]
    assert table.schema.types == types
    assert decisions.to_frame()["confidence"].tolist() == columns["confidence"]
    assert len(decisions) == 3
    for place, (decision, row) in enumerate(zip(decisions, table.to_pylist(), strict=True)):
        assert decision == decisions[place]
        names = ("id", "label", "confidence", "accept", "looks", "first_look", "disagreement")
        assert [getattr(decision, name) for name in names] == [row[name] for name in names]
        assert decision.interval == ((row["low"], row["high"]) if interval else None)
        assert decision.labels == (tuple(row["labels"]) if top_k == 2 else None)


def make_predictions(logits: Array) -> sl.Predictions:
    ids, names = [f"image {number}" for number in range(len(logits))], tuple("abcdefghijklmnop")
    views = ViewSet("identity hflip shift:1,0")
    return sl.Predictions(logits=logits, views=views, ids=ids, class_names=names[: logits.shape[2]])


RANDOM = make_predictions(np.random.default_rng(3).normal(size=(30, 3, 12)).astype(np.float32) * 2)


@pytest.mark.parametrize("settings", [{}, {"audit": 0.5}, {"predict_from": "views"}, {"top_k": 2}], ids=str)
def test_detailed_decisions_are_the_rows_of_scores(settings: dict[str, Any]) -> None:
    audit = settings.get("audit")
    rule = {name: value for name, value in settings.items() if name != "audit"}
    policy = Policy(threshold=0.4, method="mean", guarantee=Guarantee(risk=0.1, delta=0.1), **rule)
    options = RowOptions(policy, seed=5, per_view=True, audit=audit)
    detailed = options.detail(RANDOM, audit_seed=5)
    for row, one in zip(options.compute_rows(RANDOM).to_pylist(), detailed, strict=True):
        assert (one.id, *as_row(one)) == (row["id"], *(row[name] for name in COLUMNS))
        assert (one.first_look, one.disagreement) == (row["first_look"], row["disagreement"])
        assert one.labels == (tuple(row["labels"]) if "labels" in row else None)
        assert (one.audit, one.audit_probability) == (row.get("audit", False), row.get("audit_probability"))
        assert [look.view for look in one.views] == list(RANDOM.views.texts)
        assert [look.label for look in one.views] == row["view_labels"]
        assert [look.probability for look in one.views] == row["view_probabilities"]
    assert {one.accept for one in detailed} == {True, False}


def test_audits_depend_on_their_own_seed_only() -> None:
    options = RowOptions(Policy(threshold=0.0, method="mean"), seed=1, audit=0.5)
    drawn = [[one.audit for one in options.detail(RANDOM, audit_seed=seed)] for seed in (1, 2, 2)]
    assert drawn[0] != drawn[1] == drawn[2]


@given(st.integers(2, 16), st.integers(0, 10**6))
def test_likely_classes_are_the_predicted_one_and_then_the_likeliest(n_classes: int, seed: int) -> None:
    logits = np.random.default_rng(seed).integers(0, 3, (4, 3, n_classes)).astype(np.float32)  # with ties
    preds = make_predictions(logits)
    for one, views in zip(
        RowOptions(Policy(threshold=0.5, method="mean")).detail(preds, audit_seed=0), preds.probabilities, strict=True
    ):
        means = views.astype(np.float64).mean(axis=0)
        ranked = [each.label for each in one.likely]
        assert ranked[0] == one.label
        assert len(set(ranked)) == len(ranked) == min(n_classes, 9)
        assert [each.probability for each in one.likely] == pytest.approx(means[ranked])
        others = [each.probability for each in one.likely[1:]]
        assert others == sorted(others, reverse=True)
        assert np.delete(means, ranked).max(initial=0) <= min(others) + 1e-6


@pytest.fixture
def colors() -> Array:
    """Pixels uint8 [20, 9, 7, 3]."""
    return np.random.default_rng(5).integers(0, 256, (20, 9, 7, 3), dtype=np.uint8)


def load_colors(counting: Counting, *, is_ensemble: bool = False, **options: Any) -> Classifier:
    """Return a classifier, or its ensemble with one that sees darker images."""
    classifier = load_classifier(counting, name="colors", output="probabilities", **options)
    dim = load_classifier(lambda batch: counting.function(batch // 2), name="dim")
    return Ensemble([classifier, dim], name="both") if is_ensemble else classifier


@pytest.fixture
def counting() -> Counting:
    return count_colors(1 / 8)


def load(policy: Policy, folder: Path, classifier: object = None, **options: Any) -> Policy:
    policy.save(folder / "policy.json")
    return sl.load_policy(folder / "policy.json", classifier=classifier, **options)


def as_row(decision: Decision) -> tuple[object, ...]:
    low, high = decision.interval or (None, None)
    return decision.label, decision.class_name, decision.confidence, low, high, decision.accept, decision.looks


RULES: dict[str, dict[str, Any]] = {
    "mean": {"threshold": 0.7},
    "from views": {"threshold": 0.7, "predict_from": "views"},
    "top 2": {"threshold": 0.9, "top_k": 2},
    "zero": {"threshold": 0.6, "method": "zero", "options": {"share": 0.5}},
    "single view": {"threshold": 0.6, "method": "msr", "views": "identity"},
    "adaptive": {"rule": make_adaptive_rule()},
    "adaptive from views": {"rule": make_adaptive_rule(predict_from="views")},
    "adaptive top 2": {"rule": make_adaptive_rule(top_k=2, method="blend")},
}


@pytest.mark.parametrize("is_ensemble", [False, True])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("rule", RULES)
def test_decisions_are_those_of_score(
    counting: Counting, colors: Array, tmp_path: Path, rule: str, dtype: str, is_ensemble: bool
) -> None:
    """Also in several threads. All views are classified in one call, or by a schedule each look in one of its own."""
    images = colors if dtype == "uint8" else (colors / 255).astype(np.float32)
    classifier = load_colors(counting, is_ensemble=is_ensemble)
    policy = make_policy(classifier, **{"views": VIEWS, **RULES[rule]})
    policy = policy.replace(class_names=("red", "green", "blue"))
    score(policy, images, tmp_path / "scores.jsonl", classifier=classifier)
    rows, loaded = read_rows(tmp_path / "scores.jsonl"), load(policy, tmp_path, classifier)
    counting.restart()
    with ThreadPoolExecutor(4) as threads:
        decisions = list(threads.map(lambda image: loaded.decide(image, interval=True), images))
    looks = [row["looks"] for row in rows]
    is_adaptive = rule.startswith("adaptive")
    assert counting.sizes == ([1] * sum(looks) if is_adaptive else looks)
    assert len(set(looks)) > 2 or dtype == "float32" or not is_adaptive
    for decision, row in zip(decisions, rows, strict=True):
        assert as_row(decision) == tuple(row[name] for name in COLUMNS)
        assert decision.labels == (tuple(row["labels"]) if "labels" in row else None)
        assert (decision.interval is None) == (decision.looks == 1 and not is_ensemble)
    counting.restart()
    assert loaded.decide(images[0]) == decisions[0].model_copy(update={"interval": None})
    assert counting.sizes == ([1] * looks[0] if is_adaptive else looks[:1])


def test_large_images_are_classified_in_batches_and_several_as_single_ones(counting: Counting, colors: Array) -> None:
    classifier = load_colors(counting)
    policy = make_policy(classifier, " ".join(["identity", *(f"shift:{x},0" for x in range(1, 10))]))
    policy.bind(classifier).decide(np.random.default_rng(0).integers(0, 256, (800, 800, 3), dtype=np.uint8))
    assert counting.sizes == [8, 2]
    policy = make_policy(classifier, VIEWS).bind(classifier)
    (looked,) = compile_plan(policy, classifier).look_at_images(list(colors))
    assert looked.positions.tolist() == list(range(len(colors)))
    alone = [policy.decide(image, interval=True).confidence for image in colors]
    np.testing.assert_allclose(policy.confidence(looked.preds), alone)
    for preprocessing, expected in ((None, None), (Preprocessing(size=(9, 7), channels=3), (9, 7, 3))):
        classifier = load_colors(counting, preprocessing=preprocessing)
        image = compile_plan(make_policy(classifier, VIEWS), classifier).make_black_image()
        assert (None if image is None else image.shape) == expected


def test_every_kind_of_image_gives_the_same_decision(counting: Counting, colors: Array, tmp_path: Path) -> None:
    import torch

    classifier = load_colors(counting)
    policy = make_policy(classifier, VIEWS).bind(classifier)
    image, file, path = Image.fromarray(colors[0]), io.BytesIO(), tmp_path / "image.png"
    image.save(path)
    image.save(file, "PNG")
    tensor = torch.from_numpy(colors[0]).permute(2, 0, 1)
    first = policy.decide(colors[0])
    for kind in (colors[:1], image, path, str(path), file.getvalue(), tensor):
        assert policy.decide(kind) == first
    for wrong in (colors, 3, tmp_path / "missing.png", b"not an image"):
        with pytest.raises(SourceError):
            policy.decide(wrong)


@pytest.fixture
def digit() -> Array:
    return np.random.default_rng(2).integers(0, 256, (16, 16, 1), dtype=np.uint8)


def test_onnx_file_beside_the_policy_is_loaded_once(digit: Array, tmp_path: Path) -> None:
    file, guarantee = tmp_path / "digits.onnx", Guarantee(risk=0.05, delta=0.01)
    shutil.copy(DIGITS, file)
    made = make_policy(load_classifier(f"onnx:{file}"), DIGIT_VIEWS, threshold=0.4, guarantee=guarantee)
    relative = made.known_classifier.model_copy(update={"name": "onnx:digits.onnx"})
    made = made.model_copy(update={"classifier": relative})
    file.unlink()
    policy = load(made, tmp_path)  # nothing is loaded before the first image
    with pytest.raises(DecisionError, match=r"digits\.onnx"):
        policy.decide(digit)
    shutil.copy(DIGITS, file)
    first = policy.decide(digit, interval=True)
    assert first.guarantee == guarantee
    file.unlink()
    assert policy.decide(digit, interval=True) == first
    score(policy, digit[None], tmp_path / "scores.jsonl")
    (row,) = read_rows(tmp_path / "scores.jsonl")
    assert as_row(first) == tuple(row[name] for name in COLUMNS)


def test_level_threshold_and_classifier_are_those_given(classifier: Classifier, images: Array, tmp_path: Path) -> None:
    policy = make_policy(classifier, VIEWS).bind(classifier)
    wide, narrow = (policy.decide(images[3], interval=True, level=level).interval for level in (0.99, 0.5))
    assert wide is not None
    assert narrow is not None
    assert wide[0] < narrow[0] < narrow[1] < wide[1]
    for wrong in ({"level": 2}, {"seed": -1}, {"seed": 0.0}, {"seed": [0]}):
        with pytest.raises(ConfidenceError):
            policy.decide(images[3], interval=True, **wrong)
    policy = make_policy(classifier, threshold=0.0).bind(classifier)
    stricter = policy.model_copy(update={"threshold": 1.1})
    assert [each.decide(images[0]).accept for each in (policy, stricter, policy)] == [True, False, True]
    guarantee = Guarantee(risk=0.1, delta=0.1)
    policy = make_policy(classifier, guarantee=guarantee)
    other = load_classifier(classifier.forward, name="other")
    with pytest.raises(DecisionError, match="digest"):
        load(policy, tmp_path, other).decide(images[0])
    assert load(policy, tmp_path, other, allow_mismatch=True).decide(images[0]).guarantee is None
    assert load(policy, tmp_path, classifier).decide(images[0]).guarantee == guarantee


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
    classifiers = [load_classifier(f"onnx:{file}") for file in (DIGITS, tmp_path / "fixed.onnx")]
    free, fixed = (make_policy(each, DIGIT_VIEWS).bind(each).decide(digit, interval=True) for each in classifiers)
    assert fixed.label == free.label
    assert fixed.confidence == pytest.approx(free.confidence, abs=1e-6)


@pytest.fixture(scope="module")
def collected(classifier: Classifier, bright_or_dark: tuple[Array, Array]) -> sl.Predictions:
    images, labels = bright_or_dark
    return sl.collect(classifier, images, "identity hflip shift:1,0", labels=labels)


def test_advice_on_images_of_another_size_can_be_followed(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 12, 9, 1), dtype=np.uint8)
    given = load_classifier(f"onnx:{DIGITS}")
    policy = make_policy(given, DIGIT_VIEWS).bind(given)
    for attempt in (
        lambda: policy.decide(images[0]),
        lambda: policy.score(images, tmp_path / "a.csv"),
        lambda: SelectiveClassifier(given, policy).decide(images),
    ):
        with pytest.raises(ImageShapeError, match="calibrat") as caught:
            attempt()
        assert isinstance(caught.value.repair, Repair)
        _, size = caught.value.repair.arguments["resize"]
        resizing = load_classifier(f"onnx:{DIGITS}", resize=size)
        with pytest.raises(DecisionError, match="resize") as mismatch:
            policy.bind(resizing).decide(images[0])
        assert isinstance(mismatch.value.repair, Repair)
        assert mismatch.value.repair.arguments["resize"] == ("resize", ANY), "None cannot be typed as an option"
        again = make_policy(resizing, DIGIT_VIEWS).bind(resizing)
        assert len(SelectiveClassifier(resizing, again).decide(images)) == 3


def test_numbers_need_the_name_of_their_method(collected: sl.Predictions) -> None:
    policy = sl.certify(collected, "blend", risk=0.1, delta=0.1)
    confidence = sl.confidence(collected, "blend")
    with pytest.raises(DecisionError, match="method='blend'"):
        policy.accept(confidence)
    with pytest.raises(DecisionError, match=r"'blend'.*'mean'"):
        policy.accept(sl.confidence(collected, "mean"), method="mean")
    np.testing.assert_array_equal(policy.accept(confidence, method="blend"), policy.accept(collected))
    assert policy.accept(collected).mean() == pytest.approx(policy.coverage, abs=0.02)
    external = certify_confidence(collected.correct(), confidence, risk=0.1, delta=0.1)
    with pytest.raises(DecisionError, match="method='external'"):
        external.accept(confidence)
    assert external.accept(confidence, method="external").mean() == external.coverage


def test_a_function_without_a_name_needs_one_at_calibration(
    images: Array, bright_or_dark: tuple[Array, Array], tmp_path: Path
) -> None:
    pictures = [Image.fromarray(image) for image in bright_or_dark[0]]

    def calibrate(function: Any) -> sl.Policy:
        return sl.certify(sl.collect(function, pictures, VIEWS, labels=bright_or_dark[1]), risk=0.1, delta=0.1)

    policy, named = calibrate(brightness), sl.load_classifier(brightness, name="v1")
    with pytest.raises(DecisionError, match=r"policy\.bind\(classifier=\)"):
        policy.decide(pictures[0])
    for function in (brightness, named):
        with pytest.raises(DecisionError, match=r"calibrate again.* load_classifier\(function, name='v1'\)"):
            policy.bind(function).decide(pictures[0])
    assert policy.bind(brightness, allow_mismatch=True).decide(pictures[0]).guarantee is None
    repaired = calibrate(named)
    repaired.save(tmp_path / "policy.json")
    assert repaired.bind(named).decide(pictures[0]).guarantee == repaired.guarantee
    for saved, offered in (
        (repaired, r"policy\.bind\(classifier, allow_mismatch=True\)"),
        (tmp_path / "policy.json", r"load_policy\(path, classifier=classifier, allow_mismatch=True\)"),
    ):
        with pytest.raises(DecisionError, match=rf"load_classifier\(function, name=\).* {offered}"):
            sl.score(saved, pictures, tmp_path / "scores.csv", classifier=brightness)
        with pytest.raises(DecisionError, match=r"load_classifier\(function, name=\).* allow_mismatch=True\.$"):
            sl.SelectiveClassifier(brightness, saved).predict(pictures)


def test_policies_of_arrays_decide_no_images(classifier: Classifier, images: Array, collected: sl.Predictions) -> None:
    arrays = np.random.default_rng(0).dirichlet([0.2, 0.2], (400, 1)).astype(np.float32)
    stored = sl.Predictions(probabilities=arrays, views=["identity"], labels=arrays[:, 0].argmax(axis=1))
    policy = sl.certify(stored, risk=0.1, delta=0.1)
    assert policy.certified
    for use in (policy.decide, policy.bind().decide):
        with pytest.raises(DecisionError, match="from arrays"):
            use(images[0])
    with pytest.raises(DecisionError, match=r"from arrays.*allow_mismatch=True"):
        policy.bind(classifier).decide(images[0])
    assert policy.bind(classifier, allow_mismatch=True).decide(images[0]).guarantee is None
    policy = sl.certify(collected, risk=0.1, delta=0.1)
    with pytest.raises(DecisionError, match="classifier="):
        policy.decide(images[0])
    decision = policy.bind(classifier).decide(images[0])
    assert isinstance(decision, Decision)
    assert decision.guarantee == policy.guarantee
    assert decision.accept == policy.accept(collected)[0]
    assert decision.confidence == pytest.approx(sl.confidence(collected, policy.method)[0])


@pytest.fixture(scope="module")
def digits() -> tuple[Array, Array]:
    import cv2
    from sklearn.datasets import load_digits

    small, labels = load_digits(return_X_y=True)
    pixels = np.rint(small.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    large = [cv2.resize(image, (16, 16), interpolation=cv2.INTER_CUBIC) for image in pixels]
    return np.stack(large)[..., None], labels


def test_warm_decision_passes_few_functions(digits: tuple[Array, Array]) -> None:
    images, labels = digits
    model = sl.load_classifier(f"onnx:{DIGITS}")
    preds = sl.collect(model, images[:600], DIGIT_VIEWS, labels=labels[:600])
    policy = sl.certify(preds, risk=0.05, delta=0.05).bind(model)
    policy.decide(images[700])
    passed: set[CodeType] = set()

    def record(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)) and not code.co_name.startswith("<"):
            passed.add(code)

    sys.setprofile(record)
    try:
        policy.decide(images[701])
    finally:
        sys.setprofile(None)
    names = sorted(f"{Path(code.co_filename).relative_to(PACKAGE)}:{code.co_qualname}" for code in passed)
    assert len(names) <= MAX_FUNCTIONS, names
    assert sum(name.startswith(("policies", "decisions")) for name in names) <= MAX_OWN_FUNCTIONS, names


@pytest.fixture(scope="module")
def class_policy(classifier: Classifier, bright_or_dark: tuple[Array, Array]) -> Policy:
    images, labels = bright_or_dark
    source = sl.open_source(images[:500], labels=labels[:500])
    preds = sl.collect(classifier, source, "identity hflip shift:1,0")
    copies = [source.ids[index] for index in source.find_duplicates()]
    rule = sl.certify(preds, "mean", risk={0: 0.07, 1: 0.13}, delta=0.1, groups="class", duplicates=copies)
    assert all(group.accepted for group in rule.groups)
    return make_policy(classifier, rule=rule)


def test_all_ways_to_decide_follow_the_threshold_of_the_predicted_class(
    class_policy: Policy, classifier: Classifier, bright_or_dark: tuple[Array, Array], tmp_path: Path
) -> None:
    images = bright_or_dark[0][500:]
    score(class_policy, images, tmp_path / "scores.jsonl", classifier=classifier)
    rows = read_rows(tmp_path / "scores.jsonl")
    dark, bright = (group.threshold for group in class_policy.groups)
    assert dark != bright
    between = [row for row in rows if min(dark, bright) <= row["confidence"] < max(dark, bright)]
    assert {row["accept"] for row in between} == {True, False}, "one threshold for all could not decide like this"
    assert all(row["accept"] == (row["confidence"] >= (bright if row["label"] else dark)) for row in rows)
    expected, loaded = [row["accept"] for row in rows], load(class_policy, tmp_path, classifier)
    decisions = [loaded.decide(image) for image in images]
    assert [decision.accept for decision in decisions] == expected
    assert decisions[0].guarantee == class_policy.guarantee
    chooser = SelectiveClassifier(classifier, class_policy)
    assert chooser.decide(images).accept.tolist() == (chooser.predict(images) != -1).tolist() == expected


def test_fit_calibrates_all_classes_again(
    class_policy: Policy, classifier: Classifier, bright_or_dark: tuple[Array, Array], tmp_path: Path
) -> None:
    images, labels = bright_or_dark
    again = SelectiveClassifier(classifier, class_policy).fit(images[:500], labels[:500]).policy_
    assert len(again.groups) == len(class_policy.groups) == 2
    for one, before in zip(again.groups, class_policy.groups, strict=True):
        assert one.threshold == pytest.approx(before.threshold)
        assert (one.risk, one.accepted, one.errors) == (before.risk, before.accepted, before.errors)
    assert again.guarantee == class_policy.guarantee
    shared = [group.model_copy(update={"shared_by": "both", "risk": 0.13}) for group in class_policy.groups]
    together = (
        SelectiveClassifier(classifier, class_policy.replace(groups=shared)).fit(images[:500], labels[:500]).policy_
    )
    assert together.shared_classes == {"both": [0, 1]}
    three = load_classifier(lambda batch: np.full((len(batch), 3), 1 / 3), name="three", output="probabilities")
    with pytest.raises(DecisionError, match=r"2 classes.* has 3"):
        score(class_policy, images[:30], tmp_path / "s.jsonl", classifier=three, allow_mismatch=True)
