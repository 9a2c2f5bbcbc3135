"""The store on SQLite and PostgreSQL: one decision per id, deployments, the review queue, and transactions."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from secondlook.errors import ServingError
from secondlook.extension import Answer
from secondlook.serving import ServiceOptions
from secondlook.serving import database as database_module
from secondlook.serving import store as store_module
from secondlook.serving.database import (
    Database,
    StorageError,
    StorageUnavailableError,
    decisions,
    events,
    images,
    reviews,
)
from secondlook.serving.label_files import NewLabel
from secondlook.serving.responses import RequestError
from secondlook.serving.store import DecisionStore, NewDecision, ReviewStore, StoredImage
from secondlook.serving.tokens import Principal
from secondlook.serving.trail import Opinion, is_drawn, resolve_label
from secondlook.serving.watcher import Activity
from tests.monitoring.streams import make_policy
from tests.serving.postgres import PASSWORD, execute
from tests.serving.streams import make_decision, make_reviewer

LEASE = 100.0
POLICY = make_policy()
PNG = StoredImage("image/png", b"the pixels of a patient")
ANNA, BEN, CLEO = map(make_reviewer, ("anna", "ben", "cleo"))
ADMIN = Principal("ada", "admin", "browser:ada")
OTHER_TAB = Principal("anna", "reviewer", "browser:anna's phone")


@dataclass
class Clock:
    """A time that tests set."""

    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(database: Database) -> DecisionStore:
    store = DecisionStore(database)
    store.deploy(POLICY, None)
    return store


@pytest.fixture
def queue(database: Database, clock: Clock) -> ReviewStore:
    return ReviewStore(database, LEASE, clock=clock)


def make_new(id_: str, *, digest: str = "d", double: bool = False, **changes: Any) -> NewDecision:
    return NewDecision(make_decision(id=id_, **changes), digest, f"{id_}.png", PNG, double=double)


def add_images(store: DecisionStore, *confidences: float) -> list[int]:
    """Add images of some confidences to the queue, named a, b, c and so on, and return their numbers."""
    new = [make_new(chr(97 + place), confidence=confidence) for place, confidence in enumerate(confidences)]
    return [outcome.decision.number for outcome in store.add(new, 1)]


def count(database: Database, *tables: sa.Table) -> list[int]:
    return [database.fetch(sa.select(sa.func.count()).select_from(table))[0][0] for table in tables]


def find_error(call: Callable[..., object], *arguments: Any, **options: Any) -> str | None:
    """Return the code of the error that a call raises; None if it succeeds."""
    try:
        call(*arguments, **options)
    except RequestError as error:
        return error.code
    return None


class TestDecisions:
    def test_an_id_keeps_its_first_decision_or_nothing(self, store: DecisionStore, database: Database) -> None:
        with pytest.raises(StorageError):
            store.add([make_new("a")], deployment=99)  # which does not exist
        assert count(database, decisions, reviews, images) == [0, 0, 0]
        new = [make_new("no", labels=(2, 1)), make_new("yes", accept=True), make_new("due", accept=True, audit=True)]
        outcomes = store.add(new, 1)
        assert not any(outcome.replayed for outcome in outcomes)
        first = outcomes[0].decision
        assert (first.label, first.labels, first.low, first.name) == (2, [2, 1], 0.4, "no.png")
        again, other = store.add([make_new("no", digest="another image"), make_new("b", accept=True)], 1)
        assert (again.replayed, other.replayed) == (True, False)
        stored = {one.decision.id: one.decision for one in (*outcomes, other)}
        assert again.decision == first
        assert store.find(["no", "yes", "due", "b", "c"]) == stored
        assert count(database, decisions, reviews, images) == [4, 2, 2]

    def test_many_threads_give_every_id_one_row_and_the_next_number(self, store: DecisionStore) -> None:
        rng = np.random.default_rng(0)
        batches = [rng.choice(40, size, replace=False).tolist() for size in (40, *range(6), *[5] * 30)]

        def add(batch: list[int]) -> list[Any]:
            return store.add([make_new(f"{one}") for one in batch], 1)

        with ThreadPoolExecutor(8) as pool:
            outcomes = [one for batch in pool.map(add, batches[::-1]) for one in batch]
        assert sum(not outcome.replayed for outcome in outcomes) == 40
        assert {outcome.decision.number for outcome in outcomes} == set(range(1, 41))
        assert len({(outcome.decision.number, outcome.decision.id) for outcome in outcomes}) == 40

    def test_policies_in_force_and_their_decisions(self, store: DecisionStore, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(store_module, "BLOCK_ROWS", 2)
        other = make_policy(risk=0.1)
        assert (store.deploy(POLICY, None).number, store.deploy(POLICY, 0.1).number) == (1, 2)
        assert not store.find_audits(other)
        assert store.deploy(other, 0.1).number == 3
        assert (store.find_audits(other), store.find_audits(POLICY)) == ({3: 0.1}, {1: None, 2: 0.1})
        latest = store.latest_deployment()
        assert latest is not None
        assert (latest.number, latest.policy, latest.audit) == (3, other, 0.1)
        assert [one.policy for one in store.list_deployments()] == [POLICY, POLICY, other]
        for id_, number in (("a", 1), ("b", 3), ("c", 1)):
            store.add([make_new(id_)], number)

        def list_ids(numbers: list[int], after: int = 0) -> list[str]:
            tables = store.iter_score_tables(POLICY, dict.fromkeys(numbers), after=after)
            return [id_ for _, table in tables for id_ in table["id"].to_pylist()]

        assert (list_ids([1]), list_ids([3]), list_ids([1, 3], after=1)) == (["a", "c"], ["b"], ["b", "c"])


class TestReviews:
    def test_item_has_the_data_for_reviewers(self, store: DecisionStore, queue: ReviewStore) -> None:
        (number,) = add_images(store, 0.25)
        (item,) = queue.lease(ANNA, 1)
        assert (item.number, item.id, item.name, item.confidence) == (number, "a", "a.png", 0.25)
        assert [tuple(one) for one in item.likely] == [(2, 0.5), (1, 0.3)]
        assert [tuple(one) for one in item.views] == [("identity", 2, 0.5), ("hflip", 1, 0.4)]
        assert queue.read_image(number) == PNG

    def test_undo_reverts_a_skip(self, store: DecisionStore, queue: ReviewStore) -> None:
        """A sequence that the state machine seldom tries."""
        number, _ = add_images(store, 0.1, 0.2)
        for skips in (1, 2):
            queue.lease(ANNA, 2)
            queue.skip(number, ANNA.session)
            assert queue.read(number).skips == skips
        assert [queue.undo(number, ANNA).skips for _ in range(2)] == [1, 1], "once"

    @pytest.mark.parametrize("ahead", [1, 7])
    def test_every_third_image_is_an_audit_while_any_waits(
        self, store: DecisionStore, queue: ReviewStore, ahead: int
    ) -> None:
        add_images(store, *(place / 10 for place in range(9)))
        store.add([make_new(f"{place}", confidence=0.9, accept=True, audit=True) for place in range(3)], 1)
        shown = []
        while items := queue.lease(ANNA, ahead):
            shown.append(items[0].id)
            queue.label(items[0].number, 0, ANNA)
        assert "".join(shown) == "ab0cd1ef2ghi"

    def test_concurrent_reviewers_get_disjoint_images(self, store: DecisionStore, database: Database) -> None:
        numbers = add_images(store, *(place / 100 for place in range(40)))

        def work(name: str) -> list[int]:
            queue = ReviewStore(database, LEASE)
            return [[item.number for item in queue.lease(make_reviewer(name), size)] for size in range(1, 11)][-1]

        with ThreadPoolExecutor(4) as pool:
            assert sorted(number for held in pool.map(work, "abcd") for number in held) == numbers

    def test_pace(self, store: DecisionStore, queue: ReviewStore, clock: Clock) -> None:
        numbers = add_images(store, *(place / 10 for place in range(8)))
        for place, number in enumerate(numbers[:3]):
            queue.label(number, 0, ANNA)
            clock.now += 6 if place < 2 else 0
        queue.label(numbers[4], 0, BEN)
        pace = queue.pace(ANNA.session)
        assert [pace.own, pace.everyone] == pytest.approx([10, 15])
        assert queue.pace("nobody").own is None
        clock.now += 3600
        assert queue.pace(ANNA.session).everyone is None

    def test_labels_are_imported_together_or_not_at_all(self, store: DecisionStore, queue: ReviewStore) -> None:
        a, *_ = add_images(store, 0.1, 0.2, 0.3)
        store.add([make_new("accepted", accept=True)], 1)
        queue.label(a, 0, ANNA)
        for code, id_, label in (
            ("unknown_id", "nobody", 0), ("unknown_id", "accepted", 0), ("already_reviewed", "a", 1)
        ):  # fmt: skip
            with pytest.raises(RequestError, match="row 3") as caught:
                queue.add_labels([NewLabel("row 2", "b", 1), NewLabel("row 3", id_, label)], "import")
            assert caught.value.code == code
            assert queue.labels([1]) == {"a": 0}
        assert queue.add_labels([NewLabel("row 2", "a", 0), NewLabel("row 3", "b", 1)], "import") == 1
        assert queue.add_labels([], "import") == 0
        assert (queue.labels([1]), queue.labels([2])) == ({"a": 0, "b": 1}, {})
        bad = NewLabel("row 2", "c", Answer.BAD_IMAGE)
        assert [queue.add_labels([bad], "import") for _ in range(2)] == [1, 0]
        assert isinstance(queue.labels([1])["c"], Answer)

    def test_images_are_removed_in_small_transactions(
        self, store: DecisionStore, database: Database, clock: Clock
    ) -> None:
        """Decisions are stored in between."""

        class CountingDatabase(Database):
            written = 0

            @contextmanager
            def write(self) -> Iterator[sa.Connection]:
                self.written += 1
                with super().write() as connection:
                    yield connection

        store.add([make_new(f"{place}") for place in range(2 * database_module.MAX_IDS + 1)], 1)
        opened = CountingDatabase(database.url)
        queue = ReviewStore(opened, LEASE)
        assert queue.remove_expired(3600) == 0
        opened.written = 0
        assert queue.remove_expired(-1) == 2 * database_module.MAX_IDS + 1
        assert opened.written >= 3
        assert queue.counts().expired == 2 * database_module.MAX_IDS + 1
        assert queue.read_image(1) is None
        assert queue.remove_expired(-1) == 0
        opened.close()
        if not database.is_shared:
            database.close()  # which moves what is in the log into the file
            assert b"patient" not in Path(str(database.url.database)).read_bytes()

    def test_queue_follows_its_rules_for_any_actions(self, store: DecisionStore, database: Database) -> None:
        machine = type("BoundReviewers", (Reviewers,), {"database": database, "decisions": store})
        checks = list(HealthCheck)
        options = settings(max_examples=20, stateful_step_count=30, deadline=None, suppress_health_check=checks)
        run_state_machine_as_test(machine, settings=options)


class Given(NamedTuple):
    """An active label, escalation or decision, in the slow version."""

    number: int
    by: str
    session: str | None
    label: int | None
    decides: bool
    at: float


@pytest.mark.parametrize(
    ("labels", "options", "expected"),
    [
        ([], {}, None),
        ([None], {}, None),
        ([None, 4], {}, 4),
        ([4], {"double": True}, None),
        ([4, 4], {"double": True}, 4),
        ([3, 4], {}, None),
        ([3, 4, 3], {}, 3),
        ([3, 4, 5], {"double": True}, Answer.CANNOT_TELL),
        ([3, 4, 3, 4], {}, Answer.CANNOT_TELL),
        ([4], {"predicted": [4, 5]}, 4),
        ([5], {"predicted": [4, 5]}, 5),
        ([5, 4], {"predicted": [4, 5], "double": True}, 5),
        ([Answer.CANNOT_TELL], {"predicted": [4]}, Answer.CANNOT_TELL),
        ([Answer.CANNOT_TELL], {"predicted": [4], "double": True}, None),
        ([3], {"predicted": [4]}, None),
        ([3, None, 3], {"predicted": [4]}, None),
        ([3, 3, 3], {"predicted": [4]}, 3),
        ([Answer.BAD_IMAGE] * 3, {"predicted": [4], "double": True}, Answer.BAD_IMAGE),
        ([3, 4], {"predicted": [4]}, None),
        ([3, 4, 4], {"predicted": [4]}, 4),
        ([3, 3, 4], {"predicted": [4]}, None),
        ([3, 3, 4, 3], {"predicted": [4]}, 3),
        ([3, 3, 4, 4], {"predicted": [4]}, 4),
        ([3, 3, 4, 5], {"predicted": [4]}, Answer.CANNOT_TELL),
        ([3, 5, 6, 7], {"predicted": [4]}, Answer.CANNOT_TELL),
    ],
)
def test_label_in_force(labels: list[int | None], options: dict[str, Any], expected: int | None) -> None:
    opinions = [Opinion(label) for label in labels]
    assert resolve_label(opinions, **options) == expected
    assert resolve_label([*opinions, Opinion(7, is_final=True)], **options) == 7


def test_images_for_two_reviewers_are_drawn_by_a_secret() -> None:
    drawn = [{id_ for id_ in map(str, range(4000)) if is_drawn(id_, seed, 0.25)} for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1]
    assert [len(one) for one in drawn] == pytest.approx([1000] * 3, abs=150)
    assert len(drawn[0] & drawn[2]) == pytest.approx(250, abs=80)
    assert (is_drawn("a", 1, 0.0), is_drawn("a", 1, 1.0)) == (False, True)


@dataclass
class Item:
    """What is known of one image, in the slow version."""

    number: int
    confidence: float
    audit: bool = False
    double: bool = False
    owner: str | None = None
    until: float = 0.0
    skips: int = 0
    given: list[Given] = field(default_factory=list)
    has_image: bool = True
    label: int | None = None
    urgent: bool = False

    @property
    def state(self) -> str:
        return "done" if self.label is not None else "waiting" if self.has_image else "expired"

    @property
    def labels(self) -> list[int]:
        return [one.label for one in self.given if one.label is not None and not one.decides]

    @property
    def place(self) -> tuple[bool, bool, int, bool, float, int]:
        order = (self.skips, not self.urgent, 0 if self.audit else self.confidence, self.number)
        return self.label is not None, not self.has_image, *order

    def find(self, who: Principal) -> Given | None:
        return next((one for one in self.given if one.by == who.name and not one.decides), None)

    def settle(self, reviewers_err: bool) -> None:
        """Follow the rule for labels, written case by case."""
        decided, labels = [one.label for one in self.given if one.decides], self.labels
        was_urgent, same = self.urgent, max(map(labels.count, labels), default=0)
        often = {label for label in labels if labels.count(label) == same}
        if decided:
            self.label = decided[-1]
        elif reviewers_err and self.audit and not set(labels) <= {2} and not set(labels) <= {Answer.CANNOT_TELL}:
            wrong = [label for label in labels if label not in (2, Answer.CANNOT_TELL)]
            agreed = {label for label in wrong if wrong.count(label) >= 3}
            over = Answer.CANNOT_TELL if len(labels) >= 4 or labels.count(Answer.CANNOT_TELL) >= 3 else None
            self.label = 2 if labels.count(2) >= 2 else agreed.pop() if agreed else over
        elif len(often) == 1 and len(labels) == same:
            self.label = labels[0] if len(labels) >= 1 + self.double else None
        else:
            self.label = None if len(labels) < 3 else Answer.CANNOT_TELL if len(often) > 1 else often.pop()
        is_asked = any(one.label is None for one in self.given)
        self.urgent = self.label is None and (len(set(labels)) > 1 or is_asked)
        if self.urgent and not was_urgent:
            self.skips = 0
        if self.label is not None:
            self.owner, self.until = None, 0.0

    @property
    def settled_by(self) -> Given | None:
        labeled = [one for one in self.given if one.label is not None]
        chosen = [one for one in labeled if one.label == self.label] or labeled
        return None if self.label is None else chosen[-1]


NAMES, PLACES = st.sampled_from([ANNA, BEN, CLEO, OTHER_TAB, ADMIN]), st.integers(0, 5)
LABELS = st.sampled_from([0, 2, *Answer])
KINDS = st.tuples(st.sampled_from([(0.1, False), (0.2, False), (0.3, False), (0.4, True)]), st.booleans())


class Reviewers(RuleBasedStateMachine):
    """The store against the rules of the queue, image by image."""

    database: Database
    decisions: DecisionStore

    @initialize(kinds=st.lists(KINDS, min_size=6, max_size=6))
    def begin(self, kinds: list[tuple[tuple[float, bool], bool]]) -> None:
        with self.database.write() as connection:
            for table in (images, events, reviews, decisions):
                connection.execute(sa.delete(table))
        self.clock, self.events, self.reviewers_err = Clock(), 0, False
        self.actions: list[list[str]] = [[] for _ in kinds]
        self.decisions.deploy(POLICY, None)
        self.queue = ReviewStore(self.database, LEASE, clock=self.clock)
        new = [
            make_new(chr(97 + place), confidence=confidence, accept=audit, audit=audit, double=double)
            for place, ((confidence, audit), double) in enumerate(kinds)
        ]
        numbers = [outcome.decision.number for outcome in self.decisions.add(new, 1)]
        self.items = [Item(number, *kind, double) for number, (kind, double) in zip(numbers, kinds, strict=True)]
        with self.database.write() as connection:
            connection.execute(sa.update(images).values(stored_at=images.c.number))

    def holder(self, item: Item) -> str | None:
        return item.owner if item.until > self.clock.now else None

    def give(self, item: Item, by: str, session: str | None, label: int | None, decides: bool = False) -> None:
        self.events += 1
        item.given.append(Given(self.events, by, session, label, decides, self.clock.now))
        item.settle(self.reviewers_err)

    def note(self, item: Item, action: str) -> None:
        self.actions[self.items.index(item)].append(action)

    def order(self, items: list[Item], done: int) -> list[Item]:
        """Order images of a reviewer who labeled some already: every third one is an audit, skipped ones are last."""
        rest = sorted(items, key=lambda one: one.place[2:])
        ordered: list[Item] = []
        while rest:
            first = [one for one in rest if one.place[2:4] == rest[0].place[2:4]]
            is_due = (done + len(ordered)) % 3 == 2
            ordered.append(next((one for one in first if one.audit == is_due), first[0]))
            rest.remove(ordered[-1])
        return ordered

    def list_own(self, who: Principal) -> list[tuple[int, int]]:
        """Return the labels from a session, by the number of the event."""
        given = [(one, item) for item in self.items for one in item.given if not one.decides]
        return sorted(
            (one.number, item.number) for one, item in given if one.session == who.session and one.label is not None
        )

    @rule(who=NAMES, count=st.integers(0, 4), only_audits=st.booleans())
    def lease(self, who: Principal, count: int, only_audits: bool) -> None:
        offered = [one for one in self.items if one.audit or not only_audits]
        mine = [one for one in offered if one.label is None and one.owner == who.session]
        free = [one for one in offered if one.state == "waiting" and one.owner != who.session]
        free = [one for one in free if self.holder(one) is None]
        free = [one for one in free if all(given.by != who.name for given in one.given)]
        done = len(self.list_own(who))
        added = [one for one in self.order(mine + free, done) if one not in mine][: max(0, count - len(mine))]
        expected = self.order(mine + added, done)
        for one in expected:
            one.owner, one.until = who.session, self.clock.now + LEASE
        found = self.queue.lease(who, count, only_audits=only_audits)
        assert [one.number for one in found] == [one.number for one in expected]
        assert [one.urgent for one in found] == [one.urgent for one in expected]

    @rule(who=NAMES, place=PLACES, label=st.one_of(LABELS, st.none()))
    def label_or_escalate(self, who: Principal, place: int, label: int | None) -> None:
        item, error = self.items[place], None
        own = item.find(who)
        if own is not None:
            error = None if own.label == label else "already_reviewed"
        elif item.label is not None:
            error = None if item.label == label else "already_reviewed"
        elif self.holder(item) not in (None, who.session):
            error = "lease_lost"
        else:
            item.owner, item.until = None, 0.0
            self.give(item, who.name, who.session, label)
            self.note(item, "escalate" if label is None else "label")
        call = self.queue.escalate if label is None else self.queue.label
        arguments = (item.number, who) if label is None else (item.number, label, who)
        assert find_error(call, *arguments) == error

    @rule(who=NAMES, place=PLACES)
    def undo(self, who: Principal, place: int) -> None:
        item, error = self.items[place], None
        own = item.find(who)
        later = [one for one in item.given if own is not None and one.number > own.number and one.label is not None]
        if (own is None and item.label is not None) or (own is not None and (own.session != who.session or later)):
            error = "already_reviewed"
        elif self.holder(item) not in (None, who.session):
            error = "lease_lost"
        else:
            if own is not None:
                self.events += 1
                item.given.remove(own)
                item.settle(self.reviewers_err)
                self.note(item, "undo")
            else:
                item.skips -= item.owner != who.session and item.skips > 0
            item.owner, item.until = who.session, self.clock.now + LEASE
        assert find_error(self.queue.undo, item.number, who) == error

    @rule(who=NAMES, place=PLACES, label=LABELS)
    def correct(self, who: Principal, place: int, label: int) -> None:
        item, error, decides = self.items[place], None, who is ADMIN
        own = next((one for one in item.given if one.decides), None) if decides else item.find(who)
        if own is None and not decides:
            error = "not_labeled"
        elif own is None or own.label != label:
            item.given = [one for one in item.given if one is not own]
            self.give(item, who.name, who.session, label, decides)
            self.note(item, "decide" if decides else "correct")
        assert find_error(self.queue.correct, item.number, label, who) == error

    @rule(who=NAMES)
    def withdraw(self, who: Principal) -> None:
        withdrawn = [(item, one) for item in self.items for one in item.given if one.by == who.name]
        for item, one in withdrawn:
            self.events += 1
            item.given.remove(one)
            self.note(item, "withdraw")
        for item, _ in withdrawn:
            item.settle(self.reviewers_err)
        assert self.queue.withdraw(who.name, ADMIN) == len(withdrawn)

    @rule(who=NAMES, place=PLACES)
    def skip(self, who: Principal, place: int) -> None:
        item = self.items[place]
        if item.owner == who.session and item.label is None:
            item.skips, item.owner, item.until = item.skips + 1, None, 0.0
        self.queue.skip(item.number, who.session)

    @rule(who=NAMES)
    def release(self, who: Principal) -> None:
        for item in self.items:
            if item.owner == who.session and item.label is None:
                item.owner, item.until = None, 0.0
        self.queue.release(who.session)

    @rule(place=PLACES, label=LABELS, reviewer=st.sampled_from([None, "anna", "dora"]))
    def import_label(self, place: int, label: int, reviewer: str | None) -> None:
        item, error = self.items[place], None
        by = reviewer or "import"
        own = next((one for one in item.given if one.by == by and not one.decides), None)
        settled = item.settled_by
        if label == item.label and (reviewer is None or (settled is not None and settled.by == reviewer)):
            pass
        elif (reviewer is None and item.label is not None) or (own is not None and own.label != label):
            error = "already_reviewed"
        elif own is None:
            item.owner, item.until = None, 0.0
            self.give(item, by, None, label)
            self.note(item, "import")
        new = NewLabel("row", chr(97 + place), label, reviewer)
        assert find_error(self.queue.add_labels, [new], "import") == error

    @rule(place=PLACES)
    def remove_old_images(self, place: int) -> None:
        removed = [one for one in self.items[:place] if one.has_image]
        for item in removed:
            item.has_image = False
        assert self.queue.remove_expired(self.clock.now - self.items[place].number) == len(removed)

    @rule(seconds=st.sampled_from([1.0, LEASE / 2, LEASE]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(reviewers_err=st.booleans())
    def state_reviewer_error(self, reviewers_err: bool) -> None:
        self.reviewers_err = reviewers_err
        self.decisions.deploy(POLICY, None, reviewer_error=0.03 * reviewers_err)
        for item in self.items:
            item.settle(reviewers_err)

    @invariant()
    def same_state(self) -> None:
        expected = sorted(self.items, key=lambda one: one.place)
        blocks = list(self.queue.iter_items(["waiting", "done", "expired"], block=4))
        assert [len(block) for block in blocks] == [4, 2]
        for found, item in zip(blocks[0] + blocks[1], expected, strict=True):
            settled = item.settled_by
            assert self.queue.read(item.number) == found
            assert (found.number, found.skips, found.state) == (item.number, item.skips, item.state)
            assert (found.reviewed_label, found.has_image) == (item.label, item.has_image)
            assert (found.urgent, found.label_count) == (item.urgent, len(item.labels))
            shown = (None, None) if settled is None else (settled.by, settled.at)
            assert (found.reviewer, found.reviewed_at) == shown
        states = [item.state for item in self.items]
        leased = [item for item in self.items if item.label is None and self.holder(item)]
        counts = {state: states.count(state) for state in ("waiting", "done", "expired")}
        counts |= {"audits": sum(item.audit and item.state == "waiting" for item in self.items)}
        counts |= {"disputed": sum(item.state == "waiting" and bool(item.given) for item in self.items)}
        assert self.queue.counts().model_dump() == counts | {"leased": len(leased)}
        done = [item for block in self.queue.iter_items(["done"]) for item in block]
        assert [item.number for item in done] == [item.number for item in expected if item.state == "done"]
        labels = [(chr(97 + place), item.label) for place, item in enumerate(self.items) if item.label is not None]
        assert list(self.queue.labels([1]).items()) == labels
        for who in (ANNA, BEN, CLEO, OTHER_TAB, ADMIN):
            own = self.list_own(who)
            assert self.queue.find_last(who.session) == (own[-1][1] if own else None)
            audits = [number for _, number in own if self.queue.read(number).audit]
            assert self.queue.find_last(who.session, only_audits=True) == (audits[-1] if audits else None)

    @invariant()
    def same_trail(self) -> None:
        """The history is complete, and images are found in the order of their last event."""
        for item, actions in zip(self.items, self.actions, strict=True):
            assert [event.action for event in self.queue.read_history(item.number)] == actions
        latest = {item.number: max((one.number for one in item.given), default=0) for item in self.items}
        known = sorted((number for number in latest if latest[number]), key=lambda number: -latest[number])
        rest = sorted((item for item in self.items if not item.given), key=lambda one: one.place[1:])
        items = [item for start in (0, 2, 4) for item in self.queue.find_items([], start=start, limit=2)]
        found = [item.number for item in items]
        assert found == known + [item.number for item in rest]


def test_minutes_begin_with_their_first_second(store: DecisionStore, database: Database) -> None:
    now = 6000.0
    store.add([make_new(id_) for id_ in "abcdefg"], 1)
    with database.write() as connection:
        connection.execute(sa.update(decisions).values(decided_at=0.0))
        for number, at in enumerate((now - 0.3, now, now + 59.7), start=1):
            connection.execute(sa.update(decisions).where(decisions.c.number == number).values(decided_at=at))
    activity = Activity(database)
    activity.update(now + 59.9)
    assert [minute["images"] for minute in activity.describe(now + 59.9)["minutes"][-2:]] == [1, 2]
    activity.update(now + 3700)
    assert sum(minute["images"] for minute in activity.describe(now + 3700)["minutes"]) == 0
    assert activity.by_deployment[1]["images"] == 7


class TestDatabase:
    def test_audit_seed_persists_and_another_schema_version_is_an_error(self, database: Database) -> None:
        seed = database.audit_seed
        again = Database(database.url)
        with database.write() as connection:
            connection.execute(sa.delete(database_module.settings))
            assert seed == database.audit_seed == again.audit_seed
            connection.rollback()
        assert seed == database.audit_seed
        again.close()
        with database.write() as connection:
            connection.execute(sa.text("UPDATE settings SET value = '99' WHERE name = 'version'"))
        with pytest.raises(ServingError, match="99"):
            Database(database.url)

    def test_readers_do_not_block_decisions(self, sqlite: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(database_module, "POOL_SECONDS", 0.1)
        crowded = Database(sqlite.url)
        store = DecisionStore(crowded)
        store.deploy(POLICY, None)

        def hold_connections(held: ExitStack) -> None:
            for _ in range(100):
                held.enter_context(crowded.read())

        with ExitStack() as held:
            with pytest.raises(StorageUnavailableError):
                hold_connections(held)
            assert store.find(["a"], urgent=True) == {}
            assert not store.add([make_new("a")], 1)[0].replayed
        crowded.close()

    @pytest.mark.parametrize(
        ("url", "shown"),
        [
            ("nonsense", "expected postgresql"),
            ("mysql://user:secret@host/name", "'mysql'"),
            ("postgresql://user:secret@host:port/name", "expected postgresql"),
            ("postgresql://user:secret@127.0.0.1:1/name", r"postgresql\+pg8000://user:\*\*\*@127.0.0.1:1/name"),
        ],
    )
    def test_an_unusable_database_is_an_error_without_password(self, tmp_path: Path, url: str, shown: str) -> None:
        with pytest.raises(ServingError, match=shown) as error:
            ServiceOptions(tmp_path, url).read_reviews()
        assert "secret" not in str(error.value)

    def test_settings_and_locks_of_a_postgresql_server(
        self, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for n_tables in (0, len(database_module.metadata.tables)):
            with pytest.raises(ServingError) as caught:
                ServiceOptions(tmp_path, postgres_url).read_reviews()
            assert PASSWORD not in str(caught.value)
            engine = sa.create_engine(database_module.parse_url(postgres_url))
            assert len(sa.inspect(engine).get_table_names()) == n_tables
            engine.dispose()
            database_module.open_database(tmp_path, postgres_url).close()  # a service that was never started
        execute(postgres_url, f"ALTER DATABASE {postgres_url.rpartition('/')[2]} SET synchronous_commit = off")
        opened = database_module.open_database(Path("unused"), postgres_url)
        names = ("synchronous_commit", "lock_timeout", "idle_in_transaction_session_timeout")
        for context in (opened.read(), opened.read(urgent=True), opened.write()):
            with context as connection:
                shown = {name: connection.execute(sa.text(f"SHOW {name}")).scalar() for name in names}
            assert shown["synchronous_commit"] == "on"
            assert "0" not in shown.values(), "there is a limit on each"
        monkeypatch.setitem(database_module.POSTGRESQL_SETTINGS, "lock_timeout", "100ms")
        other = Database(opened.url)
        with opened.write(), pytest.raises(StorageError), other.write():
            pass
        with other.write():
            pass
        opened.close()
        other.close()
