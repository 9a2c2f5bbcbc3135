"""Exported files in the library: the decisions and rows of the policy, resumed jobs, and images that do not fit."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest

import secondlook as sl
from secondlook.arrays import Array
from secondlook.classifiers import Classifier, Ensemble, load_classifier
from secondlook.decisions import ExportedFile, compile_policy, load_policy
from secondlook.errors import DecisionError, SourceError
from secondlook.onnx_export import export_onnx
from secondlook.policies import Guarantee, Policy, certify
from secondlook.predictions import Predictions, collect
from tests.conftest import PickledEngine
from tests.decisions.conftest import make_policy, read_rows, save_images
from tests.decisions.decider_files import COLORS, make_bright_policy, open_file, write_decider
from tests.onnx_export.conftest import make_images, write_network
from tests.policy_maker import score

EXACT = ("id", "label", "labels", "class", "accept", "rejection", "looks", "reason", "view_labels")
COUNT = 50


class Exported(NamedTuple):
    """A file, with the classifier and the policy that it was made from."""

    file: Path
    classifier: Classifier
    policy: Policy


def export(folder: Path, classifier: Classifier, policy: Policy, **options: Any) -> Exported:
    export_onnx(policy, folder / "decide.onnx", classifier=classifier, **options)
    return Exported(folder / "decide.onnx", classifier, policy)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Exported]:
    """Exported files by kind; the views do not round pixels otherwise than the library."""
    folder, views = tmp_path_factory.mktemp("networks"), "identity hflip shift:1,0 shift:-1,2"
    files = [write_network(folder / f"{seed}.onnx", seed=seed) for seed in (0, 1)]
    models = [load_classifier(f"onnx:{file}?mean=.5&std=.25") for file in files]
    images = make_images(500, seed=9)
    found = models[0].probabilities(images)
    labels = np.where(found.max(axis=1) > 0.97, found.argmax(axis=1), found.argmin(axis=1))  # wrong where it is unsure
    preds = collect(models[0], images, views, labels=labels)
    top_2 = Policy(threshold=0.9, method="blend", top_k=2, predict_from="views")
    rules = {
        "plain": certify(preds, "mean", risk=0.1, delta=0.1),
        "float32": certify(preds, "mean", risk=0.1, delta=0.1),
        "adaptive": certify(preds, "mean", risk=0.1, delta=0.1, adaptive=True),
        "familiar": certify(preds, "mean", risk=0.1, delta=0.1, unknown_budget=0.3),
        "familiar, adaptive": certify(preds, "mean", risk=0.1, delta=0.1, unknown_budget=0.3, adaptive=True),
        "top-2": top_2.model_copy(update={"threshold": float(np.median(top_2.confidence(preds)))}),
        "ensemble": Policy(threshold=0.5, method="mean", predict_from="views"),
    }
    made = {}
    for kind, rule in rules.items():
        classifier = Ensemble(models) if kind == "ensemble" else models[0]
        policy = make_policy(classifier, views, rule).replace(class_names=("a", "b", "c", "d"))
        options: dict[str, Any] = {"pixels": "float32"} if kind == "float32" else {}
        made[kind] = export(tmp_path_factory.mktemp(kind), classifier, policy, **options)
    return made


KINDS = pytest.mark.parametrize(
    "kind", ["plain", "float32", "adaptive", "familiar", "familiar, adaptive", "top-2", "ensemble"]
)


@KINDS
def test_decisions_are_those_of_the_policy(exported: dict[str, Exported], kind: str) -> None:
    file, classifier, policy = exported[kind]
    library, decider = policy.bind(classifier), load_policy(file)
    assert decider == policy
    images = make_images(20, seed=5)
    if kind == "float32":
        images = images.astype(np.float32) / np.float32(255)
    options: dict[str, Any] = {"interval": True, "level": 0.9, "seed": 3}
    for image in images:
        mine, theirs = library.decide(image, **options), decider.decide(image, **options)
        for name, expected in vars(mine).items():
            close = pytest.approx(expected, abs=1e-5) if isinstance(expected, float | tuple) else expected
            assert getattr(theirs, name) == close, name
    decisions = [decider.decide(image) for image in images]
    looks = {one.looks for one in decisions}
    assert len(looks) > 1 if "adaptive" in kind else looks == {len(policy.views)}
    assert ("unfamiliar" in {one.rejection for one in decisions}) == ("familiar" in kind)


@pytest.mark.parametrize("pixels", ["uint8", "float32"])
def test_rounded_views_are_about_those_of_the_policy(tmp_path: Path, pixels: str) -> None:
    """A turned or shrunk pixel may be rounded to its neighbor; those that are not whole are not rounded."""
    classifier = load_classifier(f"onnx:{write_network(tmp_path / 'n.onnx')}?mean=.5&std=.25")
    policy = make_policy(classifier, "identity rotate:7 zoom:1.1", threshold=0.7)
    decider = load_policy(export(tmp_path, classifier, policy, pixels=pixels).file)
    for image in make_images(20, seed=5):
        given = image if pixels == "uint8" else image.astype(np.float32) / np.float32(255)
        mine, theirs = policy.bind(classifier).decide(given), decider.decide(given)
        assert (theirs.label, theirs.accept) == (mine.label, mine.accept)
        assert theirs.confidence == pytest.approx(mine.confidence, abs=2e-3 if pixels == "uint8" else 1e-5)


def test_pixels_become_those_of_the_file_and_batches_do_not_matter(exported: dict[str, Exported]) -> None:
    images = make_images(17, seed=6)
    floats = images.astype(np.float32) / np.float32(255)
    nearly = np.clip(floats + np.float32(0.4 / 255), 0, 1)
    for kind, same in (("plain", (images, floats, nearly)), ("float32", (images, floats)), ("adaptive", (images,))):
        decider = open_file(exported[kind].file)
        whole, *others = (decider.decide_images(pixels) for pixels in same)
        for other in others:
            np.testing.assert_array_equal(other.view_outputs, whole.view_outputs)
        for size in (1, 5, 100):
            found = decider.decide_images(images, batch_size=size)
            for name in whole._fields[:-1]:
                np.testing.assert_allclose(getattr(found, name), getattr(whole, name), atol=1e-5)
        with pytest.raises(sl.SecondLookError, match="0"):
            decider.decide_images(images, batch_size=0)


def test_images_that_do_not_fit_are_an_error(tmp_path: Path) -> None:
    decider = open_file(write_decider(tmp_path / "d.onnx"))
    for told, images in {
        "5 x 4 x 3": np.zeros((2, 5, 4, 3), np.uint8),
        "4 x 4 x 1": np.zeros((2, 4, 4, 1), np.uint8),
        r"\[4, 4, 3\]": np.zeros((4, 4, 3), np.uint8),
        "int32": np.zeros((2, 4, 4, 3), np.int32),
        "image 1": [np.zeros((4, 4, 3)), np.full((4, 4, 3), np.nan)],
        "from 2 to 2": np.full((2, 4, 4, 3), 2, np.float32),
        "at least one": np.zeros((0, 4, 4, 3), np.uint8),
        "shape": [[1]],
    }.items():
        with pytest.raises(DecisionError, match=told):
            decider.decide_images(images)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def resizing(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A file that resizes the shorter side to 64 pixels and crops."""
    folder = tmp_path_factory.mktemp("resizing")
    classifier = load_classifier(f"onnx:{write_network(folder / 'n.onnx')}?resize=64&crop=16&interpolation=nearest")
    return export(folder, classifier, make_policy(classifier, "identity hflip", threshold=0.7))


def test_images_of_several_sizes_keep_their_order_and_their_batches_fit(resizing: Exported) -> None:
    decider = open_file(resizing.file)
    images = [make_images(1, side, seed=number)[0] for number, side in enumerate([16, 20, 16, 31, 20, 16])]
    images[2] = images[2].astype(np.float32) / np.float32(255)
    together = decider.decide_images(images, batch_size=2)
    for number, image in enumerate(images):
        alone = decider.decide_images(image[None])
        np.testing.assert_allclose(together.view_outputs[number], alone.view_outputs[0], atol=1e-5)
    strip = np.zeros((1, 60_000, 3), np.uint8)
    with pytest.raises(DecisionError, match=r"1 x 60000.*64 x 3840000"):
        decider.decide_images(strip[None])
    with pytest.raises(DecisionError, match=r"image 1 .*60000"):
        decider.decide_images([make_images(1, 20)[0], strip.transpose(1, 0, 2)])
    decider.check_shape((10, 10_000, 3))
    decider.check_shape((9000, 9000, 3))  # a large image becomes smaller
    for side in (16, 900):  # by their own size, batches of these would be 8 / 2 views
        sizes: list[int] = []
        decider.decide_images(np.zeros((20, side, side, 3), np.uint8), advance=sizes.append)
        assert sizes == [20]


def test_the_rule_decides_as_the_file_where_rounding_crosses_the_threshold(tmp_path: Path) -> None:
    """The confidence of the file is rounded to float32 after it has decided, also in scores, which are monitored."""
    means = COLORS.astype(np.float64).mean(axis=(1, 2, 3)) / 255
    exact = np.maximum(means, 1 - means)
    crossed = 0
    for place, confidence in enumerate(exact.tolist()):
        for threshold in (confidence, float(np.nextafter(confidence, 1))):
            policy = make_bright_policy(threshold)
            file = write_decider(tmp_path / "d.onnx", policy)
            decided = open_file(file).decide_images(COLORS)
            assert decided.accept[place] == (confidence >= threshold)
            np.testing.assert_allclose(decided.confidence, exact, atol=1e-7)
            crossed += bool((np.float32(confidence) >= threshold) != decided.accept[place])
            score(file, COLORS, tmp_path / "scores.parquet", overwrite=True)
            rows = pq.read_table(tmp_path / "scores.parquet")
            for found, accept in (decided[1:3], (rows["confidence"].to_numpy(), rows["accept"].to_numpy())):
                np.testing.assert_array_equal(policy.accept(found, method=policy.method), accept)
    assert crossed > 3


def test_a_mismatch_at_export_is_no_guarantee(tmp_path: Path) -> None:
    certified = make_bright_policy().model_copy(update={"guarantee": Guarantee(risk=0.1, delta=0.1)})
    assert load_policy(write_decider(tmp_path / "d.onnx", certified)).decide(COLORS[0]).guarantee is not None
    other = load_policy(write_decider(tmp_path / "d.onnx", certified, record={"mismatch": "it is another one"}))
    assert other.decide(COLORS[0]).guarantee is None
    assert compile_policy(other).policy == certified.model_copy(update={"guarantee": None})
    summary = score(other, COLORS, tmp_path / "scores.parquet")
    assert summary.guarantee is None
    assert summary.mismatch == "it is another one"
    assert summary.mismatch in str(summary)


@KINDS
def test_rows_are_those_of_the_policy(exported: dict[str, Exported], tmp_path: Path, kind: str) -> None:
    images, (file, classifier, policy) = make_images(COUNT, seed=11), exported[kind]
    options: dict[str, Any] = {"per_view": True, "level": 0.8, "seed": 2}
    if policy.reference is not None:
        options["audit"] = 0.3
    mine = score(policy, images, tmp_path / "mine.parquet", classifier=classifier, **options)
    theirs = score(file, images, tmp_path / "theirs.parquet", **options)
    rows = read_rows(tmp_path / "theirs.parquet")
    for expected, row in zip(read_rows(tmp_path / "mine.parquet"), rows, strict=True):
        assert list(row) == list(expected)
        for name, value in expected.items():
            assert row[name] == (value if name in EXACT or value is None else pytest.approx(value, abs=1e-5)), name
    assert {**theirs.to_dict(), "out": ""} == {**mine.to_dict(), "out": ""}
    assert str(theirs).replace("theirs", "mine") == str(mine)
    assert 0 < theirs.accepted < COUNT
    if "familiar" in kind:
        assert theirs.unfamiliar == sum(row["rejection"] == "unfamiliar" for row in rows) > 0
    if "adaptive" in kind:
        assert len({row["looks"] for row in rows}) > 1
        assert theirs.mean_looks < len(policy.views)


def test_an_open_file_is_the_same_as_its_path(exported: dict[str, Exported], tmp_path: Path) -> None:
    file, _, policy = exported["plain"]
    for given, name in ((str(file), "a"), (load_policy(file), "b")):
        score(given, make_images(COUNT), tmp_path / f"{name}.parquet", device="cpu")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    stored = json.loads(pq.read_schema(tmp_path / "a.parquet").metadata[b"secondlook.score"])
    assert stored["decider"] == compile_policy(load_policy(file)).described.digest
    assert stored["policy"] == json.loads(policy.model_dump_json())
    seen: list[Predictions] = []
    for kind in ("plain", "adaptive"):
        out = tmp_path / f"{kind}.csv"
        score(exported[kind].file, make_images(COUNT), out, on_first_predictions=seen.append, part_size=8)
        assert [(len(one), one.views.texts) for one in seen] == [(8, policy.views)], "those of the first chunk"


@pytest.fixture
def source(tmp_path: Path) -> str:
    images = make_images(COUNT, 20, seed=4)
    sizes: Sequence[Array] = [image if number % 3 else image[:, :18] for number, image in enumerate(images)]
    return save_images(tmp_path / "new", sizes, broken=[7])


def test_sizes_of_files_may_differ(
    resizing: Exported, source: str, tmp_path: Path, exported: dict[str, Exported]
) -> None:
    file, classifier, policy = resizing
    results, names, labels = [], [], []
    for name, given, model in (("mine", policy, classifier), ("theirs", file, None)):
        out = tmp_path / name
        out.mkdir()
        exports = [f"label-studio:{out / 'tasks.json'}", f"fiftyone:{out / 'labels.json'}"]
        sizes: dict[str, Any] = {"on_error": "skip", "part_size": 8, "batch_size": 5}
        review: dict[str, Any] = {"export_all": True, "rejected": out / "rejected", "exports": exports}
        results.append(score(given, source, out / "scores.jsonl", classifier=model, **sizes, **review))
        names.append(sorted(str(path.relative_to(out)) for path in out.rglob("*")))
        labels.append([row["label"] for row in read_rows(out / "scores.jsonl")])
    assert results[1].skipped == results[0].skipped
    assert len(results[1].skipped) == 1
    assert results[1].rejected == results[0].rejected > 3
    assert names[1] == names[0]
    assert labels[1] == labels[0]
    with pytest.raises(SourceError, match="007"):
        score(file, source, tmp_path / "failed.csv")
    with pytest.raises(DecisionError, match=r"000\.png.*20 x 18 x 3"):
        score(exported["plain"].file, source, tmp_path / "scores.csv", on_error="skip")


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of batches that files were run on; they are interrupted after the number at the start, once."""
    run, calls = ExportedFile._run, [10**6]

    def count(self: ExportedFile, batch: Array) -> Any:
        if len(calls) == calls[0]:
            calls[0] = 10**6
            raise KeyboardInterrupt
        calls.append(len(batch))
        return run(self, batch)

    monkeypatch.setattr(ExportedFile, "_run", count)
    return calls


@pytest.mark.parametrize("kind", ["plain", "adaptive"])
@pytest.mark.parametrize("at", [0, 1, 4, 12])
def test_interrupted_job_resumes_with_the_same_bytes(
    exported: dict[str, Exported], tmp_path: Path, interrupt: list[int], kind: str, at: int
) -> None:
    file, images = exported[kind].file, make_images(COUNT, seed=2)
    options: dict[str, Any] = {"part_size": 8, "batch_size": 4, "per_view": True}
    score(file, images, tmp_path / "whole.parquet", **options)
    interrupt[:] = [1 + at]
    with pytest.raises(KeyboardInterrupt):
        score(file, images, tmp_path / "scores.parquet", **options)
    finished = sum(interrupt[1:])
    del interrupt[1:]
    score(file, images, tmp_path / "scores.parquet", **options)
    assert (tmp_path / "scores.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()
    assert not list(tmp_path.glob("*.parts"))
    assert sum(interrupt[1:]) <= COUNT - finished + 16, "at most the chunk being written and the one before it are lost"


def test_chunks_of_other_files_are_not_used(
    exported: dict[str, Exported], tmp_path: Path, interrupt: list[int]
) -> None:
    images, (file, _, policy) = make_images(COUNT), exported["plain"]
    interrupt[:] = [3]
    with pytest.raises(KeyboardInterrupt):
        score(file, images, tmp_path / "scores.parquet", part_size=8)
    model = load_classifier(f"onnx:{write_network(tmp_path / 'other.onnx', seed=7)}?mean=.5&std=.25")
    other = export(tmp_path, model, policy, allow_mismatch=True)
    with pytest.raises(DecisionError, match="different classifier"):
        score(other.file, images, tmp_path / "scores.parquet", part_size=8)
    assert policy.certified
    assert score(other.file, images, tmp_path / "others.parquet").guarantee is None


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"classifier": "onnx:n.onnx"}, "classifier="),
        ({"part_size": 0}, "part_size"),
        ({"device": "cuda:99"}, "cuda:99"),
        ({"engine": PickledEngine()}, "engine="),
        ({"out": "d.onnx"}, r"d\.onnx"),
    ],
)
def test_arguments_that_do_not_go_with_a_file(tmp_path: Path, options: dict[str, Any], told: str) -> None:
    file = write_decider(tmp_path / "d.onnx")
    given = {"out": "scores.csv", **options}
    with pytest.raises(sl.SecondLookError, match=told):
        score(load_policy(file) if "out" in options else file, COLORS, tmp_path / given.pop("out"), **given)
