"""The report page: one HTML file with its styles, scripts, data and pictures."""

import base64
import hashlib
import io
import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from secondlook.arrays import Array, IntArray, as_pixels
from secondlook.errors import ANY, Repair, ReportError
from secondlook.estimators import find_method
from secondlook.files import write_bytes_atomically
from secondlook.metrics import Interval, parse_metric
from secondlook.policies import Policy
from secondlook.predictions import Predictions
from secondlook.report.findings import Findings, class_aurocs, rank_cells, rank_changes
from secondlook.report.operating_points import (
    AdaptiveLooking,
    OperatingPoint,
    describe_decisions,
    describe_policy,
    format_percent,
    thin_ranking,
)
from secondlook.report.study import Study, name_method
from secondlook.report.summary import summarize
from secondlook.tables import ARROWS, format_difference, format_value

if TYPE_CHECKING:
    from PIL.Image import Image

SCRIPTS = (
    "arrays chart tables risk_plot confidence_plots thresholds decisions confusions class_table galleries "
    "adaptive_looking operating_point page"
)
"""Concatenated in this order; `page` starts the others."""
MAX_MOST_LOOKS = 12
MAX_THRESHOLDS = 200_000
"""Maximum number of thresholds of all methods together: at most 22 bytes each, so less than 4.5 MB."""
MAX_BYTES = 3_000_000
"""Size limit for the pictures of known images, and for those of unknown ones; the rest is not shown."""
IMAGE_SIDE, IMAGE_QUALITY = 160, 85
VIEW_SIDE, VIEW_QUALITY = 80, 75
SHEET_COLUMNS = 16

Picture = dict[str, Any]
"""Data of an image for the script of a page.

`picture` and `sheet` are data URIs; `sheet` has all views in rows of at most 16. `view_predicted` is the class
predicted from each view alone, and `view_probabilities` its probability.
"""


def render_report_page(
    findings: Findings, images: Mapping[int, Picture], unknown_images: Mapping[int, Picture], **texts: Any
) -> str:
    """Return the HTML of a report; `texts` are additional template values."""
    study = findings.study
    return render_template(
        "report.html",
        styles="design report summary",
        scripts=SCRIPTS,
        data=describe_page_data(findings, images, unknown_images),
        filters={
            "words": name_method,
            "scaled": _format_scaled,
            "ends": _format_ends,
            "change": _format_change,
            "change_ends": partial(_format_ends, format_end=_format_change),
        },
        findings=findings,
        study=study,
        summary=summarize(findings),
        lead=describe_decisions(study.n_images, study.n_errors, findings.point),
        parse_metric=parse_metric,
        arrows=ARROWS,
        find_method=find_method,
        images=images,
        unknown_images=unknown_images,
        skipped=study.preds.skipped,
        max_skipped_rows=200,
        **texts,
    )


def describe_page_data(
    findings: Findings, images: Mapping[int, Picture], unknown_images: Mapping[int, Picture]
) -> dict[str, object]:
    """Return the data for the script."""
    study = findings.study
    ranked_cells = rank_cells(study, findings.cells, findings.method)
    return {
        "images": study.n_images,
        "errors": study.n_errors,
        "top_k": study.settings.top_k,
        "delta": findings.delta,
        "sharing": [name_method(name) for name in findings.sharing],
        "level": findings.evaluation.level,
        "compared": [name for name in (study.baseline, study.second_look) if name],
        "method": findings.method,
        "risk": findings.risk,
        "policy": None if study.policy is None else _policy_data(findings, study.policy),
        "risks": pack_array(findings.risks),
        "classes": study.class_names,
        "views": [view.describe() for view in study.preds.views],
        "cells": _pack_fields(findings.cells, "labels", "predicted", "correct", "images"),
        "methods": [_method_data(findings, name, ranked_cells.get(name)) for name in study.confidences],
        "adaptive": None if isinstance(findings.adaptive, str) else _adaptive_data(findings.adaptive, images),
        "sheet_columns": SHEET_COLUMNS,
        "pictures": _picture_data(findings, images),
        "unknown": None if study.unknown is None else study.unknown.n_images,
        "unknown_pictures": _unknown_picture_data(study, unknown_images),
    }


def pack_array(values: Array) -> dict[str, str]:
    """Return an array as base64 text: little-endian, integers in the smallest sufficient type, floats unchanged."""
    if values.dtype == np.bool_ or np.issubdtype(values.dtype, np.integer):
        largest = int(values.max()) if len(values) else 0
        kind = "u1" if largest < 2**8 else "u2" if largest < 2**16 else "u4"
    else:
        kind = "f4" if values.dtype == np.float32 else "f8"
    encoded = base64.b64encode(values.astype(f"<{kind}").tobytes()).decode("ascii")
    return {"type": kind, "data": encoded}


def _method_data(findings: Findings, name: str, ranked_cells: Array | None) -> dict[str, object]:
    study, certified, curve = findings.study, findings.certified[name], findings.curves[name]
    drawn = ("risk", "band_coverage", "low", "high")
    ranking = thin_ranking(study.rankings[name], MAX_THRESHOLDS // len(study.rankings))
    reliability = study.rankings[name].reliability() if name in study.probabilities else None
    aurocs = np.full(len(study.class_names), np.nan, dtype=np.float32)  # NaN: undefined
    for index, value in class_aurocs(study, name).items():
        aurocs[index] = value
    unknown = None
    if study.unknown is not None and not find_method(name).is_rank:
        values = np.sort(study.together[name][study.n_images :])
        unknown = pack_array(len(values) - values.searchsorted(ranking.confidences))  # accepted at each threshold
    return {
        "name": name,
        "words": name_method(name),
        "complete": len(ranking.accepted) == len(study.rankings[name].accepted),
        "thresholds": pack_array(ranking.confidences),
        "sizes": pack_array(ranking.tie_sizes),
        "wrong": pack_array(ranking.tie_errors),
        "unknown": unknown,
        "cells": None if ranked_cells is None else pack_array(ranked_cells),
        "class_aurocs": pack_array(aurocs),
        # float32 is exact to less than a thousandth of a pixel.
        "curve": {
            "accepted": pack_array(curve.accepted),
            **{one: pack_array(getattr(curve, one).astype(np.float32)) for one in drawn},
        },
        "histogram": _pack_fields(study.rankings[name].histogram(), "edges", "correct", "wrong"),
        "reliability": None if reliability is None else _pack_fields(reliability, "confidence", "accuracy", "images"),
        "certified": None if isinstance(certified, str) else _pack_points(certified),
        "no_guarantee": certified if isinstance(certified, str) else None,
    }


def _pack_points(points: list[OperatingPoint]) -> dict[str, dict[str, str]]:
    columns = {"thresholds": "threshold", "accepted": "accepted", "errors": "errors"}
    return {name: pack_array(np.array([getattr(one, field) for one in points])) for name, field in columns.items()}


def _pack_fields(record: object, *names: str) -> dict[str, dict[str, str]]:
    return {name: pack_array(getattr(record, name)) for name in names}


def _adaptive_data(adaptive: AdaptiveLooking, images: Mapping[int, Picture]) -> dict[str, object]:
    ends = {"chosen": adaptive.frontier.chosen, "all_looks": adaptive.frontier.all_looks}
    places = {index: place for place, index in enumerate(images)}
    shown = [index for index in adaptive.ranked.tolist() if index in places][:MAX_MOST_LOOKS]
    return {
        "looks": [point.looks for point in adaptive.frontier.certified_points],
        "coverage": [point.coverage for point in adaptive.frontier.certified_points],
        **{name: {"looks": point.looks, "coverage": point.coverage} for name, point in ends.items()},
        "most_looks": [
            {"picture": places[index], "looks": int(adaptive.looks[index]), "accepted": bool(adaptive.accepted[index])}
            for index in shown
        ],
    }


def _policy_data(findings: Findings, policy: Policy) -> dict[str, object]:
    """Return the decisions of a policy and two sentences about it."""
    unknown, counted = findings.study.unknown, ""
    if policy.calibration is not None and policy.calibration.images < findings.study.n_images:
        counted = f", on {policy.calibration.images:,} of these images"
    return {
        "method": findings.method,
        "accepted": findings.point.accepted,
        "errors": findings.point.errors,
        "cells": pack_array(findings.cells.count(findings.accepted)),
        "unknown": None if unknown is None else int(policy.accept(unknown).sum()),
        "threshold_text": "one per class" if policy.groups else f"{policy.threshold:.6g}",
        "setting": describe_policy(policy),
        "guarantee": (
            f"{'Certified' if policy.certified else 'Not certified'}: {policy.guarantee_text}. "
            f"This is the calibration of the run{counted}."
        ),
    }


def _picture_data(findings: Findings, images: Mapping[int, Picture]) -> list[dict[str, object]]:
    """Return the example images, with class indices and with confidences in the order of the methods."""
    study, top_k = findings.study, findings.study.settings.top_k
    predicted = study.preds.predicted(study.settings.predict_from, top_k).reshape(study.n_images, top_k)
    changes = rank_changes(study) if study.second_look else np.zeros(study.n_images, dtype=np.int64)
    return [
        {
            "id": study.preds.ids[index],
            "label": int(study.preds.labels[index]),
            "predicted": predicted[index].tolist(),
            "correct": bool(study.correct[index]),
            "accepted": bool(findings.accepted[index]),
            "confidences": [float(values[index]) for values in study.confidences.values()],
            "rank_change": int(changes[index]),
            **picture,
        }
        for index, picture in images.items()
    ]


def _unknown_picture_data(study: Study, images: Mapping[int, Picture]) -> list[dict[str, object]]:
    """Return the example unknown images, in the format of `_picture_data` but without labels."""
    if study.unknown is None or not images:
        return []
    top_k, settings = study.settings.top_k, study.settings
    chosen = study.unknown.select(images=list(images))
    accepted = np.zeros(len(images), dtype=np.bool_) if study.policy is None else study.policy.accept(chosen)
    predicted = chosen.predicted(settings.predict_from, top_k).reshape(chosen.n_images, top_k)
    return [
        {
            "id": chosen.ids[place],
            "label": None,
            "predicted": predicted[place].tolist(),
            "correct": False,
            "accepted": bool(accepted[place]),
            "confidences": [float(values[study.n_images + index]) for values in study.together.values()],
            "rank_change": 0,
            **picture,
        }
        for place, (index, picture) in enumerate(images.items())
    ]


def read_images(
    preds: Predictions, chosen: IntArray, image: Callable[[int], Array], positions: IntArray | None = None
) -> dict[int, Picture]:
    """Return the pictures of the chosen images by index, up to the size limit.

    `image` is called with the entry of `positions` for the index, by default with the index itself.
    """
    images: dict[int, Picture] = {}
    if not len(chosen):  # predictions have at least one image
        return images
    size, outputs = 0, preds.select(images=chosen).probabilities
    for row, index in enumerate(chosen.tolist()):
        given = index if positions is None else int(positions[index])
        one = _draw_image(preds, _check_pixels(image(given), given), outputs[row])
        size += len(one["picture"]) + len(one["sheet"])
        if size > MAX_BYTES and images:
            break
        images[index] = one
    return images


def make_thumbnail(pixels: Array, side: int) -> "Image":
    """Return a picture with sides of at most `side` pixels. uint8 [H, W, 1 or 3]"""
    from PIL.Image import Resampling, fromarray

    picture = fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    picture.thumbnail((side, side), Resampling.LANCZOS)
    return picture


def encode_picture(picture: "Image", quality: int) -> str:
    """Return a picture as a data URI."""
    file = io.BytesIO()
    picture.save(file, "WEBP", quality=quality)
    return f"data:image/webp;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"


def _draw_image(preds: Predictions, pixels: Array, outputs: Array) -> Picture:
    from PIL.Image import new

    from secondlook.views import apply_view

    leading = outputs.argmax(axis=1)
    blank = np.zeros_like(pixels)  # for views known only by name
    views = (blank if view.name else apply_view(pixels[None], view)[0] for view in preds.views)
    tiles = [make_thumbnail(transformed, VIEW_SIDE) for transformed in views]
    (width, height), columns = tiles[0].size, min(len(tiles), SHEET_COLUMNS)
    sheet = new(tiles[0].mode, (width * columns, height * math.ceil(len(tiles) / columns)))
    for place, tile in enumerate(tiles):
        sheet.paste(tile, (width * (place % columns), height * (place // columns)))
    return {
        "picture": encode_picture(make_thumbnail(pixels, IMAGE_SIDE), IMAGE_QUALITY),
        "sheet": encode_picture(sheet, VIEW_QUALITY),
        "view_predicted": leading.tolist(),
        "view_probabilities": [round(float(row[one]), 4) for row, one in zip(outputs, leading, strict=True)],
    }


def _check_pixels(pixels: object, index: int) -> Array:
    got = type(pixels).__name__
    if isinstance(pixels, np.ndarray):
        if pixels.dtype in (np.uint8, np.float32) and pixels.ndim == 3 and pixels.shape[2] in (1, 3):
            return as_pixels(pixels)
        got = f"{pixels.dtype} {list(pixels.shape)}"
    raise ReportError(
        f"image({index}) returned {got}, expected uint8, or float32 in [0, 1], [height, width, 1 or 3]",
        repair=Repair("correct the function passed as {image}", image=ANY),
    )


def _format_scaled(value: float | None, scale: float = 100) -> str:
    return "–" if value is None else format_value(scale * value, 2)


def _format_change(value: float | None, scale: float = 100) -> str:
    return "–" if value is None else format_difference(scale * value, 2, none="0")


def _format_ends(interval: Interval | None, scale: float = 100, format_end: Callable[..., str] = _format_scaled) -> str:
    return "" if interval is None else f"{format_end(interval.low, scale)} to {format_end(interval.high, scale)}"


def render_template(
    name: str, *, styles: str, scripts: str, data: object, filters: Mapping[str, Callable[..., str]], **values: Any
) -> str:
    """Render a template; all text is escaped.

    `styles` and `scripts` are names of files in the same folder, joined in order; scripts read `data` as JSON from the
    element with the id `data`. `filters` are added to the common ones.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("secondlook.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "percent": lambda *fraction: use_unbroken_spaces(format_percent(*fraction)),
        "count": lambda value: f"{value:,}",
        "unbroken": use_unbroken_spaces,
        **filters,
    }
    folder = files("secondlook.report") / "templates"
    style = "".join((folder / f"{one}.css").read_text(encoding="utf-8") for one in styles.split())
    body = "\n".join((folder / f"{one}.js").read_text(encoding="utf-8") for one in scripts.split())
    script = f'"use strict";\n(() => {{\n{body}\n}})();\n'
    return environment.get_template(name).render(
        style=Markup(style),
        script=Markup(script),
        logo=f"data:image/svg+xml,{quote((folder / 'logo.svg').read_text(encoding='utf-8'))}",
        # A class name like "</script>" must not end the element.
        data=Markup(json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")),
        # Allow only this script and this style, and no requests, for any data.
        policy=f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}",
        **values,
    )


def use_unbroken_spaces(text: str) -> str:
    """Use a non-breaking space between number and percent sign."""
    return text.replace(" %", "\u00a0%")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"


def write_file(path: Path, content: bytes) -> None:
    """Write a file of a report; create its folder if missing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes_atomically(path, content)
    except OSError as error:
        reason = error.strerror or error
        raise ReportError(f"cannot write {str(path)!r}: {reason}; choose a writable location.") from None
