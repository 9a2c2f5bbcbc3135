"""Stores in the database: decisions, written once per id, and the review queue."""

import hashlib
import itertools
import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import sqlalchemy as sa
from pydantic import BaseModel, Field

from secondlook import Decision
from secondlook.extension import SCORE_METADATA, Answer, Policy, Repair, RowOptions, ServingError, make_row_table
from secondlook.serving.database import Database, decisions, deployments, images, open_database, reviews
from secondlook.serving.label_files import NewLabel
from secondlook.serving.options import ServiceOptions
from secondlook.serving.responses import RequestError
from secondlook.serving.tokens import Principal

if TYPE_CHECKING:
    import pyarrow as pa

QueueState = Literal["waiting", "done", "expired"]
IN_STATE: dict[QueueState, sa.ColumnElement[bool]] = {
    "waiting": reviews.c.label.is_(None) & reviews.c.expired.is_(False),
    "done": reviews.c.label.is_not(None),
    "expired": reviews.c.label.is_(None) & reviews.c.expired.is_(True),
}
QUEUE_ORDER = (reviews.c.skips, reviews.c.place, reviews.c.number)
"""Least confident first, audits in stream order; skipped images come after all others."""
AUDIT_EVERY = 3
"""Every third image of a reviewer is an audit while any waits."""
PACE_SECONDS = 600.0
SELECT_STATE = sa.select(decisions.c.id, reviews).join(decisions, decisions.c.number == reviews.c.number)
SELECT_DECISION = (
    sa.select(
        decisions,
        reviews.c.likely,
        reviews.c.views,
        reviews.c.skips,
        reviews.c.label.label("reviewed_label"),
        reviews.c.reviewer,
        reviews.c.reviewed_at,
        sa.case(*((condition, state) for state, condition in IN_STATE.items()), else_="none").label("state"),
        images.c.number.is_not(None).label("has_image"),
    )
    .outerjoin(reviews, reviews.c.number == decisions.c.number)
    .outerjoin(images, images.c.number == decisions.c.number)
)
"""Decisions joined with their reviews. `state` is `none` if the image needs no review, otherwise `waiting`, `done`, or
`expired` if the image was removed before its review; `has_image` is whether it is stored."""
MAX_IDS = 500
"""Maximum number of ids in one query; databases limit it."""
BLOCK_ROWS = 10_000
BLOCK_BYTES = 8 * 2**20
"""Size of the image files in one query; a larger file is read alone."""


@dataclass(frozen=True)
class Deployment:
    """A policy put in force, with the fraction of accepted images to audit."""

    number: int
    policy: Policy
    audit: float | None
    deployed_at: float

    @cached_property
    def checksum(self) -> str:
        """Cached checksum of the policy, which `Policy` recomputes on every access."""
        return self.policy.checksum


class StoredImage(NamedTuple):
    """An image file as received."""

    media_type: str
    content: bytes


class NewDecision(NamedTuple):
    """A decision to store, with its image."""

    decision: Decision
    digest: str
    """Hex sha256 of the image as received."""
    name: str | None
    image: StoredImage | None
    """The image, if it must be stored for a review."""
    place: float | None = None
    """Position in the review queue, smallest first; None for the default order."""


StoredDecision = sa.Row[Any]
"""A decision in the database, with its review: the columns of `SELECT_DECISION`."""


class StoredOutcome(NamedTuple):
    """A stored decision, and whether it existed before the request."""

    decision: StoredDecision
    replayed: bool


class DecisionStore:
    """All decisions of a service, and their policies."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._deployments: dict[int, Deployment] = {}
        """Cache of deployments, which never change."""

    def add(self, new: Sequence[NewDecision], deployment: int) -> list[StoredOutcome]:
        """Store decisions in one transaction, and return them; an existing id keeps its first decision.

        The caller must compare digests: the first decision may be about another image.
        """
        now, ids = time.time(), [one.decision.id for one in new]
        rows: dict[sa.Table, list[dict[str, Any]]] = {decisions: [], reviews: [], images: []}
        with self._database.write() as connection:
            known = fetch_by_id(connection, SELECT_DECISION, ids)
            last = connection.execute(sa.select(sa.func.max(decisions.c.number))).scalar() or 0
            for number, one in enumerate((one for one in new if one.decision.id not in known), start=last + 1):
                values = {name: value for name, value in vars(one.decision).items() if name in decisions.c}
                low, high = one.decision.interval or (None, None)
                about = {"digest": one.digest, "name": one.name, "low": low, "high": high, "decided_at": now}
                rows[decisions].append({"number": number, "deployment": deployment, **values, **about})
                if one.decision.audit or not one.decision.accept:
                    shown = {name: getattr(one.decision, name) for name in ("audit", "likely", "views")}
                    # Ordering audits by confidence would bias the audited risk until all have labels.
                    place = 0.0 if one.decision.audit else one.decision.confidence
                    rows[reviews].append(
                        {"number": number, "place": place if one.place is None else one.place, **shown}
                    )
                    if one.image is not None:
                        rows[images].append({"number": number, **one.image._asdict(), "stored_at": now})
            for table, values_of in rows.items():
                if values_of:
                    connection.execute(sa.insert(table), values_of)
            found = fetch_by_id(connection, SELECT_DECISION, ids)
        return [StoredOutcome(found[id_], replayed=id_ in known) for id_ in ids]

    def find(self, ids: Sequence[str], *, urgent: bool = False) -> dict[str, StoredDecision]:
        """Return the existing decisions with some ids; see `Database.read` for `urgent`."""
        with self._database.read(urgent=urgent) as connection:
            return fetch_by_id(connection, SELECT_DECISION, ids)

    def deploy(self, policy: Policy, audit: float | None) -> Deployment:
        """Put a policy in force, and return its deployment: the current one if nothing changes."""
        checksum = policy.checksum
        values = {"checksum": checksum, "policy": policy.model_dump_json(), "audit": audit, "deployed_at": time.time()}
        latest = sa.select(deployments).order_by(deployments.c.number.desc()).limit(1)
        with self._database.write() as connection:
            row = connection.execute(latest).first()
            if row is not None and (row.checksum, row.audit) == (checksum, audit):
                number = row.number
            else:
                (number,) = connection.execute(sa.insert(deployments).values(values)).inserted_primary_key or (0,)
        return self.find_deployment(number)

    def latest_deployment(self) -> Deployment | None:
        """Return the deployment in force; None before the first one."""
        ((number,),) = self._database.fetch(sa.select(sa.func.max(deployments.c.number)))
        return None if number is None else self.find_deployment(number)

    def find_deployment(self, number: int) -> Deployment:
        """Return a deployment by its number."""
        if number not in self._deployments:
            (row,) = self._database.fetch(sa.select(deployments).where(deployments.c.number == number))
            policy = Policy.model_validate_json(row.policy)
            self._deployments[number] = Deployment(number, policy, row.audit, row.deployed_at)
        return self._deployments[number]

    def list_deployments(self) -> list[Deployment]:
        """Return all deployments, oldest first."""
        rows = self._database.fetch(sa.select(deployments.c.number).order_by(deployments.c.number))
        return [self.find_deployment(number) for (number,) in rows]

    def find_audits(self, policy: Policy) -> dict[int, float | None]:
        """Return the numbers of all deployments of a policy, with their audit fractions."""
        checksum = policy.checksum
        return {one.number: one.audit for one in self.list_deployments() if one.checksum == checksum}

    def iter_score_tables(
        self, policy: Policy, audits: Mapping[int, float | None], *, after: int = 0
    ) -> Iterator[tuple[int, "pa.Table"]]:
        """Yield the decisions of a policy after a number as rows of score files, in stream order.

        `audits` are the deployments from `find_audits`. Each table is a block of one deployment, with the number of its
        last decision.
        """
        chosen = sa.select(decisions).where(decisions.c.deployment.in_(list(audits)))
        query = chosen.order_by(decisions.c.number).limit(BLOCK_ROWS)
        while block := self._database.fetch(query.where(decisions.c.number > after)):
            after = block[-1].number
            for deployment, group in itertools.groupby(block, key=lambda row: row.deployment):
                part = list(group)
                yield part[-1].number, _make_score_table(part, policy, audits[deployment])

    def identify(self, number: int) -> str | None:
        """Return a digest of a decision, given its number, and of the database; None if there is no decision."""
        columns = (decisions.c.id, decisions.c.digest, decisions.c.decided_at)
        for row in self._database.fetch(sa.select(*columns).where(decisions.c.number == number)):
            return hashlib.sha256(json.dumps([self._database.audit_seed, number, *row]).encode()).hexdigest()
        return None


def get_interval(stored: StoredDecision) -> tuple[float, float] | None:
    """Return the interval of the confidence; None after a single look."""
    return None if stored.low is None else (stored.low, stored.high)


def fetch_by_id(connection: sa.Connection, query: sa.Select[Any], ids: Sequence[str]) -> dict[str, sa.Row[Any]]:
    """Return the existing rows of a query for some decision ids, by id."""
    parts = (ids[start : start + MAX_IDS] for start in range(0, len(ids), MAX_IDS))
    return {row.id: row for part in parts for row in connection.execute(query.where(decisions.c.id.in_(part)))}


def _make_score_table(part: Sequence[sa.Row[Any]], policy: Policy, audit: float | None) -> "pa.Table":
    """Return decisions of one deployment as rows of a score file, with its metadata."""
    names = [name for name in RowOptions(policy, audit=audit).columns if name in decisions.c]
    table = make_row_table(names, {name: [getattr(one, name) for one in part] for name in names}, len(part))
    metadata = {SCORE_METADATA: json.dumps({"policy": json.loads(policy.model_dump_json()), "audit": audit})}
    return table.replace_schema_metadata(metadata)


class ReviewCounts(BaseModel):
    """Numbers of images."""

    waiting: int = Field(description="Images without a label, including leased ones.")
    audits: int = Field(description="Audits without a label, part of the waiting images.")
    leased: int = Field(description="Images leased to reviewers.")
    done: int = Field(description="Images with a label.")
    expired: int = Field(description="Images removed before their review.")


class ReviewPace(BaseModel):
    """Labels per minute in the last ten minutes; null if there are fewer than two."""

    own: float | None
    everyone: float | None


class ReviewStore:
    """The review queue. Each image has at most one owner, until its lease expires.

    Changes are serialized, so no image is leased to two reviewers. They are idempotent: a client that did not receive
    the response can retry.
    """

    def __init__(self, database: Database, lease_seconds: float, *, clock: Callable[[], float] = time.time) -> None:
        self._database, self.lease_seconds, self._clock = database, lease_seconds, clock

    def lease(self, owner: str, count: int, *, only_audits: bool = False) -> list[StoredDecision]:
        """Renew the leases of an owner, add images up to `count`, and return them all in review order.

        Every `AUDIT_EVERY`-th image is an audit, counted from the first label of the owner, while any waits. With
        `only_audits`, other images are neither renewed nor returned.
        """
        now = self._clock()
        columns: sa.Select[Any] = sa.select(reviews.c.number, reviews.c.audit, *QUEUE_ORDER[:2])
        held = columns.where(reviews.c.lease_owner == owner, reviews.c.label.is_(None))
        is_expired = reviews.c.lease_until.is_(None) | (reviews.c.lease_until <= now)
        is_free = IN_STATE["waiting"] & is_expired & reviews.c.lease_owner.is_distinct_from(owner)
        done = sa.select(sa.func.count()).where(reviews.c.lease_owner == owner, reviews.c.label.is_not(None))
        with self._database.write() as connection:
            rows = [row for row in connection.execute(held) if row.audit or not only_audits]
            renewed = {row.number for row in rows}
            missing = max(0, count - len(rows))
            for audit in (True,) if only_audits else (True, False):
                free = columns.where(is_free, reviews.c.audit.is_(audit)).order_by(*QUEUE_ORDER).limit(missing)
                rows += connection.execute(free)
            place = connection.execute(done).scalar_one()
            added = (number for number in _interleave(rows, place) if number not in renewed)
            leased = renewed | set(itertools.islice(added, missing))
            _update(connection, list(leased), lease_owner=owner, lease_until=now + self.lease_seconds)
            items = {item.number: item for item in _read_items(connection, list(leased))}
        return [items[number] for number in _interleave([row for row in rows if row.number in leased], place)]

    def label(self, number: int, label: int, principal: Principal) -> None:
        """Record the label of a reviewer; repeating it changes nothing, and a different one needs `undo` first.

        Two tabs of one browser share an owner and may show the same image: the second does not overwrite the first.
        """
        now = self._clock()
        with self._database.write() as connection:
            row = _read_state(connection, number)
            if row.label == label:
                return
            if row.label is not None:
                raise _make_reviewed_error(f"image {number}", row)
            self._check_lease(row, principal.session, now)
            values = {"label": label, "reviewer": principal.name, "reviewed_at": now}
            # Keep the owner: only the browser that sent a label may undo it.
            _update(connection, [number], **values, lease_owner=principal.session, lease_until=None)

    def undo(self, number: int, principal: Principal) -> StoredDecision:
        """Undo a label or skip of the same reviewer, and lease the image to them again."""
        now, owner = self._clock(), principal.session
        with self._database.write() as connection:
            row = _read_state(connection, number)
            if row.label is not None and row.lease_owner != owner:
                raise _make_reviewed_error(f"image {number}", row)
            self._check_lease(row, owner, now)
            values: dict[str, Any] = {"lease_owner": owner, "lease_until": now + self.lease_seconds}
            if row.label is not None:
                values |= {"label": None, "reviewer": None, "reviewed_at": None}
            elif row.lease_owner != owner:
                values["skips"] = max(row.skips - 1, 0)
            _update(connection, [number], **values)
            (item,) = _read_items(connection, [number])
        return item

    def skip(self, number: int, owner: str) -> None:
        """Release an image, to be reviewed after all images without a skip."""
        with self._database.write() as connection:
            row = _read_state(connection, number)
            if row.lease_owner == owner and row.label is None:
                _update(connection, [number], skips=row.skips + 1, lease_owner=None, lease_until=None)

    def release(self, owner: str) -> None:
        """Release all images of an owner."""
        held = (reviews.c.lease_owner == owner) & reviews.c.label.is_(None)
        with self._database.write() as connection:
            connection.execute(sa.update(reviews).where(held).values(lease_owner=None, lease_until=None))

    def find_last(self, owner: str, *, only_audits: bool = False) -> int | None:
        """Return the number of the image, or of the audit, that an owner labeled last; None if there is none."""
        kinds = (True,) if only_audits else (True, False)
        query = (
            sa.select(reviews.c.number)
            .where(reviews.c.lease_owner == owner, reviews.c.label.is_not(None), reviews.c.audit.in_(kinds))
            .order_by(reviews.c.reviewed_at.desc(), reviews.c.number.desc())
            .limit(1)
        )
        return next((number for (number,) in self._database.fetch(query)), None)

    def counts(self) -> ReviewCounts:
        """Count the images by state."""
        is_audit = IN_STATE["waiting"] & reviews.c.audit
        is_leased = reviews.c.lease_until > self._clock()  # a label ends the lease
        totals = [
            sa.select(sa.func.count()).select_from(reviews).where(condition).scalar_subquery().label(name)
            for name, condition in [*IN_STATE.items(), ("audits", is_audit), ("leased", is_leased)]
        ]
        (row,) = self._database.fetch(sa.select(*totals))
        return ReviewCounts(**row._mapping)

    def count_skipped(self) -> int:
        """Count the waiting images that were skipped."""
        skipped = sa.select(sa.func.count()).select_from(reviews).where(IN_STATE["waiting"], reviews.c.skips > 0)
        ((count,),) = self._database.fetch(skipped)
        return int(count)

    def pace(self, owner: str) -> ReviewPace:
        """Return the review pace of an owner and of everyone together."""
        recent = reviews.c.label.is_not(None) & (reviews.c.reviewed_at > self._clock() - PACE_SECONDS)
        # Imported labels have no owner, and do not measure review time.
        owned = reviews.c.lease_owner.is_not(None)
        found = self._database.fetch(sa.select(reviews.c.lease_owner, reviews.c.reviewed_at).where(recent, owned))
        own = compute_pace([at for by, at in found if by == owner])
        return ReviewPace(own=own, everyone=compute_pace([at for _, at in found]))

    def read(self, number: int) -> StoredDecision:
        """Return one image of the queue."""
        with self._database.read() as connection:
            found = _read_items(connection, [number])
        if not found:
            raise make_unknown_error(number)
        return found[0]

    def read_image(self, number: int) -> StoredImage | None:
        """Return the stored file of an image; None if there is none."""
        return next(self.iter_images([number]))

    def iter_images(self, numbers: Sequence[int]) -> Iterator[StoredImage | None]:
        """Yield the stored file of each image, or None; about `BLOCK_BYTES` are read at once."""
        length = sa.func.length(images.c.content).label("size")
        wanted = sa.select(images.c.number, length).where(images.c.number.in_(numbers))
        sizes = {row.number: row.size for row in self._database.fetch(wanted)}
        totals = itertools.accumulate(sizes.get(number, 0) for number in numbers)
        files = sa.select(images.c.number, images.c.media_type, images.c.content)
        for _, group in itertools.groupby(zip(numbers, totals, strict=True), key=lambda one: one[1] // BLOCK_BYTES):
            block = [number for number, _ in group]
            rows = self._database.fetch(files.where(images.c.number.in_(block)))
            found = {number: StoredImage(kind, bytes(content)) for number, kind, content in rows}
            yield from map(found.get, block)

    def iter_items(self, states: Sequence[QueueState], *, block: int = MAX_IDS) -> Iterator[list[StoredDecision]]:
        """Yield the images in some states, in blocks: waiting ones in review order, then the others."""
        query = sa.select(reviews.c.number).where(sa.or_(*(IN_STATE[state] for state in states)))
        order = (reviews.c.label.is_not(None), reviews.c.expired, *QUEUE_ORDER)
        numbers = [number for (number,) in self._database.fetch(query.order_by(*order))]
        for start in range(0, len(numbers), block):
            wanted = numbers[start : start + block]
            with self._database.read() as connection:
                found = {item.number: item for item in _read_items(connection, wanted)}
            yield [found[number] for number in wanted]

    def add_labels(self, labels: Sequence[NewLabel], reviewer: str) -> int:
        """Import labels, all or none, and return the number of new ones."""
        now = self._clock()
        with self._database.write() as connection:
            rows = fetch_by_id(connection, SELECT_STATE, [one.id for one in labels])
            changed = [one for one in labels if _is_new(one, rows.get(one.id))]
            if changed:
                values = {"reviewer": reviewer, "reviewed_at": now, "lease_owner": None, "lease_until": None}
                row = reviews.c.number == sa.bindparam("of_number")
                update = sa.update(reviews).where(row).values(label=sa.bindparam("of_label"), **values)
                numbered = [{"of_number": rows[one.id].number, "of_label": one.label} for one in changed]
                connection.execute(update, numbered)
        return len(changed)

    def offer(self, ids: Sequence[str]) -> None:
        """Replace the waiting images with these, except labeled ones; leases of all others end."""
        is_offered = reviews.c.number.in_(sa.select(decisions.c.number).where(decisions.c.id.in_(ids)))
        with self._database.write() as connection:
            for others, condition, values in (
                (IN_STATE["waiting"], ~is_offered, {"expired": True, "lease_owner": None, "lease_until": None}),
                (IN_STATE["expired"], is_offered, {"expired": False}),
            ):
                connection.execute(sa.update(reviews).where(others, condition).values(**values))

    def labels(self, deployment_numbers: Sequence[int]) -> dict[str, int]:
        """Return the labels of the images of some deployments, by id: classes, or an `Answer`."""
        query = SELECT_STATE.where(decisions.c.deployment.in_(deployment_numbers), IN_STATE["done"])
        columns = query.with_only_columns(decisions.c.id, reviews.c.label).order_by(reviews.c.number)
        return {id_: label if label >= 0 else Answer(label) for id_, label in self._database.fetch(columns)}

    def remove_expired(self, keep: float) -> int:
        """Remove images stored for longer than `keep` seconds, reviewed or not, and return their number.

        They are removed in several transactions, since a long one would block decisions.
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

    def _check_lease(self, row: sa.Row[Any], owner: str, now: float) -> None:
        if row.lease_owner not in (None, owner) and (row.lease_until or 0) > now:
            raise RequestError(409, "lease_lost", f"image {row.number} is with another reviewer; take the next one.")


def make_unknown_error(number: int) -> RequestError:
    """Return the error for an unknown image number."""
    return RequestError(404, "unknown_number", f"there is no image number {number} in the review queue.")


def compute_pace(times: Sequence[float]) -> float | None:
    """Return events per minute between the first and the last; None for fewer than two times."""
    seconds = max(times) - min(times) if times else 0
    return 60 * (len(times) - 1) / seconds if seconds > 0 else None


def _interleave(rows: Sequence[sa.Row[Any]], place: int) -> list[int]:
    """Return the numbers of images in review order, where the first one has a place in the sequence of a reviewer."""
    ordered = sorted(rows, key=lambda row: (row.skips, row.place, row.number))
    queues = [deque(row for row in ordered if bool(row.audit) is audit) for audit in (True, False)]
    numbers: list[int] = []
    while waiting := [queue for queue in queues if queue]:
        is_due = (place + len(numbers)) % AUDIT_EVERY == AUDIT_EVERY - 1
        chosen = min(waiting, key=lambda queue: (queue[0].skips, bool(queue[0].audit) is not is_due))
        numbers.append(chosen.popleft().number)
    return numbers


def _update(connection: sa.Connection, numbers: Sequence[int], **values: Any) -> None:
    connection.execute(sa.update(reviews).where(reviews.c.number.in_(numbers)).values(**values))


def _read_items(connection: sa.Connection, numbers: Sequence[int]) -> Sequence[StoredDecision]:
    return connection.execute(SELECT_DECISION.where(reviews.c.number.in_(numbers)).order_by(*QUEUE_ORDER)).all()


def _read_state(connection: sa.Connection, number: int) -> sa.Row[Any]:
    row = connection.execute(SELECT_STATE.where(reviews.c.number == number)).first()
    if row is None:
        raise make_unknown_error(number)
    return row


def _is_new(new: NewLabel, row: sa.Row[Any] | None) -> bool:
    """Whether an imported label is new; raise an error if it cannot be recorded."""
    if row is None:
        raise RequestError(422, "unknown_id", f"{new.where}: image {new.id!r} is not in the queue; remove the row.")
    if row.label not in (None, new.label):
        raise _make_reviewed_error(f"{new.where}: image {new.id!r}", row)
    return row.label is None


def _make_reviewed_error(image: str, row: sa.Row[Any]) -> RequestError:
    return RequestError(409, "already_reviewed", f"{image} has a different label by {row.reviewer!r}, which is kept.")


@dataclass(frozen=True, eq=False)
class ReviewedService:
    """The images decided by the policy in force while audits were on."""

    policy: Policy
    tables: tuple["pa.Table", ...]
    """Rows as in score files, in stream order."""
    labels: dict[str, int]
    """Reviewed class, or an `Answer`, by image id."""
    left_out: int
    """Number of images decided without audits, whose accepted errors are unknown."""
    where: str
    """The database, without a password."""


def read_reviewed_service(options: ServiceOptions) -> ReviewedService:
    """Read the decisions and reviews of a service; it may be running."""
    database = open_database(options.data_dir, options.database, create=False)
    try:
        store = DecisionStore(database)
        deployment = store.latest_deployment()
        if deployment is None:
            raise ServingError(f"the database {database.place} has no policy; expected the database of a service.")
        policy, audits = deployment.policy, store.find_audits(deployment.policy)
        audited = {number: audit for number, audit in audits.items() if audit is not None}
        others = {number: None for number in audits if number not in audited}
        # Labels before images: a running service may add more of both in between.
        labels = ReviewStore(database, options.lease_seconds).labels(list(audited))
        tables = tuple(rows for _, rows in store.iter_score_tables(policy, audited))
        left_out = sum(len(rows) for _, rows in store.iter_score_tables(policy, others))
        if not tables:
            fault = f"the service decided about {left_out:,} images without audits, so their errors are unknown"
            raise ServingError(fault, repair=Repair("serve with {audit}, for example", of="serve", audit=0.05))
        return ReviewedService(policy, tables, labels, left_out, database.place)
    finally:
        database.close()
