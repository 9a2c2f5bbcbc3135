"""The result of a search: text, JSON, and files."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from secondlook.diagnosis import search_views
from secondlook.errors import DiagnosisError
from secondlook.predictions import Predictions
from secondlook.views import ViewSet, ViewWarning

MakePool = Callable[..., Predictions]


def test_written_file_is_a_view_set(make_pool: MakePool, tmp_path: Path) -> None:
    result = search_views(make_pool(), 6)
    assert ViewSet(result.write(tmp_path / "views.txt")) == result.views == result.found
    assert f"# {result.verdict}" in (tmp_path / "views.txt").read_text(encoding="utf-8")


def test_result_prints_and_converts_to_json(make_pool: MakePool) -> None:
    result = search_views(make_pool(), 4)
    text = str(result)
    for expected in ("4 of 10 views (1 harmful)", f"stop: {result.suggested_stop}", result.verdict, "- vflip is"):
        assert expected in text
    values = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert values["views"] == list(result.views.texts)
    assert values["found"] == list(result.found.texts)
    assert values["gains"][-1]["interval"]["low"] <= values["gains"][-1]["gain"]
    assert [row["view"] for row in values["diagnosis"]["rows"]] == list(make_pool().views.texts)


def test_verdict_tells_what_to_use(make_pool: MakePool) -> None:
    kept = search_views(make_pool(300), 3, preset=["hflip", "shift:1,0", "rotate:2"])
    assert ("is kept" in kept.verdict) == (kept.kept is not None)
    too_many = search_views(make_pool(300), 1, preset=["hflip", "shift:1,0", "rotate:2"])
    assert "the given 4 views" in too_many.verdict


def test_no_gain_reads_as_the_same() -> None:
    """Views that never change an output change no objective, on any resampling."""
    rng = np.random.default_rng(0)
    first = rng.normal(size=(200, 1, 3))
    labels = np.where(np.arange(200) % 4 == 0, (first[:, 0].argmax(axis=1) + 1) % 3, first[:, 0].argmax(axis=1))
    preds = Predictions(logits=np.tile(first, (1, 4, 1)), views="identity hflip shift:1,0 shift:0,1", labels=labels)
    text = str(search_views(preds, 2))
    assert "  same as the image alone" in text
    assert "the same auroc on 200 images" in text
    assert "+0.0000" not in text


def test_fewer_classifier_calls_are_claimed_only_where_true() -> None:
    first = np.random.default_rng(0).normal(size=(200, 1, 3))
    labels = np.where(np.arange(200) % 4 == 0, (first[:, 0].argmax(axis=1) + 1) % 3, first[:, 0].argmax(axis=1))
    preds = Predictions(logits=np.tile(first, (1, 4, 1)), views="identity hflip shift:1,0 shift:0,1", labels=labels)
    assert "fewer classifier calls" in search_views(preds, 2).verdict
    assert "fewer classifier calls" not in search_views(preds, 3).verdict


def test_one_view_is_singular(make_pool: MakePool, weak_pool: Predictions) -> None:
    text = str(search_views(make_pool(300, views=["identity", "hflip"]), 1, preset=["identity"]))
    assert "1 of 1 view (0 harmful)" in text
    with pytest.warns(ViewWarning):
        only_weak = search_views(weak_pool.select(views="identity rotate:8 rotate:6"), 1)
    for shown in (text, str(only_weak)):
        assert "1 views" not in shown
        assert "1 usable" not in shown


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_gains_are_plotted(make_pool: MakePool, tmp_path: Path, ending: str) -> None:
    path = search_views(make_pool(), 4).plot(tmp_path / f"curve.{ending}")
    assert path.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml")


def test_unwritable_files_are_rejected(make_pool: MakePool, tmp_path: Path) -> None:
    result = search_views(make_pool(), 3)
    for write, name in ((result.write, "views.csv"), (result.plot, "curve.gif")):
        with pytest.raises(DiagnosisError, match=name):
            write(tmp_path / name)
    for write, name in ((result.write, "views.txt"), (result.plot, "curve.png")):
        with pytest.raises(DiagnosisError, match=f"{name}.*: No such file"):
            write(tmp_path / "missing" / name)
