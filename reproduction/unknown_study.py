"""Study of unknown images: how many do policies accept, and what does a limit of familiarity change?

Run: python -m reproduction.unknown_study DATA STORE [--out DIR]

DATA has the folders cifar10, cifar10-jpeg and cifar100 with their classifiers. STORE keeps the predictions, to resume
and repeat the study without running the classifiers again. CIFAR-100 images are unknown to the CIFAR-10 classifiers and
vice versa; digits, patches of photographs, textures and noise are unknown to all of them.
"""

import argparse
import io
import json
import warnings
from collections.abc import Iterator, Mapping
from functools import cache, partial
from pathlib import Path

import numpy as np
from PIL import Image

import secondlook as sl
from reproduction.defaults_study import NORMALIZATION, RESNETS, WIDE_RESNETS, Row, format_line, read_images, write_rows
from reproduction.result_files import describe_circumstances, find_commit
from reproduction.sklearn_classifiers import cut_patches, load_digit_images
from reproduction.workspace import Provenance
from secondlook.arrays import Array, Float64Array, IntArray
from secondlook.metrics import METRICS
from secondlook.policies import Familiarity

RESULTS = Path(__file__).parent / "results" / "unknown"

CIFAR100_NETWORKS = ("c100-plain", "c100-smooth", "c100-mixup", "c100-small")
NETWORKS = (*RESNETS, *WIDE_RESNETS, *CIFAR100_NETWORKS)
CHOSEN_ON = ("resnet20", "wrn16-2-seed0", "c100-plain")
"""The score and its parameters were chosen on these only."""
MAX_CIFAR100_IMAGES = 4_000
"""For each set, for the CIFAR-100 classifiers, which have ten times the outputs."""
NORMALIZATIONS = {**NORMALIZATION, "cifar100": ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))}
VIEWS = "cifar10"
SIDE = 32
MADE_IMAGES = 1_000
JPEG_QUALITY = 75
"""JPEG quality of cifar10-jpeg; otherwise unknown images would already differ by their compression."""
KNOWN, NEAR = "known", "near"

SPLITS = 5
"""Number of random splits of the known images into a calibration half and a judged half."""
RISKS = {"cifar10": 0.01, "cifar10-jpeg": 0.01, "cifar100": 0.05}
DELTA = 0.05
EXAMPLES = 1_000
"""Maximum number of example unknown images; other images are judged."""
BUDGETS = (Familiarity.DEFAULT_BUDGET, 0.05)
DEFAULT, BUDGET, FITTED = "no limit", "budget", "examples"
"""Policies without a limit of familiarity, with a limit from known images, and with one fitted to examples."""
POLICIES = (DEFAULT, *(f"{kind} {budget:g}" for kind in (BUDGET, FITTED) for budget in BUDGETS))
COVERAGE, ERRORS, ACCEPTED = "coverage", "error rate", "unknown accepted"
MEASURED = (COVERAGE, ERRORS, ACCEPTED)


def find_folder(network: str) -> str:
    """Return the folder of a network."""
    if network in CIFAR100_NETWORKS:
        return "cifar100"
    return "cifar10" if network in RESNETS else "cifar10-jpeg"


def collect_network(data: Path, store: Path, network: str) -> dict[str, sl.Predictions]:
    """Return the predictions of a network for the known images, with labels, and each set of unknown ones."""
    folder = find_folder(network)
    mean, std = NORMALIZATIONS[folder]
    limit = MAX_CIFAR100_IMAGES if folder == "cifar100" else None
    model = sl.load_classifier(f"onnx:{data / folder / network}.onnx", output="logits", mean=mean, std=std)
    images, labels = read_images(data / folder)
    near, _ = read_images(data / ("cifar10" if folder == "cifar100" else "cifar100"))
    sets: dict[str, tuple[Array, IntArray | None]] = {KNOWN: (images, labels), NEAR: (near, None)}
    sets |= {name: (made, None) for name, made in make_far_sets().items()}
    collected = {}
    for name, (pixels, truth) in sets.items():
        pixels, truth = pixels[:limit], None if truth is None else truth[:limit]
        if folder == "cifar10-jpeg" and name != KNOWN:
            pixels = compress(pixels)
        stored = sl.collect(model, pixels, VIEWS, labels=truth, store=store / f"{network}-{name}")
        collected[name] = sl.Predictions(logits=stored.logits, views=stored.views, labels=truth)
    return collected


@cache
def make_far_sets() -> dict[str, Array]:
    """Return images unlike photographs of objects, by name. uint8 [n, 32, 32, 3] each"""
    digits = load_digit_images().images
    return {
        "digits": np.repeat(np.stack([resize(digit[..., 0]) for digit in digits])[..., None], 3, axis=3),
        "patches": cut_patches(even=False, count=MADE_IMAGES).images,
        "textures": make_textures(MADE_IMAGES),
        "noise": make_noise(MADE_IMAGES),
    }


def resize(image: Array) -> Array:
    """Enlarge a gray image to the size of the others. uint8 [H, W] -> [32, 32]"""
    resized: Array = np.asarray(Image.fromarray(image).resize((SIDE, SIDE), Image.Resampling.BICUBIC))
    return resized


def make_textures(count: int) -> Array:
    """Return gratings, checkerboards and blobs, each between two random colors. uint8 [n, 32, 32, 3]"""
    random = np.random.default_rng(0)
    y, x = np.mgrid[:SIDE, :SIDE]
    images = []
    for number in range(count):
        angle, period = random.uniform(0, np.pi), random.uniform(3, 16)
        along, across = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
        phases = random.uniform(0, 2 * np.pi, 2)
        if number % 3 == 0:
            pattern = np.sin(2 * np.pi * along / period + phases[0])
        elif number % 3 == 1:
            waves = (
                np.sin(2 * np.pi * each / period + phase) for each, phase in zip((along, across), phases, strict=True)
            )
            pattern = np.sign(next(waves) * next(waves))
        else:
            pattern = np.clip(2 * smooth(random.normal(size=(SIDE, SIDE)), period / 2), -1, 1)
        first, second = random.uniform(0, 255, (2, 3))
        images.append(first + (second - first) * (pattern[..., None] + 1) / 2)
    textures: Array = np.rint(np.stack(images)).astype(np.uint8)
    return textures


def make_noise(count: int) -> Array:
    """Return uniform noise, normal noise about gray, and smooth color noise. uint8 [n, 32, 32, 3]"""
    random = np.random.default_rng(1)
    images = []
    for number in range(count):
        if number % 3 == 0:
            image = random.uniform(0, 255, (SIDE, SIDE, 3))
        elif number % 3 == 1:
            image = random.normal(128, 48, (SIDE, SIDE, 3))
        else:
            width = random.uniform(0.7, 4)
            channels = [smooth(random.normal(size=(SIDE, SIDE)), width) for _ in range(3)]
            image = 128 + 64 * np.stack(channels, axis=2)
        images.append(np.clip(image, 0, 255))
    noise: Array = np.rint(np.stack(images)).astype(np.uint8)
    return noise


def smooth(values: Float64Array, width: float) -> Float64Array:
    """Blur noise and scale it to a standard deviation of 1. float64 [H, W]"""
    from scipy.ndimage import gaussian_filter

    blurred = gaussian_filter(values, width, mode="wrap")
    scaled: Float64Array = (blurred - blurred.mean()) / blurred.std()
    return scaled


def compress(images: Array) -> Array:
    """Compress images as JPEG and decode them. uint8 [n, 32, 32, 3]"""
    compressed = []
    for image in images:
        file = io.BytesIO()
        Image.fromarray(image).save(file, "JPEG", quality=JPEG_QUALITY)
        compressed.append(np.asarray(Image.open(file)))
    return np.stack(compressed)


# ---- Measurements


def measure_detection(sets: Mapping[str, sl.Predictions]) -> Iterator[Row]:
    """Yield AUROC and FPR95 of each score for detecting unknown images, in percent."""
    scores = {name: compute_scores(preds) for name, preds in sets.items()}
    for unknown in sets:
        if unknown == KNOWN:
            continue
        is_known = np.arange(sets[KNOWN].n_images + sets[unknown].n_images) < sets[KNOWN].n_images
        for score, values in scores[KNOWN].items():
            together = np.concatenate([values, scores[unknown][score]])
            found = (METRICS[name](is_known, together) for name in ("auroc", "fpr95"))
            yield {"set": unknown, "score": score} | dict(
                zip(("AUROC", "FPR95"), map(format_percent, found), strict=True)
            )


def compute_scores(preds: sl.Predictions) -> dict[str, Float64Array]:
    """Return the candidates for a familiarity. float64 [N] each"""
    logits, probabilities = preds.logits.astype(np.float64), preds.probabilities.astype(np.float64)
    largest = logits.max(axis=2)
    energy = largest + np.log(np.exp(logits - largest[:, :, None]).sum(axis=2))
    registered = {name: sl.confidence(preds, name) for name in ("msr", "mean", "blend", "gen")}
    return {
        **registered,
        "energy": energy.mean(axis=1),
        "max-logit": largest.mean(axis=1),
        "agreement": -probabilities.std(axis=1).sum(axis=1),
    }


def measure_policies(sets: Mapping[str, sl.Predictions], risk: float) -> list[Row]:
    """Return coverage, error rate and share of accepted unknown images of each policy, over the splits, in percent."""
    splits = [measure_split(sets, risk, seed) for seed in range(SPLITS)]
    rows = []
    for unknown, policy in splits[0]:
        measured = np.array([split[unknown, policy] for split in splits])
        row = {"set": unknown, "policy": policy}
        for column, mean, spread in zip(MEASURED, measured.mean(axis=0), measured.std(axis=0), strict=True):
            row |= {column: format_percent(mean), f"{column}, standard deviation": format_percent(spread)}
        rows.append(row)
    return rows


def measure_split(
    sets: Mapping[str, sl.Predictions], risk: float, seed: int
) -> dict[tuple[str, str], tuple[float, float, float]]:
    """Certify each policy on one half of the known images, and judge it on the other and on new unknown images."""
    random, known = np.random.default_rng(seed), sets[KNOWN]
    calibrating, judged = (known.select(images=half) for half in np.array_split(random.permutation(known.n_images), 2))
    certify = partial(sl.certify, calibrating, risk=risk, delta=DELTA)
    without = {DEFAULT: certify()} | {f"{BUDGET} {one:g}": certify(unknown_budget=one) for one in BUDGETS}
    measured = {}
    for name, unknown in sets.items():
        if name == KNOWN:
            continue
        order = random.permutation(unknown.n_images)
        n_examples = min(EXAMPLES, unknown.n_images // 2)
        examples, others = (unknown.select(images=part) for part in np.split(order, [n_examples]))
        fitted = {f"{FITTED} {one:g}": certify(unknown=examples, unknown_budget=one) for one in BUDGETS}
        for policy, made in (without | fitted).items():
            accepted = made.accept(judged)
            errors = float(np.mean(~judged.correct()[accepted])) if accepted.any() else 0.0
            measured[name, policy] = (float(accepted.mean()), errors, float(made.accept(others).mean()))
    return measured


# ---- Tables


def format_policies_table(rows: list[Row]) -> str:
    """Return the shares of accepted unknown images as a table in Markdown: averages over groups of networks."""
    groups = {"the ten of CIFAR-10": (*RESNETS, *WIDE_RESNETS), "the four of CIFAR-100": CIFAR100_NETWORKS}
    lines = [format_line(("networks", "unknown images", *POLICIES)), "|---" * (2 + len(POLICIES)) + "|"]
    for title, networks in groups.items():
        for unknown in dict.fromkeys(row["set"] for row in rows):
            found = [average_rows(rows, networks, unknown, policy) for policy in POLICIES]
            cells = [f"{found[0][ACCEPTED]:.1f} % ({found[0][COVERAGE]:.1f} %)"]
            for one in found[1:]:
                difference = one[COVERAGE] - found[0][COVERAGE]
                cells.append(f"{one[ACCEPTED]:.1f} %, x {one[ACCEPTED] / found[0][ACCEPTED]:.2f} ({difference:+.1f})")
            lines.append(format_line([title, unknown, *cells]))
    return "\n".join(lines)


def average_rows(rows: list[Row], networks: tuple[str, ...], unknown: str, policy: str) -> dict[str, float]:
    """Return the means of all measurements of a policy over networks."""
    chosen = [row for row in rows if row["network"] in networks and (row["set"], row["policy"]) == (unknown, policy)]
    return {column: float(np.mean([float(row[column]) for row in chosen])) for column in MEASURED}


def format_percent(value: float) -> str:
    """Format a fraction in percent for the result files."""
    return f"{100 * value:.3f}"


def main() -> None:
    """Run the study and write its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("store", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # about repeated calibrations: here they are splits
    tables: dict[str, list[Row]] = {"detection": [], "policies": []}
    for network in NETWORKS:
        sets = collect_network(arguments.data, arguments.store, network)
        measured = {
            "detection": measure_detection(sets),
            "policies": measure_policies(sets, RISKS[find_folder(network)]),
        }
        start = {"network": network, "chosen on": "yes" if network in CHOSEN_ON else "no"}
        for name, rows in measured.items():
            tables[name] += [start | row for row in rows]
            write_rows(arguments.out / f"{name}.csv", tables[name])
    circumstances = describe_circumstances("unknown", find_commit(), 0, None, Provenance({}, {}))
    (arguments.out / "circumstances.json").write_text(json.dumps(circumstances, indent=2) + "\n", encoding="utf-8")
    print(format_policies_table(tables["policies"]))


if __name__ == "__main__":
    main()
