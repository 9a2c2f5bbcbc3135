"""The benchmark of GPUs compares equal work; its jobs run on CPU tensors here."""

import argparse
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gpu as benchmark
import gpu_decisions
import gpu_jobs
from measurement import Row, read_rows
from networks import make_wide_resnet
from secondlook.estimators import confidence
from secondlook.predictions import Execution, collect
from secondlook.views import ViewSet

MEAN, STD = gpu_jobs.WIDE_RESNET_MEAN, gpu_jobs.WIDE_RESNET_STD


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> gpu_jobs.Network:
    """A tiny network with 20 images, which the benchmark runs on the CPU."""
    monkeypatch.setattr(benchmark, "DEVICE", "cpu")
    return gpu_jobs.Network("tiny", make_wide_resnet(10, 1), gpu_jobs.make_photos(20, 8, 8), "cifar10", MEAN, STD)


@pytest.fixture(scope="module")
def labeled() -> gpu_jobs.Network:
    """A tiny network with 900 images; it is wrong about the fifth that it is least confident about."""
    pixels = np.random.default_rng(0).integers(0, 256, (900, 4, 4, 3), dtype=np.uint8)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 10))
    network = gpu_jobs.Network("tiny", module, pixels, "cifar10", MEAN, STD)
    preds = collect(network.load("cpu", "float32"), pixels, "cifar10", execution=Execution(progress=False))
    values = confidence(preds, "blend")
    return replace(network, labels=(preds.predicted() + (values < np.quantile(values, 0.2))) % 10)


def list_values(rows: Iterable[Row], measure: str) -> list[float]:
    return [float(str(row["value"])) for row in rows if row["measure"] == measure]


def test_jobs_do_the_same_work(network: gpu_jobs.Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ttach", None)
    jobs = gpu_jobs.make_jobs(network, "cpu", "float32", 23)
    assert gpu_jobs.TTACH not in jobs, "it is optional"
    outputs: Any = jobs[gpu_jobs.FLOOR].run()
    floor = torch.cat(outputs).numpy()
    assert len(floor) == 23 * len(ViewSet("cifar10")) == 23 * 13
    for name in (gpu_jobs.HOST, gpu_jobs.ON_DEVICE):
        preds: Any = jobs[name].run()
        assert preds.views.texts == ViewSet("cifar10").texts, name
        np.testing.assert_allclose(preds.logits[:, 0], floor[:23], atol=1e-5, err_msg=name)
    assert {jobs[name].n_images for name in (gpu_jobs.FLOOR, gpu_jobs.HOST, gpu_jobs.ON_DEVICE)} == {23}


@pytest.mark.parametrize(("n_views", "turned"), [(24, 24), (13, 12), (8, 8)])
def test_ttach_has_about_as_many_different_views(n_views: int, turned: int) -> None:
    pytest.importorskip("ttach")
    seen = []

    def spy(images: torch.Tensor) -> torch.Tensor:
        seen.append(images.clone())
        return images.mean((2, 3))

    images = torch.rand(2, 3, 5, 5)
    wrapped = gpu_jobs.make_ttach(spy, n_views)
    for name, expected in ((gpu_jobs.TTACH, turned), (gpu_jobs.TTACH_CHEAPEST, n_views)):
        wrapper, count = wrapped[name]
        seen.clear()
        wrapper(images)
        assert len(seen) == count == expected
        assert len({view.contiguous().numpy().tobytes() for view in seen}) == count
        assert all(view.shape == images.shape for view in seen)


def test_ratios_are_computed_within_rounds() -> None:
    names = (gpu_jobs.FLOOR, gpu_jobs.ON_DEVICE, gpu_jobs.HOST, gpu_jobs.TTACH, gpu_jobs.DECODING)
    rounds = np.array([[10, 20, 40], [10, 10, 10], [5, 10, 20], [2, 4, 10], [7, 7, 7]], dtype=float)
    speeds = dict(zip(names, rounds, strict=True))
    rows = list(gpu_jobs.describe_speeds("net", speeds, 3, {gpu_jobs.HOST: ">= 0.9", gpu_jobs.TTACH: ">= 1.2"}))
    found = {(str(row["what"]).removeprefix("net, "), row["measure"]): (row["value"], row["target"]) for row in rows}
    assert found[gpu_jobs.FLOOR, "forwards/s"] == (60, "")
    assert found[gpu_jobs.ON_DEVICE, gpu_jobs.RATIO_TO_FLOOR] == (0.5, "")
    assert found[gpu_jobs.HOST, gpu_jobs.RATIO_TO_FLOOR] == (0.5, ">= 0.9")
    assert found[gpu_jobs.ON_DEVICE, f"ratio to {gpu_jobs.TTACH}"] == (2.5, ">= 1.2"), "10 / 2, 10 / 4 and 10 / 10"
    assert found[gpu_jobs.DECODING, "images/s"] == (7, "")
    assert (gpu_jobs.DECODING, gpu_jobs.RATIO_TO_FLOOR) not in found


def test_speed_includes_files(network: gpu_jobs.Network, tmp_path: Path) -> None:
    rows = benchmark.measure_speed(network, "float32", 5, rounds=1, files=True)
    measured = {str(row["what"]) for row in rows if row["measure"] == "images/s"}
    assert {f"tiny float32, {name}" for name in (gpu_jobs.JPEG, gpu_jobs.DECODING, gpu_jobs.HOST)} <= measured
    assert all(float(str(row["value"])) > 0 for row in rows)
    gpu_jobs.write_jpegs(gpu_jobs.make_photos(2, 20, 30), tmp_path / "images", 5)
    classifier = network.load("cpu", "float32", resize=10, crop=8)
    jobs = gpu_jobs.make_file_jobs(network, classifier, classifier, tmp_path / "images", 5)
    preds: Any = jobs[gpu_jobs.JPEG].run()
    assert preds.shape == (5, 13, 10)
    np.testing.assert_array_equal(preds.logits[0], preds.logits[2])
    assert jobs[gpu_jobs.DECODING].run() == 5


# --- Decisions ---


@pytest.mark.parametrize("is_made_up", [False, True])
def test_looks_are_measured_and_a_made_up_rule_has_no_target(labeled: gpu_jobs.Network, is_made_up: bool) -> None:
    network = replace(labeled, labels=None) if is_made_up else labeled
    rows = list(gpu_decisions.measure_adaptive(network, "cpu", "float32", 50, 1))
    assert all(("made-up" in str(row["what"])) == is_made_up for row in rows)
    assert any(row["target"] for row in rows) != is_made_up
    (looks,), (ratio,) = (list_values(rows, name) for name in ("mean looks", "views / mean looks"))
    assert 1 <= looks < 13
    assert ratio == pytest.approx(13 / looks, rel=1e-3)


def test_decisions_and_number_types_are_compared_with_the_looks_asked_for(labeled: gpu_jobs.Network) -> None:
    equal = list_values(gpu_decisions.measure_agreement(labeled, "cpu", 50), "share of equal decisions")
    assert equal[:2] == [1, 1], "the CPU agrees with itself"
    assert equal[2] == equal[3] >= 0.8
    largest = list_values(gpu_decisions.measure_precision(labeled, "cpu", 50), "largest difference of confidence")
    assert largest[:2] == [0, 0], "TF32 exists on GPUs only"
    assert 0 < largest[3] < largest[2] < 0.1
    preds = collect(labeled.load("cpu", "float32"), labeled.pixels, "cifar10", execution=Execution(progress=False))
    for looks in (2.0, 5.0):
        assert gpu_decisions.make_up_rule(preds, looks).look(preds).looks.mean() == pytest.approx(looks, abs=0.7)


def test_latency_of_all_variants(labeled: gpu_jobs.Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(gpu_decisions.LATENCY_VARIANTS, "decide, compile=True")  # it needs a compiler
    rows = list(gpu_decisions.measure_latency(labeled, "cpu", "float32", 2))
    names = ["bare forward of 13", "bare forward of 1", "decide", "decide, cuda_graphs=True"]
    assert [row["what"] for row in rows] == [f"tiny float32, {name}" for name in names]


# --- Kernels ---


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 10))))
def test_union_of_spans(spans: list[tuple[int, int]]) -> None:
    covered = {moment for start, length in spans for moment in range(start, start + length)}
    assert benchmark.measure_union([(start, start + length) for start, length in spans]) == len(covered)


def test_kernels_are_grouped() -> None:
    for kernel, is_of_model, group in (
        ("sm90_xmma_fprop_implicit_gemm_bf16", True, "convolutions and matrix products"),
        ("void cudnn::bn_fw_inf_1C11_kernel_NHWC<...>", True, "other layers of the model"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::addcmul_cuda_kernel>", False, "normalization"),
        ("Memcpy HtoD (Pinned -> Device)", False, "copies"),
        ("void at::native::flip_kernel", False, "views"),
    ):
        assert benchmark.find_kernel_group(kernel, is_of_model=is_of_model) == group


# --- Parts and files ---


def test_parts_replace_their_own_rows_only_and_go_on_where_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(value: float, _: object) -> Iterator[Row]:
        yield gpu_jobs.make_value("what", "measure", value)

    def fail(_: object) -> Iterator[Row]:
        yield from measure(0, _)
        raise RuntimeError("out of luck")

    options = argparse.Namespace(out=tmp_path, rounds=2)
    for part, value in {"adaptive-small": 1, "memory": 2e-9}.items():
        monkeypatch.setitem(benchmark.PARTS, part, partial(measure, value))
    monkeypatch.setitem(benchmark.PARTS, "agreement", fail)
    monkeypatch.setitem(benchmark.PARTS, "precision", lambda _: [])
    parts = ["agreement", "precision", "memory", "adaptive-small"]
    assert benchmark.run_parts(parts, options, {"device": "old GPU", "driver": "1"}) == 1
    assert "out of luck" in capsys.readouterr().err
    path = tmp_path / "gpu.csv"
    (commit,) = {row["commit"] for row in read_rows(path)}
    path.write_text(path.read_text(encoding="utf-8").replace(str(commit), "before"), encoding="utf-8")
    assert benchmark.run_parts(["memory"], options, {"device": "new GPU", "driver": "2"}) == 0
    first, second = read_rows(path)
    columns = ("part", "value", "device", "driver", "commit")
    assert [first[name] for name in columns] == ["adaptive-small", "1.0", "old GPU", "1", "before"]
    assert [second[name] for name in columns[:-1]] == ["memory", "2e-09", "new GPU", "2"]
    assert second["commit"] != "before"
    assert all(row["rounds"] == "2" and "torch " in str(row["versions"]) for row in (first, second))


def test_decisions_need_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = argparse.Namespace(cifar10=tmp_path, cifar10_jpeg=tmp_path)
    for part in ("adaptive-small", "agreement", "precision"):
        assert list(benchmark.PARTS[part](options)) == []
        assert str(tmp_path) in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_skipped_if_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--only", "memory", "kernels", "--out", str(tmp_path)])
    assert benchmark.main() == 0
    assert capsys.readouterr().out == "skipped: torch sees no CUDA device\n"
    assert list(tmp_path.iterdir()) == []
