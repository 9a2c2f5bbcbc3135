"""Scoring on devices, with the CPU as two GPUs: the rows of the host, chunks in turn, ensembles, resumed jobs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from secondlook.arrays import Array
from secondlook.classifiers import Classifier, Ensemble, load_classifier
from secondlook.decisions import Looking, LookStream, Plan, load_policy
from secondlook.decisions.policy_classifier import MemberOutputs, ResolvedClassifier
from secondlook.errors import ClassifierError
from secondlook.policies import Policy
from secondlook.predictions import Execution
from secondlook.sources import object_sources
from tests.decisions.test_look_stream import run_stream
from tests.policy_maker import attach, score

torch = pytest.importorskip("torch")

from secondlook.classifiers.device import DeviceWorkers  # noqa: E402 - imports torch

MakeRule = Callable[..., Policy]
VIEWS = ("identity", "hflip", "shift:1,0", "shift:0,1", "vflip")


class Colors(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Logits of the three colors; counts its batches, and stops the job at one of them."""

    def __init__(self, sharpness: float = 12.0) -> None:
        super().__init__()
        self.sharpness = torch.nn.Parameter(torch.tensor(sharpness))
        self.batches: list[int] = []
        self.stops_at: int | None = None

    def forward(self, inputs: Any) -> Any:
        if len(self.batches) == self.stops_at:
            raise KeyboardInterrupt
        self.batches.append(len(inputs))
        weights = torch.linspace(0.2, 1.8, inputs.shape[3])  # so that views differ
        return self.sharpness * (inputs * weights).mean(dim=(2, 3))

    def __deepcopy__(self, memo: Any) -> "Colors":
        return self


@pytest.fixture
def pixels() -> Array:
    rng = np.random.default_rng(0)
    colors = rng.uniform(60, 180, (90, 1, 1, 3))
    return np.clip(rng.normal(colors, 60, (90, 6, 5, 3)), 0, 255).astype(np.uint8)


def load_on_host(module: Colors) -> Classifier:
    """Return the same network as a function, which gets its views from the host."""

    def classify(batch: Any) -> Any:
        inputs = torch.from_numpy(np.ascontiguousarray(batch.transpose(0, 3, 1, 2), dtype=np.float32) / 255)
        with torch.no_grad():
            return module(inputs).numpy()

    return load_classifier(classify, output="logits", name="colors")


def load_on_gpus(module: Colors) -> Classifier:
    return load_classifier(module, output="logits", name="colors").on_device("cuda")


def make_policy(rule: Policy, classifier: Classifier) -> Policy:
    views = VIEWS if rule.schedule is None else rule.schedule.views
    return attach(rule, classifier=classifier, views=views, made="then")


def score_images(rule: Policy, classifier: Classifier, pixels: Array, out: Path) -> dict[str, list[Any]]:
    policy = make_policy(rule, classifier)
    score(policy, pixels, out, classifier=classifier, per_view=True, execution=Execution(batch_size=16, progress=False))
    return dict(pq.read_table(out).to_pydict())


def assert_same_rows(found: dict[str, list[Any]], expected: dict[str, list[Any]]) -> None:
    assert found.keys() == expected.keys()
    for column, values in found.items():
        if isinstance(values[0], float):
            np.testing.assert_allclose(
                np.array(values, dtype=float), np.array(expected[column], dtype=float), atol=1e-5, err_msg=column
            )
        elif column != "view_probabilities":
            assert values == expected[column], column


@pytest.fixture(params=[7, 16, 4096])
def rows_per_chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(Plan, "choose_chunk_rows", lambda *_: request.param)
    return int(request.param)


@pytest.mark.usefixtures("cpu_as_gpus", "rows_per_chunk")
@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("sharpness", [(12.0,), (12.0, 8.0)], ids=["one", "ensemble"])
def test_rows_are_those_of_the_host(
    sharpness: tuple[float, ...], adaptive: bool, make_adaptive_rule: MakeRule, pixels: Array, tmp_path: Path
) -> None:
    rule = make_adaptive_rule() if adaptive else Policy(threshold=0.6, method="mean")
    modules = [Colors(each) for each in sharpness]
    rows = []
    for name, load in (("host", load_on_host), ("gpus", load_on_gpus)):
        members = [load(module) for module in modules]
        classifier = members[0] if len(members) == 1 else Ensemble(members, name="pair")
        assert MemberOutputs(classifier).is_accelerated is (name == "gpus")
        rows.append(score_images(rule, classifier, pixels, tmp_path / f"{name}.parquet"))
    assert_same_rows(rows[1], rows[0])
    if adaptive:
        assert len(set(rows[1]["looks"])) > 2


@pytest.mark.usefixtures("cpu_as_gpus")
def test_two_chunks_take_turns(
    make_adaptive_rule: MakeRule, pixels: Array, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the host finds the open images of one chunk, the GPUs have the next look at the other."""
    monkeypatch.setattr(Plan, "choose_chunk_rows", lambda *_: 30)
    looked: list[Looking] = []
    started: list[int] = []
    run = Looking.run

    def record(self: Looking) -> Any:
        if self not in looked:
            looked.append(self)
        for count in run(self):
            if count == 0:  # the GPUs have the looks of a step
                started.append(looked.index(self))
            yield count

    monkeypatch.setattr(Looking, "run", record)
    score_images(make_adaptive_rule(), load_on_gpus(Colors()), pixels, tmp_path / "scores.parquet")
    assert started[:6] == [0, 1, 0, 1, 0, 1]
    assert set(started) == {0, 1, 2}


@pytest.mark.usefixtures("cpu_as_gpus")
@pytest.mark.parametrize("stops_at", [3, 20, 40])
def test_interrupted_job_resumes_with_the_same_rows(
    stops_at: int, make_adaptive_rule: MakeRule, pixels: Array, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Plan, "choose_chunk_rows", lambda *_: 10)
    module = Colors()
    classifier, rule = load_on_gpus(module), make_adaptive_rule()
    expected = score_images(rule, classifier, pixels, tmp_path / "whole.parquet")
    n_batches = len(module.batches)
    module.batches.clear()
    module.stops_at = stops_at
    with pytest.raises(KeyboardInterrupt):
        score_images(rule, classifier, pixels, tmp_path / "resumed.parquet")
    module.batches.clear()
    module.stops_at = None
    assert score_images(rule, classifier, pixels, tmp_path / "resumed.parquet") == expected
    assert len(module.batches) < n_batches or stops_at == 3, "what was saved is not computed again"


@pytest.mark.usefixtures("cpu_as_gpus")
@pytest.mark.parametrize("adaptive", [False, True])
def test_single_decision_is_that_of_score(
    adaptive: bool, make_adaptive_rule: MakeRule, pixels: Array, tmp_path: Path
) -> None:
    rule, classifier = (
        make_adaptive_rule() if adaptive else Policy(threshold=0.6, method="mean"),
        load_on_gpus(Colors()),
    )
    rows = score_images(rule, classifier, pixels[:5], tmp_path / "scores.parquet")
    make_policy(rule, classifier).save(tmp_path / "policy.json")
    policy = load_policy(tmp_path / "policy.json", classifier=classifier, execution=Execution(device="cuda"))
    for position, image in enumerate(pixels[:5]):
        decision = policy.decide(image)
        assert decision.accept == rows["accept"][position]
        assert decision.looks == rows["looks"][position]
        assert decision.confidence == pytest.approx(rows["confidence"][position], abs=1e-5)


@pytest.mark.usefixtures("cpu_as_gpus")
def test_a_stream_of_images_is_looked_at_as_on_the_host(make_adaptive_rule: MakeRule, pixels: Array) -> None:
    """Images join while others are open, and each is looked at as often."""
    rule, looked = make_adaptive_rule(), []
    for classifier in (load_on_host(Colors()), load_on_gpus(Colors())):
        plan = Plan(make_policy(rule, classifier), ResolvedClassifier(classifier, None))
        outputs, failed = run_stream(LookStream(plan), list(pixels[:20]), [8, 7, 5])
        assert not failed
        looked.append(outputs)
    assert {key: len(one) for key, one in looked[0].items()} == {key: len(one) for key, one in looked[1].items()}
    assert len({len(one) for one in looked[1].values()}) > 2


def test_device_is_checked_first(tmp_path: Path) -> None:
    with pytest.raises(ClassifierError, match="device='gpu' is unknown"):
        load_policy(tmp_path / "missing.json", execution=Execution(device="gpu"))
    with pytest.raises(ClassifierError, match="device='gpu' is unknown"):
        score(tmp_path / "missing.json", "folder:missing", tmp_path / "out.parquet", execution=Execution(device="gpu"))


@pytest.mark.usefixtures("cpu_as_gpus")
@pytest.mark.parametrize("adaptive", [False, True])
def test_tensors_on_a_device_stay_there(
    adaptive: bool, make_adaptive_rule: MakeRule, pixels: Array, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule, classifier = (
        make_adaptive_rule() if adaptive else Policy(threshold=0.6, method="mean"),
        load_on_gpus(Colors()),
    )
    expected = score_images(rule, classifier, pixels, tmp_path / "host.parquet")
    monkeypatch.setattr(object_sources, "is_on_accelerator", lambda _: True)
    uploaded: list[type] = []
    upload = DeviceWorkers.upload

    def record(workers: Any, images: Any) -> Any:
        uploaded.append(type(images))
        return upload(workers, images)

    monkeypatch.setattr(DeviceWorkers, "upload", record)
    tensor = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    found = score_images(rule, classifier, tensor, tmp_path / "device.parquet")
    assert found == expected
    assert uploaded[0] is np.ndarray, "one image, to find the number of classes"
    assert set(uploaded[1:]) == {torch.Tensor}


@pytest.mark.usefixtures("cpu_as_gpus")
@pytest.mark.parametrize("rows", [(20, 7), (7, 20)], ids=["from GPUs to the host", "from the host to GPUs"])
def test_job_keeps_the_size_of_its_chunks(
    rows: tuple[int, int], make_adaptive_rule: MakeRule, pixels: Array, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks are larger on GPUs, but a job that was begun elsewhere goes on as it was begun."""
    module, rule = Colors(), make_adaptive_rule()
    classifier, out = load_on_gpus(module), tmp_path / "scores.parquet"
    expected = score_images(rule, classifier, pixels, tmp_path / "whole.parquet")
    module.batches.clear()
    module.stops_at = 40
    monkeypatch.setattr(Plan, "choose_chunk_rows", lambda *_: rows[0])
    with pytest.raises(KeyboardInterrupt):
        score_images(rule, classifier, pixels, out)
    module.stops_at = None
    monkeypatch.setattr(Plan, "choose_chunk_rows", lambda *_: rows[1])
    saved = json.loads(out.with_name("scores.parquet.parts").joinpath("_job.json").read_text())
    assert saved["rows"] == rows[0]
    assert score_images(rule, classifier, pixels, out) == expected
