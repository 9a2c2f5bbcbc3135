"""The decisions of a service as rows of its database: written once per id, and read again for clients and monitors."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from secondlook.decisions import DetailedDecision
from secondlook.policies import Policy
from secondlook.serving.database import Database
from secondlook.serving.schema import decisions, deployments, images, reviews

if TYPE_CHECKING:
    from sqlalchemy.engine import RowMapping


@dataclass(frozen=True)
class Deployment:
    """A policy in force, with the fraction of accepted images that are audited."""

    number: int
    policy: Policy
    audit: float | None
    deployed_at: float


@dataclass(frozen=True, eq=False)
class StoredImage:
    """An image file as it came."""

    media_type: str
    content: bytes


@dataclass(frozen=True, eq=False)
class NewDecision:
    """A decision that is to be stored, with what it is about."""

    decision: DetailedDecision
    digest: str
    """Hex sha256 of the image as it came."""
    name: str | None
    image: StoredImage | None
    """The image, if it is to be stored for its review."""


@dataclass(frozen=True)
class StoredDecision:
    """A decision as it is in the database."""

    number: int
    id: str
    deployment: int
    digest: str
    name: str | None
    label: int
    labels: tuple[int, ...] | None
    class_name: str | None
    confidence: float
    low: float | None
    high: float | None
    accept: bool
    looks: int
    first_look: float
    disagreement: float | None
    audit: bool
    audit_probability: float | None
    decided_at: float

    @property
    def to_review(self) -> bool:
        """Whether people are to review the image: it was rejected, or it is audited."""
        return self.audit or not self.accept


class FoundReview(NamedTuple):
    """What people found about an image, or None each before they did."""

    label: int | None
    reviewer: str | None
    reviewed_at: float | None


class StoredOutcome(NamedTuple):
    """A decision that is stored, and whether it was there before the request."""

    decision: StoredDecision
    replayed: bool


COLUMNS = tuple(decisions.c)
MAX_IDS = 500
"""Number of ids in one query; databases bound it."""


class DecisionStore:
    """All decisions of a service, and the policies that they were made by."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, new: Sequence[NewDecision], deployment: int) -> list[StoredOutcome]:
        """Store decisions in one transaction, and return them; an id that is there already keeps its first decision.

        The caller compares digests: that of the first decision may be of another image.
        """
        now = time.time()
        with self._database.write() as connection:
            known = _find(connection, [one.decision.id for one in new])
            last = connection.execute(sa.select(sa.func.max(decisions.c.number))).scalar() or 0
            fresh = [one for one in new if one.decision.id not in known]
            added = [_make_stored(last + place, one, deployment, now) for place, one in enumerate(fresh, start=1)]
            _insert(connection, fresh, added)
        found = known | {stored.id: stored for stored in added}
        return [StoredOutcome(found[one.decision.id], replayed=one.decision.id in known) for one in new]

    def find(self, ids: Sequence[str], *, urgent: bool = False) -> dict[str, StoredDecision]:
        """Return the decisions with some ids, as far as they exist; see `Database.read` for `urgent`."""
        with self._database.read(urgent=urgent) as connection:
            return _find(connection, ids)

    def find_review(self, number: int) -> FoundReview | None:
        """Return the review of a decision; None if there is none to be made."""
        query = sa.select(reviews.c.label, reviews.c.reviewer, reviews.c.reviewed_at).where(reviews.c.number == number)
        with self._database.read() as connection:
            row = connection.execute(query).first()
        return None if row is None else FoundReview(*row)

    def deploy(self, policy: Policy, audit: float | None) -> Deployment:
        """Put a policy in force, and return its deployment: the present one if nothing changes."""
        now = time.time()
        with self._database.write() as connection:
            latest = _read_latest(connection)
            if latest is not None and (latest.policy.checksum, latest.audit) == (policy.checksum, audit):
                return latest
            values = {"checksum": policy.checksum, "policy": policy.model_dump_json(), "audit": audit}
            inserted = connection.execute(sa.insert(deployments).values(**values, deployed_at=now))
        (number,) = inserted.inserted_primary_key or (0,)
        return Deployment(number, policy, audit, now)

    def latest_deployment(self) -> Deployment | None:
        """Return the deployment in force; None before the first one."""
        with self._database.read() as connection:
            return _read_latest(connection)

    def has_deployed(self, policy: Policy) -> bool:
        """Whether a policy was ever in force."""
        query = sa.select(sa.literal(1)).where(deployments.c.checksum == policy.checksum).limit(1)
        with self._database.read() as connection:
            return connection.execute(query).scalar() is not None

    def find_deployment(self, number: int) -> Deployment:
        """Return a deployment by its number."""
        with self._database.read() as connection:
            row = connection.execute(sa.select(deployments).where(deployments.c.number == number)).mappings().one()
            return _make_deployment(row)

    def list_deployments(self) -> list[Deployment]:
        """Return all deployments, oldest first."""
        with self._database.read() as connection:
            rows = connection.execute(sa.select(deployments).order_by(deployments.c.number)).mappings()
            return [_make_deployment(row) for row in rows]

    def iter_decisions(
        self, deployment_numbers: Sequence[int], *, after: int = 0, block: int = 10_000
    ) -> Iterator[list[StoredDecision]]:
        """Yield the decisions of some deployments after a number, in their order, in blocks."""
        while True:
            query = (
                sa.select(*COLUMNS)
                .where(decisions.c.deployment.in_(deployment_numbers), decisions.c.number > after)
                .order_by(decisions.c.number)
                .limit(block)
            )
            with self._database.read() as connection:
                found = [make_stored_decision(dict(row)) for row in connection.execute(query).mappings()]
            if found:
                yield found
                after = found[-1].number
            if len(found) < block:
                return


def _find(connection: sa.Connection, ids: Sequence[str]) -> dict[str, StoredDecision]:
    found: dict[str, StoredDecision] = {}
    for start in range(0, len(ids), MAX_IDS):
        query = sa.select(*COLUMNS).where(decisions.c.id.in_(ids[start : start + MAX_IDS]))
        found |= {row["id"]: make_stored_decision(dict(row)) for row in connection.execute(query).mappings()}
    return found


def _make_stored(number: int, new: NewDecision, deployment: int, now: float) -> StoredDecision:
    made = new.decision
    low, high = made.interval or (None, None)
    return StoredDecision(
        number=number,
        id=made.id,
        deployment=deployment,
        digest=new.digest,
        name=new.name,
        label=made.label,
        labels=made.labels,
        class_name=made.class_name,
        confidence=made.confidence,
        low=low,
        high=high,
        accept=made.accept,
        looks=made.looks,
        first_look=made.first_look,
        disagreement=made.disagreement,
        audit=made.audit,
        audit_probability=made.audit_probability,
        decided_at=now,
    )


def _insert(connection: sa.Connection, new: Sequence[NewDecision], stored: Sequence[StoredDecision]) -> None:
    """Insert decisions, and what reviewers need of those that are to be reviewed; one statement per table."""
    due = [(row, one) for row, one in zip(stored, new, strict=True) if row.to_review]
    rows: dict[sa.Table, list[dict[str, Any]]] = {
        decisions: [vars(row) for row in stored],
        reviews: [
            {
                "number": row.number,
                "confidence": row.confidence,
                "likely": one.decision.likely,
                "views": one.decision.views,
            }
            for row, one in due
        ],
        images: [
            {"number": row.number, **vars(one.image), "stored_at": row.decided_at}
            for row, one in due
            if one.image is not None
        ],
    }
    for table, values in rows.items():
        if values:
            connection.execute(sa.insert(table), values)


def make_stored_decision(row: Mapping[str, Any]) -> StoredDecision:
    """Return the decision of a row of the table."""
    labels = None if row["labels"] is None else tuple(row["labels"])
    return StoredDecision(**{**row, "labels": labels})


def _read_latest(connection: sa.Connection) -> Deployment | None:
    query = sa.select(deployments).order_by(deployments.c.number.desc()).limit(1)
    row = connection.execute(query).mappings().first()
    return None if row is None else _make_deployment(row)


def _make_deployment(row: "RowMapping") -> Deployment:
    return Deployment(row["number"], Policy.model_validate_json(row["policy"]), row["audit"], row["deployed_at"])
