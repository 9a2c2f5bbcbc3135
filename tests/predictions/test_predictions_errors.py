"""Every way to give wrong predictions has a sentence of its own."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from secondlook.arrays import Array
from secondlook.errors import PredictionsError
from secondlook.predictions import Predictions
from secondlook.views import ViewSet

VIEWS = ViewSet("identity hflip")
GOOD = np.full((3, 2, 4), 0.25)


def changed(place: tuple[int, int, int], value: float) -> Array:
    answers = GOOD.copy()
    answers[place] = value
    return answers


def make(**arguments: Any) -> Predictions:
    return Predictions(**{"probabilities": GOOD, "views": VIEWS, **arguments})


def member(**arguments: Any) -> Predictions:
    return Predictions(**{"probabilities": GOOD, "views": VIEWS, **arguments})


CASES: list[tuple[Callable[[], object], str]] = [
    (lambda: make(probabilities=None), "exactly one of probabilities=, logits= and members="),
    (lambda: make(logits=GOOD), "exactly one of probabilities=, logits= and members="),
    (
        lambda: make(probabilities=GOOD[:, 0]),
        r"shape \[3, 4\]; expected \[images, views, classes\].*values\[:, None, :\]",
    ),
    (lambda: make(probabilities=GOOD[:, :1]), "so 1 views, but views= names 2"),
    (lambda: make(probabilities=GOOD[:0]), r"shape \[0, 2, 4\]; expected at least one image"),
    (lambda: make(probabilities=GOOD[:, :, :0]), "at least one class"),
    (lambda: make(probabilities=GOOD.astype(str)), "dtype <U.*expected floating-point"),
    (lambda: make(probabilities=changed((2, 1, 0), np.nan)), "image 2, view 'hflip' are not finite"),
    (lambda: make(probabilities=None, logits=changed((1, 0, 0), np.inf)), "image 1, view 'identity' are not finite"),
    (lambda: make(probabilities=changed((0, 1, 3), -0.25)), "image 0, view 'hflip' are negative.*pass logits="),
    (lambda: make(probabilities=changed((1, 1, 3), 0.5)), r"do not sum to 1 \(sum 1.25.*pass logits="),
    (lambda: make(labels=[0, 1]), r"labels has shape \[2\]; expected \[3\]"),
    (lambda: make(labels=[0.0, 1.0, 2.0]), "labels has dtype float64; expected integers"),
    (lambda: make(labels=[0, 4, 1]), r"labels\[1\] is 4; expected a class index from 0 to 3"),
    (lambda: make(labels=[0, 1, -1]), r"labels\[2\] is -1"),
    (lambda: make(ids=["a", "b"]), "ids has 2 entries; expected 3"),
    (lambda: make(ids=["a", "b", "a"]), r"ids\[0\] and ids\[2\] are both 'a'"),
    (lambda: make(class_names=["cat"]), "class_names has 1 entries; expected 4"),
    (lambda: make().labels, "no labels; give them as labels="),
    (lambda: make().correct(), "no labels"),
    (lambda: make().logits, "the classifier gave probabilities"),
    (lambda: make().predicted(top_k=5), "top_k is 5; expected the number of leading classes, from 1 to 4"),
    (lambda: make().predicted(top_k=0), "top_k is 0"),
    (lambda: make().predicted(predict_from="d"), "by is 'd'; expected 'x'"),  # type: ignore[arg-type]
    (lambda: list(make().blocks(0)), "rows is 0"),
    (lambda: make().select(views="identity shift:1,0"), "view 'shift:1,0' is not among the predictions; there are"),
    (lambda: make().select(images=[3]), "position 3; expected positions from 0 to 2"),
    (lambda: make().select(images=[1, -2]), "position 1 twice"),
    (lambda: make().select(images=[]), "chooses no image"),
    (lambda: make().select(images=[0.5]), "dtype float64; expected a list of positions or a mask"),
    (lambda: make().select(images=np.array([True])), r"mask of shape \[1\]; expected \[3\]"),
    (lambda: Predictions(views=VIEWS, members=[member(), member(ids="abc")]), r"members\[1\] has other images"),
    (lambda: Predictions(views="identity vflip", members=[member()]), r"members\[0\] has the views identity, hflip"),
    (
        lambda: Predictions(views=VIEWS, members=[member(), member(probabilities=np.full((3, 2, 2), 0.5))]),
        r"members\[1\] has 2 classes; expected 4",
    ),
]


@pytest.mark.parametrize(("wrong", "sentence"), CASES, ids=[sentence for _, sentence in CASES])
def test_wrong_input_gets_its_sentence(wrong: Callable[[], object], sentence: str) -> None:
    with pytest.raises(PredictionsError, match=sentence) as raised:
        wrong()
    assert str(raised.value).count("\n") == 0


def test_a_sum_of_nearly_one_is_good_enough() -> None:
    assert make(probabilities=GOOD + 0.0002).n_images == 3


def test_half_precision_and_integers_are_taken() -> None:
    assert make(probabilities=GOOD.astype(np.float16)).probabilities.dtype == np.float32
    assert make(probabilities=None, logits=np.ones((3, 2, 4), dtype=np.int64)).logits.dtype == np.float32
