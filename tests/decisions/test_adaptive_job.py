"""Scoring with an adaptive policy: rows, summary, and an interrupted job that repeats no forward pass it saved."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook.arrays import Array
from secondlook.classifiers import Classifier, Ensemble, load_classifier
from secondlook.decisions import job
from secondlook.estimators import confidence_interval
from secondlook.policies import Policy
from secondlook.predictions import collect
from secondlook.sources import open_source
from tests.decisions.conftest import (
    Counting,
    Score,
    count_colors,
    make_adaptive_rule,
    make_colors,
    make_policy,
    read_rows,
    save_images,
)
from tests.policy_maker import score

BATCH = 8


@pytest.fixture
def classifier(counting: Counting) -> Classifier:
    return load_classifier(counting, name="brightness")


@pytest.fixture
def policy(classifier: Classifier) -> Policy:
    return make_policy(classifier, rule=make_adaptive_rule())


@pytest.mark.parametrize(
    "rule",
    [{}, {"method": "blend"}, {"predict_from": "views"}, {"top_k": 2, "method": "blend"}, {"max_looks": 2},
     {"max_looks": 1}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("is_ensemble", [False, True])
def test_rows_are_those_of_stored_predictions(tmp_path: Path, rule: dict[str, Any], is_ensemble: bool) -> None:
    """Interval and per-view columns are those of the views looked at, in the order of looks."""
    images = make_colors(3, 60)
    members = [load_classifier(count_colors(sharpness), name=f"{sharpness}") for sharpness in (0.05, 0.02)]
    classifier = Ensemble(members) if is_ensemble else members[0]
    policy = make_policy(classifier, rule=make_adaptive_rule(**rule))
    assert policy.schedule is not None
    options: dict[str, Any] = {"per_view": True, "level": 0.8, "seed": 4, "part_size": 16}
    score(policy, images, tmp_path / "scores.parquet", classifier=classifier, **options)
    rows = read_rows(tmp_path / "scores.parquet")
    preds = collect(classifier, images, list(policy.views))
    stored = policy.look(preds)
    predicted = stored.predicted.reshape(60, -1)
    expected: dict[str, Array] = {
        "looks": stored.looks,
        "confidence": stored.confidence,
        "accept": policy.accept(stored.confidence, method=policy.method),
        "label": predicted[:, 0],
        **({"labels": predicted} if policy.top_k > 1 else {}),
    }
    for name, values in expected.items():
        assert [row[name] for row in rows] == values.tolist(), name
    assert len(set(stored.looks.tolist())) >= min(3, len(policy.views))
    for position, row in enumerate(rows):
        seen = preds.select(views=list(policy.views[: row["looks"]]), images=[position])
        probabilities = seen.probabilities[0].astype(np.float64)
        assert row["view_labels"] == probabilities.argmax(axis=1).tolist()
        assert row["view_probabilities"] == pytest.approx(probabilities.max(axis=1).tolist(), abs=1e-6)
        if seen.n_outputs == 1:
            assert (row["low"], row["high"]) == (None, None)
            continue
        kind: dict[str, Any] = {"predict_from": policy.predict_from, "top_k": policy.top_k}
        ends = confidence_interval(seen, 0.8, policy.method, seed=4, **kind)
        shifted = [policy.schedule.estimate(row["looks"], end)[0] for end in ends]
        assert [row["low"], row["high"]] == pytest.approx(shifted)
        assert row["low"] <= row["high"]


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    batch_size=st.integers(1, 40),
    part_size=st.integers(1, 40),
    method=st.sampled_from(["mean", "blend"]),
    predict_from=st.sampled_from(["image", "views"]),
)
def test_batches_chunks_and_order_do_not_change_decisions(
    tmp_path_factory: pytest.TempPathFactory, seed: int, method: str, predict_from: str, **sizes: int
) -> None:
    """To the last bit; every look is one forward pass."""
    counting, out = count_colors(), tmp_path_factory.mktemp("scores") / "scores.parquet"
    classifier = load_classifier(counting, name="colors")
    policy = make_policy(classifier, rule=make_adaptive_rule(seed, method=method, predict_from=predict_from))
    order, images = np.random.default_rng(seed).permutation(35), make_colors(seed, 35)
    summary = score(policy, images[order], out, classifier=classifier, **sizes)
    assert sum(counting.sizes) == 1 + summary.looks, "one image is classified at the start"
    stored, rows = policy.look(collect(classifier, images, list(policy.views))), read_rows(out)
    for name, values in {"looks": stored.looks, "confidence": stored.confidence, "label": stored.predicted}.items():
        assert [row[name] for row in rows] == values[order].tolist(), name
    assert summary.looks == stored.looks.sum()


def test_summary_counts_looks_and_intervals_after_one_are_empty(score_into: Score) -> None:
    called: list[object] = []
    summary, rows = score_into(on_first_predictions=called.append)
    looks = sum(row["looks"] for row in rows)
    assert (summary.looks, summary.views, summary.mean_looks) == (looks, 5, looks / 30)
    assert 1 < summary.mean_looks < 5
    assert summary.to_dict()["mean_looks"] == looks / 30
    assert summary.to_dict()["views"] == 5
    (told,) = [line for line in str(summary).splitlines() if line.startswith("looks:")]
    assert f"{looks / 30:.2f} of 5" in told
    assert f"{100 * (1 - looks / 150):.1f} %" in told
    assert called == [], "there are no predictions of all views"
    lines, cells = (score_into(name)[1] for name in ("scores.jsonl", "scores.csv"))
    assert lines == rows
    assert {row["looks"] == 1 for row in rows} == {True, False}
    assert list(cells[0])[-7:] == ["low", "high", "accept", "looks", "first_look", "disagreement", "reason"]
    for cell, row in zip(cells, rows, strict=True):
        for name in ("low", "high", "disagreement"):
            assert (cell[name] == "") == (row[name] is None) == (row["looks"] == 1)
        assert float(cell["first_look"]) == row["first_look"]
        assert (cell["accept"], cell["looks"]) == (json.dumps(row["accept"]), str(row["looks"]))


@pytest.mark.parametrize("batch_size", [BATCH, 5])
def test_interruption_repeats_one_chunk(score_into: Score, counting: Counting, tmp_path: Path, batch_size: int) -> None:
    """Two chunks of several rounds: the resumed job goes on with the chunk at which the first one was interrupted."""

    def summarize() -> list[tuple[int, float]]:
        return [(len(batch), float(batch.mean())) for batch in counting.batches]

    score_into("whole.parquet", batch_size=batch_size)
    first_image, *whole = summarize()
    assert len(whole) > 10
    resumed_at = set()
    for at in range(2, len(whole) + 2):
        counting.restart(fails_at=at)
        with pytest.raises(KeyboardInterrupt):
            score_into(batch_size=batch_size)
        counting.restart()
        score_into(batch_size=batch_size)
        again, *rest = summarize()
        assert again == first_image
        assert whole[len(whole) - len(rest) :] == rest
        resumed_at.add(len(whole) - len(rest))
        assert (tmp_path / "scores.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()
        (tmp_path / "scores.parquet").unlink()
    assert len(resumed_at) == 2, "at the start of the first chunk, or of the second"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["whole.parquet"]


def test_unreadable_images_are_skipped(
    score_into: Score, policy: Policy, classifier: Classifier, counting: Counting, tmp_path: Path, images: Array
) -> None:
    """One image of the first chunk, and all 16 of the second."""
    broken = [5, *range(16, 32)]
    source = save_images(tmp_path / "new", np.concatenate([images, images[:10]]), broken)
    summary, everything = score_into(data=source, on_error="skip")
    assert sum(counting.sizes) == 1 + summary.looks
    assert [id_ for id_, _ in summary.skipped] == [f"{number:03d}.png" for number in broken]
    assert [row["id"] for row in everything] == [f"{number:03d}.png" for number in range(40)]
    unread = [row for row in everything if row["reason"] is not None]
    assert [(row["id"], row["reason"]) for row in unread] == list(summary.skipped)
    assert all((row["label"], row["accept"], row["looks"]) == (None, False, 0) for row in unread)
    preds = collect(classifier, open_source(source, on_error="skip"), list(policy.views))
    looks = [(row["id"], row["looks"]) for row in everything if row["reason"] is None]
    assert looks == list(zip(preds.ids, policy.look(preds).looks.tolist(), strict=True))


def test_progress_counts_decided_images(
    score_into: Score, counting: Counting, image_files: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also those of an image that is skipped."""
    sorted((tmp_path / "new").rglob("*.png"))[4].write_bytes(b"")
    bars: list[tuple[int, str]] = []
    advanced: list[int] = []

    def record_bar(description: str, total: int, unit: str, *, enabled: bool) -> Any:
        bars.append((total, unit))
        return nullcontext(advanced.append)

    monkeypatch.setattr(job, "progress_bar", record_bar)
    counting.restart(fails_at=7)
    with pytest.raises(KeyboardInterrupt):
        score_into("scores.csv", image_files, batch_size=BATCH, on_error="skip")
    assert 0 < sum(advanced) < 30
    counting.restart()
    advanced.clear()
    score_into("scores.csv", image_files, batch_size=BATCH, on_error="skip")
    assert bars == [(30, "images")] * 2
    assert sum(advanced) == 30
