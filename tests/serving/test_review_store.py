"""The review queue, on SQLite and PostgreSQL: leases of several reviewers, labels, undo, import and retention."""

import threading
from dataclasses import dataclass, field
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from secondlook.serving.database import Database, decisions, deployments, images, reviews
from secondlook.serving.responses import RequestError
from secondlook.serving.store import DecisionStore, NewDecision, NewLabel, ReviewStore, StoredImage
from secondlook.serving.tokens import Principal
from tests.serving.streams import make_decision

LEASE = 100.0
KEEP = 1000.0
PNG = StoredImage("image/png", b"\x89PNG\r\n\x1a\n")


class Clock:
    """A time that tests set."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(database: Database, clock: Clock) -> ReviewStore:
    return ReviewStore(database, LEASE, clock=clock)


def add_images(database: Database, confidences: list[float], **changes: Any) -> list[int]:
    """Add images of some confidences to the queue, named a, b, c and so on, and return their numbers."""
    with database.write() as connection:
        if connection.execute(sa.select(sa.func.count()).select_from(deployments)).scalar() == 0:
            values = {"number": 1, "checksum": "c", "policy": "{}", "audit": None, "deployed_at": 0.0}
            connection.execute(sa.insert(deployments).values(**values))
        known = connection.execute(sa.select(sa.func.count()).select_from(decisions)).scalar_one()
    new = [
        NewDecision(make_decision(id=chr(97 + known + place), confidence=confidence, **changes), "d", "name.png", PNG)
        for place, confidence in enumerate(confidences)
    ]
    return [outcome.decision.number for outcome in DecisionStore(database).add(new, 1)]


def as_reviewer(name: str) -> Principal:
    return Principal(name, "reviewer", f"session of {name}")


ANNA, BEN = as_reviewer("anna"), as_reviewer("ben")


def lease(store: ReviewStore, principal: Principal, count: int) -> list[int]:
    return [item.number for item in store.lease(principal.session, count)]


def check_fails(code: str, call: Any, *arguments: Any) -> str:
    with pytest.raises(RequestError) as caught:
        call(*arguments)
    assert caught.value.code == code
    return str(caught.value)


def test_item_holds_what_reviewers_see(store: ReviewStore, database: Database) -> None:
    (number,) = add_images(database, [0.25])
    (item,) = store.lease("anna", 1)
    assert (item.number, item.id, item.name, item.confidence) == (number, "a", "name.png", 0.25)
    assert [tuple(one) for one in item.likely] == [(2, 0.5), (1, 0.3)]
    assert tuple(item.views[1]) == ("hflip", 1, 0.4)
    assert item.has_image
    assert item.state == "waiting"
    image = store.read_image(number)
    assert image is not None
    assert (image.media_type, image.content) == (PNG.media_type, PNG.content)


def test_reviewers_at_once_get_disjoint_images(database: Database) -> None:
    numbers = add_images(database, [place / 100 for place in range(40)])
    got: dict[str, list[int]] = {}

    def work(name: str) -> None:
        store = ReviewStore(database, LEASE)
        for count in range(1, 11):
            got[name] = [item.number for item in store.lease(name, count)]

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(number for held in got.values() for number in held) == numbers


def test_lease_ends_when_nothing_is_heard(store: ReviewStore, database: Database, clock: Clock) -> None:
    a, b = add_images(database, [0.1, 0.2])
    lease(store, ANNA, 2)
    clock.now += LEASE - 1
    assert lease(store, BEN, 2) == []
    lease(store, ANNA, 2)
    clock.now += LEASE - 1
    assert lease(store, BEN, 2) == [], "renewed"
    clock.now += 2
    assert lease(store, BEN, 1) == [a]
    assert lease(store, ANNA, 2) == [b]
    assert "another reviewer" in check_fails("lease_lost", store.label, a, 0, ANNA)
    store.label(a, 1, BEN)
    assert store.read(a).reviewer == "ben"


def test_sending_a_label_twice_changes_nothing(store: ReviewStore, database: Database, clock: Clock) -> None:
    (a,) = add_images(database, [0.1])
    lease(store, ANNA, 1)
    store.label(a, 2, ANNA)
    first = store.read(a)
    clock.now += 5
    store.label(a, 2, ANNA)
    store.label(a, 2, BEN)
    assert store.read(a) == first
    assert "'anna'" in check_fails("already_reviewed", store.label, a, 0, BEN)
    assert store.read(a) == first
    check_fails("already_reviewed", store.label, a, 0, ANNA)
    assert store.read(a) == first, "another tab of the same browser does not overwrite it"
    store.undo(a, ANNA)
    store.label(a, 0, ANNA)
    assert store.read(a).reviewed_label == 0, "one's own label can be corrected"


def test_undo_gives_the_image_back_to_the_reviewer(store: ReviewStore, database: Database, clock: Clock) -> None:
    a, b = add_images(database, [0.1, 0.2])
    lease(store, ANNA, 2)
    store.label(a, 2, ANNA)
    assert store.find_last(ANNA.session) == a
    store.label(b, 2, ANNA)
    assert store.find_last(ANNA.session) == max(a, b)
    for _ in range(2):  # once more if the response was lost
        item = store.undo(b, ANNA)
        assert (item.number, item.reviewed_label, item.reviewer, item.reviewed_at) == (b, None, None, None)
    assert store.find_last(ANNA.session) == a
    assert lease(store, BEN, 2) == []
    assert lease(store, ANNA, 1) == [b]
    check_fails("already_reviewed", store.undo, a, BEN)
    check_fails("lease_lost", store.undo, b, BEN)


def test_skipped_image_comes_after_the_others_and_undo_brings_it_back(store: ReviewStore, database: Database) -> None:
    a, b, c = add_images(database, [0.1, 0.2, 0.3])
    lease(store, ANNA, 2)
    for _ in range(2):  # once more if the response was lost
        store.skip(a, ANNA.session)
    assert store.read(a).skips == 1
    store.skip(b, BEN.session)
    assert store.read(b).skips == 0, "only the owner can skip an image"
    assert lease(store, ANNA, 3) == [b, c, a]
    store.skip(a, ANNA.session)
    for _ in range(2):
        assert store.undo(a, ANNA).skips == 1
    store.release(ANNA.session)
    assert lease(store, BEN, 3) == [b, c, a]


def test_release_lets_others_have_the_images(store: ReviewStore, database: Database) -> None:
    a, b = add_images(database, [0.1, 0.2])
    lease(store, ANNA, 2)
    store.label(a, 0, ANNA)
    store.release(ANNA.session)
    assert lease(store, BEN, 2) == [b]
    assert store.find_last(ANNA.session) == a


def test_counts_and_pace(store: ReviewStore, database: Database, clock: Clock) -> None:
    numbers = add_images(database, [place / 10 for place in range(8)])
    lease(store, ANNA, 4)
    for place, number in enumerate(numbers[:3]):
        store.label(number, 0, ANNA)
        clock.now += 6 if place < 2 else 0
    lease(store, BEN, 3)
    store.label(numbers[4], 0, BEN)
    counts = store.counts()
    assert (counts.waiting, counts.leased, counts.done, counts.expired) == (4, 3, 4, 0)
    pace = store.pace(ANNA.session)
    assert pace.own == pytest.approx(10)
    assert pace.everyone == pytest.approx(15)
    assert store.pace("nobody").own is None
    clock.now += 3600
    assert store.pace(ANNA.session).everyone is None
    assert store.counts().leased == 0


def test_old_images_are_removed_and_unreviewed_ones_expire(
    store: ReviewStore, database: Database, clock: Clock
) -> None:
    a, b, c = add_images(database, [0.1, 0.2, 0.3])
    with database.write() as connection:
        for number, age in ((a, 11), (b, 11), (c, 9)):
            change = sa.update(images).where(images.c.number == number).values(stored_at=clock.now - age)
            connection.execute(change)
    lease(store, ANNA, 1)
    store.label(a, 0, ANNA)
    assert store.remove_expired(10) == 2
    assert store.remove_expired(10) == 0
    assert [store.read(number).state for number in (a, b, c)] == ["done", "expired", "waiting"]
    assert [store.read(number).has_image for number in (a, b, c)] == [False, False, True]
    assert store.read_image(b) is None
    assert lease(store, BEN, 3) == [c]
    assert store.counts().expired == 1
    store.label(b, 1, ANNA)
    assert store.read(b).state == "done", "a label is welcome, whoever had the image on the screen"


def test_labels_are_imported_together_or_not_at_all(store: ReviewStore, database: Database) -> None:
    a, b, c = add_images(database, [0.1, 0.2, 0.3])
    add_images(database, [0.9], accept=True)
    lease(store, ANNA, 1)
    store.label(a, 0, ANNA)
    for code, last in (
        ("unknown_id", NewLabel("row 3", "nobody", 0)),
        ("unknown_id", NewLabel("row 3", "d", 0)),
        ("already_reviewed", NewLabel("row 3", "a", 1)),
    ):
        message = check_fails(code, store.add_labels, [NewLabel("row 2", "b", 1), last], "import")
        assert "row 3" in message
        assert store.counts().done == 1
    assert store.add_labels([NewLabel("row 2", "a", 0), NewLabel("row 3", "b", 1)], "import") == 1
    assert (store.read(a).reviewer, store.read(b).reviewer) == ("anna", "import")
    assert lease(store, BEN, 3) == [c]
    assert store.add_labels([], "import") == 0


def test_imported_label_is_kept_although_the_image_is_on_a_screen(store: ReviewStore, database: Database) -> None:
    (a,) = add_images(database, [0.1])
    lease(store, ANNA, 1)
    store.add_labels([NewLabel("row 2", "a", 1)], "import")
    check_fails("already_reviewed", store.label, a, 0, ANNA)
    assert lease(store, ANNA, 1) == []


def test_labels_are_listed_for_monitors(store: ReviewStore, database: Database) -> None:
    a, b = add_images(database, [0.2, 0.1])
    lease(store, ANNA, 2)
    store.label(b, 0, ANNA)
    store.label(a, 1, ANNA)
    assert list(store.labels([1]).items()) == [("a", 1), ("b", 0)]
    assert store.labels([2]) == {}
    store.undo(b, ANNA)
    assert store.labels([1]) == {"a": 1}


def test_items_are_listed_in_the_order_of_review(store: ReviewStore, database: Database) -> None:
    a, b, c, d = add_images(database, [0.4, 0.3, 0.2, 0.1])
    lease(store, ANNA, 1)
    store.label(d, 0, ANNA)

    def listed(*states: Any) -> list[list[int]]:
        return [[item.number for item in block] for block in store.iter_items(states, block=2)]

    assert listed("waiting") == [[c, b], [a]]
    assert listed("done") == [[d]]
    assert listed("waiting", "done", "expired") == [[c, b], [a, d]]
    assert listed("expired") == []


@dataclass
class ModelItem:
    """What is known of one image, in the slow version."""

    number: int
    confidence: float
    owner: str | None = None
    until: float = 0.0
    skips: int = 0
    label: int | None = None

    @property
    def place(self) -> tuple[int, float, int]:
        return self.skips, self.confidence, self.number


@dataclass
class Model:
    """The rules of the queue, image by image."""

    clock: Clock
    items: dict[int, ModelItem] = field(default_factory=dict)

    def holder(self, item: ModelItem) -> str | None:
        return item.owner if item.until > self.clock.now else None

    def lease(self, owner: str, count: int) -> list[int]:
        waiting = sorted((one for one in self.items.values() if one.label is None), key=lambda one: one.place)
        mine = [one for one in waiting if one.owner == owner]
        for one in waiting:
            if len(mine) < count and one.owner != owner and self.holder(one) is None:
                mine.append(one)
        for one in mine:
            one.owner, one.until = owner, self.clock.now + LEASE
        return [one.number for one in sorted(mine, key=lambda one: one.place)]

    def refuses(self, number: int, owner: str) -> bool:
        item = self.items[number]
        if item.label is not None:
            return item.owner != owner
        return self.holder(item) not in (None, owner)

    def label(self, number: int, label: int, owner: str) -> bool:
        item = self.items[number]
        if item.label == label:
            return True
        if item.label is not None or self.refuses(number, owner):
            return False
        item.label, item.owner, item.until = label, owner, 0.0
        return True

    def undo(self, number: int, owner: str) -> bool:
        item = self.items[number]
        if self.refuses(number, owner):
            return False
        if item.label is None and item.owner != owner:
            item.skips = max(0, item.skips - 1)
        item.label, item.owner, item.until = None, owner, self.clock.now + LEASE
        return True

    def skip(self, number: int, owner: str) -> None:
        item = self.items[number]
        if item.owner == owner and item.label is None:
            item.skips, item.owner, item.until = item.skips + 1, None, 0.0


PEOPLE = {name: as_reviewer(name) for name in ("anna", "ben", "cleo")}
NAMES, PLACES = st.sampled_from(sorted(PEOPLE)), st.integers(0, 5)


class Reviewers(RuleBasedStateMachine):
    database: Database

    @initialize(confidences=st.lists(st.sampled_from([0.1, 0.2, 0.3]), min_size=6, max_size=6))
    def begin(self, confidences: list[float]) -> None:
        with self.database.write() as connection:
            for table in (images, reviews, decisions):
                connection.execute(sa.delete(table))
        self.clock = Clock()
        self.store = ReviewStore(self.database, LEASE, clock=self.clock)
        self.numbers = add_images(self.database, confidences)
        both = zip(self.numbers, confidences, strict=True)
        self.model = Model(self.clock, {number: ModelItem(number, one) for number, one in both})

    @rule(name=NAMES, count=st.integers(0, 4))
    def lease(self, name: str, count: int) -> None:
        got = lease(self.store, PEOPLE[name], count)
        assert got == self.model.lease(PEOPLE[name].session, count)

    @rule(name=NAMES, place=PLACES, label=st.integers(0, 2))
    def label(self, name: str, place: int, label: int) -> None:
        number, person = self.numbers[place], PEOPLE[name]
        assert succeeds(self.store.label, number, label, person) == self.model.label(number, label, person.session)

    @rule(name=NAMES, place=PLACES)
    def undo(self, name: str, place: int) -> None:
        number, person = self.numbers[place], PEOPLE[name]
        assert succeeds(self.store.undo, number, person) == self.model.undo(number, person.session)

    @rule(name=NAMES, place=PLACES)
    def skip(self, name: str, place: int) -> None:
        self.store.skip(self.numbers[place], PEOPLE[name].session)
        self.model.skip(self.numbers[place], PEOPLE[name].session)

    @rule(seconds=st.sampled_from([1.0, LEASE / 2, LEASE]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @invariant()
    def same_state(self) -> None:
        found = [(item.reviewed_label, item.skips) for item in map(self.store.read, self.numbers)]
        assert found == [(self.model.items[number].label, self.model.items[number].skips) for number in self.numbers]
        held = [self.model.holder(one) for one in self.model.items.values() if one.label is None]
        assert self.store.counts().leased == len([one for one in held if one])


def succeeds(call: Any, *arguments: Any) -> bool:
    try:
        call(*arguments)
    except RequestError as error:
        return error.status != 409
    return True


def test_queue_follows_its_rules_whatever_three_reviewers_do(database: Database) -> None:
    machine = type("BoundReviewers", (Reviewers,), {"database": database})
    checks = list(HealthCheck)
    options = settings(max_examples=15, stateful_step_count=25, deadline=None, suppress_health_check=checks)
    run_state_machine_as_test(machine, settings=options)
