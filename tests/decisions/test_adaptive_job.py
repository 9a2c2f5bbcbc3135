"""Scoring with an adaptive policy: rows, summary, and an interrupted job that repeats no forward pass it saved."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.linear_model import LogisticRegression

import secondlook as sl
from secondlook.arrays import Array
from secondlook.classifiers import Classifier, Ensemble, LoadOptions, load_classifier
from secondlook.classifiers.remote import RemoteClassifier
from secondlook.decisions import Plan, ScoreSummary, job
from secondlook.decisions.policy_classifier import ResolvedClassifier
from secondlook.estimators import confidence, confidence_interval
from secondlook.policies import Policy
from secondlook.predictions import Execution, collect
from secondlook.sources import open_source
from tests.policy_maker import attach, score

MakeRule = Callable[..., Policy]
BATCH = 8


class Recording:
    """Counts images, keeps the mean of each batch, and is interrupted at one of its calls."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function
        self.batches: list[tuple[int, float]] = []
        self.at: int | None = None

    def __call__(self, batch: Any) -> Any:
        if len(self.batches) + 1 == self.at:
            raise KeyboardInterrupt
        self.batches.append((len(batch), float(batch.mean())))
        return self.function(batch)

    @property
    def images(self) -> int:
        return sum(count for count, _ in self.batches)


@pytest.fixture
def recording(brightness: Callable[[Any], Any]) -> Recording:
    return Recording(brightness)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plan, "choose_chunk_rows", lambda *_: 16)


def make_policy(rule: Policy, classifier: Classifier) -> Policy:
    assert rule.schedule is not None
    return attach(rule, classifier=classifier, views=rule.schedule.views, made="then")


def score_all(policy: Policy, images: Any, out: Path, classifier: Classifier, **options: Any) -> ScoreSummary:
    return score(policy, images, out, classifier=classifier, **options, execution=Execution(progress=False))


def read_rows(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


@pytest.mark.parametrize(
    "settings_of_rule",
    [
        {},
        {"method": "blend"},
        {"predict_from": "views"},
        {"top_k": 2, "method": "blend"},
        {"max_looks": 2},
        {"max_looks": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("is_ensemble", [False, True])
@pytest.mark.usefixtures("small_chunks")
def test_rows_are_those_of_stored_predictions(
    make_adaptive_rule: MakeRule, tmp_path: Path, settings_of_rule: dict[str, Any], is_ensemble: bool
) -> None:
    """Interval and per-view columns are those of the views looked at, in the order of looks."""
    rng = np.random.default_rng(3)
    images = np.clip(rng.normal(rng.uniform(60, 180, (60, 1, 1, 3)), 60, (60, 5, 4, 3)), 0, 255).astype(np.uint8)
    functions = [lambda batch, s=s: softmax(s * batch.mean(axis=(1, 2), dtype=np.float64)) for s in (0.05, 0.02)]
    members = [load_classifier(function, name=f"{number}") for number, function in enumerate(functions)]
    classifier = Ensemble(members) if is_ensemble else members[0]
    rule = make_adaptive_rule(**settings_of_rule)
    assert rule.schedule is not None
    policy = make_policy(rule, classifier)
    score_all(policy, images, tmp_path / "scores.parquet", classifier, per_view=True, level=0.8, seed=4)
    rows = read_rows(tmp_path / "scores.parquet")
    preds = collect(classifier, images, list(rule.schedule.views))
    stored = rule.look(preds)
    assert [row["looks"] for row in rows] == stored.looks.tolist()
    assert [row["confidence"] for row in rows] == stored.confidence.tolist()
    assert [row["accept"] for row in rows] == rule.accept(stored.confidence, method=rule.method).tolist()
    predicted = stored.predicted.reshape(60, -1)
    assert [row["label"] for row in rows] == predicted[:, 0].tolist()
    if rule.top_k > 1:
        assert [row["labels"] for row in rows] == predicted.tolist()
    assert len(set(stored.looks.tolist())) >= min(3, len(rule.schedule.views))
    for position, row in enumerate(rows):
        seen = preds.select(views=list(rule.schedule.views[: row["looks"]]), images=[position])
        probabilities = seen.probabilities[0].astype(np.float64)
        assert row["view_labels"] == probabilities.argmax(axis=1).tolist()
        assert row["view_probabilities"] == pytest.approx(probabilities.max(axis=1).tolist(), abs=1e-6)
        if seen.n_outputs == 1:
            assert (row["low"], row["high"]) == (None, None)
            continue
        options: dict[str, Any] = {"predict_from": rule.predict_from, "top_k": rule.top_k}
        ends = confidence_interval(seen, 0.8, rule.method, seed=4, **options)
        shifted = [rule.schedule.estimate(row["looks"], end)[0] for end in ends]
        assert [row["low"], row["high"]] == pytest.approx(shifted)
        assert row["low"] <= row["high"]


def softmax(scores: Array) -> Array:
    exponents = np.exp(scores - scores.max(axis=1, keepdims=True))
    result: Array = exponents / exponents.sum(axis=1, keepdims=True)
    return result


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), batch_size=st.integers(1, 40), rows=st.integers(1, 40))
def test_batches_chunks_and_order_do_not_change_decisions(
    make_adaptive_rule: MakeRule,
    bright_or_dark: tuple[Array, Array],
    brightness: Callable[[Any], Any],
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    batch_size: int,
    rows: int,
) -> None:
    counting = Recording(brightness)
    classifier = load_classifier(counting, name="brightness")
    policy = make_policy(make_adaptive_rule(seed), classifier)
    order = np.random.default_rng(seed).permutation(35)
    images, folder = bright_or_dark[0][order], tmp_path_factory.mktemp("scores")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Plan, "choose_chunk_rows", lambda *_: rows)
        summary = score_all(policy, images, folder / "scores.parquet", classifier, batch_size=batch_size)
    stored = policy.look(collect(classifier, bright_or_dark[0][:35], list(policy.views)))
    found = read_rows(folder / "scores.parquet")
    assert [row["looks"] for row in found] == stored.looks[order].tolist()
    assert [row["confidence"] for row in found] == stored.confidence[order].tolist()
    assert summary.looks == stored.looks.sum()


@pytest.mark.usefixtures("small_chunks")
def test_every_look_is_one_forward_pass(
    make_adaptive_rule: MakeRule, recording: Recording, images: Array, tmp_path: Path
) -> None:
    classifier = load_classifier(recording, name="brightness")
    policy = make_policy(make_adaptive_rule(), classifier)
    summary = score_all(policy, images, tmp_path / "scores.parquet", classifier)
    looks = sum(row["looks"] for row in read_rows(tmp_path / "scores.parquet"))
    assert recording.images == 1 + looks, "one image is classified at the start"
    assert (summary.looks, summary.views, summary.mean_looks) == (looks, 5, looks / 30)
    assert 1 < summary.mean_looks < 5
    assert summary.to_dict()["mean_looks"] == looks / 30
    assert summary.to_dict()["views"] == 5
    (line,) = [line for line in str(summary).splitlines() if line.startswith("looks:")]
    assert f"{looks / 30:.2f} of 5" in line
    assert f"{100 * (1 - looks / 150):.1f} %" in line


def test_policies_without_a_schedule_have_all_looks(
    review_policy: Policy, classifier: Classifier, images: Array, tmp_path: Path
) -> None:
    summary = score_all(review_policy, images, tmp_path / "scores.parquet", classifier)
    assert {row["looks"] for row in read_rows(tmp_path / "scores.parquet")} == {3}
    assert (summary.looks, summary.views, summary.mean_looks) == (90, 3, 3)
    assert "looks:" not in str(summary)


def test_text_formats_have_empty_intervals_after_one_look(
    make_adaptive_rule: MakeRule, classifier: Classifier, images: Array, tmp_path: Path
) -> None:
    policy = make_policy(make_adaptive_rule(), classifier)
    score_all(policy, images, tmp_path / "scores.jsonl", classifier)
    score_all(policy, images, tmp_path / "scores.csv", classifier)
    rows = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    assert {row["looks"] == 1 for row in rows} == {True, False}
    assert all((row["low"] is None) == (row["looks"] == 1) for row in rows)
    header, *lines = (tmp_path / "scores.csv").read_text().splitlines()
    assert header.endswith(",low,high,accept,looks,first_look,disagreement,reason")
    for line, row in zip(lines, rows, strict=True):
        *_, low, high, accept, looks, first_look, disagreement, _reason = line.split(",")
        assert (low == "", high == "", disagreement == "") == (row["looks"] == 1,) * 3
        assert float(first_look) == row["first_look"]
        assert (accept, looks) == (json.dumps(row["accept"]), str(row["looks"]))


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("batch_size", [BATCH, 5])
def test_job_interrupted_at_each_batch_repeats_only_its_chunk(
    make_adaptive_rule: MakeRule, recording: Recording, images: Array, tmp_path: Path, batch_size: int
) -> None:
    """Two chunks of several rounds: the resumed job goes on with the chunk at which the first one was interrupted."""
    classifier = load_classifier(recording, name="brightness")
    policy = make_policy(make_adaptive_rule(), classifier)
    score_all(policy, images, tmp_path / "whole.parquet", classifier, batch_size=batch_size)
    whole, first_image = recording.batches[1:], recording.batches[0]
    assert len(whole) > 10
    resumed_at = set()
    for at in range(2, len(whole) + 2):
        recording.batches, recording.at = [], at
        with pytest.raises(KeyboardInterrupt):
            score_all(policy, images, tmp_path / "scores.parquet", classifier, batch_size=batch_size)
        recording.batches, recording.at = [], None
        score_all(policy, images, tmp_path / "scores.parquet", classifier, batch_size=batch_size)
        assert recording.batches[0] == first_image
        rest = recording.batches[1:]
        assert whole[len(whole) - len(rest) :] == rest
        resumed_at.add(len(whole) - len(rest))
        assert (tmp_path / "scores.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()
        (tmp_path / "scores.parquet").unlink()
    assert len(resumed_at) == 2, "at the start of the first chunk, or of the second"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["whole.parquet"]


@pytest.mark.usefixtures("small_chunks")
def test_unreadable_images_are_skipped(
    make_adaptive_rule: MakeRule, recording: Recording, bright_or_dark: tuple[Array, Array], tmp_path: Path
) -> None:
    """One image of the first chunk, and all 16 of the second."""
    (tmp_path / "new").mkdir()
    broken = {5, *range(16, 32)}
    for number, image in enumerate(bright_or_dark[0][:40]):
        Image.fromarray(image).save(tmp_path / "new" / f"{number:02d}.png")
        if number in broken:
            (tmp_path / "new" / f"{number:02d}.png").write_bytes(b"")
    classifier = load_classifier(recording, name="brightness")
    policy = make_policy(make_adaptive_rule(), classifier)
    source = f"folder:{tmp_path / 'new'}"
    summary = score_all(policy, source, tmp_path / "scores.parquet", classifier, on_error="skip")
    assert [id_ for id_, _ in summary.skipped] == [f"{number:02d}.png" for number in sorted(broken)]
    everything = read_rows(tmp_path / "scores.parquet")
    assert [row["id"] for row in everything] == [f"{number:02d}.png" for number in range(40)]
    unread = [row for row in everything if row["reason"] is not None]
    assert [(row["id"], row["reason"]) for row in unread] == list(summary.skipped)
    assert all((row["label"], row["accept"], row["looks"]) == (None, False, 0) for row in unread)
    rows = [row for row in everything if row["reason"] is None]
    preds = collect(classifier, open_source(source, on_error="skip"), list(policy.views))
    assert tuple(row["id"] for row in rows) == preds.ids
    assert [row["looks"] for row in rows] == policy.look(preds).looks.tolist()
    assert recording.images - 1 - preds.n_images * 5 == summary.looks


def test_chunks_are_larger_but_not_in_bytes(
    make_adaptive_rule: MakeRule, classifier: Classifier, review_policy: Policy, tmp_path: Path
) -> None:
    def count_rows(policy: Policy, images: Array) -> int:
        return Plan(policy, ResolvedClassifier(classifier, None)).choose_chunk_rows(images[0], 2)

    adaptive = make_policy(make_adaptive_rule(), classifier)
    small, large = np.zeros((1, 32, 32, 3), np.uint8), np.zeros((1, 224, 224, 3), np.uint8)
    assert [count_rows(policy, small) for policy in (review_policy, adaptive)] == [1024, 4096]
    assert [count_rows(policy, large) for policy in (review_policy, adaptive)] == [256, 256]


def test_first_predictions_of_all_views_do_not_exist(
    make_adaptive_rule: MakeRule, classifier: Classifier, images: Array, tmp_path: Path
) -> None:
    policy = make_policy(make_adaptive_rule(), classifier)
    called: list[object] = []
    score_all(policy, images, tmp_path / "scores.csv", classifier, on_first_predictions=called.append)
    assert called == []


def test_progress_counts_decided_images(
    make_adaptive_rule: MakeRule,
    recording: Recording,
    image_files: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Also those of an image that is skipped."""
    sorted((tmp_path / "new").rglob("*.png"))[4].write_bytes(b"")
    bars: list[tuple[int, str]] = []
    advanced: list[int] = []

    def record_bar(description: str, total: int, unit: str, *, enabled: bool) -> Any:
        bars.append((total, unit))
        return nullcontext(advanced.append)

    monkeypatch.setattr(job, "progress_bar", record_bar)
    classifier = load_classifier(recording, name="brightness")
    policy = make_policy(make_adaptive_rule(), classifier)
    options: dict[str, Any] = {"batch_size": BATCH, "on_error": "skip"}
    recording.at = 7
    with pytest.raises(KeyboardInterrupt):
        score_all(policy, image_files, tmp_path / "scores.csv", classifier, **options)
    assert 0 < sum(advanced) < 30
    recording.at = None
    advanced.clear()
    score_all(policy, image_files, tmp_path / "scores.csv", classifier, **options)
    assert bars == [(30, "images")] * 2
    assert sum(advanced) == 30


class Client:
    """A client of a server whose model takes 4 images at a time, and outputs logits from the mean of each channel."""

    identity = ("h", "m", "")

    def get_metadata(self) -> dict[str, Any]:
        described = {"name": "a", "datatype": "UINT8", "shape": [4, 16, 16, 3]}
        return {"inputs": [described], "outputs": [{"name": "b", "datatype": "FP32", "shape": [4, 3]}]}

    def infer(self, requests: list[Array], input_name: str, output_name: str) -> list[Array]:
        return [0.1 * request.mean(axis=(1, 2), dtype=np.float32) for request in requests]


def load_adapter(name: str, images: Array) -> Classifier:
    if name == "onnx":
        return load_classifier(f"onnx:{Path(sl.__file__).parent / 'cli' / 'demo_data' / 'digits.onnx'}")
    if name == "sklearn":
        labels = images.mean(axis=(1, 2)).argmax(axis=1)
        return load_classifier(
            LogisticRegression(C=1e-7, max_iter=2000).fit(images.reshape(len(images), -1), labels), name="m"
        )
    if name == "remote":
        client: Any = Client()
        return RemoteClassifier(client, LoadOptions("m", output="logits"), None, 32)
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, 3))
    network[1].weight.data *= 10
    return load_classifier(network, output="logits", name="m")


@pytest.mark.parametrize("name", ["onnx", "sklearn", "remote", "torch"])
def test_every_adapter_looks_adaptively(make_adaptive_rule: MakeRule, tmp_path: Path, name: str) -> None:
    rng = np.random.default_rng(0)
    channels = 1 if name == "onnx" else 3
    colors = rng.uniform(0, 255, (50, 1, 1, channels))
    images = np.clip(rng.normal(colors, 50, (50, 16, 16, channels)), 0, 255).astype(np.uint8)
    classifier = load_adapter(name, images)
    middle = float(np.median(confidence(collect(classifier, images, "identity"), "msr")))
    rule = make_adaptive_rule()
    assert rule.schedule is not None
    schedule = rule.schedule.model_copy(update={"margin": 0.5})
    policy = make_policy(rule.model_copy(update={"threshold": middle, "schedule": schedule}), classifier)
    summary = score_all(policy, images, tmp_path / "scores.parquet", classifier, batch_size=BATCH)
    rows = read_rows(tmp_path / "scores.parquet")
    stored = policy.look(collect(classifier, images, list(policy.views)))
    assert [row["looks"] for row in rows] == stored.looks.tolist()
    assert [row["confidence"] for row in rows] == pytest.approx(stored.confidence.tolist(), rel=1e-4)
    assert [row["label"] for row in rows] == stored.predicted.tolist()
    assert 1 < summary.mean_looks < 5
