"""The part of `gpu.py` about decisions: adaptive mode, agreement with the CPU, number types, and latency."""

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from gpu_jobs import Job, Network, finish, get_module, make_batches, make_value, repeat_images, run_batches, time_jobs
from latency import make_policy
from measurement import Row, time_rounds
from secondlook.arrays import Array, BoolArray, Float64Array
from secondlook.classifiers import Classifier
from secondlook.decisions import score
from secondlook.decisions.summary import ScoreSummary
from secondlook.estimators import confidence
from secondlook.policies import Policy, certify, threshold_for
from secondlook.predictions import Execution, Predictions, collect
from secondlook.views import ViewSet

METHOD = "blend"
RISK, DELTA = 0.02, 0.05
COVERAGE = 0.9
MADE_UP_LOOKS = 2.0
"""Mean looks of an artificial schedule for a network with random weights."""
MIN_SPEEDUP = 4.0
ADAPTIVE_TIMES = 4
DTYPES = ("float32", "tf32", "bfloat16", "float16")
LATENCY_VARIANTS: dict[str, dict[str, bool]] = {
    "decide": {},
    "decide, cuda_graphs=True": {"cuda_graphs": True},
    "decide, compile=True": {"compile": True},
}


# --- Adaptive looking ---


def make_rule(classifier: Classifier, network: Network, n_images: int) -> Policy:
    """Return an adaptive rule for the first images: certified if they have labels, otherwise artificial."""
    pixels = network.pixels[:n_images]
    labels = None if network.labels is None else network.labels[:n_images]
    preds = collect(classifier, pixels, network.views, labels=labels, execution=Execution(progress=False))
    if labels is not None:
        return certify(preds, METHOD, risk=RISK, delta=DELTA, adaptive=True)
    return make_up_rule(preds, MADE_UP_LOOKS)


def make_up_rule(preds: Predictions, mean_looks: float) -> Policy:
    """Return an adaptive rule with the margin closest to a mean number of looks."""
    rule = threshold_for(preds, METHOD, coverage=COVERAGE, adaptive=True)
    assert rule.schedule is not None, "the rule is adaptive"
    margins = np.concatenate([np.linspace(0, 0.5, 51), np.linspace(0.6, 4, 35)])
    rules = [
        rule.model_copy(update={"schedule": rule.schedule.model_copy(update={"margin": float(one)})}) for one in margins
    ]
    return min(rules, key=lambda one: abs(float(one.look(preds).looks.mean()) - mean_looks))


def make_policies(rule: Policy, classifier: Classifier, network: Network) -> dict[str, Policy]:
    """Return the policy with all looks, and the adaptive one."""
    views = ViewSet(network.views).texts
    rules = {"all looks": rule.model_copy(update={"schedule": None}), "adaptive": rule}
    return {
        name: one.replace(classifier=classifier, views=(one.schedule.views if one.schedule else views))
        for name, one in rules.items()
    }


def score_images(policy: Policy, images: Array, classifier: Classifier, folder: Path, device: str) -> ScoreSummary:
    """Score images into a file, replacing that of the last round."""
    out = folder / "scores.parquet"
    execution = Execution(device=device, progress=False)
    return score(policy, images, out, classifier=classifier, overwrite=True, execution=execution)


def measure_adaptive(network: Network, device: str, dtype: str, n_images: int, rounds: int) -> Iterator[Row]:
    """Time `score` with all looks and adaptively, on other images than those of the rule.

    The adaptive job has more images, so that both take a few seconds.
    """
    half = len(network.pixels) // 2
    classifier = network.load(device, dtype)
    policies = make_policies(make_rule(classifier, network, half), classifier, network)
    counts = {"all looks": n_images, "adaptive": ADAPTIVE_TIMES * n_images}
    images = repeat_images(network.pixels[half:], max(counts.values()))
    with tempfile.TemporaryDirectory() as folder:
        scoring: dict[str, Callable[[], ScoreSummary]] = {
            name: partial(score_images, policy, images[: counts[name]], classifier, Path(folder), device)
            for name, policy in policies.items()
        }
        looks = scoring["adaptive"]().mean_looks
        speeds = time_jobs({name: Job(run, counts[name]) for name, run in scoring.items()}, rounds)
    # The looks of an artificial rule are arbitrary; its speed only shows whether the GPU stays busy.
    is_made_up = network.labels is None
    name = f"{network.name} {dtype}, score{' with a made-up rule' if is_made_up else ''}"
    for policy, speed in speeds.items():
        yield make_value(f"{name}, {policy}", "images/s", median(speed))
    yield make_value(f"{name}, adaptive", "mean looks", looks)
    target = "" if is_made_up else f">= {MIN_SPEEDUP:g}"
    speedup = median(speeds["adaptive"] / speeds["all looks"])
    yield make_value(f"{name}, adaptive", "times as fast as all looks", speedup, target)
    yield make_value(f"{name}, adaptive", "views / mean looks", network.n_views / looks)


# --- Agreement with the CPU ---


def read_decisions(folder: Path) -> tuple[BoolArray, Float64Array]:
    """Return acceptance and confidence of the images, from the file of `score_images`."""
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(folder / "scores.parquet", columns=["accept", "confidence"])
    return table["accept"].to_numpy(), table["confidence"].to_numpy()


def measure_agreement(network: Network, device: str, n_images: int) -> Iterator[Row]:
    """Compare the decisions of the same policies on the GPU and on the CPU, in float32."""
    half = len(network.pixels) // 2
    classifier = network.load(device, "float32")
    policies = make_policies(make_rule(classifier, network, half), classifier, network)
    images = network.pixels[half : half + n_images]
    found: dict[tuple[str, str], tuple[BoolArray, Float64Array]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for place, where in (("GPU", device), ("CPU", "cpu")):
            for name, policy in policies.items():
                score_images(policy, images, classifier, Path(folder), where)
                found[place, name] = read_decisions(Path(folder))
    for name in policies:
        on_gpu, on_cpu = found["GPU", name], found["CPU", name]
        what = f"{network.name} float32, score, {name}, GPU against CPU"
        yield make_value(what, "share of equal decisions", float(np.mean(on_gpu[0] == on_cpu[0])), "1")
        yield make_value(what, "largest difference of confidence", float(np.abs(on_gpu[1] - on_cpu[1]).max()))
    for place in ("GPU", "CPU"):
        equal = np.mean(found[place, "adaptive"][0] == found[place, "all looks"][0])
        what = f"{network.name} float32, score on the {place}, adaptive against all looks"
        yield make_value(what, "share of equal decisions", float(equal))


def measure_precision(network: Network, device: str, n_images: int) -> Iterator[Row]:
    """Compare confidences, predicted classes and decisions of each number type with float32 on the CPU."""
    half = len(network.pixels) // 2
    reference = network.load("cpu", "float32")
    threshold = make_rule(network.load(device, "float32"), network, half).threshold
    images = network.pixels[half : half + n_images]
    on_cpu = collect(reference, images, network.views, execution=Execution(progress=False))
    expected = confidence(on_cpu, METHOD)
    for dtype in DTYPES:
        preds = collect(network.load(device, dtype), images, network.views, execution=Execution(progress=False))
        values = confidence(preds, METHOD)
        differences = np.abs(values - expected)
        changed = np.mean(preds.predicted() != on_cpu.predicted())
        decided = np.mean((values >= threshold) != (expected >= threshold))
        what = f"{network.name} {dtype}, GPU against float32 on the CPU"
        yield make_value(what, "largest difference of confidence", float(differences.max()))
        yield make_value(what, "mean difference of confidence", float(differences.mean()))
        yield make_value(what, "share of changed classes", float(changed))
        yield make_value(what, "share of changed decisions", float(decided))


# --- Latency ---


def measure_latency(network: Network, device: str, dtype: str, decisions: int) -> Iterator[Row]:
    """Time decisions about one image in alternation with the bare forward of all its views, and of one."""
    image = network.pixels[0]
    plain = network.load(device, dtype)
    module, _ = get_module(plain)
    views = make_batches(plain, repeat_images(image[None], network.n_views), network.n_views, dtype)
    jobs: dict[str, Callable[[], object]] = {
        f"bare forward of {network.n_views}": partial(run_batches, module, views, 1, dtype),
        "bare forward of 1": partial(run_batches, module, [views[0][:1]], 1, dtype),
    }
    for name, options in LATENCY_VARIANTS.items():
        policy = make_policy(network.load(device, dtype, **options), views=ViewSet(network.views).texts)
        jobs[name] = partial(policy.decide, image)
    runs = [partial(finish, run) for run in jobs.values()]
    time_rounds(*runs, rounds=5)  # compiles, and records the graphs
    for name, seconds in zip(jobs, time_rounds(*runs, rounds=decisions), strict=True):
        yield make_value(f"{network.name} {dtype}, {name}", "milliseconds", 1000 * median(seconds))
