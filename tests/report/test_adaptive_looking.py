"""Adaptive looking in a report: the numbers of `certify`, the images with most looks, and why it may be left out."""

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
from secondlook.report.operating_points import AdaptiveLooking, study_adaptive_looking
from secondlook.report.study import build_study
from tests.report.conftest import Write, read_image

N_IMAGES = 800
RISK, DELTA = 0.05, 0.1
TERMS: dict[str, Any] = {"risk": RISK, "delta": DELTA}


@pytest.fixture(scope="module")
def preds() -> Predictions:
    """800 images with errors in about one of six; four views that share most of their noise."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, N_IMAGES)
    logits = rng.normal(size=(N_IMAGES, 1, 4)) + 0.6 * rng.normal(size=(N_IMAGES, 4, 4))
    logits[np.arange(N_IMAGES), :, labels] += rng.exponential(3.0, N_IMAGES)[:, None] + 0.8
    views = ["identity", "hflip", "shift:1,0", "shift:0,1"]
    return Predictions(logits=logits, views=views, labels=labels, class_names=["cat", "dog", "bird", "frog"])


@pytest.fixture(scope="module")
def adaptive(preds: Predictions) -> AdaptiveLooking:
    found = study_adaptive_looking(build_study(preds, methods=["msr", "mean"]), "mean", RISK, DELTA)
    assert isinstance(found, AdaptiveLooking), found
    return found


@pytest.mark.parametrize("predict_from", ["image", "views"])
@pytest.mark.parametrize("tuning", [None, np.arange(0, N_IMAGES, 3)], ids=["chosen", "given"])
def test_numbers_equal_certify(write: Write, preds: Predictions, tuning: Array | None, predict_from: Any) -> None:
    report = write(preds, tuning=tuning, predict_from=predict_from, image=read_image, artifacts=True, **TERMS)
    rule = certify(preds, "mean", **TERMS, tuning=tuning, predict_from=predict_from, adaptive=True)
    apart = tuning_positions(N_IMAGES) if tuning is None else tuning
    full = certify(preds, "mean", **TERMS, tuning=apart, predict_from=predict_from)
    shown = report.data["adaptive"]
    assert rule.calibration is not None
    assert rule.schedule is not None
    assert rule.calibration.images == N_IMAGES - len(apart)
    assert shown["chosen"] == {"looks": rule.calibration.mean_looks, "coverage": rule.coverage}
    assert shown["all_looks"] == {"looks": 4, "coverage": full.coverage}
    assert rule.coverage > 0
    looked = rule.look(preds)
    judged = np.delete(np.arange(N_IMAGES), apart)
    first, last = ((looked.looks[judged] == looks).sum() for looks in (1, 4))
    assert f"Of {len(judged)} images, {first} are decided after one look, and {last} need all 4." in report.text
    accept = rule.accept(looked.confidence, method=rule.method)
    positions = [int(row["index"]) for row in report.rows("galleries")]
    assert {*positions} & {*apart.tolist()} if tuning is None else not {*positions} & {*apart.tolist()}
    for row in report.rows("galleries"):
        index = int(row["index"])
        assert int(row["looks"] or 0) == (0 if index in apart else looked.looks[index])
    several = [index for index in judged.tolist() if looked.looks[index] > 1]
    distance = np.abs(looked.confidence - rule.threshold)
    ranked = sorted(several, key=lambda index: (-looked.looks[index], distance[index]))
    pictures = [preds.ids.index(one["id"]) for one in report.data["pictures"]]
    most = [(pictures[one["picture"]], one["looks"], one["accepted"]) for one in shown["most_looks"]]
    assert most == [(index, looked.looks[index], accept[index]) for index in ranked[:12]]
    assert set(ranked[: 200 // 7]) <= set(positions)
    assert len(ranked) > 20
    rows = report.rows("adaptive-looking")
    points = [(float(row["looks"]), float(row["certified_coverage"])) for row in rows]
    assert points == list(zip(shown["looks"], shown["coverage"], strict=True))
    assert points[-1] == (4, full.coverage)
    (chosen,) = [row for row in rows if row["default_tolerance"] == "True"]
    assert float(chosen["margin"]) == rule.schedule.margin
    frontier = {point.margin: (point.looks, point.differing) for point in rule.schedule.frontier}
    assert float(chosen["looks"]) == rule.calibration.mean_looks
    assert {float(row["margin"]) for row in rows[:-1]} <= {*frontier}


def test_plot_draws_the_curve_or_the_reason(preds: Predictions, tmp_path: Path) -> None:
    for name, shown in (("all", preds), ("one", preds.select(views=["identity"]))):
        write_report(shown, tmp_path / f"{name}.html", title="t", methods=["msr", "mean"], resamples=5, **TERMS)
    reason, drawn = ((tmp_path / f"{name}-files" / "adaptive-looking.svg").read_bytes() for name in ("one", "all"))
    assert b"only one view" in reason
    assert b"default tolerance" in drawn


def test_copies_of_images_are_certified_as_by_a_calibration(write: Write, preds: Predictions) -> None:
    copies = [f"{id_} again" for id_ in preds.ids[:60]]
    copied = Predictions(
        logits=np.concatenate([preds.logits, preds.logits[:60]]),
        views=preds.views,
        labels=np.concatenate([preds.labels, preds.labels[:60]]),
        ids=[*preds.ids, *copies],
    )
    chosen = write(copied, duplicates=copies, **TERMS).data["adaptive"]["chosen"]
    rule = certify(copied, "mean", adaptive=True, duplicates=copies, **TERMS)
    assert rule.calibration is not None
    assert chosen["coverage"] == pytest.approx(rule.coverage, abs=1e-6)
    assert chosen["looks"] == pytest.approx(rule.calibration.mean_looks, abs=1e-6)


@pytest.mark.parametrize(
    ("methods", "used"),
    [
        (["msr", "zero", "mean", "blend"], "blend"),
        (["msr", "mean"], "mean"),
        (["msr", "mean?temperature=2"], "mean?temperature=2"),
        (["msr", "learned"], "learned"),
    ],
)
def test_method_is_one_that_can_be_adaptive(write: Write, preds: Predictions, methods: list[str], used: str) -> None:
    report = write(preds, methods=methods, **TERMS)
    expected = certify(preds, used, **TERMS, adaptive=True).coverage
    assert report.data["adaptive"]["chosen"]["coverage"] == expected
    assert f"--risk 0.05 --delta 0.1 --method {used} --adaptive" in report.text.replace("&#39;", "")


@pytest.mark.parametrize(
    ("images", "views", "methods", "risk", "told"),
    [
        (N_IMAGES, 1, ["msr", "mean"], RISK, "only one view"),
        (300, 4, ["msr", "mean"], RISK, "at least 100 images"),
        (1, 4, ["msr", "mean"], RISK, "at least 100 images"),
        (N_IMAGES, 4, ["msr", "bootstrap"], RISK, "mean over views"),
        (N_IMAGES, 4, ["msr", "mean"], 0.0001, "0.01 % risk"),
    ],
)
def test_page_gives_the_reason_for_a_missing_section(
    write: Write, preds: Predictions, images: int, views: int, methods: list[str], risk: float, told: str
) -> None:
    few = preds.select(images=np.arange(images), views=list(preds.views.texts[:views]))
    report = write(few, methods=methods, risk=risk, delta=DELTA, artifacts=True)
    body = report.text.partition("</style>")[2].partition("<script")[0]
    assert 'id="adaptive"' not in body
    assert "#adaptive" not in body, "nothing leads there"
    reason = report.element("no-adaptive")
    assert told in reason
    assert "=" not in reason, "no arguments of Python"
    assert not reason.endswith("..")
    assert body.index('id="no-adaptive"') < body.index('id="confusions"')
    assert report.data["adaptive"] is None
    assert report.rows("adaptive-looking") == []


def test_section_follows_the_operating_points(write: Write, preds: Predictions, adaptive: AdaptiveLooking) -> None:
    text = write(preds, image=read_image, **TERMS).text
    places = ['id="operate"', 'id="galleries"', 'id="adaptive"', 'id="views"']
    assert [text.index(place) for place in places] == sorted(text.index(place) for place in places)
    assert '<a href="#adaptive">' in text
    assert 'id="no-adaptive"' not in text
    section = text[text.index('id="adaptive"') : text.index('id="views"')]
    assert section.count(adaptive.sentence) == 2, "once for everybody, once as the text alternative of the plot"
    assert "same 600 images" in section
    assert "200 other images" in section
    assert section.index("The operating points above") < section.index("the methods share the failure probability")
    assert "chosen beforehand" in section
    assert section.count("<tr") == 1 + len(adaptive.frontier.certified_points)
    assert section.count("default tolerance)</th>") == section.count('class="selected"') == 1
    bare = write(preds, **TERMS)
    assert bare.data["adaptive"]["most_looks"] == [], "no images are available"
    assert 'id="gallery-most-looks"' not in bare.text


def test_curve_has_each_certified_point_once_and_sentences_state_the_loss(adaptive: AdaptiveLooking) -> None:
    frontier = adaptive.frontier
    chosen, uncertified = adaptive.frontier.chosen, adaptive.frontier.chosen._replace(margin=0.0, coverage=0.0)
    larger = chosen._replace(margin=chosen.margin + 1)
    points = (uncertified, chosen, larger, frontier.all_looks._replace(margin=64.0))
    assert replace(frontier, points=points).certified_points == (chosen, frontier.all_looks)
    full = adaptive.frontier.all_looks._replace(coverage=0.729)
    for coverage, told in (
        (0.723, "72.3 % instead of 72.9 % of the images."),
        (0.729, "72.9 % of the images, as all looks do."),
        (0.72901, "72.901 % instead of 72.900 % of the images."),
    ):
        other = adaptive.frontier.chosen._replace(looks=1.93, coverage=coverage)
        shown = replace(adaptive, frontier=replace(adaptive.frontier, points=(other,), all_looks=full))
        assert shown.sentence == f"1.9 looks on average instead of 4 certify {told}"
    singular = "Of 3 images, 1 is decided after one look, and 1 needs all 4."
    assert replace(adaptive, looks=np.array([0, 1, 2, 4])).counts == singular


def test_coverage_with_all_looks_is_that_of_the_same_calibration(write: Write, preds: Predictions) -> None:
    """With tuning images and a policy with one threshold, the section and the policy certify the same."""
    policy = certify(preds, "mean", **TERMS, tuning=np.arange(200))
    report = write(preds, tuning=np.arange(200), policy=policy, **TERMS)
    assert report.data["adaptive"]["all_looks"]["coverage"] == policy.coverage > 0
    assert "200 other images.</p>" in report.text, "nothing differs from above"
