"""Tests on a GPU: kernels, agreement with the CPU, determinism, memory. Skipped without CUDA."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secondlook.arrays import Array
from secondlook.classifiers import TorchClassifier, load_classifier
from secondlook.decisions import score
from secondlook.errors import ClassifierError, PredictionsError
from secondlook.policies import certify
from secondlook.predictions import Execution, collect
from secondlook.views import PRESETS, View, ViewSet, ViewWarning, apply_view
from tests.policy_maker import attach

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")

SAMPLED = ("rotate", "zoom", "crop", "%", ".5,", "blur", "gray")
OTHERS = [
    *("gamma:.5+shift:2,1", "shift:2,1+gamma:.5", "brightness:2+shift:-3,1", "brightness:.5+hflip+shift:3,3"),
    *("contrast:1.3", "contrast:.5+hflip", "crop:10,10,70,80", "shift:1.5,2.25", "zoom:.2", "zoom:.7", "rotate:45"),
    *("shift:100,0", "vflip", "vflip+shift:1,1+hflip", "blur:1.3", "gray", "rotate:9+gamma:.7"),
]


def list_views() -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ViewWarning)
        return list(dict.fromkeys([text for preset in PRESETS for text in ViewSet(preset).texts] + OTHERS))


def make_images(shape: tuple[int, ...]) -> Array:
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    images[0] = 128
    return images


@pytest.mark.parametrize("shape", [(6, 32, 32, 3), (3, 224, 224, 3), (3, 41, 29, 1), (2, 5, 3, 3)], ids=str)
def test_engine_and_kernels_equal_the_cpu_engine(shape: tuple[int, ...]) -> None:
    from secondlook.views.torch_engine import apply_view_to_tensor
    from secondlook.views.triton_kernels import write_view

    pixels = make_images(shape)
    on_gpu = torch.from_numpy(pixels).cuda()
    ones, zeros = torch.ones(shape[3], device="cuda"), torch.zeros(shape[3], device="cuda")
    by_kernels = 0
    for text in list_views():
        expected, allowed = apply_view(pixels, text).astype(int), int(any(name in text for name in SAMPLED))
        assert np.abs(apply_view_to_tensor(on_gpu, View.parse(text)).cpu().numpy() - expected).max() <= allowed, text
        for order in ((0, 1, 2, 3), (0, 2, 3, 1)):  # channels last, and channels first
            stored = [shape[axis] for axis in np.argsort(order)]
            target = torch.full(stored, -1.0, device="cuda").permute(*order)
            if write_view(on_gpu, View.parse(text), ones, zeros, target):
                by_kernels += 1
                assert np.abs(target.cpu().numpy() - expected).max() <= allowed, text
    assert by_kernels > 300


def make_network(n_classes: int = 10) -> Any:
    torch.manual_seed(1)
    layers = [torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 3, stride=2)]
    return torch.nn.Sequential(
        *layers, torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(256, n_classes)
    ).eval()


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        ({}, 1e-4),
        ({"dtype": "tf32"}, 5e-3),
        ({"dtype": "bfloat16"}, 3e-2),
        ({"dtype": "float16"}, 5e-3),
        ({"cuda_graphs": True}, 1e-4),
        ({"channels_last": True}, 1e-4),
    ],
    ids=str,
)
@pytest.mark.parametrize("views", ["cifar10", "identity gamma:.8 contrast:1.2 blur:1"])
def test_outputs_agree_with_the_cpu(views: str, options: dict[str, Any], tolerance: float) -> None:
    network, pixels = make_network(), make_images((300, 32, 32, 3))
    on_cpu = collect(load_classifier(network, output="logits"), pixels, views, execution=Execution(device="cpu")).logits
    classifier = load_classifier(network, output="logits", **options)
    for data in (pixels, torch.from_numpy(pixels).permute(0, 3, 1, 2).cuda()):
        found = [
            collect(classifier, data, views, execution=Execution(device="cuda", batch_size=64)).logits for _ in range(2)
        ]
        np.testing.assert_allclose(found[0], on_cpu, atol=tolerance)
        np.testing.assert_array_equal(found[0], found[1], err_msg="deterministic")
    assert next(network.parameters()).device.type == "cpu"


def test_auto_uses_the_gpu_and_keeps_a_module_that_is_there() -> None:
    classifier = load_classifier(make_network(), output="logits")
    assert classifier.on_device("auto").is_accelerated
    assert not classifier.on_device("cpu").is_accelerated
    own = make_network().cuda()
    there = load_classifier(own, output="logits")
    assert there.is_accelerated
    assert there.on_device("auto") is there
    moved = there.on_device("cuda:0")
    assert isinstance(moved, TorchClassifier)
    assert moved.module is own


@pytest.mark.parametrize("adaptive", [False, True])
def test_decisions_agree_with_the_cpu(adaptive: bool, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    half, pixels = np.split(make_images((4000, 32, 32, 3)), 2)  # a threshold is the confidence of an image of the first
    classifier = load_classifier(make_network(), output="logits", name="network")
    preds = collect(classifier, half, "cifar10", execution=Execution(device="cpu"))
    labels = np.where(np.random.default_rng(1).random(len(half)) < 0.95, preds.predicted(), 0)
    labeled = collect(classifier, half, "cifar10", labels=labels, execution=Execution(device="cpu"))
    rule = certify(labeled, "mean", risk=0.2, delta=0.05, adaptive=adaptive)
    views = rule.schedule.views if rule.schedule else ViewSet("cifar10").texts
    policy = attach(rule, classifier=classifier, views=views)
    rows = {}
    for device in ("cpu", "cuda"):
        score(
            policy,
            pixels,
            tmp_path / f"{device}.parquet",
            classifier=classifier,
            execution=Execution(device=device, progress=False),
        )
        rows[device] = pq.read_table(tmp_path / f"{device}.parquet")
    for column in ("label", "accept", "looks"):
        assert rows["cpu"][column].to_pylist() == rows["cuda"][column].to_pylist(), column
    differences = rows["cpu"]["confidence"].to_numpy() - rows["cuda"]["confidence"].to_numpy()
    assert np.abs(differences).max() < 1e-4


def test_missing_gpu_is_reported_in_one_sentence() -> None:
    with pytest.raises(ClassifierError, match=r"device='cuda:77' does not exist; this machine has cuda:0"):
        load_classifier(make_network(), output="logits").on_device("cuda:77")


class Hungry(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Takes a given number of bytes per input."""

    def __init__(self, n_bytes: int) -> None:
        super().__init__()
        self.n_bytes = n_bytes
        self.scale = torch.nn.Parameter(torch.ones(3))
        self.sizes: list[int] = []

    def forward(self, inputs: Any) -> Any:
        self.sizes.append(len(inputs))
        torch.empty((len(inputs), self.n_bytes), dtype=torch.uint8, device=inputs.device)
        return inputs.mean(dim=(2, 3)) * self.scale

    def __deepcopy__(self, memo: Any) -> "Hungry":
        return self


def test_batch_is_found_within_memory_and_halved_where_it_is_not() -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    pixels = make_images((200, 16, 16, 3))
    hungry = Hungry(total // 100).cuda()
    collect(load_classifier(hungry, output="logits"), pixels, "identity")
    assert 16 <= max(hungry.sizes) < 100
    given = Hungry(total // 20).cuda()
    preds = collect(load_classifier(given, output="logits"), pixels, "identity", execution=Execution(batch_size=128))
    assert len(preds) == 200
    assert given.sizes[0] == 128
    assert max(given.sizes[5:]) <= 16


def test_too_large_image_is_reported_in_one_sentence() -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    hungry = Hungry(2 * total).cuda()
    with pytest.raises(PredictionsError, match=r"ran out of memory on a single image .*out of memory.*smaller"):
        collect(
            load_classifier(hungry, output="logits"),
            make_images((3, 16, 16, 3)),
            "identity",
            execution=Execution(batch_size=2),
        )
    with pytest.raises(PredictionsError, match="ran out of memory on a single image"):
        collect(load_classifier(hungry, output="logits"), make_images((3, 16, 16, 3)), "identity")
