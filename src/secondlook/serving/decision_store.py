"""The decisions of a service as rows of its database: written once per id, and read again for clients and monitors."""

import hashlib
import itertools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from secondlook import Decision
from secondlook.extension import SCORE_METADATA, Policy, RowOptions, make_row_table
from secondlook.serving.database import Database, decisions, deployments, images, reviews
from secondlook.serving.responses import ServedGuarantee

if TYPE_CHECKING:
    import pyarrow as pa

MAX_IDS = 500
"""Number of ids in one query; databases bound it."""


@dataclass(frozen=True)
class Deployment:
    """A policy in force, with the fraction of accepted images that are audited."""

    number: int
    policy: Policy
    audit: float | None
    deployed_at: float

    @cached_property
    def checksum(self) -> str:
        """Checksum of the policy, which computes it anew whenever it is asked."""
        return self.policy.checksum

    @cached_property
    def guarantee(self) -> ServedGuarantee | None:
        """The guarantee of the policy as it is sent with decisions."""
        made = self.policy.guarantee
        return None if made is None else ServedGuarantee(risk=made.risk, delta=made.delta, text=str(made))


@dataclass(frozen=True, eq=False)
class StoredImage:
    """An image file as it came."""

    media_type: str
    content: bytes


@dataclass(frozen=True, eq=False)
class NewDecision:
    """A decision that is to be stored, with what it is about."""

    decision: Decision
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

    @property
    def interval(self) -> tuple[float, float] | None:
        """Interval of the confidence; None after a single look."""
        return None if self.low is None or self.high is None else (self.low, self.high)


class FoundReview(NamedTuple):
    """What people found about an image, or None each before they did."""

    label: int | None
    reviewer: str | None
    reviewed_at: float | None


class StoredOutcome(NamedTuple):
    """A decision that is stored, and whether it was there before the request."""

    decision: StoredDecision
    replayed: bool


class DecisionStore:
    """All decisions of a service, and the policies that they were made by."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._deployments: dict[int, Deployment] = {}
        """Those that were read; they never change."""

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
        return next((FoundReview(*row) for row in self._database.fetch(query)), None)

    def deploy(self, policy: Policy, audit: float | None) -> Deployment:
        """Put a policy in force, and return its deployment: the present one if nothing changes."""
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
        """Return the numbers of all deployments of a policy, each with its fraction of audits."""
        checksum = policy.checksum
        return {one.number: one.audit for one in self.list_deployments() if one.checksum == checksum}

    def iter_decisions(
        self, deployment_numbers: Sequence[int], *, after: int = 0, block: int = 10_000
    ) -> Iterator[list[StoredDecision]]:
        """Yield the decisions of some deployments after a number, in their order, in blocks."""
        while True:
            query = (
                sa.select(decisions)
                .where(decisions.c.deployment.in_(deployment_numbers), decisions.c.number > after)
                .order_by(decisions.c.number)
                .limit(block)
            )
            found = [make_stored_decision(row._mapping) for row in self._database.fetch(query)]
            if found:
                yield found
                after = found[-1].number
            if len(found) < block:
                return

    def iter_score_tables(
        self, policy: Policy, audits: Mapping[int, float | None], *, after: int = 0
    ) -> Iterator[tuple[int, "pa.Table"]]:
        """Yield the decisions of a policy after a number as rows of score files, in the order of the stream.

        `audits` are the deployments, as `find_audits` returns them. Each table has a block of one deployment, and comes
        with the number of its last decision.
        """
        for block in self.iter_decisions(list(audits), after=after):
            for number, group in itertools.groupby(block, key=lambda one: one.deployment):
                part = list(group)
                yield part[-1].number, _make_score_table(part, policy, audits[number])

    def identify(self, number: int) -> str | None:
        """Return a digest of the decision with a number and of its database; None if there is none."""
        columns = (decisions.c.id, decisions.c.digest, decisions.c.decided_at)
        for row in self._database.fetch(sa.select(*columns).where(decisions.c.number == number)):
            return hashlib.sha256(json.dumps([self._database.audit_seed, number, *row]).encode()).hexdigest()
        return None


def make_stored_decision(row: Mapping[Any, Any]) -> StoredDecision:
    """Return the decision of a row that has all columns of its table."""
    values = {name: row[name] for name in decisions.c.keys()}  # noqa: SIM118 - a collection of columns
    return StoredDecision(**values | {"labels": None if values["labels"] is None else tuple(values["labels"])})


def _find(connection: sa.Connection, ids: Sequence[str]) -> dict[str, StoredDecision]:
    found: dict[str, StoredDecision] = {}
    for start in range(0, len(ids), MAX_IDS):
        query = sa.select(decisions).where(decisions.c.id.in_(ids[start : start + MAX_IDS]))
        found |= {row["id"]: make_stored_decision(row) for row in connection.execute(query).mappings()}
    return found


def _make_stored(number: int, new: NewDecision, deployment: int, now: float) -> StoredDecision:
    low, high = new.decision.interval or (None, None)
    about: dict[str, Any] = {
        "number": number,
        "deployment": deployment,
        "digest": new.digest,
        "name": new.name,
        "decided_at": now,
    }
    shared: dict[str, Any] = {name: value for name, value in vars(new.decision).items() if name in decisions.c}
    return StoredDecision(**shared, **about, low=low, high=high)


def _insert(connection: sa.Connection, new: Sequence[NewDecision], stored: Sequence[StoredDecision]) -> None:
    """Insert decisions, and what reviewers need of those that are to be reviewed; one statement per table."""
    due = [(row, one) for row, one in zip(stored, new, strict=True) if row.to_review]
    rows: dict[sa.Table, list[dict[str, Any]]] = {
        decisions: [vars(row) for row in stored],
        reviews: [
            {name: getattr(one.decision, name) for name in ("confidence", "likely", "views")} | {"number": row.number}
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


def _make_score_table(part: Sequence[StoredDecision], policy: Policy, audit: float | None) -> "pa.Table":
    """Return decisions of one deployment as rows of a score file, with its metadata."""
    names = [name for name in RowOptions(policy, audit=audit).columns if hasattr(part[0], name)]
    table = make_row_table(names, {name: [getattr(one, name) for one in part] for name in names}, len(part))
    metadata = {SCORE_METADATA: json.dumps({"policy": json.loads(policy.model_dump_json()), "audit": audit})}
    return table.replace_schema_metadata(metadata)
