"""`secondlook compare`: only what belongs together is paired, and asked as it was evaluated."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import secondlook as sl
from secondlook.arrays import Array
from secondlook.cli.demo_digits import digit_images, seen_and_unseen

Here = Callable[..., Any]
Evaluate = Callable[..., None]
PLACES = seen_and_unseen()[1]


def write_archive(name: str, places: Array) -> None:
    images, labels = digit_images()
    np.savez(name, images=np.repeat(images[places], 3, axis=3), labels=labels[places])


@pytest.fixture
def evaluate(here: Here) -> Evaluate:
    """Make the run of an archive."""

    def run(archive: str, out: str, *more: str) -> None:
        line = f"evaluate --model onnx:model.onnx --data npz:{archive} --views digits --resamples 5 --quiet --out {out}"
        done = here(*line.split(), *more)
        assert done.code == 0, done.err

    return run


def test_archives_of_other_images_are_not_paired_by_their_positions(here: Here, evaluate: Evaluate) -> None:
    write_archive("a.npz", PLACES[:60])
    write_archive("b.npz", PLACES[60:120])
    evaluate("a.npz", "run-a")
    evaluate("b.npz", "run-b")
    labels = digit_images()[1]
    differ = int(np.sum(labels[PLACES[:60]] != labels[PLACES[60:120]]))
    done = here("compare", "run-a", "run-b")
    assert done.code == 2
    assert f"the runs 'run-a' and 'run-b' are of other images: {differ} of 60 shared ids have another" in done.err


def test_a_part_of_the_same_images_is_paired_though_its_digest_differs(here: Here, evaluate: Evaluate) -> None:
    write_archive("all.npz", PLACES[:60])
    write_archive("first.npz", PLACES[:40])
    evaluate("all.npz", "run-a")
    evaluate("first.npz", "run-b")
    done = here("compare", "run-a", "run-b", "--resamples", "5", "--json")
    assert done.code == 0, done.err
    assert done.json["images"] == 40


def test_a_run_is_not_compared_with_itself(here: Here, evaluate: Evaluate) -> None:
    write_archive("a.npz", PLACES[:40])
    evaluate("a.npz", "run")
    done = here("compare", "run", "./other/../run/")
    assert (done.code, done.out) == (2, "")
    assert "the run 'other/../run' is given twice; give each once." in done.err


def test_the_answer_is_that_of_the_first_run_unless_said(here: Here, evaluate: Evaluate) -> None:
    write_archive("a.npz", PLACES[:60])
    evaluate("a.npz", "run-a", "--predict-from", "views", "--top-k", "2")
    evaluate("a.npz", "run-b")
    preds = sl.Predictions.open("run-a/predictions")
    line = "compare run-a run-b --metric accuracy --resamples 5"
    done = here(*line.split(), "--json")
    assert (done.json["predict_from"], done.json["top_k"]) == ("views", 2)
    assert {row["value"] for row in done.json["rows"]} == {float(preds.correct(predict_from="views", top_k=2).mean())}
    assert "60 images in all 2 runs, 2 leading classes by D\n" in here(*line.split()).out
    said = here(*line.split(), "--predict-from", "image", "--top-k", "1", "--json")
    assert (said.json["predict_from"], said.json["top_k"]) == ("image", 1)
    assert said.json["rows"][0]["value"] == float(preds.correct().mean())
