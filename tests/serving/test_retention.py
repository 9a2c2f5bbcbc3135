"""Removal of stored images after their time, and counts of decisions by minute."""

from pathlib import Path

import pytest
import sqlalchemy as sa

import secondlook as sl
from secondlook.serving import store as store_module
from secondlook.serving.database import Database, decisions
from secondlook.serving.store import DecisionStore, NewDecision, ReviewStore, StoredImage
from secondlook.serving.watcher import Activity
from tests.serving.running import Digits
from tests.serving.streams import decide_row, make_stream

SECRET = b"the pixels of a patient " * 100


@pytest.fixture
def store(database: Database, digits: Digits) -> DecisionStore:
    """A store with seven images to review."""
    store = DecisionStore(database)
    deployment = store.deploy(sl.load_policy(digits.policy), None)
    rows = [row for row in make_stream(200, audit=None) if not row["accept"]][:7]
    image = StoredImage("image/png", SECRET)
    store.add([NewDecision(decide_row(row), row["id"], None, image) for row in rows], deployment.number)
    return store


def test_images_are_removed_in_several_transactions(
    database: Database, store: DecisionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decisions are stored in between."""
    monkeypatch.setattr(store_module, "MAX_IDS", 3)
    written, write = 0, database.write

    def count() -> object:
        nonlocal written
        written += 1
        return write()

    reviews = ReviewStore(database, 300.0)
    monkeypatch.setattr(database, "write", count)
    assert reviews.remove_expired(3600) == 0
    written = 0
    assert reviews.remove_expired(-1) == 7
    assert written >= 3
    assert reviews.counts().expired == 7
    assert reviews.remove_expired(-1) == 0


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_removed_images_are_not_left_in_the_file(database: Database, store: DecisionStore) -> None:
    path = Path(str(database.url.database))
    ReviewStore(database, 300.0).remove_expired(-1)
    database.close()  # which moves what is in the log into the file
    assert b"patient" not in path.read_bytes()


def test_minutes_begin_with_their_first_second(database: Database, store: DecisionStore) -> None:
    now = 6000.0
    with database.write() as connection:
        for number, at in enumerate((now - 0.3, now, now + 59.7), start=1):
            row = decisions.c.number == number
            connection.execute(sa.update(decisions).where(row).values(decided_at=at))
        connection.execute(sa.update(decisions).where(decisions.c.number > 3).values(decided_at=0.0))
    activity = Activity(database)
    activity.update(now + 59.9)
    assert [minute["images"] for minute in activity.describe(now + 59.9)["minutes"][-2:]] == [1, 2]
    activity.update(now + 3700)
    assert sum(minute["images"] for minute in activity.describe(now + 3700)["minutes"]) == 0
    assert activity.by_deployment[1]["images"] == 7
