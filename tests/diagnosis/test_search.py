"""The search: a greedy choice, judged on held-out images, and the arguments it rejects."""

import re
import warnings
from collections.abc import Callable

import numpy as np
import pytest

from secondlook.diagnosis import search_views
from secondlook.diagnosis.diagnosis import find_choosable, read_pool
from secondlook.diagnosis.search import (
    assign_folds,
    choose_greedily,
    compute_gain,
    compute_held_out_means,
    measure_performances,
    parse_objective,
)
from secondlook.errors import DiagnosisError
from secondlook.estimators import confidence
from secondlook.metrics import METRICS, auroc
from secondlook.predictions import Predictions
from secondlook.views import ViewSet, ViewWarning

MakePool = Callable[..., Predictions]
PARAMETERS = {"risk_at": ":0.8", "coverage_at": ":0.1"}
OBJECTIVES = [name + PARAMETERS.get(name, "") for name in METRICS if name != "accuracy"]


def choose_by_brute_force(preds: Predictions, objective: str, n_views: int) -> list[str]:
    """Add the view with the best metric of the mean confidence, one at a time."""
    metric = parse_objective(objective)
    better = max if metric.metric.better == "higher" else min
    chosen, usable = ["identity"], [preds.views.texts[one] for one in find_choosable(read_pool(preds), n_views)]
    while len(chosen) < n_views:
        remaining = [view for view in usable if view not in chosen]
        means = {view: confidence(preds.select(views=[*chosen, view]), "mean") for view in remaining}
        values = {view: round(metric(preds.correct(), mean), 12) for view, mean in means.items()}
        chosen.append(better(remaining, key=lambda view: values[view]))
    return chosen


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_chooser_matches_brute_force(make_pool: MakePool, objective: str) -> None:
    preds = make_pool(150, seed=OBJECTIVES.index(objective))
    pool = read_pool(preds)
    chosen = choose_greedily(pool, parse_objective(objective), 4)
    assert [pool.views.texts[position] for position in chosen] == choose_by_brute_force(preds, objective, 4)


@pytest.mark.parametrize("budget", [1, 5, 9])
def test_found_views_exclude_harmful_ones(make_pool: MakePool, budget: int) -> None:
    result = search_views(make_pool(), budget)
    assert result.found[0].is_identity
    assert len(result.found) == budget + 1
    assert "vflip" not in result.found
    assert 0 <= result.suggested_stop <= budget
    assert [point.views for point in result.curve] == list(range(budget + 1))


def test_budget_beyond_the_harmless_views_chooses_all_of_them(make_pool: MakePool) -> None:
    most, beyond = search_views(make_pool(), 9), search_views(make_pool(), 10)
    assert beyond.found == most.found
    assert beyond.curve == most.curve


def test_smaller_budget_finds_the_beginning_of_the_order(make_pool: MakePool) -> None:
    assert search_views(make_pool(), 3).found.texts == search_views(make_pool(), 6).found.texts[:4]


def test_weak_view_is_not_chosen_while_others_remain(weak_pool: Predictions) -> None:
    noise = np.random.default_rng(0).normal(0, 0.02, weak_pool.shape[:2])
    mass = np.clip(weak_pool.probabilities[:, :, 0] + noise, 0.01, 0.99)
    preds = Predictions(
        probabilities=np.stack([mass, 1 - mass], axis=2), views=weak_pool.views, labels=weak_pool.labels
    )
    with pytest.warns(ViewWarning, match="10 of 400"):
        assert search_views(preds, 1).found.texts == ("identity", "hflip")


@pytest.mark.parametrize("objective", ["auroc", "aurc", "coverage_at:0.05"])
def test_ranking_objectives_gain_from_more_views(make_pool: MakePool, objective: str) -> None:
    result = search_views(make_pool(600), 6, objective)
    assert result.curve[0].gain.gain == 0
    assert result.curve[-1].gain.gain > 0
    assert result.gains[-1].over == "the image alone"
    assert result.gains[-1].gain == pytest.approx(result.curve[-1].gain.gain)


def test_calibration_objective_can_be_searched(make_pool: MakePool) -> None:
    result = search_views(make_pool(600), 6, "nll")
    assert np.isfinite(result.value)
    assert result.gains[-1].verdict != "worse"


def test_gains_are_differences_on_the_same_images(make_pool: MakePool) -> None:
    preds = make_pool()
    result = search_views(preds, 5, preset=["hflip", "shift:1,0"])
    given, usable, image = result.gains
    correct = preds.correct()
    assert image.value == pytest.approx(auroc(correct, confidence(preds, "msr")))
    assert given.value == pytest.approx(auroc(correct, confidence(preds, "mean", views=["hflip", "shift:1,0"])))
    assert usable.value == pytest.approx(auroc(correct, confidence(preds, "mean", views=result.diagnosis.usable)))
    for gain in result.gains:
        assert gain.gain == pytest.approx(result.value - gain.value)


def test_same_seed_gives_the_same_result(make_pool: MakePool) -> None:
    first, second = (search_views(make_pool(), 5, seed=3) for _ in range(2))
    assert first == second
    assert str(first) == str(second)


def test_informative_views_are_found_and_shown_to_be_better() -> None:
    """Three views know which images are wrong; the others only add noise."""
    views = ["identity", *(f"rotate:{angle}" for angle in range(1, 13))]
    generator = np.random.default_rng(0)
    wrong = generator.random(1500) < 0.2
    mass = 0.75 + generator.normal(0, 0.05, (1500, len(views)))
    mass[:, -3:] -= 0.06 * wrong[:, None]
    preds = Predictions(probabilities=np.stack([mass, 1 - mass], axis=2), views=views, labels=wrong.astype(np.int64))
    result = search_views(preds, 3, preset=["rotate:1", "rotate:2", "rotate:3"])
    assert {"rotate:10", "rotate:11", "rotate:12"} <= set(result.found.texts)
    assert [gain.verdict for gain in result.gains] == ["better"] * 3
    assert result.kept is None
    assert result.views == result.found


def test_luck_is_not_called_better(make_pool: MakePool) -> None:
    """All views are equally good here, so no five of them can truly beat another five."""
    given = ["hflip", "shift:1,0", "rotate:2", "zoom:1.04", "gamma:0.85"]
    results = [search_views(make_pool(300, seed=seed), 5, preset=given) for seed in range(4)]
    kept = [result for result in results if result.kept is not None]
    assert len(kept) >= 3
    for result in kept:
        assert result.views == result.kept == ViewSet(["identity", *given])
        assert result.gains[0].verdict != "better"


@pytest.mark.parametrize("preset", [["hflip", "vflip"], ["hflip", "shift:1,0", "rotate:2", "zoom:1.04"]])
def test_preset_is_kept_only_within_the_budget_and_without_harmful_views(
    make_pool: MakePool, preset: list[str]
) -> None:
    result = search_views(make_pool(300), 3, preset=preset)
    assert result.kept is None
    assert result.views == result.found


@pytest.mark.parametrize("preset", [None, ["shift:1,0", "shift:2,0"]])
@pytest.mark.parametrize("budget", [2, 6])
def test_views_that_are_worse_than_the_image_alone_are_never_returned(
    misleading_pool: MakePool, budget: int, preset: list[str] | None
) -> None:
    result = search_views(misleading_pool(), budget, preset=preset)
    assert result.diagnosis.harmful == {}
    assert result.gains[-1].verdict == "worse"
    assert result.used == "the image alone"
    assert result.views == ViewSet("identity")
    assert result.kept is None
    assert "the found views" in result.worse
    assert all(gain.verdict == "worse" and name in result.verdict for name, gain in result.worse.items())
    assert "use the image alone" in result.verdict


def test_returned_views_are_never_worse_than_the_image_alone(misleading_pool: MakePool) -> None:
    """Views between useless and misleading: whatever is returned, its measured gain is not below zero."""
    metric, used = parse_objective("auroc"), set()
    for seed, share in enumerate(np.linspace(0, 0.6, 8)):
        preds = misleading_pool(400, seed=seed, share=share)
        result = search_views(preds, 3, preset=["shift:1,0", "shift:2,0"], seed=seed)
        gain = result.gains[-1]
        if result.used != "the found views":
            means = [confidence(preds, "mean", views=views) for views in (result.views, ["identity"])]
            returned, image = measure_performances(metric, preds.correct(), means, seed)
            gain = compute_gain(metric, returned, image, "the image alone")
        assert gain.verdict != "worse"
        used.add(result.used)
    assert {"the given 3 views", "the image alone"} <= used


def test_preset_with_harmful_views_is_kept_if_it_is_measured_to_be_better() -> None:
    """'gray' loses many correct predictions, but knows the errors, of which the other views know nothing."""
    generator = np.random.default_rng(0)
    wrong = generator.random(1500) < 0.2
    mass = 0.75 + generator.normal(0, 0.05, (1500, 4))
    lost = ~wrong & (generator.random(1500) < 0.2)
    mass[:, 3] = np.where(wrong, 0.1, np.where(lost, 0.45, 0.9))
    preds = Predictions(
        probabilities=np.stack([mass, 1 - mass, np.zeros_like(mass)], axis=2),
        views="identity rotate:1 rotate:2 gray",
        labels=2 * wrong.astype(np.int64),
    )
    result = search_views(preds, 2, preset=["gray"])
    assert list(result.diagnosis.harmful) == ["gray"]
    assert result.gains[0].verdict == "worse"
    assert result.views == result.kept == ViewSet("identity gray")


def test_preset_in_the_pool_is_compared_by_default(make_pool: MakePool) -> None:
    result = search_views(make_pool(views=[*ViewSet("cifar10").texts, "hflip"]), 4)
    assert result.preset == "cifar10"
    assert "'cifar10'" in result.gains[0].over
    assert search_views(make_pool(), 4).preset is None


def test_folds_are_random_and_stratified() -> None:
    correct = np.random.default_rng(0).random(503) < 0.9
    fold = assign_folds(correct, 5, seed=1)
    for kind in (correct, ~correct):
        counts = np.bincount(fold[kind], minlength=5)
        assert counts.max() - counts.min() <= 1
    np.testing.assert_array_equal(fold, assign_folds(correct, 5, seed=1))
    assert (fold != assign_folds(correct, 5, seed=2)).any()


def test_each_fold_is_judged_with_views_chosen_on_the_others(make_pool: MakePool) -> None:
    pool, metric = read_pool(make_pool(120)), parse_objective("auroc")
    fold = np.arange(120) % 3
    means = compute_held_out_means(pool, metric, fold, 12)
    for number in range(3):
        others, held_out = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        chosen = choose_greedily(pool.select(others), metric, 12)
        for n_views in range(1, 13):  # more views than there are: the last mean is repeated
            expected = pool.class_mass[chosen[:n_views]][:, held_out].mean(axis=0)
            np.testing.assert_allclose(means[n_views - 1, held_out], expected)


def test_held_out_images_do_not_influence_the_choice(make_pool: MakePool) -> None:
    """Neither labels nor outputs of held-out images change what is chosen on the others."""
    first, second = read_pool(make_pool(400, seed=1)), read_pool(make_pool(400, seed=1))
    assert second.view_correct is not None
    assert second.label_mass is not None
    for values in (second.class_mass, second.top_mass, second.agrees, second.view_correct, second.label_mass):
        values[:, 200:] = values[::-1, 200:]
    second.view_correct[:, 200:] = ~second.view_correct[:, 200:]
    metric = parse_objective("auroc")
    chosen = [choose_greedily(pool.select(np.arange(200)), metric, 5) for pool in (first, second)]
    np.testing.assert_array_equal(chosen[0], chosen[1])


def test_progress_counts_the_chosen_views(make_pool: MakePool) -> None:
    counts: list[int] = []
    choose_greedily(read_pool(make_pool()), parse_objective("auroc"), 5, counts.append)
    assert sum(counts) == 4


@pytest.mark.parametrize("objective", ["aurok", "accuracy", "coverage_at", "coverage_at:2"])
def test_invalid_objective_is_rejected(objective: str) -> None:
    with pytest.raises(DiagnosisError, match=f"'{objective}'"):
        parse_objective(objective)


@pytest.mark.parametrize(
    ("options", "offending"),
    [
        ({"budget": 0}, "budget=0"),
        ({"budget": 100}, "budget=100 is too large; expected at most 9"),
        ({"objective": "aurok"}, "Did you mean 'auroc'"),
        ({"folds": 1}, "folds=1"),
        ({"seed": -1}, "seed=-1"),
        ({"preset": "cifar10"}, "'cifar10'"),
        ({"preset": ["hflip", "rotate:33"]}, "'rotate:33'"),
    ],
)
def test_invalid_arguments_are_rejected(make_pool: MakePool, options: dict[str, object], offending: str) -> None:
    with pytest.raises(DiagnosisError, match=re.escape(offending)):
        search_views(make_pool(), **{"budget": 4, **options})  # type: ignore[arg-type]


def test_labels_are_required(make_pool: MakePool) -> None:
    with pytest.raises(DiagnosisError, match="labels="):
        search_views(make_pool(labeled=False), 4)


def test_other_types_than_predictions_are_rejected() -> None:
    with pytest.raises(DiagnosisError, match="list"):
        search_views([1], 4)  # type: ignore[arg-type]


def select_errors(preds: Predictions, errors: int) -> Predictions:
    """Return 60 correct images and that many wrong ones."""
    correct = preds.correct()
    return preds.select(images=np.concatenate([np.flatnonzero(correct)[:60], np.flatnonzero(~correct)[:errors]]))


@pytest.mark.parametrize(("errors", "folds"), [(12, 5), (2, 2)])
def test_few_errors_raise_a_warning(make_pool: MakePool, errors: int, folds: int) -> None:
    with pytest.warns(ViewWarning, match=f"only {errors} of {60 + errors}"):
        result = search_views(select_errors(make_pool(600), errors), 3)
    assert len(result.found) == 4
    assert result.folds == folds


@pytest.mark.parametrize("errors", [0, 1])
def test_too_few_errors_are_rejected(make_pool: MakePool, errors: int) -> None:
    with pytest.raises(DiagnosisError, match=f"^{errors} of {60 + errors}"):
        search_views(select_errors(make_pool(600), errors), 3)


def test_enough_errors_raise_no_warning(make_pool: MakePool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert search_views(select_errors(make_pool(600), 20), 3).errors == 20
