"""`secondlook report` and `secondlook compare`: judged images only, warnings first, runs paired on the same images."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import secondlook as sl
from secondlook.cli.demo import digit_images, split_digits
from tests.cli.conftest import Here

LINE = "evaluate --model onnx:model.onnx --data folder:val --metric auroc --resamples 5 --no-check --out run"
EVALUATE = LINE.split()
HARMFUL = "identity hflip shift:1,0"


def test_harmful_views_are_warned_of_at_the_top_of_the_page(here: Here) -> None:
    here.ok(*EVALUATE, "--views", HARMFUL, "--method", "mean", "--quiet")
    done = here.ok("report", "run", "--no-galleries")
    assert "hflip" in done.err
    assert "the views 'auto' leave out harmful ones" in done.err
    page = Path("run/report.html").read_text(encoding="utf-8")
    (warning,) = re.findall(r'<p class="warning".*?</p>', page)
    assert "hflip" in warning
    assert page.index(warning) < page.index('id="lead"')
    told = here("report", "run", "--no-galleries", "--json")
    assert "hflip" in told.json["warnings"][0]
    quiet = here("report", "run", "--no-galleries", "--quiet")
    assert (quiet.out, quiet.err) == ("", "")


def test_images_set_apart_by_the_run_are_neither_reported_nor_compared(here: Here) -> None:
    here.ok(*EVALUATE, "--method", "msr", "--method", "blend", "--quiet")
    apart = set(sl.open_run("run").record.tuning)
    assert len(apart) == 100, "views were chosen on them"
    here.ok("report", "run")
    page = Path("run/report.html").read_text(encoding="utf-8")
    assert "<dt>Tuning images</dt><dd>100</dd>" in page
    assert "Of 300 images" in page
    data = page.partition('id="data">')[2].partition("</script>")[0]
    pictures = {one["id"] for one in json.loads(data)["pictures"]}
    assert pictures
    assert not pictures & apart
    here.ok(*EVALUATE, "--views", "identity", "--method", "msr", "--out", "other", "--quiet")
    done = here.ok("compare", "run", "other", "--resamples", "5", "--metric", "accuracy")
    assert "100 images set apart for tuning, 300 judged" in done.out


def test_recommendation_names_the_option(here: Here) -> None:
    """Without the views 'identity' is the worst."""
    views = ("--views", "identity hflip+shift:4,4 vflip+shift:-4,-4 hflip", "--predict-from", "views")
    done = here.ok(*EVALUATE, *views, "--method", "mean")
    assert "Predict from the image: " in done.out
    assert "Options to add: --predict-from image" in done.out
    assert "predict_from" not in done.out


Evaluate = Callable[..., None]
PLACES = split_digits()[1]


@pytest.fixture
def evaluate(here: Here) -> Evaluate:
    """Make the run of unseen digits."""

    def run(places: slice, out: str, *more: str) -> None:
        digits, labels = digit_images()
        chosen = PLACES[places]
        np.savez(f"{out}.npz", images=np.repeat(digits[chosen], 3, axis=3), labels=labels[chosen])
        line = f"evaluate --model onnx:model.onnx --data npz:{out}.npz --views digits --resamples 5 --quiet --out {out}"
        here.ok(*line.split(), *more)

    return run


def test_other_images_or_the_same_run_are_rejected_and_a_subset_is_paired(here: Here, evaluate: Evaluate) -> None:
    for name, places in (("run-a", slice(60)), ("run-b", slice(60, 120)), ("run-c", slice(40))):
        evaluate(places, name)
    labels = digit_images()[1]
    differ = int(np.sum(labels[PLACES[:60]] != labels[PLACES[60:120]]))
    here.refuse("compare", "run-a", "run-b", told=("'run-b'", f"{differ} of 60"))
    done = here.ok("compare", "run-a", "run-c", "--resamples", "5", "--json")
    assert done.json["n_images"] == 40
    assert {row["method"].split()[0] for row in done.json["rows"]} == {"run-a", "run-c"}
    done = here.refuse("compare", "run-a", "./other/../run-a/", told="'other/../run-a'")
    assert done.out == ""


def test_prediction_settings_are_those_of_the_first_run_by_default(here: Here, evaluate: Evaluate) -> None:
    evaluate(slice(60), "run-a", "--predict-from", "views", "--top-k", "2")
    evaluate(slice(60), "run-b")
    preds = sl.Predictions.open("run-a/predictions")
    line = "compare run-a run-b --metric accuracy --resamples 5"
    done = here(*line.split(), "--json")
    assert (done.json["predict_from"], done.json["top_k"]) == ("views", 2)
    assert {row["value"] for row in done.json["rows"]} == {float(preds.correct(predict_from="views", top_k=2).mean())}
    assert "60 images" in here(*line.split()).out
    given = here(*line.split(), "--predict-from", "image", "--top-k", "1", "--json")
    assert (given.json["predict_from"], given.json["top_k"]) == ("image", 1)
    assert given.json["rows"][0]["value"] == float(preds.correct().mean())
