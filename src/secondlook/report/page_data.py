"""What the page's script reads: numbers as packed arrays, so that the browser counts as Python does."""

import base64
import dataclasses
import json
from collections.abc import Mapping

import numpy as np

from secondlook.arrays import Array
from secondlook.report.curves import DrawnCurve
from secondlook.report.findings import Findings
from secondlook.report.galleries import Gallery
from secondlook.report.operating_points import Guarantees, thinned
from secondlook.report.pictures import PicturedImage
from secondlook.report.study import summary_of, symbol_of

MOST_THRESHOLDS = 200_000
"""How many thresholds a page holds over all methods: at most 22 bytes each as text, so below 4.5 MB together."""


def page_data(findings: Findings, pictures: Mapping[int, PicturedImage]) -> str:
    """Return the data as JSON that can stand inside a script element."""
    study = findings.study
    data = {
        "images": study.n_images,
        "errors": study.n_errors,
        "delta": findings.delta,
        "level": findings.evaluation.level,
        "compared": [name for name in (study.baseline, study.second_look) if name],
        "risk": findings.risk,
        "risks": packed(findings.risks),
        "methods": [_method(findings, name) for name in study.confidences],
        "galleries": [_gallery(gallery) for gallery in findings.galleries] if pictures else [],
        "pictures": {str(index): dataclasses.asdict(picture) for index, picture in pictures.items()},
    }
    # A class named "</script>" must not end the element it stands in.
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def packed(values: Array) -> dict[str, str]:
    """Return an array as text: little-endian, counts in the smallest type that holds them, floats in full."""
    if np.issubdtype(values.dtype, np.integer):
        largest = int(values.max()) if len(values) else 0
        kind = "u1" if largest < 2**8 else "u2" if largest < 2**16 else "u4"
    else:
        kind = "f4" if values.dtype == np.float32 else "f8"
    encoded = base64.b64encode(values.astype(f"<{kind}").tobytes()).decode("ascii")
    return {"type": kind, "data": encoded}


def _method(findings: Findings, name: str) -> dict[str, object]:
    study = findings.study
    ranking = thinned(study.rankings[name], MOST_THRESHOLDS // len(study.rankings))
    histogram, reliability = findings.histograms[name], findings.reliability.get(name)
    guarantees = findings.guarantees[name]
    return {
        "name": name,
        "symbol": symbol_of(name),
        "summary": summary_of(name),
        "complete": len(ranking.accepted) == len(study.rankings[name].accepted),
        "thresholds": packed(ranking.confidences),
        "sizes": packed(ranking.block_sizes),
        "wrong": packed(ranking.block_errors),
        "curve": _curve(findings.curves[name]),
        "histogram": {key: packed(getattr(histogram, key)) for key in ("edges", "right", "wrong")},
        "reliability": (
            None
            if reliability is None
            else {key: packed(getattr(reliability, key)) for key in ("confidence", "accuracy", "images")}
        ),
        "guarantees": _guarantees(guarantees) if isinstance(guarantees, Guarantees) else None,
        "no_guarantee": None if isinstance(guarantees, Guarantees) else guarantees,
    }


def _curve(curve: DrawnCurve) -> dict[str, dict[str, str]]:
    """Return what is only drawn, in float32: less than a thousandth of a pixel."""
    return {
        "accepted": packed(curve.accepted),
        **{key: packed(getattr(curve, key).astype(np.float32)) for key in ("risk", "band_coverage", "low", "high")},
    }


def _guarantees(guarantees: Guarantees) -> dict[str, dict[str, str]]:
    return {key: packed(getattr(guarantees, key)) for key in ("thresholds", "accepted", "errors")}


def _gallery(gallery: Gallery) -> dict[str, object]:
    changes, accepted = gallery.rank_changes, gallery.now_accepted
    return {
        "name": gallery.name,
        "images": gallery.images.tolist(),
        "rank_changes": None if changes is None else changes.tolist(),
        "now_accepted": None if accepted is None else accepted.tolist(),
    }
