"""`secondlook calibrate --reviewed`: the next policy from reviewed score files, or from the reviews of a service."""

import csv
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from secondlook.monitoring import recertify
from secondlook.policies import Policy, read_policy
from secondlook.serving.database import Database, open_database
from secondlook.serving.store import DecisionStore, ReviewStore
from tests.cli.conftest import Here
from tests.monitoring.streams import RISK, make_policy
from tests.serving.conftest import postgres_server, postgres_url  # noqa: F401 - fixtures
from tests.serving.streams import REVIEWER, FakeService, make_stream, review_all

AGAIN = ("--reviewed", "labels.csv", "--policy", "policy.json", "--scores", "scores/*.parquet")


def score_and_review(here: Here, tmp_path: Path, *, wrong: int = 0) -> None:
    """Make a policy, score the labeled images with it, and review all that are due; `wrong` reviews disagree."""
    for command in (
        ("calibrate", "--run", "run", "--risk", "0.2", "--delta", "0.1", "--quiet"),
        ("score", "--policy", "policy.json", "--data", "folder:val/", "--out", "scores", "--audit", "1"),
    ):
        here.ok(*command)
    (part,) = (tmp_path / "scores").glob("*.parquet")
    with (tmp_path / "labels.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "label"])
        for place, row in enumerate(pq.read_table(part).to_pylist()):
            name = row["id"].split("/")[0]
            writer.writerow([row["id"], str((int(name) + 1) % 10) if place < wrong else name])


def test_fresh_policy_from_reviewed_images(here: Here, run: Path, tmp_path: Path) -> None:
    score_and_review(here, tmp_path)
    done = here.ok("calibrate", *AGAIN, "--out", "fresh.json")
    fresh, before = (json.loads((tmp_path / name).read_text()) for name in ("fresh.json", "policy.json"))
    assert fresh["guarantee"]["risk"] == before["guarantee"]["risk"] == 0.2
    assert fresh["calibration"]["reviewed"] == fresh["calibration"]["accepted"] > 0
    assert "What changed:" in done.out
    assert f"{before['threshold']:.6g} before" in done.out
    facts = here("info", "fresh.json", "--json").json
    assert "of them reviewed" in facts["summary"]
    assert "reference of 320 images" in facts["monitoring"]
    here.ok("score", "--policy", "fresh.json", "--data", "folder:new/", "--out", "new.parquet", "--json")
    careful = here.ok("calibrate", *AGAIN, "--reviewer-error", "0.03", "--out", "careful.json")
    assert "valid for reviewer errors up to 3 %" in careful.out
    stricter = here("calibrate", *AGAIN, "--risk", "0.3", "--delta", "0.2", "--out", "other.json", "--json")
    assert stricter.json["guarantee"]["delta"] == 0.2
    assert stricter.json["calibration"]["joint_delta"] == pytest.approx(0.1 + 0.2)
    here.ok("score", "--policy", "policy.json", "--data", "folder:val/", "--out", "scores", "--audit", "1")


def test_too_many_errors_or_missing_files_are_named(here: Here, run: Path, tmp_path: Path) -> None:
    score_and_review(here, tmp_path, wrong=300)
    here.refuse("calibrate", *AGAIN, "--out", "fresh.json", told="no threshold guarantees")
    assert not (tmp_path / "fresh.json").exists()
    here.refuse("calibrate", *AGAIN, "--reviewed", "none.csv", told="'none.csv'")
    here.refuse("calibrate", *AGAIN, "--reviewer-error", "-1", told="--reviewer-error")
    here.refuse("calibrate", *AGAIN[:4], "--scores", "none/*.parquet", told="'none/*.parquet'")
    with (tmp_path / "labels.csv").open("a") as file:
        file.write("unknown.png,3\n")
    here.refuse("calibrate", *AGAIN, told="'unknown.png'")


CALIBRATE = ("calibrate", "--reviewed", "service", "--out", "next.json")


@pytest.fixture
def database(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Database]:
    """The empty database of a service: PostgreSQL in tests of that kind, else a file."""
    (tmp_path / "service").mkdir()
    is_postgres = "postgres" in request.node.name
    with closing(
        open_database(tmp_path / "service", request.getfixturevalue("postgres_url") if is_postgres else None)
    ) as opened:
        yield opened


def review_stream(database: Database, folder: Path) -> Policy:
    """Store a stream whose accepted images are all audited, review it, and return the policy that Python makes."""
    service = FakeService(database, folder, make_policy(), audit=1.0)
    service.add(make_stream(1500, audit=1.0))
    review_all(service, 0.005)
    before, store = service.live.deployment.policy, DecisionStore(database)
    numbers = {number: audit for number, audit in store.find_audits(before).items() if audit is not None}
    labels = ReviewStore(database, 1.0).labels(list(numbers))
    return recertify(before, [rows for _, rows in store.iter_score_tables(before, numbers)], labels).policy


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_next_policy_is_that_of_the_rows_and_labels(
    here: Here, tmp_path: Path, database: Database, kind: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("postgres_url") if kind == "postgresql" else None
    expected = review_stream(database, tmp_path / "service")
    done = here.ok("calibrate", "--reviewed", url or "service", "--out", "next.json")
    made = read_policy(tmp_path / "next.json")
    assert (made.threshold, made.guarantee) == (expected.threshold, expected.guarantee)
    assert made.calibration is not None
    assert expected.calibration is not None
    assert made.calibration.digest == expected.calibration.digest
    assert made.reference == expected.reference
    assert made.classifier == make_policy().classifier
    assert made.certified
    assert "1,470 images of the service, 1,470 of them reviewed" in done.out
    assert "/v1/policy" in done.out
    content = (tmp_path / "next.json").read_text() + done.out
    assert "not-a-secret" not in content, "the password of the URL"
    stricter = here(*CALIBRATE[:1], "--reviewed", url or "service", "--risk", "0.1", "--out", "other.json", "--json")
    assert json.loads(stricter.out)["guarantee"]["risk"] == 0.1
    assert (json.loads(stricter.out)["calibration"]["joint_delta"] is not None) == (kind == "sqlite")


def test_images_that_were_not_audited_are_left_out(here: Here, tmp_path: Path, database: Database) -> None:
    before = FakeService(database, tmp_path / "service", make_policy())
    before.add(make_stream(100, first=5000, audit=None))
    here.refuse(*CALIBRATE, told=("98 images", "serve with secondlook serve --audit 0.05"))
    expected = review_stream(database, tmp_path / "service")
    done = here.ok(*CALIBRATE)
    assert "98 decided without audits are left out" in done.out
    assert read_policy(tmp_path / "next.json").threshold == expected.threshold


def test_the_reviewer_error_is_that_of_the_service(here: Here, tmp_path: Path, database: Database) -> None:
    expected = review_stream(database, tmp_path / "service")
    DecisionStore(database).deploy(make_policy(), 0.1, reviewer_error=0.02)
    for arguments, error in (((), 0.02), (("--reviewer-error", "0.01"), 0.01)):
        here.ok("calibrate", "--reviewed", "service", *arguments, "--out", f"{error}.json")
        made = read_policy(tmp_path / f"{error}.json").calibration
        assert made is not None
        assert made.reviewer_error == error
    assert expected.calibration is not None
    assert expected.calibration.reviewer_error == 0.0


def test_only_the_policy_in_force_counts(here: Here, tmp_path: Path, database: Database) -> None:
    for policy, images, first, error_rate in ((make_policy(), 300, 0, 0.5), (make_policy(risk=0.1), 600, 1000, 0.0)):
        service = FakeService(database, tmp_path / "service", policy, audit=1.0)
        service.add(make_stream(images, first=first, audit=1.0))
        review_all(service, error_rate)
    here.ok(*CALIBRATE)
    made = read_policy(tmp_path / "next.json")
    assert made.guarantee is not None
    assert made.guarantee.risk == 0.1 != RISK
    assert made.calibration is not None
    assert made.calibration.images == 588


def test_too_few_reviews_say_what_would_be_needed(here: Here, tmp_path: Path, database: Database) -> None:
    here.refuse(*CALIBRATE, told="service.db")  # which has no policy
    service = FakeService(database, tmp_path / "service", make_policy(), audit=1.0)
    service.add(make_stream(500, audit=1.0))
    for item in service.reviews.lease(REVIEWER, 20):
        service.reviews.label(item.number, item.label, REVIEWER)
    here.refuse(*CALIBRATE, told=("no threshold guarantees", "not reviewed yet"))
    assert not (tmp_path / "next.json").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--run"),
        (("--run", "run", *AGAIN), "--run"),
        (("--reviewed", "labels.csv", "--scores", "scores"), "--policy"),
        (("--reviewed", "labels.csv", "--policy", "policy.json"), "--scores"),
        (("--run", "run", "--risk", "0.2", "--policy", "policy.json"), "--reviewed"),
        (("--run", "run", "--risk", "0.2", "--reviewer-error", "0.03"), "--reviewed"),
        ((*AGAIN, "--coverage", "0.5"), "--coverage"),
        ((*AGAIN, "--method", "mean"), "--method"),
        ((*AGAIN, "--adaptive"), "--adaptive"),
        ((*AGAIN, "--class-thresholds"), "--class-thresholds"),
        ((*AGAIN, "--top-k", "2"), "--top-k"),
        (("--reviewed", "empty"), "service.db"),
        (("--reviewed", "empty", "--policy", "policy.json"), "--policy"),
        (("--reviewed", "empty", "--scores", "scores/*.parquet"), "--scores"),
        (("--reviewed", "empty", "--method", "mean"), "--method"),
        (("--reviewed", "none/"), "'none'"),
        (("--reviewed", "none"), "data folder of a service"),
        (("--reviewed", "postgresql://"), "database"),
        (("--reviewed", "postgresql://someone:secret@127.0.0.1:1/none"), "database"),
    ],
)
def test_mistakes_are_named(here: Here, tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    (tmp_path / "empty").mkdir()
    done = here.refuse("calibrate", *arguments, told=said)
    assert "secret" not in done.err
    assert not list((tmp_path / "empty").iterdir()), "nothing is made"
