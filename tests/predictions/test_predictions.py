"""Predictions of arrays: values, predicted classes, selection, ensembles, concatenation and conversion to tables."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from secondlook.arrays import Array, Output, default_ids, softmax, top_classes
from secondlook.errors import PredictionsError
from secondlook.predictions import PredictFrom, Predictions
from secondlook.predictions.store import Table
from secondlook.sources import open_source
from secondlook.views import ViewSet

VIEWS = ViewSet("identity hflip shift:1,0")
BOTH: tuple[PredictFrom, ...] = ("image", "views")


def random_logits(images: int = 7, views: int = 3, classes: int = 5, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(images, views, classes)).astype(np.float32)


def reference_softmax(logits: Array) -> Array:
    powers = np.exp(logits.astype(np.float64))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def reference_top_classes(values: Array, top_k: int) -> list[list[int]]:
    """Sort by decreasing value, then by increasing class."""
    return [sorted(range(len(row)), key=lambda c: (-row[c], c))[:top_k] for row in values.tolist()]


def test_logits_are_converted_to_probabilities_in_float64() -> None:
    logits = random_logits()
    preds = Predictions(logits=logits, views=VIEWS)
    (_, block), *rest = preds.blocks()
    assert not rest
    assert block.dtype == np.float64
    np.testing.assert_allclose(block, reference_softmax(logits), rtol=1e-12)
    assert preds.probabilities.dtype == np.float32
    np.testing.assert_array_equal(preds.logits, logits)
    assert preds.has_logits


def test_confident_outputs_do_not_tie() -> None:
    logits = np.array([[[20.0, 0.0]], [[21.0, 0.0]]], dtype=np.float32)
    (_, block), *_ = Predictions(logits=logits, views="identity").blocks()
    assert block[1, 0, 0] > block[0, 0, 0], "in float32 both are 1"


def test_probabilities_are_returned_unchanged() -> None:
    probabilities = reference_softmax(random_logits())
    preds = Predictions(probabilities=probabilities, views=VIEWS)
    np.testing.assert_array_equal(np.concatenate([block for _, block in preds.blocks(2)]), probabilities)
    assert not preds.has_logits


@pytest.mark.parametrize("rows", [1, 2, 7, 100, None])
def test_blocks_cover_all_images_in_order(rows: int | None) -> None:
    preds = Predictions(logits=random_logits(), views=VIEWS)
    blocks = list(preds.blocks(rows))
    assert [i for images, _ in blocks for i in range(7)[images]] == list(range(7))
    np.testing.assert_array_equal(np.concatenate([block for _, block in blocks]), softmax(preds.logits))
    np.testing.assert_array_equal(np.concatenate([block for _, block in preds.logit_blocks(rows)]), preds.logits)


def test_modifying_a_block_leaves_the_predictions_alone() -> None:
    probabilities = reference_softmax(random_logits())
    original = probabilities.copy()
    preds = Predictions(probabilities=probabilities, views=VIEWS)
    for _, block in preds.blocks():
        block[:] = 0
    np.testing.assert_array_equal(probabilities, original)


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
    preds = Predictions(logits=logits, views=VIEWS, labels=labels)
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


def test_selected_views_have_the_given_order_with_the_identity_first() -> None:
    preds = Predictions(logits=random_logits(), views=VIEWS)
    selected = preds.select(views=["shift:1,0", "hflip"])
    assert selected.views.texts == ("identity", "shift:1,0", "hflip")
    np.testing.assert_array_equal(selected.logits, preds.logits[:, [0, 2, 1]])


@pytest.mark.parametrize("images", [[4, 0, 6], [-1], np.array([1, 0, 0, 1, 0, 0, 1], dtype=bool)])
def test_images_are_selected_by_position_or_mask(images: Array) -> None:
    labels = [0, 1, 2, 3, 4, 0, 1]
    preds = Predictions(logits=random_logits(), views=VIEWS, labels=labels, ids="abcdefg")
    selected = preds.select(images=images)
    np.testing.assert_array_equal(selected.logits, preds.logits[images])
    np.testing.assert_array_equal(selected.labels, np.array(labels)[images])
    assert list(selected.ids) == np.array(list("abcdefg"))[images].tolist()


def test_selections_can_be_selected_from() -> None:
    preds = Predictions(logits=random_logits(), views=VIEWS)
    nested = preds.select(images=[5, 3, 1], views=["shift:1,0"]).select(images=[2, 0])
    np.testing.assert_array_equal(nested.logits, preds.logits[[1, 5]][:, [0, 2]])
    assert nested.predicted().tolist() == preds.predicted()[[1, 5]].tolist()


def test_only_selected_outputs_are_read_and_only_once() -> None:
    class CountingTable(Table):
        kind: Output = "logits"
        shape = (4, 3, 2)
        rows_per_read = 1
        requests: list[tuple[list[int], list[int]]]

        def read(self, images: Array, views: Array | None = None) -> Array:
            assert views is not None, "some of the views are selected"
            self.requests.append((images.tolist(), views.tolist()))
            return np.zeros((len(images), len(views), 2), dtype=np.float32)

    table = CountingTable()
    table.requests = []
    preds = Predictions._from_table(table, VIEWS, ids="abcd")
    selected = preds.select(views=["shift:1,0"], images=[3, 1])
    assert table.requests == []
    assert selected.probabilities.shape == (2, 2, 2)
    preds.predicted("image")
    preds.predicted("image")
    assert table.requests == [([3, 1], [0, 2]), ([0, 1, 2, 3], [0])]


def test_ensemble_is_the_mean_of_its_members() -> None:
    members = [
        Predictions(logits=random_logits(seed=seed), views=VIEWS, labels=[0] * 7, ids="abcdefg") for seed in (1, 2)
    ]
    ensemble = Predictions(members=members, views=VIEWS)
    mean = (reference_softmax(members[0].logits) + reference_softmax(members[1].logits)) / 2
    np.testing.assert_allclose(ensemble.probabilities, mean, atol=1e-7)
    np.testing.assert_array_equal(ensemble.predicted("image"), mean[:, 0].argmax(axis=1))
    np.testing.assert_array_equal(ensemble.predicted("views"), mean.mean(axis=1).argmax(axis=1))
    assert (ensemble.has_labels, list(ensemble.ids), ensemble.has_logits) == (True, list("abcdefg"), False)
    selected = ensemble.select(views=["hflip"], images=[2])
    np.testing.assert_allclose(selected.probabilities, mean[[2]][:, [0, 1]], atol=1e-7)
    assert [member.shape for member in selected.members] == [(1, 2, 5)] * 2
    with pytest.raises(PredictionsError, match="logits"):
        _ = ensemble.logits


def test_default_ids_are_those_of_an_array_source() -> None:
    preds = Predictions(logits=random_logits(11), views=VIEWS)
    assert preds.ids == tuple(open_source(np.zeros((11, 2, 2, 3), dtype=np.uint8)).ids)
    assert preds.ids == default_ids(11)


def test_repr_shows_shape_kind_and_labels() -> None:
    preds = Predictions(logits=random_logits(), views=VIEWS, labels=[0] * 7)
    assert repr(preds) == "<Predictions: 7 images x 3 views x 5 classes, logits, labeled>"
    assert len(preds) == 7


def test_predictions_are_immutable() -> None:
    preds = Predictions(logits=random_logits(), views=VIEWS, labels=[0] * 7, skipped=[("h", "truncated")])
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


def test_labels_are_copied() -> None:
    labels = np.zeros(7, dtype=np.int64)
    preds = Predictions(logits=random_logits(), views=VIEWS, labels=labels)
    labels[0] = 1
    assert preds.labels[0] == 0


def test_predictions_can_be_pickled_and_copied() -> None:
    preds = Predictions(logits=random_logits(), views=VIEWS, labels=[0] * 7)
    for duplicate in (pickle.loads(pickle.dumps(preds)), copy.copy(preds), copy.deepcopy(preds)):
        np.testing.assert_array_equal(duplicate.logits, preds.logits)
        assert (duplicate.ids, duplicate.views) == (preds.ids, preds.views)


def test_ensemble_has_the_skipped_images_of_its_members() -> None:
    members = [Predictions(logits=random_logits(seed=seed), views=VIEWS, skipped=[("h", "bad")]) for seed in (1, 2)]
    assert Predictions(members=members, views=VIEWS).skipped == (("h", "bad"),)


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


def test_concatenated_predictions_take_labels_and_ids() -> None:
    both = [Predictions(logits=random_logits(n, seed=n), views=VIEWS) for n in (2, 3)]
    joined = both[0].concatenate(both[1], labels=[0, 1, 2, 3, 4], ids=iter("abcde"))
    assert joined.labels.tolist() == [0, 1, 2, 3, 4]
    assert joined.ids == tuple("abcde")
    for wrong in ({"labels": [0, 1]}, {"ids": "abc"}):
        with pytest.raises(PredictionsError, match=next(iter(wrong))):
            both[0].concatenate(both[1], **wrong)


def test_concatenated_ensembles_are_concatenated_member_by_member() -> None:
    def make_ensemble(images: int) -> Predictions:
        members = [Predictions(logits=random_logits(images, seed=seed), views=VIEWS) for seed in (1, 2)]
        return Predictions(members=members, views=VIEWS)

    first, second = make_ensemble(4), make_ensemble(3)
    joined = first.concatenate(second, ids="abcdefg", labels=[0] * 7)
    assert (joined.n_members, joined.ids, joined.has_labels) == (2, tuple("abcdefg"), True)
    np.testing.assert_array_equal(joined.probabilities, np.concatenate([first.probabilities, second.probabilities]))


def test_predictions_that_differ_in_views_classes_members_or_output_cannot_be_concatenated() -> None:
    preds = Predictions(logits=random_logits(), views=VIEWS)
    others = {
        "vflip": Predictions(logits=random_logits(), views="identity hflip vflip"),
        "4": Predictions(logits=random_logits(classes=4), views=VIEWS),
        "members": Predictions(members=[preds], views=VIEWS),
        "probabilities": Predictions(probabilities=preds.probabilities, views=VIEWS),
    }
    for difference, other in others.items():
        with pytest.raises(PredictionsError, match=difference):
            preds.concatenate(other)


def test_arrow_table_has_one_row_per_image() -> None:
    preds = Predictions(logits=random_logits(), views=VIEWS, ids="abcdefg")
    table = preds.to_arrow()
    assert table.column_names == ["id", "predicted_image", "predicted_views"]
    assert table["id"].to_pylist() == list("abcdefg")
    assert table["predicted_image"].to_pylist() == preds.predicted("image").tolist()
    assert table["predicted_views"].to_pylist() == preds.predicted("views").tolist()


def test_arrow_table_has_labels_and_class_names_if_known() -> None:
    labels, names = [0, 1, 2, 3, 4, 0, 1], ("ant", "bee", "cat", "dog", "eel")
    preds = Predictions(logits=random_logits(), views=VIEWS, labels=labels, class_names=names)
    rows = preds.to_arrow().to_pylist()
    assert list(rows[0]) == [
        "id",
        "label",
        "label_name",
        "predicted_image",
        "predicted_image_name",
        "predicted_views",
        "predicted_views_name",
        "correct_image",
        "correct_views",
    ]
    assert [row["label"] for row in rows] == labels
    for row in rows:
        assert row["label_name"] == names[row["label"]]
        for predict_from in ("image", "views"):
            assert row[f"predicted_{predict_from}_name"] == names[row[f"predicted_{predict_from}"]]
            assert row[f"correct_{predict_from}"] == (row[f"predicted_{predict_from}"] == row["label"])


def test_arrow_table_has_probabilities_on_request() -> None:
    preds = Predictions(logits=random_logits(), views=VIEWS)
    table = preds.to_arrow(probabilities=True)
    columns = [f"probabilities:{text}" for text in VIEWS.texts]
    assert table.column_names[3:] == columns
    assert all(str(table.schema.field(name).type).startswith("fixed_size_list") for name in columns)
    values = np.stack([np.array(table[name].to_pylist(), dtype=np.float32) for name in columns], axis=1)
    np.testing.assert_array_equal(values, preds.probabilities)


def test_data_frame_equals_the_arrow_table() -> None:
    pd = pytest.importorskip("pandas")
    preds = Predictions(logits=random_logits(), views=VIEWS, labels=[0] * 7)
    frame = preds.to_frame(probabilities=True)
    assert isinstance(frame, pd.DataFrame)
    assert list(frame.columns) == preds.to_arrow(probabilities=True).column_names
    assert frame["correct_views"].tolist() == preds.correct("views").tolist()
    np.testing.assert_array_equal(np.stack(frame["probabilities:hflip"]), preds.probabilities[:, 1])


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_blocks_may_be_modified(kind: str) -> None:
    options: dict[str, Any] = {kind: reference_softmax(random_logits(7))}
    preds = Predictions(views=VIEWS, **options)
    expected = preds.probabilities
    for _, block in preds.blocks():
        block[:] = 0
    np.testing.assert_array_equal(preds.probabilities, expected)
