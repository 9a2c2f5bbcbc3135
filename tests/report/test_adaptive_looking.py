"""Adaptive looking in a report: the numbers of `certify`, the images with most looks, and why it may be left out."""

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secondlook.arrays import Array
from secondlook.estimators import tuning_positions
from secondlook.policies import certify
from secondlook.predictions import Predictions
from secondlook.report import write_report
from secondlook.report.findings import choose_images
from secondlook.report.operating_points import AdaptiveLooking, study_adaptive_looking
from secondlook.report.page import MAX_MOST_LOOKS
from secondlook.report.study import build_study
from tests.report.references import write_run_report

ImageReader = Callable[[int], Array]
PageDataReader = Callable[[Path], dict[str, Any]]
N_IMAGES = 800
RISK, DELTA = 0.05, 0.1
TERMS: dict[str, Any] = {"risk": RISK, "delta": DELTA}
SHOWN: dict[str, Any] = {
    "title": "t",
    "methods": ["msr", "mean"],
    "resamples": 5,
    **TERMS,
}


@pytest.fixture(scope="module")
def preds() -> Predictions:
    """800 images with errors in about one of six; four views that share most of their noise."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, N_IMAGES)
    logits = rng.normal(size=(N_IMAGES, 1, 4)) + 0.6 * rng.normal(size=(N_IMAGES, 4, 4))
    logits[np.arange(N_IMAGES), :, labels] += rng.exponential(3.0, N_IMAGES)[:, None] + 0.8
    views = ["identity", "hflip", "shift:1,0", "shift:0,1"]
    return Predictions(logits=logits, views=views, labels=labels, class_names=["cat", "dog", "bird", "frog"])


@pytest.fixture
def adaptive(preds: Predictions) -> AdaptiveLooking:
    found = study_adaptive_looking(build_study(preds, methods=["msr", "mean"]), "mean", RISK, DELTA)
    assert isinstance(found, AdaptiveLooking), found
    return found


@pytest.mark.parametrize("predict_from", ["image", "views"])
@pytest.mark.parametrize("tuning", [None, np.arange(0, N_IMAGES, 3)], ids=["chosen", "given"])
def test_numbers_are_those_of_certify(preds: Predictions, tuning: Array | None, predict_from: Any) -> None:
    study = build_study(preds, methods=["msr", "mean"], tuning=tuning, predict_from=predict_from)
    found = study_adaptive_looking(study, "mean", RISK, DELTA)
    assert isinstance(found, AdaptiveLooking), found
    rule = certify(preds, "mean", **TERMS, tuning=tuning, predict_from=predict_from, adaptive=True)
    apart = tuning_positions(N_IMAGES) if tuning is None else tuning
    full = certify(preds, "mean", **TERMS, tuning=apart, predict_from=predict_from)
    assert rule.calibration is not None
    assert found.chosen.looks == rule.calibration.mean_looks
    assert found.chosen.coverage == rule.coverage > 0
    assert found.frontier.all_looks.coverage == full.coverage
    assert found.frontier.policy.calibration is not None
    assert found.frontier.policy.calibration.images == rule.calibration.images == N_IMAGES - len(apart)
    looked = rule.look(preds)
    judged = np.delete(np.arange(N_IMAGES), apart)
    shown = judged if tuning is None else np.arange(len(judged))
    np.testing.assert_array_equal(found.looks[shown], looked.looks[judged])
    np.testing.assert_array_equal(found.accepted[shown], rule.accept(looked.confidence[judged], method=rule.method))
    assert (found.looks == 0).sum() == (len(apart) if tuning is None else 0), "the schedule was fitted to these"
    assert found.looks[found.looks > 0].mean() == found.chosen.looks


def test_images_are_ranked_by_looks_and_then_by_the_threshold(preds: Predictions, adaptive: AdaptiveLooking) -> None:
    rule = adaptive.frontier.policy
    distance = np.abs(rule.look(preds).confidence - rule.threshold)
    several = [index for index in range(N_IMAGES) if adaptive.looks[index] > 1]
    expected = sorted(several, key=lambda index: (-adaptive.looks[index], distance[index]))
    assert adaptive.ranked.tolist() == expected
    assert len(expected) > 20
    study = build_study(preds, methods=["msr", "mean"])
    chosen = choose_images(study, "mean", adaptive.ranked).tolist()
    assert set(expected[: len(chosen) // 7]) <= set(chosen)
    assert len(set(chosen)) == len(chosen) == 200


def test_copies_of_images_count_once(preds: Predictions) -> None:
    copies = [f"{id_} again" for id_ in preds.ids[:60]]
    copied = Predictions(
        logits=np.concatenate([preds.logits, preds.logits[:60]]),
        views=preds.views,
        labels=np.concatenate([preds.labels, preds.labels[:60]]),
        ids=[*preds.ids, *copies],
    )
    study = build_study(copied, methods=["msr", "mean"], duplicates=copies)
    found, alone = (
        study_adaptive_looking(one, "mean", RISK, DELTA) for one in (study, build_study(preds, methods=["msr", "mean"]))
    )
    assert isinstance(found, AdaptiveLooking)
    assert isinstance(alone, AdaptiveLooking)
    assert found.points == alone.points
    assert found.frontier.policy.calibration == alone.frontier.policy.calibration


@pytest.mark.parametrize(
    ("methods", "method", "used"),
    [
        (["msr", "mean", "blend"], "msr", "blend"),
        (["msr", "mean", "blend"], "mean", "mean"),
        (["msr", "mean?temperature=2"], "msr", "mean?temperature=2"),
        (["msr", "learned"], "learned", "learned"),
    ],
)
def test_method_is_one_that_can_be_adaptive(preds: Predictions, methods: list[str], method: str, used: str) -> None:
    found = study_adaptive_looking(build_study(preds, methods=methods), method, RISK, DELTA)
    assert isinstance(found, AdaptiveLooking), found
    assert found.method == used
    assert found.chosen.coverage == certify(preds, used, **TERMS, adaptive=True).coverage
    assert f"--method {used}" in found.command.replace("'", "")


@pytest.mark.parametrize(
    ("images", "views", "methods", "risk", "told"),
    [
        (N_IMAGES, 1, ["msr", "mean"], RISK, "only one view"),
        (300, 4, ["msr", "mean"], RISK, "at least 100 images"),
        (1, 4, ["msr", "mean"], RISK, "at least 100 images"),
        (N_IMAGES, 4, ["msr", "bootstrap"], RISK, "none of the methods"),
        (N_IMAGES, 4, ["msr", "mean"], 0.0001, "0.01 % risk"),
    ],
)
def test_reason_is_told_where_nothing_can_be(
    preds: Predictions, images: int, views: int, methods: list[str], risk: float, told: str
) -> None:
    few = preds.select(images=np.arange(images), views=list(preds.views.texts[:views]))
    reason = study_adaptive_looking(build_study(few, methods=methods), methods[-1], risk, DELTA)
    assert isinstance(reason, str)
    assert told in reason
    assert "=" not in reason, "no arguments of Python"
    assert not reason.endswith(".")


def test_page_says_why_the_section_is_left_out(
    preds: Predictions, tmp_path: Path, read_page_data: PageDataReader
) -> None:
    path = write_report(preds.select(views=["identity"]), tmp_path / "r.html", **SHOWN)
    text = path.read_text("utf-8")
    body = text.partition("</style>")[2].partition("<script")[0]
    assert 'id="adaptive"' not in body
    assert "#adaptive" not in body, "nothing leads there"
    assert "is not shown: there is only one view.</p>" in body.partition('id="no-adaptive">')[2]
    assert body.index('id="no-adaptive"') < body.index('id="confusions"')
    assert read_page_data(path)["adaptive"] is None
    assert read_rows(tmp_path / "r-files" / "adaptive-looking.csv") == []
    assert b"only one view" in (tmp_path / "r-files" / "adaptive-looking.svg").read_bytes()


def test_section_stands_after_the_operating_points(
    preds: Predictions, adaptive: AdaptiveLooking, tmp_path: Path, read_image: ImageReader
) -> None:
    path = write_report(preds, tmp_path / "r.html", image=read_image, artifacts=False, **SHOWN)
    text = path.read_text("utf-8").replace("\u00a0", " ")
    places = ['id="operate"', 'id="adaptive"', 'id="galleries"']
    assert [text.index(place) for place in places] == sorted(text.index(place) for place in places)
    assert '<a href="#adaptive">' in text
    assert 'id="no-adaptive"' not in text
    section = text[text.index('id="adaptive"') : text.index('id="galleries"')]
    assert section.count(adaptive.sentence) == 2, "once for everybody, once as the text alternative of the plot"
    assert adaptive.counts in section
    assert "secondlook calibrate --run RUN --risk 0.05 --delta 0.1 --method mean --adaptive" in section
    assert "same 600 images" in section
    assert "200 other images. The operating points above count these, too. Above, the methods share" in section
    assert "chosen beforehand" in section
    assert section.count("<tr") == 1 + len(adaptive.points)
    assert section.count("default tolerance)</th>") == section.count('class="selected"') == 1


def test_page_holds_the_curve_and_the_images_with_most_looks(
    preds: Predictions,
    adaptive: AdaptiveLooking,
    tmp_path: Path,
    read_image: ImageReader,
    read_page_data: PageDataReader,
) -> None:
    path = write_report(preds, tmp_path / "r.html", image=read_image, artifacts=False, **SHOWN)
    data = read_page_data(path)
    shown = data["adaptive"]
    assert list(zip(shown["looks"], shown["coverage"], strict=True)) == [one[1:3] for one in adaptive.points]
    assert (shown["chosen"]["looks"], shown["chosen"]["coverage"]) == adaptive.chosen[1:3]
    assert (shown["all_looks"]["looks"], shown["all_looks"]["coverage"]) == adaptive.frontier.all_looks[1:3]
    indices = [preds.ids.index(data["pictures"][one["picture"]]["id"]) for one in shown["most_looks"]]
    assert indices == adaptive.ranked[:MAX_MOST_LOOKS].tolist()
    assert [one["looks"] for one in shown["most_looks"]] == adaptive.looks[indices].tolist()
    assert [one["accepted"] for one in shown["most_looks"]] == adaptive.accepted[indices].tolist()
    bare = write_report(preds, tmp_path / "bare.html", artifacts=False, **SHOWN)
    assert read_page_data(bare)["adaptive"]["most_looks"] == [], "no images are available"
    assert 'id="gallery-most-looks"' not in bare.read_text("utf-8")


def test_curve_and_looks_are_in_tables(preds: Predictions, adaptive: AdaptiveLooking, tmp_path: Path) -> None:
    write_report(preds, tmp_path / "r.html", **SHOWN)
    rows = read_rows(tmp_path / "r-files" / "adaptive-looking.csv")
    for row, point in zip(rows, adaptive.points, strict=True):
        names = ("margin", "looks", "certified_coverage", "differing")
        assert tuple(float(row[name]) for name in names) == tuple(point)
    assert [float(row["looks"]) for row in rows if row["default_tolerance"] == "True"] == [adaptive.chosen.looks]
    for row in read_rows(tmp_path / "r-files" / "galleries.csv"):
        assert int(row["looks"] or 0) == adaptive.looks[int(row["index"])]
    assert (tmp_path / "r-files" / "adaptive-looking.png").read_bytes().startswith(b"\x89PNG")


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_curve_has_each_certified_point_once(adaptive: AdaptiveLooking) -> None:
    frontier = adaptive.frontier
    chosen, uncertified = adaptive.chosen, adaptive.chosen._replace(margin=0.0, coverage=0.0)
    larger = chosen._replace(margin=chosen.margin + 1)
    points = (uncertified, chosen, larger, frontier.all_looks._replace(margin=64.0))
    assert replace(adaptive, frontier=replace(frontier, points=points)).points == (chosen, frontier.all_looks)


@pytest.mark.parametrize(
    ("coverage", "told"),
    [
        (0.723, "1.9 looks on average instead of 4 certify 72.3 % instead of 72.9 % of the images."),
        (0.729, "1.9 looks on average instead of 4 certify 72.9 % of the images, as all looks do."),
        (0.72901, "1.9 looks on average instead of 4 certify 72.901 % instead of 72.900 % of the images."),
    ],
)
def test_sentence_tells_what_is_lost(adaptive: AdaptiveLooking, coverage: float, told: str) -> None:
    chosen = adaptive.chosen._replace(looks=1.93, coverage=coverage)
    full = adaptive.frontier.all_looks._replace(coverage=0.729)
    assert replace(adaptive, frontier=replace(adaptive.frontier, points=(chosen,), all_looks=full)).sentence == told


@pytest.mark.parametrize(
    ("looks", "told"),
    [
        ([0, 1, 1, 2, 4, 4], "Of 5 images, 2 are decided after one look, and 2 need all 4."),
        ([1, 2, 4], "Of 3 images, 1 is decided after one look, and 1 needs all 4."),
    ],
)
def test_counts_tell_how_long_was_looked(adaptive: AdaptiveLooking, looks: list[int], told: str) -> None:
    assert replace(adaptive, looks=np.array(looks)).counts == told


def test_coverage_with_all_looks_is_that_of_the_same_calibration(
    preds: Predictions, tmp_path: Path, read_page_data: PageDataReader
) -> None:
    """With images set apart and one calibrated method, the section and the operating points certify the same."""
    options: dict[str, Any] = {**SHOWN, "tuning": np.arange(200), "calibrated": ("mean",), "artifacts": False}
    path = write_run_report(preds, tmp_path / "r.html", **options)
    data = read_page_data(path)
    certified = data["methods"][1]["certified"]["accepted"][data["risks"].tolist().index(RISK)]
    assert data["adaptive"]["all_looks"]["coverage"] == certified / data["images"] > 0
    text = path.read_text("utf-8")
    assert "200 other images.</p>" in text, "nothing differs from above"
