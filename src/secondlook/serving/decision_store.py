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

IS_WAITING = reviews.c.label.is_(None) & reviews.c.expired.is_(False)
IS_EXPIRED = reviews.c.label.is_(None) & reviews.c.expired.is_(True)
STATE = sa.case((reviews.c.label.is_not(None), "done"), (IS_EXPIRED, "expired"), (IS_WAITING, "waiting"), else_="none")
SELECT_DECISION = (
    sa.select(
        decisions,
        reviews.c.likely,
        reviews.c.views,
        reviews.c.skips,
        reviews.c.label.label("reviewed_label"),
        reviews.c.reviewer,
        reviews.c.reviewed_at,
        STATE.label("state"),
        images.c.number.is_not(None).label("has_image"),
    )
    .outerjoin(reviews, reviews.c.number == decisions.c.number)
    .outerjoin(images, images.c.number == decisions.c.number)
)
"""Decisions with what is known of their reviews. `state` is `none` where nobody is to review the image, else `waiting`,
`done`, or `expired` if the image was removed before anyone reviewed it; `has_image` is whether it is stored."""
MAX_IDS = 500
"""Number of ids in one query; databases bound it."""
BLOCK_ROWS = 10_000
"""Number of decisions that are read at once."""


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


class StoredImage(NamedTuple):
    """An image file as it came."""

    media_type: str
    content: bytes


class NewDecision(NamedTuple):
    """A decision that is to be stored, with what it is about."""

    decision: Decision
    digest: str
    """Hex sha256 of the image as it came."""
    name: str | None
    image: StoredImage | None
    """The image, if it is to be reviewed and stored."""


StoredDecision = sa.Row[Any]
"""A decision as it is in the database, with its review: the columns of `SELECT_DECISION`."""


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
                    shown = {name: getattr(one.decision, name) for name in ("confidence", "likely", "views")}
                    rows[reviews].append({"number": number, **shown})
                    if one.image is not None:
                        rows[images].append({"number": number, **one.image._asdict(), "stored_at": now})
            for table, values_of in rows.items():
                if values_of:
                    connection.execute(sa.insert(table), values_of)
            found = fetch_by_id(connection, SELECT_DECISION, ids)
        return [StoredOutcome(found[id_], replayed=id_ in known) for id_ in ids]

    def find(self, ids: Sequence[str], *, urgent: bool = False) -> dict[str, StoredDecision]:
        """Return the decisions with some ids, as far as they exist; see `Database.read` for `urgent`."""
        with self._database.read(urgent=urgent) as connection:
            return fetch_by_id(connection, SELECT_DECISION, ids)

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

    def iter_score_tables(
        self, policy: Policy, audits: Mapping[int, float | None], *, after: int = 0
    ) -> Iterator[tuple[int, "pa.Table"]]:
        """Yield the decisions of a policy after a number as rows of score files, in the order of the stream.

        `audits` are the deployments, as `find_audits` returns them. Each table has a block of one deployment, and comes
        with the number of its last decision.
        """
        chosen = sa.select(decisions).where(decisions.c.deployment.in_(list(audits)))
        query = chosen.order_by(decisions.c.number).limit(BLOCK_ROWS)
        while block := self._database.fetch(query.where(decisions.c.number > after)):
            after = block[-1].number
            for deployment, group in itertools.groupby(block, key=lambda row: row.deployment):
                part = list(group)
                yield part[-1].number, _make_score_table(part, policy, audits[deployment])

    def identify(self, number: int) -> str | None:
        """Return a digest of the decision with a number and of its database; None if there is none."""
        columns = (decisions.c.id, decisions.c.digest, decisions.c.decided_at)
        for row in self._database.fetch(sa.select(*columns).where(decisions.c.number == number)):
            return hashlib.sha256(json.dumps([self._database.audit_seed, number, *row]).encode()).hexdigest()
        return None


def get_interval(stored: StoredDecision) -> tuple[float, float] | None:
    """Return the interval of the confidence; None after a single look."""
    return None if stored.low is None else (stored.low, stored.high)


def fetch_by_id(connection: sa.Connection, query: sa.Select[Any], ids: Sequence[str]) -> dict[str, sa.Row[Any]]:
    """Return the rows of a query with some ids of decisions, by id, as far as they exist."""
    parts = (ids[start : start + MAX_IDS] for start in range(0, len(ids), MAX_IDS))
    return {row.id: row for part in parts for row in connection.execute(query.where(decisions.c.id.in_(part)))}


def _make_score_table(part: Sequence[sa.Row[Any]], policy: Policy, audit: float | None) -> "pa.Table":
    """Return decisions of one deployment as rows of a score file, with its metadata."""
    names = [name for name in RowOptions(policy, audit=audit).columns if name in decisions.c]
    table = make_row_table(names, {name: [getattr(one, name) for one in part] for name in names}, len(part))
    metadata = {SCORE_METADATA: json.dumps({"policy": json.loads(policy.model_dump_json()), "audit": audit})}
    return table.replace_schema_metadata(metadata)
