"""The benchmark of adaptive looking: its numbers against references, and the documentation against its results."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import adaptive
import guarantee
import secondlook as sl
from measurement import RESULTS
from reproduction.defaults_study import VIEWS, Row, read_rows
from secondlook.arrays import Array
from secondlook.policies import Frontier, Guarantee, Policy

DOCS = Path(__file__).resolve().parents[2] / "docs"
DOCUMENTED = (DOCS / "results.md").read_text(encoding="utf-8")
GUARANTEE = Guarantee(risk=0.05, delta=0.05)
SPLIT = adaptive.divide_images(2000, seed=3)


@pytest.fixture(scope="module")
def preds() -> sl.Predictions:
    return guarantee.make_predictions(6, 2000)


@pytest.fixture(scope="module")
def rule(preds: sl.Predictions) -> Policy:
    return adaptive.certify_split(preds, SPLIT, GUARANTEE)


@pytest.fixture(scope="module")
def outcome(preds: sl.Predictions) -> dict[str, float]:
    return adaptive.measure_split(preds, sl.confidence(preds, "blend"), SPLIT, GUARANTEE)


def certify(preds: sl.Predictions) -> Policy:
    """Return a rule that always takes all looks."""
    return sl.certify(preds, "blend", risk=GUARANTEE.risk, delta=GUARANTEE.delta)


@pytest.mark.parametrize("n_images", [37, 10_000])
def test_a_split_uses_every_image_once(n_images: int) -> None:
    parts = adaptive.divide_images(n_images, seed=1)
    together = np.concatenate([parts.tuning, parts.certification, parts.judged])
    assert sorted(together) == list(range(n_images))
    if n_images == 10_000:
        assert (len(parts.tuning), len(parts.certification), len(parts.judged)) == (1000, 5000, 4000)


def look_one_by_one(rule: Policy, running: np.ndarray) -> list[tuple[int, bool]]:
    """Return the looks and the decision of each image, in log-odds and one look after another. [N, V]"""
    schedule = rule.schedule
    assert schedule is not None
    threshold = math.log(rule.threshold / (1 - rule.threshold))
    decided = []
    for row in running:
        for count, value in enumerate(row, start=1):
            distance = math.log(value / (1 - value)) + schedule.changes[count - 1] - threshold
            if count == len(row) or abs(distance) > schedule.margin * schedule.spreads[count - 1]:
                decided.append((count, distance >= 0))
                break
    return decided


def test_decisions_of_a_split_are_those_made_one_by_one_on_other_images_than_certified(
    preds: sl.Predictions, rule: Policy, outcome: dict[str, float]
) -> None:
    assert rule.schedule is not None
    seen = [list(rule.schedule.views[:count]) for count in range(1, 7)]
    judged = preds.select(images=SPLIT.judged, views=seen[-1])
    running = np.stack([sl.confidence(judged.select(views=views), "blend") for views in seen], axis=1)
    looks, accepted = (np.array(column) for column in zip(*look_one_by_one(rule, running), strict=True))
    assert outcome["looks"] == pytest.approx(looks.mean())
    assert outcome["coverage_adaptive"] == pytest.approx(accepted.mean())
    assert outcome["risk_adaptive"] == pytest.approx(np.mean(~judged.correct()[accepted]))
    assert outcome["differing"] == pytest.approx(np.mean(accepted != (running[:, -1] >= rule.threshold)))
    assert 1 < outcome["looks"] < 6
    assert 0 < outcome["differing"] < outcome["bound"]
    all_judged, more = preds.select(images=SPLIT.judged), np.concatenate([SPLIT.tuning, SPLIT.certification])
    for name, images in (("all", SPLIT.certification), ("all_more_labels", more)):
        assert outcome[f"coverage_{name}"] == certify(preds.select(images=images)).accept(all_judged).mean()
    assert outcome["coverage_all"] != outcome["coverage_all_more_labels"]


def test_no_image_is_certified_on_and_judged(preds: sl.Predictions, rule: Policy) -> None:
    assert rule.schedule is not None
    assert rule.calibration is not None
    assert (rule.schedule.images, rule.calibration.images) == (len(SPLIT.tuning), len(SPLIT.certification))
    # Other labels of the judged images change nothing about the rule, those of the certification images do.
    for part, is_same in ((SPLIT.judged, True), (SPLIT.certification, False)):
        labels = preds.labels.copy()
        labels[part] = (labels[part] + 1) % 10
        changed = sl.Predictions(logits=preds.logits, views=preds.views, labels=labels)
        assert (adaptive.certify_split(changed, SPLIT, GUARANTEE).threshold == rule.threshold) is is_same


def test_outcomes_are_summarized_as_by_scipy_without_coverage_if_nothing_is_certified(preds: sl.Predictions) -> None:
    names = ("coverage_all", "coverage_adaptive", "coverage_all_more_labels", "risk_all", "risk_adaptive")
    outcomes = dict(zip(names, np.random.default_rng(0).random((5, 6)), strict=True))
    outcomes |= {"looks": np.full(6, 1.5), "differing": np.array([1, 2, 3, 4, 5, 6.0]), "bound": np.full(6, 3.5)}
    row = adaptive.describe_outcomes(outcomes, Guarantee(risk=0.5, delta=0.05))
    differences = outcomes["coverage_adaptive"] - outcomes["coverage_all"]
    low, high = stats.t.interval(0.95, 5, loc=differences.mean(), scale=differences.std(ddof=1))
    assert [row["difference_low"], row["difference_high"]] == pytest.approx([low, high], abs=1e-6)
    assert row["bound_exceeded"] == 3
    assert row["risk_adaptive_exceeded"] == sum(risk > 0.5 for risk in outcomes["risk_adaptive"])
    splits = [SPLIT, adaptive.divide_images(2000, seed=4)]
    nothing = adaptive.measure_splits(preds, splits, Guarantee(risk=1e-4, delta=0.001))
    row = adaptive.describe_outcomes(nothing, GUARANTEE)
    assert row["certified_splits"] == 0
    assert (row["coverage_all"], row["coverage_adaptive"], row["looks"]) == (0, 0, "")


def test_frontier_of_certified_margins_leads_from_one_look_to_all(preds: sl.Predictions, rule: Policy) -> None:
    first, *_, last, default = adaptive.trace_frontier(preds, [SPLIT], "resnet20", GUARANTEE)
    assert rule.calibration is not None
    assert default["tolerance"] == "default"
    assert default["looks"] == pytest.approx(rule.calibration.mean_looks, abs=1e-6)
    assert default["coverage"] == pytest.approx(rule.coverage, abs=1e-6)
    labeled = preds.select(images=SPLIT.certification)
    assert (last["coverage"], last["difference"]) == (pytest.approx(certify(labeled).coverage), 0)
    alone = certify(labeled.select(views=["identity"]))
    assert (first["looks"], first["coverage"]) == (1, pytest.approx(alone.coverage, abs=1e-6))
    more = preds.select(images=np.concatenate([SPLIT.tuning, SPLIT.certification]))
    found = Frontier.compute(more, "blend", risk=0.05, delta=0.05, tuning=np.arange(len(SPLIT.tuning)))
    one, second, *others = found.points
    lost = replace(found, points=(one, second._replace(coverage=0.0), *others))
    at = int(np.abs(adaptive.LOOKS - second.looks).argmin())
    assert 1 < second.looks < 2
    before, after = (adaptive.interpolate_coverage(one) for one in (found, lost))
    assert after[at] < before[at] / 2
    assert after[[0, -1]].tolist() == before[[0, -1]].tolist()


def test_pools_are_compared_with_all_looks_of_the_preset() -> None:
    random = np.random.default_rng(0)
    labels = random.integers(4, size=1200)
    logits = 3 * np.eye(4)[labels][:, None] + random.normal(size=(1200, 1, 4))
    logits = logits + random.normal(size=(1200, len(VIEWS), 4))
    preds = sl.Predictions(logits=logits, views=VIEWS, labels=labels)
    splits = [adaptive.divide_images(1200, seed) for seed in range(2)]
    rows = {row["pool"]: row for row in adaptive.compare_pools(preds, splits, "resnet20", GUARANTEE)}
    assert [row["views"] for row in rows.values()] == [13, 27, 29]
    assert rows["cifar10"]["gain_all"] == 0
    for row in rows.values():
        for name in ("all", "adaptive"):
            gain = float(str(row[f"coverage_{name}"])) - float(str(rows["cifar10"]["coverage_all"]))
            assert row[f"gain_{name}"] == pytest.approx(gain, abs=2e-6)


def make_row(**changed: str) -> Row:
    row = {"classifier": "one", "chosen_on": "no", "risk": "0.01", "splits": "50", "looks": "1.5", "differing": "0.01"}
    row |= {"risk_all_exceeded": "1", "risk_adaptive_exceeded": "2", "difference": "0.0"}
    row |= {"difference_low": "-0.02", "difference_high": "0.02"}
    return {**row, **dict.fromkeys(("coverage_all", "coverage_adaptive", "coverage_all_more_labels"), "0.8"), **changed}


@pytest.mark.parametrize(("difference", "looks", "misses"), [(-0.004, 1.9, 0), (-0.006, 1.9, 1), (-0.006, 2.1, 2)])
def test_misses_of_the_aim_are_marked(difference: float, looks: float, misses: int) -> None:
    table = adaptive.format_coverage_table([make_row(chosen_on="yes", difference=str(difference), looks=str(looks))])
    assert table.count("**") == 2 * misses
    assert "| one † | 1 % | 80.0 | 80.0 | 80.0 |" in table


def test_tables_average_over_classifiers_that_no_choices_were_made_on() -> None:
    rows = [
        make_row(chosen_on="yes", coverage_adaptive="0.1"),
        make_row(coverage_adaptive="0.5", difference="-0.1", looks="1.0"),
        make_row(coverage_adaptive="0.7", difference="0.3", looks="2.0"),
        make_row(risk="0.02"),
    ]
    first, _ = (line for line in adaptive.format_coverage_table(rows).splitlines() if line.startswith("| average"))
    assert first == "| average of 2 without † | 1 % | 80.0 | 80.0 | 60.0 | +10.00 | 1.50 | 1.0 % | 2, 4 of 100 |  |"
    start = {"risk": "0.02", "views": "13", "pool": "auto", "looks": "2"}
    start |= {"gain_adaptive": "0.01", "coverage_all": "0.6"}
    gains = [("0.03", "0.01", "0.05"), ("-0.02", "-0.03", "-0.01"), ("0.05", "-0.01", "0.11"), ("0.04", "0.01", "0.07")]
    pools = [
        {**start, "coverage_adaptive": coverage, "gain_all": gain, "gain_all_low": low, "gain_all_high": high}
        for coverage, (gain, low, high) in zip(("0.4", "0.5", "0.6", "0.7"), gains, strict=True)
    ]
    line = "| auto, 13 views | 2 % | 60.0 (+2.5) | 55.0 (+1.0) | 2.00 | 2, 1 of 4 |"
    assert adaptive.format_pool_table(pools).splitlines()[2:] == [line]


def measure_quarters(images: Array) -> Array:
    """Return logits of four classes: how bright each quarter of an image is. uint8 [N, 8, 8, 3] -> [N, 4]"""
    quarters: Array = images.reshape(-1, 2, 4, 2, 4, 3).mean(axis=(2, 4, 5), dtype=np.float32)
    return quarters.reshape(-1, 4) / 8


def test_scored_images_have_the_looks_of_the_rule(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    labels = random.integers(4, size=2500)
    light = 110 + 45 * np.eye(4)[labels].reshape(-1, 2, 1, 2, 1, 1) + random.normal(0, 12, (2500, 2, 1, 2, 1, 1))
    images = (light + random.normal(0, 40, (2500, 2, 4, 2, 4, 3))).clip(0, 255).astype(np.uint8).reshape(-1, 8, 8, 3)
    classifier = sl.load_classifier(measure_quarters, output="logits", name="quarters")
    views = ["identity", "shift:1,0", "shift:-1,0", "shift:0,1", "shift:0,-1"]
    preds = sl.collect(classifier, images, views, labels=labels, execution=sl.Execution(progress=False))
    others = preds.select(images=np.arange(500, 2500))
    rule = sl.certify(others, "blend", risk=0.01, delta=0.001, adaptive=True)
    looks = {"all looks": 5, "adaptive": rule.look(preds.select(images=np.arange(500))).looks.mean(), "one look": 1}
    policies = adaptive.make_policies(preds, 500, classifier)
    assert policies.keys() == looks.keys()
    for name, policy in policies.items():
        summary = adaptive.score_images(policy, sl.open_source(images[:500]), classifier, tmp_path)
        assert [summary.images, summary.mean_looks] == pytest.approx([500, looks[name]])
    assert 1 < looks["adaptive"] < 5


def read_kept(name: str) -> list[Row]:
    return read_rows(RESULTS / f"{name}.csv")


def test_kept_results_are_complete_and_keep_the_guarantee_and_the_target() -> None:
    rows = read_kept("adaptive_coverage")
    settings = {(row["classifier"], float(row["risk"]), float(row["delta"])) for row in rows}
    guarantees = ((one.risk, one.delta) for one in adaptive.GUARANTEES)
    assert settings == {(name, *one) for one in guarantees for name in adaptive.CLASSIFIERS}
    assert {(row["splits"], row["views"]) for row in rows} == {("50", "13")}
    for name, per_setting in (("adaptive_frontier", len(adaptive.LOOKS) + 1), ("adaptive_pool", len(adaptive.POOLS))):
        others = read_kept(name)
        assert {(row["classifier"], float(row["risk"]), float(row["delta"])) for row in others} == settings
        assert len(others) == per_setting * len(settings)
    simulated = read_kept("guarantee_adaptive")
    assert {row["draws"] for row in simulated} == {"2000"}
    for row in simulated:
        assert float(row["broken_share"]) <= float(row["delta"])
        assert float(row["bound_broken_share"]) <= float(row["delta"])
    timed = {(row["classifier"], row["rule"]): row for row in read_kept("adaptive_speed")}
    assert {name for name, _ in timed} == set(adaptive.TIMED)
    for name in adaptive.TIMED:
        assert int(timed[name, "adaptive"]["images"]) >= 1000
        assert float(timed[name, "adaptive"]["speedup"]) >= adaptive.MIN_SPEEDUP


def test_documentation_shows_the_kept_results_and_their_findings() -> None:
    picture = DOCS / "images" / "results-adaptive.png"
    assert picture.read_bytes() == (RESULTS / "adaptive.png").read_bytes()
    assert f"images/{picture.name}" in DOCUMENTED
    _, section = DOCUMENTED.split("## Adaptive looking\n")
    text = " ".join(section.partition("\n## ")[0].split())
    rows = read_kept("adaptive_coverage")
    for risk in ("0.01", "0.02"):
        judging = [row for row in rows if row["risk"] == risk and row["chosen_on"] == "no"]
        loss, looks = (np.mean([float(row[name]) for row in judging]) for name in ("difference", "looks"))
        assert f"{-100 * loss:.1f} points at {looks:.2f} looks at {100 * float(risk):g} %" in text
    findings = text.partition("**Misses**")[2]
    assert all(row["classifier"] in findings for row in rows if adaptive.list_misses(row))
    assert sum(int(row["bound_exceeded"]) for row in rows) == 0
    bounds = [float(row["bound"]) for row in rows]
    assert f"at most {100 * min(bounds):.1f} to {100 * max(bounds):.1f} % of images" in text
    pools = {(row["classifier"], row["risk"], row["pool"]): row for row in read_kept("adaptive_pool")}
    found = pools["wrn16-2-noaug", "0.02", "auto"]
    gains = (100 * float(found[f"gain_all{end}"]) for end in ("", "_low", "_high"))
    assert "{:+.1f} [{:+.1f}, {:+.1f}] points".format(*gains) in text
    better = {setting[:2] for setting, row in pools.items() if float(row["gain_all_low"]) > 0}
    assert better == {("wrn16-2-noaug", "0.02")}
