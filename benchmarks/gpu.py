"""Use of a GPU: `collect` compared with the bare forward of the same module on ready images, and with ttach.

Run: python benchmarks/gpu.py [--only PART ...] [--rounds 3] [--images 1024] [--small-images 40000]

Parts:
  resnet50-bfloat16, resnet50-float32, resnet50-tf32, resnet50-compiled   ResNet-50 at 224 pixels, 24 views
  small-bfloat16, small-float32                                           Wide-ResNet-16-2 at 32 pixels, 13 views
  adaptive-resnet50, adaptive-small, agreement, precision, latency        decisions, see gpu_decisions.py
  memory, kernels                                                         peak memory; time by kernel

All run by default, in about six minutes on an H200. With --only, the file keeps the rows of the other parts; each row
has its own circumstances. Needs a CUDA device, torchvision, and `ttach` for the comparison. With `onnx`, the small
network is the one of ../shared/cifar10-jpeg on the images of ../shared/cifar10; without these files it has random
weights, and its decisions are not measured.

The bare forward is the floor: the module in the dtype, memory format and arithmetic of the classifier, on normalized
images already on the device. All jobs alternate within a round; ratios are computed within each round, and the result
is the median over rounds. ResNet-50 has random weights, because the speed does not depend on them.
"""

import argparse
import csv
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from gpu_decisions import measure_adaptive, measure_agreement, measure_latency, measure_precision
from gpu_jobs import (
    DISTINCT_PHOTOS,
    FLOOR,
    HOST,
    ON_DEVICE,
    PHOTO_SIZE,
    TTACH,
    WIDE_RESNET_FILE,
    Job,
    Network,
    describe_speeds,
    finish,
    load_small_network,
    make_file_jobs,
    make_jobs,
    make_photos,
    make_resnet50,
    make_value,
    repeat_images,
    time_jobs,
    write_jpegs,
)
from measurement import CIFAR10, PACKAGES, Row, create_parser, print_table, write_results
from secondlook.predictions import Execution, collect

DEVICE = "cuda:0"
"""One GPU, like the floor."""
TARGETS = {ON_DEVICE: ">= 0.97", HOST: ">= 0.9"}
TTACH_TARGETS = {"ResNet-50 bfloat16": {TTACH: ">= 1.2"}}
PHOTO_FILES, SMALL_FILES = 2048, 4096
DECISIONS = 100
MEMORY_IMAGES = 512
PROFILED_IMAGES = 256
TOP_KERNELS = 8
PRODUCTS = re.compile(r"conv|gemm|xmma|cutlass|nvjet|winograd|implicit|sm[89]0_", re.IGNORECASE)
GPU_PACKAGES = (*PACKAGES, "torch", "torchvision", "triton", "ttach", "onnx")


# --- Speed ---


def measure_speed(
    network: Network, dtype: str, n_images: int, rounds: int, *, files: bool = False, compiled: bool = False
) -> list[Row]:
    """Compare `collect` from host, device and, if asked for, from files with the bare forward and with ttach."""
    name = f"{network.name} {dtype}{' compiled' if compiled else ''}"
    jobs = make_jobs(network, DEVICE, dtype, n_images, compiled=compiled)
    with tempfile.TemporaryDirectory() as folder:
        if files:
            jobs |= prepare_files(network, dtype, Path(folder) / "images", n_images)
        speeds = time_jobs(jobs, rounds)
    rows = describe_speeds(name, speeds, network.n_views, TARGETS | TTACH_TARGETS.get(name, {}))
    return [row | {"images": n_images} for row in rows]


def prepare_files(network: Network, dtype: str, folder: Path, n_images: int) -> dict[str, Job]:
    """Write photos to resize for ResNet-50, and images of the input size for the small network."""
    size = network.pixels.shape[1]
    is_small = size < min(PHOTO_SIZE) // 2
    n_files = min(2 * n_images, SMALL_FILES if is_small else PHOTO_FILES)
    images = network.pixels if is_small else make_photos(min(n_files, DISTINCT_PHOTOS), *PHOTO_SIZE)
    write_jpegs(images, folder, n_files)
    fit = {} if is_small else {"resize": size * 8 // 7, "crop": size}
    plain, graphed = (network.load(DEVICE, dtype, cuda_graphs=graphs, **fit) for graphs in (False, True))
    return make_file_jobs(network, plain, graphed, folder, n_files)


# --- Memory and kernels ---


def measure_memory(network: Network, dtype: str, n_images: int) -> Iterator[Row]:
    """Compare the peak memory of the GPU for host images, and for four times as many."""
    classifier = network.load(DEVICE, dtype)
    peaks = []
    for count in (n_images, 4 * n_images):
        images = repeat_images(network.pixels, count)
        finish(
            partial(
                collect, classifier, images[: len(images) // 8 + 1], network.views, execution=Execution(progress=False)
            )
        )
        torch.cuda.reset_peak_memory_stats(DEVICE)
        finish(partial(collect, classifier, images, network.views, execution=Execution(progress=False)))
        peaks.append(torch.cuda.max_memory_allocated(DEVICE))
        what = f"{network.name} {dtype}, {count:,} host images"
        yield make_value(what, "peak GiB on the GPU", peaks[-1] / 2**30)
    what = f"{network.name} {dtype}, {4 * n_images:,} against {n_images:,} host images"
    yield make_value(what, "ratio of peak memory", peaks[1] / peaks[0], "<= 1.05")


def measure_kernels(network: Network, dtype: str, n_images: int) -> Iterator[Row]:
    """Group the time of the GPU during `collect` from device tensors by the purpose of the kernels."""
    jobs = make_jobs(network, DEVICE, dtype, n_images)
    (of_model, *_), (kernels, busy, span) = (profile_job(jobs[name].run) for name in (FLOOR, ON_DEVICE))
    total = sum(kernels.values())
    groups: Counter[str] = Counter()
    for kernel, microseconds in kernels.items():
        groups[find_kernel_group(kernel, is_of_model=kernel in of_model)] += microseconds
    name = f"{network.name} {dtype}, {ON_DEVICE}"
    for group, microseconds in groups.most_common():
        yield make_value(f"{name}: {group}", "share of kernel time", microseconds / total)
    for kernel, microseconds in kernels.most_common(TOP_KERNELS):
        yield make_value(f"{name}: kernel {shorten_kernel(kernel)}", "share of kernel time", microseconds / total)
    yield make_value(name, "share of time in which the GPU is busy", busy / span)


def profile_job(run: Callable[[], object]) -> tuple[Counter[str], float, float]:
    """Return the time of each kernel, of their union, and from the first to the last, in microseconds."""
    finish(run)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        finish(run)
    kernels: Counter[str] = Counter()
    spans = []
    for event in profiler.events() or ():
        if event.device_type.name == "CUDA":
            kernels[event.name] += event.time_range.elapsed_us()
            spans.append((event.time_range.start, event.time_range.end))
    return kernels, measure_union(spans), max(end for _, end in spans) - min(start for start, _ in spans)


def measure_union(spans: Sequence[tuple[float, float]]) -> float:
    """Return the length of the union of spans of time."""
    length, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        length += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return length


def find_kernel_group(kernel: str, *, is_of_model: bool) -> str:
    """Return the purpose of a kernel, by its name and by whether the bare forward runs it, too."""
    if kernel.startswith(("_write_copied", "_write_warped")):
        return "views with normalization"
    if is_of_model:
        return "convolutions and matrix products" if PRODUCTS.search(kernel) else "other layers of the model"
    if "addcmul" in kernel:
        return "normalization"
    return "copies" if "memcpy" in kernel.lower() or "copy" in kernel else "views"


def shorten_kernel(kernel: str) -> str:
    """Return the start of the name of a kernel without common prefixes."""
    for noise in ("void ", "at::native::", "(anonymous namespace)::", "<unnamed>::"):
        kernel = kernel.replace(noise, "")
    return kernel[:60]


# --- Parts ---


def load_resnet50(options: argparse.Namespace) -> Network:
    """Return ResNet-50, created once."""
    return _make_resnet50_once(options.images)


def load_small(options: argparse.Namespace) -> Network:
    """Return the small network, loaded once."""
    return _load_small_once(options.cifar10 / "test.npz", options.cifar10_jpeg / WIDE_RESNET_FILE)


_make_resnet50_once, _load_small_once = cache(make_resnet50), cache(load_small_network)


def run_decisions(
    measure: Callable[[Network, argparse.Namespace], Iterable[Row]], options: argparse.Namespace
) -> Iterable[Row]:
    """Measure decisions of the small network, which needs labels: no policy can be certified on noise."""
    network = load_small(options)
    if network.labels is None:
        print(f"skipped: {options.cifar10 / 'test.npz'} or {options.cifar10_jpeg / WIDE_RESNET_FILE} does not exist")
        return []
    return measure(network, options)


def run_adaptive(network: Network, options: argparse.Namespace) -> Iterator[Row]:
    """Time adaptive scoring of the small network."""
    for dtype in ("bfloat16", "float32"):
        yield from measure_adaptive(network, DEVICE, dtype, options.small_images, options.rounds)


PARTS: dict[str, Callable[[argparse.Namespace], Iterable[Row]]] = {
    "resnet50-bfloat16": lambda options: measure_speed(
        load_resnet50(options), "bfloat16", options.images, options.rounds, files=True
    ),
    "resnet50-float32": lambda options: measure_speed(
        load_resnet50(options), "float32", options.images // 4, options.rounds
    ),
    "resnet50-tf32": lambda options: measure_speed(load_resnet50(options), "tf32", options.images // 4, options.rounds),
    "resnet50-compiled": lambda options: measure_speed(
        load_resnet50(options), "bfloat16", options.images, options.rounds, compiled=True
    ),
    "small-bfloat16": lambda options: measure_speed(
        load_small(options), "bfloat16", options.small_images, options.rounds, files=True
    ),
    "small-float32": lambda options: measure_speed(
        load_small(options), "float32", options.small_images // 2, options.rounds
    ),
    "adaptive-resnet50": lambda options: measure_adaptive(
        load_resnet50(options), DEVICE, "bfloat16", options.images, options.rounds
    ),
    "adaptive-small": partial(run_decisions, run_adaptive),
    "agreement": partial(
        run_decisions, lambda network, options: measure_agreement(network, DEVICE, options.cpu_images)
    ),
    "precision": partial(
        run_decisions, lambda network, options: measure_precision(network, DEVICE, options.cpu_images)
    ),
    "latency": lambda options: measure_latency(load_small(options), DEVICE, "bfloat16", DECISIONS),
    "memory": lambda options: measure_memory(load_resnet50(options), "bfloat16", MEMORY_IMAGES),
    "kernels": lambda options: measure_kernels(load_resnet50(options), "bfloat16", PROFILED_IMAGES),
}


# --- Command line ---


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = create_parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help="parts to run (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each comparison (default: %(default)s)")
    parser.add_argument(
        "--images", type=int, default=1024, help="images of ResNet-50, fewer in float32 and tf32 (default: %(default)s)"
    )
    parser.add_argument(
        "--small-images", type=int, default=40_000, help="images of the small network (default: %(default)s)"
    )
    parser.add_argument(
        "--cpu-images", type=int, default=2000, help="images that the CPU classifies, too (default: %(default)s)"
    )
    parser.add_argument("--cifar10", type=Path, default=CIFAR10, help="folder with test.npz (default: %(default)s)")
    parser.add_argument(
        "--cifar10-jpeg",
        type=Path,
        default=CIFAR10.parent / "cifar10-jpeg",
        help=f"folder with {WIDE_RESNET_FILE} (default: %(default)s)",
    )
    return parser.parse_args()


def main() -> int:
    """Run the parts, print and write the rows after each; the exit status is 1 if a part failed."""
    options = parse_options()
    if not torch.cuda.is_available():
        print("skipped: torch sees no CUDA device")
        return 0
    return run_parts(options.only or list(PARTS), options, describe_device())


def run_parts(parts: Sequence[str], options: argparse.Namespace, device: Row) -> int:
    """Run parts in order, and continue if one fails."""
    is_failed = False
    for part in parts:
        start = time.perf_counter()
        try:
            rows = [{"part": part, **row, "rounds": options.rounds, **device} for row in PARTS[part](options)]
        except Exception:  # noqa: BLE001 -- the other parts still run
            traceback.print_exc()
            print(f"{part} failed", flush=True)
            is_failed = True
            continue
        if not rows:
            continue
        print_table(rows, f"{part} on {device['device']}, {time.perf_counter() - start:.0f} s")
        sys.stdout.flush()
        path = options.out / "gpu.csv"
        write_results(path, merge_rows(path, rows, part), packages=GPU_PACKAGES)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return int(is_failed)


def merge_rows(path: Path, rows: Sequence[Row], part: str) -> list[Row]:
    """Return the rows of a file with those of one part replaced, in the order of the parts."""
    kept: list[Row] = []
    if path.is_file():
        with path.open(newline="", encoding="utf-8") as file:
            kept = [dict(row) for row in csv.DictReader(file) if row["part"] != part]
    order = {name: place for place, name in enumerate(PARTS)}
    return sorted([*kept, *rows], key=lambda row: order.get(str(row["part"]), len(order)))


def describe_device() -> Row:
    """Return the columns for the GPU and its software."""
    properties = torch.cuda.get_device_properties(DEVICE)
    return {
        "device": properties.name,
        "device_memory_gib": round(properties.total_memory / 2**30, 1),
        "driver": find_driver(),
        "cuda": torch.version.cuda,
    }


def find_driver() -> str:
    """Return the version of the driver by nvidia-smi."""
    try:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


if __name__ == "__main__":
    sys.exit(main())
