"""A limit of familiarity: the same decisions by every way to make them, and why images are rejected."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import pytest

import secondlook as sl
from secondlook.arrays import Array
from secondlook.classifiers import Classifier, Ensemble, load_classifier
from secondlook.decisions import SelectiveClassifier, load_policy, make_decisions
from secondlook.onnx_export import export_onnx, verify_export
from secondlook.policies import Policy, certify
from secondlook.predictions import Execution, Predictions, collect
from tests.conftest import PickledEngine
from tests.decisions.conftest import read_rows
from tests.onnx_export.conftest import make_images, write_network
from tests.policy_maker import score

VIEWS = "identity hflip shift:1,0 shift:-1,2"
COUNT, QUIET = 60, Execution(progress=False)
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "examples": {"unknown": True},
    "from views": {"unknown": True, "predict_from": "views", "top_k": 2},
    "class": {"unknown": True, "groups": "class", "risk": 0.3},
    "adaptive": {"adaptive": True},
    "adaptive from views": {"unknown": True, "adaptive": True, "predict_from": "views"},
    "one view": {"unknown": True, "method": "msr"},
    "ensemble": {"unknown": True},
    "adaptive ensemble": {"unknown": True, "adaptive": True},
}


def make_noise(count: int, seed: int = 0) -> Array:
    """Return unknown images. uint8 [count, 16, 16, 3]"""
    return np.random.default_rng(seed).integers(0, 256, (count, 16, 16, 3), dtype=np.uint8)


class World(NamedTuple):
    """A policy with its classifier, new images, and what is expected about them."""

    policy: Policy
    classifier: Classifier
    images: Array
    preds: Predictions

    @property
    def expected(self) -> list[tuple[str | None, float]]:
        """Why each image is rejected, and its familiarity, by the definition."""
        limit, policy = self.policy.familiarity, self.policy
        assert limit is not None
        values = limit.compute(self.preds if policy.schedule is None else self.preds.select(views="identity"))
        thresholds = policy.find_thresholds(values.shape, self.preds.predicted() if policy.groups else None)
        is_sure = policy.look(self.preds).confidence >= thresholds
        reasons = np.where(values < limit.limit, "unfamiliar", np.where(is_sure, "", "unsure"))
        return list(zip((str(one) or None for one in reasons), values.tolist(), strict=True))


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, World]:
    folder = tmp_path_factory.mktemp("networks")
    files = [write_network(folder / f"{seed}.onnx", seed=seed) for seed in (0, 1)]
    models = [load_classifier(f"onnx:{file}?mean=.5&std=.25") for file in files]
    made, images = {}, make_images(600, seed=9)
    for kind, given in KINDS.items():
        options = {"method": "mean", "risk": 0.1, "delta": 0.1, **given}
        classifier = Ensemble(models) if "ensemble" in kind else models[0]
        views = "identity" if kind == "one view" else VIEWS
        preds = collect(classifier, images, views, execution=QUIET)
        values = sl.confidence(preds, options["method"])
        labels = preds.predicted(options.get("predict_from", "image")).copy()
        labels[values < np.quantile(values, 0.2)] = 3  # mostly wrong where it is unsure
        if options.pop("unknown", False):
            options["unknown"] = collect(classifier, make_noise(100), views, execution=QUIET)
        labeled = collect(classifier, images, views, labels=labels, execution=QUIET)
        policy = certify(labeled, unknown_budget=0.3, **options)
        new = np.concatenate([make_images(COUNT, seed=11), make_noise(20, seed=1)])
        made[kind] = World(policy, classifier, new, collect(classifier, new, views, execution=QUIET))
    return made


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, worlds: dict[str, World]) -> World:
    return worlds[request.param]


def check(world: World, found: Iterable[Any], *, atol: float = 0.0) -> None:
    """Compare accept, rejection and familiarity of decisions or rows, which may be texts."""
    rows = [one if isinstance(one, dict) else vars(one) for one in found]
    reasons = [row["rejection"] or None for row in rows]
    assert reasons == [reason for reason, _ in world.expected]
    assert {None, "unfamiliar"} <= set(reasons)
    assert [str(row["accept"]).lower() == "true" for row in rows] == [reason is None for reason in reasons]
    familiarity = [float(row["familiarity"]) for row in rows]
    np.testing.assert_allclose(familiarity, [value for _, value in world.expected], rtol=0, atol=atol)


def test_every_way_decides_alike(world: World, tmp_path: Path) -> None:
    policy, classifier, images, preds = world
    assert policy.certified
    np.testing.assert_array_equal(policy.accept(preds), [reason is None for reason, _ in world.expected])
    bound = policy.bind(classifier)
    for interval in (False, True):
        check(world, [bound.decide(image, interval=interval) for image in images])
    decisions = SelectiveClassifier(classifier, policy).decide(images)
    check(world, decisions)
    check(world, decisions.to_arrow().to_pylist())
    if policy.schedule is None:
        check(world, make_decisions(policy, preds))
    looks = policy.look(preds).looks
    np.testing.assert_array_equal(decisions.looks, looks)
    for name in ("scores.parquet", "scores.csv", "scores.jsonl"):
        summary = score(policy, images, tmp_path / name, classifier=classifier, part_size=16)
        check(world, rows := read_rows(tmp_path / name))
        unfamiliar = sum(row["rejection"] == "unfamiliar" for row in rows)
        assert summary.unfamiliar == summary.to_dict()["unfamiliar"] == unfamiliar
        assert f"{unfamiliar} of them unfamiliar" in str(summary)
        names = list(rows[0])
        assert names[names.index("accept") + 1 :][:2] == ["familiarity", "rejection"]
        assert [int(row["looks"]) for row in rows] == looks.tolist()
    score(policy, images, tmp_path / "engine.parquet", classifier=classifier, engine=PickledEngine())
    check(world, read_rows(tmp_path / "engine.parquet"))


def test_exported_file_decides_alike(world: World, tmp_path: Path) -> None:
    policy, classifier, images, preds = world
    path = export_onnx(policy, tmp_path / "decide.onnx", classifier=classifier).path
    decider = load_policy(path)
    check(world, [decider.decide(image) for image in images], atol=1e-4)
    score(decider, images, tmp_path / "scores.parquet")
    check(world, read_rows(tmp_path / "scores.parquet"), atol=1e-4)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert session.get_outputs()[-1].name == "familiarity"
    accept, familiarity, looks = session.run(["accept", "familiarity", "looks"], {"images": images})
    np.testing.assert_array_equal(accept, policy.accept(preds))
    np.testing.assert_allclose(familiarity, [value for _, value in world.expected], atol=1e-4)
    np.testing.assert_array_equal(looks, policy.look(preds).looks)
    assert verify_export(path, policy, images, classifier=classifier).passed


def test_rejections_have_reasons_only_with_a_limit(worlds: dict[str, World], tmp_path: Path) -> None:
    policy, classifier, images, preds = worlds["plain"]
    plain = policy.replace(familiarity=None)
    decisions = make_decisions(plain, preds)
    assert {one.rejection for one in decisions} <= {None, "unsure"}
    assert {one.familiarity for one in decisions} == {None}
    assert not {"familiarity", "rejection"} & set(decisions.to_arrow().column_names)
    summary = score(plain, images, tmp_path / "scores.parquet", classifier=classifier)
    assert (summary.unfamiliar, "unfamiliar" in summary.to_dict()) == (None, False)
    assert not {"familiarity", "rejection"} & set(read_rows(tmp_path / "scores.parquet")[0])


def test_calibrating_a_classifier_again_keeps_the_budget(worlds: dict[str, World]) -> None:
    policy, classifier, _, _ = worlds["plain"]
    images = make_images(600, seed=9)
    labels = classifier.probabilities(images).argmax(axis=1)
    again = SelectiveClassifier(classifier, policy).fit(images, labels).policy_
    assert again.certified
    assert again.familiarity is not None
    assert again.familiarity.budget == 0.3
