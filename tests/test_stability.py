"""The same input gives the same numbers and the same stored bytes as before.

`stability.json` holds the results of every room for inputs that this file creates from random seeds and from the digits
of the demo: pixels of views, digests of sources and classifiers, files of a store, confidences, metrics, thresholds,
decisions. Users rely on them: a stored prediction is found by its digests, a certified threshold must accept the same
images tomorrow, and a published number must be reproducible.

Texts, counts, digests, decisions and pixels of exact views must be equal everywhere. Numbers may differ by `TOLERANCE`,
since other versions of NumPy, onnxruntime or OpenCV, and other processors, may round differently. Values named "bits"
are digests of arrays and files; they are compared only in the environment that they were recorded in (its versions are
in the file). Elsewhere, the numbers recorded beside them are compared, with a wider tolerance after a network or an
interpolation (`TOLERANCES`).

A change of these values is a change for users: it needs a reason, an entry in the changelog and, for stored bytes, a
new version of the format. Then record them again, and review the difference line by line:

    python tests/test_stability.py --write
"""

import csv
import hashlib
import json
import math
import platform
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import secondlook as sl
from secondlook.arrays import Array, BoolArray, Float64Array
from secondlook.classifiers import Preprocessing
from secondlook.cli import demo
from secondlook.cli.demo import digit_images, split_digits
from secondlook.decisions import Review
from secondlook.diagnosis import candidate_views, diagnose_views
from secondlook.estimators import METHODS, fit_method
from secondlook.metrics import METRICS, parse_metric, rank
from secondlook.policies import certify_confidence, threshold_for
from secondlook.views import PRESETS, STEPS

RECORDED = Path(__file__).with_name("stability.json")
MODEL = Path(demo.__file__).parent / "demo_data" / "digits.onnx"
TOLERANCE = 1e-6
MODEL_TOLERANCE = 1e-3
"""For numbers that start from the float32 outputs of a network, which differ more between versions of onnxruntime."""
PIXEL_TOLERANCE = 0.1
"""For the mean of interpolated pixels from 0 to 255."""

DIGIT_VIEWS = "identity shift:1,0 shift:-1,0 shift:0,1 rotate:5 zoom:1.06"
SYNTHETIC_VIEWS = "identity hflip shift:1,0 shift:-1,0 rotate:3 gamma:0.8"
STORED_VIEWS = "identity hflip+shift:2,-1 gamma:0.8"
EXACT_VIEWS = (
    *("identity", "hflip", "vflip", "shift:2,-1", "shift:-6.25%,12.5%", "hflip+shift:-3,0", "channels:bgr"),
    "gamma:0.8",
    *("gamma:2.2", "contrast:0.7", "contrast:1.5", "brightness:0.8", "brightness:1.3"),
    "vflip+gamma:0.8+contrast:1.2+brightness:0.9",
)
"""Copies of pixels and functions of single pixels, which have no room for rounding."""
INTERPOLATED_VIEWS = (
    *("shift:0.5,-1.25", "rotate:5", "rotate:-90", "zoom:1.1", "zoom:0.94"),
    *("gray", "blur:1.5", "noise:14", "crop:10,0,80,75", "hflip+rotate:5+gamma:0.9"),
)
POOL_VIEWS = (
    "identity shift:1,0 shift:-1,0 shift:0,1 shift:0,-1 rotate:2 rotate:-2 zoom:1.04 gamma:0.85 vflip rotate:90"
)
BORDERLINE_VIEWS = "identity " + " ".join(f"shift:{pixels},0" for pixels in range(26, 36))

Values = dict[str, Any]


# ------------------------------------------------------------------------------------------------------------ inputs


def make_images(seed: int, n: int, height: int, width: int, channels: int = 3) -> Array:
    """Return random images. uint8 [n, height, width, channels]"""
    return np.random.default_rng(seed).integers(0, 256, (n, height, width, channels), dtype=np.uint8)


def make_logits(seed: int, n: int, views: int, classes: int, noise: int = 2500) -> tuple[Array, Array]:
    """Return logits float32 [n, views, classes] and labels int64 [n], some of which the logits miss."""
    generator = np.random.default_rng(seed)
    leading = generator.integers(0, classes, n)
    values = generator.integers(-noise, noise + 1, (n, views, classes)) / 1000
    values[np.arange(n), :, leading] += generator.integers(0, 6000, n)[:, None] / 1000
    labels = np.where(generator.integers(0, 100, n) < 12, (leading + 1) % classes, leading)
    return values.astype(np.float32), labels


def make_confidence(
    seed: int, n: int, steps: int, lowest: int = 50, highest: int = 100
) -> tuple[BoolArray, Float64Array]:
    """Return correctness bool [n] and confidence float64 [n] in steps; the accuracy grows with it, given in percent."""
    generator = np.random.default_rng(seed)
    step = generator.integers(0, steps + 1, n)
    return generator.integers(0, 100 * steps, n) < lowest * steps + (highest - lowest) * step, step / steps


def make_borderline_logits() -> Array:
    """Return logits for `BORDERLINE_VIEWS`; the view shift:C,0 changes C of the 200 most confident predictions."""
    logits = np.zeros((400, 11, 3), dtype=np.float32)
    logits[:, :, 0] = 1 + np.arange(400)[:, None] / 100
    for position, changed in enumerate(range(26, 36), start=1):
        logits[400 - changed :, position, 1] = 20
    return logits


@cache
def synthetic_predictions() -> dict[str, sl.Predictions]:
    """Return predictions of one classifier and of an ensemble, for 150 images."""
    logits, labels = make_logits(21, 150, 6, 8)
    logits[11] = logits[10]  # a tie
    moved = logits + np.random.default_rng(22).integers(-1500, 1501, logits.shape) / 1000
    first, second = (
        sl.Predictions(logits=values.astype(np.float32), views=SYNTHETIC_VIEWS, labels=labels)
        for values in (logits, moved)
    )
    return {"logits": first, "ensemble": sl.Predictions(members=[first, second], views=SYNTHETIC_VIEWS)}


@cache
def digit_predictions() -> sl.Predictions:
    """Return predictions of the network of the demo for 798 labeled digits."""
    images, labels = digit_images()
    chosen = split_digits()[1][:798]
    source = sl.open_source(images[chosen], labels=labels[chosen])
    return sl.collect(f"onnx:{MODEL}", source, DIGIT_VIEWS, execution=sl.Execution(progress=False))


def find_brightest_quadrant(images: Array) -> Array:
    """Classify by the brightness of each quadrant, in integers. uint8 [N, H, W, C] -> float32 logits [N, 4]"""
    pixels = images.astype(np.int64).sum(axis=3)
    height, width = pixels.shape[1] // 2, pixels.shape[2] // 2
    halves = (pixels[:, :height], pixels[:, height:])
    quadrants = [part for half in halves for part in (half[:, :, :width], half[:, :, width:])]
    return (np.stack([part.sum(axis=(1, 2)) for part in quadrants], axis=1) / 2048).astype(np.float32)


def write_bmp(path: Path, pixels: Array) -> None:
    """Write an image byte by byte, since files of an image library depend on its version. uint8 [H, W, 3]"""
    height, width = pixels.shape[:2]
    padded = np.zeros((height, -(-3 * width // 4) * 4), dtype=np.uint8)
    padded[:, : 3 * width] = pixels[::-1, :, ::-1].reshape(height, -1)
    header = struct.pack("<2sIHHIIiiHHIIiiII", b"BM", 54 + padded.size, 0, 0, 54, 40, width, height, 1, 24, *[0] * 6)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header + padded.tobytes())


def write_photos(folder: Path) -> Path:
    """Write 12 images in folders of four classes, and an empty file, which cannot be read."""
    for index, pixels in enumerate(make_images(31, 12, 20, 18)):
        write_bmp(folder / ("bird", "car", "dog", "ship")[index % 4] / f"{index:02d}.bmp", pixels)
    (folder / "car" / "empty.png").write_bytes(b"")
    return folder


# ------------------------------------------------------------------------------------------------------------ values


def digest(content: bytes | str) -> str:
    """Return 16 hexadecimal digits of the sha256."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()[:16]


def digest_pixels(images: Array) -> str:
    """Return the digest of the shape and the pixels."""
    return digest(f"{images.dtype.str}{list(images.shape)}".encode() + np.ascontiguousarray(images).tobytes())


def summarize(values: Array) -> Values:
    """Return the bits of an array, and its shape, sum and first numbers for other environments."""
    array = np.ascontiguousarray(values, dtype="<f8")
    flat = array.ravel().tolist()
    total = math.fsum(value for value in flat if math.isfinite(value))
    return {"bits": digest(array.tobytes()), "shape": list(array.shape), "sum": total, "first": flat[:2]}


def describe_rule(rule: sl.Policy) -> Values:
    """Return the numbers of a rule."""
    counts, shortfall = rule.calibration, rule.shortfall
    assert counts is not None
    return {
        "threshold": None if math.isinf(rule.threshold) else rule.threshold,
        "images, accepted, errors": [counts.images, counts.accepted, counts.errors],
        "certified": rule.certified,
        "smallest risk, more images": shortfall and [shortfall.smallest_risk, shortfall.additional_images],
    }


def compute_views(_: Path) -> Values:
    """Pixels of every step on color, gray and float images, and the texts of presets."""
    color, gray = make_images(11, 3, 32, 32), make_images(12, 2, 20, 28, channels=1)
    values: Values = {"steps": [step.form for step in STEPS.values() if _is_built_in(step.operation)]}
    for text in EXACT_VIEWS:
        batches = (color,) if "channels" in text else (color, gray)
        values[text] = [digest_pixels(_apply_view(batch, text)) for batch in batches]
    for text in INTERPOLATED_VIEWS:
        pixels = _apply_view(color, text)
        values[text] = {"bits": digest_pixels(pixels), "mean pixel": float(pixels.mean())}
    for text in ("hflip+shift:3,1", "gamma:0.8+contrast:1.2", "rotate:5"):
        values[f"{text} in float32"] = summarize(_apply_view(color.astype(np.float32) / np.float32(255), text))
    for name, preset in PRESETS.items():
        values[f"preset {name}"] = [len(preset.views.split()), digest(" ".join(preset.views.split()))]
    return values


def _apply_view(images: Array, text: str) -> Array:
    """Return one view of a batch. [N, H, W, C]"""
    views = ["identity"] if text == "identity" else ["identity", text]
    pixels: Array = sl.apply_views(images, views)[:, -1]
    return pixels


def compute_sources(folder: Path) -> Values:
    """Digests, ids and labels of sources and their subsets."""
    images, labels = make_images(12, 40, 12, 10), np.random.default_rng(13).integers(0, 4, 40)
    np.savez(folder / "images.npz", images=images, labels=labels, class_names=np.array(["a", "b", "c", "d"]))
    photos = write_photos(folder / "photos")
    (folder / "list.csv").write_text(
        "path,label\nphotos/bird/00.bmp,bird\nphotos/dog/02.bmp,dog\nphotos/car/01.bmp,car\n"
    )
    array = sl.open_source(images, labels=labels)
    sources = {
        "array": array,
        "array without labels": array.without_labels(),
        "float array": sl.open_source((images[:3] / 256).astype(np.float32)),
        "npz": sl.open_source(f"npz:{folder}/images.npz"),
        "npz, experimental": sl.open_source(f"npz:{folder}/images.npz?subset=experimental&count=7&seed=3"),
        "npz, evaluation": sl.open_source(f"npz:{folder}/images.npz?subset=evaluation&fraction=0.33"),
        "npz, limit 5": sl.open_source(f"npz:{folder}/images.npz?limit=5"),
        "folder": sl.open_source(f"folder:{photos}?on_error=skip"),
        "csv": sl.open_source(f"csv:{folder}/list.csv"),
    }
    return {name: _describe_source(source) for name, source in sources.items()}


def _describe_source(source: sl.Source) -> Values:
    batches = list(source.batches(7))
    ids = list(source.ids)
    return {
        "digest": source.digest[:32],
        "ids": ids if len(ids) < 8 else [len(ids), ids[-1], digest("\n".join(ids))],
        "labels": None if source.labels is None else "".join(str(label) for label in source.labels),
        "pixels": digest("".join(digest_pixels(image) for batch in batches for image in batch.images)),
        "skipped": [skipped.id for skipped in source.skipped],
    }


def compute_classifiers(_: Path) -> Values:
    """Digests of classifiers and preprocessing, and the input and output of the network."""
    plain = sl.load_classifier(f"onnx:{MODEL}")
    shifted = sl.load_classifier(f"onnx:{MODEL}?mean=0.1&std=1.25")
    function = sl.load_classifier(find_brightest_quadrant, name="quadrants", output="logits", resize=20, crop=16)
    values: Values = {}
    for name, classifier in (
        ("network", plain),
        ("network, other preprocessing", shifted),
        ("function", function),
        ("ensemble", sl.load_classifier([plain, shifted])),
    ):
        values[name] = [classifier.output, classifier.digest[:32], classifier.preprocessing.digest[:32]]
    values["network: logits"] = summarize(plain(plain.preprocessing.fit(digit_images()[0][:20])))
    color = make_images(11, 3, 32, 32)
    for key, preprocessing in {
        "bicubic, crop, mean and std": Preprocessing(
            resize=20, crop=16, interpolation="bicubic", mean=(0.5,), std=(0.25,)
        ),
        "BGR, NHWC, lanczos": Preprocessing(resize=(40, 24), interpolation="lanczos", color="BGR", layout="NHWC"),
        "gray": Preprocessing(channels=1, gray="luminance"),
    }.items():
        values[f"preprocessing: {key}"] = [
            preprocessing.digest[:32],
            summarize(preprocessing.normalize(preprocessing.fit(color))),
        ]
    return values


def compute_store(folder: Path) -> Values:
    """Names and bytes of the files of a store, their columns and metadata, and the predictions read from them."""
    images, labels = make_images(41, 1030, 8, 8), np.random.default_rng(42).integers(0, 4, 1030)
    classifier = sl.load_classifier(find_brightest_quadrant, name="quadrants", output="logits")
    source = sl.open_source(images, labels=labels, class_names=["a", "b", "c", "d"])
    sl.collect(classifier, source, STORED_VIEWS, store=folder / "store", execution=sl.Execution(progress=False))
    values: Values = _describe_files(folder / "store")
    stored = sl.Predictions.open(folder / "store")
    values["logits"] = digest_pixels(stored.logits)
    values["ids, labels"] = [digest("\n".join(stored.ids)), digest_pixels(stored.labels)]

    photos = f"folder:{write_photos(folder / 'photos')}"
    ensemble = sl.load_classifier(
        [classifier, sl.load_classifier(find_brightest_quadrant, name="other", output="logits")]
    )
    preds = sl.collect(
        ensemble, photos, STORED_VIEWS, store=folder / "two", execution=sl.Execution(on_error="skip", progress=False)
    )
    values["ensemble: files"] = sorted(
        path.relative_to(folder / "two").as_posix() for path in _list_files(folder / "two")
    )
    manifest = next(json.loads(path.read_bytes()) for path in folder.rglob("ensemble.json"))
    del manifest["checksum"]
    values["ensemble: ensemble.json"] = manifest
    values["ensemble: logits of a member"] = digest_pixels(preds.members[1].logits)
    values["ensemble: ids, skipped"] = [list(preds.ids), [image for image, _ in preds.members[0].skipped]]
    return values


def _list_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")


def _describe_files(folder: Path) -> Values:
    import pyarrow.parquet as pq

    values: Values = {}
    for path in _list_files(folder):
        name = path.relative_to(folder).as_posix()
        if path.suffix == ".json":
            content = json.loads(path.read_bytes())
            del content["versions"], content["checksum"]
            values[name] = content
            continue
        schema = pq.read_schema(path)
        columns = ", ".join(f"{field.name} {field.type}" for field in schema)
        metadata = {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}
        values[name] = {"bits": digest(path.read_bytes()), "columns": columns, **metadata}
    return values


def compute_confidences(_: Path) -> Values:
    """Confidences of every method for the predicted class and for the top three, and the bootstrap intervals."""
    features = ("log_odds", "log_margin", "margin", "logit_norm", "image_log_odds")
    learned: dict[str, Any] = {"intercept": -0.25, **dict(zip(features, (0.25, 0.125, 0.5, 1.0, 0.375), strict=True))}
    requests: list[tuple[str, str, dict[str, Any]]] = [
        *((method, "", {}) for method in ("msr", "mean", "view:rotate:3")),
        ("gen", "", {}),
        ("zero", "", {}),
        ("zero", "share=0.5", {"share": 0.5}),
        *((method, "", {}) for method in ("bootstrap", "max-logit-pnorm")),
        ("mean", "temperature=fit", {"temperature": "fit"}),
        ("blend", "", {}),
        ("learned", "with given weights", learned),
        ("max-logit-pnorm", "p=3", {"p": 3.0}),
        ("bootstrap", "resamples=50, window=20, seed=3", {"resamples": 50, "window": 20, "seed": 3}),
    ]
    values: Values = {"methods": [one.form for one in METHODS.values() if _is_built_in(one.compute)]}
    for kind, preds in synthetic_predictions().items():
        for method, text, options in requests:
            in_ensembles = ("mean", "bootstrap", "blend", "learned", "zero")
            if kind == "ensemble" and method not in in_ensembles:
                continue
            values[f"{kind}: {method} {text}".strip()] = [
                summarize(sl.confidence(preds, method, **options)),
                summarize(sl.confidence(preds, method, predict_from="views", top_k=3, **options)),
            ]
        ends = sl.confidence_interval(preds, 0.9, "mean", seed=2, resamples=80)
        values[f"{kind}: confidence_interval"] = [summarize(end) for end in ends]
        ends = sl.confidence_interval(preds, 0.9, "learned", seed=2, resamples=80, **learned)
        values[f"{kind}: confidence_interval of learned"] = [summarize(end) for end in ends]
        values[f"{kind}: fit_temperature"] = fit_method(preds, "mean", temperature="fit")["temperature"]
        values[f"{kind}: predicted, correct"] = [
            [digest_pixels(preds.predicted("image")), digest_pixels(preds.predicted("views", 3))],
            [int(preds.correct("image").sum()), int(preds.correct("views").sum()), int(preds.correct(top_k=3).sum())],
        ]
    return values


def compute_metrics(_: Path) -> Values:
    """Every metric on confidences with and without ties, and one evaluation with intervals."""
    parameters = {"risk_at": (0.1, 0.8), "coverage_at": (0.01, 0.1)}
    values: Values = {}
    for name, (correct, confidence) in {
        "ties": make_confidence(101, 200, 20, 15, 90),
        "distinct": make_confidence(102, 101, 10**9, 15, 90),
    }.items():
        for metric in sorted(METRICS.values(), key=lambda one: one.name):
            if _is_built_in(metric.function):
                texts = [f"{metric.name}:{number}" for number in parameters.get(metric.name, ())] or [metric.name]
                for text in texts:
                    values[f"{name}: {text}"] = parse_metric(text).compute(rank(correct, confidence))
        values[f"{name}: aupr, ties at a threshold"] = sl.metrics.aupr(correct, confidence, ties="threshold")
        curve, reliability = rank(correct, confidence).risk_coverage(), rank(correct, confidence).reliability()
        values[f"{name}: risk_coverage"] = summarize(curve.risk)
        values[f"{name}: reliability"] = [summarize(reliability.confidence), reliability.images.tolist()]
    preds = synthetic_predictions()["logits"]
    for row in sl.evaluate(preds, ["msr", "mean"], ["auroc", "aurc", "brier"], resamples=40).rows:
        own, paired = row.interval, row.difference_interval
        ends = [own and own.low, own and own.high, row.difference, paired and paired.low, paired and paired.high]
        values[f"evaluate: {row.method} {row.metric}"] = [row.value, *ends, row.verdict]
    return values


def compute_certificates(_: Path) -> Values:
    """Certified thresholds, and the reasons without a guarantee."""
    values: Values = {}
    correct, confidence = make_confidence(104, 20_000, 20_000)
    for risk, delta in ((0.001, 0.05), (0.005, 0.001), (0.02, 0.05), (0.05, 0.001), (0.1, 0.3)):
        rule = certify_confidence(correct, confidence, risk=risk, delta=delta)
        values[f"20,000 images, risk {risk}, delta {delta}"] = describe_rule(rule)
    rule = certify_confidence(*make_confidence(105, 400, 12), risk=0.3, delta=0.05)
    values["ties, risk 0.3, delta 0.05"] = describe_rule(rule)
    rule = certify_confidence(*make_confidence(106, 90, 60, 90, 100), risk=0.05, delta=0.01)
    values["few images, risk 0.05, delta 0.01"] = describe_rule(rule)
    logits, labels = make_logits(107, 3000, 2, 4)
    labels[logits[:, 0].argmax(axis=1) == 1] = 1  # no error in this class, which leaves more of delta to the others
    preds = sl.Predictions(logits=logits, views="identity hflip", labels=labels)
    rule = sl.certify(preds, "mean", risk={2: 0.4, "*": 0.25}, delta=0.05, groups="class")
    for group in rule.groups:
        threshold = group.threshold if math.isfinite(group.threshold) else None
        counts = {"images, accepted, errors": [group.images, group.accepted, group.errors]}
        values[f"class {group.name}"] = {"threshold": threshold, **counts, "more images": group.additional_images}
    return values


def compute_decisions(folder: Path) -> Values:
    """Policies of the network of the demo, and their decisions about new digits."""
    preds = digit_predictions()
    rules = {
        "mean": sl.certify(preds, "mean", risk=0.03, delta=0.05),
        "top three": sl.certify(preds, "blend", risk=0.005, delta=0.1, predict_from="views", top_k=3),
        "coverage": threshold_for(preds, "zero", coverage=0.8, share=0.5),
    }
    images = digit_images()[0][split_digits()[1][798:998]]
    np.savez(folder / "new.npz", images=images)
    classifier = sl.load_classifier(f"onnx:{MODEL}")
    values: Values = {"logits": summarize(preds.logits)}
    accepted = rules["mean"].accept(preds)
    values["mean: accepted calibration images"] = int(accepted.sum())
    for name, rule in rules.items():
        rule.save(folder / f"{name}.json")
        loaded = sl.load_policy(folder / f"{name}.json")
        assert loaded.replace(made=rule.made) == rule
        values[f"{name}: rule"] = describe_rule(loaded)
        out = folder / f"{name}.csv"
        per_view = name == "coverage"
        summary = sl.score(
            folder / f"{name}.json",
            f"npz:{folder}/new.npz",
            out,
            classifier=classifier,
            per_view=per_view,
            review=Review(rejected=folder / f"rejected-{name}"),
            execution=sl.Execution(progress=False),
        )
        values[f"{name}: scores"] = _describe_scores(out)
        values[f"{name}: accepted, rejected"] = [summary.accepted, summary.rejected]
        values[f"{name}: rejected.csv"] = _describe_rejected(folder / f"rejected-{name}" / "rejected.csv")
    return values


def _describe_scores(path: Path) -> Values:
    rows = _read_csv(path)
    numbers = [[float(row[column]) for column in ("confidence", "low", "high")] for row in rows]
    return {
        "bits": digest(path.read_bytes()),
        "columns": list(rows[0]),
        "rejected": " ".join(row["id"].lstrip("0") for row in rows if row["accept"] == "false"),
        "labels": digest("".join(row["label"] for row in rows)),
        "first": numbers[0],
        "sums": [math.fsum(column) for column in zip(*numbers, strict=True)],
    }


def _describe_rejected(path: Path) -> Values:
    rows = _read_csv(path)
    names = sorted(row["file"] for row in rows)
    return {"bits": digest(path.read_bytes()), "columns": list(rows[0]), "files": [names[0], digest("\n".join(names))]}


def _read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def compute_diagnosis(_: Path) -> Values:
    """Diagnosis of views, and candidates."""
    logits, labels = make_logits(31, 300, 11, 10, noise=1000)
    generator = np.random.default_rng(32)
    values = logits + generator.integers(-1500, 1501, (300, 1, 10)) / 1000
    values[:, 7:9] *= 0.8  # weak views
    for position, percentage in ((9, 40), (10, 80)):  # harmful views
        changed = generator.integers(0, 100, 300) < percentage
        values[changed, position] = generator.integers(-3000, 3001, (int(changed.sum()), 10)) / 1000
    preds = sl.Predictions(logits=values.astype(np.float32), views=POOL_VIEWS, labels=labels)
    result: Values = {}
    for row in diagnose_views(preds):
        agreement = row.agreement
        numbers = [agreement.overall, agreement.confident, agreement.confidence_drop, row.accuracy]
        result[row.view] = [row.status, *numbers, row.auroc_alone, row.auroc_with_image, row.label_mass_drop]
    borderline = diagnose_views(sl.Predictions(logits=make_borderline_logits(), views=BORDERLINE_VIEWS))
    result["harmful views by confident predictions changed"] = " ".join(borderline.harmful)
    for kind, size in (("natural", 32), ("natural", 224), ("digits", 16), ("harmful", 64)):
        texts = candidate_views(kind, size, None).texts
        result[f"candidates {kind} {size}"] = [len(texts), digest(" ".join(texts))]
    return result


def _is_built_in(function: object) -> bool:
    """Return whether a registered function belongs to the library and not to another test."""
    return str(getattr(function, "__module__", "")).startswith("secondlook.")


SECTIONS: dict[str, Callable[[Path], Values]] = {
    "views": compute_views,
    "sources": compute_sources,
    "classifiers": compute_classifiers,
    "store": compute_store,
    "confidences": compute_confidences,
    "metrics": compute_metrics,
    "certificates": compute_certificates,
    "decisions": compute_decisions,
    "diagnosis": compute_diagnosis,
}
TOLERANCES = {"views": PIXEL_TOLERANCE / 255, "classifiers": MODEL_TOLERANCE, "decisions": MODEL_TOLERANCE}
"""Relative tolerance of numbers in another environment, where it is not `TOLERANCE`."""


# -------------------------------------------------------------------------------------------------------- comparison


def describe_environment() -> dict[str, str]:
    """Return the versions and the hardware that may change the last bits of a number or the bytes of a file."""
    import cv2
    import numba
    import onnxruntime
    import PIL
    import pyarrow
    import scipy

    modules = (np, scipy, numba, pyarrow, cv2, onnxruntime, PIL)
    extensions = np.show_config(mode="dicts").get("SIMD Extensions", {})
    return {
        "machine": f"{platform.system()} {platform.machine()} {' '.join(extensions.get('found', []))}",
        **{module.__name__: module.__version__ for module in modules},
    }


def find_differences(expected: Any, found: Any, tolerance: float, *, bits: bool, where: str = "") -> Iterator[str]:
    """Yield every difference between recorded and computed values; bits are compared only if asked for."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in expected | found:
            if key == "bits" and not bits:
                continue
            if key not in expected or key not in found:
                yield f"{where}: {key!r} is only in the {'computed' if key in found else 'recorded'} values"
            else:
                yield from find_differences(expected[key], found[key], tolerance, bits=bits, where=f"{where}/{key}")
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for index, (one, other) in enumerate(zip(expected, found, strict=True)):
            yield from find_differences(one, other, tolerance, bits=bits, where=f"{where}[{index}]")
    elif isinstance(expected, float) and isinstance(found, float):
        if not math.isclose(expected, found, rel_tol=tolerance, abs_tol=tolerance):
            yield f"{where}: recorded {expected!r}, computed {found!r}"
    elif type(expected) is not type(found) or expected != found:
        yield f"{where}: recorded {expected!r}, computed {found!r}"


def compute_section(name: str, folder: Path) -> Any:
    """Return the values of a section as JSON reads them."""
    return json.loads(json.dumps(SECTIONS[name](folder), allow_nan=False))


def write_values(path: Path) -> None:
    """Record the values of the present code."""
    values: dict[str, Values] = {"environment": dict(describe_environment())}
    for name in SECTIONS:
        with tempfile.TemporaryDirectory() as folder:
            values[name] = compute_section(name, Path(folder))
    blocks = []
    for name, section in values.items():
        lines = [f"  {_encode(key)}: {_encode(value)}" for key, value in section.items()]
        blocks.append(f"{_encode(name)}: {{\n" + ",\n".join(lines) + "\n}")
    path.write_text("{\n" + ",\n".join(blocks) + "\n}\n", encoding="utf-8")


def _encode(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# ------------------------------------------------------------------------------------------------------------- tests


@pytest.mark.parametrize("section", SECTIONS)
def test_same_input_gives_the_same_numbers_and_bytes(section: str, tmp_path: Path) -> None:
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    same_environment = recorded["environment"] == describe_environment()
    tolerance = TOLERANCE if same_environment else TOLERANCES.get(section, TOLERANCE)
    found = compute_section(section, tmp_path)
    assert list(find_differences(recorded[section], found, tolerance, bits=same_environment)) == []


def test_every_built_in_method_metric_and_step_is_recorded() -> None:
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    methods = {key.split(": ")[1].split()[0].partition(":")[0] for key in recorded["confidences"] if ": " in key}
    metrics = {key.removeprefix("ties: ").partition(":")[0] for key in recorded["metrics"] if key.startswith("ties: ")}
    steps = {step.partition(":")[0] for text in recorded["views"] for step in text.split()[0].split("+")}
    assert {name for name, one in METHODS.items() if _is_built_in(one.compute)} <= methods
    assert {name for name, one in METRICS.items() if _is_built_in(one.function)} <= metrics
    assert {name for name, one in STEPS.items() if _is_built_in(one.operation)} <= steps


def test_bits_count_only_in_the_recorded_environment() -> None:
    recorded = {"bits": "00", "sum": 2.0, "labels": "0123"}
    rounded = {"bits": "01", "sum": 2.0 + 1e-7, "labels": "0123"}
    assert list(find_differences(recorded, rounded, TOLERANCE, bits=False)) == []
    assert len(list(find_differences(recorded, rounded, TOLERANCE, bits=True))) == 1
    assert len(list(find_differences(recorded, {**recorded, "sum": 2.0001}, TOLERANCE, bits=False))) == 1
    assert len(list(find_differences(recorded, {**recorded, "labels": "0124"}, TOLERANCE, bits=False))) == 1
    assert len(list(find_differences(recorded, {"bits": "00", "sum": 2.0}, TOLERANCE, bits=False))) == 1


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        raise SystemExit("usage: python tests/test_stability.py --write")
    write_values(RECORDED)
    print(f"{RECORDED}: {RECORDED.stat().st_size:,} bytes")
