"""`AlarmBook`: the alarms of a service, recorded once for all instances, acknowledged and reset by people."""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import sqlalchemy as sa

from secondlook.serving.database import Database, Number, decisions, deployments, format_time, metadata
from secondlook.serving.responses import RequestError
from secondlook.serving.webhook import Webhook

AlarmKind = Literal["shift", "broken", "unknown"]
SETTLE_SECONDS = 60.0
"""An instance records the end of an alarm after this time without it: another one may have read more labels."""
MAX_LISTED = 20

logger = logging.getLogger("secondlook.serving")

alarms = sa.Table(
    "alarms",
    metadata,
    sa.Column("number", Number, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("policy", sa.Text, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("raised_at", sa.Double, nullable=False),
    sa.Column("resolved_at", sa.Double),
    sa.Column("acknowledged_by", sa.Text),
    sa.Column("acknowledged_at", sa.Double),
    sa.Column("note", sa.Text),
    sa.Column("reset_by", sa.Text),
    sa.Column("reset_after", sa.BigInteger),
    sa.Index("open_alarms", "resolved_at", "kind"),
)
"""All alarms that were ever raised, with the checksum of their policy; one of each kind may be open (not resolved).
`reset_after` is the number of images of the policy after which the shift alarm started anew."""
IS_OPEN = alarms.c.resolved_at.is_(None)
TIMES = ("raised_at", "resolved_at", "acknowledged_at")


class AlarmBook:
    """The alarms of all instances: the one that records a change first sends it to its webhook."""

    def __init__(self, database: Database, webhook: str | None) -> None:
        self._database = database
        self._webhook = None if webhook is None else Webhook(webhook)
        self._missing_since: dict[int, float] = {}
        """When this instance first missed an open alarm, by its number."""
        self._storage_problem: str | None = None

    def update(self, deployment: int, checksum: str, raised: Mapping[str, str], resets: int) -> None:
        """Record the changes, given the text of each raised alarm of the policy in force by kind.

        `resets` is how often its shift alarm started anew here. Other instances may know a later reset or policy; then
        nothing is recorded.
        """
        known = {row.kind: row for row in self._database.fetch(sa.select(alarms).where(IS_OPEN))}
        over = [row.number for row in known.values() if row.policy != checksum or self._is_over(row, raised)]
        new = [kind for kind in raised if kind not in known or known[kind].number in over]
        if not over and not new:
            return
        newest = sa.select(sa.func.max(deployments.c.number))
        with self._database.write() as connection:
            if (deployment, resets) != (connection.execute(newest).scalar(), len(_read_resets(connection, checksum))):
                return
            changed = _change(connection, alarms.c.number.in_(over), resolved_at=time.time())
            still_open = connection.execute(sa.select(alarms.c.kind).where(IS_OPEN)).scalars().all()
            for kind in set(new).difference(still_open):
                values = {"kind": kind, "policy": checksum, "text": raised[kind], "raised_at": time.time()}
                changed += connection.execute(sa.insert(alarms).values(values).returning(alarms)).all()
        self._send(changed)

    def _is_over(self, row: sa.Row[Any], raised: Mapping[str, str]) -> bool:
        if row.kind in raised:
            self._missing_since.pop(row.number, None)
            return False
        return time.monotonic() - self._missing_since.setdefault(row.number, time.monotonic()) >= SETTLE_SECONDS

    def acknowledge(self, kind: AlarmKind, name: str, note: str | None) -> dict[str, Any]:
        """Record who has seen an alarm, and return it. The first acknowledgment is kept."""
        is_new = (alarms.c.kind == kind) & alarms.c.acknowledged_by.is_(None)
        with self._database.write() as connection:
            _change(connection, is_new, acknowledged_by=name, acknowledged_at=time.time(), note=note)
            row = connection.execute(sa.select(alarms).where(IS_OPEN, alarms.c.kind == kind)).first()
        return describe_alarm(_check_found(row, kind))

    def reset_shift(self, name: str) -> dict[str, Any]:
        """Resolve the shift alarm, and return it: all instances start it anew from the next image."""
        # Writes are serialized, so no instance has read an image after those that are counted.
        images = sa.select(sa.func.count()).select_from(decisions.join(deployments))
        images = images.where(deployments.c.checksum == alarms.c.policy)
        values = {"resolved_at": time.time(), "reset_by": name, "reset_after": images.scalar_subquery()}
        with self._database.write() as connection:
            changed = _change(connection, alarms.c.kind == "shift", **values)
        self._send(changed)
        return describe_alarm(_check_found(next(iter(changed), None), "shift"))

    def report_storage(self, problem: str | None) -> None:
        """Send a storage problem of this instance, or its end: it cannot be recorded."""
        if (problem is None) != (self._storage_problem is None):
            self._notify("storage", problem is not None, problem or "Storing works again.")
        self._storage_problem = problem

    def list_latest(self) -> list[dict[str, Any]]:
        """Return the open alarms, then the latest others, as JSON values."""
        latest = sa.select(alarms).order_by(~IS_OPEN, alarms.c.number.desc()).limit(MAX_LISTED)
        return [describe_alarm(row) for row in self._database.fetch(latest)]

    def close(self) -> None:
        """Stop sending."""
        if self._webhook is not None:
            self._webhook.close()

    def _send(self, changed: Sequence[sa.Row[Any]]) -> None:
        for row in changed:
            self._notify(row.kind, row.resolved_at is None, row.text, alarm=row.number, policy=row.policy)

    def _notify(self, kind: str, is_raised: bool, text: str, **about: Any) -> None:
        event = {"kind": kind, "state": "raised" if is_raised else "resolved", "text": text, **about}
        logger.warning("alarm", extra=event)
        if self._webhook is not None:
            self._webhook.send(event | {"time": format_time(time.time()), "path": "/"})


def list_raised(monitor: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the text of each alarm in the status of a monitor, by kind."""
    shift, audit, unknown = ((monitor or {}).get(name) or {} for name in ("shift", "audit", "unknown"))
    raised = {}
    if shift.get("raised"):
        raised["shift"] = f"The images have changed: alarm after {shift['raised_at']:,} images."
    if audit.get("verdict") == "broken":
        raised["broken"] = "The guarantee is broken: audits show more errors among accepted images than guaranteed."
    if unknown.get("raised"):
        raised["unknown"] = f"More rejected images show none of the classes since image {unknown['since']:,}."
    return raised


def find_state(status: Mapping[str, Any]) -> str:
    """Return the state of a service in a word or three, from its status."""
    monitor = status.get("monitor") or {}
    audit = monitor.get("audit") or {"verdict": None, "labels": 0}
    if status.get("problem") is not None:
        return "problem"
    if audit["verdict"] == "broken":
        return "broken"
    if monitor.get("alarm"):
        return "images changed"
    if audit["verdict"] == "holds":
        return "holds"
    # Bounds that would be shown as 0 % to 100 % say nothing.
    is_checked = audit["labels"] > 0 and audit["high"] - audit["low"] < 0.9995
    return "undecided" if is_checked else "not checked yet"


def describe_alarm(row: sa.Row[Any]) -> dict[str, Any]:
    """Return an alarm as JSON values."""
    values = dict(row._mapping)
    return values | {name: None if values[name] is None else format_time(values[name]) for name in TIMES}


def list_resets(database: Database, checksum: str) -> Sequence[int]:
    """Return the numbers of images of a policy after which its shift alarm started anew, in order."""
    with database.read() as connection:
        return _read_resets(connection, checksum)


def _read_resets(connection: sa.Connection, checksum: str) -> Sequence[int]:
    is_reset = (alarms.c.policy == checksum) & alarms.c.reset_after.is_not(None)
    return connection.execute(sa.select(alarms.c.reset_after).where(is_reset).order_by(alarms.c.number)).scalars().all()


def _change(connection: sa.Connection, condition: sa.ColumnElement[bool], **values: Any) -> list[sa.Row[Any]]:
    """Change some open alarms, and return them."""
    return list(connection.execute(sa.update(alarms).where(IS_OPEN, condition).values(values).returning(alarms)))


def _check_found(row: sa.Row[Any] | None, kind: str) -> sa.Row[Any]:
    if row is None:
        raise RequestError(404, "no_alarm", f"there is no open alarm of kind {kind!r}.")
    return row
