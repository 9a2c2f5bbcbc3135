"""The stream of a policy: the images that it decided about, as rows of scores, from the database of a service."""

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import sqlalchemy as sa

from secondlook.monitoring import SCORE_METADATA
from secondlook.policies import Policy
from secondlook.serving.database import Database
from secondlook.serving.decision_store import DecisionStore, StoredDecision
from secondlook.serving.schema import decisions, deployments

if TYPE_CHECKING:
    import pyarrow as pa


class StreamPart(NamedTuple):
    """Images that follow one another."""

    last: int
    """Number of the last one."""
    rows: "pa.Table"


class PolicyStream:
    """All images that a policy decided about, in their order, whatever was in force in between."""

    def __init__(self, database: Database, policy: Policy) -> None:
        self._database = database
        self._store = DecisionStore(database)
        self.policy = policy

    def list_deployments(self) -> dict[int, float | None]:
        """Return the numbers of all deployments of the policy, each with its fraction of audits."""
        query = sa.select(deployments.c.number, deployments.c.audit).where(
            deployments.c.checksum == self.policy.checksum
        )
        with self._database.read() as connection:
            return {row.number: row.audit for row in connection.execute(query.order_by(deployments.c.number))}

    def iter_parts(self, audits: Mapping[int, float | None], *, after: int = 0) -> Iterator[StreamPart]:
        """Yield the images after a number, in blocks of one deployment; `audits` are those of `list_deployments`."""
        for block in self._store.iter_decisions(list(audits), after=after):
            for number, images in itertools.groupby(block, key=lambda one: one.deployment):
                part = list(images)
                yield StreamPart(part[-1].number, make_score_table(part, self.policy, audits[number]))

    def identify(self, number: int) -> str | None:
        """Return a digest of the image with a number and of its database; None if there is none."""
        query = sa.select(decisions.c.id, decisions.c.digest, decisions.c.decided_at).where(
            decisions.c.number == number
        )
        with self._database.read() as connection:
            row = connection.execute(query).first()
        if row is None:
            return None
        content = json.dumps([self._database.audit_seed, number, *row])
        return hashlib.sha256(content.encode()).hexdigest()


def make_score_table(images: Sequence[StoredDecision], policy: Policy, audit: float | None) -> "pa.Table":
    """Return decisions of one deployment as rows of a score file, with its metadata."""
    import pyarrow as pa

    types = {
        "id": pa.string(),
        "label": pa.int64(),
        **({"labels": pa.list_(pa.int64())} if policy.top_k > 1 else {}),
        "confidence": pa.float64(),
        "low": pa.float64(),
        "high": pa.float64(),
        "accept": pa.bool_(),
        "looks": pa.int64(),
        "first_look": pa.float64(),
        "disagreement": pa.float64(),
        **({} if audit is None else {"audit": pa.bool_(), "audit_probability": pa.float64()}),
    }
    columns = [pa.array([getattr(one, name) for one in images], kind) for name, kind in types.items()]
    metadata = {SCORE_METADATA: json.dumps({"policy": json.loads(policy.model_dump_json()), "audit": audit})}
    return pa.Table.from_arrays(columns, schema=pa.schema(list(types.items()), metadata))
