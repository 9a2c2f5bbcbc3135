"""The review queue as rows of the database: who looks at which image, and what they found it to be."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import sqlalchemy as sa
from pydantic import BaseModel, Field

from secondlook.extension import Policy, Repair, ServingError
from secondlook.serving.database import Database, decisions, images, open_database, reviews
from secondlook.serving.decision_store import MAX_IDS, DecisionStore, StoredDecision, StoredImage, make_stored_decision
from secondlook.serving.options import ServiceOptions
from secondlook.serving.responses import RequestError
from secondlook.serving.tokens import Principal

if TYPE_CHECKING:
    import pyarrow as pa
    from sqlalchemy.engine import RowMapping

QueueState = Literal["waiting", "done", "expired"]

PACE_SECONDS = 600.0
"""The pace is that of the last ten minutes."""

QUEUE_ORDER = (reviews.c.skips, reviews.c.confidence, reviews.c.number)
"""Least confident first; what a reviewer skipped comes after everything that nobody did."""

IN_STATE: dict[QueueState, sa.ColumnElement[bool]] = {
    "waiting": reviews.c.label.is_(None) & reviews.c.expired.is_(False),
    "done": reviews.c.label.is_not(None),
    "expired": reviews.c.label.is_(None) & reviews.c.expired.is_(True),
}
"""The condition of each state."""

SELECT_STATE = sa.select(
    decisions.c.id,
    reviews.c.number,
    reviews.c.label,
    reviews.c.reviewer,
    reviews.c.lease_owner,
    reviews.c.lease_until,
    reviews.c.skips,
).join(decisions, decisions.c.number == reviews.c.number)


@dataclass(frozen=True)
class ReviewItem:
    """An image that people are to review, or have reviewed."""

    decision: StoredDecision
    likely: Sequence[tuple[int, float]]
    """The likeliest classes with their probabilities, the predicted one first."""
    views: Sequence[tuple[str, int, float]]
    """View, predicted class and probability of each look."""
    has_image: bool
    """Whether the image is stored."""
    skips: int
    label: int | None
    """The class that the reviewer found."""
    reviewer: str | None
    reviewed_at: float | None
    expired: bool
    """Whether the image was removed before anyone reviewed it."""

    @property
    def number(self) -> int:
        """Identifies the image in addresses; its id may contain anything."""
        return self.decision.number

    @property
    def state(self) -> QueueState:
        """Whether the image waits for its review, is reviewed, or was removed before."""
        return "done" if self.label is not None else "expired" if self.expired else "waiting"


class ReviewCounts(BaseModel):
    """Numbers of images."""

    waiting: int = Field(description="Images without a label, with those that are on a screen.")
    leased: int = Field(description="Images that reviewers have now.")
    done: int = Field(description="Images with a label.")
    expired: int = Field(description="Images that were removed before anyone reviewed them.")


class ReviewPace(BaseModel):
    """Labels per minute in the last ten minutes; null if there are fewer than two."""

    own: float | None
    everyone: float | None


class NewLabel(NamedTuple):
    """A label from outside, and where it was found."""

    where: str
    """Such as `row 3`."""
    id: str
    label: int


class ReviewStore:
    """The review queue. Every image has one owner at a time, who keeps it until a lease ends.

    All changes are made in transactions that follow one after another, so that no image is given to two reviewers, and
    all of them can be repeated: a client that did not get the response sends its request again.
    """

    def __init__(self, database: Database, lease_seconds: float, *, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self.lease_seconds = lease_seconds
        self._clock = clock

    def lease(self, owner: str, count: int) -> list[ReviewItem]:
        """Return the images that an owner has, and as many further ones as make `count`, most doubtful first.

        All of them are the owner's for `lease_seconds` from now; nobody else gets one of them.
        """
        now = self._clock()
        held = sa.select(reviews.c.number).where(reviews.c.lease_owner == owner, reviews.c.label.is_(None))
        with self._database.write() as connection:
            numbers = list(connection.execute(held).scalars())
            if count > len(numbers):
                is_free = reviews.c.lease_until.is_(None) | (reviews.c.lease_until <= now)
                free = (
                    sa.select(reviews.c.number)
                    .where(IN_STATE["waiting"], is_free, reviews.c.lease_owner.is_distinct_from(owner))
                    .order_by(*QUEUE_ORDER)
                    .limit(count - len(numbers))
                )
                numbers += connection.execute(free).scalars()
            _update(connection, numbers, lease_owner=owner, lease_until=now + self.lease_seconds)
            items = _read_items(connection, numbers)
        return sorted(items, key=lambda one: (one.skips, one.decision.confidence, one.number))

    def label(self, number: int, label: int, principal: Principal) -> None:
        """Record what a reviewer found; the same label again changes nothing, and another one needs `undo` before.

        Two tabs of one browser are one owner and may show the same image: what the first found is not overwritten.
        """
        now = self._clock()
        with self._database.write() as connection:
            row = _read_state(connection, number)
            if row["label"] == label:
                return
            if row["label"] is not None:
                raise _make_reviewed_error(row)
            self._check_lease(row, principal.session, now)
            values = {"label": label, "reviewer": principal.name, "reviewed_at": now}
            # The owner stays: only the browser that gave a label may take it back.
            _update(connection, [number], **values, lease_owner=principal.session, lease_until=None)

    def undo(self, number: int, principal: Principal) -> ReviewItem:
        """Take a label of one's own back, or a skip; the image is leased to the reviewer again."""
        now = self._clock()
        with self._database.write() as connection:
            row = _read_state(connection, number)
            is_own = row["lease_owner"] == principal.session
            if row["label"] is not None and not is_own:
                raise _make_reviewed_error(row)
            self._check_lease(row, principal.session, now)
            values: dict[str, Any] = {"lease_owner": principal.session, "lease_until": now + self.lease_seconds}
            if row["label"] is not None:
                # The time is that of the change, by which a monitor finds it.
                values |= {"label": None, "reviewer": None, "reviewed_at": now}
            elif not is_own:
                values["skips"] = max(row["skips"] - 1, 0)
            _update(connection, [number], **values)
            (item,) = _read_items(connection, [number])
        return item

    def skip(self, number: int, owner: str) -> None:
        """Give an image back, to be reviewed after all that nobody skipped."""
        with self._database.write() as connection:
            row = _read_state(connection, number)
            if row["lease_owner"] == owner and row["label"] is None:
                _update(connection, [number], skips=row["skips"] + 1, lease_owner=None, lease_until=None)

    def release(self, owner: str) -> None:
        """Give all images of an owner back."""
        held = (reviews.c.lease_owner == owner) & reviews.c.label.is_(None)
        with self._database.write() as connection:
            connection.execute(sa.update(reviews).where(held).values(lease_owner=None, lease_until=None))

    def find_last(self, owner: str) -> int | None:
        """Return the number of the image that an owner labeled last; None if there is none."""
        query = (
            sa.select(reviews.c.number)
            .where(reviews.c.lease_owner == owner, reviews.c.label.is_not(None))
            .order_by(reviews.c.reviewed_at.desc(), reviews.c.number.desc())
            .limit(1)
        )
        return next((number for (number,) in self._database.fetch(query)), None)

    def counts(self) -> ReviewCounts:
        """Count the images by what became of them."""
        is_leased = reviews.c.lease_until > self._clock()  # a label ends the lease
        totals = [
            sa.select(sa.func.count()).select_from(reviews).where(condition).scalar_subquery().label(name)
            for name, condition in [*IN_STATE.items(), ("leased", is_leased)]
        ]
        (row,) = self._database.fetch(sa.select(*totals))
        return ReviewCounts(**row._mapping)

    def pace(self, owner: str) -> ReviewPace:
        """Return how fast an owner, and everyone together, reviews."""
        recent = reviews.c.label.is_not(None) & (reviews.c.reviewed_at > self._clock() - PACE_SECONDS)
        # Imported labels have no owner, and say nothing about the time that people need.
        owned = reviews.c.lease_owner.is_not(None)
        query = sa.select(reviews.c.lease_owner, reviews.c.reviewed_at).where(recent, owned)
        found = self._database.fetch(query)
        own = compute_pace([at for by, at in found if by == owner])
        return ReviewPace(own=own, everyone=compute_pace([at for _, at in found]))

    def read(self, number: int) -> ReviewItem:
        """Return one image of the queue."""
        with self._database.read() as connection:
            found = _read_items(connection, [number])
        if not found:
            raise make_unknown_error(number)
        return found[0]

    def read_image(self, number: int) -> StoredImage | None:
        """Return the stored file of an image; None if there is none."""
        query = sa.select(images.c.media_type, images.c.content).where(images.c.number == number)
        return next((StoredImage(kind, bytes(content)) for kind, content in self._database.fetch(query)), None)

    def iter_items(self, states: Sequence[QueueState], *, block: int = MAX_IDS) -> Iterator[list[ReviewItem]]:
        """Yield the images in some states, in blocks: waiting ones in the order of review, then the others."""
        chosen = [IN_STATE[state] for state in states]
        query = sa.select(reviews.c.number).where(sa.or_(*chosen))
        order = (reviews.c.label.is_not(None), reviews.c.expired, *QUEUE_ORDER)
        numbers = [number for (number,) in self._database.fetch(query.order_by(*order))]
        for start in range(0, len(numbers), block):
            wanted = numbers[start : start + block]
            with self._database.read() as connection:
                found = {item.number: item for item in _read_items(connection, wanted)}
            yield [found[number] for number in wanted]

    def add_labels(self, labels: Sequence[NewLabel], reviewer: str) -> int:
        """Record labels from outside, all of them or none, and return how many are new."""
        now = self._clock()
        with self._database.write() as connection:
            rows = _read_states_by_id(connection, [one.id for one in labels])
            changed = [one for one in labels if _is_new(one, rows.get(one.id))]
            if changed:
                values = {"reviewer": reviewer, "reviewed_at": now, "lease_owner": None, "lease_until": None}
                row = reviews.c.number == sa.bindparam("of_number")
                update = sa.update(reviews).where(row).values(label=sa.bindparam("of_label"), **values)
                numbered = [{"of_number": rows[one.id]["number"], "of_label": one.label} for one in changed]
                connection.execute(update, numbered)
        return len(changed)

    def labels(self, deployment_numbers: Sequence[int], *, since: float | None = None) -> dict[str, int | None]:
        """Return the labels of images that some deployments decided about, by id.

        With `since`, those that were given or taken back (None) at that time or later. Clocks of instances differ: ask
        again for the last minutes, and compare.
        """
        condition = reviews.c.label.is_not(None) if since is None else reviews.c.reviewed_at >= since
        query = sa.select(decisions.c.id, reviews.c.label).join(decisions, decisions.c.number == reviews.c.number)
        chosen = query.where(decisions.c.deployment.in_(deployment_numbers), condition).order_by(reviews.c.number)
        return dict(tuple(row) for row in self._database.fetch(chosen))

    def remove_expired(self, keep: float) -> int:
        """Remove images that are stored for longer than `keep` seconds, reviewed or not, and return how many.

        Each transaction removes some of them: one of all would hold up decisions for long.
        """
        is_old = images.c.stored_at < self._clock() - keep
        query = sa.select(images.c.number).where(is_old).order_by(images.c.stored_at).limit(MAX_IDS)
        removed = 0
        while True:
            with self._database.write() as connection:
                numbers = connection.execute(query).scalars().all()
                if not numbers:
                    return removed
                removed += len(numbers)
                is_lost = reviews.c.number.in_(numbers) & reviews.c.label.is_(None)
                connection.execute(sa.update(reviews).where(is_lost).values(expired=True))
                connection.execute(sa.delete(images).where(images.c.number.in_(numbers)))

    def _check_lease(self, row: "RowMapping", owner: str, now: float) -> None:
        if row["lease_owner"] not in (None, owner) and (row["lease_until"] or 0) > now:
            raise RequestError(
                409,
                "lease_lost",
                f"image {row['number']} is with another reviewer now, since nothing was heard from this one for "
                f"{self.lease_seconds:g} seconds; go on with the next image.",
            )


def make_unknown_error(number: int) -> RequestError:
    """Return the error of a number that no image of the queue has."""
    return RequestError(404, "unknown_number", f"there is no image number {number} in the review queue.")


def compute_pace(times: Sequence[float]) -> float | None:
    """Return events per minute from the first to the last of them; None if that cannot be told."""
    seconds = max(times) - min(times) if times else 0
    return 60 * (len(times) - 1) / seconds if seconds > 0 else None


def _update(connection: sa.Connection, numbers: Sequence[int], **values: Any) -> None:
    connection.execute(sa.update(reviews).where(reviews.c.number.in_(numbers)).values(**values))


def _read_items(connection: sa.Connection, numbers: Sequence[int]) -> list[ReviewItem]:
    joined = decisions.join(reviews, reviews.c.number == decisions.c.number)
    joined = joined.outerjoin(images, images.c.number == decisions.c.number)
    names = ("likely", "views", "skips", "label", "reviewer", "reviewed_at", "expired")
    own = [reviews.c[name].label(f"review_{name}") for name in names]
    has_image = images.c.number.is_not(None).label("has_image")
    query = sa.select(decisions, *own, has_image).select_from(joined).where(decisions.c.number.in_(numbers))
    found = []
    for row in connection.execute(query).mappings():
        values = {name: row[f"review_{name}"] for name in names}
        if values["label"] is None:
            values["reviewed_at"] = None  # when a label was taken back
        found.append(ReviewItem(make_stored_decision(row), has_image=bool(row["has_image"]), **values))
    return found


def _read_state(connection: sa.Connection, number: int) -> "RowMapping":
    row = connection.execute(SELECT_STATE.where(reviews.c.number == number)).mappings().first()
    if row is None:
        raise make_unknown_error(number)
    return row


def _read_states_by_id(connection: sa.Connection, ids: Sequence[str]) -> dict[str, "RowMapping"]:
    found: dict[str, RowMapping] = {}
    for start in range(0, len(ids), MAX_IDS):
        query = SELECT_STATE.where(decisions.c.id.in_(ids[start : start + MAX_IDS]))
        found |= {row["id"]: row for row in connection.execute(query).mappings()}
    return found


def _is_new(new: NewLabel, row: "RowMapping | None") -> bool:
    """Whether a label from outside changes something; raise an error if it cannot be recorded."""
    if row is None:
        message = f"{new.where}: image {new.id!r} is not in the review queue; remove the row."
        raise RequestError(422, "unknown_id", message)
    if row["label"] not in (None, new.label):
        raise RequestError(
            409,
            "already_reviewed",
            f"{new.where}: image {new.id!r} was reviewed by {row['reviewer']!r} with another result; remove the row, "
            "or let the reviewer take the label back.",
        )
    return row["label"] is None


def _make_reviewed_error(row: "RowMapping") -> RequestError:
    return RequestError(
        409,
        "already_reviewed",
        f"image {row['number']} was reviewed by {row['reviewer']!r} with another result, which is kept until it is "
        "taken back; go on with the next image.",
    )


@dataclass(frozen=True, eq=False)
class ReviewedService:
    """The images that the policy in force decided about, as far as accepted ones were audited."""

    policy: Policy
    tables: tuple["pa.Table", ...]
    """Rows as in score files, in the order of the stream."""
    labels: dict[str, int]
    """The class that a reviewer found, by the id of the image."""
    left_out: int
    """Number of images that were decided without audits, which reviews say nothing about."""
    where: str
    """The database, without a password."""


def read_reviewed_service(options: ServiceOptions) -> ReviewedService:
    """Read the decisions and reviews of a service, which may be running."""
    database = open_database(options.data_dir, options.database, create=False)
    try:
        store = DecisionStore(database)
        deployment = store.latest_deployment()
        if deployment is None:
            raise ServingError(f"no policy was ever in force in {database.place}; expected the database of a service.")
        policy, audits = deployment.policy, store.find_audits(deployment.policy)
        audited = {number: audit for number, audit in audits.items() if audit is not None}
        others = {number: None for number in audits if number not in audited}
        # Before the images: a service that runs may store and label further ones meanwhile.
        found = ReviewStore(database, options.lease_seconds).labels(list(audited))
        labels = {id_: label for id_, label in found.items() if label is not None}
        tables = tuple(rows for _, rows in store.iter_score_tables(policy, audited))
        left_out = sum(len(rows) for _, rows in store.iter_score_tables(policy, others))
        if not tables:
            raise ServingError(
                f"the service decided about {left_out:,} images by its policy without audits, so reviews say nothing "
                "about the accepted ones",
                repair=Repair("serve with {audit}, for example", of="serve", audit=0.05),
            )
        return ReviewedService(policy, tables, labels, left_out, database.place)
    finally:
        database.close()
