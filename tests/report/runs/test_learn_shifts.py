"""`Run.learn_shifts`: policies learn from corrupted images of their run and keep their guarantee."""

from pathlib import Path

import numpy as np
import pytest

import secondlook as sl
from secondlook.arrays import Array
from secondlook.errors import DecisionError
from secondlook.monitoring import count_looks
from secondlook.monitoring.estimates import AccuracyEstimator, score_images
from tests.report.runs.conftest import QUIET, classify


def test_policy_of_the_run_learns_and_keeps_its_guarantee(
    run: sl.Run, classifier: sl.Classifier, tmp_path: Path, archive: str
) -> None:
    policy = run.certify(risk=0.1, delta=0.1, progress=False)
    learned = run.learn_shifts(policy, classifier, n_images=100, execution=QUIET)
    assert learned.shifts is not None
    assert learned.shifts.images == 100
    assert learned.model_copy(update={"shifts": None}) == policy
    assert len(learned.shifts.model_dump_json()) < 3000
    learned.save(tmp_path / "policy.json")
    assert sl.load_policy(tmp_path / "policy.json").decides_like(learned)
    assert not sl.load_policy(tmp_path / "policy.json").was_changed
    assert (run.path / "shifts").is_dir()
    assert run.learn_shifts(policy, classifier, n_images=100, execution=QUIET) == learned
    assert run.learn_shifts(policy, classifier, n_images=100, seed=1, execution=QUIET) != learned
    other = sl.load_classifier(lambda batch: np.full((len(batch), 2), 0.5), output="probabilities", name="other")
    with pytest.raises(DecisionError, match="'other'"):
        run.learn_shifts(policy, other, execution=QUIET)
    with pytest.raises(DecisionError, match="classifier="):
        run.learn_shifts(policy, execution=QUIET)  # a function cannot be loaded from its name
    elsewhere = sl.create_run(
        classifier, f"{archive}?limit=400", out=tmp_path / "other", views="identity hflip", resamples=5, execution=QUIET
    )
    foreign = elsewhere.certify(risk=0.1, delta=0.1, progress=False)
    with pytest.raises(DecisionError, match="images of the run"):
        run.learn_shifts(foreign, classifier, execution=QUIET)


def test_learned_estimate_holds_for_images_like_those_of_the_run(run: sl.Run, classifier: sl.Classifier) -> None:
    policy = run.certify("mean", risk=0.1, delta=0.1, progress=False)
    estimator = AccuracyEstimator(run.learn_shifts(policy, classifier, n_images=300, execution=QUIET))
    scores = score_images(policy, run.predictions)
    features = estimator.features(scores.confidence, scores.predicted)
    found = estimator.estimate(500, features.sum(axis=0), int(scores.accept.sum()), features[scores.accept].sum(axis=0))
    assert found.includes_shifts
    assert found.accuracy == pytest.approx(scores.correct.mean(), abs=0.03)
    assert found.risk == pytest.approx(np.mean(~scores.correct[scores.accept]), abs=0.03)


def test_interrupted_job_resumes(run: sl.Run) -> None:
    policy = run.certify("mean", risk=0.1, delta=0.1, progress=False)
    looks, limit = [0], count_looks(policy, 60) / 2

    def classify_until_stopped(batch: Array) -> Array:
        if looks[-1] > limit:
            raise KeyboardInterrupt
        looks[-1] += len(batch)
        return classify(batch)

    classifier = sl.load_classifier(classify_until_stopped, output="probabilities", name="brightness-v1")
    with pytest.raises(KeyboardInterrupt):
        run.learn_shifts(policy, classifier, n_images=60, execution=sl.Execution(batch_size=60, progress=False))
    looks.append(0)  # twice half of the looks are enough
    resumed = run.learn_shifts(policy, classifier, n_images=60, execution=sl.Execution(batch_size=60, progress=False))
    assert sum(looks) <= 1.2 * count_looks(policy, 60)
    assert resumed.shifts is not None
    assert len(resumed.shifts.shifts) == 10
