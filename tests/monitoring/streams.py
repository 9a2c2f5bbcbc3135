"""Synthetic policies and streams of scored images."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from secondlook.classifiers import load_classifier
from secondlook.monitoring import Monitor
from secondlook.policies import Calibration, Guarantee, Policy, Reference, Schedule, ShiftModel
from tests.policy_maker import attach

Row = dict[str, Any]
CLASSES = ("cat", "dog", "bird", "<b>fish</b>")
THRESHOLD = 0.8
RISK = 0.05


def draw_images(rng: np.random.Generator, n_images: int, damage: float) -> tuple[Any, Any, Any]:
    """Return confidence, first look and disagreement; damage lowers the first and raises the last."""
    confidence = rng.beta(8, 1.2 + damage, n_images)
    first_look = np.clip(confidence + rng.normal(0, 0.02, n_images), 0, 1)
    return confidence, first_look, rng.beta(1 + damage, 10, n_images) * (1.2 - confidence)


def make_policy(
    *,
    risk: float | None = RISK,
    top_k: int = 1,
    threshold: float = THRESHOLD,
    adaptive: bool = False,
    has_reference: bool = True,
) -> Policy:
    rng = np.random.default_rng(0)
    confidence, first_look, disagreement = draw_images(rng, 4000, 0.0)
    wrong = rng.random(4000) > 0.6 + 0.4 * confidence
    looks = {"views": ("identity", "hflip"), "changes": (0.0, 0.0), "spreads": (1.0, 0.0), "full_looks": 2}
    limits = {"method": "mean", "margin": 1.0, "tolerance": 0.01, "images": 4000, "threshold": threshold}
    rule = Policy(
        threshold=threshold,
        method="mean",
        top_k=top_k,
        guarantee=None if risk is None else Guarantee(risk=risk, delta=0.01),
        calibration=Calibration(images=4000, accepted=int(np.sum(confidence >= threshold)), errors=60),
        reference=Reference.make(confidence, first_look, disagreement, wrong) if has_reference else None,
        schedule=Schedule.model_validate(looks | limits) if adaptive else None,
    )
    classifier = load_classifier(lambda batch: np.full((len(batch), 4), 0.25), name="synthetic")
    return attach(rule, classifier=classifier, views=("identity", "hflip"), class_names=CLASSES, made="2026-01-01")


def make_shift_model(**changes: Any) -> ShiftModel:
    """Return a plausible shift model for four classes."""
    content = {
        "images": 500,
        "class_shares": [0.4, 0.3, 0.2, 0.1],
        "accuracy": {"clean": 1.1, "constant": 0.1, "slope": 1.2, "class_weight": -2.0, "error": 0.2},
        "risk": {"constant": 1.0, "slope": 1.5, "error": 0.3},
        "shifts": [{"kind": "blur", "views": ["blur:1"], "accuracy": [0.8], "estimate": [0.7]}],
    }
    return ShiftModel.model_validate(content | changes)


def make_rows(
    n_images: int, *, first: int = 0, damage: float = 0.0, audit: float | None = 0.05, seed: int = 0
) -> list[Row]:
    """Return rows of images in the order of a stream; about one in 50 cannot be read."""
    rng = np.random.default_rng((seed, first))
    confidence, first_look, disagreement = draw_images(rng, n_images, damage)
    rows: list[Row] = []
    for place in range(n_images):
        accept = bool(confidence[place] >= THRESHOLD)
        row: Row = {
            "id": f"day/{first + place:06d}.jpg",
            "label": int(rng.integers(4)),
            "confidence": float(confidence[place]),
            "accept": accept,
            "looks": 2,
            "first_look": float(first_look[place]),
            "disagreement": float(disagreement[place]),
            "reason": None,
        }
        if audit is not None:
            row |= {"audit": accept and bool(rng.random() < audit), "audit_probability": audit if accept else None}
        if place % 50 == 49:
            names = ("confidence", "label", "first_look", "disagreement")
            row |= {**dict.fromkeys(names), "accept": False, "looks": 0, "reason": "damaged"}
            row |= {} if audit is None else {"audit": False, "audit_probability": None}
        rows.append(row)
    return rows


def make_table(rows: Sequence[Row], policy: Policy, **content: Any) -> pa.Table:
    """Return rows as `score` stores them: with the policy that was used."""
    metadata = {"policy": json.loads(policy.model_dump_json()), **content}
    return pa.Table.from_pylist(list(rows)).replace_schema_metadata({"secondlook.score": json.dumps(metadata)})


def review(monitor: Monitor, error_rate: float, *, every: int = 1) -> dict[str, int]:
    """Return labels of some audits, with about the given share of errors."""
    chosen = monitor.audited[::every]
    draws = np.random.default_rng(1).random(len(chosen))
    return {
        audit.id: (audit.predicted[0] + int(draw < error_rate)) % 4 for audit, draw in zip(chosen, draws, strict=True)
    }


def write_parquet(path: Path, rows: Sequence[Mapping[str, Any]], metadata: Mapping[str, str] | None = None) -> Path:
    table = pa.Table.from_pylist(list(rows))
    pq.write_table(table.replace_schema_metadata(dict(metadata or {})), path)
    return path
