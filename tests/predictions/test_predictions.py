"""Predictions of arrays: values, predicted classes, selection, ensembles, tables; invalid and foreign ones."""

import copy
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import secondlook as sl
from secondlook.arrays import Array, default_ids, softmax, top_classes
from secondlook.classifiers import load_classifier
from secondlook.diagnosis import choose_views, diagnose_views
from secondlook.errors import DecisionError, PredictionsError, SecondLookError, ViewError
from secondlook.predictions import PredictFrom, Predictions
from secondlook.sources import open_source
from secondlook.views import View, ViewSet
from tests.policy_maker import attach

VIEWS = ViewSet("identity hflip shift:1,0")


def random_logits(images: int = 7, views: int = 3, classes: int = 5, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(images, views, classes)).astype(np.float32)


def make(**arguments: Any) -> Predictions:
    """Return predictions of seven images, with three views and five classes."""
    return Predictions(**{"logits": random_logits(), "views": VIEWS, **arguments})


def reference_softmax(logits: Array) -> Array:
    powers = np.exp(logits.astype(np.float64))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def reference_top_classes(values: Array, top_k: int) -> list[list[int]]:
    """Sort by decreasing value, then by increasing class."""
    return [sorted(range(len(row)), key=lambda c: (-row[c], c))[:top_k] for row in values.tolist()]


def test_logits_are_converted_to_probabilities_in_float64() -> None:
    logits = random_logits()
    preds = make(logits=logits)
    (_, block), *rest = preds.blocks()
    assert not rest
    assert block.dtype == np.float64
    np.testing.assert_allclose(block, reference_softmax(logits), rtol=1e-12)
    assert preds.probabilities.dtype == np.float32
    np.testing.assert_array_equal(preds.logits, logits)
    assert preds.has_logits
    confident = np.array([[[20.0, 0.0]], [[21.0, 0.0]]], dtype=np.float32)
    (_, block), *_ = Predictions(logits=confident, views="identity").blocks()
    assert block[1, 0, 0] > block[0, 0, 0], "in float32 both are 1"


@pytest.mark.parametrize("rows", [1, 2, 7, 100, None])
def test_blocks_cover_all_images_in_order(rows: int | None) -> None:
    preds = make()
    blocks = list(preds.blocks(rows))
    assert [i for images, _ in blocks for i in range(7)[images]] == list(range(7))
    np.testing.assert_array_equal(np.concatenate([block for _, block in blocks]), softmax(preds.logits))
    np.testing.assert_array_equal(np.concatenate([block for _, block in preds.logit_blocks(rows)]), preds.logits)
    probabilities = reference_softmax(random_logits())
    unchanged = make(logits=None, probabilities=probabilities)
    assert not unchanged.has_logits
    np.testing.assert_array_equal(np.concatenate([block for _, block in unchanged.blocks(rows)]), probabilities)


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_blocks_may_be_modified(kind: str) -> None:
    values = random_logits() if kind == "logits" else reference_softmax(random_logits())
    preds, original = Predictions(views=VIEWS, **{kind: values}), values.copy()  # type: ignore[arg-type]
    expected = preds.probabilities
    for _, block in preds.blocks():
        block[:] = 0
    np.testing.assert_array_equal(preds.probabilities, expected)
    np.testing.assert_array_equal(values, original)


@given(
    arrays(
        np.float64, st.tuples(st.integers(1, 6), st.integers(1, 6)), elements=st.sampled_from([0.0, 0.25, 0.5, 1.0])
    ),
    st.data(),
)
@settings(deadline=None, max_examples=60)
def test_top_classes_match_a_sort_with_ties_going_to_the_lower_class(values: Array, data: st.DataObject) -> None:
    top_k = data.draw(st.integers(1, values.shape[1]))
    original = values.copy()
    assert top_classes(values, top_k).tolist() == reference_top_classes(values, top_k)
    np.testing.assert_array_equal(values, original)


@pytest.mark.parametrize("top_k", [1, 2, 5])
def test_predicted_and_correct_from_the_image_and_from_all_views(top_k: int) -> None:
    logits = random_logits(50)
    labels = np.random.default_rng(1).integers(0, 5, 50)
    preds = make(logits=logits, labels=labels)
    probabilities = reference_softmax(logits)
    sources: dict[PredictFrom, Array] = {"image": probabilities[:, 0], "views": probabilities.mean(axis=1)}
    for predict_from, values in sources.items():
        expected = np.array(reference_top_classes(values, top_k))
        predicted = preds.predicted(predict_from=predict_from, top_k=top_k)
        assert predicted.dtype == np.int64
        np.testing.assert_array_equal(predicted, expected[:, 0] if top_k == 1 else expected)
        correct = preds.correct(predict_from=predict_from, top_k=top_k)
        assert correct.dtype == np.bool_
        assert correct.tolist() == [label in row for label, row in zip(labels, expected, strict=True)]
    assert (preds.predicted("image") != preds.predicted("views")).any(), "otherwise this test cannot distinguish them"


@pytest.mark.parametrize("images", [[4, 0, 6], [-1], np.array([1, 0, 0, 1, 0, 0, 1], dtype=bool)])
def test_images_and_views_are_selected(images: Array) -> None:
    labels = np.array([0, 1, 2, 3, 4, 0, 1])
    preds = make(labels=labels, ids="abcdefg")
    selected = preds.select(images=images)
    np.testing.assert_array_equal(selected.logits, preds.logits[images])
    np.testing.assert_array_equal(selected.labels, labels[images])
    assert list(selected.ids) == np.array(list("abcdefg"))[images].tolist()
    both = preds.select(images=images, views=["shift:1,0", "hflip"])
    assert both.views.texts == ("identity", "shift:1,0", "hflip"), "in the given order, with the identity first"
    np.testing.assert_array_equal(both.logits, preds.logits[images][:, [0, 2, 1]])
    nested = preds.select(images=[5, 3, 1], views=["shift:1,0"]).select(images=[2, 0])
    np.testing.assert_array_equal(nested.logits, preds.logits[[1, 5]][:, [0, 2]])
    assert nested.predicted().tolist() == preds.predicted()[[1, 5]].tolist()


def test_ensemble_is_the_mean_of_its_members() -> None:
    options: dict[str, Any] = {"labels": [0] * 7, "ids": "abcdefg", "skipped": [("h", "bad")]}
    members = [make(logits=random_logits(seed=seed), **options) for seed in (1, 2)]
    ensemble = Predictions(members=members, views=VIEWS)
    mean = (reference_softmax(members[0].logits) + reference_softmax(members[1].logits)) / 2
    np.testing.assert_allclose(ensemble.probabilities, mean, atol=1e-7)
    np.testing.assert_array_equal(ensemble.predicted("image"), mean[:, 0].argmax(axis=1))
    np.testing.assert_array_equal(ensemble.predicted("views"), mean.mean(axis=1).argmax(axis=1))
    assert (ensemble.has_labels, list(ensemble.ids), ensemble.has_logits) == (True, list("abcdefg"), False)
    assert ensemble.skipped == (("h", "bad"),)
    selected = ensemble.select(views=["hflip"], images=[2])
    np.testing.assert_allclose(selected.probabilities, mean[[2]][:, [0, 1]], atol=1e-7)
    assert [member.shape for member in selected.members] == [(1, 2, 5)] * 2
    with pytest.raises(PredictionsError, match="logits"):
        _ = ensemble.logits


def test_defaults_and_repr() -> None:
    preds = make(logits=random_logits(11), labels=[0] * 11)
    assert preds.ids == tuple(open_source(np.zeros((11, 2, 2, 3), dtype=np.uint8)).ids) == default_ids(11)
    assert repr(preds) == "<Predictions: 11 images x 3 views x 5 classes, logits, labeled>"
    assert len(preds) == 11


def test_predictions_are_immutable() -> None:
    labels = np.zeros(7, dtype=np.int64)
    preds = make(labels=labels, skipped=[("h", "truncated")])
    labels[0] = 1
    assert preds.labels[0] == 0, "labels are copied"
    with preds.show_progress("reading", 1) as with_progress:
        for some in (preds, preds.select(images=[1, 2], views="identity hflip"), with_progress):
            for name in ("labels", "ids", "skipped", "views", "members", "class_names", "_labels", "anything"):
                with pytest.raises(AttributeError, match=repr(name)):
                    setattr(some, name, ())
                with pytest.raises(AttributeError, match=repr(name)):
                    delattr(some, name)
            for array in (some.labels, some.predicted(), some.predicted("views"), some.predicted(top_k=2)):
                assert not array.flags.writeable
            assert isinstance(some.ids, tuple)
            assert some.skipped == (("h", "truncated"),)
    for duplicate in (pickle.loads(pickle.dumps(preds)), copy.copy(preds), copy.deepcopy(preds)):
        np.testing.assert_array_equal(duplicate.logits, preds.logits)
        assert (duplicate.ids, duplicate.views) == (preds.ids, preds.views)


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_concatenated_predictions_have_the_images_of_both(kind: str) -> None:
    values = random_logits(7) if kind == "logits" else reference_softmax(random_logits(7)).astype(np.float32)
    names = ("a", "b", "c", "d", "e")
    parts: list[dict[str, Any]] = [{kind: values[:4]}, {kind: values[[6, 5, 4]]}]
    first, second = (
        Predictions(**some, views=VIEWS, class_names=names, skipped=[(f"bad {len(some[kind])}", "truncated")])
        for some in parts
    )
    joined = first.concatenate(second.select(images=[2, 1, 0]))
    assert joined.shape == (7, 3, 5)
    assert joined.has_logits == (kind == "logits")
    assert not joined.has_labels
    assert joined.ids == default_ids(7)
    assert joined.class_names == names
    assert [name for name, _ in joined.skipped] == ["bad 4", "bad 3"]
    np.testing.assert_array_equal(getattr(joined, kind), values)
    selected = joined.select(images=[6, 0, 4], views=["shift:1,0"])
    np.testing.assert_array_equal(getattr(selected, kind), values[[6, 0, 4]][:, [0, 2]])


def test_concatenated_predictions_and_ensembles_take_labels_and_ids_and_are_of_one_kind() -> None:
    both = [make(logits=random_logits(n, seed=n)) for n in (2, 3)]
    joined = both[0].concatenate(both[1], labels=[0, 1, 2, 3, 4], ids=iter("abcde"))
    assert joined.labels.tolist() == [0, 1, 2, 3, 4]
    assert joined.ids == tuple("abcde")
    for wrong in ({"labels": [0, 1]}, {"ids": "abc"}):
        with pytest.raises(PredictionsError, match=next(iter(wrong))):
            both[0].concatenate(both[1], **wrong)

    def make_ensemble(images: int) -> Predictions:
        members = [make(logits=random_logits(images, seed=seed)) for seed in (1, 2)]
        return Predictions(members=members, views=VIEWS)

    first, second = make_ensemble(4), make_ensemble(3)
    pair = first.concatenate(second, ids="abcdefg", labels=[0] * 7)
    assert (pair.n_members, pair.ids, pair.has_labels) == (2, tuple("abcdefg"), True)
    np.testing.assert_array_equal(pair.probabilities, np.concatenate([first.probabilities, second.probabilities]))
    preds = make()
    others = {
        "vflip": make(views="identity hflip vflip"),
        "4": make(logits=random_logits(classes=4)),
        "members": make(logits=None, members=[preds]),
        "probabilities": make(logits=None, probabilities=preds.probabilities),
    }
    for difference, other in others.items():
        with pytest.raises(PredictionsError, match=difference):
            preds.concatenate(other)


@pytest.mark.parametrize("is_labeled", [False, True])
@pytest.mark.parametrize("names", [None, ("ant", "bee", "cat", "dog", "eel")])
def test_tables_have_one_row_per_image(is_labeled: bool, names: tuple[str, ...] | None) -> None:
    pd = pytest.importorskip("pandas")
    preds = make(ids="abcdefg", labels=[0, 1, 2, 3, 4, 0, 1] if is_labeled else None, class_names=names)
    expected: dict[str, Any] = {"id": list("abcdefg")}
    known = {"label": preds.labels} if is_labeled else {}
    both: tuple[PredictFrom, ...] = ("image", "views")
    for column, values in {**known, **{f"predicted_{one}": preds.predicted(one) for one in both}}.items():
        expected[column] = values.tolist()
        if names is not None:
            expected[f"{column}_name"] = [names[value] for value in values]
    if is_labeled:
        expected |= {f"correct_{one}": preds.correct(one).tolist() for one in both}
    assert preds.to_arrow().to_pydict() == expected
    assert preds.to_arrow().column_names == list(expected)
    table, frame = preds.to_arrow(probabilities=True), preds.to_frame(probabilities=True)
    columns = [f"probabilities:{text}" for text in VIEWS.texts]
    assert table.column_names == [*expected, *columns]
    assert all(str(table.schema.field(name).type).startswith("fixed_size_list") for name in columns)
    stacked = [np.array(table[name].to_pylist(), dtype=np.float32) for name in columns]
    np.testing.assert_array_equal(np.stack(stacked, axis=1), preds.probabilities)
    assert isinstance(frame, pd.DataFrame)
    assert frame[list(expected)].to_dict("list") == expected
    np.testing.assert_array_equal(np.stack([np.stack(frame[name]) for name in columns], axis=1), preds.probabilities)


# --- Invalid predictions ---

TWO_VIEWS = ViewSet("identity hflip")
VALID = np.full((3, 2, 4), 0.25)


def change(place: tuple[int, int, int], value: float) -> Array:
    outputs = VALID.copy()
    outputs[place] = value
    return outputs


def build(**arguments: Any) -> Predictions:
    return Predictions(**{"probabilities": VALID, "views": TWO_VIEWS, **arguments})


INVALID: dict[str, tuple[Callable[[], object], list[str]]] = {
    "no outputs": (lambda: build(probabilities=None), ["probabilities=", "logits=", "members="]),
    "two outputs": (lambda: build(logits=VALID), ["probabilities=", "logits=", "members="]),
    "two axes": (lambda: build(probabilities=VALID[:, 0]), ["[3, 4]", "[:, None, :]"]),
    "number of views": (lambda: build(probabilities=VALID[:, :1]), ["[3, 1, 4]", "1 views", "2"]),
    "no image": (lambda: build(probabilities=VALID[:0]), ["[0, 2, 4]"]),
    "no class": (lambda: build(probabilities=VALID[:, :, :0]), ["[3, 2, 0]"]),
    "dtype of outputs": (lambda: build(probabilities=VALID.astype(str)), ["<U"]),
    "NaN": (lambda: build(probabilities=change((2, 1, 0), np.nan)), ["image 2", "'hflip'", "finite", "nan"]),
    "infinite": (
        lambda: build(probabilities=None, logits=change((1, 0, 0), np.inf)),
        ["logits", "image 1", "'identity'", "finite", "inf"],
    ),
    "negative": (
        lambda: build(probabilities=change((0, 1, 3), -0.25)),
        ["image 0", "'hflip'", "negative", "-0.25", "logits="],
    ),
    "sum": (lambda: build(probabilities=change((1, 1, 3), 0.5)), ["image 1", "'hflip'", "1.25", "logits="]),
    "probabilities as logits": (lambda: build(probabilities=None, logits=VALID), ["logits", "probabilities="]),
    "number of labels": (lambda: build(labels=[0, 1]), ["labels", "[2]", "[3]"]),
    "dtype of labels": (lambda: build(labels=[0.0, 1.0, 2.0]), ["labels", "float64"]),
    "ragged labels": (lambda: build(labels=[0, [1], 2]), ["labels", "array"]),
    "masked label": (lambda: build(labels=np.ma.masked_equal([0, 1, 2], 1)), ["labels", "[1]"]),
    "labels of objects": (lambda: build(labels=np.array([0, None, 2], dtype=object)), ["labels", "object"]),
    "ragged outputs": (lambda: build(probabilities=[[0.5], [0.2, 0.3]]), ["probabilities", "array"]),
    "masked output": (lambda: build(probabilities=np.ma.masked_less(VALID, 1)), ["probabilities", "[0, 0, 0]"]),
    "label too large": (lambda: build(labels=[0, 4, 1]), ["labels[1]", "4", "0 to 3"]),
    "labels from one": (lambda: build(labels=[1, 4, 2]), ["labels[1]", "4", "0 to 3", "subtract 1"]),
    "negative label": (lambda: build(labels=[0, 1, -1]), ["labels[2]", "-1"]),
    "number of ids": (lambda: build(ids=["a", "b"]), ["ids", "2", "3"]),
    "duplicate ids": (lambda: build(ids=["a", "b", "a"]), ["'a'", "ids[0]", "ids[2]"]),
    "number of class names": (lambda: build(class_names=["cat"]), ["class_names", "1", "4"]),
    "no labels": (lambda: build().labels, ["labels="]),
    "correct without labels": (lambda: build().correct(), ["labels="]),
    "no logits": (lambda: build().logits, ["logits", "probabilities"]),
    "top_k too large": (lambda: build().predicted(top_k=5), ["top_k", "5", "4"]),
    "top_k as text": (lambda: build().predicted(top_k="1"), ["top_k", "'1'"]),  # type: ignore[arg-type]
    "top_k too small": (lambda: build().predicted(top_k=0), ["top_k", "0"]),
    "predict_from": (lambda: build().predicted(predict_from="d"), ["'d'", "'image'", "'views'"]),  # type: ignore[arg-type]
    "rows": (lambda: list(build().blocks(0)), ["rows", "0"]),
    "unknown view": (lambda: build().select(views="identity shift:1,0"), ["'shift:1,0'", "identity, hflip"]),
    "position too large": (lambda: build().select(images=[3]), ["3", "0 to 2"]),
    "duplicate position": (lambda: build().select(images=[1, -2]), ["duplicate", "1"]),
    "no position": (lambda: build().select(images=[]), ["images"]),
    "ragged positions": (lambda: build().select(images=[0, [1]]), ["images", "array"]),
    "dtype of positions": (lambda: build().select(images=[0.5]), ["images", "float64"]),
    "shape of mask": (lambda: build().select(images=np.array([True])), ["mask", "[1]", "[3]"]),
    "images of members": (lambda: Predictions(views=TWO_VIEWS, members=[build(), build(ids="abc")]), ["members[1]"]),
    "views of members": (
        lambda: Predictions(views="identity vflip", members=[build()]),
        ["members[0]", "identity, hflip", "identity, vflip"],
    ),
    "classes of members": (
        lambda: Predictions(views=TWO_VIEWS, members=[build(), build(probabilities=np.full((3, 2, 2), 0.5))]),
        ["members[1]", "2", "4"],
    ),
}


@pytest.mark.parametrize(("create", "values"), INVALID.values(), ids=list(INVALID))
def test_invalid_input_is_rejected(create: Callable[[], object], values: list[str]) -> None:
    with pytest.raises(PredictionsError, match=re.escape(values[0])) as raised:
        create()
    message = str(raised.value)
    assert all(value in message for value in values), message
    assert message.count("\n") == 0


def test_sums_slightly_off_half_precision_and_integers_are_accepted() -> None:
    assert build(probabilities=VALID + 0.0002).n_images == 3
    assert build(probabilities=VALID.astype(np.float16)).probabilities.dtype == np.float32
    assert build(probabilities=None, logits=np.ones((3, 2, 4), dtype=np.int64)).logits.dtype == np.float32
    for logits in (VALID[:1, :1], change((2, 1, 3), 0.3)):  # a single row, and all rows but the last one
        views = TWO_VIEWS if logits.shape[1] == 2 else "identity"
        assert build(probabilities=None, logits=logits, views=views).has_logits


# --- Predictions made elsewhere: views with plain names pass through every step that needs no pixels ---

NAMES = ["orig", "crop 1", "rotate", "HorizontalFlip", "hflip"]
TEXTS = ("identity", "hflip", "vflip", "gray", "blur:1")


def make_named(views: Any) -> Predictions:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 200)
    logits = rng.normal(size=(200, 1, 4)) + 3 * np.eye(4)[labels][:, None] + rng.normal(size=(200, 5, 4))
    return Predictions(logits=logits, views=views, labels=labels, class_names=list("abcd"))


@pytest.fixture(scope="module")
def both() -> tuple[Predictions, Predictions]:
    """The same outputs, with plain names and with texts of views."""
    return make_named(NAMES), make_named(TEXTS)


def test_names_of_views_pass_through_all_that_needs_no_pixels(both: tuple[Predictions, Predictions]) -> None:
    views = both[0].views
    assert views.texts == ("identity", "crop 1", "rotate", "HorizontalFlip", "hflip")
    assert str(views) == ", ".join(views.texts)
    assert [view.name for view in views] == [None, "crop 1", "rotate", "HorizontalFlip", None]
    assert [view.is_identity for view in views] == [True, False, False, False, False]
    assert views[4] == View.parse("hflip")
    assert views.index("rotate") == 2
    assert "crop 1" in views
    assert pickle.loads(pickle.dumps(views)) == views
    assert views[1].to_paper_notation() == "crop 1"
    named, parsed = both
    for chosen_views, texts in (
        (["crop 1"], ["hflip"]),
        ("crop 1", "identity hflip"),
        (["hflip", "rotate"], ["blur:1", "vflip"]),
        (named.views, parsed.views),
    ):
        np.testing.assert_array_equal(named.select(views=chosen_views).logits, parsed.select(views=texts).logits)
    with pytest.raises(SecondLookError, match="'orig'"):
        named.select(views=["orig"])
    for method in ("msr", "mean", "bootstrap", "zero"):
        np.testing.assert_array_equal(sl.confidence(named, method), sl.confidence(parsed, method))
    evaluations = [sl.evaluate(preds, resamples=20).to_dict() for preds in both]
    assert evaluations[0] == evaluations[1]
    policies = [sl.certify(preds, risk=0.2, delta=0.1) for preds in both]
    assert policies[0].model_copy(update={"views": policies[1].views}) == policies[1]
    assert "probabilities:crop 1" in named.to_arrow(probabilities=True).column_names
    diagnosis, reference = diagnose_views(named), diagnose_views(parsed)
    assert diagnosis["crop 1"].agreement == reference["hflip"].agreement
    assert len(diagnosis.usable) == len(reference.usable)
    assert set(diagnosis.usable.texts) <= set(named.views.texts)
    chosen, expected = (choose_views(preds, budget=2).views for preds in both)
    assert [named.views.index(view) for view in chosen] == [parsed.views.index(view) for view in expected]
    classifier = load_classifier(lambda batch: batch, name="elsewhere")
    policy = attach(sl.certify(named, risk=0.2, delta=0.1), classifier=classifier, views=named.views.texts)
    with pytest.raises(DecisionError, match=r"'crop 1'.*accept"):
        policy.bind(classifier).decide(np.zeros((8, 8, 3), np.uint8))
    with pytest.raises(ViewError, match="'crop 1'"):
        sl.apply_views(np.zeros((1, 4, 4, 3), np.uint8), named.views)


@pytest.mark.parametrize(
    ("views", "value"),
    [
        (["orig", "a", "a", "b", "c"], "duplicate view 'a'"),
        (["a", "identity", "b", "c", "d"], "identity is view 2 of 5"),
        ("hflip identity vflip gray blur:1", "identity is view 2 of 5"),
        (["orig", "zoom:x", "b", "c", "d"], "'x'"),
        (["natural", "a", "b", "c", "d"], "preset 'natural'"),
        (["orig", " ", "b", "c", "d"], "empty"),
        ([0, 1, 2, 3, 4], "int"),
        ("orig crop rotate flip blur", "orig"),
    ],
)
def test_invalid_views_are_rejected(views: Any, value: str) -> None:
    with pytest.raises(ViewError, match=re.escape(value)):
        make_named(views)
    with pytest.raises(PredictionsError, match=r"5 views, but there are 2; .*views="):
        make_named(["orig", "crop 1"])


def test_labels_may_be_names(both: tuple[Predictions, Predictions]) -> None:
    names, named, logits = np.array(list("abcd")), both[0], both[0].logits
    for labels in (names[named.labels], names[named.labels].tolist(), names[named.labels].astype(object)):
        preds = Predictions(logits=logits, views=NAMES, labels=labels, class_names=names)
        np.testing.assert_array_equal(preds.labels, named.labels)
    with pytest.raises(PredictionsError, match="class_names="):
        Predictions(logits=logits[:1], views=NAMES, labels=["a"])
    with pytest.raises(PredictionsError, match=r"labels\[0\] is 'e'"):
        Predictions(logits=logits[:1], views=NAMES, labels=["e"], class_names=names)
