"""Jobs on an engine, and folders of parts: the same rows as in this process, each once, whatever is interrupted."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from secondlook.arrays import Array
from secondlook.classifiers import Classifier, load_classifier
from secondlook.decisions import Review
from secondlook.errors import DecisionError, PredictionsError, SourceError
from secondlook.policies import Policy
from secondlook.predictions import Execution
from tests.conftest import PickledEngine
from tests.policy_maker import attach, score

IMAGES = 30
BROKEN = "Dark/Shot 3.PNG"


def bright(batch: Any) -> Any:
    """Return the probabilities of dark and bright images; a function of a module can be pickled."""
    import numpy as np

    light = 1 / (1 + np.exp(-(batch.mean(axis=(1, 2, 3)) - 128.0) / 12.0))
    return np.stack([1 - light, light], axis=1)


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    return load_classifier(bright, name="brightness")


@pytest.fixture
def broken_files(image_files: str) -> str:
    """The spec of 30 files, one of which is broken."""
    (Path(image_files.removeprefix("folder:")) / BROKEN).write_bytes(b"broken")
    return image_files


def read_rows(path: Path) -> pa.Table:
    return pq.read_table(path).replace_schema_metadata(None)


@pytest.mark.parametrize("looking", ["all looks", "adaptive"])
@pytest.mark.parametrize("batch_size", [1, 4, "auto"])
def test_rows_are_those_of_this_process(
    review_policy: Policy,
    make_adaptive_rule: Callable[..., Policy],
    classifier: Classifier,
    broken_files: str,
    pickled_engine: PickledEngine,
    tmp_path: Path,
    looking: str,
    batch_size: Any,
) -> None:
    policy = review_policy
    if looking == "adaptive":
        rule = make_adaptive_rule()
        assert rule.schedule is not None
        policy = attach(rule, classifier=classifier, views=rule.schedule.views)
    options: dict[str, Any] = {"classifier": classifier, "progress": False, "per_view": True}
    local = score(policy, broken_files, tmp_path / "local.parquet", **options, execution=Execution(on_error="skip"))
    summary = score(
        policy,
        broken_files,
        tmp_path / "engine.parquet",
        **options,
        execution=Execution(engine=pickled_engine, batch_size=batch_size),
    )
    rows = read_rows(tmp_path / "engine.parquet")
    assert rows.equals(read_rows(tmp_path / "local.parquet"))
    assert sorted(pickled_engine.numbers) == [0, 1, 2, 3, 4]
    reasons = dict(zip(rows["id"].to_pylist(), rows["reason"].to_pylist(), strict=True))
    assert len(reasons) == IMAGES
    assert [id_ for id_, reason in reasons.items() if reason] == [BROKEN]
    assert (summary.accepted, summary.rejected, summary.looks) == (local.accepted, local.rejected, local.looks)
    assert summary.skipped == local.skipped == ((BROKEN, reasons[BROKEN]),)


def test_an_image_that_cannot_be_read_may_end_the_job(
    review_policy: Policy, classifier: Classifier, broken_files: str, pickled_engine: PickledEngine, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"classifier": classifier, "progress": False, "engine": pickled_engine}
    with pytest.raises(SourceError, match="Shot 3"):
        score(review_policy, broken_files, tmp_path / "scores.csv", **options, execution=Execution(on_error="fail"))
    with pytest.raises(SourceError, match="Shot 3"):
        score(review_policy, f"{broken_files}?on_error=fail", tmp_path / "scores.csv", **options)


def test_summary_tells_what_workers_did(
    review_policy: Policy, classifier: Classifier, images: Array, pickled_engine: PickledEngine, tmp_path: Path
) -> None:
    out = tmp_path / "scores"
    summary = score(
        review_policy,
        images,
        out,
        classifier=classifier,
        execution=Execution(engine=pickled_engine, part_size=10, progress=False),
    )
    content = json.loads(json.dumps(summary.to_dict()))
    assert (content["out"], content["computed"]) == (str(out), IMAGES)
    assert content["images_per_second"] == pytest.approx(IMAGES / content["seconds"])
    assert content["workers"] == [
        {
            "name": "this process",
            "images": IMAGES,
            "chunks": 3,
            "seconds": pytest.approx(0.3),
            "images_per_second": pytest.approx(IMAGES / 0.3),
        }
    ]
    assert "this process: 30 images, 100 images/s" in str(summary)
    again = score(review_policy, images, out, classifier=classifier, engine=pickled_engine)
    assert (again.accepted, again.looks) == (summary.accepted, summary.looks)
    assert again.to_dict()["computed"] == 0
    assert "nothing" in str(again)
    assert "workers" not in score(review_policy, images, tmp_path / "local.csv", classifier=classifier).to_dict()


class Job:
    """A job whose parts go to a folder or to a URL."""

    def __init__(self, place: str | Path, read: Callable[[], pa.Table], list_names: Callable[[], list[str]]) -> None:
        self.place, self.read, self.list_names = place, read, list_names


@pytest.fixture(params=["folder", "s3"])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Job:
    if request.param == "folder":
        folder = tmp_path / "scores"
        return Job(folder, lambda: read_rows(folder), lambda: sorted(path.name for path in folder.iterdir()))
    system = request.getfixturevalue("s3")("results")
    from pyarrow.fs import FileSelector

    def list_names() -> list[str]:
        return sorted(info.base_name for info in system.get_file_info(FileSelector("results/of/today")))

    return Job(
        "s3://results/of/today",
        lambda: pq.read_table("results/of/today", filesystem=system).replace_schema_metadata(None),
        list_names,
    )


@pytest.mark.parametrize("kills", [1, 3])
def test_killed_job_resumes_with_the_parts_that_are_missing(
    review_policy: Policy,
    classifier: Classifier,
    images: Array,
    pickled_engine: PickledEngine,
    tmp_path: Path,
    job: Job,
    kills: int,
) -> None:
    options: dict[str, Any] = {"classifier": classifier, "progress": False}
    score(review_policy, images, tmp_path / "local.parquet", **options)
    for kill in range(kills):
        pickled_engine.dies_after = 1 + kill
        with pytest.raises(KeyboardInterrupt):
            score(review_policy, images, job.place, **options, execution=Execution(engine=pickled_engine))
        # What is there can be read while the job goes on.
        assert len(job.read()) >= 2 + 7 * kill
        assert sum(name.startswith("part-") for name in job.list_names()) == 1 + kill
    pickled_engine.dies_after = None
    summary = score(review_policy, images, job.place, **options, execution=Execution(engine=pickled_engine))
    assert str(summary.out) == str(job.place)
    assert sorted(pickled_engine.numbers) == [0, 1, 2, 3, 4], "no part is computed twice"
    assert job.read().equals(read_rows(tmp_path / "local.parquet"))
    names = job.list_names()
    assert names[0] == "_job.json"
    assert [name[:11] for name in names[1:]] == [f"part-00000{number}" for number in range(5)]
    # The local engine takes the parts of the other for its own.
    assert score(review_policy, images, job.place, **options).accepted == summary.accepted
    assert job.list_names() == names


def test_parts_of_another_job_are_replaced_only_if_asked(
    review_policy: Policy, classifier: Classifier, images: Array, pickled_engine: PickledEngine, job: Job
) -> None:
    options: dict[str, Any] = {"classifier": classifier, "progress": False, "engine": pickled_engine}
    score(review_policy, images, job.place, **options)
    names = job.list_names()
    stricter = attach(Policy(threshold=0.99, method="mean"), classifier=classifier, views=review_policy.views)
    with pytest.raises(DecisionError, match="policy"):
        score(stricter, images, job.place, **options)
    assert [name for name in job.list_names() if name != "_lock"] == names
    score(stricter, images, job.place, overwrite=True, **options)
    assert len(job.list_names()) == len(names)
    assert job.list_names() != names
    assert job.read()["accept"].to_pylist() == (job.read()["confidence"].to_numpy() >= 0.99).tolist()


def test_every_part_stores_the_policy(
    review_policy: Policy, classifier: Classifier, images: Array, pickled_engine: PickledEngine, tmp_path: Path
) -> None:
    score(review_policy, images, tmp_path / "scores", classifier=classifier, engine=pickled_engine)
    for path in (tmp_path / "scores").glob("*.parquet"):
        content = json.loads(pq.read_schema(path).metadata[b"secondlook.score"])
        assert content["policy"]["views"] == list(review_policy.views)


def test_rejected_images_of_a_folder_of_parts(
    review_policy: Policy, classifier: Classifier, broken_files: str, pickled_engine: PickledEngine, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"classifier": classifier, "progress": False}
    for name, engine in (("local.csv", None), ("scores", pickled_engine)):
        score(
            review_policy,
            broken_files,
            tmp_path / name,
            **options,
            review=Review(
                rejected=tmp_path / f"rejected-{name}", exports=[f"label-studio:{tmp_path / f'{name}.json'}"]
            ),
            execution=Execution(on_error="skip", engine=engine),
        )
    local = {path.name: path.read_bytes() for path in (tmp_path / "rejected-local.csv").rglob("*") if path.is_file()}
    folder = {path.name: path.read_bytes() for path in (tmp_path / "rejected-scores").rglob("*") if path.is_file()}
    assert local == folder
    assert len(local) > 5
    assert (tmp_path / "local.csv.json").read_bytes() == (tmp_path / "scores.json").read_bytes()
    assert not any(path.name.startswith("_handed") for path in (tmp_path / "scores").iterdir())


def test_folders_that_cannot_be_used(
    review_policy: Policy, classifier: Classifier, images: Array, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"classifier": classifier, "progress": False}
    (tmp_path / "diary").mkdir()
    (tmp_path / "diary" / "monday.txt").touch()
    with pytest.raises(DecisionError, match="diary"):
        score(review_policy, images, tmp_path / "diary", overwrite=True, **options)
    assert [path.name for path in (tmp_path / "diary").iterdir() if path.name != "_lock"] == ["monday.txt"]
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "no" / "such", "s3://bucket/scores.parquet", "nothing://at/all"):
        with pytest.raises(DecisionError, match=str(place)):
            score(review_policy, images, place, **options)
    with pytest.raises(PredictionsError, match="part_size"):
        score(review_policy, images, tmp_path / "scores", **options, part_size=0)
    assert not (tmp_path / "scores").exists()


def test_vanished_bucket_ends_the_job_with_one_sentence(
    review_policy: Policy,
    classifier: Classifier,
    images: Array,
    pickled_engine: PickledEngine,
    s3: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system = s3("shortlived")
    compute = pickled_engine.compute_chunks

    def vanish(*arguments: Any) -> Any:
        for chunk in compute(*arguments):
            yield chunk
            system.delete_dir("shortlived")

    monkeypatch.setattr(pickled_engine, "compute_chunks", vanish)
    with pytest.raises(DecisionError, match="shortlived"):
        score(review_policy, images, "s3://shortlived/x", classifier=classifier, engine=pickled_engine)


def test_model_that_is_gone_on_the_other_machine(
    review_policy: Policy, images: Array, pickled_engine: PickledEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from secondlook.errors import ClassifierError
    from tests.classifiers.test_pickling import write_model

    write_model(tmp_path / "model.onnx", 0)
    model = load_classifier(f"onnx:{tmp_path / 'model.onnx'}", resize=(8, 8))
    policy = attach(Policy(threshold=0.9, method="mean"), classifier=model, views=("identity", "hflip"))
    compute = pickled_engine.compute_chunks

    def remove(*arguments: Any) -> Any:
        shutil.move(tmp_path / "model.onnx", tmp_path / "moved.onnx")
        yield from compute(*arguments)

    monkeypatch.setattr(pickled_engine, "compute_chunks", remove)
    with pytest.raises(ClassifierError, match=r"model\.onnx"):
        score(policy, images, tmp_path / "scores", classifier=model, engine=pickled_engine)
    assert not (tmp_path / "scores").exists()


@pytest.mark.usefixtures("cpu_as_gpus")
def test_workers_put_the_classifier_on_their_own_device(
    images: Array, pickled_engine: PickledEngine, tmp_path: Path
) -> None:
    """The driver classifies one image on its CPU, which must not bind workers with GPUs to theirs."""
    import torch

    model = load_classifier(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(108, 2)), output="logits")
    policy = attach(Policy(threshold=0.5, method="mean"), classifier=model, views=("identity", "hflip"))
    score(
        policy, images, tmp_path / "local.parquet", classifier=model, execution=Execution(device="cpu", progress=False)
    )
    score(policy, images, tmp_path / "scores", classifier=model, engine=pickled_engine)
    load = pickled_engine.loads[0]
    assert isinstance(load, partial)
    assert load.keywords["execution"].device == "auto"
    local, found = read_rows(tmp_path / "local.parquet"), read_rows(tmp_path / "scores")
    assert found["label"].equals(local["label"])
    assert found["confidence"].to_pylist() == pytest.approx(local["confidence"].to_pylist(), abs=1e-6)
