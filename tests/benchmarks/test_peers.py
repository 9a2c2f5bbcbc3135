"""The speed of secondlook, ttach and MONAI is compared on the same work."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import peers as benchmark
from measurement import CIFAR10_MEAN, CIFAR10_STD, read_rows
from networks import make_wide_resnet

FLIPPED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "identity": lambda pixels: pixels,
    "hflip": lambda pixels: pixels[:, :, ::-1],
    "vflip": lambda pixels: pixels[:, ::-1],
    "hflip+vflip": lambda pixels: pixels[:, ::-1, ::-1],
}


@pytest.fixture
def pixels() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (23, 8, 12, 3), dtype=np.uint8)


def average_probabilities(network: Any, pixels: np.ndarray, views: tuple[str, ...]) -> Any:
    """Return the mean over views of the probabilities, one view after another. [N, n_classes]"""
    means = 0
    for view in views:
        inputs = (FLIPPED[view](pixels) / 255 - CIFAR10_MEAN) / CIFAR10_STD
        with torch.inference_mode():
            logits = network(torch.from_numpy(inputs.transpose(0, 3, 1, 2).astype(np.float32))).numpy()
        means = means + np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True) / len(views)
    return means


@pytest.mark.parametrize("views", benchmark.FLIPS, ids=len)
def test_contestants_compute_the_same_mean_probabilities(views: tuple[str, ...], pixels: np.ndarray) -> None:
    pytest.importorskip("ttach")
    pytest.importorskip("monai")
    network = make_wide_resnet(10, 1)
    contestants = benchmark.make_contestants(network, pixels, views, batch_size=4)
    expected = average_probabilities(network, pixels, views)
    assert np.abs(expected - average_probabilities(network, pixels, views[:1])).max() > 1e-3
    assert {name.split()[0] for name in contestants} == {"bare", "secondlook", "ttach", "MONAI"}
    for name, contestant in contestants.items():
        result = np.asarray(contestant.run())
        if contestant.is_bare:
            assert len(result) == contestant.n_images * len(views), name
        else:
            np.testing.assert_allclose(result, expected[: contestant.n_images], atol=1e-5, err_msg=name)


@pytest.mark.parametrize("metadata", [True, False])
def test_monai_carries_metadata_only_where_asked(metadata: bool) -> None:
    pytest.importorskip("monai")
    from monai.data import MetaTensor, get_track_meta

    class Spy(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            seen.append(isinstance(images, MetaTensor))
            return images.mean((2, 3))

    seen: list[bool] = []
    benchmark.run_monai(Spy(), torch.zeros(2, 3, 4, 4), benchmark.FLIPS[0], metadata=metadata)
    assert seen == [metadata, metadata]
    assert get_track_meta()


def test_speeds_are_compared_with_the_forward_in_a_round(pixels: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    probabilities = torch.tensor([[0.5, 0.5], [0.25, 0.75]])
    forward = benchmark.Contestant(lambda: probabilities.log().repeat_interleave(2, 0), 2, 256, is_bare=True)
    contestants = {benchmark.FORWARD: forward, "other": benchmark.Contestant(lambda: np.array([[0.5, 0.625]]), 1, 2)}
    monkeypatch.setattr(benchmark, "make_contestants", lambda *_: contestants)
    monkeypatch.setattr(benchmark, "time_rounds", lambda *_, rounds: [[1.0, 2.0, 10.0], [1.0, 4.0, 5.0]][:rounds])
    network = make_wide_resnet(10, 1)
    alone, other = benchmark.compare_speed(network, pixels[:2], benchmark.FLIPS[0], batch_size=256, rounds=3)
    assert (alone["images_per_second"], alone["ratio_to_forward"]) == (1, 1)
    assert "largest_difference" not in alone
    ratio = 0.5  # of 1 / 2, 0.25 / 1 and 0.2 / 0.2
    assert (other["images_per_second"], other["ratio_to_forward"]) == (0.25, ratio)
    assert other["largest_difference"] == pytest.approx(0.125, abs=0.01)


def test_only_the_speed_is_compared_where_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ttach")
    pytest.importorskip("monai")
    monkeypatch.setattr(benchmark, "SPEED_MODEL", tmp_path / "missing.onnx")
    options = {"--only": "speed", "--images": "3", "--batch-size": "2", "--speed-rounds": "1", "--out": str(tmp_path)}
    monkeypatch.setattr(sys, "argv", ["peers.py", *(word for option in options.items() for word in option)])
    benchmark.main()
    assert [path.name for path in tmp_path.iterdir()] == ["peers_speed.csv"]
    rows = [{name: str(value) for name, value in row.items()} for row in read_rows(tmp_path / "peers_speed.csv")]
    assert {row["views"] for row in rows} == {"2", "4"}
    for row in rows:
        assert all(f"{package} " in row["versions"] for package in benchmark.SPEED_PACKAGES)
        assert float(row["ratio_to_forward"]) > 0
        assert row["way"].startswith("bare") or float(row["largest_difference"]) < 1e-5
