"""Audits: accepted images that are marked for review, with known probabilities."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from secondlook.arrays import Array
from secondlook.classifiers import Classifier
from secondlook.decisions import Review
from secondlook.errors import DecisionError
from secondlook.policies import AuditPlan, Policy, certify
from secondlook.predictions import Execution, collect
from secondlook.views import ViewSet
from tests.conftest import PickledEngine
from tests.decisions.test_engine_job import bright
from tests.policy_maker import attach, score

VIEWS = ViewSet("identity hflip shift:1,0 shift:0,1")


@pytest.fixture
def policy(bright_or_dark: tuple[Array, Array], classifier: Classifier) -> Policy:
    pixels, labels = bright_or_dark
    rule = certify(collect(classifier, pixels[100:], VIEWS, labels=labels[100:]), "mean", risk=0.2, delta=0.1)
    return attach(rule, classifier=classifier, views=VIEWS.texts)


@pytest.fixture
def images(bright_or_dark: tuple[Array, Array]) -> Array:
    return bright_or_dark[0][:100]


def read_rows(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


def test_accepted_images_are_marked_with_the_stated_probability(
    policy: Policy, classifier: Classifier, images: Array, tmp_path: Path
) -> None:
    summary = score(policy, images, tmp_path / "scores.parquet", classifier=classifier, audit=0.3, seed=5)
    rows = read_rows(tmp_path / "scores.parquet")
    plan = AuditPlan(policy.reference, policy.threshold, 0.3)
    numbers = AuditPlan.draw([row["id"] for row in rows], 5)
    for row, number in zip(rows, numbers, strict=True):
        if not row["accept"]:
            assert (row["audit"], row["audit_probability"]) == (False, None)
            continue
        assert row["audit_probability"] == plan.probabilities(np.array([row["confidence"]]))[0]
        assert row["audit"] == (number < row["audit_probability"])
    marked = sum(row["audit"] for row in rows)
    assert 0 < marked < summary.accepted
    assert summary.audited == summary.to_dict()["audited"] == marked
    assert f"{marked} of the accepted" in str(summary)
    content = json.loads(pq.read_schema(tmp_path / "scores.parquet").metadata[b"secondlook.score"])
    assert content["audit"] == 0.3


def test_rows_have_no_audit_unless_asked(policy: Policy, classifier: Classifier, images: Array, tmp_path: Path) -> None:
    summary = score(policy, images, tmp_path / "scores.parquet", classifier=classifier)
    assert "audit" not in read_rows(tmp_path / "scores.parquet")[0]
    assert summary.audited is None
    assert "audited" not in summary.to_dict()


def test_engine_marks_the_same_images(
    policy: Policy, images: Array, pickled_engine: PickledEngine, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"audit": 0.3, "allow_mismatch": True, "classifier": bright}
    score(policy, images, tmp_path / "here.parquet", **given)
    score(policy, images, tmp_path / "there.parquet", **given, execution=Execution(engine=pickled_engine))
    here = read_rows(tmp_path / "here.parquet")
    assert here == read_rows(tmp_path / "there.parquet")
    assert any(row["audit"] for row in here)


def test_audited_images_join_the_rejected_ones_for_review(
    policy: Policy, classifier: Classifier, images: Array, tmp_path: Path
) -> None:
    out, rejected = tmp_path / "scores.parquet", tmp_path / "rejected"
    exports = [f"label-studio:{tmp_path / 'tasks.json'}"]
    score(policy, images, out, classifier=classifier, audit=0.3, review=Review(rejected=rejected, exports=exports))
    due = {row["id"] for row in read_rows(out) if row["audit"] or not row["accept"]}
    with (rejected / Review.LIST).open(newline="", encoding="utf-8") as file:
        assert {line["id"] for line in csv.DictReader(file)} == due
    tasks = json.loads((tmp_path / "tasks.json").read_text())
    assert len(tasks) == len(due)
    assert any(row["audit"] for row in read_rows(out))


def test_image_that_cannot_be_read_is_never_audited(
    policy: Policy, classifier: Classifier, image_files: str, tmp_path: Path
) -> None:
    broken = next(Path(image_files.removeprefix("folder:")).rglob("*.png"))
    broken.write_bytes(b"broken")
    score(
        policy,
        image_files,
        tmp_path / "scores.csv",
        classifier=classifier,
        audit=1.0,
        execution=Execution(on_error="skip"),
    )
    with (tmp_path / "scores.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    (skipped,) = (row for row in rows if row["reason"])
    assert (skipped["audit"], skipped["audit_probability"]) == ("false", "")
    assert all(row["audit"] == row["accept"] for row in rows)


@pytest.mark.parametrize("audit", [0, -0.1, 1.5, float("nan"), "much"])
def test_rate_outside_the_unit_interval_is_rejected(
    policy: Policy, classifier: Classifier, images: Array, tmp_path: Path, audit: Any
) -> None:
    with pytest.raises(DecisionError, match="audit="):
        score(policy, images, tmp_path / "scores.parquet", classifier=classifier, audit=audit)
