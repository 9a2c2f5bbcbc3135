"""Invalid predictions are rejected with an error that contains the offending value."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from secondlook.arrays import Array
from secondlook.errors import PredictionsError
from secondlook.predictions import Predictions
from secondlook.views import ViewSet

VIEWS = ViewSet("identity hflip")
VALID = np.full((3, 2, 4), 0.25)


def change(place: tuple[int, int, int], value: float) -> Array:
    outputs = VALID.copy()
    outputs[place] = value
    return outputs


def make(**arguments: Any) -> Predictions:
    return Predictions(**{"probabilities": VALID, "views": VIEWS, **arguments})


INVALID: dict[str, tuple[Callable[[], object], list[str]]] = {
    "no outputs": (lambda: make(probabilities=None), ["probabilities=", "logits=", "members="]),
    "two outputs": (lambda: make(logits=VALID), ["probabilities=", "logits=", "members="]),
    "two axes": (lambda: make(probabilities=VALID[:, 0]), ["[3, 4]", "[:, None, :]"]),
    "number of views": (lambda: make(probabilities=VALID[:, :1]), ["[3, 1, 4]", "1 views", "2"]),
    "no image": (lambda: make(probabilities=VALID[:0]), ["[0, 2, 4]"]),
    "no class": (lambda: make(probabilities=VALID[:, :, :0]), ["[3, 2, 0]"]),
    "dtype of outputs": (lambda: make(probabilities=VALID.astype(str)), ["<U"]),
    "NaN": (lambda: make(probabilities=change((2, 1, 0), np.nan)), ["image 2", "'hflip'", "finite", "nan"]),
    "infinite": (
        lambda: make(probabilities=None, logits=change((1, 0, 0), np.inf)),
        ["logits", "image 1", "'identity'", "finite", "inf"],
    ),
    "negative": (
        lambda: make(probabilities=change((0, 1, 3), -0.25)),
        ["image 0", "'hflip'", "negative", "-0.25", "logits="],
    ),
    "sum": (lambda: make(probabilities=change((1, 1, 3), 0.5)), ["image 1", "'hflip'", "1.25", "logits="]),
    "number of labels": (lambda: make(labels=[0, 1]), ["labels", "[2]", "[3]"]),
    "dtype of labels": (lambda: make(labels=[0.0, 1.0, 2.0]), ["labels", "float64"]),
    "ragged labels": (lambda: make(labels=[0, [1], 2]), ["labels", "array"]),
    "masked label": (lambda: make(labels=np.ma.masked_equal([0, 1, 2], 1)), ["labels", "[1]"]),
    "labels of objects": (lambda: make(labels=np.array([0, None, 2], dtype=object)), ["labels", "object"]),
    "ragged outputs": (lambda: make(probabilities=[[0.5], [0.2, 0.3]]), ["probabilities", "array"]),
    "masked output": (lambda: make(probabilities=np.ma.masked_less(VALID, 1)), ["probabilities", "[0, 0, 0]"]),
    "label too large": (lambda: make(labels=[0, 4, 1]), ["labels[1]", "4", "0 to 3"]),
    "negative label": (lambda: make(labels=[0, 1, -1]), ["labels[2]", "-1"]),
    "number of ids": (lambda: make(ids=["a", "b"]), ["ids", "2", "3"]),
    "duplicate ids": (lambda: make(ids=["a", "b", "a"]), ["'a'", "ids[0]", "ids[2]"]),
    "number of class names": (lambda: make(class_names=["cat"]), ["class_names", "1", "4"]),
    "no labels": (lambda: make().labels, ["labels="]),
    "correct without labels": (lambda: make().correct(), ["labels="]),
    "no logits": (lambda: make().logits, ["logits", "probabilities"]),
    "top_k too large": (lambda: make().predicted(top_k=5), ["top_k", "5", "4"]),
    "top_k as text": (lambda: make().predicted(top_k="1"), ["top_k", "'1'"]),  # type: ignore[arg-type]
    "top_k too small": (lambda: make().predicted(top_k=0), ["top_k", "0"]),
    "predict_from": (lambda: make().predicted(predict_from="d"), ["'d'", "'image'", "'views'"]),  # type: ignore[arg-type]
    "rows": (lambda: list(make().blocks(0)), ["rows", "0"]),
    "unknown view": (lambda: make().select(views="identity shift:1,0"), ["'shift:1,0'", "identity, hflip"]),
    "position too large": (lambda: make().select(images=[3]), ["3", "0 to 2"]),
    "duplicate position": (lambda: make().select(images=[1, -2]), ["duplicate", "1"]),
    "no position": (lambda: make().select(images=[]), ["images"]),
    "ragged positions": (lambda: make().select(images=[0, [1]]), ["images", "array"]),
    "dtype of positions": (lambda: make().select(images=[0.5]), ["images", "float64"]),
    "shape of mask": (lambda: make().select(images=np.array([True])), ["mask", "[1]", "[3]"]),
    "images of members": (lambda: Predictions(views=VIEWS, members=[make(), make(ids="abc")]), ["members[1]"]),
    "views of members": (
        lambda: Predictions(views="identity vflip", members=[make()]),
        ["members[0]", "identity, hflip", "identity, vflip"],
    ),
    "classes of members": (
        lambda: Predictions(views=VIEWS, members=[make(), make(probabilities=np.full((3, 2, 2), 0.5))]),
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


def test_sum_may_be_slightly_off() -> None:
    assert make(probabilities=VALID + 0.0002).n_images == 3


def test_half_precision_and_integers_are_accepted() -> None:
    assert make(probabilities=VALID.astype(np.float16)).probabilities.dtype == np.float32
    assert make(probabilities=None, logits=np.ones((3, 2, 4), dtype=np.int64)).logits.dtype == np.float32
