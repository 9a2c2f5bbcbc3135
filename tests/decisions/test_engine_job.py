"""Jobs on an engine, and folders of parts: the same rows as in this process, each once, whatever is interrupted."""

import json
import shutil
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from secondlook.arrays import Array
from secondlook.classifiers import Classifier, load_classifier
from secondlook.decisions import Review
from secondlook.errors import ClassifierError, DecisionError, PredictionsError, SourceError
from secondlook.policies import Policy
from secondlook.predictions import ComputedChunk, Execution
from tests.classifiers.test_pickling import write_model
from tests.conftest import PickledEngine
from tests.decisions.conftest import make_adaptive_rule, make_policy, read_files
from tests.policy_maker import score

IMAGES = 30
BROKEN = "Dark/Shot 3.PNG"

Score = Callable[..., Any]


class EventfulEngine(PickledEngine):
    """Lets something happen before each chunk."""

    def __init__(self, happen: Callable[[], object]) -> None:
        super().__init__()
        self.happen = happen

    def compute_chunks(self, *arguments: Any) -> Generator[ComputedChunk, None, None]:
        self.happen()
        for chunk in super().compute_chunks(*arguments):
            yield chunk
            self.happen()


@pytest.fixture
def score_into(policy: Policy, classifier: Classifier, images: Array) -> Score:

    def run(out: str | Path, data: Any = images, policy: Policy = policy, **options: Any) -> Any:
        return score(policy, data, out, **{"classifier": classifier, "progress": False, **options})

    return run


@pytest.fixture
def broken_files(image_files: str) -> str:
    (Path(image_files.removeprefix("folder:")) / BROKEN).write_bytes(b"broken")
    return image_files


def read_table(path: Path) -> pa.Table:
    return pq.read_table(path).replace_schema_metadata(None)


@pytest.mark.parametrize("rule", [None, make_adaptive_rule()])
@pytest.mark.parametrize("batch_size", [1, 4, "auto"])
def test_rows_of_workers(
    score_into: Score,
    classifier: Classifier,
    broken_files: str,
    pickled_engine: PickledEngine,
    tmp_path: Path,
    rule: Any,
    batch_size: Any,
) -> None:
    policy = make_policy(classifier, rule=rule, threshold=0.95)
    options: dict[str, Any] = {"data": broken_files, "policy": policy, "per_view": True}
    local = score_into(tmp_path / "local.parquet", **options, on_error="skip")
    summary = score_into(tmp_path / "engine.parquet", **options, engine=pickled_engine, batch_size=batch_size)
    rows = read_table(tmp_path / "engine.parquet")
    assert rows.equals(read_table(tmp_path / "local.parquet"))
    assert sorted(pickled_engine.numbers) == [0, 1, 2, 3, 4]
    reasons = dict(zip(rows["id"].to_pylist(), rows["reason"].to_pylist(), strict=True))
    assert len(reasons) == IMAGES
    assert [id_ for id_, reason in reasons.items() if reason] == [BROKEN]
    assert (summary.accepted, summary.rejected, summary.looks) == (local.accepted, local.rejected, local.looks)
    assert summary.skipped == local.skipped == ((BROKEN, reasons[BROKEN]),)


def test_summary_lists_the_work_of_workers_and_folders_of_other_files_are_rejected(
    score_into: Score, pickled_engine: PickledEngine, tmp_path: Path
) -> None:
    out = tmp_path / "scores"
    summary = score_into(out, engine=pickled_engine, part_size=10)
    content = json.loads(json.dumps(summary.to_dict()))
    assert (content["out"], content["computed"]) == (str(out), IMAGES)
    assert content["images_per_second"] == pytest.approx(IMAGES / content["seconds"])
    (worker,) = content["workers"]
    assert (worker["name"], worker["images"], worker["chunks"]) == ("this process", IMAGES, 3)
    assert worker["seconds"] == pytest.approx(0.3)
    assert worker["images_per_second"] == pytest.approx(IMAGES / 0.3)
    assert "this process: 30 images, 100 images/s" in str(summary)
    again = score_into(out, engine=pickled_engine)
    assert (again.accepted, again.looks) == (summary.accepted, summary.looks)
    assert again.to_dict()["computed"] == 0
    assert "nothing" in str(again)
    assert "workers" not in score_into(tmp_path / "local.csv").to_dict()
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "no" / "such", "s3://bucket/scores.parquet", "nothing://at/all"):
        with pytest.raises(DecisionError, match=str(place)):
            score_into(place)
    with pytest.raises(PredictionsError, match="part_size"):
        score_into(tmp_path / "others", part_size=0)
    assert not (tmp_path / "others").exists()


class Job(NamedTuple):
    """A job whose parts go to a folder or to a URL."""

    place: str | Path
    read: Callable[[], pa.Table]
    list_names: Callable[[], list[str]]


@pytest.fixture(params=["folder", "s3"])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Job:
    if request.param == "folder":
        folder = tmp_path / "scores"
        return Job(folder, lambda: read_table(folder), lambda: sorted(path.name for path in folder.iterdir()))
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
    score_into: Score, policy: Policy, pickled_engine: PickledEngine, tmp_path: Path, job: Job, kills: int
) -> None:
    score_into(tmp_path / "local.parquet")
    for kill in range(kills):
        pickled_engine.dies_after = 1 + kill
        with pytest.raises(KeyboardInterrupt):
            score_into(job.place, engine=pickled_engine)
        # What is there can be read while the job goes on.
        assert len(job.read()) >= 2 + 7 * kill
        assert sum(name.startswith("part-") for name in job.list_names()) == 1 + kill
    pickled_engine.dies_after = None
    summary = score_into(job.place, engine=pickled_engine)
    assert str(summary.out) == str(job.place)
    assert sorted(pickled_engine.numbers) == [0, 1, 2, 3, 4], "no part is computed twice"
    assert job.read().equals(read_table(tmp_path / "local.parquet"))
    names = job.list_names()
    assert names[0] == "_job.json"
    assert [name[:11] for name in names[1:]] == [f"part-00000{number}" for number in range(5)]
    # The local engine takes the parts of the other for its own.
    assert score_into(job.place).accepted == summary.accepted
    assert job.list_names() == names
    if isinstance(job.place, Path):
        for path in job.place.glob("*.parquet"):
            content = json.loads(pq.read_schema(path).metadata[b"secondlook.score"])
            assert content["policy"]["views"] == list(policy.views)


def test_parts_of_another_job(
    score_into: Score, classifier: Classifier, pickled_engine: PickledEngine, job: Job
) -> None:
    score_into(job.place, engine=pickled_engine)
    names, stricter = job.list_names(), make_policy(classifier, threshold=0.99)
    with pytest.raises(DecisionError, match="policy"):
        score_into(job.place, policy=stricter, engine=pickled_engine)
    assert [name for name in job.list_names() if name != "_lock"] == names
    score_into(job.place, policy=stricter, engine=pickled_engine, overwrite=True)
    assert len(job.list_names()) == len(names)
    assert job.list_names() != names
    assert job.read()["accept"].to_pylist() == (job.read()["confidence"].to_numpy() >= 0.99).tolist()


def test_rejected_images_of_parts(
    score_into: Score, broken_files: str, pickled_engine: PickledEngine, tmp_path: Path
) -> None:
    for name, engine in (("local.csv", None), ("scores", pickled_engine)):
        exports = [f"label-studio:{tmp_path / name}.json"]
        review = Review(rejected=tmp_path / f"rejected-{name}", exports=exports)
        score_into(tmp_path / name, broken_files, review=review, on_error="skip", engine=engine)
    assert read_files(tmp_path / "rejected-local.csv") == read_files(tmp_path / "rejected-scores")
    assert len(read_files(tmp_path / "rejected-scores")) > 5
    assert (tmp_path / "local.csv.json").read_bytes() == (tmp_path / "scores.json").read_bytes()
    assert not any(path.name.startswith("_handed") for path in (tmp_path / "scores").iterdir())
    for data, options in ((broken_files, {"on_error": "fail"}), (f"{broken_files}?on_error=fail", {})):
        with pytest.raises(SourceError, match="Shot 3"):
            score_into(tmp_path / "scores.csv", data, engine=pickled_engine, **options)


def test_buckets_and_models_that_vanish_end_the_job(
    score_into: Score, s3: Callable[[str], Any], tmp_path: Path
) -> None:
    system = s3("shortlived")
    engine = EventfulEngine(lambda: engine.numbers and system.delete_dir("shortlived"))
    with pytest.raises(DecisionError, match="shortlived"):
        score_into("s3://shortlived/x", engine=engine)
    write_model(tmp_path / "model.onnx", 0)
    model = load_classifier(f"onnx:{tmp_path / 'model.onnx'}", resize=(8, 8))
    mover = EventfulEngine(lambda: shutil.move(tmp_path / "model.onnx", tmp_path / "moved.onnx"))
    with pytest.raises(ClassifierError, match=r"model\.onnx"):
        score_into(tmp_path / "scores", policy=make_policy(model), classifier=model, engine=mover)
    assert not (tmp_path / "scores").exists()


@pytest.mark.usefixtures("cpu_as_gpus")
def test_workers_classify_on_their_own_device(score_into: Score, pickled_engine: PickledEngine, tmp_path: Path) -> None:
    """The driver classifies one image on its CPU, which must not bind workers with GPUs to theirs."""
    import torch

    model = load_classifier(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(108, 2)), output="logits")
    options: dict[str, Any] = {"policy": make_policy(model), "classifier": model}
    score_into(tmp_path / "local.parquet", **options, execution=Execution(device="cpu"))
    score_into(tmp_path / "scores", **options, engine=pickled_engine)
    load = pickled_engine.loads[0]
    assert isinstance(load, partial)
    assert load.keywords["execution"].device == "auto"
    local, found = read_table(tmp_path / "local.parquet"), read_table(tmp_path / "scores")
    assert found["label"].equals(local["label"])
    assert found["confidence"].to_pylist() == pytest.approx(local["confidence"].to_pylist(), abs=1e-6)
