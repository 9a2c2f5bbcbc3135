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
from secondlook.serving.database import (
    MAX_IDS,
    Database,
    decisions,
    deployments,
    events,
    images,
    open_database,
    reviews,
)
from secondlook.serving.label_files import NewLabel
from secondlook.serving.options import ServiceOptions
from secondlook.serving.responses import RequestError
from secondlook.serving.tokens import Principal
from secondlook.serving.trail import IS_ACTIVE, Action, add_event, end_event, select_active, settle

if TYPE_CHECKING:
    import pyarrow as pa

QueueState = Literal["waiting", "done", "expired"]
IN_STATE: dict[QueueState, sa.ColumnElement[bool]] = {
    "waiting": reviews.c.label.is_(None) & reviews.c.expired.is_(False),
    "done": reviews.c.label.is_not(None),
    "expired": reviews.c.label.is_(None) & reviews.c.expired.is_(True),
}
IS_DISPUTED = IN_STATE["waiting"] & ((reviews.c.label_count > 0) | reviews.c.urgent)
"""The images that wait for a second or third reviewer."""
QUEUE_COLUMNS = (reviews.c.skips, reviews.c.urgent, reviews.c.place)
QUEUE_ORDER = (reviews.c.skips, reviews.c.urgent.desc(), reviews.c.place, reviews.c.number)
"""Urgent images first, then the least confident ones, audits in stream order; skipped images come after all others."""
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
        reviews.c.comment,
        reviews.c.urgent,
        reviews.c.label_count,
        sa.case(*((condition, state) for state, condition in IN_STATE.items()), else_="none").label("state"),
        images.c.number.is_not(None).label("has_image"),
    )
    .outerjoin(reviews, reviews.c.number == decisions.c.number)
    .outerjoin(images, images.c.number == decisions.c.number)
)
"""Decisions joined with their reviews. `state` is `none` if the image needs no review, otherwise `waiting`, `done`, or
`expired` if the image was removed before its review; `has_image` is whether it is stored."""
BLOCK_ROWS = 10_000
BLOCK_BYTES = 8 * 2**20
"""Size of the image files in one query; a larger file is read alone."""


@dataclass(frozen=True)
class Deployment:
    """A policy put in force, with the fraction of accepted images to audit, and the settings of the review."""

    number: int
    policy: Policy
    audit: float | None
    reviewer_error: float
    double_review: float
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
    double: bool = False
    """Whether two reviewers label the image."""


StoredDecision = sa.Row[Any]
"""A decision in the database, with its review: the columns of `SELECT_DECISION`."""

StoredEvent = sa.Row[Any]
"""An event of the trail."""


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
                    shown |= {"place": place if one.place is None else one.place, "double": one.double}
                    rows[reviews].append({"number": number, **shown})
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

    def deploy(
        self, policy: Policy, audit: float | None, *, reviewer_error: float = 0.0, double_review: float = 0.0
    ) -> Deployment:
        """Put a policy in force, and return its deployment: the current one if nothing changes.

        If reviewers begin to err, or no longer do, the labels in force of all audits follow.
        """
        settings = {"checksum": policy.checksum, "audit": audit}
        settings |= {"reviewer_error": reviewer_error, "double_review": double_review}
        latest = sa.select(deployments).order_by(deployments.c.number.desc()).limit(1)
        with self._database.write() as connection:
            row = connection.execute(latest).first()
            if row is not None and all(getattr(row, name) == value for name, value in settings.items()):
                number = row.number
            else:
                values = {**settings, "policy": policy.model_dump_json(), "deployed_at": time.time()}
                (number,) = connection.execute(sa.insert(deployments).values(values)).inserted_primary_key or (0,)
                if row is not None and bool(row.reviewer_error) != bool(reviewer_error):
                    labeled = sa.select(reviews.c.number).where(reviews.c.audit, reviews.c.label_count > 0)
                    settle(connection, connection.execute(labeled).scalars().all())
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
            columns = (row.audit, row.reviewer_error, row.double_review, row.deployed_at)
            self._deployments[number] = Deployment(number, policy, *columns)
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

    waiting: int = Field(description="Images without a label in force, including leased ones.")
    audits: int = Field(description="Audits among the waiting images.")
    leased: int = Field(description="Images leased to reviewers.")
    disputed: int = Field(description="Images that wait for a second or third reviewer, part of the waiting images.")
    done: int = Field(description="Images with a label in force.")
    expired: int = Field(description="Images removed before their review.")


class ReviewPace(BaseModel):
    """Labels per minute in the last ten minutes; null if there are fewer than two."""

    own: float | None
    everyone: float | None


class ReviewStore:
    """The review queue. Each image has at most one owner, until its lease expires.

    Changes are serialized, so no image is leased to two reviewers. They are idempotent: a client that did not receive
    the response can retry. Leases belong to a session, opinions to a reviewer, by name.
    """

    def __init__(self, database: Database, lease_seconds: float, *, clock: Callable[[], float] = time.time) -> None:
        self._database, self.lease_seconds, self._clock = database, lease_seconds, clock

    def lease(self, principal: Principal, count: int, *, only_audits: bool = False) -> list[StoredDecision]:
        """Renew the leases of a session, add images up to `count`, and return them all in review order.

        Every `AUDIT_EVERY`-th image is an audit, counted from the first label of the session, while any waits. With
        `only_audits`, other images are neither renewed nor returned. Images that the reviewer labeled or escalated
        before are left to others.
        """
        now, owner = self._clock(), principal.session
        columns: sa.Select[Any] = sa.select(reviews.c.number, reviews.c.audit, *QUEUE_COLUMNS)
        held = columns.where(reviews.c.lease_owner == owner, reviews.c.label.is_(None))
        is_expired = reviews.c.lease_until.is_(None) | (reviews.c.lease_until <= now)
        is_known = sa.exists().where(events.c.image == reviews.c.number, events.c.by == principal.name, IS_ACTIVE)
        is_free = IN_STATE["waiting"] & is_expired & reviews.c.lease_owner.is_distinct_from(owner)
        is_free &= (reviews.c.latest == 0) | ~is_known
        done = sa.select(sa.func.count()).where(_is_label_of(owner))
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

    def label(
        self,
        number: int,
        label: int,
        principal: Principal,
        *,
        comment: str | None = None,
        seconds: float | None = None,
    ) -> None:
        """Record the label of a reviewer; repeating it changes nothing, and a different one needs `undo` first.

        Two tabs of one browser share an owner and may show the same image: the second does not overwrite the first.
        `seconds` is the time that the image was on the screen.
        """
        self._add_opinion(number, "label", principal, label=label, comment=comment, seconds=seconds)

    def escalate(self, number: int, principal: Principal, *, comment: str | None = None) -> None:
        """Hand an image to another reviewer, for a second opinion; repeating it changes nothing."""
        self._add_opinion(number, "escalate", principal, label=None, comment=comment)

    def _add_opinion(
        self, number: int, action: Action, principal: Principal, *, label: int | None, **about: Any
    ) -> None:
        now = self._clock()
        with self._database.write() as connection:
            row = _read_state(connection, number)
            own = _find_own(connection, number, principal)
            if own is not None or row.label is not None:
                if label == (row if own is None else own).label:
                    return
                raise _make_reviewed_error(f"image {number}", row)
            self._check_lease(row, principal.session, now)
            add_event(connection, number, action, principal, now, label=label, **about)
            _update(connection, [number], lease_owner=None, lease_until=None)
            settle(connection, [number])

    def undo(self, number: int, principal: Principal) -> StoredDecision:
        """Undo a label, escalation or skip from the same session, and lease the image to it again.

        A label can be undone until another reviewer labels the image, too.
        """
        now, owner = self._clock(), principal.session
        with self._database.write() as connection:
            row = _read_state(connection, number)
            own = _find_own(connection, number, principal)
            if row.label is not None if own is None else not _is_undoable(connection, own, owner):
                raise _make_reviewed_error(f"image {number}", row)
            self._check_lease(row, owner, now)
            if own is not None:
                end_event(connection, own, "undo")
                add_event(connection, number, "undo", principal, now, before=own.label, ended="undo")
                settle(connection, [number])
            elif row.lease_owner != owner:
                _update(connection, [number], skips=max(row.skips - 1, 0))
            _update(connection, [number], lease_owner=owner, lease_until=now + self.lease_seconds)
            (item,) = _read_items(connection, [number])
        return item

    def correct(self, number: int, label: int, principal: Principal, *, comment: str | None = None) -> None:
        """Replace the label of a reviewer; an administrator decides the label for everyone. Idempotent."""
        now, decides = self._clock(), principal.may("administer")
        action: Action = "decide" if decides else "correct"
        with self._database.write() as connection:
            row = _read_state(connection, number)
            own = _find_own(connection, number, principal, decides=decides)
            if own is None and not decides:
                raise RequestError(409, "not_labeled", f"image {number} has no label of yours to correct.")
            before = row.label if own is None else own.label
            if own is not None and before == label:
                return
            if own is not None:
                end_event(connection, own, action)
            add_event(connection, number, action, principal, now, label=label, before=before, comment=comment)
            settle(connection, [number])

    def withdraw(self, name: str, principal: Principal) -> int:
        """Withdraw all labels, escalations and decisions of a reviewer, and return their number.

        This takes several transactions, since a long one would block decisions; repeating it finishes the rest.
        """
        query = sa.select(events).where(events.c.by == name, IS_ACTIVE).limit(MAX_IDS)
        withdrawn = 0
        while True:
            with self._database.write() as connection:
                found = connection.execute(query).all()
                if not found:
                    return withdrawn
                withdrawn += len(found)
                is_found = events.c.number.in_([one.number for one in found])
                connection.execute(sa.update(events).where(is_found).values(ended="withdraw"))
                shared = {"at": self._clock(), "by": principal.name, "action": "withdraw", "ended": "withdraw"}
                rows = [{"image": one.image, "before": one.label, "comment": f"of {name}"} for one in found]
                connection.execute(sa.insert(events), [shared | row for row in rows])
                settle(connection, list({one.image for one in found}))

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
        """Return the number of the image, or of the audit, that a session labeled last; None if there is none."""
        kinds = (True,) if only_audits else (True, False)
        query = (
            sa.select(events.c.image)
            .join(reviews, reviews.c.number == events.c.image)
            .where(_is_label_of(owner), reviews.c.audit.in_(kinds))
            .order_by(events.c.number.desc())
            .limit(1)
        )
        return next((number for (number,) in self._database.fetch(query)), None)

    def counts(self) -> ReviewCounts:
        """Count the images by state."""
        is_leased = reviews.c.lease_until > self._clock()  # a label ends the lease
        others = {"audits": IN_STATE["waiting"] & reviews.c.audit, "leased": is_leased, "disputed": IS_DISPUTED}
        totals = [
            sa.select(sa.func.count()).select_from(reviews).where(condition).scalar_subquery().label(name)
            for name, condition in (IN_STATE | others).items()
        ]
        (row,) = self._database.fetch(sa.select(*totals))
        return ReviewCounts(**row._mapping)

    def count_skipped(self) -> int:
        """Count the waiting images that were skipped."""
        skipped = sa.select(sa.func.count()).select_from(reviews).where(IN_STATE["waiting"], reviews.c.skips > 0)
        ((count,),) = self._database.fetch(skipped)
        return int(count)

    def pace(self, owner: str) -> ReviewPace:
        """Return the review pace of a session and of everyone together."""
        # Imported labels have no session, and do not measure review time.
        recent = (events.c.at > self._clock() - PACE_SECONDS) & events.c.session.is_not(None)
        is_label = events.c.label.is_not(None) & IS_ACTIVE
        found = self._database.fetch(sa.select(events.c.session, events.c.at).where(recent, is_label))
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

    def find_items(
        self, conditions: Sequence[sa.ColumnElement[bool]], *, start: int = 0, limit: int = 50
    ) -> list[StoredDecision]:
        """Return some of the images that meet conditions on reviews and decisions.

        Images with the newest labels and escalations come first, then all others in review order.
        """
        order = (reviews.c.latest.desc(), reviews.c.expired, *QUEUE_ORDER)
        query = sa.select(reviews.c.number).join(decisions, decisions.c.number == reviews.c.number).where(*conditions)
        with self._database.read() as connection:
            numbers = connection.execute(query.order_by(*order).offset(start).limit(limit)).scalars().all()
            items = {item.number: item for item in _read_items(connection, numbers)}
        return [items[number] for number in numbers]

    def find_events(self, numbers: Sequence[int], *conditions: sa.ColumnElement[bool]) -> dict[int, StoredEvent]:
        """Return the last active event of each of some images that meets some conditions."""
        query = select_active().where(events.c.image.in_(numbers), *conditions)
        return {row.image: row for row in (self._database.fetch(query) if numbers else ())}

    def read_history(self, number: int) -> Sequence[StoredEvent]:
        """Return all events of an image, oldest first."""
        return self._database.fetch(sa.select(events).where(events.c.image == number).order_by(events.c.number))

    def read_opinions(self) -> Sequence[StoredEvent]:
        """Return all labels that reviewers gave and did not undo, oldest first, with `double` of the image."""
        is_given = events.c.action.in_(("label", "import")) & (IS_ACTIVE | (events.c.ended == "correct"))
        query = sa.select(events, reviews.c.double).join(reviews, reviews.c.number == events.c.image)
        return self._database.fetch(query.where(is_given).order_by(events.c.number))

    def add_labels(self, labels: Sequence[NewLabel], reviewer: str, *, for_others: bool = True) -> int:
        """Import labels, all or none, and return the number of new ones.

        They belong to `reviewer`, except those that name another one, which are an error without `for_others`.
        """
        now = self._clock()
        with self._database.write() as connection:
            rows = fetch_by_id(connection, SELECT_STATE, [one.id for one in labels])
            known = _find_opinions(connection, [row.number for row in rows.values()])
            new: list[dict[str, Any]] = []
            for one in labels:
                by = one.reviewer or reviewer
                if _is_new(one, rows.get(one.id), by, known):
                    if by != reviewer and not for_others:
                        fault = f"{one.where}: {by!r} is not you; only an administrator imports labels of others."
                        raise RequestError(403, "permission", fault)
                    number = rows[one.id].number
                    known[number, by] = one.label
                    comment = None if by == reviewer else f"imported by {reviewer}"
                    about = {"image": number, "at": now, "by": by, "action": "import"}
                    new.append({**about, "label": one.label, "comment": comment})
            if new:
                changed = list({one["image"] for one in new})
                connection.execute(sa.insert(events), new)
                free = sa.update(reviews).where(reviews.c.number == sa.bindparam("of_number"))
                numbered = [{"of_number": number, "lease_owner": None, "lease_until": None} for number in changed]
                connection.execute(free, numbered)
                settle(connection, changed)
        return len(new)

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
                _update(connection, numbers, expired=True)  # in effect while there is no label in force
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
    ordered = sorted(rows, key=lambda row: (row.skips, not row.urgent, row.place, row.number))
    queues = [deque(row for row in ordered if bool(row.audit) is audit) for audit in (True, False)]
    numbers: list[int] = []
    while waiting := [queue for queue in queues if queue]:
        is_due = (place + len(numbers)) % AUDIT_EVERY == AUDIT_EVERY - 1
        chosen = min(waiting, key=lambda one: (one[0].skips, not one[0].urgent, bool(one[0].audit) is not is_due))
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


def _is_label_of(owner: str) -> sa.ColumnElement[bool]:
    """Whether an event is an active label from a session."""
    return (events.c.session == owner) & IS_ACTIVE & events.c.label.is_not(None) & (events.c.action != "decide")


def _find_own(
    connection: sa.Connection, number: int, principal: Principal, *, decides: bool = False
) -> StoredEvent | None:
    """Return the active label or escalation of a reviewer, or the decision for everyone."""
    is_decision = events.c.action == "decide"
    is_own = is_decision if decides else ~is_decision & (events.c.by == principal.name)
    return connection.execute(select_active().where(events.c.image == number, is_own)).first()


def _is_undoable(connection: sa.Connection, own: StoredEvent, owner: str) -> bool:
    """Whether an active event is from a session, and nobody has labeled the image since."""
    is_later = (events.c.image == own.image) & (events.c.number > own.number) & events.c.label.is_not(None)
    return own.session == owner and connection.execute(select_active().where(is_later)).first() is None


def _find_opinions(connection: sa.Connection, numbers: Sequence[int]) -> dict[tuple[int, str], int | None]:
    """Return the active labels and escalations of images, by image and reviewer."""
    found: dict[tuple[int, str], int | None] = {}
    query = sa.select(events.c.image, events.c.by, events.c.label).where(IS_ACTIVE, events.c.action != "decide")
    for start in range(0, len(numbers), MAX_IDS):
        block = query.where(events.c.image.in_(numbers[start : start + MAX_IDS]))
        found |= {(row.image, row.by): row.label for row in connection.execute(block)}
    return found


def _is_new(new: NewLabel, row: sa.Row[Any] | None, by: str, known: Mapping[tuple[int, str], int | None]) -> bool:
    """Whether an imported label of a reviewer is new; raise an error if it cannot be recorded."""
    if row is None:
        raise RequestError(422, "unknown_id", f"{new.where}: image {new.id!r} is not in the queue; remove the row.")
    if new.reviewer in (None, row.reviewer) and row.label == new.label:
        return False  # exported before
    is_conflict = row.label is not None and new.reviewer is None
    if is_conflict or known.get((row.number, by), new.label) != new.label:
        raise _make_reviewed_error(f"{new.where}: image {new.id!r}", row)
    return (row.number, by) not in known


def _make_reviewed_error(image: str, row: sa.Row[Any]) -> RequestError:
    by = "you or another reviewer" if row.reviewer is None else repr(row.reviewer)
    return RequestError(409, "already_reviewed", f"{image} has a different label by {by}, which is kept.")


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
    reviewer_error: float
    """The stated bound of the error rate of reviewers."""
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
        return ReviewedService(policy, tables, labels, left_out, deployment.reviewer_error, database.place)
    finally:
        database.close()
