"""Predictions that wrap arrays: values, predicted classes, selection, ensembles."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from secondlook.arrays import Array, softmax
from secondlook.errors import PredictionsError
from secondlook.predictions import Predictions
from secondlook.predictions.leading import top_classes
from secondlook.predictions.table import block_rows
from secondlook.views import ViewSet

VIEWS = ViewSet("identity hflip shift:1,0")


def random_logits(images: int = 7, views: int = 3, classes: int = 5, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(images, views, classes)).astype(np.float32)


def obvious_softmax(logits: Array) -> Array:
    powers = np.exp(logits.astype(np.float64))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def obvious_leading(scores: Array, top_k: int) -> list[list[int]]:
    """Sort by falling score, then by rising class."""
    return [sorted(range(len(row)), key=lambda c: (-row[c], c))[:top_k] for row in scores.tolist()]


def test_logits_become_probabilities_in_float64() -> None:
    logits = random_logits()
    preds = Predictions(logits=logits, views=VIEWS)
    (_, block), *rest = preds.blocks()
    assert not rest
    assert block.dtype == np.float64
    np.testing.assert_allclose(block, obvious_softmax(logits), rtol=1e-12)
    assert preds.probabilities.dtype == np.float32
    np.testing.assert_array_equal(preds.logits, logits)
    assert preds.has_logits


def test_sure_answers_do_not_tie() -> None:
    logits = np.array([[[20.0, 0.0]], [[21.0, 0.0]]], dtype=np.float32)
    (_, block), *_ = Predictions(logits=logits, views="identity").blocks()
    assert block[1, 0, 0] > block[0, 0, 0], "in float32 both are 1"


def test_probabilities_are_handed_on_as_they_are() -> None:
    probabilities = obvious_softmax(random_logits())
    preds = Predictions(probabilities=probabilities, views=VIEWS)
    np.testing.assert_array_equal(np.concatenate([block for _, block in preds.blocks(2)]), probabilities)
    assert not preds.has_logits


@pytest.mark.parametrize("rows", [1, 2, 7, 100, None])
def test_blocks_cover_all_images_in_order(rows: int | None) -> None:
    preds = Predictions(logits=random_logits(), views=VIEWS)
    pieces = list(preds.blocks(rows))
    assert [i for chosen, _ in pieces for i in range(7)[chosen]] == list(range(7))
    np.testing.assert_array_equal(np.concatenate([block for _, block in pieces]), softmax(preds.logits))
    np.testing.assert_array_equal(np.concatenate([block for _, block in preds.logit_blocks(rows)]), preds.logits)


def test_blocks_are_bounded_and_powers_of_two() -> None:
    assert block_rows(24, 1000) == 128
    assert block_rows(10**6, 10**6) == 1
    assert block_rows(10**6, 10**6, rows_read_together=16) == 16


def test_blocks_may_be_changed_by_who_gets_them() -> None:
    probabilities = obvious_softmax(random_logits())
    kept = probabilities.copy()
    preds = Predictions(probabilities=probabilities, views=VIEWS)
    for _, block in preds.blocks():
        block[:] = 0
    np.testing.assert_array_equal(probabilities, kept)


@given(
    arrays(
        np.float64, st.tuples(st.integers(1, 6), st.integers(1, 6)), elements=st.sampled_from([0.0, 0.25, 0.5, 1.0])
    ),
    st.data(),
)
@settings(deadline=None, max_examples=60)
def test_leading_classes_are_those_of_a_sort_with_ties_to_the_lower_class(scores: Array, data: st.DataObject) -> None:
    top_k = data.draw(st.integers(1, scores.shape[1]))
    kept = scores.copy()
    assert top_classes(scores, top_k).tolist() == obvious_leading(scores, top_k)
    np.testing.assert_array_equal(scores, kept)


@pytest.mark.parametrize("top_k", [1, 2, 5])
def test_predicted_and_correct_by_the_image_and_by_all_views(top_k: int) -> None:
    logits = random_logits(50)
    labels = np.random.default_rng(1).integers(0, 5, 50)
    preds = Predictions(logits=logits, views=VIEWS, labels=labels)
    probabilities = obvious_softmax(logits)
    for predict_from, scores in (("image", probabilities[:, 0]), ("views", probabilities.mean(axis=1))):
        expected = np.array(obvious_leading(scores, top_k))
        predicted = preds.predicted(predict_from=predict_from, top_k=top_k)  # type: ignore[arg-type]
        assert predicted.dtype == np.int64
        np.testing.assert_array_equal(predicted, expected[:, 0] if top_k == 1 else expected)
        correct = preds.correct(predict_from=predict_from, top_k=top_k)  # type: ignore[arg-type]
        assert correct.dtype == np.bool_
        assert correct.tolist() == [label in row for label, row in zip(labels, expected, strict=True)]
    assert (preds.predicted("image") != preds.predicted("views")).any(), "otherwise this test could not tell them apart"


def test_select_views_keeps_the_order_asked_for_and_the_identity_first() -> None:
    preds = Predictions(logits=random_logits(), views=VIEWS)
    chosen = preds.select(views=["shift:1,0", "hflip"])
    assert chosen.views.texts == ("identity", "shift:1,0", "hflip")
    np.testing.assert_array_equal(chosen.logits, preds.logits[:, [0, 2, 1]])


@pytest.mark.parametrize("images", [[4, 0, 6], [-1], np.array([1, 0, 0, 1, 0, 0, 1], dtype=bool)])
def test_select_images_by_position_or_mask(images: Array) -> None:
    labels = [0, 1, 2, 3, 4, 0, 1]
    preds = Predictions(logits=random_logits(), views=VIEWS, labels=labels, ids="abcdefg")
    chosen = preds.select(images=images)
    np.testing.assert_array_equal(chosen.logits, preds.logits[images])
    np.testing.assert_array_equal(chosen.labels, np.array(labels)[images])
    assert list(chosen.ids) == np.array(list("abcdefg"))[images].tolist()


def test_selections_of_selections() -> None:
    preds = Predictions(logits=random_logits(), views=VIEWS)
    twice = preds.select(images=[5, 3, 1], views=["shift:1,0"]).select(images=[2, 0])
    np.testing.assert_array_equal(twice.logits, preds.logits[[1, 5]][:, [0, 2]])
    assert twice.predicted().tolist() == preds.predicted()[[1, 5]].tolist()


def test_select_reads_nothing_but_what_is_asked() -> None:
    class CountingTable:
        kind = "logits"
        shape = (4, 3, 2)
        rows_read_together = 1
        asked: list[tuple[list[int], list[int]]]

        def read(self, images: Array, views: Array) -> Array:
            self.asked.append((images.tolist(), views.tolist()))
            return np.zeros((len(images), len(views), 2), dtype=np.float32)

    table = CountingTable()
    table.asked = []
    preds = Predictions.from_table(table, VIEWS)  # type: ignore[arg-type]
    chosen = preds.select(views=["shift:1,0"], images=[3, 1])
    assert table.asked == []
    assert chosen.probabilities.shape == (2, 2, 2)
    preds.predicted("image")
    preds.predicted("image")
    assert table.asked == [([3, 1], [0, 2]), ([0, 1, 2, 3], [0])]


def test_an_ensemble_is_the_mean_of_its_members() -> None:
    members = [
        Predictions(logits=random_logits(seed=seed), views=VIEWS, labels=[0] * 7, ids="abcdefg") for seed in (1, 2)
    ]
    ensemble = Predictions(members=members, views=VIEWS)
    mean = (obvious_softmax(members[0].logits) + obvious_softmax(members[1].logits)) / 2
    np.testing.assert_allclose(ensemble.probabilities, mean, atol=1e-7)
    np.testing.assert_array_equal(ensemble.predicted("image"), mean[:, 0].argmax(axis=1))
    np.testing.assert_array_equal(ensemble.predicted("views"), mean.mean(axis=1).argmax(axis=1))
    assert (ensemble.has_labels, list(ensemble.ids), ensemble.has_logits) == (True, list("abcdefg"), False)
    chosen = ensemble.select(views=["hflip"], images=[2])
    np.testing.assert_allclose(chosen.probabilities, mean[[2]][:, [0, 1]], atol=1e-7)
    assert [member.shape for member in chosen.members] == [(1, 2, 5)] * 2
    with pytest.raises(PredictionsError, match="an ensemble, a mean of probabilities"):
        _ = ensemble.logits


def test_ids_are_zero_padded_positions_unless_given() -> None:
    preds = Predictions(logits=random_logits(11), views=VIEWS)
    assert preds.ids[:2] == ("00", "01")
    assert preds.ids[10] == "10"


def test_repr_says_what_it_is() -> None:
    preds = Predictions(logits=random_logits(), views=VIEWS, labels=[0] * 7)
    assert repr(preds) == "<Predictions: 7 images x 3 views x 5 classes, logits, labeled>"
    assert len(preds) == 7


def test_the_room_is_light() -> None:
    heavy = "torch numba cv2 onnxruntime pyarrow sklearn plotly ray transformers"
    code = (
        "import sys, secondlook.predictions as p; p.Predictions; p.collect;"
        f"print([name for name in {heavy.split()} if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
