"""The search as a whole: what comes out, that it is honest, and what it refuses."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from secondlook.diagnosis import STRATEGIES, SearchWarning, search_run, search_views
from secondlook.diagnosis.pool import pool_of
from secondlook.errors import DiagnosisError
from secondlook.estimators import confidence
from secondlook.metrics import auroc
from secondlook.predictions import Predictions, collect
from secondlook.views import ViewSet

Pools = Callable[..., Predictions]
OBJECTIVES = ["auroc", "aurc", "coverage_at:0.05", "nll"]


@pytest.mark.parametrize("strategy", list(STRATEGIES))
def test_every_strategy_gives_a_set_without_the_insane(made_pool: Pools, strategy: str) -> None:
    result = search_views(made_pool(), 5, strategy=strategy)
    assert result.found[0].is_identity
    assert 2 <= len(result.found) <= 6
    assert "vflip" not in result.found
    assert 0 <= result.suggested_stop <= 5
    assert [point.views for point in result.curve] == [0, 1, 2, 3, 4, 5]
    assert (result.weights is None) == (result.weighted_gain is None)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_gains_by_looking_again(made_pool: Pools, objective: str) -> None:
    result = search_views(made_pool(600), 6, objective)
    assert result.curve[0].gain.gain == 0
    assert result.curve[-1].gain.gain > 0, "a second look helps in these pools, whichever way the metric goes"
    assert result.gains[-1].over == "the image itself"
    assert result.gains[-1].gain == pytest.approx(result.curve[-1].gain.gain)


def test_the_gains_are_differences_on_the_same_images(made_pool: Pools) -> None:
    preds = made_pool()
    result = search_views(preds, 5, preset=["hflip", "shift:1,0"])
    given, everything, itself = result.gains
    correct = preds.correct()
    assert itself.value == pytest.approx(auroc(correct, confidence(preds, "msr")))
    assert given.value == pytest.approx(auroc(correct, confidence(preds, "mean", views=["hflip", "shift:1,0"])))
    assert everything.value == pytest.approx(auroc(correct, confidence(preds, "mean", views=result.diagnosis.sane)))
    for gain in result.gains:
        assert gain.gain == pytest.approx(result.value - gain.value)


def test_the_same_seed_gives_the_same_result(made_pool: Pools) -> None:
    first, second = (search_views(made_pool(), 5, seed=3) for _ in range(2))
    assert first == second
    assert str(first) == str(second)


def test_what_was_luck_is_not_called_better(made_pool: Pools) -> None:
    """All views are alike here, so no five of them can truly beat another five."""
    given = ["hflip", "shift:1,0", "rotate:2", "zoom:1.04", "gamma:0.85"]
    results = [search_views(made_pool(300, seed=seed), 5, preset=given) for seed in range(4)]
    kept = [result for result in results if result.kept is not None]
    assert len(kept) >= 3, "a search that claims to beat a set of the same kind is fooled by noise"
    for result in kept:
        assert result.views == result.stopped == ViewSet(["identity", *given])
        assert "No set was found that is better than the given 6 views" in result.verdict
        assert "the given 6 views is kept." in result.verdict


def test_a_preset_is_kept_only_if_it_fits_the_budget_and_is_sane(made_pool: Pools) -> None:
    for given in (["hflip", "vflip"], ["hflip", "shift:1,0", "rotate:2", "zoom:1.04"]):
        result = search_views(made_pool(300), 3, preset=given)
        if result.gains[0].verdict != "better":
            assert "so the found set is given all the same" in result.verdict
        assert result.kept is None
        assert result.views == result.found


def test_the_found_file_is_a_view_set(made_pool: Pools, tmp_path: Path) -> None:
    result = search_views(made_pool(), 6)
    assert ViewSet(result.write(tmp_path / "views.txt")) == result.views == result.found
    assert ViewSet(result.write(tmp_path / "fewer.txt", stop=True)) == result.stopped
    assert len(result.stopped) == result.suggested_stop + 1
    assert f"# {result.verdict}" in (tmp_path / "views.txt").read_text()


def test_the_result_prints_and_is_json(made_pool: Pools) -> None:
    result = search_views(made_pool(), 4, strategy="weights")
    text = str(result)
    for part in ("4 of 10 views (1 set aside)", "Suggested stop", result.verdict, "weight", "- vflip is set aside"):
        assert part in text
    assert json.loads(json.dumps(result.to_dict()))["views"] == list(result.views.texts)


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_curve_is_drawn(made_pool: Pools, tmp_path: Path, ending: str) -> None:
    path = search_views(made_pool(), 4).plot(tmp_path / f"curve.{ending}")
    assert path.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml")


def test_the_preset_is_found_in_the_pool_by_itself(made_pool: Pools) -> None:
    result = search_views(made_pool(views=[*ViewSet("cifar10").texts, "hflip"]), 4)
    assert result.preset == "cifar10"
    assert result.gains[0].over == "the preset 'cifar10'"
    assert search_views(made_pool(), 4).preset is None


def test_a_run_is_searched_written_and_drawn(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (120, 4, 4, 1), dtype=np.uint8)
    labels = np.where(images.mean(axis=(1, 2, 3)) > 127, 1, 0)
    labels[::6] = 1 - labels[::6]

    def classify(batch: np.typing.NDArray[np.uint8]) -> np.typing.NDArray[np.float64]:
        bright = 1 / (1 + np.exp(-(batch.mean(axis=(1, 2, 3)) - 127) / 10))
        return np.stack([1 - bright, bright], axis=1)

    from secondlook.classifiers import load_classifier

    named = load_classifier(classify, name="brightness")
    collect(named, images, "identity hflip rotate:2 gamma:0.9 gamma:1.1", labels=labels, store=tmp_path / "run")
    result = search_run(tmp_path / "run", budget=3, out=tmp_path / "views.txt", curve=tmp_path / "curve.png")
    assert ViewSet(tmp_path / "views.txt") == result.views
    assert (tmp_path / "curve.png").is_file()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"budget": 0}, "the budget is 0; expected at least 1"),
        ({"budget": 10}, "budget of 10 views is above the pool of 10 views .*, of which 1 were set aside.*at most 9"),
        ({"objective": "aurok"}, "unknown objective 'aurok'.*Did you mean 'auroc'"),
        ({"strategy": "gready"}, "unknown strategy 'gready'.*Did you mean 'greedy'"),
        ({"folds": 1}, "folds is 1; expected at least 2"),
        ({"shrinkage": -1.0}, "shrinkage is -1.0"),
        ({"preset": "cifar10"}, "of the 13 views of 'cifar10' are not in the pool, such as"),
    ],
)
def test_bad_questions_are_refused(made_pool: Pools, options: dict[str, object], sentence: str) -> None:
    with pytest.raises(DiagnosisError, match=sentence):
        search_views(made_pool(), **{"budget": 4, **options})  # type: ignore[arg-type]


def test_labels_are_needed(made_pool: Pools) -> None:
    with pytest.raises(DiagnosisError, match="needs labels, and these predictions have none"):
        search_views(made_pool(labeled=False), 4)


def test_what_is_no_predictions_is_refused() -> None:
    with pytest.raises(DiagnosisError, match="chosen from Predictions of a pool, got list"):
        search_views([1], 4)  # type: ignore[arg-type]


def with_errors(preds: Predictions, errors: int) -> Predictions:
    """Keep so many wrong images beside 60 right ones."""
    correct = preds.correct()
    return preds.select(images=np.concatenate([np.flatnonzero(correct)[:60], np.flatnonzero(~correct)[:errors]]))


def test_few_errors_are_warned_of_and_fewer_refused(made_pool: Pools) -> None:
    preds = made_pool(600)
    with pytest.warns(SearchWarning, match="only 12 of 72 images are answered wrongly: with fewer than 20 errors"):
        assert len(search_views(with_errors(preds, 12), 3).found) == 4
    with pytest.warns(SearchWarning, match="only 2 of 62"):
        assert search_views(with_errors(preds, 2), 3).folds == 2
    with pytest.raises(DiagnosisError, match="none of the 60 images is answered wrongly"):
        search_views(with_errors(preds, 0), 3)
    with pytest.raises(DiagnosisError, match="1 of 61 images are answered wrongly; expected at least two"):
        search_views(with_errors(preds, 1), 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        search_views(with_errors(preds, 20), 3)


def test_files_that_cannot_be_written_are_told(made_pool: Pools, tmp_path: Path) -> None:
    result = search_views(made_pool(), 3)
    with pytest.raises(DiagnosisError, match=r"ends in '.txt'"):
        result.write(tmp_path / "views.csv")
    with pytest.raises(DiagnosisError, match=r"cannot be written to .*: No such file"):
        result.write(tmp_path / "nowhere" / "views.txt")
    with pytest.raises(DiagnosisError, match=r"ends in .png or .svg or .pdf"):
        result.plot(tmp_path / "curve.gif")
    with pytest.raises(DiagnosisError, match=r"cannot be written to .*: No such file"):
        result.plot(tmp_path / "nowhere" / "curve.png")


def test_weights_that_add_up_to_one_by_rounding_give_probabilities() -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 10, 600)
    logits = generator.normal(size=(600, 1, 10)) * 20 + generator.normal(size=(600, 8, 10)) * 2
    logits[np.arange(600), :, labels] += 24
    preds = Predictions(logits=logits, views=["identity", *(f"shift:{far},0" for far in range(1, 8))], labels=labels)
    assert np.isfinite(search_views(preds, 2, "nll", "weights", seed=0).value)


def test_what_several_classes_hold_is_at_most_all(made_pool: Pools) -> None:
    pool = made_pool()
    preds = Predictions(probabilities=pool.probabilities, views=pool.views, labels=pool.labels)  # in float32
    assert preds.probabilities.sum(axis=2, dtype=np.float64).max() > 1
    assert pool_of(preds, preds.n_classes).shares.max() == 1


def test_the_result_is_json_also_where_nothing_but_the_pool_is_believed(made_pool: Pools) -> None:
    result = search_views(made_pool(), 3, shrinkage=np.inf)
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False))["shrinkage"] is None
    assert json.loads(json.dumps(search_views(made_pool(), 3, shrinkage=0.5).to_dict()))["shrinkage"] == 0.5


def test_a_seed_below_zero_is_refused(made_pool: Pools) -> None:
    with pytest.raises(DiagnosisError, match="seed is -1"):
        search_views(made_pool(), 3, seed=-1)
