"""Networks, images and comparable jobs for `gpu.py`."""

import io
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from measurement import Row, make_row, time_rounds
from networks import load_network, make_wide_resnet
from secondlook.arrays import Array, IntArray
from secondlook.classifiers import Classifier, load_classifier
from secondlook.classifiers.device import find_weight, use_exact_arithmetic, uses_channels_last
from secondlook.classifiers.torch_model import TorchClassifier
from secondlook.predictions import (
    Chunking,
    DecodedChunk,
    Execution,
    choose_batch_size,
    chunk_rows,
    collect,
    read_first_image,
)
from secondlook.sources import open_source
from secondlook.views import ViewSet

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
WIDE_RESNET_MEAN, WIDE_RESNET_STD = (0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.262)
WIDE_RESNET_FILE = "wrn16-2-seed0.onnx"

PHOTO_SIZE = (375, 500)
DISTINCT_PHOTOS = 256
JPEG_QUALITY = 90

FLOOR = "bare forward"
HOST, ON_DEVICE, JPEG = "collect from host images", "collect from device tensors", "collect from JPEG files"
JPEG_GRAPHS = "collect from JPEG files, cuda_graphs=True"
DECODING = "decoding and fitting JPEG files alone"
TTACH, TTACH_CHEAPEST = "ttach, flips and rotations", "ttach, views that cost next to nothing"
RATIO_TO_FLOOR = "ratio to bare forward"


@dataclass(frozen=True)
class Network:
    """A module with its images and views."""

    name: str
    module: nn.Module
    pixels: Array
    """uint8 [N, H, W, 3]"""
    views: str
    """A preset."""
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    labels: IntArray | None = None

    @property
    def n_views(self) -> int:
        """Number of views."""
        return len(ViewSet(self.views))

    def load(self, device: str, dtype: str, **options: Any) -> Classifier:
        """Return the module as a classifier on a device."""
        options |= {"mean": self.mean, "std": self.std}
        return load_classifier(self.module, output="logits", name=self.name, device=device, dtype=dtype, **options)


@dataclass(frozen=True)
class Job:
    """A job to time, with its number of images."""

    run: Callable[[], object]
    n_images: float


# --- Networks and images ---


def make_resnet50(n_images: int) -> Network:
    """Return torchvision's ResNet-50 with random weights, and synthetic photos; speed does not depend on weights."""
    from torchvision.models import resnet50

    torch.manual_seed(0)
    return Network(
        "ResNet-50", resnet50().eval(), make_photos(n_images, 224, 224), "imagenet", IMAGENET_MEAN, IMAGENET_STD
    )


def load_small_network(images: Path, model: Path) -> Network:
    """Return Wide-ResNet-16-2 and the CIFAR-10 test images, or random weights and synthetic images without labels."""
    module = load_network(model) if model.is_file() else make_wide_resnet()
    pixels, labels = make_photos(10_000, 32, 32), None
    if images.is_file() and model.is_file():
        with np.load(images) as archive:
            pixels, labels = archive["images"], archive["labels"].astype(np.int64)
    return Network("Wide-ResNet-16-2", module, pixels, "cifar10", WIDE_RESNET_MEAN, WIDE_RESNET_STD, labels)


def make_photos(count: int, height: int, width: int) -> Array:
    """Make smooth, slightly noisy images, repeated above a certain number. uint8 [count, height, width, 3]"""
    from PIL import Image

    rng = np.random.default_rng(0)
    photos = np.empty((min(count, DISTINCT_PHOTOS), height, width, 3), dtype=np.uint8)
    for photo in photos:
        coarse = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), dtype=np.int16)
        photo[...] = np.clip(smooth + rng.integers(-12, 13, photo.shape, dtype=np.int16), 0, 255)
    return repeat_images(photos, count)


def repeat_images(images: Array, count: int) -> Array:
    """Return `count` images, from the first on again where there are too few."""
    return images[np.arange(count) % len(images)]


def write_jpegs(images: Array, folder: Path, count: int) -> None:
    """Write `count` JPEG files, repeating images if there are too few. uint8 [N, H, W, 3]"""
    from PIL import Image

    def encode(image: Array) -> bytes:
        file = io.BytesIO()
        Image.fromarray(image).save(file, "JPEG", quality=JPEG_QUALITY)
        return file.getvalue()

    folder.mkdir()
    with ThreadPoolExecutor() as pool:
        files = list(pool.map(encode, images[:count]))
    for number in range(count):
        (folder / f"{number:06}.jpg").write_bytes(files[number % len(files)])


# --- Jobs ---


def make_jobs(network: Network, device: str, dtype: str, n_images: int, *, compiled: bool = False) -> dict[str, Job]:
    """Return the floor, `collect` from host and device images, and ttach's wrapper, over as many images and views."""
    plain = network.load(device, dtype)
    # Compiled only for the batches of the floor, before `collect` compiles it for other sizes.
    module, weight = get_module(plain)
    forward = torch.compile(module) if compiled else module
    classifier = network.load(device, dtype, compile=True) if compiled else plain
    pixels = repeat_images(network.pixels, n_images)
    batches = make_batches(plain, pixels, choose_batch_size("auto", pixels[0], plain), dtype)
    tensors = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous().to(weight.device)
    jobs: dict[str, Callable[[], object]] = {
        FLOOR: partial(run_batches, forward, batches, network.n_views, dtype),
        ON_DEVICE: partial(collect, classifier, tensors, network.views, execution=Execution(progress=False)),
        HOST: partial(collect, classifier, pixels, network.views, execution=Execution(progress=False)),
    }
    wrapped = {} if compiled or dtype == "tf32" else make_ttach(forward, network.n_views)
    jobs |= {name: partial(run_batches, wrapper, batches, 1, dtype) for name, (wrapper, _) in wrapped.items()}
    # If ttach has another number of views, it gets fewer or more images with the same total of views.
    counts = {name: n_images * n_views / network.n_views for name, (_, n_views) in wrapped.items()}
    return {name: Job(run, counts.get(name, n_images)) for name, run in jobs.items()}


def make_file_jobs(
    network: Network, classifier: Classifier, graphed: Classifier, folder: Path, n_files: int
) -> dict[str, Job]:
    """Return `collect` from the JPEG files of a folder, and only their decoding, which limits it."""
    spec = f"folder:{folder}"
    return {
        JPEG: Job(partial(collect, classifier, spec, network.views, execution=Execution(progress=False)), n_files),
        JPEG_GRAPHS: Job(partial(collect, graphed, spec, network.views, execution=Execution(progress=False)), n_files),
        DECODING: Job(partial(decode_files, classifier, spec), n_files),
    }


def get_module(classifier: Classifier) -> tuple[nn.Module, Tensor]:
    """Return the placed module of a classifier, and a weight, which has its device and dtype."""
    assert isinstance(classifier, TorchClassifier), "the networks are torch modules"
    weight = find_weight(classifier.module)
    assert weight is not None, "the networks have weights"
    return classifier.module, weight


def make_batches(classifier: Classifier, pixels: Array, batch_size: int, dtype: str) -> list[Tensor]:
    """Return normalized images on the device, in the dtype and memory format of the classifier."""
    module, weight = get_module(classifier)
    is_last = uses_channels_last(module, {"dtype": dtype})
    memory_format = torch.channels_last if is_last else torch.contiguous_format
    batches = []
    for start in range(0, len(pixels), batch_size):
        normalized = torch.from_numpy(classifier.preprocessing.normalize(pixels[start : start + batch_size]))
        batches.append(normalized.to(weight.device, weight.dtype).contiguous(memory_format=memory_format))
    return batches


def run_batches(forward: Callable[[Tensor], Tensor], batches: Sequence[Tensor], times: int, dtype: str) -> list[Tensor]:
    """Run a module on all batches, several times, in the arithmetic of the library; outputs stay on the device."""
    with torch.inference_mode(), use_exact_arithmetic(dtype):
        return [forward(batch) for _ in range(times) for batch in batches]


def make_ttach(module: Callable[[Tensor], Tensor], n_views: int) -> dict[str, tuple[nn.Module, int]]:
    """Return ttach's wrapper in two forms, each with its number of views; nothing without ttach.

    The first has ttach's views for photographs: the flip and the rotations of its alias `d4_transform`, and factors to
    reach the number. The second has the cheapest possible views.
    """
    try:
        import ttach
    except ImportError:
        return {}
    flips = [ttach.HorizontalFlip()] if n_views % 2 == 0 else []
    turned = [*flips, ttach.Rotate90([0, 90, 180, 270])]
    forms = {TTACH: (turned, n_views // (4 * (len(flips) + 1))), TTACH_CHEAPEST: (flips, n_views // (len(flips) + 1))}
    found = {}
    for name, (transforms, n_factors) in forms.items():
        factors = [1 + number / 100 for number in range(max(1, n_factors))]
        composed = ttach.Compose([*transforms, ttach.Multiply(factors)])
        found[name] = (ttach.ClassificationTTAWrapper(module, composed), len(composed))
    return found


def decode_files(classifier: Classifier, spec: str) -> int:
    """Decode and fit all images of a source, chunk by chunk as `collect` does; return their number."""
    source = open_source(spec)
    chunking = Chunking(len(source), chunk_rows(read_first_image(classifier, source)))
    chunks = (
        DecodedChunk.decode(classifier, source, number, chunking.indices_of(number)) for number in chunking.numbers
    )
    return sum(len(chunk.images) for chunk in chunks)


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def finish(run: Callable[[], object]) -> None:
    """Run a job and wait until the GPU has finished it."""
    run()
    synchronize()


def time_jobs(jobs: dict[str, Job], rounds: int) -> dict[str, np.ndarray]:
    """Return images per second of each job in each round, after one round to warm up. float64 [rounds] each"""
    runs = [partial(finish, job.run) for job in jobs.values()]
    time_rounds(*runs, rounds=1)
    times = time_rounds(*runs, rounds=rounds)
    return {name: job.n_images / np.array(seconds) for (name, job), seconds in zip(jobs.items(), times, strict=True)}


# --- Rows ---


def make_value(what: str, measure: str, value: float, target: str = "") -> Row:
    """Return a row with a value of five significant digits: some are tiny."""
    return make_row(what, measure, value, target) | {"value": float(f"{value:.5g}")}


def describe_speeds(name: str, speeds: dict[str, np.ndarray], n_views: int, targets: dict[str, str]) -> Iterator[Row]:
    """Yield the speed of each job and its ratio to the floor, computed within each round; medians over the rounds."""
    floor = speeds[FLOOR]
    yield make_value(f"{name}, {FLOOR}", "forwards/s", median(floor) * n_views)
    for job, speed in speeds.items():
        yield make_value(f"{name}, {job}", "images/s", median(speed))
        if job not in (FLOOR, DECODING):
            target = targets.get(job, "") if job in (ON_DEVICE, HOST) else ""
            yield make_value(f"{name}, {job}", RATIO_TO_FLOOR, median(speed / floor), target)
    for job in (ON_DEVICE, HOST):
        for peer in (TTACH, TTACH_CHEAPEST):
            if peer in speeds:
                ratio = median(speeds[job] / speeds[peer])
                target = targets.get(peer, "") if job == ON_DEVICE else ""
                yield make_value(f"{name}, {job}", f"ratio to {peer}", ratio, target)
