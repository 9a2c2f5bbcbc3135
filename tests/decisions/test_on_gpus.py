"""Scoring on devices, with the CPU as two GPUs: the rows of the host, chunks in turn, ensembles, resumed jobs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from secondlook.arrays import Array
from secondlook.classifiers import Classifier, Ensemble, load_classifier
from secondlook.decisions import LookStream, load_policy
from secondlook.decisions.looking import Looking
from secondlook.policies import Policy
from secondlook.predictions import Execution
from secondlook.sources import object_sources
from tests.decisions.conftest import compile_plan, make_adaptive_rule, make_policy
from tests.decisions.test_looking import run_stream
from tests.policy_maker import score

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("cpu_as_gpus")

VIEWS = "identity hflip shift:1,0 shift:0,1 vflip"
RULES = {"all looks": Policy(threshold=0.6, method="mean"), "adaptive": make_adaptive_rule()}


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


def score_images(
    rule: Policy, classifier: Classifier, pixels: Any, out: Path, part_size: int | None = None
) -> dict[str, list[Any]]:
    policy = make_policy(classifier, VIEWS, rule)
    execution = Execution(batch_size=16, part_size=part_size, progress=False)
    score(policy, pixels, out, classifier=classifier, per_view=True, execution=execution)
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


@pytest.mark.parametrize("part_size", [7, 16, 4096])
@pytest.mark.parametrize("looking", RULES)
@pytest.mark.parametrize("sharpness", [(12.0,), (12.0, 8.0)], ids=["one", "ensemble"])
def test_rows_are_those_of_the_host(
    sharpness: tuple[float, ...], looking: str, part_size: int, pixels: Array, tmp_path: Path
) -> None:
    modules = [Colors(each) for each in sharpness]
    rows = []
    for name, load in (("host", load_on_host), ("gpus", load_on_gpus)):
        members = [load(module) for module in modules]
        classifier = members[0] if len(members) == 1 else Ensemble(members, name="pair")
        plan = compile_plan(make_policy(classifier, VIEWS, RULES[looking]), classifier)
        assert plan.classifier.is_accelerated is (name == "gpus")
        rows.append(score_images(RULES[looking], classifier, pixels, tmp_path / f"{name}.parquet", part_size))
    assert_same_rows(rows[1], rows[0])
    assert len(set(rows[1]["looks"])) > 2 or looking == "all looks"


def test_two_chunks_take_turns_and_images_of_a_stream_join(
    pixels: Array, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the host finds the open images of one chunk, the GPUs have the next look at the other."""
    looked: list[Looking] = []
    started: list[int] = []
    run = Looking.run

    def record(self: Looking) -> Any:
        looked.append(self)
        for count in run(self):
            if count == 0:  # the GPUs have the looks of a step
                started.append(looked.index(self))
            yield count

    monkeypatch.setattr(Looking, "run", record)
    score_images(RULES["adaptive"], load_on_gpus(Colors()), pixels, tmp_path / "scores.parquet", part_size=30)
    assert started[:6] == [0, 1, 0, 1, 0, 1]
    assert set(started) == {0, 1, 2}
    looks = []  # images join while others are open, and each is looked at as often as on the host
    for classifier in (load_on_host(Colors()), load_on_gpus(Colors())):
        plan = compile_plan(make_policy(classifier, rule=RULES["adaptive"]), classifier)
        outputs, failed = run_stream(LookStream(plan), pixels[:20], [8, 7, 5])
        assert not failed
        looks.append({key: len(one) for key, one in outputs.items()})
    assert looks[0] == looks[1]
    assert len(set(looks[1].values())) > 2


@pytest.mark.parametrize(
    ("stops_at", "part_size", "resumed_with"), [(3, 10, 10), (20, 10, 10), (40, 10, 10), (40, 20, 7), (40, 7, 20)]
)
def test_interrupted_job_resumes(
    stops_at: int, part_size: int, resumed_with: int, pixels: Array, tmp_path: Path
) -> None:
    """Chunks are larger on GPUs, but a job that was begun elsewhere goes on as it was begun."""
    module, rule, out = Colors(), RULES["adaptive"], tmp_path / "scores.parquet"
    classifier = load_on_gpus(module)
    expected = score_images(rule, classifier, pixels, tmp_path / "whole.parquet", part_size)
    n_batches = len(module.batches)
    module.batches.clear()
    module.stops_at = stops_at
    with pytest.raises(KeyboardInterrupt):
        score_images(rule, classifier, pixels, out, part_size)
    module.batches.clear()
    module.stops_at = None
    if stops_at > 3:
        assert json.loads((tmp_path / "scores.parquet.parts" / "_job.json").read_text())["rows"] == part_size
    assert score_images(rule, classifier, pixels, out, resumed_with) == expected
    assert len(module.batches) < n_batches or stops_at == 3, "what was saved is not computed again"


@pytest.mark.parametrize("looking", RULES)
def test_tensors_and_single_decisions(
    looking: str, pixels: Array, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule, classifier = RULES[looking], load_on_gpus(Colors())
    expected = score_images(rule, classifier, pixels, tmp_path / "host.parquet")
    monkeypatch.setattr(object_sources, "is_on_accelerator", lambda _: True)
    uploaded: list[type] = []
    assert classifier.workers is not None
    workers, upload = type(classifier.workers), type(classifier.workers).upload

    def record(self: Any, images: Any) -> Any:
        uploaded.append(type(images))
        return upload(self, images)

    monkeypatch.setattr(workers, "upload", record)
    tensor = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    assert score_images(rule, classifier, tensor, tmp_path / "device.parquet") == expected
    assert uploaded[0] is np.ndarray, "one image, to find the number of classes"
    assert set(uploaded[1:]) == {torch.Tensor}
    rule, classifier = RULES[looking], load_on_gpus(Colors())
    rows = score_images(rule, classifier, pixels[:5], tmp_path / "scores.parquet")
    make_policy(classifier, VIEWS, rule).save(tmp_path / "policy.json")
    policy = load_policy(tmp_path / "policy.json", classifier=classifier, execution=Execution(device="cuda"))
    for position, image in enumerate(pixels[:5]):
        decision = policy.decide(image)
        assert (decision.accept, decision.looks) == (rows["accept"][position], rows["looks"][position])
        assert decision.confidence == pytest.approx(rows["confidence"][position], abs=1e-5)
