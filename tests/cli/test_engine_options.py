"""The options of engines, with an engine in this process that gets nothing but what was pickled."""

import math
from pathlib import Path
from typing import Any, Self

import pyarrow.parquet as pq
import pytest

from secondlook import cluster
from tests.cli.conftest import Here
from tests.conftest import PickledEngine

EVALUATE = (
    *("evaluate", "--model", "onnx:model.onnx", "--data", "folder:val/", "--views", "identity, shift:1,0"),
    *("--no-check", "--out"),
)


class OpenedEngine(PickledEngine):
    """Keeps the options that it was made with, and whether it was closed."""

    made: "list[OpenedEngine]"

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options, self.is_closed = options, False
        self.part_size = options.get("part_size", 20)
        self.made.append(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.is_closed = True


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[OpenedEngine]:
    """The engines that commands have made."""
    monkeypatch.setattr(OpenedEngine, "made", [], raising=False)
    monkeypatch.setattr(cluster, "RayEngine", OpenedEngine)
    return OpenedEngine.made


def test_score_passes_the_options_on(here: Here, run: Path, engines: list[OpenedEngine]) -> None:
    here.ok("calibrate", "--run", "run", "--risk", "0.05", "--delta", "0.1", "--out", "policy.json")
    given = ("score", "--policy", "policy.json", "--data", "folder:val/")
    here.ok(*given, "--out", "local.parquet")
    options = ("--address", "head:6379", "--workers", "3", "--cpus-per-worker", "2", "--gpus-per-worker", "0.5")
    done = here.ok(*given, "--out", "scores", "--engine", "ray", *options, "--part-size", "11", "--json")
    (engine,) = engines
    assert engine.options == {"address": "head:6379", "workers": 3, "cpus_per_worker": 2, "gpus_per_worker": 0.5}
    assert engine.is_closed
    assert done.json["out"] == "scores"
    assert done.json["workers"][0]["chunks"] == len(engine.numbers) == len(list(Path("scores").glob("part-*")))
    assert len(engine.numbers) == math.ceil(400 / 11)
    rows = pq.read_table("scores").replace_schema_metadata(None)
    assert rows.equals(pq.read_table("local.parquet").replace_schema_metadata(None))


def test_evaluate_gives_the_same_evaluation(here: Here, engines: list[OpenedEngine]) -> None:
    for out, options in {"local": "", "kept": "--engine ray", "two": "--engine ray --workers 2"}.items():
        here.ok(*EVALUATE, out, *options.split())
        assert Path(out, "evaluation.json").read_bytes() == Path("local/evaluation.json").read_bytes()
    assert [engine.options for engine in engines] == [{}, {"workers": 2}]


@pytest.mark.parametrize("option", ["--address head:1", "--workers 2", "--cpus-per-worker 1", "--gpus-per-worker 0"])
def test_options_of_a_cluster_need_one(here: Here, option: str) -> None:
    for command in ((*EVALUATE, "out"), ("score", "--policy", "policy.json", "--data", "folder:val/", "--out", "s")):
        here.refuse(*command, *option.split(), told=(option.split()[0], "--engine ray"))
    if "--address" in option:
        here.refuse(*EVALUATE, "out", "--engine", "ray", "--address", "127.0.0.1:1", told="127.0.0.1:1")
